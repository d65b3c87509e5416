"""A head's QK circuit and value map as heat maps: the score of each query with each key, and the value of each key.

Red is above 0, blue below, white is 0. Rows of the left panel are queries, columns keys; a grey cell is a pair that
never stands in one sequence.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from glassformer.errors import require
from glassformer.observe.figures.heat_maps import CELL, DIVERGING, LABELLED_CELL, Names, finish, name_row, panel, side
from glassformer.observe.figures.style import in_style, new_figure

Circuits = tuple[Float[np.ndarray, "query key"], Float[np.ndarray, "query v_dim"]]
"""The scores of queries with keys, and the values of the same tokens or places."""

_MOST_WITH_TEXTS = 12
_BAR = 0.13
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
        names: Of these; not drawn where there are more than 40.
        value_names: Of the entries of a value; numbers if empty.
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

    ``row_names`` are those of the two heads; the other arguments are those of :func:`draw_circuits`. Without
    ``common_scale`` each head has its own scale, which shows the pattern of a head with comparatively small scores.

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
        "Compare heads of one task.",
    )
    value_names = value_names or [str(i) for i in range(v_dim)]
    few = size <= _MOST_WITH_TEXTS
    length = side(size, LABELLED_CELL if few else CELL, 1.0, 7.0)
    # Cells of values are always wide enough for a number.
    widths, never = (length, side(v_dim, LABELLED_CELL, 1.0, 7.0)), any(bool(np.isnan(qk).any()) for _, (qk, _) in rows)
    figure, axes = new_figure(
        sum(widths) + 3.6 + 0.3 * bool(rows[0][0]),
        len(rows) * (length + 0.9) + 0.4 * bool(title) + 0.25 * never,
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
            # Rows of the two tables are aligned.
            ax.set_box_aspect(None)
            _draw_split(ax, split, both=column == 0)
            if column == 0:
                name_row(ax, row_name)
            if not common_scale:
                figure.colorbar(image, ax=ax, label=bar, aspect=length / _BAR, panchor=False)
        if common_scale:
            figure.colorbar(image, ax=axes[column::2], label=bar, aspect=len(rows) * length / _BAR, panchor=False)
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
        "Compute all three for the same tokens or positions.",
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
        "Pass the number of tokens, or None for a head without positions.",
    )


def _draw_split(ax: Axes, split: int | None, both: bool) -> None:
    if split is not None:
        ax.axhline(split - 0.5, color="black", linewidth=1)
        if both:
            ax.axvline(split - 0.5, color="black", linewidth=1)


def _largest(tables: list[np.ndarray]) -> float:
    return max(float(np.nanmax(np.abs(table))) for table in tables) or 1.0
