from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from glassformer.models.encoder_decoder import EncoderDecoderConfig
from refusals import refused

BASE = EncoderDecoderConfig(
    vocab_size=32,
    hidden_dim=32,
    ff_dim=48,
    num_heads=4,
    num_encoder_layers=1,
    num_decoder_layers=2,
    max_source_len=12,
    max_target_len=9,
)


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"target_vocab_size": 7, "fields_per_slot": 2, "source_positions": "learned", "target_positions": "none"},
        {"activation": "gelu", "norm_first": True, "final_norm": True, "norm_eps": 1e-6, "pad_id": 5},
    ],
)
def test_a_configuration_survives_json(form: dict[str, Any]) -> None:
    config = dataclasses.replace(BASE, dropout=0.125, **form)
    text = config.to_json()
    assert json.loads(text)["dropout"] == 0.125
    assert EncoderDecoderConfig.from_json(text) == config


def test_the_defaults() -> None:
    assert (BASE.source_positions, BASE.target_positions, BASE.activation) == ("none", "sinusoidal", "relu")
    assert (BASE.norm_first, BASE.final_norm, BASE.scale_embeddings) == (False, False, True)
    assert (BASE.norm_eps, BASE.dropout, BASE.pad_id, BASE.fields_per_slot) == (1e-5, 0.1, 0, 1)


def test_the_target_vocabulary_is_the_sources_unless_told() -> None:
    assert BASE.target_vocab == 32
    assert dataclasses.replace(BASE, target_vocab_size=7).target_vocab == 7


@pytest.mark.usefixtures("without_type_checks")
def test_json_that_is_no_configuration_is_refused() -> None:
    fields = json.loads(BASE.to_json())
    without = {name: value for name, value in fields.items() if name != "max_source_len"}
    for text, message in [
        ("[]", "Config from"),
        (json.dumps(fields | {"width": 3}), "width"),
        (json.dumps(without), "max_source_len"),
        (json.dumps(fields | {"num_heads": "4"}), "num_heads = '4'"),
    ]:
        with refused(message):
            EncoderDecoderConfig.from_json(text)


SIZES = ("vocab_size", "hidden_dim", "ff_dim", "num_heads", "num_encoder_layers", "num_decoder_layers")
SIZES = (*SIZES, "max_source_len", "max_target_len", "fields_per_slot", "target_vocab_size")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *(({name: size}, f"{name} = {size}") for name in SIZES for size in (0, -1, 2.5, True)),
        ({"num_heads": 5}, "hidden_dim = 32 with num_heads = 5"),
        ({"activation": "tanh"}, "activation = 'tanh'"),
        ({"source_positions": "rotary"}, "source_positions = 'rotary'"),
        ({"target_positions": None}, "target_positions = None"),
        ({"norm_eps": 0.0}, "norm_eps = 0.0"),
        ({"dropout": 1.0}, "dropout = 1.0"),
        ({"dropout": -0.1}, "dropout = -0.1"),
        ({"pad_id": 32}, r"pad_id = 32"),
        ({"pad_id": -1}, "pad_id = -1"),
        ({"pad_id": False}, "pad_id = False"),
        ({"pad_id": 7, "target_vocab_size": 7}, r"pad_id = 7"),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_impossible_values_are_refused(change: dict[str, Any], message: str) -> None:
    with refused(message):
        dataclasses.replace(BASE, **change)
