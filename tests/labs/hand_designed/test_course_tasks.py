"""The course's random cases against its own definitions as loops, and its submission log against plain formulas."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import numpy as np
import pytest
import torch

from glassformer.labs.hand_designed import course_tasks, hand_designed_weights, set_random_seed

ONE_HOT, WITH_CLS = list(np.eye(3)), list(np.eye(4)[:3])


def drawn(seed: int, max_len: int) -> list[int]:
    """The letters that the course's generator draws: a length from NumPy, the letters from Python."""
    set_random_seed(seed)
    length = np.random.randint(1, max_len)  # noqa: NPY002
    return random.choices(range(3), k=length)


@pytest.mark.parametrize("seed", range(8))
def test_each_task_gives_the_courses_sequence_and_target(seed: int) -> None:
    letters = drawn(seed, 7)
    set_random_seed(seed)
    sequence, target = course_tasks.generate_test_cases_identity(ONE_HOT)
    assert sequence.argmax(axis=1).tolist() == target.argmax(axis=1).tolist() == letters

    letters = drawn(seed, 5)
    set_random_seed(seed)
    sequence, target = course_tasks.generate_test_cases_first(ONE_HOT)
    assert sequence.argmax(axis=1).tolist() == letters
    assert target.argmax(axis=1).tolist() == [letters[0]] * len(letters)

    set_random_seed(seed)
    sequence, target = course_tasks.generate_test_cases_unique(WITH_CLS)
    assert sequence.argmax(axis=1).tolist() == [3, *letters]
    assert target.ravel().tolist() == [1 if letters.count(letter) == 1 else -1 for letter in letters]


def test_batches_are_the_same_cases_in_float32() -> None:
    for make, generate, tokens in (
        (course_tasks.make_batch_identity, course_tasks.generate_test_cases_identity, ONE_HOT),
        (course_tasks.make_batch_first, course_tasks.generate_test_cases_first, ONE_HOT),
        (course_tasks.make_batch_unique, course_tasks.generate_test_cases_unique, WITH_CLS),
    ):
        set_random_seed(5)
        sequence, target = make()
        set_random_seed(5)
        expected = generate(tokens)
        assert (sequence.dtype, target.dtype) == (torch.float32,) * 2
        assert (sequence.numpy() == expected[0]).all()
        assert (target.numpy() == expected[1]).all()


def test_any_vectors_may_be_tokens() -> None:
    tokens = [np.array([2, 2, 0]), np.array([1, 3, 0])]
    sequence, target = course_tasks.generate_test_cases_unique(tokens, max_len=40)
    rows = [tuple(row) for row in sequence[1:]]
    assert sequence[0].tolist() == [0, 0, 1]
    assert target.ravel().tolist() == [1 if rows.count(row) == 1 else -1 for row in rows]


def test_the_shown_sequences_are_the_courses() -> None:
    vectors, names = course_tasks.shown_sequence("unique")
    assert names == ["CLS", "A", "B", "C", "C"]
    assert vectors.argmax(axis=1).tolist() == [3, 0, 1, 2, 2]
    assert course_tasks.shown_sequence("copy_first")[1] == ["A", "B", "B"]
    assert course_tasks.shown_sequence("identity")[1] == ["A", "B", "B", "C", "C"]


@pytest.fixture(scope="module")
def log() -> dict[str, Any]:
    return json.loads(json.dumps(course_tasks.submission(), allow_nan=False))


def test_the_log_has_the_courses_entries(log: dict[str, Any]) -> None:
    torch_part = {f"torch_transformer_{name}" for name in ("shape", "value", "init", "forward")}
    content = {"attention_by_content", *(f"attention_by_content_{name}" for name in "QKV")}
    position = {"attention_by_position", *(f"attention_by_position_{name}" for name in ("pos", *"QKV"))}
    assert set(log) == {"time"} | torch_part | content | position
    assert log["attention_by_content_Q"] == hand_designed_weights("identity")["Qm"].flatten().tolist()


def test_the_torch_part_is_the_result_of_the_courses_seed(log: dict[str, Any]) -> None:
    torch.manual_seed(1998)
    pos = torch.nn.Embedding(9, 2).weight
    query, key, value = (torch.nn.Linear(9, size, bias=False).weight for size in (4, 4, 3))
    x = torch.cat([torch.randn(8, 7), pos[:8]], dim=1)
    out = ((x @ query.T) @ (x @ key.T).T / 2).softmax(dim=-1) @ (x @ value.T)
    assert log["torch_transformer_shape"] == [8, 3]
    assert log["torch_transformer_value"] == pytest.approx(out.flatten()[2:7].tolist(), rel=1e-5)
    assert "def __init__(" in log["torch_transformer_init"]
    assert "self.Qm.weight" in log["torch_transformer_forward"]


@pytest.mark.parametrize(
    ("name", "seed", "max_len", "first"),
    [("attention_by_content", 1997, 7, False), ("attention_by_position", 2017, 5, True)],
)
def test_the_logged_weights_give_the_target(
    log: dict[str, Any], name: str, seed: int, max_len: int, first: bool
) -> None:
    letters = drawn(seed, max_len)
    x = np.eye(3)[letters]
    if first:
        x = np.concatenate([x, np.reshape(log[f"{name}_pos"], (4, -1))[: len(x)]], axis=1)
    K, Q, V = (x @ np.reshape(log[f"{name}_{key}"], (x.shape[1], -1)) for key in "KQV")
    weights = np.exp(Q @ K.T / math.sqrt(K.shape[1]))
    expected = weights / weights.sum(axis=1, keepdims=True) @ V
    assert log[name] == pytest.approx(expected.flatten().tolist(), abs=1e-12)
    wanted = np.eye(3)[[letters[0]] * len(letters) if first else letters]
    assert log[name] == pytest.approx(wanted.flatten().tolist(), abs=1e-3)
