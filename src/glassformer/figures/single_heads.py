"""One head: weights and intermediate results for one sequence, its QK circuit and value map.

Matrices of a sequence are drawn transposed, as in the course. The horizontal axis is the sequence
or the input vector, the vertical one the entries of a key, query, value or output. In the panel of
the attention each column is a query and sums to 1.

Circuits are drawn on scales centred at 0, red above and blue below; rows are queries, columns keys,
and a grey cell is a pair that never occurs in one sequence.

All functions raise InputError if sequences, tables or names do not fit the weights or each other.
"""

import itertools
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from glassformer.errors import InputError
from glassformer.figures.heat_maps import (
    CELL,
    DIVERGING,
    MOST_TEXTS,
    TABLE_CELL,
    Names,
    finish,
    name_row,
    panel,
    side,
    write_values,
)
from glassformer.figures.style import in_style, new_figure
from glassformer.handcraft.single_head import HeadWeights, NumpyHead

Circuits = tuple[Float[np.ndarray, "query key"], Float[np.ndarray, "query v_dim"]]
"""Scores of queries with keys, and values of the same tokens or places."""

_ROWS = ("hand-designed", "learned")
_MOST_WITH_TEXTS = 13
_BAR = 0.13
_NEVER = "grey: pairs that never occur in one sequence"


class _Panel(NamedTuple):
    """Arguments of :func:`~glassformer.figures.heat_maps.panel`."""

    title: str
    values: np.ndarray
    x_label: str
    y_label: str
    x_names: Names = ()
    y_names: Names = ()


@in_style
def draw_comparison(
    first: HeadWeights,
    second: HeadWeights | None,
    seq: ArrayLike,
    names: list[str] | None = None,
    *,
    input_names: list[str] | None = None,
    title: str = "",
) -> Figure:
    """Draw a hand-designed head on one sequence and, beside it, a learned one.

    Each has the course's eight panels: Km and K; below them Qm and Q, Vm and V, attention and
    output. Each panel has its own scale in its title, centred at 0: white is 0, red above, blue
    below. Without ``second``, the first head is drawn alone.

    Args:
        seq: ``[position, input_dim]``.
        names: Names of the sequence's positions, such as letters; None: numbers.
        input_names: Names of the ``input_dim`` entries of an input vector; None: numbers. The
            entries of the position follow as p0, p1, ...
    """
    if second is None:
        heads = [("", first)]
    else:
        heads = list(zip(_ROWS, (first, second), strict=True))
    head_panels = [_eight_panels(weights, seq, names, input_names) for _, weights in heads]
    # A head is a block of two columns: its matrices, and their results for the sequence.
    rows: list[list[_Panel]] = [[], [], [], []]
    for panels in head_panels:
        for index, row in enumerate(rows):
            row += panels[2 * index : 2 * index + 2]
    columns = zip(*rows, strict=True)
    widths = [max(side(matrix.values.shape[1], CELL) for matrix in column) for column in columns]
    heights = [max(side(matrix.values.shape[0], CELL, CELL) for matrix in row) for row in rows]
    figure, axes = new_figure(
        sum(widths) + len(widths) * 0.6,
        sum(heights) + len(heights) * 1.05 + 0.3 * (second is not None) + 0.4 * bool(title),
        rows=4,
        columns=len(widths),
        width_ratios=widths,
        height_ratios=heights,
    )
    for ax, matrix in zip(axes, itertools.chain(*rows), strict=True):
        if matrix.title == "Attn":
            limit = 1.0
            scale = "0 to 1"
        else:
            limit = float(np.abs(matrix.values).max()) or 1.0
            scale = f"±{limit:.3g}"
        panel(
            ax,
            matrix.values,
            f"{matrix.title}, {scale}",
            matrix.x_label,
            matrix.y_label,
            limits=(-limit, limit),
            colormap=DIVERGING,
            x_names=matrix.x_names,
            y_names=matrix.y_names,
        )
    for number, (head_name, _) in enumerate(heads):
        if head_name:
            above = axes[2 * number].annotate(
                head_name, (0, 1), (0, 22), "axes fraction", textcoords="offset points"
            )
            above.set(fontsize=11, weight="bold")
    finish(figure, title)
    return figure


def _eight_panels(
    weights: HeadWeights, seq: ArrayLike, names: list[str] | None, input_names: list[str] | None
) -> list[_Panel]:
    trace = NumpyHead(weights).trace(seq)
    length = len(trace.K)
    if names is None:
        names = [str(position) for position in range(length)]
    if input_names is None:
        input_names = [str(entry) for entry in range(weights.input_dim)]
    if len(names) != length:
        raise InputError(
            got=f"{len(names)} names for {length} positions",
            expected="one name for each",
            fix="Pass one each, or none.",
        )
    if len(input_names) != weights.input_dim:
        raise InputError(
            got=f"{len(input_names)} input_names",
            expected=f"input_dim = {weights.input_dim} of them",
            fix="Pass one name for each token, or none.",
        )
    inputs = [*input_names, *(f"p{entry}" for entry in range(weights.pos_dim))]
    return [
        _Panel("Km", weights.Km.T, "d_in", "d_qk", inputs),
        _Panel("K", trace.K.T, "seq", "d_qk", names),
        _Panel("Qm", weights.Qm.T, "d_in", "d_qk", inputs),
        _Panel("Q", trace.Q.T, "seq", "d_qk", names),
        _Panel("Vm", weights.Vm.T, "d_in", "d_v", inputs),
        _Panel("V", trace.V.T, "seq", "d_v", names),
        _Panel("Attn", trace.weights.T, "Q", "K", names, names),
        _Panel("Out", trace.output.T, "seq", "d_v", names),
    ]


@in_style
def draw_circuit_comparison(
    first: Circuits, second: Circuits, names: Names, title: str = "", *, value_names: Names = ()
) -> Figure:
    """Draw the QK circuit and the value map of a hand-designed head, above a learned head's.

    Colours show shares of each head's largest number, which is written above its panel. So the
    pattern of a head with small scores can be seen.

    Args:
        first: A score for each pair of places, or of tokens and positions, NaN for pairs that never
            occur; and a row of values for each place.
        second: The same tables of the learned head.
        names: Names of the places; not drawn if there are more than 40.
        value_names: Names of the entries of a value; numbers if empty.
    """
    for circuits in (first, second):
        _check_circuits(circuits, names)
    size, v_dim = first[1].shape
    if first[1].shape != second[1].shape:
        raise InputError(
            got=f"values of shapes {[list(values.shape) for _, values in (first, second)]}",
            expected="the same shape for both heads",
            fix="Compare heads of one task.",
        )
    value_names = value_names or [str(i) for i in range(v_dim)]
    few = size <= _MOST_WITH_TEXTS
    length = side(size, TABLE_CELL if few else CELL, 1.0, 7.0)
    # Cells of values are always wide enough for a number.
    widths = (length, side(v_dim, TABLE_CELL, 1.0, 7.0))
    never = any(np.isnan(qk).any() for qk, _ in (first, second))
    figure, axes = new_figure(
        sum(widths) + 3.9,
        2 * (length + 0.9) + 0.4 * bool(title) + 0.25 * never,
        rows=2,
        columns=2,
        width_ratios=widths,
    )
    for column, number in enumerate(("score", "value")):
        for place, (row_name, circuits) in enumerate(zip(_ROWS, (first, second), strict=True)):
            ax = axes[2 * place + column]
            table = circuits[column]
            limit = float(np.nanmax(np.abs(table))) or 1.0
            image = panel(
                ax,
                table / limit,
                f"{('QK circuit', 'Values')[column]}, ±{limit:.3g}",
                ("key", "value entry")[column],
                ("query", None)[column],
                limits=(-1, 1),
                colormap=DIVERGING,
                x_names=(names, value_names)[column],
                y_names=names,
            )
            # Rows of the two tables are aligned.
            ax.set_box_aspect(None)
            if column == 0:
                name_row(ax, row_name)
            if (few or column == 1) and max(table.shape) <= MOST_TEXTS:
                write_values(ax, table, image, decimals=_decimals(limit))
        label = f"share of the head's largest {number}"
        figure.colorbar(
            image, ax=axes[column::2], label=label, aspect=2 * length / _BAR, panchor=False
        )
    if never:
        figure.supxlabel(_NEVER, fontsize=8, x=0.01, ha="left")
    finish(figure, title)
    return figure


def _decimals(limit: float) -> int | None:
    """Return the decimals of numbers up to ``limit``; None: as many as each number needs."""
    for least, decimals in ((10, 0), (2, 1), (0.1, 2)):
        if limit >= least:
            return decimals
    return None


def _check_circuits(circuits: Circuits, names: Names) -> None:
    qk, values = circuits
    size = len(names)
    if qk.shape != (size, size) or len(values) != size:
        raise InputError(
            got=(
                f"scores of shape {list(qk.shape)}, values of shape {list(values.shape)} and "
                f"{size} names"
            ),
            expected=(
                "a square of scores, a row of values and a name for each token, position or place"
            ),
            fix="Compute all three for the same tokens or positions.",
        )
    if not np.isfinite(values).all() or np.isinf(qk).any() or np.isnan(qk).all():
        raise InputError(
            got="scores or values with NaN or infinity",
            expected="finite numbers, and NaN only for some pairs of qk",
            fix="Draw a head whose scores are finite.",
        )
