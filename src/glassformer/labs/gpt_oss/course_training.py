"""The course's functions for training, evaluation and generation, under the course's names."""

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor, nn

from glassformer.generation.sampling import SamplingRule
from glassformer.progress import progress_bar

Batches = Iterable[tuple[Tensor, Tensor] | list[Tensor]]
"""Pairs (tokens, next tokens), both [batch, position], such as a DataLoader of the course."""


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    dataloader: Batches,
    eval_fn: Callable[[int, nn.Module], object],
    num_epochs: int,
) -> list[float]:
    """Minimise the mean of ``-log p(next token)`` over all positions, one update for each batch.

    ``eval_fn(epoch, model)`` is called before the first epoch and after each epoch. Returns the
    mean loss of each epoch.
    """
    device = _device(model)
    means = []
    eval_fn(0, model)
    for epoch in range(num_epochs):
        model.train()
        losses = []
        for x, y in progress_bar(None, iterable=dataloader, desc=f"epoch {epoch + 1}/{num_epochs}"):
            logits = model(x.to(device))
            loss = F.cross_entropy(logits.flatten(0, 1), y.to(device).flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        means.append(float(torch.stack(losses).mean()))
        eval_fn(epoch, model)
    return means


@torch.no_grad()
def eval_acc(model: nn.Module, dataloader: Batches) -> Float[Tensor, ""]:
    """Return the share of positions whose most likely token is the next one, in [0, 1]."""
    hits = list(_hits(model, dataloader))
    num_right = torch.stack([batch.float().sum() for batch in hits]).sum()
    return num_right / sum(batch.numel() for batch in hits)


@torch.no_grad()
def calc_per_token_acc(model: nn.Module, data_loader: Batches) -> Float64[np.ndarray, " position"]:
    """Return the accuracy at each position, averaged over all sequences, in [0, 1]."""
    return torch.cat(list(_hits(model, data_loader))).double().mean(dim=0).cpu().numpy()


@torch.no_grad()
def token_choice_greedy(
    model_logits: Float[Tensor, "batch position vocab"],
) -> Int[Tensor, "batch 1"]:
    """Return the most likely token after the last position."""
    return model_logits[:, -1:].argmax(dim=-1)


@torch.no_grad()
def generate(
    model: nn.Module,
    input: Int[Tensor, "batch position"],
    gen_length: int,
    token_choice: Callable[[Tensor], Tensor] = token_choice_greedy,
) -> Int[Tensor, "batch gen_length"]:
    """Continue each sequence by ``gen_length`` tokens, which are returned.

    Each step runs the model on the whole sequence, as in the course;
    :func:`glassformer.generation.decoding.generate` uses a cache of keys and values instead.
    """
    model.eval()
    sequence = input.to(_device(model))
    for _ in range(gen_length):
        sequence = torch.cat([sequence, token_choice(model(sequence))], dim=1)
    return sequence[:, input.shape[1] :]


@torch.no_grad()
def get_dist_after_with_temp_and_topp(
    model_logits: Float[Tensor, "batch position vocab"], top_p: float, t: float
) -> Float[Tensor, "batch position vocab"]:
    """Return ``softmax(logits / t)`` restricted to the nucleus and rescaled to sum 1.

    The nucleus has the fewest most likely tokens whose probabilities add up to ``top_p``.

    Source: Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration", section 3.1.
    """
    return SamplingRule(temperature=t, top_p=top_p).distribution(model_logits)


@torch.no_grad()
def token_choice_adv(
    model_logits: Float[Tensor, "batch position vocab"], top_p: float, t: float
) -> Int[Tensor, "batch 1"]:
    """Draw a token after the last position from :func:`get_dist_after_with_temp_and_topp`.

    Random numbers come from torch's global generator.
    """
    return SamplingRule(temperature=t, top_p=top_p).choose(model_logits[:, -1:])


def _hits(model: nn.Module, dataloader: Batches) -> Iterator[Bool[Tensor, "batch position"]]:
    """Yield masks of right predictions, batch by batch."""
    model.eval()
    device = _device(model)
    for x, y in dataloader:
        yield model(x.to(device)).argmax(dim=-1) == y.to(device)


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
