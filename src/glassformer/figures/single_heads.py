"""One head: weights and intermediate results for one sequence, its QK circuit and value map.

Matrices of a sequence are drawn transposed, as in the course: the sequence, or the input vector,
runs along the horizontal axis, the entries of a key, query, value or output along the vertical one.
In the panel of the attention each column is a query and sums to 1.

Circuits are drawn on scales centred at 0, red above and blue below; rows are queries, columns keys,
and a grey cell is a pair that never occurs in one sequence.

All functions raise InputError where sequences, tables or names do not fit the weights or one
another.
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
"""The scores of queries with keys, and the values of the same tokens or places."""

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
    """A hand-designed head on one sequence and, beside it, a learned one: the course's eight panels
    of each.

    Km and K; below them Qm and Q, Vm and V, attention and output. Each panel has its own scale,
    which is centred at 0
    and stands in its title: white is 0, red above, blue below. Without ``second``, the first head
    is drawn alone.

    Args:
        seq: ``[position, input_dim]``.
        names: Of the sequence's positions, such as their letters; numbers when None.
        input_names: Of the ``input_dim`` entries of an input vector; numbers when None. Those of
            the position follow as p0, p1, ...
    """
    if second is None:
        heads = [("", first)]
    else:
        heads = list(zip(_ROWS, (first, second), strict=True))
    panels = [_eight_panels(weights, seq, names, input_names) for _, weights in heads]
    # A head is a block of two columns: its matrices, and what they give for the sequence.
    rows = [[each for head in panels for each in head[i : i + 2]] for i in range(0, 8, 2)]
    widths = [
        max(side(row[column].values.shape[1], CELL) for row in rows)
        for column in range(len(rows[0]))
    ]
    heights = [max(side(each.values.shape[0], CELL, CELL) for each in row) for row in rows]
    figure, axes = new_figure(
        sum(widths) + len(widths) * 0.6,
        sum(heights) + len(heights) * 1.05 + 0.3 * (second is not None) + 0.4 * bool(title),
        rows=4,
        columns=len(widths),
        width_ratios=widths,
        height_ratios=heights,
    )
    for ax, each in zip(axes, itertools.chain(*rows), strict=True):
        if each.title == "Attn":
            limit = 1.0
        else:
            limit = float(np.abs(each.values).max()) or 1.0
        text = f"{each.title}, {'0 to 1' if each.title == 'Attn' else f'±{limit:.3g}'}"
        panel(
            ax,
            each.values,
            text,
            each.x_label,
            each.y_label,
            limits=(-limit, limit),
            colormap=DIVERGING,
            x_names=each.x_names,
            y_names=each.y_names,
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
    names = [str(i) for i in range(length)] if names is None else names
    got = f"{len(names)} names for {length} positions"
    if len(names) != length:
        raise InputError(
            got=got,
            expected="one name for each",
            fix="Pass one each, or none.",
        )
    if input_names is None:
        inputs = [str(i) for i in range(weights.input_dim)]
    else:
        inputs = input_names
    got = f"{len(inputs)} input_names"
    if len(inputs) != weights.input_dim:
        raise InputError(
            got=got,
            expected=f"input_dim = {weights.input_dim} of them",
            fix="Pass one name for each token, or none.",
        )
    inputs = [*inputs, *(f"p{i}" for i in range(weights.pos_dim))]
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
    """The QK circuit and the value map of a hand-designed head, above those of a learned one.

    Colours show shares of each head's largest number, which stands above its panel: so the pattern
    of a head with small scores can be seen.

    Args:
        first: A score for each pair of places, or of tokens and positions, NaN for pairs that never
            occur; and a row of values for each of the same.
        names: Of these; not drawn where there are more than 40.
        value_names: Of the entries of a value; numbers if empty.
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
                # Numbers are written as they are, small ones with as many decimals as each needs.
                if limit >= 10:
                    decimals = 0
                elif limit >= 2:
                    decimals = 1
                elif limit >= 0.1:
                    decimals = 2
                else:
                    decimals = None
                write_values(ax, table, image, decimals=decimals)
        label = f"share of the head's largest {number}"
        figure.colorbar(
            image, ax=axes[column::2], label=label, aspect=2 * length / _BAR, panchor=False
        )
    if never:
        figure.supxlabel(_NEVER, fontsize=8, x=0.01, ha="left")
    finish(figure, title)
    return figure


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
    fits = bool(np.isfinite(values).all()) and not np.isinf(qk).any() and not np.isnan(qk).all()
    if not fits:
        raise InputError(
            got="scores or values with NaN or infinity",
            expected="finite numbers, and NaN only for some pairs of qk",
            fix="Draw a head whose scores are finite.",
        )
