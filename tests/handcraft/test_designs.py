import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.handcraft.description import (
    Description,
    Selector,
    at_position,
    earlier,
    everything,
    itself,
    later,
    latest,
    previous,
    same_token,
    token,
)
from glassformer.handcraft.designs import build, design, needed_sharpness
from glassformer.handcraft.sequences import CLS, LETTERS, SequenceSpace
from glassformer.handcraft.single_head import NumpyHead
from glassformer.handcraft.tasks import TASKS, parity
from glassformer.handcraft.verification import verify
from refusals import refused

BUILT = [name for name in TASKS if name != "parity"]

SELECTORS: list[Selector] = [
    same_token(),
    at_position(0),
    same_token().but_not(itself()),
    same_token().but_not(itself()).otherwise(token(CLS)),
    (same_token() & later()).otherwise(token(CLS)),
    (same_token() & previous()).otherwise(token(CLS)),
    previous(2).otherwise(itself()),
    earlier(),
    latest(),
    token("A").otherwise(token(CLS)),
    token("A").but_not(itself()).otherwise(token(CLS)),
    everything(),
]


@pytest.mark.parametrize("name", BUILT)
@pytest.mark.parametrize("size", [1, 2, 5, 26])
@pytest.mark.parametrize("max_len", [1, 3, 64])
def test_every_design_is_proved_for_every_alphabet_and_length(
    name: str, size: int, max_len: int
) -> None:
    made = design(TASKS[name](LETTERS[:size], max_len))
    assert made.bound <= 1e-9


@settings(max_examples=60, deadline=None)
@given(
    selector=st.sampled_from(SELECTORS),
    letters=st.sampled_from(["A", "AB", "ABC"]),
    max_len=st.integers(1, 4),
    seed=st.integers(0, 10**6),
    largest_error=st.sampled_from([0.5, 1e-3, 1e-9]),
)
def test_a_built_head_does_what_its_description_says(
    selector: Selector, letters: str, max_len: int, seed: int, largest_error: float
) -> None:
    space = SequenceSpace(tuple(letters), max_len, has_cls=True)
    rng = np.random.default_rng(seed)
    values = {name: rng.normal(size=2) for name in space.token_names}
    description = Description(space, selector, values, rng.normal(size=(space.num_positions, 2)))
    head = NumpyHead(build(description, largest_error).weights)
    for block in space.blocks(1000):
        ideal = description.output(block)
        for row, (x, real) in enumerate(zip(space.one_hot(block), block.real, strict=True)):
            error = np.abs(head(x[real]) - ideal[row][real])[1:].max()
            assert error <= largest_error


def test_the_sharpness_is_what_the_error_needs() -> None:
    description = TASKS["identity"]("ABC", 6).description
    assert description is not None
    found = [needed_sharpness(description, error) for error in (1e-1, 1e-3, 1e-6, 1e-9)]
    exact = [math.log(2 * 5 / error) for error in (1e-1, 1e-3, 1e-6, 1e-9)]
    assert found == [math.ceil(each) for each in exact]
    # One less would not do for the error that was asked for, but for the half that is left to
    # rounding.
    assert 5 * math.exp(-(found[-1] - 1.7)) > 1e-9


def test_a_head_that_prefers_no_key_is_built_with_the_least_sharpness() -> None:
    assert design(TASKS["majority_letter"]("AB", 3)).sharpness == 1.0


def test_the_margin_is_what_was_built() -> None:
    made = design(TASKS["unique"]("ABC", 4))
    assert made.margin == pytest.approx(made.sharpness / 2, rel=1e-12)


@pytest.mark.slow
def test_a_head_by_content_alone_has_no_positions_and_takes_any_length() -> None:
    weights = design(TASKS["identity"]("ABC", 6)).weights
    assert weights.pos is None
    assert weights.Km.shape == weights.Qm.shape == weights.Vm.shape == (3, 3)
    longer = TASKS["identity"]("ABC", 80)
    assert verify(weights, longer, tolerance=1e-7).holds


def test_the_courses_shapes() -> None:
    first = design(TASKS["copy_first"]("ABC", 4)).weights
    assert (first.Km.shape, first.Vm.shape, first.matrices["pos"].shape) == ((7, 1), (7, 3), (4, 4))
    unique = design(TASKS["unique"]("ABC", 4)).weights
    assert (unique.input_dim, unique.v_dim, unique.max_seq_len) == (4, 1, 5)


IMPOSSIBLE: list[Selector] = [
    # "One or the other but not both" has scores 0, 1, 1, 0 for four pairs whose scores must add up
    # to the same sums.
    same_token().but_not(previous()).otherwise(previous().but_not(same_token())),
    # A letter that is named and in place is wanted twice.
    same_token().otherwise(token("A") & at_position(0)).otherwise(at_position(1)),
]


@pytest.mark.parametrize("selector", IMPOSSIBLE, ids=lambda selector: selector.text)
def test_what_no_sum_of_relations_can_say_is_refused(selector: Selector) -> None:
    with refused(fix="A single head adds its relations"):
        build(Description(SequenceSpace(tuple("ABC"), 4), selector))


def test_a_task_without_a_description_is_refused() -> None:
    with refused("'parity', which has no description"):
        design(parity())


@pytest.mark.parametrize("largest_error", [0.0, -1.0, math.nan, math.inf, 1e-16, 1e-320])
def test_errors_that_are_none_or_below_rounding_are_refused(largest_error: float) -> None:
    below = 0 < largest_error < 1
    with refused("largest_error", expected=r"at least \d.*rounding" if below else None):
        design(TASKS["identity"](), largest_error)
