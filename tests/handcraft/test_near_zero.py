"""Verdicts on outputs near what decides, against exact arithmetic, NumPy and PyTorch in several
batches.
"""

import math

import numpy as np
import pytest

from exact_heads import Trial, contradictions, exact_outputs, is_right, near_zero
from glassformer.errors import InputError
from glassformer.handcraft.single_head import HeadWeights, NumpyHead
from glassformer.handcraft.tasks import identity, unique
from glassformer.handcraft.verification import verify


def judged(trial: Trial, seed: int) -> str:
    """The verdict on a head, which nothing contradicts."""
    try:
        certificate = verify(trial.head, trial.task, tolerance=trial.tolerance, dtype=trial.dtype)
    except InputError:
        return "refused"
    with np.errstate(all="ignore"):
        assert contradictions(trial, certificate, seed) == []
    return certificate.verdict


def test_outputs_that_cancel_are_undecided() -> None:
    """Their exact sign is another one than that of most ways of computing them."""
    head = HeadWeights([[1], [0]], [[0.8], [0]], [[-7], [7 * math.exp(0.8)]])
    task = unique("A", 1)
    certificate = verify(head, task)
    assert certificate.verdict == "undecided"
    assert (certificate.num_undecided, certificate.num_outputs) == (1, 1)
    assert certificate.undecided is not None
    assert certificate.undecided.sequence == "A"
    assert abs(certificate.undecided.output[0]) < certificate.rounding < 1e-12
    assert "rounding        decides 1 of 1 outputs" in str(certificate)


@pytest.mark.parametrize("scale", [5e-324, 1e-310, 1e-200, 1.0, 1e200])
def test_small_outputs_that_do_not_cancel_are_decided(scale: float) -> None:
    """Values of one sign give outputs of that sign, however small they are."""
    head = HeadWeights([[1], [0]], [[0.8], [0]], [[scale], [scale]])
    task = unique("A", 1)
    assert verify(head, task).verdict == ("holds" if scale > 1e-300 else "undecided")
    turned = verify(HeadWeights(head.Km, head.Qm, -head.Vm), task)
    assert turned.verdict == ("fails" if scale > 1e-300 else "undecided")


@pytest.mark.parametrize("size", [1.0, 1e20, 1e60])
def test_scores_of_any_size_are_decided_where_they_are_sharp(size: float) -> None:
    """Of scores near 1e60 the rounding is far above 1, but not beside their differences."""
    own = np.eye(3)
    values = own[[1, 0, 2]]
    wrong = verify(HeadWeights(100 * size * own, own, values), identity())
    assert (wrong.verdict, wrong.counterexample and wrong.counterexample.sequence) == ("fails", "A")
    assert verify(HeadWeights(100 * size * own, own, own), identity()).holds


def test_scores_whose_difference_is_rounding_are_undecided() -> None:
    """Queries and keys of 1e9 whose products differ by less than these are rounded."""
    rng = np.random.default_rng(0)
    km = 1e9 * rng.normal(size=(3, 4))
    head = HeadWeights(km, 1e9 * rng.normal(size=(3, 4)), np.eye(3))
    head = HeadWeights(head.Km[[0, 0, 0]] * (1 + 1e-16), head.Qm, head.Vm)
    assert verify(head, identity("ABC", 2), tolerance=0.4999).verdict == "undecided"


@pytest.mark.parametrize("block", range(4))
def test_nothing_contradicts_a_verdict_near_what_decides(block: int) -> None:
    verdicts = [
        judged(near_zero(seed), seed)
        for seed in range(100_000 + 40 * block, 100_000 + 40 * (block + 1))
    ]
    assert {"holds", "fails", "undecided"} <= set(verdicts)


@pytest.mark.slow
def test_nothing_contradicts_hundreds_of_verdicts() -> None:
    verdicts = [judged(near_zero(seed), seed) for seed in range(200_000, 200_400)]
    assert min(verdicts.count(verdict) for verdict in ("holds", "fails", "undecided")) > 40


def test_exact_outputs_are_those_of_numpy_up_to_rounding() -> None:
    trial = near_zero(7)
    task = trial.task
    x = task.space.one_hot(task.space.block([np.array([0])]))[0]
    found = exact_outputs(trial.head, task.space, np.array([0]))
    expected = NumpyHead(trial.head)(x)[int(task.space.has_cls) :]
    np.testing.assert_allclose(
        np.array(found, dtype=float), expected, rtol=1e-9, atol=1e-12 * np.abs(trial.head.Vm).max()
    )
    assert is_right(trial, [1.0] * task.v_dim, [1.0] * task.v_dim)
