"""The log for the course: what its seeds give, recomputed here by plain formulas, and what the schema refuses."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import numpy as np
import pytest
import torch

from glassformer.handcraft.single_head import HeadWeights
from glassformer.labs.hand_designed import submission
from glassformer.labs.hand_designed.exercises import hand_designed_weights
from refusals import refused

KEYS = {
    "time",
    "torch_transformer_shape",
    "torch_transformer_value",
    "torch_transformer_init",
    "torch_transformer_forward",
    "attention_by_content",
    "attention_by_content_Q",
    "attention_by_content_K",
    "attention_by_content_V",
    "attention_by_position",
    "attention_by_position_pos",
    "attention_by_position_Q",
    "attention_by_position_K",
    "attention_by_position_V",
}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = submission.write_submission(tmp_path_factory.mktemp("log") / "submission_log.json")
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def heads() -> tuple[HeadWeights, HeadWeights]:
    return tuple(HeadWeights(**hand_designed_weights(task)) for task in ("identity", "copy_first"))


def test_it_has_the_courses_entries(log: dict[str, Any]) -> None:
    assert set(log) == KEYS


def test_the_torch_part_is_what_the_courses_seed_gives(log: dict[str, Any]) -> None:
    torch.manual_seed(1998)
    pos = torch.nn.Embedding(9, 2).weight
    query, key, value = (torch.nn.Linear(9, size, bias=False).weight for size in (4, 4, 3))
    x = torch.cat([torch.randn(8, 7), pos[:8]], dim=1)
    out = ((x @ query.T) @ (x @ key.T).T / 2).softmax(dim=-1) @ (x @ value.T)
    assert log["torch_transformer_shape"] == [8, 3]
    assert log["torch_transformer_value"] == pytest.approx(out.flatten()[2:7].tolist(), rel=1e-5)
    assert "def __init__(" in log["torch_transformer_init"]
    assert "nn.Linear" in log["torch_transformer_init"]
    assert "self.Qm.weight" in log["torch_transformer_forward"]


@pytest.mark.parametrize(
    ("name", "seed", "longest", "first"),
    [("attention_by_content", 1997, 6, False), ("attention_by_position", 2017, 4, True)],
)
def test_the_logged_weights_give_the_wanted_outputs(
    log: dict[str, Any], name: str, seed: int, longest: int, first: bool
) -> None:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    letters = random.choices(range(3), k=np.random.randint(1, longest + 1))  # noqa: NPY002
    x = np.eye(3)[letters]
    if first:
        pos = np.reshape(log[f"{name}_pos"], (4, -1))
        x = np.concatenate([x, pos[: len(x)]], axis=1)
    K, Q, V = (x @ np.reshape(log[f"{name}_{key}"], (x.shape[1], -1)) for key in "KQV")
    weights = np.exp(Q @ K.T / math.sqrt(K.shape[1]))
    expected = weights / weights.sum(axis=1, keepdims=True) @ V
    assert log[name] == pytest.approx(expected.flatten().tolist(), abs=1e-12)
    wanted = np.eye(3)[[letters[0]] * len(letters) if first else letters]
    assert log[name] == pytest.approx(wanted.flatten().tolist(), abs=1e-3)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"attention_by_content_Q": [1.0] * 8}, "attention_by_content_Q"),
        ({"attention_by_position_pos": None}, "attention_by_position_pos"),
        ({"attention_by_content": [1.0] * 4}, "attention_by_content"),
        ({"attention_by_position": [1.0] * 15}, "attention_by_position"),
        ({"torch_transformer_shape": [8, 4]}, "torch_transformer_shape"),
        ({"torch_transformer_value": ["a"] * 5}, "torch_transformer_value"),
        ({"torch_transformer_init": "return"}, "torch_transformer_init"),
        ({"time": "now"}, "time"),
        ({"name": "me"}, "name"),
    ],
)
def test_a_wrong_log_is_refused(
    log: dict[str, Any], heads: tuple[HeadWeights, HeadWeights], change: dict[str, Any], named: str
) -> None:
    submission.validate(log, *heads)
    with refused(named):
        submission.validate({**log, **change}, *heads)


def test_a_missing_entry_is_named(log: dict[str, Any], heads: tuple[HeadWeights, HeadWeights]) -> None:
    for name in log:
        with refused(name):
            submission.validate({key: value for key, value in log.items() if key != name}, *heads)
