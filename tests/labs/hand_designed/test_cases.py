"""The course's random cases, against its own definitions written as loops."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from glassformer.handcraft.tasks import TASKS
from glassformer.labs.hand_designed import cases
from refusals import refused


def drawn(seed: int, max_len: int) -> list[int]:
    """The letters that the course's generator draws: a length from NumPy, the letters from Python."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    length = np.random.randint(1, max_len)  # noqa: NPY002
    return random.choices(range(3), k=length)


def seeded(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002


@pytest.mark.parametrize("seed", range(8))
def test_each_task_gives_the_courses_sequence_and_target(seed: int) -> None:
    letters = drawn(seed, 7)
    seeded(seed)
    sequence, target = cases.generate_test_cases_identity(list(np.eye(3)))
    assert sequence.argmax(axis=1).tolist() == target.argmax(axis=1).tolist() == letters

    letters = drawn(seed, 5)
    seeded(seed)
    sequence, target = cases.generate_test_cases_first(list(np.eye(3)))
    assert sequence.argmax(axis=1).tolist() == letters
    assert target.argmax(axis=1).tolist() == [letters[0]] * len(letters)

    seeded(seed)
    sequence, target = cases.generate_test_cases_unique(list(np.eye(4)[:3]))
    assert sequence.argmax(axis=1).tolist() == [3, *letters]
    assert target.ravel().tolist() == [1 if letters.count(letter) == 1 else -1 for letter in letters]


def test_batches_are_the_same_cases_in_float32() -> None:
    for make, generate, tokens in (
        (cases.make_batch_identity, cases.generate_test_cases_identity, list(np.eye(3))),
        (cases.make_batch_first, cases.generate_test_cases_first, list(np.eye(3))),
        (cases.make_batch_unique, cases.generate_test_cases_unique, list(np.eye(4)[:3])),
    ):
        seeded(5)
        sequence, target = make()
        seeded(5)
        expected = generate(tokens)
        assert (sequence.dtype, target.dtype) == (torch.float32,) * 2
        assert (sequence.numpy() == expected[0]).all()
        assert (target.numpy() == expected[1]).all()


def test_any_vectors_may_be_tokens() -> None:
    seeded(0)
    sequence, target = cases.generate_test_cases_unique([np.array([2, 2, 0]), np.array([1, 3, 0])], max_len=40)
    rows = [tuple(row) for row in sequence[1:]]
    assert sequence[0].tolist() == [0, 0, 1]
    assert target.ravel().tolist() == [1 if rows.count(row) == 1 else -1 for row in rows]


def test_the_courses_letters_and_shown_sequences() -> None:
    for task, vectors in cases.LETTERS.items():
        space = TASKS[task]().space
        assert np.array_equal(vectors, space.one_hot(space.block([space.encode("ABC")]))[0, -3:])
    vectors, names = cases.shown_sequence("unique")
    assert names == ["CLS", "A", "B", "C", "C"]
    assert vectors.argmax(axis=1).tolist() == [3, 0, 1, 2, 2]
    assert cases.shown_sequence("copy_first")[1] == ["A", "B", "B"]
    assert cases.shown_sequence("identity")[1] == ["A", "B", "B", "C", "C"]


def test_bad_arguments_are_refused() -> None:
    with refused("no tokens"):
        cases.generate_test_cases_identity([])
    with refused("max_len = 1"):
        cases.generate_test_cases_first(list(np.eye(3)), max_len=1)
    with refused("'parity'"):
        cases.shown_sequence("parity")
