"""The course's functions around the model: training, evaluation, greedy and nucleus generation.

They are what the course asks for and no more. The lab itself trains with :mod:`glassformer.training` and generates with
:mod:`glassformer.generation`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor, nn
from tqdm import tqdm

from glassformer.errors import require, require_positive
from glassformer.generation.sampling import SamplingRule

Batches = Iterable[tuple[Tensor, Tensor] | list[Tensor]]
"""Pairs (tokens, next tokens), both [batch, position], as a DataLoader of the course's data sets gives them."""


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    dataloader: Batches,
    eval_fn: Callable[[int, nn.Module], object],
    num_epochs: int,
) -> None:
    """Minimise the mean of ``-log p(next token)`` over all positions, one update a batch.

    Args:
        model: The network; it is trained in place and left in the mode that ``eval_fn`` leaves it in.
        optimizer: Updates the weights of ``model``.
        dataloader: Pairs (tokens, next tokens), visited once an epoch.
        eval_fn: Called as ``eval_fn(epoch, model)`` before the first epoch and after each.
        num_epochs: Passes over the data.

    Raises:
        InputError: ``num_epochs`` below 1, or no batch in the data.
    """
    require_positive(num_epochs=num_epochs)
    place = _device(model)
    eval_fn(0, model)
    for epoch in range(num_epochs):
        model.train()
        batches = 0
        for x, y in tqdm(dataloader, desc=f"epoch {epoch + 1}/{num_epochs}", disable=None):
            logits = model(x.to(place))
            loss = F.cross_entropy(logits.flatten(0, 1), y.to(place).flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            batches += 1
        _require_batches(batches)
        eval_fn(epoch, model)


@torch.no_grad()
def eval_acc(model: nn.Module, dataloader: Batches) -> Float[Tensor, ""]:
    """The share of positions whose most likely token is the next one, in [0, 1].

    Raises:
        InputError: No batch in the data.
    """
    hits = [hit.float() for hit in _hits(model, dataloader)]
    _require_batches(len(hits))
    return torch.stack([hit.sum() for hit in hits]).sum() / sum(hit.numel() for hit in hits)


@torch.no_grad()
def calc_per_token_acc(model: nn.Module, data_loader: Batches) -> Float64[np.ndarray, " position"]:
    """Accuracy at each position of the sequence, averaged over all sequences, in [0, 1].

    Raises:
        InputError: No batch in the data.
    """
    hits = list(_hits(model, data_loader))
    _require_batches(len(hits))
    return torch.cat(hits).double().mean(dim=0).cpu().numpy()


@torch.no_grad()
def token_choice_greedy(model_logits: Float[Tensor, "batch position vocab"]) -> Int[Tensor, "batch 1"]:
    """The most likely token after the last position; the lowest of equally likely ones."""
    return _last(model_logits).argmax(dim=-1)


@torch.no_grad()
def generate(
    model: nn.Module,
    input: Int[Tensor, "batch position"],
    gen_length: int,
    token_choice: Callable[[Tensor], Tensor] = token_choice_greedy,
) -> Int[Tensor, "batch gen_length"]:
    """Continue every sequence by ``gen_length`` tokens: choose one, append it, run the model on the longer sequence.

    :func:`glassformer.generation.decoding.generate` does the same with a cache instead of running everything again.

    Args:
        model: Maps tokens to logits; it is switched to evaluation mode.
        input: The beginnings.
        gen_length: Tokens to add.
        token_choice: Maps logits ``[batch, position, vocab]`` to the next tokens ``[batch, 1]``.

    Returns:
        The new tokens alone.

    Raises:
        InputError: ``gen_length`` below 1, or an empty beginning.
    """
    require_positive(gen_length=gen_length)
    require(
        input.dim() == 2 and input.numel() > 0,
        f"input of shape {list(input.shape)}",
        "[batch, position]",
        "Start with a token.",
    )
    model.eval()
    sequence = input.to(_device(model))
    for _ in range(gen_length):
        sequence = torch.cat([sequence, token_choice(model(sequence))], dim=1)
    return sequence[:, -gen_length:]


@torch.no_grad()
def get_dist_after_with_temp_and_topp(
    model_logits: Float[Tensor, "batch position vocab"], top_p: float, t: float
) -> Float[Tensor, "batch position vocab"]:
    """``softmax(logits / t)`` cut to the smallest set of most likely tokens that reaches ``top_p``, rescaled to sum 1.

    Args:
        model_logits: Logits.
        top_p: Probability to reach: 0 leaves the most likely token alone, 1 everything.
        t: Temperature: above 1 more uniform, below 1 more peaked, 0 greedy.

    Raises:
        InputError: ``top_p`` outside [0, 1], a negative ``t``, or logits that are NaN.

    Source: Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration", section 3.1.
    """
    return SamplingRule(temperature=t, top_p=top_p).distribution(model_logits)


@torch.no_grad()
def token_choice_adv(
    model_logits: Float[Tensor, "batch position vocab"], top_p: float, t: float
) -> Int[Tensor, "batch 1"]:
    """A token drawn from :func:`get_dist_after_with_temp_and_topp` of the last position, by torch's global generator.

    Raises:
        InputError: As for that function.
    """
    return SamplingRule(temperature=t, top_p=top_p).choose(_last(model_logits))


def _hits(model: nn.Module, dataloader: Batches) -> Iterator[Bool[Tensor, "batch position"]]:
    """Which predictions are right, batch by batch."""
    model.eval()
    place = _device(model)
    for x, y in dataloader:
        yield model(x.to(place)).argmax(dim=-1) == y.to(place)


def _last(logits: Tensor) -> Float[Tensor, "batch 1 vocab"]:
    require(
        logits.dim() == 3 and logits.shape[1] >= 1,
        f"logits of shape {list(logits.shape)}",
        "[batch, position, vocab]",
        "Pass the model's output for whole sequences.",
    )
    return logits[:, -1:]


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def _require_batches(count: int) -> None:
    require(count > 0, "data without a batch", "at least one batch", "Pass a DataLoader that is not empty.")
