"""Figures of the models that answer from fresh facts, drawn from the lab's results alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from glassformer.labs.lookup.in_context_measured import InContextMeasured, LengthMeasured
from glassformer.labs.lookup.in_context_report import NAMES
from glassformer.labs.lookup.results import Results, at
from glassformer.observe.figures.style import BLACK, BLUE, ORANGE, RED, in_style, line, new_figure

_SERIES = {"slots": 0, "bag": 1, "positions": 2}


@in_style
def draw_accuracy(results: Results) -> Figure:
    """Accuracy over the number of facts in each encoding, beside what is possible for a bag; training's range grey."""
    figure, (ax,) = new_figure(8.5, 4.8)
    ax.axvspan(*results.trained_facts, color="#dddddd", linewidth=0, label="trained on")
    shown = sorted({length.num_facts for model in results.encodings for length in model.lengths})
    for encoding, series in _SERIES.items():
        models = results.of_encoding(encoding)
        if not models:
            continue
        facts = [length.num_facts for length in models[0].lengths]
        values = np.array([[length.accuracy for length in model.lengths] for model in models])
        style = {**line(series, len(facts)), "markevery": None}
        ax.plot(facts, np.median(values, axis=0), label=NAMES[encoding], **style)
        if len(models) > 1:
            ax.fill_between(facts, values.min(0), values.max(0), color=style["color"], alpha=0.15, linewidth=0)
        if encoding == "bag":
            ceiling = [np.nan if length.ceiling is None else length.ceiling for length in models[0].lengths]
            ax.plot(facts, ceiling, color=BLACK, linewidth=3.5, alpha=0.35, zorder=1, label="best possible for a bag")
    if results.changes:
        base, *others = results.changes
        best = max((*others, *results.combined), key=_reach, default=None)
        for series, model in ((3, base), *([(4, best)] if best is not None else [])):
            facts = [length.num_facts for length in model.lengths]
            style = {**line(series, len(facts)), "markevery": None}
            ax.plot(facts, [length.accuracy for length in model.lengths], label=_name(model, results), **style)
        shown = sorted({length.num_facts for length in results.changes[0].lengths} | set(shown))
    _facts_axis(ax, shown)
    ax.set(title="Answers from fresh facts", ylabel="share answered right", ylim=(0, 1.04))
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
    return figure


@in_style
def draw_finding(results: Results) -> Figure:
    """What fails as facts become more, in slots: finding or reading; and the scores that finding rests on."""
    model = results.plain_slots
    figure, (left, right) = new_figure(10, 4.4, columns=2)
    facts = [length.num_facts for length in model.lengths]
    wanted: tuple[tuple[str, Callable[[LengthMeasured], float | None]], ...] = (
        ("answered right", lambda length: length.accuracy),
        ("right slot has the largest weight", lambda length: length.found),
        ("right when it sees the right slot alone", lambda length: length.read),
        ("weight on the right slot (sharpest head)", lambda length: max(length.sharpness, default=None)),
    )
    for series, (label, value) in enumerate(wanted):
        _plot(left, model, value, series, label=label)
    left.set(title="Finding and reading, in slots", ylabel="share", ylim=(0, 1.04))
    scores: tuple[tuple[str, Callable[[LengthMeasured], float | None]], ...] = (
        ("right slot above the mean of the others", lambda length: _mean(length.gap)),
        ("right slot above the largest of the others", lambda length: _mean(length.margin)),
        ("deviation of the others", lambda length: _mean(length.noise)),
    )
    for series, (label, value) in enumerate(scores):
        _plot(right, model, value, series, label=label)
    right.plot(facts, np.log(facts), color=BLACK, linewidth=3.5, alpha=0.35, zorder=1, label="log(number of facts)")
    right.axhline(0, color=BLACK, linewidth=0.8)
    right.set(title="Scores, averaged over heads", ylabel="score")
    for ax in (left, right):
        _facts_axis(ax, facts)
        ax.axvspan(*results.trained_facts, color="#dddddd", linewidth=0, zorder=0)
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), fontsize=9)
    return figure


@in_style
def draw_changes(results: Results) -> Figure:
    """Accuracy of the slots with one thing changed at a time, and above a line with several; the best stand on top."""
    models = [*sorted(results.changes, key=_reach), *sorted(results.combined, key=_reach)]
    longest = max(length.num_facts for model in models for length in model.lengths)
    chosen = [count for count in (64, 256, 1024) if count <= longest] or [longest]
    figure, (ax,) = new_figure(8.5, 1.6 + 0.36 * len(models))
    styles: tuple[dict[str, Any], ...] = (
        {"color": BLUE, "marker": "o"},
        {"color": ORANGE, "marker": "D"},
        {"color": RED, "marker": "s"},
    )
    for count, style in zip(chosen, styles, strict=False):
        found = [(place, at(model, count)) for place, model in enumerate(models)]
        points = [(length.accuracy, place) for place, length in found if length is not None]
        ax.plot(*np.array(points).T.reshape(2, -1), linestyle="none", markersize=7, label=f"{count:,} facts", **style)
    ax.set_yticks(range(len(models)), [fill(model.name, 30) for model in models])
    title = "One thing changed at a time"
    if results.combined:
        ax.axhline(len(results.changes) - 0.5, color=BLACK, linewidth=0.8)
        title += ",\nabove the line several together"
    ax.set(title=title, xlabel="share answered right", xlim=(0, 1.02))
    ax.legend(loc="upper center", bbox_to_anchor=(0.4, -0.12 - 0.5 / len(models)), ncols=3)
    return figure


def _name(model: InContextMeasured, results: Results) -> str:
    """Of slots that stand beside others; with how many facts they were trained on, where nothing else tells."""
    trained = model.recipe.data.max_facts
    told = trained == results.trained_facts[1] or f"{trained} facts" in model.name
    return f"slots, {model.name}" + ("" if told else f" (up to {trained})")


def _plot(
    ax: Axes, model: InContextMeasured, value: Callable[[LengthMeasured], float | None], series: int, *, label: str
) -> None:
    found = [(length.num_facts, value(length)) for length in model.lengths]
    points = [(count, number) for count, number in found if number is not None]
    ax.plot(*np.array(points).T.reshape(2, -1), label=label, **{**line(series, len(points)), "markevery": None})


def _facts_axis(ax: Axes, counts: Sequence[int]) -> None:
    ax.set_xscale("log", base=2)
    ax.set_xticks(counts, [f"{count:,}" for count in counts])
    ax.minorticks_off()
    ax.set_xlabel("facts in the context")


def _mean(heads: Sequence[float] | None) -> float | None:
    return None if heads is None else float(np.mean(heads))


def _reach(model: InContextMeasured) -> tuple[float, ...]:
    """Accuracies from the largest number of facts down: what orders models by how far they reach."""
    return tuple(length.accuracy for length in sorted(model.lengths, key=lambda length: -length.num_facts))
