"""The verifier against the NumPy twin run one by one, and against heads that are known to be right
or wrong.
"""

import json
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.errors import InputError
from glassformer.handcraft.bounds import PlaceTables, bound_of_pairs
from glassformer.handcraft.designs import design
from glassformer.handcraft.sequences import LETTERS, SequenceSpace
from glassformer.handcraft.single_head import HeadWeights, NumpyHead
from glassformer.handcraft.tasks import TASKS, Task, copy_first, identity, parity, unique
from glassformer.handcraft.verification import (
    Certificate,
    Failure,
    require_fits,
    subject_of,
    verify,
)
from random_heads import random_head
from refusals import refused

BUILT = [name for name in TASKS if name != "parity"]


def one_by_one(head: HeadWeights, task: Task) -> dict[str, Any]:
    """What the NumPy twin says of every sequence: count, largest error, readings, first failure."""
    cases = task.all_cases
    space = task.space
    largest = -1.0
    where = ""
    right = 0
    first = None
    for x, tokens, real, counted, target in zip(
        space.one_hot(cases.block),
        cases.block.tokens,
        cases.block.real,
        cases.counted,
        cases.target,
        strict=True,
    ):
        out = NumpyHead(head)(x[real])
        text = space.decode(tokens[counted])
        for i in np.flatnonzero(counted[real]).tolist():
            error = float(np.abs(out[i] - target[i]).max())
            good = bool(task.is_right(out[i], target[i]))
            right += good
            if error > largest:
                largest = error
                where = text
            failed = not good if task.tolerance is None else error > task.tolerance
            if failed and first is None:
                first = (text, i - space.has_cls)
    return {
        "count": len(cases.block.tokens),
        "largest": largest,
        "where": where,
        "right": right,
        "first": first,
    }


@settings(max_examples=25, deadline=None)
@given(name=st.sampled_from(sorted(TASKS)), seed=st.integers(0, 10**6))
def test_it_tells_the_numbers_that_the_numpy_twin_gives_one_by_one(name: str, seed: int) -> None:
    task = TASKS[name]("AB", 3)
    head = random_head(task.space, seed, v_dim=task.v_dim, scale=2.0)
    certificate = verify(head, task)
    expected = one_by_one(head, task)
    assert certificate.num_checked == certificate.num_possible == expected["count"]
    assert certificate.largest_error == pytest.approx(expected["largest"], rel=1e-9, abs=1e-12)
    assert certificate.num_right == expected["right"]
    assert certificate.num_outputs == task.all_cases.counted.sum()
    assert certificate.largest_error <= certificate.bound
    if expected["first"] is None:
        assert certificate.holds
    else:
        assert (
            certificate.counterexample.sequence,
            certificate.counterexample.position,
        ) == expected["first"]


@pytest.mark.parametrize("name", BUILT)
def test_every_design_holds_on_every_sequence(name: str) -> None:
    task = TASKS[name]()
    head = design(task).weights
    exact = verify(head, task, tolerance=1e-9)
    assert exact.holds
    assert exact.rests_on == "every sequence"
    assert exact.largest_error < 1e-9
    assert exact.largest_error <= exact.bound < 1e-9
    expected = one_by_one(head, task)
    assert exact.num_checked == expected["count"]
    assert exact.largest_error == pytest.approx(expected["largest"], rel=1e-6, abs=1e-15)
    single = verify(head, task, tolerance=1e-6, dtype=torch.float32)
    assert single.holds
    assert single.largest_error < 1e-6
    assert single.dtype == "float32"


@pytest.mark.parametrize("name", BUILT)
@pytest.mark.parametrize(
    ("size", "max_len"), [(5, 12), pytest.param(26, 64, marks=pytest.mark.slow)]
)
def test_what_is_too_much_to_list_is_proved_by_the_bound(
    name: str, size: int, max_len: int
) -> None:
    task = TASKS[name](LETTERS[:size], max_len)
    certificate = verify(design(task).weights, task, tolerance=1e-9)
    assert certificate.holds
    assert certificate.rests_on == "the bound"
    assert certificate.num_possible == sum(size**length for length in range(1, max_len + 1))
    assert certificate.largest_error <= certificate.bound <= 1e-9
    assert certificate.num_checked >= 2026


@pytest.mark.parametrize("name", ["identity", "unique"])
def test_a_bound_proves_what_it_does_not_exceed(name: str) -> None:
    task = TASKS[name]("AB", 9)
    head = design(task, largest_error=0.2).weights
    bound = verify(head, task, tolerance=1.0, limit=10).bound
    below = np.nextafter(bound, 0)
    above = np.nextafter(bound, 1)
    verdicts = [
        verify(head, task, tolerance=float(tolerance), limit=10).verdict
        for tolerance in (below, bound, above)
    ]
    assert verdicts == ["undecided", "holds", "holds"]
    # A readout is certain only if every error is below the decisive one.
    for decisive, verdict in ((below, "undecided"), (bound, "undecided"), (above, "holds")):
        asked = replace(task, tolerance=None, decisive_error=float(decisive))
        assert verify(head, asked, limit=10).verdict == verdict


def test_an_error_at_the_tolerance_is_undecided() -> None:
    """The output is 0.75 in exact arithmetic; three times a third of it may be another number."""
    head = HeadWeights(np.zeros((1, 1)), np.zeros((1, 1)), [[0.75]])
    near = {
        0.25 + 1e-13: "holds",
        0.25: "undecided",
        float(np.nextafter(0.25, 0)): "undecided",
        0.25 - 1e-13: "fails",
    }
    for tolerance, verdict in near.items():
        certificate = verify(head, identity("A", 3), tolerance=tolerance)
        assert certificate.verdict == verdict
        assert certificate.num_undecided == (6 if verdict == "undecided" else 0)


def test_an_error_at_the_tolerance_is_allowed_where_nothing_is_rounded() -> None:
    head = HeadWeights(np.zeros((4, 1)), np.zeros((4, 1)), np.zeros((4, 1)))
    assert verify(head, unique(max_len=3), tolerance=1.0).holds
    assert (
        verify(head, unique(max_len=3), tolerance=float(np.nextafter(1.0, 0.0))).verdict == "fails"
    )


@pytest.mark.parametrize(
    ("dtype", "roundoff"), [(torch.float64, 2.0**-53), (torch.float32, 2.0**-24)]
)
def test_the_bound_is_for_the_unit_roundoff_of_the_format(
    dtype: torch.dtype, roundoff: float
) -> None:
    task = identity("AB", 9)
    head = HeadWeights(np.eye(2), 16 * np.eye(2), np.eye(2))
    expected = bound_of_pairs(PlaceTables.of(head, task.space, roundoff), task.description).error
    assert verify(head, task, dtype=dtype, limit=10).bound == pytest.approx(expected, rel=1e-12)


def test_an_error_equal_to_the_decisive_one_is_read() -> None:
    """Outputs of 0 are as far from +1 as from -1, and have no sign."""
    head = HeadWeights(np.zeros((4, 1)), np.zeros((4, 1)), np.zeros((4, 1)))
    certificate = verify(head, unique(max_len=2))
    assert (certificate.verdict, certificate.num_right, certificate.largest_error) == (
        "fails",
        0,
        1.0,
    )
    # allowed without a sign
    assert verify(head, unique(max_len=2), tolerance=1.0).num_right == certificate.num_outputs


def test_as_many_sequences_as_the_limit_are_all_run() -> None:
    task = identity("AB", 3)
    head = design(task).weights
    assert verify(head, task, limit=task.count).rests_on == "every sequence"
    assert verify(head, task, limit=task.count - 1).rests_on == "the bound"


@pytest.mark.parametrize("name", TASKS)
def test_outputs_within_the_decisive_error_are_read_correctly(name: str) -> None:
    """For the built-in tasks, by moving every output as far as that against its target."""
    task = TASKS[name]("ABC", 4)
    cases = task.all_cases
    target = cases.target[cases.counted]
    step = task.decisive_error * (1 - 1e-12)
    towards = (
        1 - 2 * (target >= target.max(axis=1, keepdims=True) - 1e-9)
        if task.v_dim > 1
        else -np.sign(target)
    )
    assert task.is_right(target + step * towards, target).all()
    if (
        name != "majority_letter"
    ):  # its largest share leads by more than 1 / max_len in some sequences only
        assert not task.is_right(target + 1.001 * task.decisive_error * towards, target).any()


def test_a_head_for_another_task_fails_on_the_first_sequence_that_shows_it() -> None:
    certificate = verify(design(TASKS["occurs_earlier"]()).weights, unique())
    assert certificate.verdict == "fails"
    assert certificate.counterexample.sequence == "A"
    assert certificate.counterexample.output == pytest.approx((-1.0,))
    assert certificate.counterexample.target == (1.0,)


def test_one_wrong_number_is_found() -> None:
    weights = design(identity()).weights
    vm = weights.Vm.copy()
    vm[2, 1] = 0.01
    certificate = verify(HeadWeights(weights.Km, weights.Qm, vm), identity())
    assert certificate.verdict == "fails"
    assert certificate.counterexample.sequence == "C"
    assert certificate.counterexample.error == pytest.approx(0.01)
    assert verify(HeadWeights(weights.Km, weights.Qm, vm), identity(), tolerance=None).holds


def test_without_a_tolerance_only_the_reading_counts() -> None:
    weights = design(unique()).weights
    weak = HeadWeights(weights.Km, weights.Qm, 0.1 * weights.Vm, weights.pos)
    assert verify(weak, unique()).criterion == "every sign right"
    assert verify(weak, unique()).holds
    assert verify(weak, unique(), tolerance=1e-3).verdict == "fails"


@pytest.mark.parametrize("text", ["AB" * 7, "A" * 14, "B" * 29 + "A", "A" * 30])
def test_a_task_that_differs_for_one_regular_sequence_alone_fails_there(text: str) -> None:
    alone = ["AB".index(letter) for letter in text]

    def target(x: np.ndarray) -> np.ndarray:
        return (
            identity("AB", 30).target(x)
            + np.array([row.tolist() == alone for row in x])[:, None, None]
        )

    certificate = verify(
        design(identity("AB", 30)).weights, replace(identity("AB", 30), target=target)
    )
    assert (certificate.verdict, certificate.counterexample.sequence) == ("fails", text)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_parity_is_refuted_for_every_head(seed: int) -> None:
    certificate = verify(random_head(parity().space, seed, v_dim=1, scale=2.0), parity())
    assert certificate.verdict == "fails"
    assert len(certificate.counterexample.sequence) <= 3


def test_neither_proof_nor_counterexample_is_undecided() -> None:
    # Sharp enough for the sequences there are, by far not for the bound over all tiers and pairs.
    task = identity("AB", 30)
    weights = design(identity("AB", 30), largest_error=0.05).weights
    blunt = HeadWeights(0.75 * weights.Km, weights.Qm, weights.Vm)
    certificate = verify(blunt, task, tolerance=0.06)
    assert certificate.verdict in ("undecided", "fails")
    unknown = verify(weights, replace(task, description=None), tolerance=None)
    assert unknown.verdict == "undecided"
    assert unknown.rests_on == "samples"
    assert unknown.bound == float("inf")


def test_a_description_that_is_not_the_task_proves_nothing() -> None:
    task = replace(identity("AB", 30), description=copy_first("AB", 30).description)
    assert verify(design(identity("AB", 30)).weights, task).verdict == "undecided"


@pytest.mark.parametrize("lengths", [(1,), (9,), tuple(range(1, 10))])
def test_a_description_that_only_nearly_matches_the_target_proves_nothing(
    lengths: tuple[int, ...],
) -> None:
    """Every output is within the tolerance, but how far targets are from the description elsewhere
    is not known.
    """

    def target(x: np.ndarray) -> np.ndarray:
        return identity("AB", 9).target(x) + (1e-6 if x.shape[1] in lengths else 0.0)

    task = replace(identity("AB", 9), target=target)
    certificate = verify(design(identity("AB", 9)).weights, task, tolerance=1e-3, limit=10)
    assert (certificate.verdict, certificate.rests_on, certificate.counterexample) == (
        "undecided",
        "samples",
        None,
    )


def test_tasks_of_listed_examples_say_so() -> None:
    task = replace(identity(), examples=("A", "ABC"), description=None)
    certificate = verify(design(identity()).weights, task)
    assert certificate.holds
    assert certificate.rests_on == "the listed examples"
    assert certificate.num_checked == 2
    # by value: the keys that hold the wanted letter
    assert certificate.margin == pytest.approx(24.0)


@pytest.mark.parametrize(
    ("shape", "got", "expected"),
    [
        (
            {"Km": (4, 3), "Qm": (4, 3), "Vm": (4, 3)},
            r"Km of shape \[4, 3\]",
            r"3 \+ 0 = 3 rows, for 3 letters",
        ),
        ({"Vm": (3, 2)}, r"Vm of shape \[3, 2\]", "3 columns"),
        (
            {"Km": (5, 1), "Qm": (5, 1), "Vm": (5, 3), "pos": (4, 2)},
            r"pos of shape \[4, 2\]",
            "at least 6 rows",
        ),
    ],
)
def test_shapes_that_do_not_fit_the_task_are_named(
    shape: dict[str, tuple[int, int]], got: str, expected: str
) -> None:
    shapes = {"Km": (3, 3), "Qm": (3, 3), "Vm": (3, 3), **shape}
    head = HeadWeights(**{name: np.ones(size) for name, size in shapes.items()})
    with refused(got, expected=expected):
        require_fits(head, identity())


def test_positions_are_those_of_the_space_however_short_the_listed_examples_are() -> None:
    task = replace(copy_first("ABC", 4), examples=("A", "AB"), description=None)
    weights = design(copy_first("ABC", 4)).weights
    assert verify(weights, task).holds
    for rows in (2, 3):
        short = HeadWeights(weights.Km, weights.Qm, weights.Vm, weights.pos[:rows])
        with refused(rf"pos of shape \[{rows}, ", expected="at least 4 rows"):
            verify(short, task)


def test_weights_that_overflow_are_refused() -> None:
    huge = HeadWeights(1e200 * np.eye(3), 1e200 * np.eye(3), np.eye(3))
    with refused(fix="Scale Km or Qm down"):
        verify(huge, identity())
    large = HeadWeights(1e30 * np.eye(3), 1e30 * np.eye(3), np.eye(3))
    assert verify(large, identity()).holds
    with refused(fix="Scale Km or Qm down"):
        verify(large, identity(), dtype=torch.float32)
    with refused(expected="float32 can hold"):
        verify(HeadWeights(np.eye(3), np.eye(3), 1e60 * np.eye(3)), identity(), dtype=torch.float32)


@pytest.mark.parametrize(("dtype", "huge"), [(torch.float64, 1.5e308), (torch.float32, 3e38)])
def test_values_that_overflow_are_refused_rather_than_certified(
    dtype: torch.dtype, huge: float
) -> None:
    # Each number is finite, their sum is not, and a weight of 0 times infinity is no number.
    weights = design(copy_first()).weights
    vm = weights.Vm.copy()
    vm[3:] = huge
    with refused("values of up to"):
        verify(
            HeadWeights(weights.Km, 40 * weights.Qm, vm, 2 * weights.pos * 0.9),
            copy_first(),
            dtype=dtype,
        )


def test_an_output_that_is_no_number_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["glassformer.handcraft.verification"]
    monkeypatch.setattr(
        module, "run_head", lambda inputs, **rest: torch.full((*inputs.shape[:2], 3), torch.nan)
    )
    for tolerance in (1e-3, None):
        certificate = verify(design(identity()).weights, identity(), tolerance=tolerance)
        assert certificate.verdict == "fails"
        assert certificate.largest_error == float("inf")
        assert certificate.num_right == 0
        json.dumps(certificate.to_json(), allow_nan=False)


def test_a_target_that_leaves_its_description_on_long_regular_sequences_is_noticed() -> None:
    def target(x: np.ndarray) -> np.ndarray:
        wanted = copy_first("ABC", 20).target(x)
        odd = (x == x[:, :1]).all(axis=1) & (x.shape[1] >= 12)
        return np.where(odd[:, None, None], 1.0 - wanted, wanted)

    task = replace(copy_first("ABC", 20), target=target)
    assert verify(design(copy_first("ABC", 20)).weights, task).verdict == "fails"


def test_with_cls_a_head_tells_once_from_twice() -> None:
    # Uniform attention over CLS and the letter A: CLS gets 1 / (number of A + 1), so numbers become
    # shares.
    space = SequenceSpace(tuple("AB"), 6, has_cls=True)

    def twice(x: np.ndarray) -> np.ndarray:
        enough = (x == 0).sum(axis=1) >= 2
        return np.repeat(np.where(enough, 1.0, -1.0)[:, None, None], x.shape[1], axis=1)

    task = Task("twice", "at least two A", space, 1, twice, "sign", None, 0.0)
    head = HeadWeights([[1], [0], [1]], [[60], [60], [60]], [[1], [0], [-1.5]])
    assert verify(head, task).holds


@pytest.mark.parametrize(
    "arguments", [{"tolerance": 0.0}, {"tolerance": float("nan")}, {"dtype": torch.bfloat16}]
)
def test_settings_that_are_none_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        verify(design(identity()).weights, identity(), **arguments)


# What a certificate says

FAILURE = Failure("ABB", 1, (0.25, 0.75), (1.0, 0.0), 0.75)
PROOF = Certificate(
    task="identity",
    verdict="holds",
    rests_on="every sequence",
    criterion="every error at most 0.001",
    dtype="float64",
    num_checked=1092,
    num_possible=1092,
    num_outputs=6015,
    num_right=6015,
    largest_error=1.9e-10,
    worst=None,
    margin=24.0,
    bound=2e-10,
    counterexample=None,
    subject=subject_of(design(identity()).weights, identity()),
)


SHOWN: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a proof": (
        {},
        ["identity: HOLDS", "every sequence: 1,092 of 1,092 run", "largest error   1.9e-10\n"],
    ),
    "a refutation": (
        {
            "verdict": "fails",
            "num_right": 6000,
            "worst": FAILURE,
            "counterexample": FAILURE,
            "margin": None,
        },
        [
            "counterexample  ABB, position 1: got [0.25 0.75], wanted [1 0]",
            "6,000 of 6,015 outputs (99.75%)",
            "margin          none",
        ],
    ),
    "the bound": (
        {"rests_on": "the bound", "num_possible": 26**64},
        [
            "the bound, for all 3.62e+90 sequences; that the description matches the task was "
            "checked on 1,092"
        ],
    ),
    "samples": ({"rests_on": "samples", "num_possible": 26**64}, ["no bound covers the rest"]),
    "examples": (
        {"rests_on": "the listed examples", "num_possible": 26**64},
        ["other sequences were not checked"],
    ),
    "the worst output": (
        {"worst": FAILURE, "num_possible": 10**12 - 1},
        ["largest error   1.9e-10 at ABB, position 1", "1,092 of 999,999,999,999 run"],
    ),
    "a trillion": ({"num_possible": 10**12}, ["1,092 of 1e+12 run"]),
    "nothing known": (
        {"verdict": "undecided", "rests_on": "samples", "margin": None, "bound": float("inf")},
        ["margin          unknown", "bound on error  unknown"],
    ),
}


@pytest.mark.parametrize(("changes", "words"), SHOWN.values(), ids=SHOWN)
def test_a_certificate_says_what_it_rests_on(changes: dict[str, Any], words: list[str]) -> None:
    certificate = replace(PROOF, **changes)
    text = str(certificate)
    assert [each for each in words if each not in text] == []
    assert ("counterexample" in text) == (certificate.counterexample is not None)
    assert certificate.holds == (certificate.verdict == "holds")
    written = json.loads(json.dumps(certificate.to_json(), allow_nan=False))
    assert written["bound"] == (None if certificate.bound == float("inf") else certificate.bound)


def test_a_certificate_is_json() -> None:
    values = json.loads(json.dumps(replace(PROOF, worst=FAILURE).to_json()))
    assert values["worst"]["output"] == [0.25, 0.75]
    assert values["num_checked"] == 1092
