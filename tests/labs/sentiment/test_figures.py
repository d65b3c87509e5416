"""Figures without results: how words reach each other, the time line, and diagrams of encoders."""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyBboxPatch
from matplotlib.text import Annotation
from torch import nn

from glassformer.labs.sentiment.figures import EVENTS, draw_recurrent_and_parallel, draw_timeline
from glassformer.labs.sentiment.model_diagram import (
    Part,
    architecture,
    block,
    draw,
    one_block,
    whole,
)
from readable import check_readable
from refusals import refused
from small_models import BERT, encoder


@pytest.mark.parametrize("drawing", [draw_recurrent_and_parallel, draw_timeline])
def test_it_can_be_read(drawing: Callable[[], Figure]) -> None:
    check_readable(drawing())


def arrows(ax: Axes) -> list[tuple[Any, Any, bool]]:
    """Start, end, and whether it is highlighted."""
    found = [
        text for text in ax.texts if isinstance(text, Annotation) and text.arrow_patch is not None
    ]
    return [
        (text.xyann, text.xy, text.arrow_patch.get_linewidth() > 2)
        for text in found
        if text.arrow_patch
    ]


@pytest.mark.parametrize("count", [2, 3, 6])
def test_links_from_the_first_word_to_the_last(count: int) -> None:
    recurrence, attention = draw_recurrent_and_parallel(
        " ".join(f"w{n}" for n in range(count))
    ).axes
    for ax, links, expected in ((recurrence, 2 * count - 1, count), (attention, count**2, 1)):
        drawn = arrows(ax)
        assert len(drawn) == links
        at = (0, 0)
        steps = 0
        ways = {start: end for start, end, highlighted in drawn if highlighted}
        while at != (count - 1, 1):
            at = ways[at]
            steps = steps + 1
        assert steps == expected
        assert f"{expected} link" in ax.get_title(loc="left")
    assert f"{count} steps" in recurrence.get_title(loc="left")

    with refused("1 words"):
        draw_recurrent_and_parallel("w0")


def test_the_time_line_is_true_to_scale() -> None:
    sizes, unknown = draw_timeline().axes
    known = [event for event in EVENTS if event["parameters"] is not None]
    drawn_at = [np.asarray(drawn.get_data(), dtype=float) for drawn in sizes.lines]
    points = [tuple(place[:, 0]) for place in drawn_at if place.size]
    assert points == [
        (event["year"] + (event["month"] - 0.5) / 12, event["parameters"]) for event in known
    ]
    assert len(unknown.lines) == len(EVENTS) - len(known)
    assert sizes.get_yscale() == "log"
    texts = {text.get_text() for ax in (sizes, unknown) for text in ax.texts}
    assert {"GPT-3, 175 B", "BERT, 340 M", "Switch, 1.6 T", "GPT-4"} <= texts
    markers = {
        text.get_text(): drawn.get_marker()
        for text, drawn in zip(sizes.texts, sizes.lines, strict=False)
    }
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


KINDS: dict[str, dict[str, Any]] = {
    "course": {},
    "BERT": BERT,
    "norms before": {"norm_first": True},
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def texts(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in figure.axes[0].texts)


@every_kind
def test_the_parameters_of_the_parts_are_all_there_are(kind: str) -> None:
    model = encoder(**KINDS[kind])
    assert sum(part.parameters for part in whole(model)) == sum(
        weight.numel() for weight in model.parameters()
    )
    for layer, own in enumerate(model.layers):
        assert sum(part.parameters for part in one_block(model, layer)) == sum(
            p.numel() for p in own.parameters()
        )


def test_shapes_are_those_of_a_run() -> None:
    shapes = [part.output_shape for part in whole(encoder()) if part.output_shape]
    assert shapes[:2] + shapes[-2:] == [
        "[batch, position]",
        "[batch, position, 8]",
        "[batch, 8]",
        "[batch, 2]",
    ]
    inner = [part.output_shape for part in one_block(encoder())]
    assert inner[1:5] == [
        "2 x [batch, position, 4]",
        "[batch, 2, query, key]",
        *["[batch, position, 8]"] * 2,
    ]
    assert inner[7:9] == ["[batch, position, 20]"] * 2


def test_sums_skip_their_half() -> None:
    after, before = (one_block(encoder(norm_first=first)) for first in (False, True))
    assert [part.name for part in after if part.kind in ("norm", "sum")] == [
        "+",
        "LayerNorm",
        "+",
        "LayerNorm",
    ]
    assert [part.name for part in before if part.kind in ("norm", "sum")] == [
        "LayerNorm",
        "+",
        "LayerNorm",
        "+",
    ]
    assert [part.skips for part in after if part.kind == "sum"] == [4, 3]
    assert [part.skips for part in before if part.kind == "sum"] == [5, 4]


def test_an_encoder_says_its_sizes() -> None:
    figure = architecture(encoder())
    shown = texts(figure)
    for expected in (
        "50 x 8, times sqrt(8)",
        "sines and cosines, 16 x 8, added",
        "2 heads of 4",
        "8 → 20 → 8, GELU",
    ):
        assert expected in shown
    for expected in (
        "3 blocks",
        "mean over real tokens",
        "8 → 2 classes",
        "[batch, 2]",
        "3 x 288 parameters",
    ):
        assert expected in shown
    assert shown.count("LayerNorm") == 3
    assert "Encoder: " in shown
    assert "Last LayerNorm" in shown
    bert = texts(architecture(encoder(**BERT)))
    for expected in (
        "learned, 16 x 8",
        "Token types",
        "2 x 8, added",
        "Embedding LayerNorm",
        "no classification head",
    ):
        assert expected in bert
    assert "sqrt" not in bert
    assert "Last" not in bert


@every_kind
def test_the_drawings_can_be_read(kind: str) -> None:
    model = encoder(**KINDS[kind])
    for figure, parts, frames in (
        (architecture(model), whole(model), 1),
        (block(model), one_block(model), 0),
    ):
        check_readable(figure)
        ax = figure.axes[0]
        assert len(ax.findobj(Circle)) == len(ax.lines) == 2
        assert len(ax.findobj(FancyBboxPatch)) == sum(part.kind != "sum" for part in parts) + frames
    assert "Block 2 of 3: " in texts(block(model, 1))


def test_frames_stand_around_neighbours() -> None:
    for captions in product(("", "a", "b"), repeat=2):
        parts = [
            Part(f"part {n}", "norm", output_shape=f"[{n}]", block=caption)
            for n, caption in enumerate(captions)
        ]
        figure = draw(parts, "frames")
        expected = sum(
            c != "" and c != before for before, c in zip(("", *captions), captions, strict=False)
        )
        assert len(figure.axes[0].findobj(FancyBboxPatch)) == 2 + expected
        check_readable(figure)


def test_what_cannot_be_drawn_is_refused() -> None:
    with refused("a Linear"):
        architecture(nn.Linear(2, 2))
    for layer in (3, -1):
        with refused(f"layer = {layer}"):
            block(encoder(), layer)
