"""How the lab trains heads, and how a head solves unique."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from glassformer.handcraft.circuits import values_at_places
from glassformer.handcraft.distances import attention_weights
from glassformer.handcraft.single_head import HeadWeights
from glassformer.handcraft.tasks import TASKS, Task
from glassformer.training import single_heads
from glassformer.training.single_heads import Heads, Stage

COURSE_SIZES: dict[str, tuple[int, int | None]] = {"identity": (3, None), "copy_first": (1, 4), "unique": (8, 4)}
"""qk_dim and pos_dim of the heads that the course trains."""

FAST_SIZES = {**COURSE_SIZES, "unique": (16, 5)}
"""Those of the fast recipe: a direction for each position of unique, and more room to compare them in."""

FAST_STEPS = {"identity": (300, 150), "copy_first": (500, 300), "unique": (2000, 1000)}


@dataclass(frozen=True)
class Recipe:
    """How a head is trained on one task; the optimizer of each stage starts afresh."""

    name: str
    task: str
    qk_dim: int
    pos_dim: int | None
    stages: tuple[Stage, ...]
    uniform: bool = False  # draw every sequence equally often, instead of every length

    def new(self, seeds: Sequence[int]) -> Heads:
        """An untrained head for each seed."""
        return single_heads.new_heads(TASKS[self.task](), self.qk_dim, self.pos_dim, seeds)

    def train(self, heads: Heads, seeds: Sequence[int]) -> None:
        """Train each head in place by the stages."""
        single_heads.train_heads(heads, TASKS[self.task](), self.stages, seeds, uniform=self.uniform)

    @property
    def steps(self) -> int:
        """Updates of all stages together."""
        return sum(stage.steps for stage in self.stages)

    def scaled(self, factor: float) -> Recipe:
        """The same recipe with ``factor`` times the steps in every stage, at least one in each."""
        stages = (replace(stage, steps=max(1, round(stage.steps * factor))) for stage in self.stages)
        return replace(self, stages=tuple(stages))

    def uniformly(self) -> Recipe:
        """The same recipe with uniformly drawn sequences."""
        return replace(self, name=f"{self.name}, uniform", uniform=True)


def course_recipe(task: str) -> Recipe:
    """The course's recipe: one random sequence per step, SGD at 0.03 for 10,001 steps, no clipping."""
    return Recipe("course", task, *COURSE_SIZES[task], (Stage(10_001, "sgd", 0.03, 1),))


def fast_recipe(task: str) -> Recipe:
    """SGD in steps as large as clipping allows, on eight random sequences per step, then :func:`descent_recipe`."""
    search = Stage(FAST_STEPS[task][0], "sgd", 1.0, 8, cosine=True, clip=1.0)
    descent = descent_recipe(task)
    return replace(descent, name="fast", stages=(search, *descent.stages))


def descent_recipe(task: str) -> Recipe:
    """Adam on all sequences in every step."""
    return Recipe("descent", task, *FAST_SIZES[task], (Stage(FAST_STEPS[task][1], "adam", 0.1, None, cosine=True),))


@dataclass(frozen=True)
class Circuit:
    """How a head solves unique, measured over every sequence.

    Of the positive parts ``weight · value`` of the outputs whose target is +1, ``cls_share`` comes from CLS. For each
    letter position, ``self_shares`` is the mean over repeated letters of the weight on itself, as a share of that and
    the mean weight on another occurrence: 0 excludes itself, 1/2 makes no difference. ``values`` are the mean values of
    CLS and of each letter position.
    """

    cls_share: float
    self_shares: list[float]
    values: list[float]


def circuit_of(head: HeadWeights, task: Task) -> Circuit:
    """How ``head`` solves ``task``, which is unique."""
    block, counted, target = task.all_cases[:3]
    weights, at_places = attention_weights(head, task.space, block), values_at_places(head, task.space)[:, 0]
    values = np.where(block.real, at_places[task.space.place_of(block)], 0.0)
    positive = np.maximum(weights * values[:, None, :], 0.0)[counted & (target[..., 0] > 0)]
    tokens, itself = block.tokens, np.eye(block.tokens.shape[1], dtype=bool)
    other = (tokens[:, :, None] == tokens[:, None, :]) & counted[:, :, None] & counted[:, None, :] & ~itself
    again = other.any(axis=2)
    on_itself = np.einsum("sqq->sq", weights)
    on_other = (weights * other).sum(axis=2) / np.maximum(other.sum(axis=2), 1)
    share = np.divide(on_itself, on_itself + on_other, out=np.zeros_like(on_itself), where=on_itself + on_other > 0)
    positions = task.space.places[1]
    return Circuit(
        cls_share=float(positive[:, 0].sum() / max(positive.sum(), np.finfo(float).tiny)),
        self_shares=[float(share[again[:, i], i].mean()) for i in range(1, tokens.shape[1])],
        values=[float(at_places[positions == position].mean()) for position in range(task.space.num_positions)],
    )
