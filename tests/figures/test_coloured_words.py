"""Coloured texts: which word has which ground, that it can be read on it, and that lines are broken
where they end.
"""

from itertools import pairwise

import matplotlib
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from colour_vision import linear
from glassformer.figures.coloured_words import coloured_text, shown
from glassformer.figures.style import letter_colour, new_figure
from readable import check_readable
from refusals import refused

WORDS = [
    *("<CLS>", "it", "is", "not", "good", ",", "but", "its", "cast", "makes", "it", "worth"),
    *("$", "5", "or", "$", "10"),
]


def grounds(ax: Axes) -> list[Rectangle]:
    return [patch for patch in ax.patches if isinstance(patch, Rectangle) and patch.get_fill()]


def colours(ax: Axes) -> np.ndarray:
    return np.array([patch.get_facecolor()[:3] for patch in grounds(ax)])


def grey(colour: np.ndarray) -> np.ndarray:
    return colour @ (0.299, 0.587, 0.114)


def test_each_word_has_the_colour_of_its_weight() -> None:
    weights = np.linspace(0, 0.4, len(WORDS))
    ax = coloured_text(WORDS, weights).axes[0]
    assert [text.get_text() for text in ax.texts] == WORDS
    blues = matplotlib.colormaps["Blues"]
    np.testing.assert_allclose(
        colours(ax), [blues(weight / 0.4)[:3] for weight in weights], atol=0.003
    )
    assert (np.diff(grey(colours(ax))) < 0).all()  # in grey, more is darker
    for text, ground in zip(ax.texts, grounds(ax), strict=True):
        inside = ground.get_bbox()
        assert inside.x0 <= text.get_position()[0] <= inside.x1
        assert inside.y0 <= text.get_position()[1] <= inside.y1


def test_signed_weights_are_centred_at_0_and_told_apart_without_colours() -> None:
    figure = coloured_text(["up", "none", "down"], [0.2, 0.0, -0.1], signed=True, label="effect")
    ax, bar = figure.axes
    red, white, blue = colours(ax)
    assert red[0] > red[2]
    assert blue[2] > blue[0]
    assert np.ptp(white) < 0.02
    np.testing.assert_allclose(bar.get_xlim(), (-0.2, 0.2))
    (underline,) = ax.lines
    down = grounds(ax)[2].get_bbox()
    start, end = np.asarray(underline.get_xdata())
    assert down.x0 < start < end < down.x1
    assert [text.get_text() for text in bar.texts] == ["effect, underlined below 0"]
    assert len(coloured_text(["up"], [0.1], signed=True).axes[0].lines) == 0


@pytest.mark.parametrize("signed", [False, True])
def test_letters_can_be_read_on_every_ground(signed: bool) -> None:
    weights = np.linspace(-1 if signed else 0, 1, 201)
    ax = coloured_text(["word"] * 201, weights, signed=signed).axes[0]
    for text, colour in zip(ax.texts, colours(ax), strict=True):
        # Of the relative luminances, as the guidelines put it.
        darker, lighter = sorted(
            linear(np.array([colour, to_rgb(text.get_color())])) @ (0.2126, 0.7152, 0.0722)
        )
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5
    for text, line in zip(ax.texts, ax.lines, strict=False):
        assert line.get_color() == text.get_color()


def test_letters_have_the_higher_contrast() -> None:
    assert letter_colour(to_rgb("white")) == "black"
    assert letter_colour(to_rgb("black")) == "white"
    # WebAIM's examples: #767676 is 4.54 from white and 4.62 from black, #757575 is 4.61 and 4.56.
    assert letter_colour(to_rgb("#767676")) == "black"
    assert letter_colour(to_rgb("#757575")) == "white"
    assert letter_colour(to_rgb("red")) == "black"  # 4.00 from white


@settings(max_examples=12, deadline=None)
@given(words=st.lists(st.text(max_size=12), min_size=1, max_size=40))
@example(words=["b" * 60, "1" * 500, "." * 30])
@example(
    words=[
        "a" * 500,
        "b",
        "$x_1$",
        "\\frac{a}",
        "a\nb",
        "\x00",
        "\u0301",
        "\u200b",
        "",
        "   ",
        "🙂",
        "中文",
        "אב",
    ]
)
@pytest.mark.filterwarnings("error")
def test_any_words_stay_on_the_page_and_apart(words: list[str]) -> None:
    figure = coloured_text(words, np.ones(len(words)))
    figure.draw_without_rendering()
    ax = figure.axes[0]
    assert len(ax.texts) == len(words)
    boxes = [ground.get_bbox() for ground in grounds(ax)]
    assert all(0 <= box.x0 <= box.x1 <= ax.get_xlim()[1] + 1e-6 for box in boxes)
    for before, after in pairwise(boxes):
        assert after.x0 > before.x1 or after.y0 > before.y1
    for text, ground in zip(ax.texts, grounds(ax), strict=True):
        letters = text.get_window_extent().width / figure.dpi * 72
        assert letters <= ground.get_width() + 0.5


def test_what_leaves_no_mark_is_written_out() -> None:
    assert shown("movie") == "movie"
    assert shown("##ing") == "##ing"
    assert shown("naïve — ☃") == "naïve — ☃"
    assert shown("a\nb\t\x00") == "a\\nb\\t\\x00"
    assert shown("e\u0301\u200b") == "e\\u0301\\u200b"
    assert shown("中") == "□"
    assert shown("") == shown(" ") == "␣"


def test_a_long_word_is_cut_to_the_line() -> None:
    ax = coloured_text(["a", "b" * 400, "c"], [1, 2, 3]).axes[0]
    first, cut, last = (text.get_text() for text in ax.texts)
    assert (first, last) == ("a", "c")
    assert cut.endswith("b…")
    assert 50 < len(cut) < 200
    assert len({ground.get_y() for ground in grounds(ax)}) == 3


def test_a_text_in_given_axes() -> None:
    figure, axes = new_figure(9, 5, 2)
    assert coloured_text(WORDS, np.ones(len(WORDS)), "above", ax=axes[0]) is figure
    assert coloured_text(WORDS, np.ones(len(WORDS)), "below", True, axes[1]) is figure
    for ax in axes:
        assert [text.get_text() for text in ax.texts] == WORDS
        assert max(ground.get_bbox().x1 for ground in grounds(ax)) <= ax.get_xlim()[1]
        inches = ax.get_window_extent().width / figure.dpi
        assert ax.get_xlim()[1] == pytest.approx(72 * inches, rel=0.1)
    with refused(r"lines in axes .* inches high"):
        coloured_text(WORDS * 30, np.ones(30 * len(WORDS)), ax=new_figure(4, 2)[1][0])


def test_several_texts_share_a_scale() -> None:
    def ground(figure: Figure) -> tuple[float, ...]:
        return figure.axes[0].patches[0].get_facecolor()

    half = ground(coloured_text(["a", "b"], [0.5, 1.0]))
    assert ground(coloured_text(["a", "b"], [0.5, 0.1], largest=1.0)) == half
    with refused("size 2 with largest = 1"):
        coloured_text(["a"], [-2.0], signed=True, largest=1.0)


def test_figures_can_be_read() -> None:
    rng = np.random.default_rng(1)
    check_readable(
        coloured_text(WORDS * 3, rng.random(3 * len(WORDS)), "A title", label="attention weight")
    )
    check_readable(
        coloured_text(WORDS, rng.normal(size=len(WORDS)), "A title", True, label="effect")
    )
    check_readable(coloured_text(["one"], [0.0]))


def test_what_cannot_be_shown_is_refused() -> None:
    for words, weights, signed, message in (
        ([], [], False, "0 words"),
        (["a"] * 2001, [0.0] * 2001, False, "2001 words"),
        (["a", "b"], [1.0], False, "for 2 words"),
        (["a"], [np.nan], True, "NaN"),
        (["a"], [-0.5], False, "a weight of -0.5"),
    ):
        with refused(message):
            coloured_text(words, weights, signed=signed)
