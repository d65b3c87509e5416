"""Drawings of networks: they show what their descriptions say, and can be read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from itertools import product

import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyBboxPatch
from torch import nn

from glassformer.labs.sentiment.model_diagram import architecture, block, draw
from glassformer.models.encoder_decoder import EncoderDecoder
from glassformer.observe.model_summary import Part, describe, describe_block
from refusals import refused
from small_models import BERT, EXPERTS, MODELS, SLOTS, decoder, encoder, encoder_decoder

every_model = pytest.mark.parametrize("name", MODELS)


def framed(parts: Sequence[Part]) -> int:
    """How many frames a drawing has: one in each stack that has blocks."""
    return len({part.stack for part in parts if part.block})


def texts(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in figure.axes[0].texts)


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


def test_a_decoder_says_its_sizes() -> None:
    shown = texts(architecture(decoder(**EXPERTS)))
    for expected in (
        "4 heads of 6, 2 of keys and values",
        "a token sees itself and the 8 before, in 2 of 4 blocks",
        "rotary positions, base 10,000, stretched 8 times by YaRN",
        "a learned sink and key weight in each head",
        "4 experts, 2 for each token",
        "each 8 → 20 → 8, SwiGLU clamped at 7",
        "the weights of the token embedding",
    ):
        assert expected in shown
    assert shown.count("RMSNorm") == 3
    plain = texts(architecture(decoder()))
    assert "a token sees itself and all before" in plain
    assert "sink" not in plain


def test_each_block_says_its_own_window() -> None:
    model = decoder(**EXPERTS)
    windows = ["itself and the 8 before" in texts(block(model, layer)) for layer in range(4)]
    assert windows == [False, True, False, True]


@every_model
def test_the_drawings_can_be_read(name: str, check_readable: Callable[[Figure], None]) -> None:
    model = MODELS[name]()
    for figure, parts in ((architecture(model), describe(model)), (block(model), describe_block(model))):
        check_readable(figure)
        ax, sums = figure.axes[0], 1 if name == "attention only" else 2
        assert len(ax.findobj(Circle)) == (
            5 if framed(parts) == 2 else 3 if isinstance(model, EncoderDecoder) else sums
        )
        assert len(ax.findobj(FancyBboxPatch)) == sum(part.kind != "sum" for part in parts) + framed(parts)


def test_large_models_fit(check_readable: Callable[[Figure], None]) -> None:
    with torch.device("meta"):
        model = decoder(vocab_size=201_088, hidden_dim=2880, num_layers=36, num_experts=128, ff_dim=2880, num_heads=64)
    check_readable(architecture(model))
    check_readable(block(model, 35))


def test_an_encoder_decoder_says_its_sizes_and_reads(check_readable: Callable[[Figure], None]) -> None:
    model = encoder_decoder(**SLOTS)
    figure = architecture(model)
    shown = texts(figure)
    for expected in (
        f"EncoderDecoder: {sum(weight.numel() for weight in model.parameters()):,} parameters",
        "2 tables of 50 x 8, one for each field of a slot",
        "30 x 8, times sqrt(8)",
        "every slot sees every real slot",
        "a token sees itself and all before",
        "a token sees all that is real in the memory",
        "8 → 30",
        "[batch, slot, 2]",
    ):
        assert expected in shown
    assert [frame for frame in ("2 blocks", "3 blocks") if frame in shown] == ["2 blocks", "3 blocks"]
    # Beside two residual paths of the encoder's block and three of the decoder's, one line to the cross-attention.
    assert len(figure.axes[0].lines) == 6
    for stack, sums, lines in (("encoder", 2, 2), ("decoder", 3, 4)):
        figure = block(model, 1, stack=stack)
        check_readable(figure)
        assert len(figure.axes[0].findobj(Circle)) == sums
        assert len(figure.axes[0].lines) == lines
        assert f"{stack.title()} block 2 of" in texts(figure)
    assert texts(block(model)) == texts(block(model, stack="decoder"))


def test_two_stacks_stand_side_by_side(check_readable: Callable[[Figure], None]) -> None:
    first = [part for part in describe(encoder()) if part.kind not in ("head", "data")]
    second = [dataclasses.replace(part, stack=1) for part in describe(decoder())]
    place = next(index for index, part in enumerate(second) if part.kind == "feed-forward")
    cross = Part("Cross-attention", "attention", block=second[place].block, stack=1, reads=0)
    alone = draw([*first, *second], "Two stacks")
    figure = draw([*first, *second[:place], cross, *second[place:]], "Two stacks")
    check_readable(figure)
    boxes = [box.get_x() for box in figure.axes[0].findobj(FancyBboxPatch)]
    assert len(set(boxes)) == 4  # boxes and frames of either stack
    assert len(figure.axes[0].lines) == len(alone.axes[0].lines) + 1


def test_frames_stand_around_neighbours(check_readable: Callable[[Figure], None]) -> None:
    for captions in product(("", "a", "b"), repeat=2):
        parts = [Part(f"part {n}", "norm", output_shape=f"[{n}]", block=caption) for n, caption in enumerate(captions)]
        figure = draw(parts, "frames")
        expected = sum(c != "" and c != before for before, c in zip(("", *captions), captions, strict=False))
        assert len(figure.axes[0].findobj(FancyBboxPatch)) == 2 + expected
        check_readable(figure)


def test_what_cannot_be_drawn_is_refused() -> None:
    with refused("a Linear"):
        architecture(nn.Linear(2, 2))
    with refused("layer = 3"):
        block(encoder(), 3)
    with refused("layer = -1"):
        block(encoder(), -1)
    with refused("stack = 'encoder' for Encoder"):
        block(encoder(), stack="encoder")
    with refused("no parts"):
        draw([], "nothing")
