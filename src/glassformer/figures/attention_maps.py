"""Attention weights as heat maps: one head of up to thousands of tokens, grids of heads, and two
compared.

A row of a map is a query. Maps of thousands of tokens are drawn as an overview, in which a cell
shows the largest of the weights that it stands for, so that no single large weight is lost.
Functions for several heads take names of layers and heads, which are numbered from 1 if these are
empty. Those with an argument ``figure`` draw in that empty figure, such as one of pyplot's, or in a
new one. They raise InputError for weights that are missing, no NumPy arrays, of other axes, below
0, above ``largest`` or not finite, and for a wrong number of names.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from glassformer.errors import InputError
from glassformer.figures.coloured_words import shown
from glassformer.figures.heat_maps import (
    CELL,
    LABELLED_CELL,
    MOST_NAMES,
    MOST_TEXTS,
    NAMED_CELL,
    SEQUENTIAL,
    Names,
    box_aspect,
    finish,
    panel,
    side,
    write_values,
)
from glassformer.figures.style import create_ticks, figure_of, in_style, new_figure, restyle_axes
from glassformer.observe.attention_measures import divergence

MOST_CELLS = 512
"""The most queries or keys that are drawn one by one; more are drawn as an overview."""

Layers: TypeAlias = (
    Float[np.ndarray, "layer head query key"] | Sequence[Float[np.ndarray, "_ query key"]]
)
"""The weights of several layers, whose numbers of heads may differ."""

MOST_PANELS = 64
"""The most panels of a grid."""

_PANEL_CELLS = 250
"""The most cells along the side of a panel; more would be smaller than dots on a screen."""

_LONGEST_NAME = 16


def overview(
    values: Float[np.ndarray, "row column"], most: int = MOST_CELLS
) -> Float[np.ndarray, "block_row block_column"]:
    """At most ``most`` x ``most`` blocks of equal size, each with its largest value (max pooling).

    Matrices that are small enough stay as they are. The last blocks may be smaller.
    """
    if not most >= 1:
        raise InputError(
            got=f"most = {most}",
            expected="at least 1",
            fix="The default is 512.",
        )
    for axis in (0, 1):
        if (size := _block(values.shape[axis], most)) > 1:
            values = np.maximum.reduceat(values, np.arange(0, values.shape[axis], size), axis=axis)
    return values


def attention_map(
    weights: Float[np.ndarray, "query key"],
    keys: Names = (),
    queries: Names | None = None,
    title: str = "",
    *,
    ax: Axes | None = None,
    largest: float | None = None,
    axis_names: tuple[str, str] = ("key", "query"),
) -> Figure:
    """One head as a heat map, a row for each query.

    Maps of up to 22 x 22 have the weights in their cells and maps of up to 40 x 40 names on their
    axes; longer ones have numbers on their axes, from 0, and from 513 tokens on they are an
    :func:`overview`.

    Args:
        keys: The tokens at the keys; numbers if empty.
        queries: The tokens at the queries; those of ``keys`` when None, if there are as many
            queries as keys.
        ax: Where to draw, emptied first unless it is from
            :func:`~glassformer.figures.style.new_figure`; a new figure when None.
        largest: The weight with the darkest colour; the largest of ``weights`` when None.
        axis_names: What the columns are, and what the rows are.
    """
    figure, place, image = _draw_attention_map(
        weights, keys, queries, title, ax, largest, axis_names
    )
    if ax is not None and max(weights.shape) <= MOST_TEXTS:
        # With the caller's settings, since the layout creates ticks of all axes of the figure.
        figure.draw_without_rendering()
        box = place.get_window_extent()
        cell = min(box.width / weights.shape[1], 1.5 * box.height / weights.shape[0]) / figure.dpi
        if cell >= 0.9 * LABELLED_CELL:
            write_values(place, weights, image)
    return figure


@in_style
def _draw_attention_map(
    weights: Float[np.ndarray, "query key"],
    keys: Names,
    queries: Names | None,
    title: str,
    ax: Axes | None,
    largest: float | None,
    axis_names: tuple[str, str],
) -> tuple[Figure, Axes, AxesImage]:
    """The figure, its axes and its image; without the values of cells where ``ax`` is given."""
    limits = (0.0, end_of_scale([weights], largest))
    if queries is None:
        queries = keys if len(keys) == len(weights) else ()
    else:
        queries = queries
    few = max(weights.shape) <= MOST_TEXTS
    down, across = (side(count, LABELLED_CELL if few else CELL) for count in weights.shape)
    width = max(across + 1.9 + names_room(queries), 3.2)
    height = down + 1.2 + names_room(keys)
    if ax is None:
        figure, (place,) = new_figure(width, height)
    else:
        figure = figure_of(ax)
        place = ax
        restyle_axes(ax)
    image = draw_map(place, weights, keys, queries, limits, axis_names, labels=ax is None)
    # A new figure's size makes the cells nearly square; given axes are filled.
    place.set_box_aspect(None)
    bar: dict[str, Any] = {"aspect": down / 0.13, "panchor": False} if ax is None else {}
    colours = figure.colorbar(image, ax=place, label=map_label(weights.shape), **bar)
    finish(figure, title, ax)
    create_ticks(place, colours.ax)
    return figure, place, image


def end_of_scale(values: Sequence[np.ndarray], largest: float | None) -> float:
    """The value with the darkest colour: ``largest``, or the largest of all ``values``; 1 if all
    are 0.
    """
    for each in values:
        got = f"a {type(each).__name__} of shape {list(each.shape)}"
        fix = "Choose a text and a head, and convert a tensor by .detach().float().cpu().numpy()."
        if not isinstance(each, np.ndarray) or each.ndim != 2:
            raise InputError(
                got=got,
                expected="a NumPy array [query, key] for each head",
                fix=fix,
            )
    shapes = [list(each.shape) for each in values]
    got = f"values of shapes {shapes}"
    expected = "at least one row and column"
    if len(values) <= 0 or not all(each.size > 0 for each in values):
        raise InputError(
            got=got,
            expected=expected,
            fix="Pass weights.",
        )
    low, high = (float(extreme([extreme(each) for each in values])) for extreme in (np.min, np.max))
    fix = "Pass attention weights (after the softmax), not scores; draw differences with heat_maps.panel."
    if not (low >= 0 and bool(np.isfinite(high))):
        raise InputError(
            got=f"values from {low:g} to {high:g}",
            expected="finite values from 0 on",
            fix=fix,
        )
    got = f"a value of {high:g} with largest = {largest}"
    expected = "no value above largest"
    if largest is not None and not 0 < largest >= high - 1e-2:
        raise InputError(
            got=got,
            expected=expected,
            fix="Pass the largest of all, or None.",
        )
    return largest or high or 1.0


def numbered(names: Names, count: int, kind: str) -> list[str]:
    """``names``, or "``kind`` 1" and so on if there are none."""
    if len(names) not in (0, count):
        raise InputError(
            got=f"{len(names)} names",
            expected=f"{count}, or none",
            fix="Pass one name each.",
        )
    return list(names) or [f"{kind} {place + 1}".strip() for place in range(count)]


def draw_map(
    ax: Axes,
    values: Float[np.ndarray, "query key"],
    keys: Names,
    queries: Names,
    limits: tuple[float, float],
    axis_names: tuple[str, str],
    *,
    labels: bool = True,
    most: int = MOST_CELLS,
) -> AxesImage:
    """Draw a map, or its overview, with names or numbers on its axes."""
    for what, names, size in (
        ("keys", keys, values.shape[1]),
        ("queries", queries, values.shape[0]),
    ):
        if len(names) not in (0, size):
            raise InputError(
                got=f"{len(names)} names for {size} {what}",
                expected="one each, or none",
                fix="Name each or none.",
            )
    y_names, x_names = (
        _tick_labels(names) if len(names) <= MOST_NAMES else () for names in (queries, keys)
    )
    cells = overview(values, most)
    image = panel(
        ax,
        cells,
        "",
        *axis_names,
        labels=labels,
        limits=limits,
        colormap=SEQUENTIAL,
        x_names=x_names,
        y_names=y_names,
    )
    rows, columns = (_block(count, most) for count in values.shape)
    image.set_extent((-0.5, columns * cells.shape[1] - 0.5, rows * cells.shape[0] - 0.5, -0.5))
    # The last blocks may extend beyond the last token.
    ax.set(xlim=(-0.5, values.shape[1] - 0.5), ylim=(values.shape[0] - 0.5, -0.5))
    ax.set_box_aspect(box_aspect(values.shape))
    for axis, names in ((ax.xaxis, x_names), (ax.yaxis, y_names)):
        if not names:
            axis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
            axis.set_tick_params(length=2, labelsize=8)
    return image


def _block(size: int, most: int) -> int:
    """The size of blocks that divide ``size`` cells into at most ``most``."""
    return -(-size // most)


def map_label(shape: Sequence[int], most: int = MOST_CELLS) -> str:
    """The label of a map's colour bar."""
    rows, columns = (_block(count, most) for count in shape)
    return "attention weight" + (
        f",\nlargest of each {rows} × {columns}" if max(rows, columns) > 1 else ""
    )


def _tick_labels(names: Names) -> list[str]:
    """Names with invisible characters escaped, and long names cut."""
    return [
        name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"
        for name in map(shown, names)
    ]


def names_room(names: Names) -> float:
    """Inches that names need next to a map, beyond those of single letters."""
    if not 0 < len(names) <= MOST_NAMES:
        return 0.1
    return 0.075 * max(0, max(map(len, _tick_labels(names))) - 2)


@in_style
def attention_grid(
    weights: Layers,
    keys: Names = (),
    queries: Names | None = None,
    title: str = "",
    *,
    layer_names: Names = (),
    head_names: Names = (),
    panel_names: Names = (),
    largest: float | None = None,
    values: bool = False,
    axis_names: tuple[str, str] = ("key", "query"),
    figure: Figure | None = None,
) -> Figure:
    """A panel for each head, a row of panels for each layer, all on one scale.

    Args:
        keys: The tokens at the keys; numbers if empty.
        queries: The tokens at the queries; those of ``keys`` when None, if there are as many
            queries as keys.
        panel_names: One for each panel, row by row, instead of its layer's and its head's name.
        largest: The weight with the darkest colour; the largest of all when None.
        values: Write the weights into the cells, in panels of up to 22 x 22.
        axis_names: What the columns are, and what the rows are.
    """
    layers = list(weights)
    rows = len(layers)
    columns = max((len(layer) for layer in layers), default=0)
    got = f"{rows} layers of up to {columns} heads"
    shapes = {layer.shape[1:] for layer in layers}
    if not columns > 0:
        raise InputError(
            got=got,
            expected="at least one head",
            fix="Pass its weights.",
        )
    if len(shapes) != 1:
        raise InputError(
            got=f"maps of shapes {sorted(shapes)}",
            expected="one shape",
            fix="Take all layers from the same text.",
        )
    if not rows * columns <= MOST_PANELS:
        raise InputError(
            got=got,
            expected=f"at most {MOST_PANELS} panels",
            fix="Choose layers and heads.",
        )
    above = numbered(layer_names, rows, "Layer")
    beside = numbered(head_names, columns, "head")
    joined = [", ".join(filter(None, (layer, head))) for layer in above for head in beside]
    if panel_names:
        titles = numbered(panel_names, rows * columns, "")
    else:
        titles = joined
    limits = (0.0, end_of_scale([head for layer in layers for head in layer], largest))
    shape = layers[0].shape[1:]
    if queries is None:
        queries = keys if len(keys) == shape[0] else ()
    else:
        queries = queries
    labels = values and max(shape) <= MOST_TEXTS
    down = _inches(shape[0], queries, labels, 0.7)
    across = _inches(shape[1], keys, labels, 1.6)
    width = across + 0.4 + names_room(queries)
    height = down + 0.5 + names_room(keys)
    made, axes = new_figure(
        columns * width + 1.2, rows * height + 0.8, rows, columns, figure=figure
    )
    for place, ax in enumerate(axes):
        layer, head = divmod(place, columns)
        if head >= len(layers[layer]):
            ax.set_axis_off()
            continue
        named = (axis_names[0] if layer == rows - 1 else "", axis_names[1] if head == 0 else "")
        image = draw_map(
            ax, layers[layer][head], keys, queries, limits, named, labels=labels, most=_PANEL_CELLS
        )
        ax.set_title(titles[place][:1].upper() + titles[place][1:], loc="center")
    made.colorbar(image, ax=axes, label=map_label(shape, _PANEL_CELLS), fraction=0.03, aspect=30)
    finish(made, title)
    return made


def cross_attention(
    weights: Float[np.ndarray, "head target source"] | Layers,
    source: Names,
    target: Names,
    title: str = "Cross-attention",
    *,
    layer_names: Names = (),
    head_names: Names = (),
    figure: Figure | None = None,
) -> Figure:
    """A decoder's cross-attention: a panel for each head, its tokens from top to bottom, the source
    from left to right.

    Colours are on a scale from 0 to 1. Several layers get a row of panels each.
    """
    if isinstance(weights, np.ndarray) and weights.ndim == 3:
        weights = weights[None]
        layer_names = layer_names or ("",)
    return attention_grid(
        weights,
        source,
        target,
        title,
        layer_names=layer_names,
        head_names=head_names,
        largest=1.0,
        values=True,
        axis_names=("encoder token", "decoder token"),
        figure=figure,
    )


@in_style
def compare_heads(
    first: Float[np.ndarray, "query key"],
    second: Float[np.ndarray, "query key"],
    keys: Names = (),
    queries: Names | None = None,
    title: str = "",
    *,
    names: tuple[str, str] = ("head 1", "head 2"),
) -> Figure:
    """Two heads of one text, and below each its excess over the other: ``max(first - second, 0)``
    and the reverse.

    All four panels have one scale. The difference takes two panels because in a print in grey no
    colours can distinguish its two signs. The title ends with the mean :func:`divergence
    <glassformer.observe.attention_measures.divergence>` of the two heads' rows.

    ``names`` are those of the two heads; the other arguments are those of :func:`attention_grid`.
    """
    if first.shape != second.shape:
        raise InputError(
            got=f"weights of shapes {list(first.shape)} and {list(second.shape)}",
            expected="the same shape",
            fix="Take both from one text and the same queries.",
        )
    largest = end_of_scale([first, second], None)
    apart = divergence(first, second)
    apart = apart[np.isfinite(apart)]
    if apart.size:
        measured = f"divergence {apart.mean():.2f} of at most 0.69 nats"
    else:
        measured = "no divergence"
    return attention_grid(
        [np.stack([first, second]), np.maximum(np.stack([first - second, second - first]), 0)],
        keys,
        queries,
        f"{title}: {measured}" if title else measured,
        panel_names=(
            *names,
            *(f"{name}, more than {other}" for name, other in (names, names[::-1])),
        ),
        largest=largest,
        values=True,
    )


def _inches(count: int, names: Names, labels: bool, least: float) -> float:
    """A panel's side."""
    if labels or 0 < len(names) <= MOST_NAMES:
        return max(least, count * (LABELLED_CELL if labels else NAMED_CELL))
    return side(count, CELL, least, 2.8)
