"""Results of sweeps, scores and lenses by place: a heat map of layers and heads, or the largest as
bars.
"""

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
"""The most places that are drawn as bars."""

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

    Places of two or more axes with several numbers, such as layers and heads, are cells of a heat
    map: the first axes are its rows, the others its columns. Others, such as the parts of a logit,
    are bars, the 20 largest of them. Effects of both signs are red above 0 and blue below.

    Args:
        table: That of a :class:`~glassformer.observe.results.Result`, whose ``plot`` calls this
            function.
        kind: The column to draw.
        ax: Where to draw; a new figure when None.
        largest: The absolute value with the darkest colour of a heat map; the largest of all when
            None.

    Raises:
        InputError: An unknown column, or one without a finite value.
    """
    values = table.values(kind).numpy()
    finite = values[np.isfinite(values)]
    if not finite.size > 0:
        raise InputError(
            got=f"{kind} without a finite value",
            expected="one or more",
            fix="Check the result.",
        )
    several = {name: labels for name, labels in table.axes.items() if len(labels) > 1}
    numbered = all(isinstance(label, int) for labels in several.values() for label in labels)
    if len(several) < 2 or not numbered:
        return _bars(table, kind, title, ax)
    rows = [*several][: len(several) // 2]
    columns = [*several][len(rows) :]
    height = math.prod(len(several[name]) for name in rows)
    matrix = np.where(np.isfinite(values), values, np.nan).reshape(height, -1)
    return _map(matrix, kind, title, ax, largest, _names(several, rows), _names(several, columns))


_Axis = tuple[str, list[str]]
"""What an axis of a map is, and the names along it."""


def _names(axes: Mapping[str, Sequence[Label]], chosen: Sequence[str]) -> _Axis:
    """The axis of a map on which these axes lie, the last of them the fastest."""
    labels: list[str] = [""]
    for name in chosen:
        labels = [f"{before}.{label}".lstrip(".") for before in labels for label in axes[name]]
    return ".".join(name.replace("_", " ") for name in chosen), labels


def _map(
    matrix: Float[np.ndarray, "row column"],
    kind: str,
    title: str,
    ax: Axes | None,
    largest: float | None,
    rows: _Axis,
    columns: _Axis,
) -> Figure:
    if largest is None:
        end = float(np.nanmax(np.abs(matrix)))
    else:
        end = largest
    end = end if end > 0 else 1.0
    signed = bool(np.nanmin(matrix) < 0)
    down, across = (side(count, CELL) for count in matrix.shape)
    figure, place = _place(ax, max(across + 1.8, 3.2), max(down + 1.2, 2.0))
    image = panel(
        place,
        matrix,
        "",
        columns[0],
        rows[0],
        limits=(-end, end) if signed else (0.0, end),
        colormap=DIVERGING if signed else SEQUENTIAL,
        x_names=columns[1] if len(columns[1]) <= MOST_NAMES else (),
        y_names=rows[1] if len(rows[1]) <= MOST_NAMES else (),
    )
    bar = figure.colorbar(image, ax=place, label=kind)
    finish(figure, title, ax)
    create_ticks(place, bar.ax)
    return figure


def _bars(table: Table, kind: str, title: str, ax: Axes | None) -> Figure:
    places = table.top(kind, MOST_BARS)[::-1]
    several = [len(labels) > 1 for labels in table.axes.values()]
    names = [name.replace("_", " ") for name in table.axes]
    labels = []
    for place in places:
        parts = zip(names, place[:-1], several, strict=True)
        words = [
            label if isinstance(label, str) else f"{name} {label}"
            for name, label, wanted in parts
            if wanted
        ]
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
