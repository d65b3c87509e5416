"""The lab's figures, drawn from its results alone: those of the course's model, and all of them into a directory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from glassformer.labs.lookup.in_context_figures import draw_accuracy, draw_changes, draw_finding
from glassformer.labs.lookup.results import CourseMeasured, HeadShares, Results
from glassformer.observe.figures.attention_maps import cross_attention
from glassformer.observe.figures.style import (
    BLACK,
    BLUE,
    HATCHES,
    ORANGE,
    RED,
    SKY,
    in_style,
    line,
    new_figure,
    save_figure,
)


def draw_figures(results: Results, directory: Path) -> dict[str, Path]:
    """Draw every figure into ``directory`` as PNG and SVG; returns the PNG of each by name."""
    drawn = {
        "accuracy": draw_accuracy(results),
        "finding": draw_finding(results),
        "cross-attention": draw_cross_attention(results.course[0]),
        "sharpness": draw_sharpness(results),
        "scrambling": draw_scrambling(results),
        "training": draw_training(results),
    }
    if results.changes:
        drawn["changes"] = draw_changes(results)
    return {name: save_figure(figure, directory, name)[0] for name, figure in drawn.items()}


def draw_cross_attention(model: CourseMeasured) -> Figure:
    """The cross-attention of one test context, head by head, before training and after."""
    shown = model.map_after
    return cross_attention(
        np.array([model.map_before.weights, shown.weights]),
        shown.source,
        shown.target,
        "Cross-attention of one context before and after training",
        layer_names=("before", "after"),
    )


@in_style
def draw_sharpness(results: Results) -> Figure:
    """Weight on what determines the answer, per head, before and after training: the course's model, and slots."""
    course, slots = results.course[0], results.of_encoding("slots")[0]
    trained = results.trained_facts[1]
    after = next(length.sharpness for length in slots.lengths if length.num_facts == trained)
    figure, (left, right) = new_figure(9.5, 4.2, columns=2, sharey=True)
    for offset, shares, faded in ((-0.2, course.before, True), (0.2, course.after, False)):
        _stacked(left, offset, shares, faded)
    left.set_title("The course's model: on the fact's tokens")
    for offset, values, label, colour, hatch in (
        (-0.2, slots.sharpness_before, "right slot, before training", SKY, HATCHES[1]),
        (0.2, after, "right slot, after", BLUE, HATCHES[0]),
    ):
        places = np.arange(len(values)) + offset
        right.bar(places, values, 0.36, label=label, color=colour, hatch=hatch, edgecolor=BLACK, linewidth=0.6)
    right.set_title(f"Slots with {trained} fresh facts: on the right slot")
    for ax, heads in ((left, len(course.after)), (right, len(after))):
        ax.axhline(0.9, color=BLACK, linestyle="--", linewidth=1)
        ax.set_xticks(range(heads), [f"head {head + 1}" for head in range(heads)])
        ax.set_ylim(0, 1.05)
        ax.grid(False, axis="x")
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2, fontsize=9)
    left.set_ylabel("mean attention weight")
    return figure


@in_style
def draw_scrambling(results: Results) -> Figure:
    """The largest change of a logit over all orders of each context, without positions in the encoder and with."""
    figure, (ax,) = new_figure(8, 4.2)
    for series, (model, label) in enumerate(
        ((results.control, "sinusoidal positions in the encoder"), (results.course[0], "no positions in the encoder"))
    ):
        changes = np.array(model.scrambling.largest_changes)
        style = {**line(series, len(changes)), "linestyle": "none", "markevery": None, "color": (RED, BLUE)[series]}
        # A change of exactly 0 has no place on a logarithmic axis.
        ax.plot(np.arange(1, len(changes) + 1), np.maximum(changes, 1e-8), label=label, **style)
    tolerance = results.control.scrambling.tolerance
    ax.axhline(tolerance, color=BLACK, linestyle="--", linewidth=1)
    ax.annotate("allowed for rounding", (1, tolerance), xytext=(0, 3), textcoords="offset points", va="bottom")
    orders = results.control.scrambling.orders // results.control.scrambling.contexts
    ax.set(
        title=f"Largest change of a logit over {orders} orders of each context",
        xlabel="context",
        ylabel="change of a logit",
        yscale="log",
    )
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2)
    return figure


@in_style
def draw_training(results: Results) -> Figure:
    """Validation loss and accuracy of the course's model by epoch, for every seed, and with positions."""
    figure, (left, right) = new_figure(10, 4.2, columns=2)
    models = [(f"seed {model.seed}", model) for model in results.course]
    for series, (label, model) in enumerate([*models, ("with positions", results.control)]):
        epochs, losses, accuracies = zip(*model.evaluations, strict=True)
        style = line(series, len(epochs))
        left.plot(epochs, losses, label=label, **style)
        right.plot(epochs, accuracies, **style)
    left.set(title="Validation loss", xlabel="epoch", ylabel="nats per token", yscale="log")
    right.set(title="Validation accuracy", xlabel="epoch", ylabel="share all right", ylim=(0, 1.05))
    for ax in (left, right):
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.legend()
    return figure


def _stacked(ax: Axes, offset: float, shares: list[HeadShares], faded: bool) -> None:
    """A bar for each head: its weight on the key and, above, on the value."""
    places, bottom = np.arange(len(shares)) + offset, np.zeros(len(shares))
    when = "before" if faded else "after"
    for token, colours, hatch in (("key", (SKY, BLUE), ""), ("value", (ORANGE, RED), "...")):
        heights = np.array([getattr(share, token) for share in shares])
        colour, filling = colours[not faded], hatch + ("///" if faded else "")
        ax.bar(
            places,
            heights,
            0.36,
            bottom=bottom,
            label=f"{token}, {when}",
            color=colour,
            hatch=filling,
            edgecolor=BLACK,
            linewidth=0.6,
        )
        bottom += heights
