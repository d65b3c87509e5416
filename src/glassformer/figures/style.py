"""The style of all figures, and how they are saved.

Series differ in colour-blind-safe colour, dashes and marker.

Figures are created, laid out, drawn and saved with matplotlib's defaults and the few settings of
this module. The caller's settings have no effect, neither before a figure is created nor before it
is drawn.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import matplotlib
import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backend_bases import RendererBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cbook import GrouperView
from matplotlib.colorbar import Colorbar
from matplotlib.colors import Colormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter
from numpy.typing import ArrayLike

from glassformer.errors import InputError
from glassformer.files import any_file, holds, local_path, new_file, require_replaceable

BLACK = "#000000"
ORANGE = "#E69F00"
SKY = "#56B4E9"
GREEN = "#009E73"
BLUE = "#0072B2"
RED = "#D55E00"
PURPLE = "#CC79A7"
"""Colours of Okabe and Ito 2008, "Color Universal Design", without yellow, which fades on white."""

LINES: tuple[dict[str, Any], ...] = (
    {"color": BLUE, "linestyle": "-", "marker": "o"},
    {"color": RED, "linestyle": (0, (5, 1.5)), "marker": "s"},
    {"color": GREEN, "linestyle": (0, (1, 1)), "marker": "^"},
    {"color": ORANGE, "linestyle": "-.", "marker": "D"},
    {"color": PURPLE, "linestyle": (0, (5, 1, 1, 1, 1, 1)), "marker": "v"},
    {"color": SKY, "linestyle": (0, (8, 2)), "marker": "P"},
)
"""Line style of each series."""

HATCHES = ("", "///", "...", "xxx", "\\\\\\", "++")
"""Filling of each series of bars."""

_STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "grid.alpha": 0.25,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
    "savefig.dpi": 150,
    # Text stays text, and the file is the same for the same figure.
    "svg.fonttype": "none",
    "svg.hashsalt": "glassformer",
    # Tokens and file names may have dollar signs: "$x$" is no formula.
    "text.parse_math": False,
}
"""Settings that differ from matplotlib's defaults."""

_METADATA: dict[str, dict[str, str | None]] = {
    "png": {"Software": "glassformer"},
    "svg": {"Date": None, "Creator": "glassformer"},
    "pdf": {"CreationDate": None, "Creator": "glassformer", "Producer": None},
}
"""Author of a file. Matplotlib's version and the date are left out: files do not depend on them."""
_MARKS = {
    "png": (b"Software\0glassformer", 4096),
    "svg": (b"<dc:title>glassformer</dc:title>", 4096),
    "pdf": (b"/Creator (glassformer)", -4096),
}
"""Bytes that identify a file of each format, and the size of the start or end that has them."""

in_style = matplotlib.style.context(["default", _STYLE])
"""Decorator for functions that draw, which then use the project's style only."""

COLORS_OF_A_COLORMAP = 256

_LETTERS_AND_LINES: tuple[Any, ...] = (
    "axes.edgecolor",
    "axes.labelcolor",
    "text.color",
    "xtick.color",
    "ytick.color",
)

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


class _StyledCanvas(FigureCanvasAgg):
    """A canvas that notebooks print in the project's style."""

    @in_style
    def print_figure(self, *args: Any, **options: Any) -> Any:
        """Write the figure to a file, as matplotlib's canvas does."""
        return super().print_figure(*args, **options)


class StyledFigure(Figure):
    """A figure that is always drawn and saved in the project's style.

    Matplotlib reads settings even when a figure is drawn: it then looks up fonts and creates ticks.
    A notebook shows the figure at the end of a cell, also without ``%matplotlib inline``.
    """

    @in_style
    def draw(self, renderer: RendererBase) -> None:
        """Draw the figure, as :meth:`matplotlib.figure.Figure.draw`."""
        super().draw(renderer)

    @in_style
    def savefig(self, *args: Any, **options: Any) -> None:
        """Write the figure to a file, as :meth:`matplotlib.figure.Figure.savefig`."""
        super().savefig(*args, **options)

    @in_style
    def colorbar(self, *args: Any, **options: Any) -> Colorbar:
        """Add a colour bar, as :meth:`matplotlib.figure.FigureBase.colorbar`."""
        return super().colorbar(*args, **options)

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()


@in_style
def new_figure(
    width: float | int,
    height: float | int,
    rows: int = 1,
    columns: int = 1,
    *,
    figure: Figure | None = None,
    **subplots: Any,
) -> tuple[Figure, list[Axes]]:
    """Make a figure of ``width`` x ``height`` inches; return it and its axes row by row.

    Call it in functions that are :data:`in_style`. An empty ``figure``, such as one of pyplot's, is
    used instead of a new one: it becomes a :class:`StyledFigure` with a white background. Further
    arguments are those of ``matplotlib.figure.Figure.subplots``.
    """
    if not min(width, height) > 0:  # also refuses a width of NaN
        raise InputError(
            got=f"a figure of {width} x {height} inches",
            expected="both above 0",
            fix="Pass inches.",
        )
    if figure is None:
        figure = StyledFigure()
        _StyledCanvas(figure)
    if len(figure.axes) != 0:
        raise InputError(
            got=f"a figure with {len(figure.axes)} axes",
            expected="an empty one",
            fix="Pass plt.figure().",
        )
    _restyle(figure)
    figure.set_size_inches(width, height)
    figure.set_layout_engine("constrained")
    return figure, list(np.ravel(figure.subplots(rows, columns, squeeze=False, **subplots)))


def _restyle(figure: Figure) -> None:
    """Give an empty figure the style's class and background."""
    if type(figure) is Figure:
        figure.__class__ = StyledFigure
    figure.clear()
    figure.patch.update_from(StyledFigure().patch)
    figure.patch.set_transform(figure.transSubfigure)


def restyle_axes(ax: Axes) -> None:
    """Empty axes of the caller's figure, and give them the style.

    Call it in functions that are :data:`in_style`. Until such a function returns, letters and lines
    have the colour that shows on the caller's figure. Axes of a :class:`StyledFigure` are not
    changed.
    """
    if isinstance(figure_of(ax), StyledFigure):
        return
    color = letter_colour(_background(ax))
    matplotlib.rcParams.update(dict.fromkeys(_LETTERS_AND_LINES, color))
    ax.clear()
    # clear() does not reset these.
    for artist in (*ax.spines.values(), ax.xaxis.label, ax.yaxis.label):
        artist.set(sketch_params=None, path_effects=[])
    if not _shares(ax.get_shared_x_axes(), ax):
        ax.tick_params(
            axis="x", which="both", bottom=True, top=False, labelbottom=True, labeltop=False
        )
    if not _shares(ax.get_shared_y_axes(), ax):
        ax.tick_params(
            axis="y", which="both", left=True, right=False, labelleft=True, labelright=False
        )


def _shares(groups: GrouperView, ax: Axes) -> bool:
    """Return whether ``ax`` shares an axis; then only the outer axes have labels."""
    return len(groups.get_siblings(ax)) > 1


def create_ticks(*axes: Axes) -> None:
    """Create the ticks of ``axes`` in the style, before the caller's figure is drawn."""
    for ax in axes:
        for axis in (ax.xaxis, ax.yaxis):
            axis.get_ticklabels(which="both")


def _background(ax: Axes) -> tuple[float, float, float]:
    """Return the colour around ``ax``: that of its figure and subfigure, on white paper."""
    color = np.ones(3)
    for figure in (ax.get_figure(root=True), ax.get_figure(root=False)):
        assert figure is not None
        *ink, alpha = to_rgba(figure.get_facecolor())
        opacity = alpha if figure.patch.get_visible() else 0.0
        color = opacity * np.array(ink) + (1 - opacity) * color
    red, green, blue = color.tolist()
    return red, green, blue


def letter_colour(background: ArrayLike) -> str:
    """Return black or white, whichever contrasts more with ``background`` (RGB in [0, 1])::

        contrast = (L1 + 0.05) / (L2 + 0.05)   with L1 >= L2
        L        = 0.2126 R + 0.7152 G + 0.0722 B of linear colours

    Source: W3C, Web Content Accessibility Guidelines 2.2, "contrast ratio".
    """
    rgb = np.asarray(background)
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    # The contrasts with black (L = 0) and white (L = 1) are equal at sqrt(0.05 * 1.05) - 0.05.
    if linear @ (0.2126, 0.7152, 0.0722) + 0.05 > 0.0525**0.5:
        return "black"
    return "white"


def colour_map(name: str) -> Colormap:
    """Return the colour map of this name with 256 colours.

    Matplotlib's own has as many as ``image.lut`` had on import.
    """
    return matplotlib.colormaps[name].resampled(COLORS_OF_A_COLORMAP)


class PowersOfTen(LogFormatter):
    """Writes the ticks of a logarithmic axis as plain text, such as 10⁻³ and 2×10⁻³."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        """Return the label of the tick at ``x``; empty if ``LogFormatter`` gives none."""
        if not super().__call__(x, pos):
            return ""
        digit, power = f"{x:.0e}".split("e")
        text = "10" + str(int(power)).translate(_SUPERSCRIPTS)
        return text if digit == "1" else f"{digit}×{text}"


def label_powers_of_ten(axis: Axis) -> None:
    """Label a logarithmic axis by :class:`PowersOfTen`."""
    axis.set_major_formatter(PowersOfTen())
    axis.set_minor_formatter(PowersOfTen())


def figure_of(ax: Axes) -> Figure:
    """Return the figure of ``ax``, also for axes in a subfigure."""
    return cast(Figure, ax.get_figure(root=True))


@in_style
def save_figure(
    figure: Figure,
    directory: Path | str,
    name: str,
    *,
    formats: Sequence[str] = ("png", "svg"),
    overwrite: bool = False,
    **savefig: Any,
) -> list[Path]:
    """Write ``directory / name`` in each of ``formats``; the same figure gives the same files.

    The directory is created if missing. An existing file is replaced if this function wrote it, or
    with ``overwrite``. Formats are "png" (150 dots an inch), "svg" and "pdf". Further arguments
    are those of ``matplotlib.figure.Figure.savefig``.
    """
    if name != Path(name).stem or name == "":
        raise InputError(
            got=f"name = {name!r}",
            expected="a plain name without directory or suffix",
            fix="Use a name such as 'losses'.",
        )
    for suffix in formats:
        if suffix not in _METADATA:
            raise InputError(
                got=f"the format {suffix!r}",
                expected=f"one of {', '.join(_METADATA)}",
                fix="Choose one of these.",
            )
    directory = local_path(directory)
    paths = {suffix: directory / f"{name}.{suffix}" for suffix in formats}
    replaces = any_file if overwrite else _is_written
    for path in paths.values():
        require_replaceable(path, replaces)
    for suffix, path in paths.items():
        with new_file(path, replaces=replaces) as draft:
            figure.savefig(draft, **{"format": suffix, "metadata": _METADATA[suffix], **savefig})
    return list(paths.values())


def _is_written(file: Path) -> bool:
    """Return whether :func:`save_figure` wrote a file."""
    return any(holds(file, mark, size) for mark, size in _MARKS.values())


def line(series: int, points: int) -> dict[str, Any]:
    """Return the style of line ``series`` with ``points`` points; about ten have a marker."""
    # Offsets keep the markers of coinciding lines apart.
    every = max(1, points // 10)
    place = series % len(LINES)
    return {**LINES[place], "markevery": (place * every // len(LINES), every)}
