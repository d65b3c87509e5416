"""Drawings of networks: they say what the loaded model is, in the order in which it computes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyBboxPatch
from torch import nn

from glassformer.errors import InputError
from glassformer.layers.feedforward import Clamp
from glassformer.layers.positions import Yarn
from glassformer.models.decoder import Decoder
from glassformer.models.decoder_config import DecoderConfig
from glassformer.models.encoder import Encoder
from glassformer.models.encoder_config import EncoderConfig
from glassformer.observe.diagrams import Part, architecture, block, describe, describe_block, draw


def encoder(**changes: Any) -> Encoder:
    sizes = {"vocab_size": 50, "num_layers": 3, "hidden_dim": 8, "ff_dim": 20, "num_heads": 2, "max_seq_len": 16}
    return Encoder(EncoderConfig(**{**sizes, "num_classes": 2, **changes}))


def decoder(**changes: Any) -> Decoder:
    sizes = {"vocab_size": 50, "num_layers": 4, "hidden_dim": 8, "ff_dim": 20, "num_heads": 4, "head_dim": 6}
    return Decoder(DecoderConfig(**{**sizes, "max_seq_len": 64, **changes}))


BERT: dict[str, Any] = {
    "final_norm": False,
    "positions": "learned",
    "scale_embeddings": False,
    "embedding_norm": True,
    "token_types": 2,
    "num_classes": None,
}
EXPERTS: dict[str, Any] = {
    "num_kv_heads": 2,
    "window": 9,
    "num_experts": 4,
    "sinks": True,
    "key_weights": True,
    "attention_bias": True,
    "ff_bias": True,
    "clamp": Clamp(),
    "tied_output": True,
    "yarn": Yarn(8.0),
}
MODELS: dict[str, Callable[[], Encoder | Decoder]] = {
    "course": encoder,
    "one block": lambda: encoder(num_layers=1, activation="relu", positions="none"),
    "pre-norm": lambda: encoder(norm_first=True, pooling="cls"),
    "BERT": lambda: encoder(**BERT),
    "dense decoder": decoder,
    "experts": lambda: decoder(**EXPERTS),
}
every_model = pytest.mark.parametrize("name", MODELS)


def texts(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in figure.axes[0].texts)


def called(model: Encoder | Decoder) -> list[str]:
    """The modules of a model in the order in which a forward pass calls them."""
    order: list[str] = []
    for name, module in model.named_modules():
        module.register_forward_pre_hook(lambda *_, name=name: order.append(name))
    tokens = torch.ones(1, 3, dtype=torch.int64)
    model.eval()
    if isinstance(model, Encoder) and model.classifier is None:
        model.hidden(tokens)
    else:
        model(tokens)
    return order


@every_model
def test_the_parameters_of_the_parts_are_all_there_are(name: str) -> None:
    model = MODELS[name]()
    assert sum(part.parameters for part in describe(model)) == sum(p.numel() for p in model.parameters())
    for layer, own in enumerate(model.layers):
        assert sum(part.parameters for part in describe_block(model, layer)) == sum(p.numel() for p in own.parameters())


@every_model
def test_parts_stand_in_the_order_in_which_they_are_computed(name: str) -> None:
    model = MODELS[name]()
    order = called(model)
    for parts in (describe(model), describe_block(model, 0)):
        named = [part.module for part in parts if part.module and part.module != "embedding"]
        assert len(named) >= 4
        assert [order.index(module) for module in named] == sorted(order.index(module) for module in named)


@every_model
def test_residual_paths_go_around_what_they_add_to(name: str) -> None:
    """Each sum with everything that its path goes around, run as described, gives the block's own result."""
    model = MODELS[name]().eval()
    parts, x = describe(model), torch.randn(2, 5, 8)
    inside = [part for part in parts if part.block]
    rotation = {"rotation": model.rotary.rotation(5)} if isinstance(model, Decoder) else {}
    entered, stream = [], x
    for index, part in enumerate(inside):
        entered.append(stream)
        if part.kind == "sum":
            stream = stream + entered[index - part.around]
        else:
            options = rotation if part.kind == "attention" else {}
            stream = model.get_submodule(part.module)(stream, **options)
    torch.testing.assert_close(stream, model.layers[0](x, **rotation), rtol=0, atol=1e-6)


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


def test_shapes_of_a_block_are_those_that_pass() -> None:
    model, given = encoder().eval(), {}
    for name, module in model.named_modules():
        module.register_forward_hook(lambda _, __, output, name=name: given.update({name: output}))
    model(torch.ones(7, 5, dtype=torch.int64))
    for part in describe_block(model, 1):
        if part.module and not part.module.endswith("query"):
            sizes = part.gives.replace("batch", "7").replace("position", "5")
            assert sizes == str(list(given[part.module].shape))


@every_model
def test_the_drawings_can_be_read(name: str, check_readable: Callable[[Figure], None]) -> None:
    model = MODELS[name]()
    for figure, parts in ((architecture(model), describe(model)), (block(model), describe_block(model))):
        check_readable(figure)
        ax = figure.axes[0]
        assert len(ax.findobj(Circle)) == 2
        framed = any(part.block for part in parts)
        assert len(ax.findobj(FancyBboxPatch)) == sum(part.kind != "sum" for part in parts) + framed


def test_large_models_fit(check_readable: Callable[[Figure], None]) -> None:
    with torch.device("meta"):
        model = decoder(vocab_size=201_088, hidden_dim=2880, num_layers=36, num_experts=128, ff_dim=2880, num_heads=64)
    check_readable(architecture(model))
    check_readable(block(model, 35))


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
        parts = [Part(f"part {n}", "norm", gives=f"[{n}]", block=caption) for n, caption in enumerate(captions)]
        figure = draw(parts, "frames")
        expected = sum(c != "" and c != before for before, c in zip(("", *captions), captions, strict=False))
        assert len(figure.axes[0].findobj(FancyBboxPatch)) == 2 + expected
        check_readable(figure)


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(InputError, match="a Linear"):
        architecture(nn.Linear(2, 2))
    with pytest.raises(InputError, match="layer = 3"):
        block(encoder(), 3)
    with pytest.raises(InputError, match="layer = -1"):
        block(encoder(), -1)
    with pytest.raises(InputError, match="no parts"):
        draw([], "nothing")
