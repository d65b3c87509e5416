"""What every figure has to be: nothing cut off, no text on another."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text


def _check(figure: Figure) -> None:
    figure.draw_without_rendering()
    pixels = figure.get_tightbbox().extents * figure.dpi
    assert pixels[0] >= -0.5, pixels
    assert pixels[1] >= -0.5, pixels
    assert pixels[2] <= figure.bbox.width + 0.5, pixels
    assert pixels[3] <= figure.bbox.height + 0.5, pixels
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts]
    assert all(max(box.width, box.height) >= 5 for _, box in boxes), "letters of less than 5 pixels"
    clashes = [
        (first, second)
        for (first, one), (second, other) in combinations(boxes, 2)
        # A line of text has some room above and below its letters.
        if min(one.x1, other.x1) - max(one.x0, other.x0) > 1 and min(one.y1, other.y1) - max(one.y0, other.y0) > 3
    ]
    assert clashes == []


@pytest.fixture
def check_readable() -> Callable[[Figure], None]:
    """Fails for a figure with something cut off, or with one text on another."""
    return _check
