"""Results of sweeps, scores and lenses by place: a heat map of layers and heads, or bars."""

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from glassformer.errors import InputError
from glassformer.figures.heat_maps import (
    CELL,
    DIVERGING,
    MOST_NAMES,
    SEQUENTIAL,
    finish,
    panel,
    side,
)
from glassformer.figures.style import create_ticks, figure_of, in_style, new_figure, restyle_axes
from glassformer.observe.results import Label, Table

MOST_BARS = 20
"""Maximum number of bars."""

_BAR = 0.26
"""Inches of a bar."""


@in_style
def plot_places(
    table: Table,
    kind: str,
    title: str = "",
    *,
    ax: Axes | None = None,
    largest: float | None = None,
) -> Figure:
    """Draw the values of a result by place.

    Places with two or more axes of several numbers, such as layers and heads, become a heat map.
    Its rows are the first half of the axes, its columns the others. Other places, such as the parts
    of a logit, become bars, at most the 20 largest. Effects are red above 0 and blue below.

    Args:
        table: Table of a :class:`~glassformer.observe.results.Result`; its ``plot`` calls this
            function, too.
        kind: Column to draw.
        ax: Axes to draw in; None makes a new figure.
        largest: Absolute value with the darkest colour of a heat map; None: the largest of all.

    Raises:
        InputError: If the column is unknown or has no finite value.
    """
    values = table.values(kind).numpy()
    finite = values[np.isfinite(values)]
    if finite.size == 0:
        raise InputError(
            got=f"{kind} without a finite value",
            expected="one or more",
            fix="Check the result.",
        )
    several = {name: labels for name, labels in table.axes.items() if len(labels) > 1}
    labels = itertools.chain.from_iterable(several.values())
    numbered = all(isinstance(label, int) for label in labels)
    if len(several) < 2 or not numbered:
        return _bars(table, kind, title, ax)
    rows = [*several][: len(several) // 2]
    columns = [*several][len(rows) :]
    height = math.prod(len(several[name]) for name in rows)
    matrix = np.where(np.isfinite(values), values, np.nan).reshape(height, -1)
    return _map(matrix, kind, title, ax, largest, _names(several, rows), _names(several, columns))


_Axis = tuple[str, list[str]]
"""Name of an axis of a map, and the labels along it."""


def _names(axes: Mapping[str, Sequence[Label]], names: Sequence[str]) -> _Axis:
    """Return the axis of a map that joins the axes ``names``; the last one varies fastest."""
    products = itertools.product(*(axes[name] for name in names))
    labels = [".".join(map(str, place)) for place in products]
    return ".".join(name.replace("_", " ") for name in names), labels


def _map(
    matrix: Float[np.ndarray, "row column"],
    kind: str,
    title: str,
    ax: Axes | None,
    largest: float | None,
    rows: _Axis,
    columns: _Axis,
) -> Figure:
    end = largest
    if end is None:
        end = float(np.nanmax(np.abs(matrix)))
    if not end > 0:
        end = 1.0
    if np.nanmin(matrix) < 0:
        limits = (-end, end)
        colormap = DIVERGING
    else:
        limits = (0.0, end)
        colormap = SEQUENTIAL
    down, across = (side(count, CELL) for count in matrix.shape)
    figure, place = _place(ax, max(across + 1.8, 3.2), max(down + 1.2, 2.0))
    image = panel(
        place,
        matrix,
        "",
        columns[0],
        rows[0],
        limits=limits,
        colormap=colormap,
        x_names=_few_names(columns),
        y_names=_few_names(rows),
    )
    bar = figure.colorbar(image, ax=place, label=kind)
    finish(figure, title, ax)
    create_ticks(place, bar.ax)
    return figure


def _few_names(axis: _Axis) -> list[str]:
    """Return the labels of an axis, or none if they are too many to be read."""
    _, labels = axis
    return labels if len(labels) <= MOST_NAMES else []


def _bars(table: Table, kind: str, title: str, ax: Axes | None) -> Figure:
    places = table.top(kind, MOST_BARS)[::-1]
    labels = []
    for place in places:
        words = []
        for (name, axis_labels), label in zip(table.axes.items(), place[:-1], strict=True):
            if len(axis_labels) == 1:
                continue
            if isinstance(label, str):
                words.append(label)
            else:
                words.append(f"{name.replace('_', ' ')} {label}")
        labels.append(" ".join(words))
    values = [place.value for place in places]
    figure, where = _place(ax, 5.0, len(places) * _BAR + 1.0)
    if ax is not None:
        restyle_axes(ax)
    where.barh(
        range(len(places)),
        values,
        color=["#b2182b" if value > 0 else "#2166ac" for value in values],
    )
    where.set_yticks(range(len(places)), labels, fontsize=8)
    where.axvline(0, color="#808080", linewidth=0.6)
    where.set_xlabel(kind)
    finish(figure, title, ax)
    create_ticks(where)
    return figure


def _place(ax: Axes | None, width: float, height: float) -> tuple[Figure, Axes]:
    if ax is not None:
        return figure_of(ax), ax
    figure, (place,) = new_figure(width, height)
    return figure, place
