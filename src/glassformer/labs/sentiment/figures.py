"""Figures that need no model: paths between words, a timeline of models, and training curves."""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from glassformer.errors import InputError
from glassformer.figures.style import BLACK, LINES, RED, in_style, line, new_figure


@in_style
def draw_recurrent_and_parallel(sentence: str = "The cat sat on the mat") -> Figure:
    """Draw the path from the first word to the last, in a recurrence and in attention."""
    words = sentence.split()
    count = len(words)
    if count < 2:
        raise InputError(
            got=f"{count} words",
            expected="at least two",
            fix="Pass a sentence.",
        )
    word_width = max(1.0, 0.13 * max(map(len, words)))
    figure, (recurrence, attention) = new_figure(2 * word_width * count + 1, 2.8, columns=2)
    nodes = range(count)
    links: list[_Link] = [((n, 0), (n, 1)) for n in nodes]
    links += [((n, 1), (n + 1, 1)) for n in nodes[:-1]]
    _draw_links(recurrence, words, links, [(0, 0), *((n, 1) for n in nodes)])
    for place in nodes:
        recurrence.text(place, 1.2, f"step {place + 1}", ha="center", fontsize=8)
    recurrence.set_title(
        f"Recurrence: {count} steps, one after another\n"
        f"from the first word to the last: {count} links"
    )
    links = [((source, 0), (target, 1)) for source, target in product(nodes, nodes)]
    _draw_links(attention, words, links, [(0, 0), (count - 1, 1)])
    attention.set_title("Attention: 1 step for all\nfrom the first word to the last: 1 link")
    return figure


_Node: TypeAlias = tuple[int, int]
_Link: TypeAlias = tuple[_Node, _Node]


def _draw_links(
    ax: Axes, words: Sequence[str], links: Sequence[_Link], path: Sequence[_Node]
) -> None:
    """Draw words, states above them, and the links between; those of ``path`` in red."""
    ax.set(xlim=(-0.6, len(words) - 0.4), ylim=(-0.15, 1.35))
    ax.set_axis_off()
    for start, end in links:
        arrow: dict[str, Any] = {"arrowstyle": "->", "shrinkA": 9, "shrinkB": 7}
        if (start, end) in pairwise(path):
            arrow |= {"color": RED, "lw": 2.2}
            zorder = 3
        else:
            arrow |= {"color": "#909090", "lw": 0.8}
            zorder = 2
        ax.annotate("", end, start, arrowprops=arrow, zorder=zorder)
    for place, word in enumerate(words):
        ax.plot(place, 1, "o", markersize=11, color="white", markeredgecolor=BLACK)
        text = ax.text(place, 0, word, ha="center", va="center", parse_math=False, zorder=4)
        text.set_backgroundcolor("white")


EVENTS = json.loads((Path(__file__).parent / "timeline.json").read_text(encoding="utf-8"))
"""Publication dates of models, with the parameters of their largest versions where known.

Parameters include all experts; in sparse models, a token passes through some of them only. The list
is not complete.
"""


@in_style
def draw_timeline() -> Figure:
    """Draw the publication dates of models and their numbers of parameters, where known."""
    figure, (sizes, unknown) = new_figure(11.5, 6, rows=2, sharex=True, height_ratios=(4, 1))
    dated = [(event["year"] + (event["month"] - 0.5) / 12, event) for event in EVENTS]
    sizes.set(
        yscale="log", ylabel="parameters: 10⁶ M, 10⁹ B, 10¹² T", title="Transformers since 2017"
    )
    sizes.set_xlim(EVENTS[0]["year"] - 0.3, dated[-1][0] + 1)
    sizes.yaxis.set_major_formatter(lambda value, _: _size(value))
    label_style: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8.5}
    row_ends: list[float] = []
    for date, event in dated:
        size = event["parameters"]
        if size is not None:
            look = LINES[int(event["sparse"])]
            sizes.plot(date, size, look["marker"], color=look["color"], markersize=7)
            # The label goes below where the label of an earlier, slightly larger model reaches.
            earlier = [model["parameters"] or 0 for day, model in dated if 0 < date - day < 1.2]
            overlaps = any(size < earlier_size < 3 * size for earlier_size in earlier)
            place = (0, -15 if overlaps else 7)
            label = f"{event['name']}, {_size(size)}"
            sizes.annotate(label, (date, size), place, ha="center", **label_style)
            continue
        # The first row whose last label ends before this date; a letter is about 0.065 years wide.
        row = next((row for row, end in enumerate(row_ends) if end < date), len(row_ends))
        row_ends[row:] = [date + 0.065 * len(event["name"]) + 0.25, *row_ends[row + 1 :]]
        unknown.plot(date, row, LINES[2]["marker"], color=LINES[2]["color"], markersize=7)
        unknown.annotate(event["name"], (date, row), (7, 0), va="center", **label_style)
    unknown.set(
        ylim=(len(row_ends) - 0.4, -0.6), yticks=[], xlabel="year", ylabel="size not\npublished"
    )
    unknown.xaxis.set_major_locator(MaxNLocator(integer=True))
    unknown.grid(True, axis="x")
    sizes.margins(y=0.12)
    for look, share in zip(LINES, ("all", "some"), strict=False):
        label = f"{share} parameters at work for each token"
        sizes.plot([], [], look["marker"], color=look["color"], markersize=7, label=label)
    sizes.legend(loc="lower right")
    return figure


def _size(parameters: float) -> str:
    for size, name in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if parameters >= size:
            return f"{parameters / size:.3g} {name}"
    return f"{parameters:,.0f}"


@in_style
def draw_training_curves(history: Mapping[str, Sequence[float]], title: str = "") -> Figure:
    """Draw loss and accuracy by epoch, and mark the epoch of the lowest validation loss.

    ``history`` has one number per epoch under ``train_loss`` and ``val_loss`` in nats, and under
    ``train_acc`` and ``val_acc`` in percent.
    """
    epochs = len(history["val_loss"])
    best = int(np.argmin(history["val_loss"])) + 1
    figure, axes = new_figure(10, 4, columns=2)
    for ax, kind, unit in ((axes[0], "loss", "loss, nats"), (axes[1], "acc", "accuracy, %")):
        for series, (part, name) in enumerate((("train", "training"), ("val", "validation"))):
            ax.plot(
                range(1, epochs + 1), history[f"{part}_{kind}"], **line(series, epochs), label=name
            )
        ax.axvline(best, color=BLACK, lw=0.9, ls=":", label=f"lowest validation loss, epoch {best}")
        ax.set(xlabel="epoch", ylabel=unit)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.suptitle(title, fontsize=11, fontweight="bold")
    return figure
