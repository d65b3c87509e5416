"""Illustrations: they show what they claim in words, and products of positions as theory has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation

from glassformer.labs.sentiment.illustrations import draw_positions, draw_recurrent_and_parallel
from refusals import refused


@pytest.mark.parametrize("draw", [draw_recurrent_and_parallel, draw_positions])
def test_it_can_be_read(draw: Callable[[], Figure], check_readable: Callable[[Figure], None]) -> None:
    check_readable(draw())


def arrows(ax: Axes) -> list[tuple[Any, Any, bool]]:
    """Start, end, and whether it is highlighted."""
    found = [text for text in ax.texts if isinstance(text, Annotation) and text.arrow_patch is not None]
    return [(text.xyann, text.xy, text.arrow_patch.get_linewidth() > 2) for text in found if text.arrow_patch]


@pytest.mark.parametrize("count", [2, 3, 6])
def test_links_from_the_first_word_to_the_last(count: int) -> None:
    recurrence, attention = draw_recurrent_and_parallel(" ".join(f"w{n}" for n in range(count))).axes
    for ax, links, expected in ((recurrence, 2 * count - 1, count), (attention, count**2, 1)):
        drawn = arrows(ax)
        assert len(drawn) == links
        at, steps, ways = (0, 0), 0, {start: end for start, end, highlighted in drawn if highlighted}
        while at != (count - 1, 1):
            at, steps = ways[at], steps + 1
        assert steps == expected
        assert f"{expected} link" in ax.get_title(loc="left")
    assert f"{count} steps" in recurrence.get_title(loc="left")

    with refused("1 words"):
        draw_recurrent_and_parallel("w0")


def test_products_of_positions_are_the_sum_of_cosines() -> None:
    waves, products, _ = draw_positions(40, 12).axes
    frequencies = 10000.0 ** (-np.arange(6) / 6)
    expected = np.cos(np.arange(40)[:, None] * frequencies).sum(axis=1)
    for drawn, start in zip(products.lines, (0, 10, 20), strict=True):
        np.testing.assert_allclose(np.asarray(drawn.get_ydata(), dtype=float), expected[: 40 - start], atol=1e-5)
    image = np.asarray(waves.images[0].get_array())
    np.testing.assert_allclose(image[[0, 1, 6, 7], 7], [np.sin(7), np.cos(7), np.sin(0.07), np.cos(0.07)], atol=1e-6)
