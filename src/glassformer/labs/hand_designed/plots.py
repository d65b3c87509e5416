"""The course's plotting under its own names: eight heat maps of one head, and where their files go.

The figures of the lab's report come from :mod:`glassformer.observe.figures.single_heads`, which names the tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Num
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from glassformer.errors import require, require_positive
from glassformer.handcraft.single_head import HeadWeights, NumpyHead
from glassformer.observe.figures.heat_maps import panel, rescaled
from glassformer.observe.figures.style import write_figure


def _require_format(name: str) -> None:
    require(name in ("png", "pdf", "svg"), f"save_format = {name!r}", "png, pdf or svg", "Choose one of these.")


@dataclass(frozen=True)
class PlotConfig:
    """How the eight panels look and where they are saved; the course's fields and defaults.

    Args:
        figure_width: Inches.
        figure_height: Inches.
        dpi: Dots an inch on the screen.
        colormap: A name that matplotlib knows.
        vmin: The value with the first colour, after rescaling to [0, 1]; 0 when None.
        vmax: The value with the last colour; 1 when None.
        title_fontsize: Points.
        label_fontsize: Points.
        show_xticks: Number the columns.
        show_yticks: Number the rows.
        tight_layout: Fit the panels into the figure.
        nrows: Rows of panels; with ncols, at least eight panels.
        ncols: Columns of panels.
        save_dir: Directory for all plots.
        save_format: "png", "pdf" or "svg".
        save_dpi: Dots an inch of a saved PNG.
        auto_save: Save every plot.
        add_timestamp: Put the local time into the files' names.

    Raises:
        InputError: A size below 1, fewer than eight panels, or an unknown format.
    """

    figure_width: float | int = 20.0
    figure_height: float | int = 5.0
    dpi: int = 100
    colormap: str = "Reds"
    vmin: float | int | None = None
    vmax: float | int | None = None
    title_fontsize: int = 12
    label_fontsize: int = 10
    show_xticks: bool = False
    show_yticks: bool = False
    tight_layout: bool = True
    nrows: int = 1
    ncols: int = 8
    save_dir: str = "plots"
    save_format: Literal["png", "pdf", "svg"] = "png"
    save_dpi: int = 150
    auto_save: bool = False
    add_timestamp: bool = True

    def __post_init__(self) -> None:
        require_positive(dpi=self.dpi, save_dpi=self.save_dpi, nrows=self.nrows, ncols=self.ncols)
        require(
            self.nrows * self.ncols >= 8,
            f"nrows = {self.nrows} with ncols = {self.ncols}",
            "at least eight panels",
            "Pass nrows=2, ncols=4, for example.",
        )
        _require_format(self.save_format)


PLOT_CONFIG = PlotConfig()
"""The course's defaults."""


def rescale_and_plot(
    arr: Num[np.ndarray, "row column"],
    title: str = "",
    ax: Axes | None = None,
    x_lab: str | None = None,
    y_lab: str | None = None,
    colormap: str = PLOT_CONFIG.colormap,
    vmin: float | int | None = PLOT_CONFIG.vmin,
    vmax: float | int | None = PLOT_CONFIG.vmax,
    title_fontsize: int = PLOT_CONFIG.title_fontsize,
    label_fontsize: int = PLOT_CONFIG.label_fontsize,
    show_xticks: bool = PLOT_CONFIG.show_xticks,
    show_yticks: bool = PLOT_CONFIG.show_yticks,
) -> None:
    """Draw ``(arr - min) / (max - min)`` as a heat map; a constant matrix is drawn as zeros.

    Args:
        arr: The matrix.
        title: Above it.
        ax: Where to draw; pyplot's current axes when None.
        x_lab: What the columns are.
        y_lab: What the rows are.
        colormap: A name that matplotlib knows.
        vmin: The rescaled value with the first colour; 0 when None.
        vmax: The rescaled value with the last colour; 1 when None.
        title_fontsize: Points.
        label_fontsize: Points.
        show_xticks: Number the columns.
        show_yticks: Number the rows.

    Raises:
        InputError: ``arr`` is no matrix of finite numbers.
    """
    ax = plt.gca() if ax is None else ax
    limits = (0.0 if vmin is None else float(vmin), 1.0 if vmax is None else float(vmax))
    panel(ax, rescaled(arr), title, x_lab, y_lab, limits=limits, colormap=colormap)
    ax.title.set_fontsize(title_fontsize)
    ax.xaxis.label.set_fontsize(label_fontsize)
    ax.yaxis.label.set_fontsize(label_fontsize)
    if show_xticks:
        ax.set_xticks(range(arr.shape[1]))
    if show_yticks:
        ax.set_yticks(range(arr.shape[0]))


def draw_transformer(
    weights: HeadWeights, seq: Num[np.ndarray, "position input_dim"], config: PlotConfig = PLOT_CONFIG
) -> Figure:
    """The eight panels of one head and one sequence as a pyplot figure: Km, Qm, Vm, K, Q, V, Attn, Out, transposed.

    Raises:
        InputError: ``seq`` does not fit the weights.
    """
    trace = NumpyHead(weights).trace(seq)
    shown = [
        (weights.Km, "Km", "d_in", "d_qk"),
        (weights.Qm, "Qm", "d_in", "d_qk"),
        (weights.Vm, "Vm", "d_in", "d_v"),
        (trace.K, "K", "seq", "d_qk"),
        (trace.Q, "Q", "seq", "d_qk"),
        (trace.V, "V", "seq", "d_v"),
        (trace.weights, "Attn", "Q", "K"),
        (trace.output, "Out", "seq", "d_v"),
    ]
    size = (config.figure_width, config.figure_height)
    layout = "tight" if config.tight_layout else None
    figure, axes = plt.subplots(config.nrows, config.ncols, figsize=size, dpi=config.dpi, layout=layout, squeeze=False)
    for ax in axes.flat[len(shown) :]:
        ax.set_axis_off()
    for ax, (matrix, title, x_lab, y_lab) in zip(axes.flat, shown, strict=False):
        rescale_and_plot(
            matrix.T,
            title,
            ax,
            x_lab,
            y_lab,
            config.colormap,
            config.vmin,
            config.vmax,
            config.title_fontsize,
            config.label_fontsize,
            config.show_xticks,
            config.show_yticks,
        )
    return figure


def save_figure(
    fig: Figure,
    name: str,
    save_dir: str = PLOT_CONFIG.save_dir,
    save_format: str = PLOT_CONFIG.save_format,
    save_dpi: int = PLOT_CONFIG.save_dpi,
    add_timestamp: bool = PLOT_CONFIG.add_timestamp,
    run_name: str | None = None,
) -> Path:
    """Save a figure as ``save_dir / run_name / name_YYYYmmdd_HHMMSS.save_format``, and say so.

    Args:
        fig: What to save.
        name: The file's name, without time and suffix.
        save_dir: Where to; made if it is not there.
        save_format: "png", "pdf" or "svg".
        save_dpi: Dots an inch of a PNG.
        add_timestamp: Put the local time into the name.
        run_name: A directory inside ``save_dir``; none when None.

    Returns:
        The file's path.

    Raises:
        InputError: ``name`` or ``run_name`` is a path, or an unknown format.
    """
    _require_format(save_format)
    for what, part in (("name", name), ("run_name", run_name)):
        require(
            part is None or (part not in ("", ".", "..") and part.isprintable() and not set(part) & set("/\\")),
            f"{what} = {part!r}",
            "a plain name, not a path",
            "Use a name such as 'first-try'.",
        )
    stamp = f"_{datetime.now():%Y%m%d_%H%M%S}" if add_timestamp else ""
    path = Path(save_dir, run_name or "", f"{name}{stamp}.{save_format}")
    write_figure(fig, {save_format: path}, dpi=save_dpi, bbox_inches="tight")
    print(f"figure saved: {path}")
    return path
