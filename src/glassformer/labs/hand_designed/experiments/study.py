"""Many trainings: how often each recipe succeeds, and what becomes of the heads that fail on unique."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
from matplotlib.figure import Figure

from glassformer.figures.style import BLACK, BLUE, GREEN, RED, in_style, new_figure
from glassformer.handcraft.circuits import values_at_places
from glassformer.handcraft.single_head import HeadWeights
from glassformer.handcraft.tasks import TASKS, Task
from glassformer.labs.hand_designed.distances import attention_weights
from glassformer.labs.hand_designed.head_training import (
    Minimum,
    Outcome,
    Recipe,
    Stage,
    curvature,
    outcomes_of,
    stacked,
    unstacked,
)
from glassformer.training import mix_seed


@dataclass(frozen=True)
class UniqueCircuit:
    """How a head solves unique, measured over every sequence.

    For each letter position, ``self_shares`` is the mean over repeated letters of the weight on itself, as a share of
    that and the mean weight on another occurrence: 0 excludes itself, 1/2 makes no difference. ``values`` are the mean
    values of CLS and of each letter position.
    """

    self_shares: list[float]
    values: list[float]


def unique_circuit(head: HeadWeights, task: Task) -> UniqueCircuit:
    """How ``head`` solves ``task``, which is :func:`~glassformer.handcraft.tasks.unique` or one like it."""
    block, counted = task.all_cases[:2]
    weights, at_places = attention_weights(head, task.space, block), values_at_places(head, task.space)[:, 0]
    tokens, itself = block.tokens, np.eye(block.tokens.shape[1], dtype=bool)
    other = (tokens[:, :, None] == tokens[:, None, :]) & counted[:, :, None] & counted[:, None, :] & ~itself
    again = other.any(axis=2)
    on_itself = np.einsum("sqq->sq", weights)
    on_other = (weights * other).sum(axis=2) / np.maximum(other.sum(axis=2), 1)
    share = np.divide(on_itself, on_itself + on_other, out=np.zeros_like(on_itself), where=on_itself + on_other > 0)
    positions = task.space.places[1]
    return UniqueCircuit(
        self_shares=[float(share[again[:, i], i].mean()) for i in range(1, tokens.shape[1])],
        values=[float(at_places[positions == position].mean()) for position in range(task.space.num_positions)],
    )


COURSE_SIZES: dict[str, tuple[int, int | None]] = {"identity": (3, None), "copy_first": (1, 4), "unique": (8, 4)}
"""qk_dim and pos_dim of the heads that the course trains."""

FAST_SIZES = {**COURSE_SIZES, "unique": (16, 5)}
"""Those of the fast recipe: a direction for each position of unique, and more room to compare them in."""

FAST_STEPS = {"identity": (300, 150), "copy_first": (500, 300), "unique": (2000, 1000)}


def course_recipe(task: str) -> Recipe:
    """The course's recipe: one random sequence per step, SGD at 0.03 for 10,001 steps, no clipping."""
    return Recipe("course", task, *COURSE_SIZES[task], (Stage(10_001, "sgd", 0.03, 1),))


def fast_recipe(task: str) -> Recipe:
    """SGD in steps as large as clipping allows, on eight random sequences per step; then Adam on all sequences."""
    search = Stage(FAST_STEPS[task][0], "sgd", 1.0, 8, cosine=True, clip=1.0)
    descent = Stage(FAST_STEPS[task][1], "adam", 0.1, None, cosine=True)
    return Recipe("fast", task, *FAST_SIZES[task], (search, descent))


def recipes(task: str) -> list[Recipe]:
    """The recipes that are studied; for unique with a control, which draws the course's sequences uniformly."""
    course, fast = course_recipe(task), fast_recipe(task)
    uniform = replace(course, name="course, uniform", uniform=True)
    return [course, uniform, fast] if task == "unique" else [course, fast]


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
        return sum(each.solved for each in self.outcomes)


@dataclass(frozen=True)
class Moment:
    """A head on unique after ``steps`` updates."""

    steps: int
    outcome: Outcome
    circuit: UniqueCircuit


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


def measure_group(recipe: Recipe, seeds: Sequence[int]) -> Group:
    """Train a head from each seed."""
    print(f"training {len(seeds)} heads on {recipe.task}: {recipe.name}", flush=True)
    heads = recipe.new(seeds)
    recipe.train(heads, seeds)
    return Group(recipe.task, recipe.name, recipe.steps, outcomes_of(heads, TASKS[recipe.task]()))


def follow(seeds: Sequence[int], recipe: Recipe, factors: Sequence[int] = (3, 10)) -> list[Story]:
    """Train a head on unique from each seed; those that fail are trained on, to ``factors`` times the steps."""
    task, left, done = TASKS["unique"](), list(seeds), 0
    weights = {seed: unstacked(recipe.new([seed])) for seed in seeds}
    moments: dict[int, list[Moment]] = {seed: [] for seed in seeds}
    for factor in (1, *factors):
        if not left:
            break
        print(f"training {len(left)} heads on unique to {factor} times the recipe's steps", flush=True)
        heads = stacked([weights[seed][-1] for seed in left])
        recipe.scaled(factor - done).train(heads, [mix_seed(seed, factor) if done else seed for seed in left])
        for seed, head, outcome in zip(left, unstacked(heads), outcomes_of(heads, task), strict=True):
            weights[seed].append(head)
            moments[seed].append(Moment(factor * recipe.steps, outcome, unique_circuit(head, task)))
        left, done = [seed for seed in left if not moments[seed][-1].outcome.solved], factor
    stories = {seed: Story(seed, "late" if each[1:] else "solved", each) for seed, each in moments.items()}
    if left:
        fast = fast_recipe("unique")
        # Without sampling, and for three times as long as the fast recipe's own descent.
        descended = stacked([weights[seed][-1] for seed in left])
        replace(fast, stages=fast.stages[1:]).scaled(3).train(descended, left)
        escaped = stacked([weights[seed][1] for seed in left])
        fast.train(escaped, [mix_seed(seed, 0) for seed in left])
        ends = zip(left, unstacked(descended), outcomes_of(descended, task), outcomes_of(escaped, task), strict=True)
        for seed, head, down, out in ends:
            stories[seed] = Story(seed, "stuck", moments[seed], curvature(head, task), down.solved, out.solved)
    return list(stories.values())


@in_style
def draw_study(groups: Sequence[Group]) -> Figure:
    """The largest error of every training, by task and recipe."""
    tasks = list(dict.fromkeys(group.task for group in groups))
    by_task = [[group for group in groups if group.task == task] for task in tasks]
    ratios = [len(own) + 0.4 for own in by_task]
    figure, panels = new_figure(10, 4.2, columns=len(tasks), sharey=True, width_ratios=ratios)
    for ax, task, own in zip(panels, tasks, by_task, strict=True):
        decisive = TASKS[task]().decisive_error
        ax.axhline(decisive, color=BLACK, linewidth=1, linestyle="--", label="below: no output can be misread")
        for place, group in enumerate(own):
            across = place + np.linspace(-0.35, 0.35, len(group.outcomes))
            errors = np.array([each.largest_error for each in group.outcomes])
            solved = np.array([each.solved for each in group.outcomes])
            right, wrong = (
                (solved, "o", BLUE, "every output read correctly"),
                (~solved, "X", RED, "some output misread"),
            )
            for mask, marker, color, label in (right, wrong):
                ax.plot(across[mask], errors[mask], marker, color=color, label=label, markersize=4, alpha=0.6)
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
    looks = {
        "solved": ("o", BLUE, "solved by the recipe"),
        "late": ("^", GREEN, "late: solved by more of the same steps"),
        "stuck": ("X", RED, "stuck: still wrong after all of them"),
    }
    figure, (left, right) = new_figure(10, 4.3, columns=2)
    for story in stories:
        marker, color, _ = looks[story.kind]
        if story.kind != "solved":
            shares = [moment.outcome.outputs_right for moment in story.moments]
            steps = [moment.steps for moment in story.moments]
            left.plot(steps, shares, f"{marker}-", color=color, alpha=0.5, markersize=6)
        circuit = story.moments[0].circuit
        right.plot(circuit.values[1], circuit.self_shares[-1], marker, color=color, alpha=0.6, markersize=6)
    left.set(title="Failing heads, trained on", xlabel="steps", ylabel="outputs read correctly (share)", xscale="log")
    ticks = sorted({moment.steps for story in stories for moment in story.moments})
    left.set_xticks(ticks, [f"{step:,}" for step in ticks])
    left.minorticks_off()
    right.axvline(0, color=BLACK, linewidth=0.8)
    right.set(
        title="All heads after the recipe",
        xlabel="mean value of the first letter",
        ylabel="share of a repeated fourth letter's weight on\nitself, against that on one other occurrence",
    )
    kinds = {story.kind for story in stories}
    shown = [look for kind, look in looks.items() if kind in kinds]
    handles = [right.plot([], [], marker, color=color, label=label)[0] for marker, color, label in shown]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def misreading(outcomes: Sequence[Outcome]) -> list[int]:
    """Heads that misread some output at each letter."""
    return [sum(map(bool, column)) for column in zip(*(each.misread for each in outcomes), strict=True)]


def range_of(values: Sequence[float]) -> tuple[float, float, float]:
    """Smallest, median and largest."""
    return min(values), median(values), max(values)
