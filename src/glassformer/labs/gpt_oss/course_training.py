"""The course's functions around the model, under its names: training, evaluation, greedy and
nucleus generation.
"""

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor, nn

from glassformer.generation.sampling import SamplingRule
from glassformer.progress import progress_bar

Batches = Iterable[tuple[Tensor, Tensor] | list[Tensor]]
"""Pairs (tokens, next tokens), both [batch, position]: a DataLoader of the course's data sets, for
example.
"""


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    dataloader: Batches,
    eval_fn: Callable[[int, nn.Module], object],
    num_epochs: int,
) -> list[float]:
    """Minimise the mean of ``-log p(next token)`` over all positions, one update a batch.

    ``eval_fn(epoch, model)`` is called before the first epoch and after each. Returns each epoch's
    mean loss.
    """
    place = _device(model)
    means = []
    eval_fn(0, model)
    for epoch in range(num_epochs):
        model.train()
        losses = []
        for x, y in progress_bar(None, iterable=dataloader, desc=f"epoch {epoch + 1}/{num_epochs}"):
            logits = model(x.to(place))
            loss = F.cross_entropy(logits.flatten(0, 1), y.to(place).flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        means.append(float(torch.stack(losses).mean()))
        eval_fn(epoch, model)
    return means


@torch.no_grad()
def eval_acc(model: nn.Module, dataloader: Batches) -> Float[Tensor, ""]:
    """The share of positions whose most likely token is the next one, in [0, 1]."""
    hits = list(_hits(model, dataloader))
    return torch.stack([hit.float().sum() for hit in hits]).sum() / sum(hit.numel() for hit in hits)


@torch.no_grad()
def calc_per_token_acc(model: nn.Module, data_loader: Batches) -> Float64[np.ndarray, " position"]:
    """Accuracy at each position of the sequence, averaged over all sequences, in [0, 1]."""
    return torch.cat(list(_hits(model, data_loader))).double().mean(dim=0).cpu().numpy()


@torch.no_grad()
def token_choice_greedy(
    model_logits: Float[Tensor, "batch position vocab"],
) -> Int[Tensor, "batch 1"]:
    """The most likely token after the last position."""
    return model_logits[:, -1:].argmax(dim=-1)


@torch.no_grad()
def generate(
    model: nn.Module,
    input: Int[Tensor, "batch position"],
    gen_length: int,
    token_choice: Callable[[Tensor], Tensor] = token_choice_greedy,
) -> Int[Tensor, "batch gen_length"]:
    """The ``gen_length`` tokens that continue each sequence: choose one, append it, run the model
    on all of it again.

    :func:`glassformer.generation.decoding.generate` keeps earlier keys and values in a cache
    instead.
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
    """``softmax(logits / t)``, cut to the fewest most likely tokens that reach ``top_p`` together,
    rescaled to sum 1.

    Source: Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration", section 3.1.
    """
    return SamplingRule(temperature=t, top_p=top_p).distribution(model_logits)


@torch.no_grad()
def token_choice_adv(
    model_logits: Float[Tensor, "batch position vocab"], top_p: float, t: float
) -> Int[Tensor, "batch 1"]:
    """A token of the last position drawn from :func:`get_dist_after_with_temp_and_topp`, by torch's
    generator.
    """
    return SamplingRule(temperature=t, top_p=top_p).choose(model_logits[:, -1:])


def _hits(model: nn.Module, dataloader: Batches) -> Iterator[Bool[Tensor, "batch position"]]:
    """Which predictions are right, batch by batch."""
    model.eval()
    place = _device(model)
    for x, y in dataloader:
        yield model(x.to(place)).argmax(dim=-1) == y.to(place)


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
