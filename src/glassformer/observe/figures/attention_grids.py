"""Several heads side by side: a grid or a mosaic of all, cross-attention, two heads and their difference.

Layers and heads are counted from 1 unless they are given names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, cast

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from glassformer.errors import require
from glassformer.observe.attention_measures import divergence
from glassformer.observe.figures.attention_maps import (
    CELL,
    LABELLED_CELL,
    MOST_CELLS,
    draw_map,
    empty_figure,
    largest_of,
    map_label,
    names_room,
    numbered,
    overview,
)
from glassformer.observe.figures.coloured_words import SEQUENTIAL
from glassformer.observe.figures.heat_maps import MOST_NAMES, MOST_TEXTS, Names, finish, panel
from glassformer.observe.figures.style import in_style, new_figure

Layers: TypeAlias = Float[np.ndarray, "layer head query key"] | Sequence[Float[np.ndarray, "_ query key"]]
"""The weights of several layers, whose numbers of heads may differ."""

MOST_PANELS = 64
"""A grid of more would be no picture any more; a mosaic takes any number."""

_LOWEST, _NARROWEST, _BARE, _NAMED_CELL = 0.7, 1.6, 2.8, 0.17
"""Inches: of a panel at least, of one without names at most, and of a cell with a name."""

_PANEL_CELLS = 250
"""More cells than these along the side of a panel would be smaller than dots on a screen."""

_MOSAIC_CELLS = 1600


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
    root: bool = False,
    values: bool = False,
    axis_names: tuple[str, str] = ("key", "query"),
    figure: Figure | None = None,
) -> Figure:
    """A panel for each head, a row of them for each layer, all on one scale.

    Args:
        weights: By layer, those of every head.
        keys: The tokens that are read; none for numbers.
        queries: The tokens that read; those of ``keys`` when None, if there are as many queries as keys.
        title: Above the figure.
        layer_names: One for each layer; "Layer 1", ... when none are given, "" for no name.
        head_names: One for each head; "head 1", ... when none are given.
        panel_names: One for each panel, row by row, instead of those made of its layer's and its head's.
        largest: The weight with the darkest colour; the largest of all when None.
        root: Colours by the square root of the weight.
        values: Write the weights into the cells, in panels of up to 22 x 22.
        axis_names: What the columns are, and what the rows are.
        figure: An empty figure to draw in, such as one of pyplot's; a new one when None.

    Raises:
        InputError: No layers or heads, more than 64 panels, weights below 0, above ``largest`` or not finite, or names
            of another number.
    """
    layers, rows, columns = _counted(weights)
    require(
        rows * columns <= MOST_PANELS,
        f"{rows} layers of up to {columns} heads",
        f"at most {MOST_PANELS} panels",
        "Choose layers and heads, or draw an attention_mosaic.",
    )
    over, beside = numbered(layer_names, rows, "Layer"), numbered(head_names, columns, "head")
    joined = [", ".join(filter(None, (layer, head))) for layer in over for head in beside]
    titles = numbered(panel_names, rows * columns, "") if panel_names else joined
    reached, shape = largest_of([head for layer in layers for head in layer], largest), layers[0].shape[1:]
    queries = (keys if len(keys) == shape[0] else ()) if queries is None else queries
    labels = values and max(shape) <= MOST_TEXTS and not root
    down = max(_LOWEST, _length(shape[0], queries, labels))
    across = max(_NARROWEST, _length(shape[1], keys, labels))
    width, height = across + 0.4 + names_room(queries), down + 0.5 + names_room(keys)
    made, axes = empty_figure(figure, columns * width + 1.2, rows * height + 0.8, rows, columns)
    for place, ax in enumerate(axes):
        layer, head = divmod(place, columns)
        if head >= len(layers[layer]):
            ax.set_axis_off()
            continue
        named = (axis_names[0] if layer == rows - 1 else "", axis_names[1] if head == 0 else "")
        weighed, limits = layers[layer][head], (0.0, reached)
        image = draw_map(ax, weighed, keys, queries, limits, root, named, labels=labels, most=_PANEL_CELLS)
        ax.set_title(titles[place][:1].upper() + titles[place][1:], loc="center")
    made.colorbar(image, ax=axes, label=map_label(layers[0][0], _PANEL_CELLS), fraction=0.03, aspect=30)
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
    largest: float | None = 1.0,
    root: bool = False,
    figure: Figure | None = None,
) -> Figure:
    """Where a decoder looks: a panel for each head, what it has written downwards, the source from left to right.

    Args:
        weights: Of one layer, or of several, which get a row each.
        source: The encoder's tokens.
        target: The decoder's tokens.
        title: Above the figure.
        layer_names: As for :func:`attention_grid`, and so are the other arguments.

    Raises:
        InputError: As for :func:`attention_grid`.
    """
    one_layer = isinstance(weights, np.ndarray) and weights.ndim == 3
    return attention_grid(
        cast(np.ndarray, weights)[None] if one_layer else weights,
        source,
        target,
        title,
        layer_names=layer_names or (("",) if one_layer else ()),
        head_names=head_names,
        largest=largest,
        root=root,
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
    root: bool = False,
    figure: Figure | None = None,
) -> Figure:
    """Two heads of one text, and below each what it reads more than the other: ``max(first - second, 0)`` and reverse.

    All four panels have one scale. The difference is in two panels because no two colours for its two signs can be
    told apart in a print in grey. The title ends with the mean :func:`divergence
    <glassformer.observe.attention_measures.divergence>` of the two heads' rows.

    Args:
        first: Weights of one head.
        second: Of the other.
        keys: As for :func:`attention_grid`, and so are the other arguments that are not named here.
        queries: Likewise.
        title: Above the figure.
        names: What to call the two.
        root: Colours by the square root of weights and differences.
        figure: An empty figure to draw in; a new one when None.

    Raises:
        InputError: As for :func:`attention_grid`, or heads of different shapes.
    """
    require(
        first.shape == second.shape,
        f"weights of shapes {list(first.shape)} and {list(second.shape)}",
        "the same shape",
        "Take both from one text and the same queries.",
    )
    reached = largest_of([first, second], None)
    apart = divergence(first, second)
    apart = apart[np.isfinite(apart)]
    told = f"divergence {apart.mean():.2f} of at most 0.69 nats" if apart.size else "no divergence"
    return attention_grid(
        [np.stack([first, second]), np.maximum(np.stack([first - second, second - first]), 0)],
        keys,
        queries,
        f"{title}: {told}" if title else told,
        panel_names=(*names, *(f"{name}, more than {other}" for name, other in (names, names[::-1]))),
        largest=reached,
        root=root,
        values=True,
        figure=figure,
    )


@in_style
def attention_mosaic(
    weights: Layers,
    title: str = "",
    *,
    layer_names: Names = (),
    head_names: Names = (),
    largest: float | None = None,
    root: bool = True,
    ax: Axes | None = None,
) -> Figure:
    """All heads of a model at a glance: one image whose tiles are maps, a row of tiles for each layer.

    It has about 1,600 cells along a side at most, however many heads and tokens there are.

    Args:
        weights: By layer, those of every head, of one text.
        title: Above the figure.
        layer_names: As for :func:`attention_grid`, and so are the other arguments.
        ax: Where to draw; a figure of its own when None.

    Raises:
        InputError: As for :func:`attention_grid`, but with any number of heads.
    """
    layers, rows, columns = _counted(weights)
    down, across = numbered(layer_names, rows, ""), numbered(head_names, columns, "")
    reached = largest_of([head for layer in layers for head in layer], largest)
    most = int(np.clip(_MOSAIC_CELLS // max(rows, columns), 8, MOST_CELLS))
    tiles = {
        (row, column): overview(head, most) for row, layer in enumerate(layers) for column, head in enumerate(layer)
    }
    # Cells of short texts are repeated, so that the gaps between tiles stay thin.
    repeats = max(1, min(48, most) // max(tiles[0, 0].shape))
    high, wide = (repeats * count for count in tiles[0, 0].shape)
    canvas = np.full((rows * (high + 1) - 1, columns * (wide + 1) - 1), np.nan)
    for (row, column), tile in tiles.items():
        top, left = row * (high + 1), column * (wide + 1)
        canvas[top : top + high, left : left + wide] = np.kron(tile, np.ones((repeats, repeats)))
    scale = min(1.0, 11.0 / columns, 9.0 / rows)
    if ax is None:
        figure, (place,) = new_figure(max(4.0, columns * scale + 2.2), rows * scale * high / wide + 1.1)
    else:
        figure, place = cast(Figure, ax.get_figure(root=True)), ax
    image = panel(place, canvas, "", "head", "layer", limits=(0.0, reached), colormap=SEQUENTIAL)
    if root:
        image.set_norm(PowerNorm(0.5, 0.0, reached))
    place.set_xticks(*_few([column * (wide + 1) + (wide - 1) / 2 for column in range(columns)], across), fontsize=8)
    place.set_yticks(*_few([row * (high + 1) + (high - 1) / 2 for row in range(rows)], down), fontsize=8)
    figure.colorbar(image, ax=place, label=map_label(layers[0][0], most), fraction=0.04)
    if ax is None:
        finish(figure, title)
    else:
        place.set_title(title, loc="left")
    return figure


def _counted(weights: Layers) -> tuple[list[np.ndarray], int, int]:
    """The layers, how many they are, and the most heads of one."""
    layers = list(weights)
    columns = max((len(layer) for layer in layers), default=0)
    shapes = {layer.shape[1:] for layer in layers}
    require(columns > 0, f"{len(layers)} layers of up to {columns} heads", "at least one head", "Pass its weights.")
    require(len(shapes) == 1, f"maps of shapes {sorted(shapes)}", "one shape", "Take all layers from the same text.")
    return layers, len(layers), columns


def _length(count: int, names: Names, labels: bool) -> float:
    """Inches of a panel's side."""
    if labels or 0 < len(names) <= MOST_NAMES:
        return count * (LABELLED_CELL if labels else _NAMED_CELL)
    return min(CELL * count, _BARE)


def _few(places: list[float], names: list[str]) -> tuple[list[float], list[str]]:
    """So many of the ticks that their numbers stand apart."""
    step = -(-len(places) // 24)
    return places[::step], names[::step]
