"""Figures of the study: every training of every recipe, and what became of the heads that failed on unique."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from glassformer.handcraft.tasks import TASKS
from glassformer.labs.hand_designed.cases import COURSE_TASKS
from glassformer.labs.hand_designed.results import Results
from glassformer.labs.hand_designed.study import Cell, Story, Summary
from glassformer.observe.figures.style import BLACK, BLUE, GREEN, RED, in_style, new_figure

_SOLVED: dict[str, Any] = {"marker": "o", "color": BLUE, "label": "every sequence read rightly"}
_FAILED: dict[str, Any] = {"marker": "X", "color": RED, "label": "some sequence read wrongly"}
_KINDS: dict[str, dict[str, Any]] = {
    "solved": {"marker": "o", "color": BLUE, "label": "solved by the recipe"},
    "slow": {"marker": "^", "color": GREEN, "label": "solved by more of the same steps"},
    "trapped": {"marker": "X", "color": RED, "label": "still wrong after all of them"},
}


@in_style
def draw_study(results: Results) -> Figure:
    """Largest error and time of every training, by task and recipe; how many solve the task stands above."""
    figure, panels = new_figure(10.5, 6.4, rows=2, columns=len(COURSE_TASKS), sharey="row", sharex="col")
    above, below = panels[: len(COURSE_TASKS)], panels[len(COURSE_TASKS) :]
    for errors, times, task in zip(above, below, COURSE_TASKS, strict=True):
        summaries = [summary for summary in results.summaries if summary.task == task]
        decisive = TASKS[task]().decisive_error
        errors.axhline(decisive, color=BLACK, linewidth=1, linestyle="--", label="below: no output can be misread")
        for place, summary in enumerate(summaries):
            cells = [cell for cell in results.cells if (cell.task, cell.recipe) == (task, summary.recipe)]
            _scatter(errors, place, cells, "largest_error")
            _scatter(times, place, cells, "seconds")
        errors.set_title(task)
        for ax in (errors, times):
            ax.set_yscale("log")
            ax.set_xlim(-0.6, len(summaries) - 0.4)
            ax.grid(False, axis="x")
        times.set_xticks(range(len(summaries)), [_recipe_label(summary) for summary in summaries])
    above[0].set_ylabel("largest error of any output")
    below[0].set_ylabel("seconds for one training")
    handles = {label: handle for ax in above for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3)
    return figure


@in_style
def draw_failures(stories: Sequence[Story]) -> Figure:
    """Left: outputs read rightly while failing heads are trained on. Right: what each head does after the recipe."""
    figure, (left, right) = new_figure(10.5, 4.3, columns=2)
    for story in stories:
        style = {key: value for key, value in _KINDS[story.kind].items() if key != "label"}
        if story.kind != "solved":
            steps = [moment.steps for moment in story.moments]
            left.plot(steps, [moment.outputs_right for moment in story.moments], alpha=0.8, markersize=7, **style)
        circuit = story.moments[0].circuit
        right.plot(circuit.cls_share, max(circuit.self_shares), linestyle="none", alpha=0.8, markersize=8, **style)
    left.set(title="Failing heads, trained on", xlabel="steps", ylabel="share of outputs read rightly", xscale="log")
    ticks = sorted({moment.steps for story in stories for moment in story.moments})
    left.set_xticks(ticks, [f"{step:,}" for step in ticks])
    left.minorticks_off()
    right.set(
        title="All heads after the recipe",
        xlabel="share of the positive part of a +1 that comes from CLS",
        ylabel="weight of a repetition on itself (worst place)",
    )
    kinds = {story.kind for story in stories}
    handles = [
        right.plot([], [], linestyle="none", markersize=8, **_KINDS[kind])[0] for kind in _KINDS if kind in kinds
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def _scatter(ax: Axes, place: int, cells: Sequence[Cell], quantity: str) -> None:
    """One mark for each training, side by side in the order of the seeds."""
    offsets = np.linspace(-0.3, 0.3, len(cells)) if len(cells) > 1 else np.zeros(1)
    for solved, style in ((True, _SOLVED), (False, _FAILED)):
        chosen = [number for number, cell in enumerate(cells) if cell.solved == solved]
        if chosen:
            values = [getattr(cells[number], quantity) for number in chosen]
            ax.plot(place + offsets[chosen], values, linestyle="none", markersize=6, alpha=0.8, **style)


def _recipe_label(summary: Summary) -> str:
    return f"{summary.recipe}\n{summary.steps:,} steps\n{summary.solved} of {summary.seeds} solved"
