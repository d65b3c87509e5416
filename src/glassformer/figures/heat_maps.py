"""Matrices as heat maps: panels whose cells may carry their values, their sizes, and titles around
them.
"""

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
"""For values from 0 on."""

DIVERGING = "RdBu_r"
"""For values of both signs: ColorBrewer's red and blue, distinguishable for colour-blind readers.
"""

MOST_TEXTS = 22
"""The most rows or columns of a panel whose cells carry their values."""

MOST_NAMES = 40
"""The most rows or columns that are named."""

CELL = 0.22
NAMED_CELL = 0.17
LABELLED_CELL = 0.36
TABLE_CELL = 0.42
"""Inches: of a cell in large maps, with a name in a grid, with a weight in it, and with any number
in it.
"""


def side(count: int, cell: float, least: float = 0.75, most: float = 8.0) -> float:
    """Inches of ``count`` cells, within limits."""
    return float(np.clip(cell * count, least, most))


def box_aspect(shape: Sequence[int]) -> float:
    """Height by width for square cells, but for strips of more than twelve, which would be too thin
    to see.
    """
    return float(np.clip(shape[0] / shape[1], 1 / 12, 12))


def rescaled(values: ArrayLike) -> Float[np.ndarray, "row column"]:
    """``(values - min) / (max - min)``: from 0 to 1; zeros where all values are the same."""
    array = _finite_matrix(values)
    largest = float(np.abs(array).max())
    # Without the division, the difference of the two could overflow.
    array = array / largest if largest > 0 else array
    array = array - array.min()
    return array / array.max() if array.max() > 0 else array


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

    Axes of a figure that is not from :func:`~glassformer.figures.style.new_figure` are emptied
    first.

    Args:
        values: ``[row, column]``; NaN, allowed with ``limits`` only, is drawn grey.
        labels: Write the values, as they are, into the cells of panels of up to 22 rows and
            columns.
        limits: The values with the first and the last colour. None rescales the values to [0, 1]
            before.
        x_names: Names of the columns; omitted where there are more than 40. Likewise ``y_names`` of
            the rows.
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
        ax.set_xticks(range(len(x_names)), x_names, rotation=90 if crowded else 0, fontsize=8)
    if 0 < len(y_names) <= MOST_NAMES:
        ax.set_yticks(range(len(y_names)), y_names, fontsize=8)
    ax.tick_params(length=0, pad=2)
    if labels and max(array.shape) <= MOST_TEXTS:
        write_values(ax, array, image)
    return image


@in_style
def finish(figure: Figure, title: str, ax: Axes | None = None) -> None:
    """Put a bold title above the figure, wrapped to its width, and fix the layout; or a title above
    a given ``ax``.
    """
    if ax is not None:
        ax.set_title(title, loc="left")
        return
    if title:
        across = max(12, int(figure.get_figwidth() * 11))
        figure.suptitle(textwrap.fill(title, across), fontsize=11, fontweight="bold")
    # Square cells move axes and labels, for which the layout would make other space, without end.
    # So the layout is computed without them and kept; panels then only shrink within their space.
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
    if array.ndim != 2 or not array.size > 0:
        raise InputError(
            got=f"values of shape {list(array.shape)}",
            expected="a matrix, [row, column]",
            fix="Pass a list of rows.",
        )
    fits = ~np.isinf(array) if allow_nan else np.isfinite(array)
    if not bool(fits.all()):
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
    """Write each value of a panel into its cell in black or white, whichever shows on the colour.

    ``image`` is the result of :func:`panel` for as many cells. NaN is left out. With ``decimals``
    all numbers have as many; otherwise see :func:`short`, for which values are small compared with
    ``largest``, the largest when None.
    """
    colours = np.asarray(image.to_rgba(np.ma.asarray(image.get_array())))[..., :3]
    if largest is None:
        largest = float(np.nanmax(np.abs(array), initial=0.0))
    else:
        largest = largest
    for (row, column), value in np.ndenumerate(array):
        if np.isfinite(value):
            if decimals is None:
                text = short(float(value), largest)
            else:
                text = f"{value:.{decimals}f}"
            text = text.lstrip("-") if float(text) == 0 else text
            size = 7 if decimals is None else 8
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
    """A number in at most seven characters; 0 if it is below 5e-4 of ``largest``, which no colour
    would show.
    """
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
    return text.rstrip("0").rstrip(".") if decimals else text
