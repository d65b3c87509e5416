"""The tasks' targets against plain Python on text, and against what their descriptions say."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.handcraft.tasks import TASKS, Task, identity, majority_letter, unique
from refusals import refused

LETTERS = "ABC"


def one_hot(letters: str) -> list[list[float]]:
    return [[float(letter == other) for other in LETTERS] for letter in letters]


def signs(yes: list[bool]) -> list[list[float]]:
    return [[1.0 if each else -1.0] for each in yes]


MEANINGS: dict[str, Callable[[str], list[list[float]]]] = {
    "identity": one_hot,
    "copy_first": lambda text: one_hot(text[0] * len(text)),
    "unique": lambda text: signs([Counter(text)[letter] == 1 for letter in text]),
    "previous_token": lambda text: one_hot(text[0] + text[:-1]),
    "last_token": lambda text: one_hot(text[-1] * len(text)),
    "majority_letter": lambda text: (
        [[text.count(letter) / len(text) for letter in LETTERS]] * len(text)
    ),
    "occurs_earlier": lambda text: signs([letter in text[:i] for i, letter in enumerate(text)]),
    "parity": lambda text: signs([text.count("A") % 2 == 0] * len(text)),
}


@pytest.mark.parametrize("name", TASKS)
def test_targets_are_what_the_task_says_for_every_sequence(name: str) -> None:
    task = TASKS[name](LETTERS, 5)
    cases = task.all_cases
    texts = ["".join(x) for length in range(1, 6) for x in product(LETTERS, repeat=length)]
    assert len(texts) == len(cases.block.tokens) == task.count == 363
    assert task.name == name
    first = int(task.space.has_cls)
    for row, text in enumerate(texts):
        assert cases.counted[row].tolist() == [False] * first + [i < len(text) for i in range(5)]
        np.testing.assert_allclose(
            cases.target[row, first : first + len(text)], MEANINGS[name](text), atol=1e-15
        )


@pytest.mark.parametrize("name", [name for name in TASKS if name != "parity"])
def test_the_description_does_what_the_task_wants(name: str) -> None:
    for letters, max_len in (("ABC", 5), ("A", 4), ("ABCDEFGH", 2)):
        task: Task = TASKS[name](letters, max_len)
        cases = task.all_cases
        output = task.description.output(cases.block)
        np.testing.assert_allclose(output[cases.counted], cases.target[cases.counted], atol=1e-12)
        assert cases.missed < 1e-12


def test_no_description_or_one_of_something_else_is_noticed() -> None:
    assert TASKS["parity"]().all_cases.missed == math.inf
    assert (
        replace(identity(), description=TASKS["last_token"]("ABC", 6).description).all_cases.missed
        == 1
    )


@given(seed=st.integers(0, 1000), name=st.sampled_from(sorted(TASKS)))
@settings(max_examples=25, deadline=None)
def test_random_cases_are_cases_of_the_task(seed: int, name: str) -> None:
    task = TASKS[name]()
    drawn = task.cases(task.space.block(task.space.sample(7, seed)))
    all_cases = task.all_cases
    known = {
        (tokens[real].tobytes()): target[real].tobytes()
        for tokens, real, target in zip(
            all_cases.block.tokens, all_cases.block.real, all_cases.target, strict=True
        )
    }
    for tokens, real, target in zip(
        drawn.block.tokens, drawn.block.real, drawn.target, strict=True
    ):
        assert known[tokens[real].tobytes()] == target[real].tobytes()


def test_queries_hold_each_judged_query_with_its_keys() -> None:
    task = unique("AB", 2)
    cases = task.all_cases
    assert cases.queries is not None
    place, keys, wanted, others, target = cases.queries
    tokens, positions = task.space.places
    # The last sequence is BB; its last query is B at position 2, and attends to the B at position
    # 1.
    names = [
        (task.space.token_names[tokens[p]], int(positions[p])) for p in (place[-1], *keys[:, -1])
    ]
    assert names == [("B", 2), ("CLS", 0), ("B", 1), ("B", 2)]
    assert wanted[:, -1].tolist() == [False, True, False]
    assert others[:, -1].tolist() == [True, False, True]
    assert target[:, -1].tolist() == [-1.0]


def test_readouts() -> None:
    task = majority_letter()
    target = np.array([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.2, 0.3, 0.5], [0.2, 0.3, 0.5]])
    output = np.array([[0.1, 0.9, 0.0], [0.4, 0.1, 0.5], [0.0, 0.1, 0.2], [0.2, 0.4, 0.4]])
    assert task.is_right(output, target).tolist() == [True, False, True, False]
    assert unique().is_right(
        np.array([[0.1], [0.0], [-3.0]]), np.array([[1.0], [1.0], [-1.0]])
    ).tolist() == [
        True,
        False,
        True,
    ]


def test_listed_examples_are_all_there_is() -> None:
    task = replace(identity(), examples=("AB", "CCC"))
    assert task.count == 2
    (cases,) = task.case_blocks(1)
    assert cases.block.real.sum() == 5


def test_large_tasks_are_not_kept_in_memory_at_once() -> None:
    task = identity("ABCDEFGHIJ", 6)
    with refused("1,111,110 sequences"):
        _ = task.all_cases
    assert sum(len(cases.block.tokens) for cases in task.case_blocks(100_000, longest=4)) == 11_110


@pytest.mark.parametrize(
    "target", [lambda x: np.zeros((len(x), 2)), lambda x: np.full((*x.shape, 3), np.nan)]
)
def test_targets_of_another_shape_are_refused(target: Any) -> None:
    with refused("targets of shape"):
        _ = replace(identity(), target=target).all_cases


@pytest.mark.parametrize(("letters", "max_len"), [("A", 4), ("AB", 2)])
def test_parity_is_asked_only_where_no_head_can_do_it(letters: str, max_len: int) -> None:
    with refused(expected="at least 2 letters and sequences of at least 3"):
        TASKS["parity"](letters, max_len)


def test_sequences_of_the_tasks_by_default() -> None:
    spaces = {name: make().space for name, make in TASKS.items()}
    expected = dict.fromkeys(TASKS, ("ABC", 4)) | {"identity": ("ABC", 6), "parity": ("AB", 4)}
    assert {
        name: ("".join(space.letters), space.max_len) for name, space in spaces.items()
    } == expected
