"""The time line is true to scale, and to the publications."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from matplotlib.figure import Figure

from glassformer.labs.sentiment.timeline import EVENTS, draw_timeline


def test_it_can_be_read(check_readable: Callable[[Figure], None]) -> None:
    check_readable(draw_timeline())


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
