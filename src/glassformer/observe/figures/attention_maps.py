"""Attention weights as heat maps: one head of up to thousands of tokens, and what grids of heads are made of.

A row of a map is a query. Maps of thousands of tokens are drawn as an overview, in which a cell shows the largest of
the weights that it stands for, so that no single strong one is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from glassformer.errors import require
from glassformer.observe.figures.coloured_words import SEQUENTIAL, shown
from glassformer.observe.figures.heat_maps import MOST_NAMES, MOST_TEXTS, Names, finish, panel, write_values
from glassformer.observe.figures.style import in_style, new_figure

MOST_CELLS = 512
"""More queries or keys than these are drawn as an overview."""

_LONGEST_NAME = 16

CELL, LABELLED_CELL = 0.22, 0.36
_SMALLEST, _LARGEST = 0.75, 8.0
"""Inches: of a cell, of one with its weight in it, and of a whole map."""


def overview(
    values: Float[np.ndarray, "row column"], most: int = MOST_CELLS
) -> Float[np.ndarray, "block_row block_column"]:
    """At most ``most`` x ``most`` blocks of equal size, each with its largest value: pooling by maximum.

    Matrices that are small enough stay as they are. The last blocks may be cut off.

    Raises:
        InputError: ``most`` below 1.
    """
    require(most >= 1, f"most = {most}", "at least 1", "The default is 512.")
    for axis in (0, 1):
        if (size := _block(values.shape[axis], most)) > 1:
            values = np.maximum.reduceat(values, np.arange(0, values.shape[axis], size), axis=axis)
    return values


@in_style
def attention_map(
    weights: Float[np.ndarray, "query key"],
    keys: Names = (),
    queries: Names | None = None,
    title: str = "",
    *,
    ax: Axes | None = None,
    largest: float | None = None,
    root: bool = False,
    axis_names: tuple[str, str] = ("key", "query"),
    colormap: str = SEQUENTIAL,
) -> Figure:
    """One head as a heat map, a row for each query.

    Weights stand in the cells of maps of up to 22 x 22, names beside those of up to 40; longer ones have numbers on
    their axes, from 0, and from 513 tokens on they are an :func:`overview`.

    Args:
        weights: Attention weights.
        keys: The tokens that are read; none for numbers.
        queries: The tokens that read; those of ``keys`` when None, if there are as many queries as keys.
        title: Above the map.
        ax: Where to draw; a figure of its own when None.
        largest: The weight with the darkest colour; the largest of ``weights`` when None.
        root: Colours by the square root of the weight, so that small weights of long texts are seen.
        axis_names: What the columns are, and what the rows are.
        colormap: A name that matplotlib knows.

    Returns:
        The figure that was drawn in.

    Raises:
        InputError: No weights, weights below 0, above ``largest`` or not finite, or names of another number.
    """
    reached = largest_of([weights], largest)
    queries = (keys if len(keys) == len(weights) else ()) if queries is None else queries
    if ax is not None:
        return _into(ax, weights, keys, queries, reached, root, axis_names, colormap, title)
    cell = LABELLED_CELL if max(weights.shape) <= MOST_TEXTS else CELL
    down, across = (float(np.clip(cell * count, _SMALLEST, _LARGEST)) for count in weights.shape)
    made, (place,) = new_figure(max(across + 1.9 + names_room(queries), 3.2), down + 1.2 + names_room(keys))
    image = draw_map(place, weights, keys, queries, (0.0, reached), root, axis_names, colormap=colormap)
    # The figure's size makes near squares of the cells, and the colour bar is as high as they are.
    place.set_box_aspect(None)
    made.colorbar(image, ax=place, label=map_label(weights), aspect=down / 0.13, panchor=False)
    finish(made, title)
    return made


def largest_of(maps: Sequence[np.ndarray], largest: float | None) -> float:
    """The weight at the end of the colours: ``largest``, or the largest of all ``maps``; 1 if all are 0.

    Raises:
        InputError: Weights that are missing, below 0, not finite, or above ``largest``.
    """
    empty = [list(each.shape) for each in maps if each.size == 0]
    require(not empty and len(maps) > 0, f"weights of shapes {empty}", "at least one query and key", "Pass weights.")
    low, high = (float(extreme([extreme(each) for each in maps])) for extreme in (np.min, np.max))
    require(
        low >= 0 and bool(np.isfinite(high)),
        f"weights from {low:g} to {high:g}" if low < 0 else "weights that are NaN or infinite",
        "finite weights from 0 on",
        "Pass weights, which come after the softmax, and not scores.",
    )
    require(
        largest is None or 0 < largest >= high - 1e-2,
        f"a weight of {high:g} with largest = {largest}",
        "none beyond the end of the scale",
        "Pass the largest of all, or None.",
    )
    return largest or high or 1.0


def numbered(names: Names, count: int, kind: str) -> list[str]:
    """``names``, or "``kind`` 1" and so on if there are none.

    Raises:
        InputError: Another number of names.
    """
    require(len(names) in (0, count), f"{len(names)} names", f"{count}, or none", "Name each of them.")
    return list(names) or [f"{kind} {place + 1}".strip() for place in range(count)]


def draw_map(
    ax: Axes,
    values: Float[np.ndarray, "query key"],
    keys: Names,
    queries: Names,
    limits: tuple[float, float],
    root: bool,
    axis_names: tuple[str, str],
    *,
    labels: bool = True,
    most: int = MOST_CELLS,
    colormap: str = SEQUENTIAL,
) -> AxesImage:
    """Draw a map, or its overview, with names or numbers on its axes."""
    for what, names, size in (("keys", keys, values.shape[1]), ("queries", queries, values.shape[0])):
        require(len(names) in (0, size), f"{len(names)} names for {size} {what}", "one each, or none", "Name them all.")
    y_names, x_names = (_written(names) if len(names) <= MOST_NAMES else () for names in (queries, keys))
    cells = overview(values, most)
    # Cells whose colours a root has changed would need other colours for their letters.
    labels = labels and not root
    image = panel(
        ax, cells, "", *axis_names, labels=labels, limits=limits, colormap=colormap, x_names=x_names, y_names=y_names
    )
    if root:
        image.set_norm(PowerNorm(0.5, *limits))
    rows, columns = (_block(count, most) for count in values.shape)
    image.set_extent((-0.5, columns * cells.shape[1] - 0.5, rows * cells.shape[0] - 0.5, -0.5))
    # The last blocks may reach beyond the last token.
    ax.set(xlim=(-0.5, values.shape[1] - 0.5), ylim=(values.shape[0] - 0.5, -0.5))
    ax.set_box_aspect(float(np.clip(values.shape[0] / values.shape[1], 1 / 12, 12)))
    for axis, names in ((ax.xaxis, x_names), (ax.yaxis, y_names)):
        if not names:
            axis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
            axis.set_tick_params(length=2, labelsize=8)
    return image


def _into(
    ax: Axes,
    weights: Float[np.ndarray, "query key"],
    keys: Names,
    queries: Names,
    reached: float,
    root: bool,
    axis_names: tuple[str, str],
    colormap: str,
    title: str,
) -> Figure:
    """Draw a map into axes that are there, with its values if their cells turn out to have room."""
    figure = cast(Figure, ax.get_figure(root=True))
    limits = 0.0, reached
    image = draw_map(ax, weights, keys, queries, limits, root, axis_names, labels=False, colormap=colormap)
    # The room is as it is, and a map fills it.
    ax.set_box_aspect(None)
    ax.set_title(title, loc="left")
    figure.colorbar(image, ax=ax, label=map_label(weights))
    figure.draw_without_rendering()
    box = ax.get_window_extent()
    cell = min(box.width / weights.shape[1], 1.5 * box.height / weights.shape[0]) / figure.dpi
    if cell >= 0.9 * LABELLED_CELL and max(weights.shape) <= MOST_TEXTS and not root:
        write_values(ax, weights, image)
    return figure


def empty_figure(
    figure: Figure | None, width: float | int, height: float | int, rows: int, columns: int
) -> tuple[Figure, list[Axes]]:
    """``figure`` in that size, or a new one, with its axes."""
    if figure is None:
        return new_figure(width, height, rows, columns)
    require(len(figure.axes) == 0, f"a figure with {len(figure.axes)} axes", "an empty one", "Pass plt.figure(), say.")
    figure.set_size_inches(width, height)
    figure.set_layout_engine("constrained")
    return figure, list(np.ravel(figure.subplots(rows, columns, squeeze=False)))


def _block(size: int, most: int) -> int:
    """How many of ``size`` cells make one of at most ``most``."""
    return -(-size // most)


def map_label(weights: np.ndarray, most: int = MOST_CELLS) -> str:
    """What a colour stands for."""
    rows, columns = (_block(count, most) for count in weights.shape)
    return "attention weight" + (f",\nlargest of each {rows} × {columns}" if max(rows, columns) > 1 else "")


def _written(names: Names) -> list[str]:
    """Names as tick labels: what leaves no mark spelled out, long ones cut, and no formula between dollar signs."""
    cut = [name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…" for name in map(shown, names)]
    return [name.replace("$", r"\$") for name in cut]


def names_room(names: Names) -> float:
    """Inches that names need beside a map, beyond those of single letters."""
    if not 0 < len(names) <= MOST_NAMES:
        return 0.1
    return 0.075 * max(0, max(map(len, _written(names))) - 2)
