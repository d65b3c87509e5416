"""A head's circuits as heat maps: which key each query prefers, and what each place or token is worth.

Red is above 0, blue below, white is 0. Rows of the left panel are queries, columns keys; a grey cell is a pair that
never stands in one sequence.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from glassformer.errors import require
from glassformer.observe.figures.heat_maps import DIVERGING, Names, finish, name_row, panel
from glassformer.observe.figures.style import in_style, new_figure

Circuits = tuple[Float[np.ndarray, "query key"], Float[np.ndarray, "query v_dim"]]
"""The scores of queries with keys, and the values of the same tokens or places."""

_MOST_WITH_TEXTS = 12
_CELL, _LABELLED_CELL = 0.24, 0.36
_SMALLEST, _LARGEST, _BAR = 1.0, 7.0, 0.13
_NEVER = "grey: two places that never stand in one sequence"


@in_style
def draw_circuits(
    qk: Float[np.ndarray, "query key"],
    values: Float[np.ndarray, "query v_dim"],
    names: Names,
    title: str = "",
    *,
    value_names: Names = (),
    split: int | None = None,
) -> Figure:
    """The QK circuit and the value map of one head, each on a scale that is centred at 0.

    Args:
        qk: A score for each pair of places, or of tokens and positions; NaN for pairs that never occur.
        values: A row for each of the same.
        names: What to call these; left out in the figure where there are more than 40.
        title: Above the figure.
        value_names: What to call the entries of a value; numbers if none are given.
        split: Where the tokens end and the positions begin: a line is drawn there.

    Raises:
        InputError: Tables or names whose sizes do not fit, infinite entries, NaN outside ``qk``, or a split outside.
    """
    return _draw([("", (qk, values))], names, value_names, split, title, common_scale=True)


@in_style
def draw_circuit_comparison(
    first: Circuits,
    second: Circuits,
    names: Names,
    title: str = "",
    *,
    row_names: tuple[str, str] = ("hand-designed", "learned"),
    value_names: Names = (),
    split: int | None = None,
    common_scale: bool = True,
) -> Figure:
    """The circuits of two heads, those of the first above those of the second.

    Args:
        first: Scores and values of one head, as for :func:`draw_circuits`.
        second: Those of the other, for the same tokens or places.
        names: As for :func:`draw_circuits`, and so are ``title``, ``value_names`` and ``split``.
        row_names: What to call the two.
        common_scale: One scale for both heads. Otherwise each has its own, which shows the pattern of a head whose
            scores are small beside the other's.

    Raises:
        InputError: As for :func:`draw_circuits`.
    """
    rows = [(row_names[0], first), (row_names[1], second)]
    return _draw(rows, names, value_names, split, title, common_scale)


def _draw(
    rows: list[tuple[str, Circuits]],
    names: Names,
    value_names: Names,
    split: int | None,
    title: str,
    common_scale: bool,
) -> Figure:
    for _, circuits in rows:
        _check(circuits, names, split)
    size, v_dim = rows[0][1][1].shape
    require(
        all(values.shape == (size, v_dim) for _, (_, values) in rows),
        f"values of shapes {[list(values.shape) for _, (_, values) in rows]}",
        "the same shape for both heads",
        "Compare heads for one task.",
    )
    value_names = value_names or [str(i) for i in range(v_dim)]
    few = size <= _MOST_WITH_TEXTS
    side = _inches(size, _LABELLED_CELL if few else _CELL)
    # Values always have cells that are wide enough for a number.
    widths, never = (side, _inches(v_dim, _LABELLED_CELL)), any(bool(np.isnan(qk).any()) for _, (qk, _) in rows)
    figure, axes = new_figure(
        sum(widths) + 3.6 + 0.3 * bool(rows[0][0]),
        len(rows) * (side + 0.9) + 0.4 * bool(title) + 0.25 * never,
        rows=len(rows),
        columns=2,
        width_ratios=widths,
    )
    for column, bar in enumerate(("score", "value")):
        tables = [circuits[column] for _, circuits in rows]
        limits = [_largest(tables if common_scale else [table]) for table in tables]
        for number, ((row_name, _), table) in enumerate(zip(rows, tables, strict=True)):
            ax, limit = axes[2 * number + column], limits[number]
            image = panel(
                ax,
                table,
                ("QK circuit", "Values")[column],
                ("key", "value entry")[column],
                ("query", None)[column],
                labels=few or column == 1,
                limits=(-limit, limit),
                colormap=DIVERGING,
                x_names=(names, value_names)[column],
                y_names=names,
            )
            # A row of one table has to stand beside the same row of the other.
            ax.set_box_aspect(None)
            _draw_split(ax, split, both=column == 0)
            if column == 0:
                name_row(ax, row_name)
            if not common_scale:
                figure.colorbar(image, ax=ax, label=bar, aspect=side / _BAR, panchor=False)
        if common_scale:
            figure.colorbar(image, ax=axes[column::2], label=bar, aspect=len(rows) * side / _BAR, panchor=False)
    if never:
        figure.supxlabel(_NEVER, fontsize=8, x=0.01, ha="left")
    finish(figure, title)
    return figure


def _check(circuits: Circuits, names: Names, split: int | None) -> None:
    qk, values = circuits
    size = len(names)
    require(
        qk.shape == (size, size) and len(values) == size,
        f"scores of shape {list(qk.shape)}, values of shape {list(values.shape)} and {size} names",
        "a square of scores, a row of values and a name for each token, position or place",
        "Take scores, values and names from the same functions.",
    )
    require(
        bool(np.isfinite(values).all()) and not np.isinf(qk).any() and not np.isnan(qk).all(),
        "scores or values with NaN or infinity",
        "finite numbers, and NaN only for some pairs of qk",
        "Draw a head whose scores are finite.",
    )
    require(
        split is None or 0 < split < size,
        f"split = {split}",
        f"a row after the first, below {size}",
        "Pass the number of tokens, or None where the head has no positions.",
    )


def _draw_split(ax: Axes, split: int | None, both: bool) -> None:
    if split is not None:
        ax.axhline(split - 0.5, color="black", linewidth=1)
        if both:
            ax.axvline(split - 0.5, color="black", linewidth=1)


def _largest(tables: list[np.ndarray]) -> float:
    return max(float(np.nanmax(np.abs(table))) for table in tables) or 1.0


def _inches(count: int, cell: float) -> float:
    return float(np.clip(cell * count, _SMALLEST, _LARGEST))
