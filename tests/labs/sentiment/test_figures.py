"""Figures without a model: they show what they claim in words; the time line is true to the publications."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation

from glassformer.labs.sentiment.figures import EVENTS, draw_positions, draw_recurrent_and_parallel, draw_timeline
from refusals import refused


@pytest.mark.parametrize("draw", [draw_recurrent_and_parallel, draw_positions, draw_timeline])
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


def test_the_time_line_is_true_to_scale() -> None:
    sizes, unknown = draw_timeline().axes
    known = [event for event in EVENTS if event["parameters"] is not None]
    drawn_at = [np.asarray(drawn.get_data(), dtype=float) for drawn in sizes.lines]
    points = [tuple(place[:, 0]) for place in drawn_at if place.size]
    assert points == [(event["year"] + (event["month"] - 0.5) / 12, event["parameters"]) for event in known]
    assert len(unknown.lines) == len(EVENTS) - len(known)
    assert sizes.get_yscale() == "log"
    texts = {text.get_text() for ax in (sizes, unknown) for text in ax.texts}
    assert {"GPT-3, 175 B", "BERT, 340 M", "Switch, 1.6 T", "GPT-4"} <= texts
    markers = {text.get_text(): drawn.get_marker() for text, drawn in zip(sizes.texts, sizes.lines, strict=False)}
    assert markers["Switch, 1.6 T"] == markers["gpt-oss-120b, 117 B"] != markers["GPT-3, 175 B"]


def test_dates_and_sizes_are_those_of_the_publications() -> None:
    """Where the course's list and the publications differ: T5 was published in 2019."""
    by_name = {event["name"]: event for event in EVENTS}
    assert by_name["T5"]["year"] == 2019
    assert {by_name[name]["year"] for name in ("Switch", "Codex")} == {2021}
    assert [event["year"] for event in EVENTS] == sorted(event["year"] for event in EVENTS)
    assert set(range(2017, 2025)) <= {event["year"] for event in EVENTS}
    assert by_name["GPT-2"]["parameters"] == 1.5e9
    assert by_name["PaLM"]["parameters"] == 540e9
