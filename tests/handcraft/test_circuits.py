"""Circuits: they say what the head does, no change of basis moves them, and what softmax ignores is
gone.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.handcraft.circuits import (
    centred_scores,
    change_basis,
    change_position_basis,
    circuit_tables,
    in_random_bases,
    part_names,
    place_names,
    possible_pairs,
    qk_between_places,
    qk_parts,
    random_basis,
    value_circuit,
    values_at_places,
)
from glassformer.handcraft.designs import design
from glassformer.handcraft.sequences import SequenceSpace
from glassformer.handcraft.single_head import HeadWeights, NumpyHead
from glassformer.handcraft.tasks import TASKS
from random_heads import random_head
from refusals import refused

spaces = st.sampled_from(
    [
        SequenceSpace(tuple(text), longest, cls)
        for text in ("A", "AB", "ABC")
        for longest in (1, 2, 3)
        for cls in (False, True)
    ]
)
seeds = st.integers(0, 10_000)


def outputs(weights: HeadWeights, space: SequenceSpace) -> np.ndarray:
    """The NumPy twin's outputs for every sequence, one after another."""
    head = NumpyHead(weights)
    block = next(space.blocks(10_000))
    inputs = space.one_hot(block)
    return np.concatenate([head(x[real]) for x, real in zip(inputs, block.real, strict=True)])


@settings(deadline=None, max_examples=30)
@given(space=spaces, seed=seeds, positions=st.booleans())
def test_scores_and_values_of_places_are_those_of_every_sequence(
    space: SequenceSpace, seed: int, positions: bool
) -> None:
    weights = random_head(space, seed, pos_dim=None if positions else 0)
    scores = qk_between_places(weights, space)
    values = values_at_places(weights, space)
    block = next(space.blocks(10_000))
    place = space.place_of(block)
    inputs = space.one_hot(block)
    for row, real in enumerate(block.real):
        trace = NumpyHead(weights).trace(inputs[row][real])
        places = place[row][real]
        np.testing.assert_allclose(scores[np.ix_(places, places)], trace.scores, atol=1e-12)
        np.testing.assert_allclose(values[places], trace.V, atol=1e-12)


@settings(deadline=None, max_examples=30)
@given(space=spaces, seed=seeds, positions=st.booleans())
def test_places_are_sums_of_parts(space: SequenceSpace, seed: int, positions: bool) -> None:
    weights = random_head(space, seed, pos_dim=None if positions else 0)
    parts = qk_parts(weights, space)
    values = value_circuit(weights, space)
    names = part_names(weights, space)
    size = space.num_tokens
    assert (
        len(names) == len(parts) == len(values) == size + (space.num_positions if positions else 0)
    )
    scores = qk_between_places(weights, space)
    worths = values_at_places(weights, space)
    for i, (t, p) in enumerate(zip(*space.places, strict=True)):
        own = [t, size + p] if positions else [t]
        np.testing.assert_allclose(worths[i], values[own].sum(axis=0), atol=1e-12)
        for j, (u, q) in enumerate(zip(*space.places, strict=True)):
            other = [u, size + q] if positions else [u]
            assert scores[i, j] == pytest.approx(parts[np.ix_(own, other)].sum(), abs=1e-12)


def test_the_parts_of_unique_say_what_it_is_made_of() -> None:
    task = TASKS["unique"]()
    made = design(task)
    parts = qk_parts(made.weights, task.space)
    names = part_names(made.weights, task.space)
    assert names == ["A", "B", "C", "CLS", "@CLS", "@0", "@1", "@2", "@3"]
    sharpness = made.sharpness
    np.testing.assert_allclose(parts[:3, :3], sharpness * np.eye(3), atol=1e-12)
    np.testing.assert_allclose(parts[4:, 4:], -sharpness * np.eye(5), atol=1e-12)
    assert (parts[:3, 3] > 0).all()
    assert (parts[:3, 3] < sharpness).all()
    assert not parts[:4, 4:].any()
    assert not parts[4:, :4].any()
    np.testing.assert_array_equal(value_circuit(made.weights, task.space)[:4, 0], [-1, -1, -1, 1])


def test_places_are_named_by_letter_and_position() -> None:
    assert place_names(SequenceSpace(("A", "B"), 2, has_cls=True)) == [
        "CLS",
        "A0",
        "B0",
        "A1",
        "B1",
    ]
    assert place_names(SequenceSpace(("X",), 3)) == ["X0", "X1", "X2"]


@given(space=spaces)
def test_possible_pairs_are_those_that_some_sequence_has(space: SequenceSpace) -> None:
    found = np.zeros((len(space.places[0]),) * 2, dtype=bool)
    block = next(space.blocks(10_000))
    for row, real in zip(space.place_of(block), block.real, strict=True):
        found[np.ix_(row[real], row[real])] = True
    np.testing.assert_array_equal(possible_pairs(space), found)


@settings(deadline=None, max_examples=40)
@given(space=spaces, seed=seeds)
def test_what_is_left_is_all_that_attention_tells(space: SequenceSpace, seed: int) -> None:
    """Centred scores, rebuilt from nothing but the attention weights of every sequence."""
    weights = random_head(space, seed)
    block = next(space.blocks(10_000))
    place = space.place_of(block)
    inputs = space.one_hot(block)
    rebuilt = np.full((len(space.places[0]),) * 2, np.nan)
    for row, real in enumerate(block.real):
        places = place[row][real]
        attention = NumpyHead(weights).trace(inputs[row][real]).weights
        for i, query in enumerate(places):
            rebuilt[query, places] = np.log(attention[i] / attention[i, i])
    rebuilt -= np.nanmean(rebuilt, axis=1, keepdims=True)
    np.testing.assert_allclose(centred_scores(weights, space), rebuilt, atol=1e-9)


def test_a_head_that_prefers_nothing_has_centred_scores_of_zero() -> None:
    space = SequenceSpace(("A", "B", "C"), 3)
    weights = HeadWeights(np.full((3, 2), 0.1), np.array([[0.3, 0.7]] * 3), np.eye(3))
    assert set(centred_scores(weights, space)[possible_pairs(space)]) == {0.0}


@settings(deadline=None, max_examples=40)
@given(space=spaces, seed=seeds, qk_dim=st.integers(1, 6))
def test_a_change_of_basis_moves_weights_and_nothing_else(
    space: SequenceSpace, seed: int, qk_dim: int
) -> None:
    weights = random_head(space, seed, qk_dim=qk_dim)
    for changed in (
        change_basis(weights, random_basis(qk_dim, seed)),
        change_position_basis(weights, random_basis(weights.pos_dim, seed)),
    ):
        assert np.abs(changed.Km - weights.Km).max() > 1e-6
        np.testing.assert_allclose(
            outputs(changed, space), outputs(weights, space), rtol=0, atol=1e-12
        )
        for function in (qk_parts, qk_between_places, value_circuit, values_at_places):
            np.testing.assert_allclose(
                function(changed, space), function(weights, space), rtol=0, atol=1e-12
            )


@pytest.mark.parametrize("size", [1, 2, 9])
def test_random_bases_are_well_conditioned_and_repeat(size: int) -> None:
    bases = [random_basis(size, seed) for seed in range(20)]
    assert max(np.linalg.cond(basis) for basis in bases) <= 4 + 1e-9
    np.testing.assert_array_equal(random_basis(size, 3), bases[3])
    assert np.abs(bases[0] - bases[1]).max() > 1e-3


def test_bad_bases_are_refused() -> None:
    weights = random_head(SequenceSpace(("A", "B"), 2), 0, qk_dim=3)
    cases = [
        (np.eye(2), r"shape \[2, 2\]"),
        (np.ones((3, 3)), "of condition"),
        (np.zeros((3, 3)), "of condition"),
        (np.diag([1, 1, 1e-9]), "of condition 1e"),
        (np.diag([1, 1, np.nan]), "of condition nan"),
    ]
    for matrix, message in cases:
        with refused(message):
            change_basis(weights, matrix)
    assert change_basis(weights, np.diag([1, 1, 1.01e-6])).Km.shape == weights.Km.shape
    with refused("of condition"):
        change_basis(weights, np.diag([1, 1, 0.99e-6]))
    with refused(expected=r"\[3, 3\]"):
        change_basis(weights, np.eye(2))
    with refused(expected="pos_dim"):
        change_position_basis(weights, np.eye(weights.pos_dim + 1))
    with refused("without pos"):
        change_position_basis(HeadWeights(np.eye(2), np.eye(2), np.eye(2)), np.eye(2))
    with refused("size = 0"):
        random_basis(0, 0)


def test_weights_that_do_not_fit_are_refused() -> None:
    weights = random_head(SequenceSpace(("A", "B"), 2), 0, qk_dim=3)
    with refused("Km of shape .* inputs of length 2"):
        qk_parts(weights, SequenceSpace(("A", "B", "C"), 2))
    with refused(r"pos of shape \[2, "):
        values_at_places(weights, SequenceSpace(("A", "B"), 3))
    huge = HeadWeights(np.full((2, 1), 1e200), np.full((2, 1), 1e200), np.eye(2))
    with refused("beyond float64"):
        qk_between_places(huge, SequenceSpace(("A", "B"), 3))


def test_a_random_basis_scales_its_columns_by_a_half_to_two() -> None:
    basis = random_basis(200, 0)
    scales = np.linalg.norm(basis, axis=0)
    assert 0.5 <= scales.min() < 0.55
    assert 1.8 < scales.max() <= 2.0
    np.testing.assert_allclose((basis / scales).T @ (basis / scales), np.eye(200), atol=1e-12)


def test_tables_have_places_or_without_positions_tokens() -> None:
    space = TASKS["copy_first"]().space
    head = in_random_bases(design(TASKS["copy_first"]()).weights, 0)
    scores, values, names = circuit_tables(head, space)
    np.testing.assert_array_equal(scores, centred_scores(head, space))
    assert names[:4] == ["A0", "B0", "C0", "A1"]
    assert values.shape == (12, 3)
    head = in_random_bases(design(TASKS["identity"]()).weights, 0)
    scores, values, names = circuit_tables(head, TASKS["identity"]().space)
    product = head.Qm @ head.Km.T / np.sqrt(3)
    np.testing.assert_allclose(scores, product - product.mean(axis=1, keepdims=True), atol=1e-12)
    np.testing.assert_allclose(values, head.Vm)
    assert names == ["A", "B", "C"]


@pytest.mark.parametrize(
    "name", ["identity", "copy_first", "unique", "previous_token", "occurs_earlier"]
)
def test_random_bases_change_entries_and_no_output_score_or_value(name: str) -> None:
    task = TASKS[name]()
    head = design(task).weights
    moved = in_random_bases(head, 3)
    assert np.abs(moved.Qm - head.Qm).max() > 1
    np.testing.assert_allclose(
        outputs(moved, task.space), outputs(head, task.space), rtol=0, atol=1e-12
    )
    for first, second in zip(
        circuit_tables(moved, task.space)[:2], circuit_tables(head, task.space)[:2], strict=True
    ):
        np.testing.assert_allclose(first, second, atol=1e-9)
    changed = {
        key for key, matrix in moved.matrices.items() if not np.allclose(matrix, head.matrices[key])
    }
    # positions have no values
    assert changed == {"Km", "Qm"} | ({"pos"} if head.pos is not None else set())
