from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from glassformer.models.encoder import EncoderConfig
from refusals import refused

BASE = EncoderConfig(vocab_size=32, num_layers=2, hidden_dim=32, ff_dim=48, num_heads=4)
BERT = {
    "final_norm": False,
    "positions": "learned",
    "scale_embeddings": False,
    "embedding_norm": True,
    "token_types": 2,
    "norm_eps": 1e-12,
    "ff_dropout": 0.0,
}


@pytest.mark.parametrize("form", [{}, BERT, {"num_classes": 3, "pooling": "max", "activation": "relu", "pad_id": 5}])
def test_a_configuration_survives_json(form: dict[str, Any]) -> None:
    config = dataclasses.replace(BASE, dropout=0.125, **form)
    text = config.to_json()
    assert json.loads(text)["dropout"] == 0.125
    assert EncoderConfig.from_json(text) == config


@pytest.mark.usefixtures("without_type_checks")
def test_json_that_is_no_configuration_is_refused() -> None:
    fields = json.loads(BASE.to_json())
    without = {name: value for name, value in fields.items() if name != "ff_dim"}
    for text, message in [
        ("{", "Config from"),
        ("[]", "Config from"),
        ("3", "Config from"),
        (json.dumps(fields | {"width": 3}), "width"),
        (json.dumps(without), "ff_dim"),
        (json.dumps(fields | {"num_heads": "4"}), "num_heads = '4'"),
        (json.dumps(fields | {"dropout": "0.1"}), "dropout = '0.1'"),
        (json.dumps(fields | {"dropout": None}), "dropout = None"),
    ]:
        with refused(message):
            EncoderConfig.from_json(text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *(
            ({name: size}, f"{name} = {size}")
            for name in ("vocab_size", "num_layers", "hidden_dim", "ff_dim", "num_heads", "max_seq_len")
            for size in (0, -1, 2.5, True)
        ),
        ({"num_heads": 5}, "hidden_dim = 32 with num_heads = 5"),
        ({"num_classes": 1}, "num_classes = 1"),
        ({"num_classes": 0}, "num_classes = 0"),
        ({"num_classes": 2.0}, r"num_classes = 2\.0"),
        ({"activation": "tanh"}, "activation = 'tanh'"),
        ({"norm_eps": 0.0}, r"norm_eps = 0\.0"),
        ({"positions": "rotary"}, "positions = 'rotary'"),
        ({"pooling": "sum"}, "pooling = 'sum'"),
        ({"token_types": -1}, "token_types = -1"),
        ({"token_types": 1.5}, r"token_types = 1\.5"),
        ({"pad_id": 32}, "pad_id = 32"),
        ({"pad_id": -1}, "pad_id = -1"),
        ({"dropout": 1.0}, r"dropout = 1\.0"),
        ({"attention_dropout": -0.5}, r"attention_dropout = -0\.5"),
        ({"ff_dropout": 2.0}, r"ff_dropout = 2\.0"),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_impossible_configurations_are_refused(change: dict[str, Any], message: str) -> None:
    with refused(message):
        dataclasses.replace(BASE, **change)
