"""The style of all figures, and how they are saved; series differ in colour-blind-safe colour, dashes and marker."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from glassformer.errors import require

BLACK, ORANGE, SKY, GREEN, BLUE, RED, PURPLE = (
    "#000000",
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
)
"""Source: Okabe and Ito 2008, "Color Universal Design"; its yellow is left out, as it fades on white."""

LINES: tuple[dict[str, Any], ...] = (
    {"color": BLUE, "linestyle": "-", "marker": "o"},
    {"color": RED, "linestyle": (0, (5, 1.5)), "marker": "s"},
    {"color": GREEN, "linestyle": (0, (1, 1)), "marker": "^"},
    {"color": ORANGE, "linestyle": "-.", "marker": "D"},
    {"color": PURPLE, "linestyle": (0, (5, 1, 1, 1, 1, 1)), "marker": "v"},
    {"color": SKY, "linestyle": (0, (8, 2)), "marker": "P"},
)
"""The look of each series."""

HATCHES = ("", "///", "...", "xxx", "\\\\\\", "++")
"""The filling of each series of bars."""

_STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "figure.dpi": 100,
    "figure.constrained_layout.use": False,  # new_figure chooses
    "figure.autolayout": False,
    "figure.facecolor": "white",
    "font.size": 10,
    "grid.alpha": 0.25,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
    "savefig.dpi": 150,
    # Text stays text, and the file is the same for the same figure.
    "svg.fonttype": "none",
    "svg.hashsalt": "glassformer",
}

_METADATA: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""What matplotlib would add by default: it is omitted, so that files do not depend on the day or its version."""

in_style = matplotlib.rc_context(_STYLE)
"""Decorates a function that draws, which then uses the project's style and none of the caller's settings."""


class _ShownFigure(Figure):
    """A figure that is shown at the end of a notebook's cell, also without ``%matplotlib inline``."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()


def new_figure(
    width: float | int,
    height: float | int,
    rows: int = 1,
    columns: int = 1,
    *,
    figure: Figure | None = None,
    **subplots: Any,
) -> tuple[Figure, list[Axes]]:
    """A figure of ``width`` x ``height`` inches and its axes row by row; for functions that are :data:`in_style`.

    An empty ``figure``, such as one of pyplot's, is used instead of a new one. Further arguments are those of
    ``matplotlib.figure.Figure.subplots``.
    """
    require(min(width, height) > 0, f"a figure of {width} x {height} inches", "both above 0", "Pass inches.")
    if figure is None:
        figure = _ShownFigure()
        FigureCanvasAgg(figure)
    require(len(figure.axes) == 0, f"a figure with {len(figure.axes)} axes", "an empty one", "Pass plt.figure().")
    figure.set_size_inches(width, height)
    figure.set_layout_engine("constrained")
    return figure, list(np.ravel(figure.subplots(rows, columns, squeeze=False, **subplots)))


def figure_of(ax: Axes) -> Figure:
    """The figure that ``ax`` belongs to, directly or in a subfigure."""
    return cast(Figure, ax.get_figure(root=True))


@in_style
def save_figure(
    figure: Figure, directory: Path, name: str, *, formats: Sequence[str] = ("png", "svg"), **savefig: Any
) -> list[Path]:
    """Write ``directory / name`` in each of ``formats``; the same figure gives the same files.

    The directory is created if missing. Formats are among "png" (150 dots an inch), "svg" and "pdf". Further arguments
    are those of ``matplotlib.figure.Figure.savefig``.
    """
    expected = "a plain name without directory or suffix"
    require(name == Path(name).stem and name != "", f"name = {name!r}", expected, "Use a name such as 'losses'.")
    for suffix in formats:
        require(suffix in _METADATA, f"the format {suffix!r}", f"one of {', '.join(_METADATA)}", "Choose one of these.")
    paths = {suffix: directory / f"{name}.{suffix}" for suffix in formats}
    directory.mkdir(parents=True, exist_ok=True)
    for suffix, path in paths.items():
        figure.savefig(path, **{"format": suffix, "metadata": _METADATA[suffix], **savefig})
    return list(paths.values())


def line(series: int, points: int) -> dict[str, Any]:
    """The look of line number ``series`` with ``points`` points, of which about ten have a marker."""
    # Offsets keep the markers of coinciding lines apart.
    every, place = max(1, points // 10), series % len(LINES)
    return {**LINES[place], "markevery": (place * every // len(LINES), every)}
