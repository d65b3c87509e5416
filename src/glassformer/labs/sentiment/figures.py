"""Figures of how words reach each other, of positions, of publications, and of trainings; no model
is needed.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from glassformer.errors import InputError
from glassformer.figures.style import BLACK, LINES, RED, in_style, line, new_figure


@in_style
def draw_recurrent_and_parallel(sentence: str = "The cat sat on the mat") -> Figure:
    """How the first word's information comes to the last: step by step in a recurrence, at once in
    attention.
    """
    words = sentence.split()
    count = len(words)
    if not count >= 2:
        raise InputError(
            got=f"{count} words",
            expected="at least two",
            fix="Pass a sentence.",
        )
    figure, panels = new_figure(
        2 * max(1.0, 0.13 * max(map(len, words))) * count + 1, 2.8, columns=2
    )
    nodes = range(count)
    recurrence = [*(((n, 0), (n, 1)) for n in nodes), *(((n, 1), (n + 1, 1)) for n in nodes[:-1])]
    attention = [((source, 0), (target, 1)) for source in nodes for target in nodes]
    for ax, name, links, path in (
        (panels[0], "Recurrence", recurrence, [(0, 0), *((n, 1) for n in nodes)]),
        (panels[1], "Attention", attention, [(0, 0), (count - 1, 1)]),
    ):
        ax.set(xlim=(-0.6, count - 0.4), ylim=(-0.15, 1.35))
        ax.set_axis_off()
        for start, end in links:
            first = (start, end) in pairwise(path)
            if first:
                look = {"color": RED, "lw": 2.2}
            else:
                look = {"color": "#909090", "lw": 0.8}
            arrow = {"arrowstyle": "->", "shrinkA": 9, "shrinkB": 7, **look}
            ax.annotate("", end, start, arrowprops=arrow, zorder=3 if first else 2)
        for place, word in enumerate(words):
            ax.plot(place, 1, "o", markersize=11, color="white", markeredgecolor=BLACK)
            ax.text(
                place,
                0,
                word,
                ha="center",
                va="center",
                parse_math=False,
                zorder=4,
                backgroundcolor="white",
            )
            if links is recurrence:
                ax.text(place, 1.2, f"step {place + 1}", ha="center", fontsize=8)
        if links is recurrence:
            after = f"{count} steps, one after another"
        else:
            after = "1 step for all"
        steps = len(path) - 1
        ax.set_title(
            f"{name}: {after}\nfrom the first word to the last: {steps} link{'s' * (steps > 1)}"
        )
    return figure


EVENTS = json.loads((Path(__file__).parent / "timeline.json").read_text(encoding="utf-8"))
"""When models became public, and the parameters of their largest versions, all experts included,
where known.

In sparse ones a token passes through some of the parameters only. Not complete.
"""


@in_style
def draw_timeline() -> Figure:
    """When models became public, against their numbers of parameters where these are known."""
    figure, (sizes, unknown) = new_figure(11.5, 6, rows=2, sharex=True, height_ratios=(4, 1))
    placed = [(event["year"] + (event["month"] - 0.5) / 12, event) for event in EVENTS]
    sizes.set(
        yscale="log", ylabel="parameters: 10⁶ M, 10⁹ B, 10¹² T", title="Transformers since 2017"
    )
    sizes.set_xlim(EVENTS[0]["year"] - 0.3, placed[-1][0] + 1)
    sizes.yaxis.set_major_formatter(lambda value, _: _size(value))
    beside: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8.5}
    ends: list[float] = []
    for date, event in placed:
        if (size := event["parameters"]) is not None:
            look = LINES[int(event["sparse"])]
            sizes.plot(date, size, look["marker"], color=look["color"], markersize=7)
            # Below, where the name of an earlier one that is a little larger reaches over here.
            near = [each["parameters"] or 0 for other, each in placed if 0 < date - other < 1.2]
            if any(size < each < 3 * size for each in near):
                lift = -15
            else:
                lift = 7
            sizes.annotate(
                f"{event['name']}, {_size(size)}", (date, size), (0, lift), ha="center", **beside
            )
            continue
        # The first row whose last name ends before this one starts; a letter is about 0.065 years
        # wide.
        row = next((row for row, end in enumerate(ends) if end < date), len(ends))
        ends[row:] = [date + 0.065 * len(event["name"]) + 0.25, *ends[row + 1 :]]
        unknown.plot(date, row, LINES[2]["marker"], color=LINES[2]["color"], markersize=7)
        unknown.annotate(event["name"], (date, row), (7, 0), va="center", **beside)
    unknown.set(
        ylim=(len(ends) - 0.4, -0.6), yticks=[], xlabel="year", ylabel="size not\npublished"
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
    """Loss and accuracy by epoch, with the epoch of the lowest validation loss.

    ``history`` has one number an epoch under ``train_loss`` and ``val_loss`` in nats, and under
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
