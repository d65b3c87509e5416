"""Train many single heads at once on a task of :mod:`glassformer.handcraft`, each independently of the others.

The heads' weights are stacked, so that one update of all costs about as much as one of a single head. The general loop,
:func:`glassformer.training.train`, trains one model, and clips the gradient of all its weights together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.handcraft.single_head import HeadWeights, SingleHead
from glassformer.handcraft.tasks import TASKS, Task
from glassformer.training.task import mix_seed

Heads = dict[str, Tensor]
"""Km, Qm, Vm and, with positions, pos of many heads, stacked: ``[head, row, column]``."""


@dataclass(frozen=True)
class Stage:
    """One stage of training; ``clip`` is the largest norm of one head's gradient."""

    steps: int
    optimizer: Literal["sgd", "adam"]
    learning_rate: float
    batch_size: int | None  # random sequences per step; None: all sequences of the task in every step
    cosine: bool = False  # the learning rate falls to 0; otherwise it is constant
    clip: float | None = None


def stacked(heads: Sequence[HeadWeights]) -> Heads:
    """Heads of equal shapes, in float32."""
    names = heads[0].matrices
    return {name: torch.from_numpy(np.stack([head.matrices[name] for head in heads])).float() for name in names}


def unstacked(heads: Heads) -> list[HeadWeights]:
    """Each head's weights."""
    arrays = {name: tensor.detach().double().numpy() for name, tensor in heads.items()}
    return [HeadWeights(**dict(zip(arrays, each, strict=True))) for each in zip(*arrays.values(), strict=True)]


def run_heads(
    heads: Heads, inputs: Float[Tensor, "#head sequence position token"], real: Bool[Tensor, "#head sequence position"]
) -> Float[Tensor, "head sequence position v_dim"]:
    """The outputs of every head; ``inputs`` and ``real`` may have one entry for all heads."""
    if "pos" in heads:
        pos = heads["pos"][:, None, : inputs.shape[2]].expand(-1, inputs.shape[1], -1, -1)
        inputs = torch.cat([inputs.expand(len(pos), -1, -1, -1), pos], dim=-1)
    q, k, v = (inputs @ heads[name][:, None] for name in ("Qm", "Km", "Vm"))
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return scores.masked_fill(~real[:, :, None, :], -math.inf).softmax(dim=-1) @ v


class Sequences:
    """All sequences of a task as tensors; each length is equally frequent, as in the course, or each sequence.

        loss = mean over sequences of the mean over the judged outputs and their entries of (output - target)^2

    Outputs of CLS and of the padding are not judged.
    """

    def __init__(self, task: Task, uniform: bool = False, dtype: torch.dtype = torch.float32) -> None:
        cases = task.all_cases
        letters = cases.counted.sum(axis=1)
        self.chances = 1 / (task.space.max_len * float(len(task.space.letters)) ** letters)
        if uniform:
            self.chances = np.full(len(letters), 1 / len(letters))
        # The mean over a sequence's judged outputs as a weighted sum, in which padding has the weight 0.
        share = cases.counted / (letters[:, None] * task.v_dim)
        self.inputs, self.real = torch.from_numpy(cases.inputs).to(dtype), torch.from_numpy(cases.block.real)
        self.target, self.share = torch.from_numpy(cases.target).to(dtype), torch.from_numpy(share).to(dtype)

    def draw(self, count: int, size: int, seed: int) -> np.ndarray:
        """``count`` batches of ``size`` random sequences, as their numbers."""
        # Dividing by the last sum keeps rounding from leaving a gap at the end.
        ends = np.cumsum(self.chances)
        return np.searchsorted(ends / ends[-1], np.random.default_rng(seed).random((count, size)), side="right")

    def loss(self, heads: Heads, rows: Tensor | None = None) -> Float[Tensor, " head"]:
        """Each head's loss on the sequences ``rows`` [head, sequence], or the expected loss, over all of them."""
        if rows is None:
            inputs, real, target, share = self.inputs[None], self.real[None], self.target[None], self.share[None]
            weight = torch.from_numpy(self.chances).to(self.share.dtype)[None, :, None, None]
        else:
            longest = int(self.real[rows].sum(dim=-1).max())
            inputs, real, target, share = (
                each[rows, :longest] for each in (self.inputs, self.real, self.target, self.share)
            )
            weight = torch.tensor(1 / rows.shape[1])
        difference = run_heads(heads, inputs, real) - target
        return (difference.square() * share[..., None] * weight).sum(dim=(1, 2, 3))


def _clip(heads: Heads, largest: float) -> None:
    gradients = [tensor.grad for tensor in heads.values() if tensor.grad is not None]
    norm = torch.stack([gradient.square().sum(dim=(1, 2)) for gradient in gradients]).sum(dim=0).sqrt()
    for gradient in gradients:
        gradient.mul_((largest / (norm + 1e-6)).clamp(max=1.0)[:, None, None])


@dataclass(frozen=True)
class Recipe:
    """How a head is trained on a built-in task; the optimizer of each stage starts afresh."""

    name: str
    task: str
    qk_dim: int
    pos_dim: int | None
    stages: tuple[Stage, ...]
    uniform: bool = False  # draw every sequence equally often, instead of every length

    def new(self, seeds: Sequence[int]) -> Heads:
        """An untrained head with PyTorch's initial weights for each seed; without positions if ``pos_dim`` is None."""
        task, made = TASKS[self.task](), []
        with torch.random.fork_rng(devices=[]):
            for seed in seeds:
                torch.manual_seed(mix_seed(seed))
                sizes = (task.space.num_tokens, self.qk_dim, task.v_dim, self.pos_dim, task.space.num_positions)
                made.append(SingleHead(*sizes).to_weights())
        return stacked(made)

    def train(self, heads: Heads, seeds: Sequence[int]) -> None:
        """Train each head in place, stage by stage; its seed decides its batches, drawn as in :class:`Sequences`."""
        sequences = Sequences(TASKS[self.task](), self.uniform)
        for tensor in heads.values():
            tensor.requires_grad_(True)
        for number, stage in enumerate(self.stages):
            optimizer: torch.optim.Optimizer = torch.optim.SGD(heads.values(), lr=stage.learning_rate)
            if stage.optimizer == "adam":
                optimizer = torch.optim.Adam(heads.values(), lr=stage.learning_rate, betas=(0.9, 0.95))
            size, rows = stage.batch_size, None
            if size is not None:
                rows = np.stack([sequences.draw(stage.steps, size, mix_seed(seed, number)) for seed in seeds], axis=1)
            for step in range(stage.steps):
                if stage.cosine:
                    rate = stage.learning_rate * (1 + math.cos(math.pi * step / stage.steps)) / 2
                    optimizer.param_groups[0]["lr"] = rate
                optimizer.zero_grad()
                # A head's weights are in no other head's loss, so that the gradient of the sum is each one's own.
                sequences.loss(heads, None if rows is None else torch.from_numpy(rows[step])).sum().backward()
                if stage.clip is not None:
                    _clip(heads, stage.clip)
                optimizer.step()
        for tensor in heads.values():
            tensor.requires_grad_(False)

    @property
    def steps(self) -> int:
        """Updates of all stages together."""
        return sum(stage.steps for stage in self.stages)

    def scaled(self, factor: float | int) -> Recipe:
        """The same recipe with ``factor`` times the steps in every stage."""
        return replace(self, stages=tuple(replace(each, steps=round(each.steps * factor)) for each in self.stages))


@dataclass(frozen=True)
class Minimum:
    """The loss over all sequences at some weights, and the extreme eigenvalues of its Hessian there."""

    mse: float
    lowest_curvature: float
    highest_curvature: float

    @property
    def flat(self) -> bool:
        """Whether nothing curves down by more than 0.1 % of the largest curvature."""
        return self.lowest_curvature > -1e-3 * self.highest_curvature


def curvature(head: HeadWeights, task: Task) -> Minimum:
    """The loss over all sequences of ``task`` around ``head``, in float64."""
    sequences = Sequences(task, dtype=torch.float64)
    matrices = {name: torch.tensor(matrix) for name, matrix in head.matrices.items()}

    def loss(point: Float[Tensor, " weight"]) -> Float[Tensor, ""]:
        parts = zip(matrices.items(), point.split([each.numel() for each in matrices.values()]), strict=True)
        return sequences.loss({name: part.view(1, *matrix.shape) for (name, matrix), part in parts})[0]

    flat = torch.cat([matrix.flatten() for matrix in matrices.values()])
    curvatures = torch.linalg.eigvalsh(torch.autograd.functional.hessian(loss, flat))
    return Minimum(loss(flat).item(), curvatures[0].item(), curvatures[-1].item())


@dataclass(frozen=True)
class Outcome:
    """How a head does on every sequence of its task."""

    outputs_right: float  # share of the outputs that are read correctly
    largest_error: float
    misread: list[int]  # outputs at each letter

    @property
    def solved(self) -> bool:
        """Whether every output is read correctly."""
        return not any(self.misread)


def outcomes_of(heads: Heads, task: Task) -> list[Outcome]:
    """How each head does on every sequence of ``task``."""
    cases, first, sequences = task.all_cases, int(task.space.has_cls), Sequences(task)
    counted = cases.counted
    with torch.no_grad():
        outputs = run_heads(heads, sequences.inputs[None], sequences.real[None]).double().numpy()
    found = []
    for output in outputs:
        wrong = ~task.is_right(output, cases.target) & counted
        right, error = 1 - wrong.sum() / counted.sum(), np.abs(output - cases.target)[counted].max()
        found.append(Outcome(float(right), float(error), wrong.sum(axis=0)[first:].tolist()))
    return found
