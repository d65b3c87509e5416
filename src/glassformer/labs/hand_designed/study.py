"""Many trainings: how often each recipe succeeds, how near it comes, how long it takes, and what of those that fail."""

from __future__ import annotations

import csv
import io
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from tqdm import tqdm

from glassformer.errors import InputError, require, require_positive
from glassformer.files import write_text
from glassformer.handcraft.single_head import SingleHead
from glassformer.handcraft.tasks import TASKS, Task, unique
from glassformer.labs.hand_designed.recipes import (
    COURSE_SIZES,
    Recipe,
    Stage,
    course_recipe,
    descent_recipe,
    fast_recipe,
    recipes,
)
from glassformer.labs.hand_designed.training_runs import (
    Circuit,
    Minimum,
    Moment,
    continue_training,
    curvature,
    moment_of,
    train_head,
)
from glassformer.training import mix_seed

QUICK_FACTOR = 0.25
"""A quick study makes this share of a recipe's steps."""

SMALL_ERROR = 1e-2

Kept = TypeVar("Kept")
Kind = Literal["solved", "slow", "trapped"]

FACTORS = (3, 10)
"""A head that fails is trained on until it has had these many times the recipe's steps, or solves the task."""


@dataclass(frozen=True)
class Cell:
    """One training.

    Attributes:
        task: Name of the task.
        recipe: Name of the recipe.
        seed: Of initial weights and batches.
        steps: Updates of all stages together.
        solved: Whether every output of every sequence reads as wanted.
        outputs_right: Share of the outputs that do, in [0, 1].
        sequences_right: Share of the sequences in which all do.
        largest_error: Of any entry of any output.
        mse: Mean squared error, sequences weighted as the course draws them.
        seconds: Time of the training, its evaluations included.
    """

    task: str
    recipe: str
    seed: int
    steps: int
    solved: bool
    outputs_right: float
    sequences_right: float
    largest_error: float
    mse: float
    seconds: float


@dataclass(frozen=True)
class Summary:
    """The trainings of one task by one recipe.

    Attributes:
        task: Name of the task.
        recipe: Name of the recipe.
        seeds: How many trainings.
        solved: How many of them read every sequence rightly.
        small_error: How many have a largest error below 0.01.
        lowest_outputs_right: The lowest share of outputs read rightly.
        median_error: Median of the largest errors.
        largest_error: The largest of them.
        median_mse: Median of the mean squared errors.
        median_seconds: Median time of a training.
        steps: Updates of one training.
    """

    task: str
    recipe: str
    seeds: int
    solved: int
    small_error: int
    lowest_outputs_right: float
    median_error: float
    largest_error: float
    median_mse: float
    median_seconds: float
    steps: int


@dataclass(frozen=True)
class Study:
    """All trainings, in the order of tasks, recipes and seeds."""

    quick: bool
    recipes: tuple[Recipe, ...]
    cells: tuple[Cell, ...]

    @property
    def summaries(self) -> tuple[Summary, ...]:
        """One for each task and recipe."""
        return tuple(_summary(self.of(recipe)) for recipe in self.recipes)

    def of(self, recipe: Recipe) -> tuple[Cell, ...]:
        """The trainings by ``recipe`` of its task."""
        return tuple(cell for cell in self.cells if (cell.task, cell.recipe) == (recipe.task, recipe.name))

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values, the summaries with it."""
        return {
            "quick": self.quick,
            "recipes": [recipe.to_json() for recipe in self.recipes],
            "summaries": [asdict(summary) for summary in self.summaries],
            "cells": [asdict(cell) for cell in self.cells],
        }

    def to_csv(self) -> str:
        """One line for each training, under a line of column names."""
        text = io.StringIO()
        writer = csv.DictWriter(text, [field.name for field in fields(Cell)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(cell) for cell in self.cells)
        return text.getvalue()


@dataclass(frozen=True)
class Story:
    """What became of one seed.

    Attributes:
        seed: Of initial weights and batches.
        kind: "solved" by the recipe; "slow", if more of the same steps solved it; "trapped", if they did not.
        moments: After the recipe, and after each stretch of further steps.
        minimum: Of a trapped head: where it lies when nothing disturbs it.
        escaped: Of a trapped head: how it is after the fast recipe's stages, begun at the weights of its first moment.
    """

    seed: int
    kind: Kind
    moments: tuple[Moment, ...]
    minimum: Minimum | None = None
    escaped: Moment | None = None


def run_study(
    directory: Path,
    *,
    seeds: int = 20,
    first_seed: int = 0,
    chosen: Sequence[Recipe] | None = None,
    quick: bool = False,
    progress: bool = True,
) -> Study:
    """Train every recipe from every seed, one training after the other, and write study.csv and study.json.

    Each training is kept in ``directory / "cells"`` when it is done, and is not done again. The same seeds give the
    same numbers on one machine, seconds apart. Recipes take turns, so that a machine that is slow for a while is so for
    all of them.

    Args:
        directory: Where to write; it is made if missing.
        seeds: Trainings of each recipe, from the seeds ``first_seed`` on.
        first_seed: See there.
        chosen: The recipes, each of which names its task; by default both recipes for each of the course's tasks.
        quick: Make a quarter of the steps.
        progress: Show a bar (on a terminal), or a line for each task and recipe (elsewhere), on stderr.

    Raises:
        InputError: No seeds, a negative one, no recipes or two of one name and task, or ``directory`` holds a training
            by a recipe of the same name with other settings, or a damaged file.
        DivergedError: A training's loss became NaN or infinite.
        KeyboardInterrupt: Interrupted by Ctrl-C; the same call goes on with the next training.
    """
    require_positive(seeds=seeds)
    require(first_seed >= 0, f"first_seed = {first_seed}", "a whole number of at least 0", "Pass first_seed >= 0.")
    plan = tuple(each for task in COURSE_SIZES for each in recipes(task)) if chosen is None else tuple(chosen)
    names = [(recipe.task, recipe.name) for recipe in plan]
    require(
        0 < len(set(names)) == len(names),
        f"the recipes {names}",
        "at least one, each with its own task and name",
        "Rename one of them.",
    )
    if quick:
        plan = tuple(recipe.scaled(QUICK_FACTOR) for recipe in plan)
    found: dict[tuple[str, str], list[Cell]] = {name: [] for name in names}
    bar = tqdm(total=len(plan) * seeds, unit="training", disable=not (progress and sys.stderr.isatty()))
    with bar:
        for task in dict.fromkeys(recipe.task for recipe in plan):
            own = [recipe for recipe in plan if recipe.task == task]
            for seed in range(first_seed, first_seed + seeds):
                for recipe in own:
                    bar.set_description(f"{task}, {recipe.name}")
                    found[task, recipe.name].append(_cell(directory / "cells", recipe, seed))
                    bar.update()
            if progress and bar.disable:
                for recipe in own:
                    print(_line(_summary(tuple(found[task, recipe.name]))), file=sys.stderr, flush=True)
    study = Study(quick, plan, tuple(cell for name in names for cell in found[name]))
    write_text(directory / "study.csv", study.to_csv())
    write_text(directory / "study.json", json.dumps(study.to_json(), indent=1) + "\n")
    return study


def follow_failures(
    directory: Path, seeds: Sequence[int], *, recipe: Recipe | None = None, factors: Sequence[int] = FACTORS
) -> list[Story]:
    """Train a head on unique from each seed, follow those that fail, and write failures.json.

    Each story is kept in ``directory / "stories"`` and is not followed again. It takes about as long as ``factors``
    trainings for each seed that fails.

    Args:
        directory: Where to write; it is made if missing.
        seeds: The seeds, those of the study, for the same heads.
        recipe: The recipe; the course's by default.
        factors: See :data:`FACTORS`; rising.

    Raises:
        InputError: No seeds, factors that do not rise from 2 on, a recipe for another task, or a damaged story.
        KeyboardInterrupt: Interrupted by Ctrl-C; the same call goes on with the next seed.
    """
    recipe = course_recipe("unique") if recipe is None else recipe
    require(len(seeds) > 0, "no seeds", "at least one", "Pass range(20), for example.")
    require(recipe.task == "unique", f"a recipe for {recipe.task}", "one for unique", "Pass course_recipe('unique').")
    require_positive(**{f"factors[{i}]": factor for i, factor in enumerate(factors)})
    require(
        list(factors) == sorted(set(factors)) and min(factors, default=2) > 1,
        f"factors = {tuple(factors)}",
        "whole numbers that rise from 2 on",
        "Pass (3, 10), for example.",
    )
    asked = {"recipe": recipe.to_json(), "factors": list(factors)}
    stories = []
    for seed in seeds:
        path = directory / "stories" / f"{recipe.name}-{seed}.json"
        if not path.exists():
            _write(path, asked, asdict(_follow(recipe, seed, factors)))
        stories.append(_read(path, asked, _story))
    write_text(directory / "failures.json", json.dumps([asdict(story) for story in stories], indent=1) + "\n")
    return stories


def _cell(directory: Path, recipe: Recipe, seed: int) -> Cell:
    """The training of ``recipe`` from ``seed``: from its file, or done now and put there."""
    path = directory / f"{recipe.task}-{recipe.name}-{seed}.json"
    if path.exists():
        return _read(path, {"recipe": recipe.to_json()}, lambda values: Cell(**values))
    _, results, seconds = train_head(TASKS[recipe.task](), recipe, seed)
    measured = results[-1].evaluations[-1][1]
    cell = Cell(
        task=recipe.task,
        recipe=recipe.name,
        seed=seed,
        steps=recipe.steps,
        solved=measured["sequences_right"] == 1.0,
        outputs_right=measured["outputs_right"],
        sequences_right=measured["sequences_right"],
        largest_error=measured["largest_error"],
        mse=measured["mse"],
        seconds=seconds,
    )
    _write(path, {"recipe": recipe.to_json()}, asdict(cell))
    return cell


def _write(path: Path, asked: dict[str, Any], found: dict[str, Any]) -> None:
    write_text(path, json.dumps({"asked": asked, "found": found}, indent=1) + "\n")


def _read(path: Path, asked: dict[str, Any], make: Callable[[dict[str, Any]], Kept]) -> Kept:
    """What an earlier call put into ``path``, if it was asked the same."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        earlier, kept = values["asked"], make(values["found"])
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path}, which cannot be read", "a training of the study", "Remove that file.") from error
    require(
        earlier == asked,
        f"{path}, a training by other settings",
        "one by the recipe that is studied now",
        "Choose another directory, or remove the old study.",
    )
    return kept


def _summary(cells: Sequence[Cell]) -> Summary:
    errors = [cell.largest_error for cell in cells]
    return Summary(
        task=cells[0].task,
        recipe=cells[0].recipe,
        seeds=len(cells),
        solved=sum(cell.solved for cell in cells),
        small_error=sum(error < SMALL_ERROR for error in errors),
        lowest_outputs_right=min(cell.outputs_right for cell in cells),
        median_error=statistics.median(errors),
        largest_error=max(errors),
        median_mse=statistics.median(cell.mse for cell in cells),
        median_seconds=statistics.median(cell.seconds for cell in cells),
        steps=cells[0].steps,
    )


def _line(summary: Summary) -> str:
    return (
        f"{summary.task}, {summary.recipe}: {summary.solved} of {summary.seeds} solved, largest error "
        f"{summary.median_error:.2g} (median), {summary.median_seconds:.2g} s each"
    )


def _follow(recipe: Recipe, seed: int, factors: Sequence[int]) -> Story:
    task = unique()
    moments: list[Moment] = []
    for head, steps in _ever_longer(task, recipe, seed, (1, *factors)):
        if not moments:
            start = head.to_weights()
        moments.append(moment_of(head, task, steps))
        if not moments[-1].wrong:
            return Story(seed, "solved" if len(moments) == 1 else "slow", tuple(moments))
    # Without sampling, and for three times as long as the recipe that it is part of.
    _train_on(head, task, descent_recipe("unique").scaled(3.0).stages, seed)
    away = SingleHead.from_weights(start, torch.float32)
    _train_on(away, task, fast_recipe("unique").stages, mix_seed(seed, 0))
    escaped = moment_of(away, task, moments[0].steps)
    return Story(seed, "trapped", tuple(moments), curvature(head, task), escaped)


def _ever_longer(task: Task, recipe: Recipe, seed: int, factors: Sequence[int]) -> Iterator[tuple[SingleHead, int]]:
    """One head, trained for 1 times the recipe's steps, and on to each of the other ``factors``; with its steps."""
    head, _, _ = train_head(task, recipe, seed)
    steps = recipe.steps
    for factor in factors:
        if factor > 1:
            more = recipe.scaled(factor - steps / recipe.steps)
            _train_on(head, task, more.stages, mix_seed(seed, factor))
            steps += more.steps
        yield head, steps


def _train_on(head: SingleHead, task: Task, stages: Sequence[Stage], seed: int) -> None:
    for number, stage in enumerate(stages):
        continue_training(head, task, stage, mix_seed(seed, number))


def _story(values: dict[str, Any]) -> Story:
    """A story from its JSON values."""

    def moment(values: dict[str, Any]) -> Moment:
        circuit = Circuit(values["circuit"]["cls_share"], tuple(values["circuit"]["self_shares"]))
        return Moment(**{**values, "wrong": tuple(values["wrong"]), "circuit": circuit})

    made = {
        "moments": tuple(moment(each) for each in values["moments"]),
        "minimum": values["minimum"] and Minimum(**values["minimum"]),
        "escaped": values["escaped"] and moment(values["escaped"]),
    }
    return Story(**{**values, **made})
