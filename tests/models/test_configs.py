import dataclasses
import json
from typing import Any

import pytest

from glassformer.kernels.options import Clamp
from glassformer.layers.options import Linear, Llama3, LongRope
from glassformer.models.decoder_config import DecoderConfig
from models.forms import BOTH, BOTHS, DECODER, DECODERS, ENCODER, ENCODERS, Base
from refusals import refused

ENCODER_SIZES = ("vocab_size", "num_layers", "hidden_dim", "ff_dim", "num_heads", "max_seq_len")
BOTH_SIZES = (
    "vocab_size",
    "hidden_dim",
    "ff_dim",
    "num_heads",
    "num_encoder_layers",
    "num_decoder_layers",
)
BOTH_SIZES = (
    *BOTH_SIZES,
    "max_source_len",
    "max_target_len",
    "fields_per_slot",
    "target_vocab_size",
)
WITHOUT_FF: list[tuple[dict[str, Any], str]] = [
    ({"num_experts": 4}, "num_experts"),
    ({"clamp": Clamp()}, "clamp"),
    ({"ff_bias": True}, "ff_bias"),
]


def test_a_layer_has_its_window() -> None:
    config = dataclasses.replace(DECODER, window=7)
    assert [config.layer_window(i) for i in range(4)] == [None, 7, None, 7]
    even = dataclasses.replace(config, windowed_layers="even")
    assert [even.layer_window(i) for i in range(4)] == [7, None, 7, None]
    assert [
        dataclasses.replace(config, windowed_layers="all").layer_window(i) for i in range(4)
    ] == [7] * 4
    assert [DECODER.layer_window(i) for i in range(4)] == [None] * 4


@pytest.mark.parametrize(
    ("base", "form"),
    [
        *((DECODER, form) for form in DECODERS.values()),
        *((ENCODER, form) for form in ENCODERS.values()),
        *((BOTH, form) for form in BOTHS.values()),
        (DECODER, {"balance_experts": True, "norm_eps": 1e-6, "rope_scaling": Linear(factor=4.0)}),
        (
            DECODER,
            {
                "rope_scaling": Llama3(factor=8.0),
                "unrotated_layers": (1, 3),
                "attention_bias": "qkv",
            },
        ),
        (DECODER, {"rope_scaling": LongRope((1.0, 1.5), (2.0, 4.0), 16, 1.25), "rotary_dim": 4}),
        (BOTH, {"norm_eps": 1e-6, "pad_id": 5}),
    ],
)
def test_a_configuration_survives_json(base: Base, form: dict[str, Any]) -> None:
    config = dataclasses.replace(base, dropout=0.125, **form)
    text = config.to_json()
    assert json.loads(text)["dropout"] == 0.125
    assert type(base).from_json(text) == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"expert_format": "int4"}, "expert_format = 'int4'"),
        ({"num_experts": None}, "expert_format = 'mxfp4' with num_experts = None"),
        ({"hidden_dim": 48}, "hidden_dim = 48"),
        ({"ff_dim": 16}, "ff_dim = 16"),
    ],
)
def test_experts_that_cannot_be_packed_are_refused(change: dict[str, Any], message: str) -> None:
    sizes = {
        "vocab_size": 9,
        "num_layers": 1,
        "hidden_dim": 32,
        "ff_dim": 64,
        "num_heads": 2,
        "head_dim": 4,
    }
    DecoderConfig(**sizes, num_experts=2, expert_format="mxfp4")
    with refused(message):
        DecoderConfig(**{**sizes, "num_experts": 2, "expert_format": "mxfp4", **change})


def test_json_of_other_parts_is_refused() -> None:
    for changes, message in [
        ({"clamp": {"height": 1}}, "height"),
        ({"rope_scaling": 4}, "rope_scaling = 4"),
        ({"clamp": {"alpha": "x"}}, r"clamp\.alpha = 'x'"),
    ]:
        with refused(message):
            DecoderConfig.from_json(json.dumps(json.loads(DECODER.to_json()) | changes))


def test_the_defaults_of_the_encoder_decoder() -> None:
    assert (BOTH.source_positions, BOTH.target_positions, BOTH.activation) == (
        "none",
        "sinusoidal",
        "relu",
    )
    assert (BOTH.norm_first, BOTH.final_norm, BOTH.scale_embeddings) == (False, False, True)
    assert (BOTH.norm_eps, type(BOTH).dropout, BOTH.pad_id, BOTH.fields_per_slot) == (
        1e-5,
        0.1,
        0,
        1,
    )


def test_the_target_vocabulary_is_the_sources_unless_told() -> None:
    assert BOTH.target_vocab == BOTH.vocab_size
    assert dataclasses.replace(BOTH, target_vocab_size=7).target_vocab == 7


@pytest.mark.parametrize(
    ("base", "change", "message"),
    [
        *(
            (ENCODER, {name: size}, f"{name} = {size}")
            for name in ENCODER_SIZES
            for size in (0, -1, 2.5, True)
        ),
        *(
            (BOTH, {name: size}, f"{name} = {size}")
            for name in BOTH_SIZES
            for size in (0, -1, 2.5, True)
        ),
        *(
            (base, change, message)
            for base in (ENCODER, BOTH)
            for change, message in (
                ({"num_heads": 5}, "hidden_dim = 24 with num_heads = 5"),
                ({"activation": "tanh"}, "activation = 'tanh'"),
                ({"norm_eps": 0.0}, r"norm_eps = 0\.0"),
                ({"pad_id": 40}, "pad_id = 40"),
                ({"pad_id": -1}, "pad_id = -1"),
                ({"pad_id": False}, "pad_id = False"),
                ({"dropout": 1.0}, r"dropout = 1\.0"),
                ({"dropout": -0.1}, r"dropout = -0\.1"),
            )
        ),
        (ENCODER, {"num_classes": 1}, "num_classes = 1"),
        (ENCODER, {"num_classes": 0}, "num_classes = 0"),
        (ENCODER, {"num_classes": 2.0}, r"num_classes = 2\.0"),
        (ENCODER, {"positions": "rotary"}, "positions = 'rotary'"),
        (ENCODER, {"pooling": "sum"}, "pooling = 'sum'"),
        (ENCODER, {"token_types": -1}, "token_types = -1"),
        (ENCODER, {"token_types": 1.5}, r"token_types = 1\.5"),
        (ENCODER, {"attention_dropout": -0.5}, r"attention_dropout = -0\.5"),
        (ENCODER, {"ff_dropout": 2.0}, r"ff_dropout = 2\.0"),
        (BOTH, {"source_positions": "rotary"}, "source_positions = 'rotary'"),
        (BOTH, {"target_positions": None}, "target_positions = None"),
        (BOTH, {"pad_id": 7, "target_vocab_size": 7}, r"pad_id = 7"),
    ],
)
def test_impossible_configurations_are_refused(
    base: Base, change: dict[str, Any], message: str
) -> None:
    with refused(message):
        dataclasses.replace(base, **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *(
            ({name: size}, f"{name} = {size}")
            for name in (
                "vocab_size",
                "num_layers",
                "hidden_dim",
                "num_heads",
                "head_dim",
                "max_seq_len",
            )
            for size in (0, -1, 2.5, True)
        ),
        *(({"ff_dim": size}, f"ff_dim = {size}") for size in (-1, 2.5, True)),
        *(({"ff_dim": 0, **more}, f"ff_dim = 0 with {name}") for more, name in WITHOUT_FF),
        ({"head_dim": 7}, "head_dim = 7"),
        ({"num_kv_heads": 3}, "num_kv_heads = 3 with num_heads = 4"),
        ({"num_kv_heads": 8}, "num_kv_heads = 8"),
        ({"num_kv_heads": 0}, "num_kv_heads = 0"),
        ({"num_kv_heads": 2.0}, r"num_kv_heads = 2\.0"),
        ({"window": 0}, "window = 0"),
        ({"window": 2.5}, r"window = 2\.5"),
        ({"windowed_layers": "third"}, "windowed_layers = 'third'"),
        ({"num_experts": 0}, "num_experts = 0"),
        ({"num_experts": 4, "top_k": 5}, "top_k = 5 with num_experts = 4"),
        ({"num_experts": 4, "top_k": 0}, "top_k = 0"),
        ({"dropout": 1.0}, r"dropout = 1\.0"),
        ({"dropout": -0.5}, r"dropout = -0\.5"),
        ({"norm_eps": 0.0}, r"norm_eps = 0\.0"),
        ({"rope_base": 0.5}, r"base = 0\.5"),
        ({"rope_base": float("inf")}, "rope_base = inf"),
        ({"rope_layout": "spiral"}, "layout = 'spiral'"),
        ({"sinks": "no"}, "sinks = 'no'"),
        ({"norm_eps": True}, "norm_eps = True"),
        ({"attention_bias": "all"}, "attention_bias = 'all'"),
        ({"ff_dim": 0, "parallel": True}, "ff_dim = 0 with parallel"),
        ({"parallel": True, "norm_place": "after"}, "parallel with norm_place = 'after'"),
        ({"num_experts": 4, "activation": "gelu"}, "activation = 'gelu'"),
        ({"clamp": Clamp(), "gated": False}, "gated = False"),
        ({"rotary_dim": 3}, "rotary_dim = 3"),
        ({"rotary_dim": 10}, "rotary_dim = 10 with head_dim = 8"),
        ({"rope_scaling": LongRope((1.0,), (2.0,), 16)}, "1 factors"),
        ({"local_rope_base": 100.0}, "local_rope_base = 100.0 without a window"),
        ({"unrotated_layers": (4,)}, r"unrotated_layers = \(4,\) with num_layers = 4"),
        (
            {"learned_positions": True, "rope_scaling": Linear(2.0)},
            "learned_positions with rope_scaling",
        ),
        ({"attention_cap": 0.0}, "attention_cap = 0.0"),
        ({"clamp": {"alpha": "x"}}, "clamp = "),
        ({"windowed_layers": (0, 4)}, r"windowed_layers = \(0, 4\) with num_layers = 4"),
        ({"windowed_layers": (-1,)}, "windowed_layers"),
    ],
)
def test_impossible_decoders_are_refused(change: dict[str, Any], message: str) -> None:
    with refused(message):
        dataclasses.replace(DECODER, **change)
