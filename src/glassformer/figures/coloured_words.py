"""A text with coloured words: each word's contribution to a prediction, or its attention."""

import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.patches import Rectangle
from matplotlib.textpath import text_to_path
from numpy.typing import ArrayLike

from glassformer.errors import InputError
from glassformer.figures.heat_maps import DIVERGING, SEQUENTIAL
from glassformer.figures.style import (
    colour_map,
    create_ticks,
    figure_of,
    in_style,
    letter_colour,
    new_figure,
    restyle_axes,
)

MOST_WORDS = 2000
"""Maximum number of words of a text."""

_SIZE = 11.0
_PAD = 2.5
_SPACE = 4.0
"""Sizes in points: of letters, of the background around a word, and between two words."""
_LINE = 25.0
_INCH = 72.0
_WIDTH = 8.0
_MARGIN = 0.25
_TITLE = 0.38
_BAR = 0.55
"""Sizes in inches: the figure's width and margin, and the space for title and colour bar."""
_PAGE_WIDTH = (_WIDTH - 2 * _MARGIN) * _INCH
"""Width in points."""
_HINTED = 1.03
"""Largest ratio of a word's drawn width to its measured one; hinting rounds letters up."""
_LONGEST = 200
"""Maximum number of letters of a word that does not fit into a line."""

_FONT = in_style(FontProperties)(family="DejaVu Sans", size=_SIZE)
"""Bundled with matplotlib, so that lines break alike everywhere."""


def coloured_text(
    words: Sequence[str],
    weights: ArrayLike,
    title: str | None = None,
    signed: bool = False,
    ax: Axes | None = None,
    *,
    label: str | None = None,
    largest: float | None = None,
) -> Figure:
    """Draw a text, each word on a background that shows its weight, in as many lines as it needs.

    Weights from 0 on are drawn from white to dark blue. Signed ones are red above 0 and blue below,
    on a symmetric scale; words below 0 are underlined, which shows in a grey print, too. Letters
    are black or white, whichever has the higher contrast: at least 4.58 : 1.

    Line breaks and other invisible characters are written as escapes (``\\n``), characters that the
    font lacks as an empty box. A word that is longer than a line is cut with "…".

    Args:
        signed: Weights of both signs, around 0.
        ax: Axes to draw in, of unchanged size; emptied first unless they are from
            :func:`~glassformer.figures.style.new_figure`. None makes a new figure.
        label: Label of the colour bar.
        largest: Weight at the end of the scale, for several texts on one scale; a text in ``ax``
            then has no colour bar. None: the largest of ``weights``.
    """
    values = _checked(words, weights, signed)
    end = float(np.abs(values).max())
    if largest is not None:
        if not end <= largest:  # also refuses NaN
            raise InputError(
                got=f"a weight of size {end:g} with largest = {largest}",
                expected="no weight above largest",
                fix="Pass the largest of all texts.",
            )
        end = largest
    end = end or 1.0
    if signed:
        scale = ScalarMappable(Normalize(-end, end), colour_map(DIVERGING))
        label = f"{label or 'weight'}, underlined below 0"
    else:
        scale = ScalarMappable(Normalize(0.0, end), colour_map(SEQUENTIAL))
    if ax is None:
        lines = _broken(words, _PAGE_WIDTH)
        figure, room = _page(len(lines), title, scale, label)
    else:
        figure = figure_of(ax)
        room = ax
        _prepare(ax, title, scale if largest is None else None, label)
        width, height = _room(ax)
        lines = _broken(words, width)
        needed = len(lines) * _LINE
        if needed > height:
            raise InputError(
                got=f"a text of {len(lines)} lines in axes {height / _INCH:.1f} inches high",
                expected=f"{needed / _INCH:.1f} inches",
                fix="Use larger axes, or omit ax.",
            )
    _write(room, lines, values, scale, 0.0)
    return figure


def shown(word: str) -> str:
    """Return ``word`` as it is drawn, with visible characters only.

    Invisible characters become escapes; characters that the font lacks become an empty box.
    """
    font = get_font(findfont(_FONT))

    def visible(letter: str) -> str:
        if not letter.isprintable() or unicodedata.category(letter) == "Mn":
            return letter.encode("unicode_escape").decode()
        return letter if font.get_char_index(ord(letter)) else "□"

    if word.strip(" "):
        return "".join(visible(letter) for letter in word)
    return "␣"


def _checked(words: Sequence[str], weights: ArrayLike, signed: bool) -> Float[np.ndarray, " word"]:
    """Return the weights of the words in float64; refuse unusable ones."""
    values = np.asarray(weights, dtype=float)
    if not 1 <= len(words) <= MOST_WORDS:
        raise InputError(
            got=f"{len(words)} words",
            expected=f"1 to {MOST_WORDS:,}",
            fix="Draw a part of the text.",
        )
    if values.shape != (len(words),):
        raise InputError(
            got=f"weights of shape {list(values.shape)} for {len(words)} words",
            expected=f"{len(words)}, one for each word",
            fix="Omit padding.",
        )
    if not np.isfinite(values).all():
        raise InputError(
            got="NaN or infinite weights",
            expected="finite numbers",
            fix="Check the model.",
        )
    least = float(values.min())
    if not signed and least < 0:
        raise InputError(
            got=f"a weight of {least:g}",
            expected="weights from 0 on, or signed = True",
            fix="Pass signed=True for effects of both signs.",
        )
    return values


def _width(text: str) -> float:
    return float(text_to_path.get_text_width_height_descent(text, _FONT, ismath=False)[0])


Line = list[tuple[int, str, float, float]]
"""Words of a line: index, text, and start and width of the background in points."""


@in_style
def _broken(words: Sequence[str], width: float) -> list[Line]:
    """Break the words into lines of at most ``width`` points."""
    lines: list[Line] = [[]]
    left = 0.0
    room = (width - _PAD) / _HINTED
    for number, word in enumerate(words):
        text = shown(word)
        if _width(text) > room:
            text = _cut(text, room)
        size = max(_width(text) + 2 * _PAD, _width(text) * _HINTED + _PAD)
        if lines[-1] and left + size > width:
            lines.append([])
            left = 0.0
        lines[-1].append((number, text, left, size))
        left += size + _SPACE
    return lines


def _cut(text: str, room: float) -> str:
    """Return the longest beginning of ``text`` that fits into ``room`` points, with "…"."""
    beginnings = (text[:end] + "…" for end in range(_LONGEST, 0, -1))
    return next(beginning for beginning in beginnings if _width(beginning) <= room)


@in_style
def _prepare(ax: Axes, title: str | None, scale: ScalarMappable | None, label: str | None) -> None:
    """Write the title above the caller's axes, and draw the colour bar of ``scale`` below them."""
    restyle_axes(ax)
    ax.set_axis_off()
    ax.set_title(title or "")
    if scale is not None:
        size: dict[str, Any] = {"orientation": "horizontal", "shrink": 0.4, "aspect": 25}
        create_ticks(figure_of(ax).colorbar(scale, ax=ax, label=label or "", **size).ax)


@in_style
def _page(
    rows: float | int, title: str | None, scale: ScalarMappable, label: str | None
) -> tuple[Figure, Axes]:
    """Make a figure for ``rows`` lines, with title and colour bar, and axes in points."""
    text = rows * _LINE / _INCH
    above = _TITLE if title else 0.1
    height = above + text + _BAR
    figure, (ax,) = new_figure(_WIDTH, height)
    figure.set_layout_engine("none")
    ax.set_position((_MARGIN / _WIDTH, _BAR / height, 1 - 2 * _MARGIN / _WIDTH, text / height))
    ax.set(xlim=(0, _PAGE_WIDTH), ylim=(rows * _LINE, 0))
    if title:
        place = _MARGIN / _WIDTH, 1 - _TITLE / 2 / height
        figure.text(*place, title, weight="bold", size=11, va="center")
    bar = figure.add_axes((_MARGIN / _WIDTH, (_BAR - 0.25) / height, 2.4 / _WIDTH, 0.12 / height))
    figure.colorbar(scale, cax=bar, orientation="horizontal")
    bar.tick_params(labelsize=8)
    bar.locator_params(nbins=4)
    if label:
        bar.text(1.06, 0.5, label, transform=bar.transAxes, va="center", size=8.5)
    return figure, ax


def _room(ax: Axes) -> tuple[float, float]:
    """Return width and height of ``ax`` in points, and make these its coordinates.

    The figure is laid out with the caller's settings, because this creates ticks of all its axes.
    """
    figure = figure_of(ax)
    figure.draw_without_rendering()
    box = ax.get_window_extent()
    width, height = (float(size / figure.dpi * _INCH) for size in (box.width, box.height))
    ax.set(xlim=(0, width), ylim=(height, 0))
    return width, height


@in_style
def _write(
    ax: Axes,
    lines: list[Line],
    values: Float[np.ndarray, " key"],
    scale: ScalarMappable,
    top: float,
) -> None:
    """Draw the lines from ``top`` on, in points."""
    ax.set_axis_off()
    for row, line in enumerate(lines):
        upper = top + row * _LINE + 3
        height = _LINE - 6
        for number, text, left, width in line:
            red, green, blue, _ = scale.to_rgba(values[number])
            ground = (float(red), float(green), float(blue))
            letters = letter_colour(ground)
            ax.add_patch(
                Rectangle(
                    (left, upper), width, height, facecolor=ground, edgecolor="#c0c0c0", lw=0.4
                )
            )
            place = (left + _PAD, upper + height / 2)
            ax.text(*place, text, color=letters, fontproperties=_FONT, va="center_baseline")
            if values[number] < 0:
                low = upper + height - 2.5
                ax.plot([left + _PAD, left + width - _PAD], [low, low], color=letters, lw=1.0)
