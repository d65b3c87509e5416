from __future__ import annotations

import json
from pathlib import Path

import pytest

from glassformer.cli.runs import description, read_run
from glassformer.kernels.options import Clamp
from glassformer.layers.options import Yarn
from glassformer.models import DecoderConfig
from glassformer.training import TrainingConfig
from refusals import refused

MODEL = DecoderConfig(
    7, num_layers=1, hidden_dim=8, ff_dim=8, num_heads=1, head_dim=8, clamp=Clamp(), rope_scaling=Yarn()
)
TRAINING = TrainingConfig(steps=5, betas=(0.5, 0.9))


def store(directory: Path, described: object, training: str | None = None) -> None:
    text = f'{{"training": {training or TRAINING.to_json()}, "description": {json.dumps(described)}}}'
    (directory / "config.json").write_text(text)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    store(tmp_path, description(MODEL, {"kind": "recurrence"}, seed=3))
    stored = read_run(tmp_path)
    assert (stored.model, stored.training) == (MODEL, TRAINING)
    assert (stored.data, stored.options) == ({"kind": "recurrence"}, {"seed": 3})


def test_a_place_without_a_run_says_how_to_make_one(tmp_path: Path) -> None:
    with refused("holds no run", fix="glassformer train --data FILE --run DIR"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    "described",
    [
        None,
        [],
        {},
        {"model": {"n_layers": 4}, "data": {"kind": "text"}},
        {"model": json.loads(MODEL.to_json())},
        {"model": json.loads(MODEL.to_json()), "data": {"kind": "images"}},
        {"model": json.loads(MODEL.to_json()), "data": 3},
        {"model": {**json.loads(MODEL.to_json()), "num_heads": 0}, "data": {"kind": "text"}},
    ],
)
def test_runs_of_something_else_are_refused(tmp_path: Path, described: object) -> None:
    store(tmp_path, described)
    with refused(r"config\.json, which does not describe a decoder and its data"):
        read_run(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"description": {}}'])
def test_a_damaged_configuration_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with refused(r"config\.json, which does not describe"):
        read_run(tmp_path)
