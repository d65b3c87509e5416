"""Drawings of encoders: they show what their parts say, and can be read."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyBboxPatch
from torch import nn

from glassformer.labs.sentiment.model_diagram import Part, architecture, block, draw, one_block, whole
from refusals import refused
from small_models import BERT, encoder

KINDS: dict[str, dict[str, Any]] = {"course": {}, "BERT": BERT, "norms before": {"norm_first": True}}
every_kind = pytest.mark.parametrize("kind", KINDS)


def texts(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in figure.axes[0].texts)


@every_kind
def test_the_parameters_of_the_parts_are_all_there_are(kind: str) -> None:
    model = encoder(**KINDS[kind])
    assert sum(part.parameters for part in whole(model)) == sum(weight.numel() for weight in model.parameters())
    for layer, own in enumerate(model.layers):
        assert sum(part.parameters for part in one_block(model, layer)) == sum(p.numel() for p in own.parameters())


def test_shapes_are_those_of_a_run() -> None:
    model, shapes = encoder(), [part.output_shape for part in whole(encoder()) if part.output_shape]
    assert model.pool(model.hidden(torch.ones(5, 4, dtype=torch.long)), None).shape == (5, 8)
    assert (shapes[0], shapes[1], *shapes[-2:]) == (
        "[batch, position]",
        "[batch, position, 8]",
        "[batch, 8]",
        "[batch, 2]",
    )
    inner = [part.output_shape for part in one_block(model)]
    assert inner[1:5] == ["2 x [batch, position, 4]", "[batch, 2, query, key]", *["[batch, position, 8]"] * 2]
    assert inner[7:9] == ["[batch, position, 20]"] * 2


def test_sums_skip_their_half() -> None:
    after, before = (one_block(encoder(norm_first=first)) for first in (False, True))
    assert [part.name for part in after if part.kind in ("norm", "sum")] == ["+", "LayerNorm", "+", "LayerNorm"]
    assert [part.name for part in before if part.kind in ("norm", "sum")] == ["LayerNorm", "+", "LayerNorm", "+"]
    assert [part.skips for part in after if part.kind == "sum"] == [4, 3]
    assert [part.skips for part in before if part.kind == "sum"] == [5, 4]


def test_an_encoder_says_its_sizes() -> None:
    figure = architecture(encoder())
    shown = texts(figure)
    for expected in ("50 x 8, times sqrt(8)", "sines and cosines, 16 x 8, added", "2 heads of 4", "8 → 20 → 8, GELU"):
        assert expected in shown
    for expected in ("3 blocks", "mean over real tokens", "8 → 2 classes", "[batch, 2]", "3 x 288 parameters"):
        assert expected in shown
    assert shown.count("LayerNorm") == 3
    assert "Encoder: " in shown
    assert "Last LayerNorm" in shown
    bert = texts(architecture(encoder(**BERT)))
    for expected in ("learned, 16 x 8", "Token types", "2 x 8, added", "Embedding LayerNorm", "no classification head"):
        assert expected in bert
    assert "sqrt" not in bert
    assert "Last" not in bert


@every_kind
def test_the_drawings_can_be_read(kind: str, check_readable: Callable[[Figure], None]) -> None:
    model = encoder(**KINDS[kind])
    for figure, parts, frames in ((architecture(model), whole(model), 1), (block(model), one_block(model), 0)):
        check_readable(figure)
        ax = figure.axes[0]
        assert len(ax.findobj(Circle)) == len(ax.lines) == 2
        assert len(ax.findobj(FancyBboxPatch)) == sum(part.kind != "sum" for part in parts) + frames
    assert "Block 2 of 3: " in texts(block(model, 1))


def test_frames_stand_around_neighbours(check_readable: Callable[[Figure], None]) -> None:
    for captions in product(("", "a", "b"), repeat=2):
        parts = [Part(f"part {n}", "norm", output_shape=f"[{n}]", block=caption) for n, caption in enumerate(captions)]
        figure = draw(parts, "frames")
        expected = sum(c != "" and c != before for before, c in zip(("", *captions), captions, strict=False))
        assert len(figure.axes[0].findobj(FancyBboxPatch)) == 2 + expected
        check_readable(figure)


@pytest.mark.usefixtures("without_type_checks")
def test_what_cannot_be_drawn_is_refused() -> None:
    with refused("a Linear"):
        architecture(nn.Linear(2, 2))  # type: ignore[arg-type]
    for layer in (3, -1):
        with refused(f"layer = {layer}"):
            block(encoder(), layer)
