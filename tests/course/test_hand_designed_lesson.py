"""The variants of the lesson on hand-designed attention, and judgements of designs as data."""

import itertools
import math
import re

import numpy as np
import pytest

from course.checked import said
from glassformer.course.checking import Verdict
from glassformer.course.exercises.hand_designed import EXERCISES, MOST_NUMBERS, judge_head, tasks
from glassformer.course.lessons import answer
from glassformer.handcraft import TASKS, HeadWeights, Task, design

VERDICTS = {each.name: each for each in EXERCISES if isinstance(each, Verdict)}


def as_data(weights: HeadWeights) -> list[list[list[float]]]:
    return [matrix.tolist() for matrix in weights.matrices.values()]


def test_seed_0_has_the_courses_tasks() -> None:
    for name, task in zip(("identity", "copy_first", "unique"), tasks(0).values(), strict=True):
        assert (task.name, task.space, task.summary) == (
            name,
            TASKS[name]().space,
            TASKS[name]().summary,
        )


@pytest.mark.parametrize("seed", range(1, 9))
def test_every_variant_can_be_done_and_refuses_the_answers_of_the_course(seed: int) -> None:
    for name, task in tasks(seed).items():
        assert task == tasks(seed)[name] or task.summary == tasks(seed)[name].summary
        assert VERDICTS[name].judge(as_data(design(task).weights), seed).passed
        assert said("hand_designed", name, answer("hand_designed", name), seed)


def test_neighbours_have_different_tasks() -> None:
    made = {seed: tasks(seed) for seed in range(1, 25)}
    for name, verdict in VERDICTS.items():
        assert len({(each[name].summary, each[name].space) for each in made.values()}) == len(made)
        # Weights of one-hot letters do not know the letters' names, so that a few tasks have one
        # solution.
        passed = [
            verdict.judge(as_data(design(made[seed][name]).weights), seed + 1).passed
            for seed in range(1, 24)
        ]
        assert sum(passed) <= 1


@pytest.mark.parametrize("seed", range(1, 9))
def test_the_words_of_a_task_say_what_its_numbers_are(seed: int) -> None:
    for name in ("content-design", "position-design"):
        task = tasks(seed)[name]
        replaced = dict(
            each.split(" by ") for each in task.summary.split("replaced: ")[1].split(", ")
        )
        letters = np.array([[2, 0, 1, 2]])
        found = task.space.decode(task.target(letters)[0].argmax(axis=1))
        read = task.space.decode(letters[0])
        assert list(found) == [
            replaced[letter] for letter in (read if name == "content-design" else 4 * read[0])
        ]
    task = tasks(seed)["both-design"]
    sign, chosen, side = re.fullmatch(
        r"([+-]1) for (.*) where the same .* (\w+) too, .1 everywhere else", task.summary
    ).groups()  # type: ignore[union-attr]
    for text in map("".join, itertools.product(task.space.letters, repeat=3)):
        for i, found in enumerate(task.target(task.space.encode(text)[None])[0, :, 0]):
            others = {
                "elsewhere": text[:i] + text[i + 1 :],
                "earlier": text[:i],
                "later": text[i + 1 :],
            }[side]
            again = text[i] in others and text[i] in chosen.split(" and ")
            assert found == (int(sign) if again else -int(sign))


def first_wrong(matrices: list[np.ndarray], task: Task, margin: float = 0.0) -> str | None:
    """The first sequence, shorter ones first, with an output that is wrong by more than ``margin``.

    By the formula, for all sequences of a length at once.
    """
    Km, Qm, Vm = matrices[:3]
    size = len(task.space.letters)
    first = int(task.space.has_cls)
    for length in range(1, task.space.max_len + 1):
        letters = np.array(list(itertools.product(range(size), repeat=length)))
        x = np.eye(size + first)[
            np.concatenate([np.full((len(letters), first), size), letters], axis=1)
        ]
        if len(matrices) == 4:
            pos = np.broadcast_to(
                matrices[3][: x.shape[1]], (len(x), x.shape[1], matrices[3].shape[1])
            )
            x = np.concatenate([x, pos], axis=2)
        scores = np.exp((x @ Qm) @ (x @ Km).swapaxes(1, 2) / math.sqrt(Km.shape[1]))
        out = (scores / scores.sum(axis=2, keepdims=True) @ (x @ Vm))[:, first:]
        target = task.target(letters)
        if task.tolerance is None:
            wrong = (np.sign(out) != target) & (np.abs(out) >= margin)
        else:
            wrong = np.abs(out - target) > task.tolerance + margin
        if wrong.any():
            return task.space.decode(letters[wrong.any(axis=(1, 2)).argmax()])
    return None


@pytest.mark.slow
def test_no_mutant_passes_that_enumeration_refutes() -> None:
    rng = np.random.default_rng(0)
    refuted = 0
    mutants = 1_000
    for number in range(mutants):
        name = list(VERDICTS)[number % 3]
        task = tasks(number % 5)[name]
        matrices = [matrix.copy() for matrix in design(task).weights.matrices.values()]
        changed = matrices[rng.integers(len(matrices))]
        at = tuple(rng.integers(each) for each in changed.shape)
        changed[at] = rng.choice(
            [0, -changed[at], 2 * changed[at], changed[at] + rng.normal(), 0.3 * changed[at]]
        )
        judged = VERDICTS[name].judge([each.tolist() for each in matrices], number % 5)
        any_wrong = first_wrong(matrices, task)
        clearly_wrong = first_wrong(matrices, task, margin=1e-13)
        assert judged.passed == (any_wrong is None)
        # Where rounding decides whether a sequence fails, as at an output of 0, a longer clear
        # failure is shown.
        assert judged.counterexample == (clearly_wrong or any_wrong)
        refuted += any_wrong is not None
    assert mutants / 10 < refuted < mutants


@pytest.mark.parametrize(
    "data",
    [
        *(
            None,
            3,
            "eye",
            [],
            {},
            {"Km": [[1]]},
            [1, 2, 3],
            [[], [], []],
            [[[]], [[]], [[]]],
            ["a", "b", "c"],
        ),
        *(
            [[["1"]]] * 3,
            [[[None]]] * 3,
            [[[1, 2], [3]]] * 3,
            [[[{}]]] * 3,
            [[[1e300]]] * 3,
            [[[10**400]]] * 3,
        ),
        [[[[1]]]] * 3,
        [np.eye(4).tolist()] * 3,
        [np.zeros((3, MOST_NUMBERS)).tolist()] * 3,
        [[[True]]] * 3,
    ],
    ids=str,
)
@pytest.mark.parametrize("name", VERDICTS)
def test_any_json_value_is_judged(name: str, data: object) -> None:
    judged = VERDICTS[name].judge(data, 0)
    assert not judged.passed
    assert judged.message


def test_what_rounding_decides_is_no_solution() -> None:
    """Values that cancel."""
    task = TASKS["unique"]("A", 1)
    head = HeadWeights([[1], [0]], [[0.8], [0]], [[-7], [7 * math.exp(0.8)]])
    judgement = judge_head(task, as_data(head))
    assert not judgement.passed
    assert judgement.message.startswith("undecided; at A, position 0")
