"""Recipes: how a head is trained on each of the course's tasks, as data."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Literal

from glassformer.errors import InputError, require, require_positive
from glassformer.training import TrainingConfig

Batches = Literal["random", "all"]

COURSE_SIZES: dict[str, tuple[int, int | None]] = {"identity": (3, None), "copy_first": (1, 4), "unique": (8, 4)}
"""qk_dim and pos_dim of the heads that the course trains."""

FAST_SIZES: dict[str, tuple[int, int | None]] = {**COURSE_SIZES, "unique": (16, 5)}
"""The same for the fast recipe: unique gets a direction for each of its positions, and room to compare them in."""

_FAST_STEPS = {"identity": (300, 150), "copy_first": (500, 300), "unique": (2000, 1000)}


@dataclass(frozen=True)
class Stage:
    """One stretch of training.

    Args:
        config: How.
        batches: What a batch is: "random" sequences, or "all" of the task's. See
            :class:`~glassformer.labs.hand_designed.training_runs.HeadTask`.
    """

    config: TrainingConfig
    batches: Batches = "random"


@dataclass(frozen=True)
class Recipe:
    """How a head is trained on one task: its sizes, and stages that follow one another.

    Args:
        name: "course", "fast" or "descent", for those of this module.
        task: Name of the task.
        qk_dim: Length of keys and queries.
        pos_dim: Length of a position's vector; None for a head without positions.
        stages: At least one. The optimiser of each starts afresh.

    Raises:
        InputError: A size below 1, or no stages.
    """

    name: str
    task: str
    qk_dim: int
    pos_dim: int | None
    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        require_positive(qk_dim=self.qk_dim, **({} if self.pos_dim is None else {"pos_dim": self.pos_dim}))
        require(len(self.stages) > 0, "a recipe without stages", "one or more", "Give it a Stage.")

    @property
    def steps(self) -> int:
        """Updates of all stages together."""
        return sum(stage.config.steps for stage in self.stages)

    def scaled(self, factor: float) -> Recipe:
        """The same recipe with ``factor`` times the steps in every stage, rounded, at least one in each.

        Raises:
            InputError: ``factor`` is not above 0.
        """
        require(factor > 0, f"factor = {factor}", "a number above 0", "Pass 0.1 for a tenth of the steps.")
        stages = tuple(_with_steps(stage, max(1, round(stage.config.steps * factor))) for stage in self.stages)
        return dataclasses.replace(self, stages=stages)

    def to_json(self) -> dict[str, Any]:
        """All fields as JSON values."""
        values: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return values


def course_recipe(task: str) -> Recipe:
    """The course's: one random sequence a step, SGD at 0.03 for 10,001 steps, nothing clipped.

    Raises:
        InputError: ``task`` is none of the course's.
    """
    qk_dim, pos_dim = _sizes(COURSE_SIZES, task)
    config = TrainingConfig(
        steps=10_001,
        batch_size=1,
        learning_rate=3e-2,
        optimizer="sgd",
        weight_decay=0.0,
        schedule="constant",
        clip_norm=None,
        log_every=1000,
    )
    return Recipe("course", task, qk_dim, pos_dim, (Stage(config),))


def fast_recipe(task: str) -> Recipe:
    """One in two stages that needs fewer steps and, on unique, finds its way from every start that was tried.

    First SGD with steps as large as clipping allows, on eight random sequences at a time: learning rate 1, gradients
    cut to norm 1, a cosine down to 0. Steps of that size do not settle in the minima that hold small ones while these
    are still shallow, and end near a head that reads every sequence rightly. Then :func:`descent_recipe`'s stage takes
    the error down.

    Raises:
        InputError: ``task`` is none of the course's.
    """
    descent = descent_recipe(task)
    search = TrainingConfig(
        steps=_FAST_STEPS[task][0],
        batch_size=8,
        learning_rate=1.0,
        optimizer="sgd",
        weight_decay=0.0,
        schedule="cosine",
        clip_norm=1.0,
        log_every=100,
    )
    return dataclasses.replace(descent, name="fast", stages=(Stage(search), *descent.stages))


def descent_recipe(task: str) -> Recipe:
    """AdamW on all sequences at once, from 0.1 by a cosine down to 0: the fast recipe without its first stage.

    No sampling disturbs it, so it ends in the minimum that it is in, near it to about 1e-4 of an output. On unique, for
    about every second start that is one that reads some sequences wrongly.

    Raises:
        InputError: ``task`` is none of the course's.
    """
    qk_dim, pos_dim = _sizes(FAST_SIZES, task)
    config = TrainingConfig(
        steps=_FAST_STEPS[task][1],
        learning_rate=0.1,
        optimizer="adamw",
        weight_decay=0.0,
        schedule="cosine",
        clip_norm=None,
        log_every=100,
    )
    return Recipe("descent", task, qk_dim, pos_dim, (Stage(config, "all"),))


def recipes(task: str) -> tuple[Recipe, Recipe]:
    """The course's recipe for ``task`` and the fast one.

    Raises:
        InputError: ``task`` is none of the course's.
    """
    return course_recipe(task), fast_recipe(task)


def _sizes(sizes: dict[str, tuple[int, int | None]], task: str) -> tuple[int, int | None]:
    if task not in sizes:
        raise InputError(f"the task {task!r}", f"one of {', '.join(sizes)}", "Name one of the course's tasks.")
    return sizes[task]


def _with_steps(stage: Stage, steps: int) -> Stage:
    warmup = min(stage.config.warmup_steps, steps)
    return dataclasses.replace(stage, config=dataclasses.replace(stage.config, steps=steps, warmup_steps=warmup))
