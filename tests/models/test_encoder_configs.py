"""The configurations of encoder and encoder-decoder."""

import dataclasses
import json
from typing import Any

import pytest

from glassformer.models.encoder import EncoderConfig
from glassformer.models.encoder_decoder import EncoderDecoderConfig
from refusals import refused

ENCODER = EncoderConfig(vocab_size=32, num_layers=2, hidden_dim=32, ff_dim=48, num_heads=4)
BOTH = EncoderDecoderConfig(
    vocab_size=32,
    hidden_dim=32,
    ff_dim=48,
    num_heads=4,
    num_encoder_layers=1,
    num_decoder_layers=2,
    max_source_len=12,
    max_target_len=9,
)
BERT = {"final_norm": False, "positions": "learned", "scale_embeddings": False, "embedding_norm": True}
BERT |= {"token_types": 2, "norm_eps": 1e-12, "ff_dropout": 0.0}
FORMS = [
    (ENCODER, {}),
    (ENCODER, BERT),
    (ENCODER, {"num_classes": 3, "pooling": "max", "activation": "relu", "pad_id": 5}),
    (BOTH, {}),
    (BOTH, {"target_vocab_size": 7, "fields_per_slot": 2, "source_positions": "learned", "target_positions": "none"}),
    (BOTH, {"activation": "gelu", "norm_first": True, "final_norm": True, "norm_eps": 1e-6, "pad_id": 5}),
]
ENCODER_SIZES = ("vocab_size", "num_layers", "hidden_dim", "ff_dim", "num_heads", "max_seq_len")
BOTH_SIZES = ("vocab_size", "hidden_dim", "ff_dim", "num_heads", "num_encoder_layers", "num_decoder_layers")
BOTH_SIZES = (*BOTH_SIZES, "max_source_len", "max_target_len", "fields_per_slot", "target_vocab_size")


@pytest.mark.parametrize(("base", "form"), FORMS)
def test_a_configuration_survives_json(base: Any, form: dict[str, Any]) -> None:
    config = dataclasses.replace(base, dropout=0.125, **form)
    text = config.to_json()
    assert json.loads(text)["dropout"] == 0.125
    assert type(base).from_json(text) == config


def test_the_defaults_of_the_encoder_decoder() -> None:
    assert (BOTH.source_positions, BOTH.target_positions, BOTH.activation) == ("none", "sinusoidal", "relu")
    assert (BOTH.norm_first, BOTH.final_norm, BOTH.scale_embeddings) == (False, False, True)
    assert (BOTH.norm_eps, BOTH.dropout, BOTH.pad_id, BOTH.fields_per_slot) == (1e-5, 0.1, 0, 1)


def test_the_target_vocabulary_is_the_sources_unless_told() -> None:
    assert BOTH.target_vocab == 32
    assert dataclasses.replace(BOTH, target_vocab_size=7).target_vocab == 7


@pytest.mark.parametrize(
    ("base", "change", "message"),
    [
        *((ENCODER, {name: size}, f"{name} = {size}") for name in ENCODER_SIZES for size in (0, -1, 2.5, True)),
        *((BOTH, {name: size}, f"{name} = {size}") for name in BOTH_SIZES for size in (0, -1, 2.5, True)),
        *(
            (base, change, message)
            for base in (ENCODER, BOTH)
            for change, message in (
                ({"num_heads": 5}, "hidden_dim = 32 with num_heads = 5"),
                ({"activation": "tanh"}, "activation = 'tanh'"),
                ({"norm_eps": 0.0}, r"norm_eps = 0\.0"),
                ({"pad_id": 32}, "pad_id = 32"),
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
def test_impossible_configurations_are_refused(base: Any, change: dict[str, Any], message: str) -> None:
    with refused(message):
        dataclasses.replace(base, **change)
