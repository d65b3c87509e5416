"""The lab's figures, drawn from its results alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from glassformer.labs.gpt_oss.results import Behaviour, NextToken, Results
from glassformer.observe.figures.heat_maps import write_values
from glassformer.observe.figures.style import (
    BLACK,
    BLUE,
    GREEN,
    HATCHES,
    ORANGE,
    SKY,
    in_style,
    line,
    new_figure,
    save_figure,
)

_OPTIMUM: dict[str, Any] = {"color": BLACK, "linewidth": 2.4, "linestyle": "-", "zorder": 1}


def draw_figures(results: Results, directory: Path) -> dict[str, Path]:
    """Draw every figure into ``directory`` as PNG and SVG; returns the PNG of each by name."""
    drawn = {
        "accuracy-by-position": draw_accuracy(results),
        "training": draw_training(results),
        "next-token": draw_next_token(results.generation.next_token),
        "generation": draw_generation(results),
        "sampling-grid": draw_grid(results),
    }
    return {name: save_figure(figure, directory, name)[0] for name, figure in drawn.items()}


@in_style
def draw_accuracy(results: Results) -> Figure:
    """Accuracy of every model at each position with the optimum; below it, what each misses to the optimum."""
    figure, (above, below) = new_figure(8, 7, rows=2, sharex=True, height_ratios=(3, 2))
    optimum = np.array(results.optimum_by_position)
    positions = np.arange(len(optimum))
    above.plot(positions, optimum, label=f"optimal ({results.optimum:.4f})", **_OPTIMUM)
    for series, model in enumerate(results.models):
        style, reached = line(series, len(positions)), np.array(model.accuracy_by_position)
        above.plot(positions, reached, label=f"{model.title} ({model.accuracy:.4f})", **style)
        below.plot(positions, optimum - reached, **style)
    below.axhline(0, **_OPTIMUM)
    above.set(title="Accuracy of the next token at each position", ylabel="accuracy", ylim=(0, 1))
    above.legend(loc="lower right", title="mean over positions")
    below.set(title="What is missing to the optimum", xlabel="position in the sequence", ylabel="optimal − model")
    below.set_xlim(-0.5, len(positions) - 0.5)
    return figure


@in_style
def draw_training(results: Results) -> Figure:
    """Training loss and test accuracy of every model by step, the accuracy with its optimum."""
    figure, (left, right) = new_figure(10, 4.2, columns=2)
    for series, model in enumerate(results.models):
        steps, losses = np.array(model.losses).T
        left.plot(steps, losses, label=model.title, **line(series, len(steps)))
        steps, accuracies = np.array(model.evaluations).T
        right.plot(steps, accuracies, **line(series, len(steps)))
    right.axhline(results.optimum_test, **_OPTIMUM)
    right.annotate("optimal", (1, results.optimum_test), xycoords=("axes fraction", "data"), ha="right", va="bottom")
    left.set(title="Training loss", xlabel="step", ylabel="nats per token")
    right.set(title="Accuracy on the test sequences", xlabel="step", ylabel="accuracy", ylim=(None, 0.95))
    left.legend()
    if max(model.steps for model in results.models) > 2 * min(model.steps for model in results.models):
        for axes in (left, right):
            axes.set_xscale("log")
    return figure


@in_style
def draw_next_token(shown: NextToken) -> Figure:
    """The model's distribution of one next token under several sampling rules, with the optimal one as marks."""
    figure, panels = new_figure(10, 5, rows=2, columns=3, sharex=True, sharey=True)
    tokens = np.arange(len(shown.optimal))
    for axes, (title, probabilities) in zip(panels, shown.model.items(), strict=True):
        axes.bar(tokens, probabilities, color=SKY, edgecolor=BLACK, linewidth=0.5, label="model")
        axes.plot(tokens, shown.optimal, "_", color=BLACK, markersize=14, markeredgewidth=2, label="optimal")
        axes.set_title(title)
        for token, word in ((shown.by_rule, "rule"), (shown.by_increment, "+1")):
            top = max(probabilities[token], shown.optimal[token])
            axes.annotate(word, (token, top), xytext=(0, 4), textcoords="offset points", ha="center")
        axes.set_ylim(0, 1.12)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    for axes in panels[3:]:
        axes.set(xlabel="next token", xticks=tokens)
    for axes in panels[::3]:
        axes.set_ylabel("probability")
    return figure


@in_style
def draw_generation(results: Results) -> Figure:
    """Continuations under each sampling rule beside the true ones: what their steps are, and how they repeat."""
    generation = results.generation
    rows: dict[str, Behaviour] = {"true sequences": generation.true, **generation.rules}
    figure, (left, right) = new_figure(11, 4.4, columns=2, sharey=True)
    places = np.arange(len(rows))
    _stack(left, places, rows)
    left.set_yticks(places, list(rows))
    left.invert_yaxis()
    left.set(title="What each generated step is", xlabel="share of steps", xlim=(0, 1))
    left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3)
    for offset, (part, words, colour, hatch) in enumerate(
        (("repeated", "runs of 4 tokens seen before", BLUE, ""), ("cycling", "continuations that cycle", ORANGE, "///"))
    ):
        shares = [getattr(row, part) for row in rows.values()]
        right.barh(
            places + (offset - 0.5) * 0.38, shares, 0.38, label=words, color=colour, hatch=hatch, edgecolor=BLACK
        )
    right.set(title="How much it repeats itself", xlabel="share", xlim=(0, 1))
    right.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
    for axes in (left, right):
        axes.axhline(0.5, color=BLACK, linewidth=0.8)
        axes.grid(False, axis="y")
    return figure


@in_style
def draw_grid(results: Results) -> Figure:
    """Shares of rule, +1 and neither over temperature and top-p, with the true share above each map."""
    generation = results.generation
    figure, panels = new_figure(12, 1.6 + 0.42 * len(generation.temperatures), columns=3, sharey=True)
    for axes, (part, words) in zip(
        panels, (("rule", "follows the rule"), ("increment", "previous + 1"), ("neither", "neither")), strict=True
    ):
        shares = [[getattr(cell, part) for cell in row] for row in generation.grid]
        image = axes.imshow(shares, cmap="Greys", vmin=0, vmax=1, aspect="auto")
        write_values(axes, np.array(shares), image)
        axes.set_title(f"{words} (true: {getattr(generation.true, part):.2f})")
        axes.set_xticks(range(len(generation.top_ps)), [f"{top_p:g}" for top_p in generation.top_ps])
        axes.set(xlabel="top-p")
        axes.grid(False)
    panels[0].set_yticks(range(len(generation.temperatures)), [f"{value:g}" for value in generation.temperatures])
    panels[0].set_ylabel("temperature")
    return figure


def _stack(axes: Axes, places: np.ndarray, rows: dict[str, Behaviour]) -> None:
    """Bars of rule, increment and neither that add up to 1."""
    start = np.zeros(len(places))
    for part, words, colour, hatch in (
        ("rule", "follows the rule", GREEN, HATCHES[0]),
        ("increment", "previous + 1", SKY, HATCHES[1]),
        ("neither", "neither", ORANGE, HATCHES[3]),
    ):
        shares = np.array([getattr(row, part) for row in rows.values()])
        axes.barh(
            places, shares, 0.7, left=start, label=words, color=colour, hatch=hatch, edgecolor=BLACK, linewidth=0.6
        )
        start += shares
