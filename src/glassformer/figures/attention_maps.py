"""Attention weights as heat maps: one head, grids of heads, and two heads compared.

A row of a map is a query. Maps of thousands of tokens are drawn as an overview: each cell shows the
largest weight of its block, so that no single large weight is lost. Functions for several heads
take names of layers and heads; without names, they are numbered from 1. Functions with an argument
``figure`` draw in that empty figure, such as one of pyplot's, or in a new one. All raise InputError
for weights that are missing, no NumPy arrays, of other axes, below 0, above ``largest`` or not
finite, and for a wrong number of names.
"""

import itertools
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
"""Maximum number of queries or keys in a map; more are drawn as an overview."""

Layers: TypeAlias = (
    Float[np.ndarray, "layer head query key"] | Sequence[Float[np.ndarray, "_ query key"]]
)
"""Weights of several layers, whose numbers of heads may differ."""

MOST_PANELS = 64
"""Maximum number of panels in a grid."""

_PANEL_CELLS = 250
"""Maximum number of cells along a panel's side; smaller ones could not be seen on a screen."""

_LONGEST_NAME = 16


def overview(
    values: Float[np.ndarray, "row column"], most: int = MOST_CELLS
) -> Float[np.ndarray, "block_row block_column"]:
    """Return at most ``most`` x ``most`` blocks of equal size with their maxima (max pooling).

    Smaller matrices are not changed. The last blocks may be smaller.
    """
    if most < 1:
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
    """Draw one head as a heat map, a row for each query.

    Maps of up to 22 x 22 have the weights in their cells, and maps of up to 40 x 40 names on their
    axes. Longer ones have numbers on their axes, from 0. From 513 tokens on, a map is an
    :func:`overview`.

    Args:
        keys: Tokens at the keys; numbers if empty.
        queries: Tokens at the queries; None takes ``keys`` if there are as many queries as keys.
        ax: Axes to draw in; emptied first unless they are from
            :func:`~glassformer.figures.style.new_figure`. None makes a new figure.
        largest: Weight with the darkest colour; None: the largest of ``weights``.
        axis_names: Names of the columns' axis and of the rows' axis.
    """
    figure, place, image = _draw_attention_map(
        weights, keys, queries, title, ax, largest, axis_names
    )
    if ax is not None and max(weights.shape) <= MOST_TEXTS:
        # Outside the style: the layout creates ticks of all axes, some of them the caller's.
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
    """Return the figure, its axes and its image, without values in the cells of ``ax``."""
    limits = (0.0, end_of_scale([weights], largest))
    if queries is None:
        queries = keys if len(keys) == len(weights) else ()
    cell = LABELLED_CELL if max(weights.shape) <= MOST_TEXTS else CELL
    down, across = (side(count, cell) for count in weights.shape)
    width = max(across + 1.9 + names_room(queries), 3.2)
    height = down + 1.2 + names_room(keys)
    if ax is None:
        figure, (place,) = new_figure(width, height)
    else:
        figure = figure_of(ax)
        place = ax
        restyle_axes(ax)
    image = draw_map(place, weights, keys, queries, limits, axis_names, labels=ax is None)
    # The size of a new figure makes the cells nearly square; the map fills the caller's axes.
    place.set_box_aspect(None)
    bar: dict[str, Any] = {}
    if ax is None:
        bar = {"aspect": down / 0.13, "panchor": False}
    colours = figure.colorbar(image, ax=place, label=map_label(weights.shape), **bar)
    finish(figure, title, ax)
    create_ticks(place, colours.ax)
    return figure, place, image


def end_of_scale(values: Sequence[np.ndarray], largest: float | None) -> float:
    """Return the value with the darkest colour.

    It is ``largest``, or the largest of all ``values`` if None; 1 if all are 0.
    """
    for matrix in values:
        if not isinstance(matrix, np.ndarray) or matrix.ndim != 2:
            raise InputError(
                got=f"a {type(matrix).__name__} of shape {list(matrix.shape)}",
                expected="a NumPy array [query, key] for each head",
                fix=(
                    "Choose a text and a head, and convert a tensor by "
                    ".detach().float().cpu().numpy()."
                ),
            )
    if len(values) == 0 or any(matrix.size == 0 for matrix in values):
        raise InputError(
            got=f"values of shapes {[list(matrix.shape) for matrix in values]}",
            expected="at least one row and column",
            fix="Pass weights.",
        )
    low = float(np.min([np.min(matrix) for matrix in values]))
    high = float(np.max([np.max(matrix) for matrix in values]))
    if not (low >= 0 and np.isfinite(high)):  # also refuses NaN
        raise InputError(
            got=f"values from {low:g} to {high:g}",
            expected="finite values from 0 on",
            fix=(
                "Pass attention weights (after the softmax), not scores; draw differences with "
                "heat_maps.panel."
            ),
        )
    if largest is not None and not 0 < largest >= high - 1e-2:
        raise InputError(
            got=f"a value of {high:g} with largest = {largest}",
            expected="no value above largest",
            fix="Pass the largest of all, or None.",
        )
    return largest or high or 1.0


def numbered(names: Names, count: int, kind: str) -> list[str]:
    """Return ``names``; if there are none, "``kind`` 1" and so on."""
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
    for axis_kind, names, size in (
        ("keys", keys, values.shape[1]),
        ("queries", queries, values.shape[0]),
    ):
        if len(names) not in (0, size):
            raise InputError(
                got=f"{len(names)} names for {size} {axis_kind}",
                expected="one each, or none",
                fix="Name each or none.",
            )
    y_names = _tick_labels(queries)
    x_names = _tick_labels(keys)
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
    """Return the size of blocks that divide ``size`` cells into at most ``most``."""
    return -(-size // most)


def map_label(shape: Sequence[int], most: int = MOST_CELLS) -> str:
    """Return the label of a map's colour bar."""
    rows, columns = (_block(count, most) for count in shape)
    if max(rows, columns) > 1:
        return f"attention weight,\nlargest of each {rows} × {columns}"
    return "attention weight"


def _tick_labels(names: Names) -> list[str]:
    """Return names with invisible characters escaped, and long ones cut; none if too many."""
    if len(names) > MOST_NAMES:
        return []
    return [_cut(shown(name)) for name in names]


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


def names_room(names: Names) -> float:
    """Return the inches that names need next to a map, beyond those of single letters."""
    labels = _tick_labels(names)
    if not labels:
        return 0.1
    return 0.075 * max(0, max(map(len, labels)) - 2)


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
    """Draw a panel for each head, a row of panels for each layer, all on one scale.

    Args:
        keys: Tokens at the keys; numbers if empty.
        queries: Tokens at the queries; None takes ``keys`` if there are as many queries as keys.
        panel_names: Names of the panels, row by row, instead of the layers' and heads' names.
        largest: Weight with the darkest colour; None: the largest of all.
        values: Write the weights into the cells, in panels of up to 22 x 22.
        axis_names: Names of the columns' axis and of the rows' axis.
    """
    layers = list(weights)
    rows = len(layers)
    columns = max((len(layer) for layer in layers), default=0)
    _check_grid(layers, columns)
    titles = _panel_titles(layer_names, head_names, panel_names, rows, columns)
    limits = (0.0, end_of_scale(list(itertools.chain.from_iterable(layers)), largest))
    shape = layers[0].shape[1:]
    if queries is None:
        queries = keys if len(keys) == shape[0] else ()
    labels = values and max(shape) <= MOST_TEXTS
    down = _inches(shape[0], queries, labels, 0.7)
    across = _inches(shape[1], keys, labels, 1.6)
    width = across + 0.4 + names_room(queries)
    height = down + 0.5 + names_room(keys)
    grid, axes = new_figure(
        columns * width + 1.2, rows * height + 0.8, rows, columns, figure=figure
    )
    for place, ax in enumerate(axes):
        layer, head = divmod(place, columns)
        if head >= len(layers[layer]):
            ax.set_axis_off()
            continue
        # Only the outer panels name their axes.
        x_name = axis_names[0] if layer == rows - 1 else ""
        y_name = axis_names[1] if head == 0 else ""
        image = draw_map(
            ax,
            layers[layer][head],
            keys,
            queries,
            limits,
            (x_name, y_name),
            labels=labels,
            most=_PANEL_CELLS,
        )
        ax.set_title(titles[place][:1].upper() + titles[place][1:], loc="center")
    grid.colorbar(image, ax=axes, label=map_label(shape, _PANEL_CELLS), fraction=0.03, aspect=30)
    finish(grid, title)
    return grid


def _check_grid(layers: Sequence[np.ndarray], columns: int) -> None:
    """Refuse layers without heads, of different shapes, or of too many panels."""
    rows = len(layers)
    shapes = {layer.shape[1:] for layer in layers}
    if columns == 0:
        raise InputError(
            got=f"{rows} layers of up to {columns} heads",
            expected="at least one head",
            fix="Pass its weights.",
        )
    if len(shapes) != 1:
        raise InputError(
            got=f"maps of shapes {sorted(shapes)}",
            expected="one shape",
            fix="Take all layers from the same text.",
        )
    if rows * columns > MOST_PANELS:
        raise InputError(
            got=f"{rows} layers of up to {columns} heads",
            expected=f"at most {MOST_PANELS} panels",
            fix="Choose layers and heads.",
        )


def _panel_titles(
    layer_names: Names, head_names: Names, panel_names: Names, rows: int, columns: int
) -> list[str]:
    """Return the titles of a grid's panels, row by row."""
    layers = numbered(layer_names, rows, "Layer")
    heads = numbered(head_names, columns, "head")
    if panel_names:
        return numbered(panel_names, rows * columns, "")
    pairs = itertools.product(layers, heads)
    return [", ".join(filter(None, pair)) for pair in pairs]


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
    """Draw a decoder's cross-attention: a panel for each head, a row for each target token.

    The source runs from left to right. Colours are on a scale from 0 to 1. Several layers get a row
    of panels each.
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
    """Draw two heads of one text, and below each its excess over the other.

    The excess is ``max(first - second, 0)``, and the reverse.

    All four panels have one scale. The difference takes two panels, because no colours distinguish
    its signs in a grey print. The title ends with the mean :func:`divergence
    <glassformer.observe.attention_measures.divergence>` of the two heads' rows.

    ``names`` are the heads' names; :func:`attention_grid` describes the other arguments.
    """
    if first.shape != second.shape:
        raise InputError(
            got=f"weights of shapes {list(first.shape)} and {list(second.shape)}",
            expected="the same shape",
            fix="Take both from one text and the same queries.",
        )
    largest = end_of_scale([first, second], None)
    distances = divergence(first, second)
    distances = distances[np.isfinite(distances)]
    if distances.size:
        summary = f"divergence {distances.mean():.2f} of at most 0.69 nats"
    else:
        summary = "no divergence"
    if title:
        summary = f"{title}: {summary}"
    first_name, second_name = names
    return attention_grid(
        [np.stack([first, second]), np.maximum(np.stack([first - second, second - first]), 0)],
        keys,
        queries,
        summary,
        panel_names=(
            first_name,
            second_name,
            f"{first_name}, more than {second_name}",
            f"{second_name}, more than {first_name}",
        ),
        largest=largest,
        values=True,
    )


def _inches(count: int, names: Names, labels: bool, least: float) -> float:
    """Return the length of a panel's side."""
    if labels:
        return max(least, count * LABELLED_CELL)
    if 0 < len(names) <= MOST_NAMES:
        return max(least, count * NAMED_CELL)
    return side(count, CELL, least, 2.8)
