"""Figures have the same pixels under every setting of matplotlib, and colours and letters that show
in any axes.
"""

import io
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import matplotlib.style
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.text import Text

from glassformer.figures.attention_maps import attention_grid, attention_map
from glassformer.figures.coloured_words import coloured_text
from glassformer.figures.heat_maps import panel
from glassformer.figures.style import StyledFigure, save_figure
from glassformer.labs.hand_designed.course import NumpyTransformer, rescale_and_plot
from other_settings import FIGURES, NAMES, ROUNDS, SETTINGS, STYLES, pixels

WORST: dict[str, dict[str, Any]] = {
    "formulas": {"text.usetex": True},
    "upside down": {
        "image.origin": "lower",
        "image.cmap": "Reds",
        "image.interpolation": "bilinear",
    },
    "letters": {
        "font.size": 20,
        "font.family": "serif",
        "font.weight": "bold",
        "font.style": "italic",
    },
    "colours": {
        "text.color": "white",
        "axes.labelcolor": "white",
        "xtick.color": "white",
        "ytick.color": "white",
    },
    "background": {
        "figure.facecolor": "black",
        "axes.facecolor": "red",
        "savefig.facecolor": "black",
    },
    "sketch": {
        "path.sketch": (5, 50, 9),
        "path.effects": [withStroke(linewidth=4, foreground="red")],
    },
    "ticks": {
        "xtick.top": True,
        "xtick.labelbottom": False,
        "ytick.right": True,
        "ytick.labelleft": False,
    },
    "layout": {"figure.autolayout": True, "figure.constrained_layout.use": True, "figure.dpi": 37},
    "files": {
        "savefig.dpi": 31,
        "savefig.bbox": "tight",
        "savefig.transparent": True,
        "savefig.format": "svg",
    },
    "numbers": {
        "axes.formatter.use_mathtext": True,
        "axes.unicode_minus": False,
        "axes.formatter.limits": (0, 0),
    },
    "drawing": {
        "lines.antialiased": False,
        "text.antialiased": False,
        "text.hinting": "none",
        "path.snap": False,
    },
    "math": {"text.parse_math": True, "mathtext.default": "rm"},
}


# Of settings that only some versions of matplotlib have.
pytestmark = pytest.mark.filterwarnings("ignore::matplotlib.MatplotlibDeprecationWarning")


@pytest.fixture(scope="module")
def reference() -> dict[str, np.ndarray]:
    return {name: pixels(draw()) for name, draw in FIGURES.items()}


def png(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


@pytest.mark.parametrize("kind", WORST)
def test_the_callers_settings_change_no_pixel(kind: str, reference: dict[str, np.ndarray]) -> None:
    for name in ("words", "panel"):
        before = FIGURES[name]()
        with matplotlib.rc_context(WORST[kind]):
            np.testing.assert_array_equal(pixels(FIGURES[name]()), reference[name])
            # A figure that was created before, as a notebook draws at the end of a cell.
            np.testing.assert_array_equal(pixels(before), reference[name])


def check_all_figures(reference: dict[str, np.ndarray], settings: dict[str, Any]) -> None:
    before = {name: draw() for name, draw in FIGURES.items()}
    with matplotlib.rc_context(settings):
        for name, draw in FIGURES.items():
            np.testing.assert_array_equal(pixels(draw()), reference[name], name)
            np.testing.assert_array_equal(pixels(before[name]), reference[name], name)


def test_all_settings_at_other_values_change_no_pixel(reference: dict[str, np.ndarray]) -> None:
    assert len(SETTINGS) > 280
    check_all_figures(reference, ROUNDS[0])


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, len(ROUNDS)))
def test_no_other_value_of_any_setting_changes_a_pixel(
    number: int, reference: dict[str, np.ndarray]
) -> None:
    check_all_figures(reference, ROUNDS[number])


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
def test_no_style_of_matplotlib_changes_a_pixel(
    style: str, reference: dict[str, np.ndarray]
) -> None:
    check_all_figures(reference, dict(matplotlib.style.library[style]))


def test_saved_files_are_the_same(tmp_path: Path) -> None:
    formats = ("png", "svg", "pdf")
    plain = [
        path.read_bytes()
        for path in save_figure(FIGURES["panel"](), tmp_path / "a", "one", formats=formats)
    ]
    settings = {name: value for kind in WORST.values() for name, value in kind.items()}
    with matplotlib.rc_context(
        settings | {"svg.fonttype": "path", "pdf.compression": 0, "pdf.use14corefonts": True}
    ):
        saved = [
            path.read_bytes()
            for path in save_figure(FIGURES["panel"](), tmp_path / "b", "one", formats=formats)
        ]
    assert saved == plain


@pytest.mark.parametrize("name", ["map", "words", "panel", "head"])
def test_labels_are_written_as_they_are(name: str) -> None:
    figure = FIGURES[name]()
    figure.draw_without_rendering()
    texts = [text for text in figure.findobj(Text) if text.get_text()]
    assert {"a_b", "$x" if name in ("map", "words") else "$x$"} <= {
        text.get_text() for text in texts
    }
    assert not any(text.get_parse_math() or text.get_usetex() for text in texts)


def test_a_stored_figure_keeps_its_style() -> None:
    figure = pickle.loads(pickle.dumps(FIGURES["words"]()))
    plain = png(FIGURES["words"]())
    with matplotlib.rc_context(WORST["background"] | WORST["formulas"]):
        assert figure._repr_png_() == plain


def luminance(color: Any) -> float:
    """Relative luminance by the formula of WCAG 2.2, channel by channel."""
    channels = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
    return 0.2126 * channels[0] + 0.7152 * channels[1] + 0.0722 * channels[2]


def contrast(one: Any, other: Any) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def cell_colours(figure: Figure, ax: Axes, size: int) -> np.ndarray:
    """The pixels near the upper left corners of the cells of a map, from 0 to 1."""
    image = pixels(figure)
    places = [(column - 0.4, row - 0.4) for row in range(size) for column in range(size)]
    across, up = ax.transData.transform(places).T
    found = image[(image.shape[0] - up).astype(int), across.astype(int), :3] / 255
    return found.reshape(size, size, 3)


WEIGHTS = np.random.default_rng(3).dirichlet(np.ones(6), 6)
BLUES = matplotlib.colormaps["Blues"](WEIGHTS / WEIGHTS.max())[..., :3]


def agg() -> Any:
    """pyplot without windows."""
    plt.switch_backend("agg")
    return plt


def check_map(figure: Figure, ax: Axes) -> None:
    """Cells have the colours of their weights, and each letter shows on what is below it."""
    np.testing.assert_allclose(cell_colours(figure, ax, 6), BLUES, atol=0.02)
    names = [text for axis in (ax.xaxis, ax.yaxis) for text in axis.get_ticklabels()]
    assert [text.get_text() for text in names] == [*NAMES, *NAMES]
    bar = figure.axes[-1]
    around = [*names, ax.title, ax._left_title, ax.xaxis.label, ax.yaxis.label, bar.yaxis.label]  # type: ignore[attr-defined]
    around += bar.yaxis.get_ticklabels()
    for text in around:
        assert not text.get_usetex()
        assert contrast(text.get_color(), figure.get_facecolor()) > 4.5
    for text in ax.texts:
        column, row = map(int, text.get_position())
        assert contrast(text.get_color(), BLUES[row, column]) > 4.5


@pytest.mark.parametrize(
    "kind", [*WORST, "dark_background", "Solarize_Light2", "grayscale", "ggplot"]
)
def test_the_callers_axes_and_figures_show_colours_and_letters(kind: str) -> None:
    settings = dict(WORST.get(kind) or matplotlib.style.library[kind])
    # pyplot's own axes need TeX for formulas, and pixels to compare.
    settings |= {"text.usetex": False, "figure.dpi": 100}
    with matplotlib.rc_context(settings):
        pyplot = agg()
        figure, ax = pyplot.subplots(figsize=(5, 5))
        check_map(attention_map(WEIGHTS, NAMES, title="$x$", ax=ax), ax)
        assert ax.texts
        grid = attention_grid(WEIGHTS[None, None], NAMES, figure=pyplot.figure())
        check_map(grid, grid.axes[0])
        assert to_rgb(grid.get_facecolor()) == (1, 1, 1)
        figure, axes = pyplot.subplots(2, 1, figsize=(7, 3))
        coloured_text(NAMES, np.linspace(0, 1, 6), "$x$", ax=axes[0], label="5%")
        for word, box in zip(axes[0].texts, axes[0].patches, strict=True):
            assert contrast(word.get_color(), box.get_facecolor()) > 4.5
        bar = figure.axes[-1]
        for text in (axes[0].title, bar.xaxis.label, *bar.xaxis.get_ticklabels()):
            assert contrast(text.get_color(), figure.get_facecolor()) > 4.5
        pyplot.close("all")


def test_formulas_do_not_reach_the_callers_axes() -> None:
    pyplot = agg()
    with matplotlib.rc_context({"text.usetex": True}):
        figure, ax = pyplot.subplots(figsize=(5, 5))
        attention_map(WEIGHTS, NAMES, title="5%", ax=ax)
    check_map(figure, ax)
    pyplot.close("all")


def test_a_figure_of_pyplot_takes_the_style_to_where_it_is_drawn(
    reference: dict[str, np.ndarray],
) -> None:
    pyplot = agg()
    names = NAMES[:3]
    weights = np.random.default_rng(3).dirichlet(np.ones(3), 3)[None, None]
    with matplotlib.rc_context(WORST["sketch"] | WORST["formulas"] | {"figure.frameon": False}):
        styled = attention_grid(weights, names, title="$x$", figure=pyplot.figure(dpi=100))
        assert isinstance(styled, StyledFigure)
        np.testing.assert_array_equal(pixels(styled), reference["grid"])
        assert png(styled) == png(attention_grid(weights, names, title="$x$"))
    pyplot.close("all")


def test_other_axes_of_the_figure_keep_the_callers_style() -> None:
    with matplotlib.style.context("dark_background"):
        pyplot = agg()
        figure, (curve, ax) = pyplot.subplots(1, 2, figsize=(9, 4), layout="constrained")
        curve.plot([1, 2, 3])
        attention_map(WEIGHTS, NAMES, ax=ax)
        figure.canvas.draw()
        assert {to_rgb(text.get_color()) for text in curve.get_xticklabels()} == {(1, 1, 1)}
        check_map(figure, ax)
        pyplot.close("all")


def test_panels_of_the_course_are_drawn_alike() -> None:
    values = np.array([[0.0, 1.0], [2.0, 4.0]])
    pyplot = agg()
    with matplotlib.rc_context(WORST["upside down"] | WORST["colours"]):
        figure, ax = pyplot.subplots(figsize=(3, 3))
        rescale_and_plot(values, "$x$", ax, "5%", "a_b")
        colours = matplotlib.colormaps["Reds"](values / 4)[..., :3]
        np.testing.assert_allclose(cell_colours(figure, ax, 2), colours, atol=0.02)
        assert contrast(ax.title.get_color(), "white") > 4.5
        image = panel(pyplot.subplots()[1], values, limits=(0, 4))
        assert image.get_extent() == [-0.5, 1.5, 1.5, -0.5]
        pyplot.close("all")


def test_the_eight_panels_of_the_course_are_those_of_the_defaults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pyplot = agg()
    shown: list[np.ndarray] = []
    monkeypatch.setattr(plt, "show", lambda: shown.append(pixels(plt.gcf())))
    head = NumpyTransformer(np.eye(2), np.eye(2), np.eye(2))
    head.forward(np.eye(2), plot=True)
    with matplotlib.style.context("dark_background"), matplotlib.rc_context(WORST["upside down"]):
        head.forward(np.eye(2), plot=True)
    pyplot.close("all")
    np.testing.assert_array_equal(*shown)


def test_settings_that_matplotlib_reads_on_import_change_nothing(tmp_path: Path) -> None:
    code = """
import hashlib, io
from glassformer.figures.coloured_words import coloured_text
from glassformer.figures.heat_maps import panel
from glassformer.figures.style import new_figure
figure, (ax,) = new_figure(2, 2)
panel(ax, [[0.1, 0.2], [0.4, 0.9]], "$x$", labels=True, limits=(0, 1))
for each in (figure, coloured_text(["a_b", "$x$", "good"], [0.1, -0.5, 0.2], signed=True)):
    file = io.BytesIO()
    each.savefig(file, format="png")
    print(hashlib.sha256(file.getvalue()).hexdigest())
"""
    file = tmp_path / "matplotlibrc"
    file.write_text(
        "image.lut: 3\nfont.weight: bold\nfont.style: italic\nmathtext.fontset: cm\n",
        encoding="utf-8",
    )
    paths = os.pathsep.join(filter(None, sys.path))
    printed = []
    for settings in ({}, {"MATPLOTLIBRC": str(file)}):
        environment = {**os.environ, "PYTHONPATH": paths, **settings}
        command = [sys.executable, "-c", code]
        printed.append(
            subprocess.run(
                command, env=environment, check=True, capture_output=True, text=True
            ).stdout
        )
    assert printed[0] == printed[1] != ""
