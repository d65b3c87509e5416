"""Every setting of matplotlib at other values than its default, and small figures whose pixels they
could change.
"""

import warnings
from collections.abc import Callable
from typing import Any

import matplotlib
import matplotlib.style
import numpy as np
from cycler import cycler
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from glassformer.figures.attention_maps import attention_grid, attention_map
from glassformer.figures.coloured_words import coloured_text
from glassformer.figures.heat_maps import panel
from glassformer.figures.single_heads import draw_comparison
from glassformer.figures.style import new_figure
from glassformer.handcraft.single_head import HeadWeights
from glassformer.labs.sentiment.figures import draw_training_curves

NAMES = ("a_b", "5%", "$x", "\\alpha", "{", "^")
"""Tokens that TeX and mathtext read as commands."""

CANDIDATES: tuple[Any, ...] = (
    True, False, None, 0, 1, 2, 3, 7, 0.05, 0.3, 2.5, 12.5, 42, -1, "red", "#123456", "0.3", "none", "auto", "inherit",
    "large", "x-small", "bold", "light", "italic", "oblique", "serif", "monospace", "lower", "upper", "center", "left",
    "right", "top", "bottom", "both", "x", "y", "minor", "major", "in", "out", "inout", "--", ":", "s", "tight",
    "Reds", "bilinear", "nearest", "data", "rgba", "small-caps", "expanded", "round", "projecting", "bevel", "miter",
    "upper left", "best", "line", "center_baseline", "baseline", "round_numbers", "svg", "pdf", "path", "stix", "cm",
    "dejavuserif", "rm", "it", "no_autohint", "force_autohint", "default", "line_contour", "mpl2014",
    [], ["STIXGeneral"], ["DejaVu Serif", "cursive"], [1.0, 4.0], [2, 3], (1, 100, 2), (12.0, 3.0), (0, 1),
    cycler(color=["red", "green"]), cycler(linestyle=["--", ":"]), [withStroke(linewidth=4, foreground="red")],
    "\\usepackage{amsmath}", "%d", "%H:%M",
)  # fmt: skip
"""Tried for every setting; matplotlib refuses those that are not legal for it."""


def other_values(name: str) -> list[Any]:
    """The enumerated values of a setting and up to five legal ones among the candidates, without
    its default.
    """
    validate = matplotlib.rcParams.validate[name]
    enumerated = getattr(validate, "valid", {})
    values = {repr(matplotlib.rcParamsDefault[name]): None}
    most = len(enumerated) + 5
    for candidate in (*enumerated, *CANDIDATES):
        try:
            with warnings.catch_warnings(action="ignore"):
                value = validate(candidate)
        except Exception:  # the validators raise many kinds
            continue
        values.setdefault(repr(value), value)
    return list(values.values())[1 : 1 + most]


NO_STYLE = frozenset(
    {"backend", "backend_fallback", "date.epoch", "docstring.hardcopy", "figure.max_open_warning"}
    | {
        "figure.raise_window",
        "interactive",
        "savefig.directory",
        "timezone",
        "tk.window_focus",
        "toolbar",
    }
    | {name for name in matplotlib.rcParamsDefault if name.startswith(("webagg.", "keymap."))}
)
"""Settings of windows and files, which matplotlib keeps out of styles, and keys."""

SETTINGS = {
    name: values
    for name in sorted(matplotlib.rcParamsDefault)
    if name not in NO_STYLE and not name.startswith("_") and (values := other_values(name))
}
"""The other values of every setting that has any."""

ROUNDS = [
    {name: values[number % len(values)] for name, values in SETTINGS.items()}
    for number in range(max(map(len, SETTINGS.values())))
]
"""All settings at once, each at one of its other values; each of these values is in at least one
round.
"""

STYLES = tuple(matplotlib.style.available)


def _weights(size: int) -> np.ndarray:
    return np.random.default_rng(size).dirichlet(np.ones(size), size)


def _map() -> Figure:
    return attention_map(_weights(6), NAMES, title="$x$ costs 5%")


def _words() -> Figure:
    return coloured_text(
        NAMES, np.linspace(-1, 1, 6), "a text of $x$", signed=True, label="\\effect_{of} $w$"
    )


def _head() -> Figure:
    identity = np.eye(3)
    return draw_comparison(
        HeadWeights(identity, identity[::-1], identity), None, identity, ["a_b", "$x$", "5%"]
    )


def _curves() -> Figure:
    epochs = np.linspace(1, 0.1, 6).tolist()
    history = {
        "train_loss": epochs,
        "val_loss": epochs[::-1],
        "train_acc": epochs,
        "val_acc": epochs,
    }
    return draw_training_curves(history, "run_1 of $x$")


def _grid() -> Figure:
    return attention_grid(_weights(3)[None, None], NAMES[:3], title="$x$")


def _panel() -> Figure:
    figure, (ax,) = new_figure(2, 2)
    image = panel(
        ax,
        _weights(3),
        "$x$",
        "5%",
        "a_b",
        labels=True,
        limits=(0, 1),
        x_names=NAMES[:3],
        y_names=NAMES[:3],
    )
    figure.colorbar(image, ax=ax, label="$x$")
    return figure


FIGURES: dict[str, Callable[[], Figure]] = {
    "map": _map,
    "words": _words,
    "head": _head,
    "curves": _curves,
    "grid": _grid,
    "panel": _panel,
}


def pixels(figure: Figure) -> np.ndarray:
    """The figure as it is drawn now, ``[row, column, channel]``."""
    canvas = figure.canvas
    assert isinstance(canvas, FigureCanvasAgg)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba()).copy()
