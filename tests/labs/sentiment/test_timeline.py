"""The time line: true to scale, true to the record."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from matplotlib.figure import Figure

from glassformer.labs.sentiment.timeline import EVENTS, Event, timeline
from refusals import refused


def test_it_can_be_read(check_readable: Callable[[Figure], None]) -> None:
    check_readable(timeline())


def test_the_time_line_is_true_to_scale() -> None:
    sizes, unknown = timeline().axes
    known = [event for event in EVENTS if event.parameters is not None]
    drawn_at = [np.asarray(drawn.get_data(), dtype=float) for drawn in sizes.lines]
    points = [tuple(place[:, 0]) for place in drawn_at if place.size]
    assert points == [(event.year + (event.month - 0.5) / 12, event.parameters) for event in known]
    assert len(unknown.lines) == len(EVENTS) - len(known)
    assert sizes.get_yscale() == "log"
    texts = {text.get_text() for ax in (sizes, unknown) for text in ax.texts}
    assert {"GPT-3, 175 B", "BERT, 340 M", "Switch, 1.6 T", "GPT-4"} <= texts
    markers = {text.get_text(): drawn.get_marker() for text, drawn in zip(sizes.texts, sizes.lines, strict=False)}
    assert markers["Switch, 1.6 T"] == markers["gpt-oss-120b, 117 B"] != markers["GPT-3, 175 B"]


def test_dates_and_sizes_of_the_course_are_mended() -> None:
    """Where its list and the publications differ: T5 came in 2019."""
    by_name = {event.name: event for event in EVENTS}
    assert by_name["T5"].year == 2019
    assert {by_name[name].year for name in ("Switch", "Codex")} == {2021}
    assert [event.year for event in EVENTS] == sorted(event.year for event in EVENTS)
    assert set(range(2017, 2025)) <= {event.year for event in EVENTS}
    assert by_name["GPT-2"].parameters == 1.5e9
    assert by_name["PaLM"].parameters == 540e9


def test_other_events_can_be_drawn(check_readable: Callable[[Figure], None]) -> None:
    small = (Event("one", 2000, 1, 10.0), Event("two", 2001, 12), Event("three", 2001, 12))
    figure = timeline(small)
    check_readable(figure)
    assert [text.get_text() for text in figure.axes[0].texts] == ["one, 10"]
    assert [np.asarray(drawn.get_ydata()).tolist() for drawn in figure.axes[1].lines] == [[0], [1]]


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ((), "no events"),
        ((Event("x", 2000, 13),), "a month from 1 to 12"),
        ((Event("x", 2000, 1, 0.0),), "parameters above 0"),
    ],
)
def test_impossible_events_are_refused(events: tuple[Event, ...], message: str) -> None:
    with refused(anywhere=message):
        timeline(events)
