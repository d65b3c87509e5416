"""The figures' style: series can be told apart without colour, and files do not depend on who draws
when.
"""

import pickle
import re
from itertools import pairwise
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from IPython.core.formatters import DisplayFormatter
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import imread

from colour_vision import VISIONS, colormap, lab, nearest_two, rgb, smallest_step
from glassformer.figures import style
from glassformer.figures.heat_maps import DIVERGING, write_values
from refusals import refused

SOURCES = Path(style.__file__).parents[2]

DARKENING = ("Blues", "Reds", "Greys", "Oranges")
LIGHTENING = ("viridis",)
"""Every sequential map of colours that a figure uses."""

APART = 15.0
"""CIE Lab units between two series, some six times what can just be noticed: thin lines and small
dots need more.
"""


@style.in_style
def drawing() -> Figure:
    figure, (left, right) = style.new_figure(6, 3, columns=2)
    left.plot([1, 2, 3], **style.line(0, 3))
    image = right.imshow([[0.1, 0.9]], cmap="Greys", vmin=0, vmax=1)
    write_values(right, np.array([[0.1, 0.9]]), image)
    left.set_title("a title")
    return figure


def test_series_differ_in_colour_dashes_and_marker() -> None:
    for part in ("color", "linestyle", "marker"):
        values = [line[part] for line in style.LINES]
        assert len(set(values)) == len(values)
    assert len(set(style.HATCHES)) == len(style.HATCHES)


def test_neighbouring_series_differ_in_grey() -> None:
    grey = [float(np.dot(to_rgb(line["color"]), (0.299, 0.587, 0.114))) for line in style.LINES]
    assert min(abs(a - b) for a, b in pairwise(grey)) > 0.02


def test_the_simulation_knows_reference_colours_and_keeps_grey() -> None:
    known = np.array(
        [
            [53.24, 80.09, 67.20],
            [87.73, -86.18, 83.18],
            [32.30, 79.19, -107.86],
            [100.0, 0.0, 0.0],
            [0.0, 0.0, 0.0],
        ]
    )
    colours = rgb(["#ff0000", "#00ff00", "#0000ff", "#ffffff", "#000000"])
    np.testing.assert_allclose(lab(colours), known, atol=0.01)
    greys = np.linspace(0, 1, 11)[:, None].repeat(3, axis=1)
    for vision in VISIONS:
        np.testing.assert_allclose(lab(greys, vision), lab(greys), atol=0.01)


def test_series_can_be_told_apart_without_a_kind_of_cone() -> None:
    assert nearest_two([style.BLACK, *(line["color"] for line in style.LINES)]) > APART


@pytest.mark.parametrize("vision", VISIONS)
def test_sequential_maps_darken_all_the_way(vision: str) -> None:
    for name in (*DARKENING, *LIGHTENING):
        colours = colormap(name)[:: 1 if name in DARKENING else -1]
        assert smallest_step(colours, vision) > 0, name
        lightness = lab(colours, vision)[:, 0]
        assert lightness[0] - lightness[-1] > 60, name


@pytest.mark.parametrize("vision", VISIONS)
def test_the_diverging_map_tells_its_sides_apart(vision: str) -> None:
    half = colormap(DIVERGING)
    below = half[:128][::-1]
    above = half[128:]
    assert min(smallest_step(side, vision) for side in (below, above)) > 0
    # From a fifth of the way on; nearer the middle both sides are almost white.
    apart = np.linalg.norm(lab(below, vision) - lab(above, vision), axis=1)[26:]
    assert apart.min() > APART


def test_every_map_of_colours_that_is_used_has_been_tested() -> None:
    named = re.compile(
        r'(?:colormap(?:: str)?|cmap|SEQUENTIAL|DIVERGING|SIGNED) *= *(?:colour_map\()?"(\w+)"'
    )
    used = {
        name
        for path in SOURCES.rglob("*.py")
        for name in named.findall(path.read_text(encoding="utf-8"))
    }
    assert used >= {"Blues", "Reds"}
    assert used <= {*DARKENING, *LIGHTENING, DIVERGING}


@pytest.mark.parametrize("points", [1, 9, 64, 1000])
def test_every_line_gets_some_markers(points: int) -> None:
    for series in range(8):
        start, every = style.line(series, points)["markevery"]
        marked = len(range(points)[start::every])
        assert 1 <= marked <= 20


def test_files_are_written_the_same_each_time_whatever_the_callers_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    formats = ("png", "svg", "pdf")
    first = [
        path.read_bytes()
        for path in style.save_figure(drawing(), tmp_path / "a", "one", formats=formats)
    ]
    # A day that matplotlib would write into the files.
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    with matplotlib.rc_context({"axes.grid": False, "font.size": 20, "savefig.dpi": 30}):
        paths = style.save_figure(drawing(), tmp_path / "b", "one", formats=formats)
    assert [path.name for path in paths] == ["one.png", "one.svg", "one.pdf"]
    assert [path.read_bytes() for path in paths] == first
    assert imread(paths[0]).shape[:2] == (450, 900)
    assert "a title" in paths[1].read_text(encoding="utf-8")
    assert first[2].startswith(b"%PDF")
    assert b"CreationDate" not in first[2]


def test_png_and_svg_are_what_one_gets_unasked(tmp_path: Path) -> None:
    paths = style.save_figure(drawing(), tmp_path, "one")
    assert sorted(tmp_path.iterdir()) == paths == [tmp_path / "one.png", tmp_path / "one.svg"]


def test_a_notebook_shows_a_figure_without_pyplot() -> None:
    figure = pickle.loads(pickle.dumps(style.new_figure(2, 2)[0]))
    shown, _ = DisplayFormatter().format(figure, include={"image/png"})
    assert shown["image/png"].startswith(b"\x89PNG")


def test_cells_are_labelled_in_the_colour_that_shows() -> None:
    texts = {text.get_text(): text.get_color() for text in drawing().axes[1].texts}
    assert texts == {"0.1": "black", "0.9": "white"}


def test_bad_sizes_and_names_are_refused(tmp_path: Path) -> None:
    with refused("0 x 3"):
        style.new_figure(0, 3)
    for name in ("a/b", "one.png", "", "../a"):
        with refused(expected="plain name"):
            style.save_figure(drawing(), tmp_path, name)
    with refused("'gif'", expected="one of png, svg, pdf"):
        style.save_figure(drawing(), tmp_path, "one", formats=("png", "gif"))
    assert list(tmp_path.iterdir()) == []
