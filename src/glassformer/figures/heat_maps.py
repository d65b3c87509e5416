"""Matrices as heat maps: panels, with values in their cells or without, and titles around them."""

import textwrap
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import ArrayLike

from glassformer.errors import InputError
from glassformer.figures.style import colour_map, in_style, letter_colour, restyle_axes

Names = Sequence[str]

SEQUENTIAL = "Blues"
"""Colour map for values from 0 on."""

DIVERGING = "RdBu_r"
"""Colour map for both signs: ColorBrewer's red and blue, which colour-blind readers distinguish."""

MOST_TEXTS = 22
"""Maximum rows or columns of a panel with values in its cells."""

MOST_NAMES = 40
"""Maximum number of rows or columns with names."""

CELL = 0.22
NAMED_CELL = 0.17
LABELLED_CELL = 0.36
TABLE_CELL = 0.42
"""Sizes of cells in inches: in large maps, with a name, with a weight, with any number."""


def side(count: int, cell: float, least: float = 0.75, most: float = 8.0) -> float:
    """Return the inches of ``count`` cells, within limits."""
    return float(np.clip(cell * count, least, most))


def box_aspect(shape: Sequence[int]) -> float:
    """Return height by width for square cells; strips are not thinner than 1 : 12."""
    return float(np.clip(shape[0] / shape[1], 1 / 12, 12))


def rescaled(values: ArrayLike) -> Float[np.ndarray, "row column"]:
    """Return ``(values - min) / (max - min)``, in [0, 1]; zeros if all values are the same."""
    array = _finite_matrix(values)
    largest = float(np.abs(array).max())
    if largest > 0:
        array = array / largest  # otherwise the difference of maximum and minimum could overflow
    array = array - array.min()
    if array.max() > 0:
        array = array / array.max()
    return array


@in_style
def panel(
    ax: Axes,
    values: ArrayLike,
    title: str = "",
    x_label: str | None = None,
    y_label: str | None = None,
    *,
    labels: bool = False,
    limits: tuple[float | int, float | int] | None = None,
    colormap: str = "Reds",
    x_names: Names = (),
    y_names: Names = (),
) -> AxesImage:
    """Draw a matrix as a heat map on ``ax``, and return its image, for a colour bar.

    Axes are emptied first unless they are from :func:`~glassformer.figures.style.new_figure`.

    Args:
        values: ``[row, column]``; NaN, allowed with ``limits`` only, is drawn grey.
        labels: Write the values, not rescaled, into the cells of panels of up to 22 x 22.
        limits: Values with the first and the last colour. None rescales the values to [0, 1].
        x_names: Names of the columns; omitted if there are more than 40.
        y_names: Names of the rows, likewise.
    """
    array = _finite_matrix(values, allow_nan=limits is not None)
    for name, names, size in (
        ("x_names", x_names, array.shape[1]),
        ("y_names", y_names, array.shape[0]),
    ):
        if len(names) not in (0, size):
            raise InputError(
                got=f"{len(names)} {name} for a matrix of shape {list(array.shape)}",
                expected=f"{size} of them, or none",
                fix="Pass one name each.",
            )
    low, high = limits or (0.0, 1.0)
    shown = np.ma.masked_invalid(array if limits else rescaled(array))
    restyle_axes(ax)
    colours = colour_map(colormap)
    image = ax.imshow(
        shown, cmap=colours, vmin=low, vmax=high, aspect="auto", interpolation="nearest"
    )
    ax.set_box_aspect(box_aspect(array.shape))
    image.set_cmap(image.get_cmap().with_extremes(bad="#c8c8c8"))
    ax.set_anchor("N")
    ax.grid(False)
    ax.spines[:].set(visible=True, linewidth=0.6, color="#808080")
    ax.set_title(title, loc="center")
    ax.set(xlabel=x_label or "", ylabel=y_label or "", xticks=[], yticks=[])
    if 0 < len(x_names) <= MOST_NAMES:
        crowded = len(x_names) > 3 and max(map(len, x_names)) > 2
        rotation = 90 if crowded else 0
        ax.set_xticks(range(len(x_names)), x_names, rotation=rotation, fontsize=8)
    if 0 < len(y_names) <= MOST_NAMES:
        ax.set_yticks(range(len(y_names)), y_names, fontsize=8)
    ax.tick_params(length=0, pad=2)
    if labels and max(array.shape) <= MOST_TEXTS:
        write_values(ax, array, image)
    return image


@in_style
def finish(figure: Figure, title: str, ax: Axes | None = None) -> None:
    """Put a bold title above the figure and fix its layout; or put a title above ``ax``."""
    if ax is not None:
        ax.set_title(title, loc="left")
        return
    if title:
        across = max(12, int(figure.get_figwidth() * 11))
        figure.suptitle(textwrap.fill(title, across), fontsize=11, fontweight="bold")
    # Square cells move axes and labels, and the layout would change their space without end.
    # So the layout is computed without square cells and fixed; panels then shrink within it.
    panels = {ax: ax.get_box_aspect() for ax in figure.axes if ax.images}
    for ax in panels:
        ax.set_box_aspect(None)
    layout = figure.get_layout_engine()
    assert layout is not None
    for _ in range(2):
        layout.execute(figure)
    figure.set_layout_engine(None)  # with "none", savefig would draw everything twice
    for ax, shape in panels.items():
        ax.set_box_aspect(shape)


@in_style
def name_row(ax: Axes, name: str) -> None:
    """Write ``name`` bold and upright to the left of ``ax`` and its label."""
    place = ax.annotate(
        name, (0, 0.5), (-6, 0), xycoords=ax.yaxis.label, textcoords="offset points"
    )
    place.set(rotation=90, ha="right", va="center", weight="bold")


def _finite_matrix(values: ArrayLike, allow_nan: bool = False) -> Float[np.ndarray, "row column"]:
    array = np.asarray(values, dtype=float)
    if array.ndim != 2 or array.size == 0:
        raise InputError(
            got=f"values of shape {list(array.shape)}",
            expected="a matrix, [row, column]",
            fix="Pass a list of rows.",
        )
    refused = np.isinf(array) if allow_nan else ~np.isfinite(array)
    if refused.any():
        raise InputError(
            got="values with NaN or infinity",
            expected="finite numbers",
            fix="Draw a head whose results are finite.",
        )
    return array


@in_style
def write_values(
    ax: Axes,
    array: Float[np.ndarray, "row column"],
    image: AxesImage,
    largest: float | int | None = None,
    decimals: int | None = None,
) -> None:
    """Write each value of a panel into its cell, in black or white for the higher contrast.

    ``image`` is the result of :func:`panel` for as many cells. NaN is left out. Numbers have
    ``decimals`` digits after the point; if None, :func:`short` writes them relative to ``largest``
    (None: the largest).
    """
    colours = np.asarray(image.to_rgba(np.ma.asarray(image.get_array())))[..., :3]
    if largest is None:
        largest = float(np.nanmax(np.abs(array), initial=0.0))
    for (row, column), value in np.ndenumerate(array):
        if not np.isfinite(value):
            continue
        if decimals is None:
            text = short(float(value), largest)
            size = 7
        else:
            text = f"{value:.{decimals}f}"
            size = 8
        if float(text) == 0:
            text = text.lstrip("-")
        ax.text(
            column,
            row,
            text,
            ha="center",
            va="center",
            color=letter_colour(colours[row, column]),
            fontsize=size,
        )


def short(value: float | int, largest: float | int) -> str:
    """Return a number in at most seven characters; 0 below 5e-4 of ``largest``."""
    size = abs(value)
    if size < 5e-4 * largest or size == 0:
        return "0"
    if not 0.01 <= size < 9999.5:
        digits, power = f"{value:.0e}".split("e")
        return f"{digits}e{int(power)}"
    if size < 9.995:
        decimals = 2
    elif size < 99.95:
        decimals = 1
    else:
        decimals = 0
    text = f"{value:.{decimals}f}"
    if decimals:
        return text.rstrip("0").rstrip(".")
    return text
