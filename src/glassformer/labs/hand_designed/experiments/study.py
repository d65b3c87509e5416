"""Many trainings: how often each recipe succeeds, and what becomes of the heads that fail on unique."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from glassformer.handcraft.tasks import TASKS, Task
from glassformer.labs.hand_designed.experiments.heads import (
    Circuit,
    Recipe,
    circuit_of,
    course_recipe,
    descent_recipe,
    fast_recipe,
)
from glassformer.observe.figures.style import BLACK, BLUE, GREEN, RED, in_style, new_figure
from glassformer.training import mix_seed
from glassformer.training.single_heads import Heads, Minimum, Sequences, curvature, unstacked

FACTORS = (3, 10)
"""A head that fails is trained on until it has had these many times the recipe's steps, or solves the task."""


@dataclass(frozen=True)
class Outcome:
    """How a head does on every sequence of its task."""

    outputs_right: float  # share of the outputs that are read correctly
    largest_error: float
    misread: list[int]  # outputs at each letter
    wrong: list[int]  # sequences of each length with a misread output


@dataclass(frozen=True)
class Group:
    """The trainings of one task by one recipe, in the order of the seeds."""

    task: str
    recipe: str
    steps: int
    outcomes: list[Outcome]

    @property
    def solved(self) -> int:
        """Heads that read every output correctly."""
        return sum(not any(each.misread) for each in self.outcomes)

    @property
    def small(self) -> int:
        """Heads whose largest error is below 0.01."""
        return sum(each.largest_error < 0.01 for each in self.outcomes)


@dataclass(frozen=True)
class Moment:
    """A head on unique after ``steps`` updates."""

    steps: int
    outcome: Outcome
    circuit: Circuit


@dataclass(frozen=True)
class Story:
    """What became of one seed of the course's recipe on unique.

    Of a stuck head, ``minimum`` is where descent on all sequences ends and ``descended`` whether that solves the task;
    ``escaped``: whether the fast recipe's stages do, begun at the first moment.
    """

    seed: int
    kind: str  # "solved" by the recipe, "late" if more of the same steps solved it, otherwise "stuck"
    moments: list[Moment]
    minimum: Minimum | None = None
    descended: bool = False
    escaped: bool = False


def recipes(task: str) -> list[Recipe]:
    """The recipes that are studied; for unique with a control, which draws the course's sequences uniformly."""
    course, fast = course_recipe(task), fast_recipe(task)
    return [course, *([course.uniformly()] if task == "unique" else []), fast]


def measure_group(recipe: Recipe, seeds: Sequence[int]) -> Group:
    """Train a head from each seed."""
    print(f"training {len(seeds)} heads on {recipe.task}: {recipe.name}", flush=True)
    heads = recipe.new(seeds)
    recipe.train(heads, seeds)
    return Group(recipe.task, recipe.name, recipe.steps, outcomes_of(heads, TASKS[recipe.task]()))


def outcomes_of(heads: Heads, task: Task) -> list[Outcome]:
    """How each head does on every sequence of ``task``."""
    cases, first = task.all_cases, int(task.space.has_cls)
    lengths, counted = cases.counted.sum(axis=1), cases.counted
    found = []
    for output in Sequences(task).outputs(heads):
        wrong = ~task.is_right(output, cases.target) & counted
        by_length = np.bincount(lengths[wrong.any(axis=1)], minlength=task.space.max_len + 1)[1:]
        right, error = 1 - wrong.sum() / counted.sum(), np.abs(output - cases.target)[counted].max()
        found.append(Outcome(float(right), float(error), wrong.sum(axis=0)[first:].tolist(), by_length.tolist()))
    return found


def follow(seeds: Sequence[int], recipe: Recipe, factors: Sequence[int] = FACTORS) -> list[Story]:
    """Train a head on unique from each seed by ``recipe``, and train those on that fail."""
    if not seeds:
        return []
    task = TASKS["unique"]()
    heads = recipe.new(seeds)
    recipe.train(heads, seeds)
    start = {name: tensor.clone() for name, tensor in heads.items()}
    moments = {seed: [each] for seed, each in zip(seeds, _moments(heads, task, recipe.steps), strict=True)}
    left, done = list(seeds), 1
    for factor in (*factors, None):
        keep = [number for number, seed in enumerate(left) if any(moments[seed][-1].outcome.misread)]
        heads, left = _chosen(heads, keep), [left[number] for number in keep]
        if factor is None or not left:
            break
        print(f"training {len(left)} of them on, to {factor} times the steps", flush=True)
        recipe.scaled(factor - done).train(heads, [mix_seed(seed, factor) for seed in left])
        done = factor
        for seed, moment in zip(left, _moments(heads, task, factor * recipe.steps), strict=True):
            moments[seed].append(moment)
    ends: dict[int, tuple[Minimum, bool, bool]] = {}
    if left:
        # Without sampling, and for three times as long as the fast recipe's own descent.
        descent_recipe("unique").scaled(3.0).train(heads, left)
        away = _chosen(start, [seeds.index(seed) for seed in left])
        fast_recipe("unique").train(away, [mix_seed(seed, 0) for seed in left])
        minima = [curvature(head, task) for head in unstacked(heads)]
        solved = ([not any(each.misread) for each in outcomes_of(trained, task)] for trained in (heads, away))
        ends = dict(zip(left, zip(minima, *solved, strict=True), strict=True))
    kinds = {
        seed: "stuck" if seed in left else "solved" if len(each) == 1 else "late" for seed, each in moments.items()
    }
    return [Story(seed, kinds[seed], each, *ends.get(seed, ())) for seed, each in moments.items()]


def _chosen(heads: Heads, numbers: list[int]) -> Heads:
    return {name: tensor[numbers].clone() for name, tensor in heads.items()}


def _moments(heads: Heads, task: Task, steps: int) -> list[Moment]:
    found = zip(unstacked(heads), outcomes_of(heads, task), strict=True)
    return [Moment(steps, outcome, circuit_of(head, task)) for head, outcome in found]


_KINDS: dict[str, dict[str, Any]] = {
    "solved": {"marker": "o", "color": BLUE, "label": "solved by the recipe"},
    "late": {"marker": "^", "color": GREEN, "label": "solved by more of the same steps"},
    "stuck": {"marker": "X", "color": RED, "label": "still wrong after all of them"},
}


@in_style
def draw_study(groups: Sequence[Group]) -> Figure:
    """The largest error of every training, by task and recipe."""
    tasks = list(dict.fromkeys(group.task for group in groups))
    by_task = [[group for group in groups if group.task == task] for task in tasks]
    figure, panels = new_figure(
        10, 4.2, columns=len(tasks), sharey=True, width_ratios=[len(each) + 0.4 for each in by_task]
    )
    marks: tuple[tuple[str, Callable[[Outcome], bool], dict[str, Any]], ...] = (
        ("every output read correctly", lambda each: not any(each.misread), {"marker": "o", "color": BLUE}),
        ("some output misread", lambda each: any(each.misread), {"marker": "X", "color": RED}),
    )
    for ax, task, own in zip(panels, tasks, by_task, strict=True):
        decisive = TASKS[task]().decisive_error
        ax.axhline(decisive, color=BLACK, linewidth=1, linestyle="--", label="below: no output can be misread")
        for place, group in enumerate(own):
            across = place + np.linspace(-0.35, 0.35, len(group.outcomes))
            for label, chosen, style in marks:
                shown = [
                    (x, each.largest_error) for x, each in zip(across, group.outcomes, strict=True) if chosen(each)
                ]
                ax.plot(
                    *np.array(shown).reshape(-1, 2).T, label=label, linestyle="none", markersize=4, alpha=0.6, **style
                )
        ax.set(title=task, yscale="log", xlim=(-0.6, len(own) - 0.4))
        ax.set_xticks(range(len(own)), [f"{each.recipe}\n{each.steps:,} steps\n{each.solved} solved" for each in own])
        ax.grid(False, axis="x")
    panels[0].set_ylabel("largest error of any output")
    handles = dict(zip(*reversed(panels[0].get_legend_handles_labels()), strict=True))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3)
    return figure


@in_style
def draw_failures(stories: Sequence[Story]) -> Figure:
    """Left: outputs read correctly while failing heads are trained on. Right: all heads after the recipe."""
    figure, (left, right) = new_figure(10, 4.3, columns=2)
    for story in stories:
        style = {key: value for key, value in _KINDS[story.kind].items() if key != "label"}
        if story.kind != "solved":
            shares = [moment.outcome.outputs_right for moment in story.moments]
            left.plot([moment.steps for moment in story.moments], shares, alpha=0.5, markersize=6, **style)
        circuit = story.moments[0].circuit
        right.plot(circuit.values[1], circuit.self_shares[-1], linestyle="none", alpha=0.6, markersize=6, **style)
    left.set(title="Failing heads, trained on", xlabel="steps", ylabel="outputs read correctly (share)", xscale="log")
    ticks = sorted({moment.steps for story in stories for moment in story.moments})
    left.set_xticks(ticks, [f"{step:,}" for step in ticks])
    left.minorticks_off()
    right.axvline(0, color=BLACK, linewidth=0.8)
    right.set(
        title="All heads after the recipe",
        xlabel="mean value of the first letter",
        ylabel="weight of a repeated fourth letter on itself",
    )
    kinds = {story.kind for story in stories}
    handles = [right.plot([], [], linestyle="none", **_KINDS[kind])[0] for kind in _KINDS if kind in kinds]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def misreading(outcomes: Sequence[Outcome]) -> list[int]:
    """Heads that misread some output at each letter."""
    return [sum(map(bool, column)) for column in zip(*(each.misread for each in outcomes), strict=True)]


def wrong_sequences(outcomes: Sequence[Outcome]) -> list[int]:
    """Sequences of each length with a misread output, of all heads together."""
    return [sum(column) for column in zip(*(each.wrong for each in outcomes), strict=True)]


def range_of(values: Sequence[float]) -> tuple[float, float, float]:
    """Smallest, median and largest."""
    return min(values), median(values), max(values)
