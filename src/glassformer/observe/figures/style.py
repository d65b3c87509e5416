"""How figures look and are saved: series differ in a colour-blind-safe colour, in dashes and in marker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

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
"""One way to draw for each series; they differ in colour, in dashes and in marker."""

HATCHES = ("", "///", "...", "xxx", "\\\\\\", "++")
"""One filling for each series of bars, beside its colour."""

_STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "figure.dpi": 100,
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
"""What matplotlib would add by itself and is left out, so that files do not depend on the day or its version."""


in_style = matplotlib.rc_context(_STYLE)
"""Decorates a function that draws: what it makes is in the project's style, whatever the caller's settings are."""


def new_figure(
    width: float | int, height: float | int, rows: int = 1, columns: int = 1, **subplots: Any
) -> tuple[Figure, list[Axes]]:
    """A figure of ``width`` x ``height`` inches and its axes row by row; call it :data:`in_style`.

    Further arguments are those of ``matplotlib.figure.Figure.subplots``.

    Raises:
        InputError: A size that is not above 0.
    """
    require(min(width, height) > 0, f"a figure of {width} x {height} inches", "both above 0", "Pass inches.")
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(np.ravel(figure.subplots(rows, columns, squeeze=False, **subplots)))


def save_figure(figure: Figure, directory: Path, name: str, *, formats: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Write ``directory / name`` in each of ``formats``; the same figure gives the same files.

    Args:
        figure: What to save.
        directory: Where to; made if it is not there.
        name: The files' name without suffix.
        formats: Among "png" (150 dots an inch), "svg" and "pdf".

    Raises:
        InputError: ``name`` is a path or has a suffix, or an unknown format.
    """
    require(
        name == Path(name).stem and name != "",
        f"name = {name!r}",
        "a plain name without directory or suffix",
        "Pass 'losses', say.",
    )
    paths = {suffix: directory / f"{name}.{suffix}" for suffix in formats}
    _write(figure, paths)
    return list(paths.values())


def save_stamped(
    figure: Figure,
    directory: Path,
    name: str,
    *,
    format: str = "png",
    timestamp: bool = False,
    run_name: str | None = None,
    **savefig: Any,
) -> Path:
    """Write one file, ``directory / run_name / name_YYYYmmdd_HHMMSS.format``.

    Args:
        figure: What to save.
        directory: Where to; made if it is not there.
        name: The file's name, without time and suffix.
        format: "png", "svg" or "pdf".
        timestamp: Whether to add the local time.
        run_name: A directory inside ``directory`` for the figures of one run; none when None.
        **savefig: Further arguments of ``matplotlib.figure.Figure.savefig``, such as ``dpi`` (dots an inch).

    Returns:
        The file's path.

    Raises:
        InputError: ``name`` or ``run_name`` is a path, or an unknown format.
    """
    for what, part in (("name", name), ("run_name", run_name)):
        require(
            part is None or (part not in ("", ".", "..") and part.isprintable() and not set(part) & set("/\\")),
            f"{what} = {part!r}",
            "a plain name, not a path",
            "Pass 'first-try', say.",
        )
    stamp = f"_{datetime.now():%Y%m%d_%H%M%S}" if timestamp else ""
    path = directory / (run_name or "") / f"{name}{stamp}.{format}"
    _write(figure, {format: path}, **savefig)
    return path


@in_style
def _write(figure: Figure, paths: Mapping[str, Path], **savefig: Any) -> None:
    """Write the figure as the file of each format, or nothing if there is an unknown one."""
    for suffix in paths:
        require(suffix in _METADATA, f"the format {suffix!r}", f"one of {', '.join(_METADATA)}", "Choose one of these.")
    for suffix, path in paths.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, **{"format": suffix, "metadata": _METADATA[suffix], **savefig})


def line(series: int, points: int) -> dict[str, Any]:
    """How to draw the line of number ``series`` with ``points`` points: about ten of them get the marker."""
    # Offsets keep the markers of lines that lie on one another apart.
    every, place = max(1, points // 10), series % len(LINES)
    return {**LINES[place], "markevery": (place * every // len(LINES), every)}


def annotate_cells(axes: Axes, values: Sequence[Sequence[float]], largest: float) -> None:
    """Write each value of a heat map into its cell, in white on dark cells; ``largest`` is the darkest."""
    for row, cells in enumerate(values):
        for column, value in enumerate(cells):
            colour = "white" if value > 0.55 * largest else "black"
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=9)
