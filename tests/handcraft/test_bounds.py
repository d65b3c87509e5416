"""The bound against the error it bounds, with exact arithmetic in the places where rounding matters."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.handcraft.bounds import PlaceTables, bound_of_pairs, bound_of_queries, leakage, lowest_best_tier
from glassformer.handcraft.description import Description, itself, latest, previous, same_token, token
from glassformer.handcraft.sequences import CLS, SequenceSpace
from glassformer.handcraft.single_head import HeadWeights, NumpyHead
from glassformer.handcraft.tasks import TASKS

ROUNDOFF = 2.0**-53


def random_weights(rng: np.random.Generator, space: SequenceSpace, v_dim: int, scale: float) -> HeadWeights:
    pos_dim = int(rng.integers(0, 4))
    rows, qk_dim = space.num_tokens + pos_dim, int(rng.integers(1, 5))
    pos = rng.normal(size=(space.num_positions, pos_dim)) if pos_dim else None
    km, qm, vm = (rng.normal(size=(rows, columns)) for columns in (qk_dim, qk_dim, v_dim))
    return HeadWeights(scale * km, qm, vm, pos)


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    name=st.sampled_from([name for name in TASKS if name != "parity"]),
    letters=st.sampled_from(["A", "AB", "ABC"]),
    max_len=st.integers(1, 4),
    scale=st.sampled_from([0.0, 0.1, 1.0, 30.0]),
)
def test_no_error_of_a_random_head_passes_its_bounds(
    seed: int, name: str, letters: str, max_len: int, scale: float
) -> None:
    task = TASKS[name](letters, max_len)
    assert task.description is not None
    head = random_weights(np.random.default_rng(seed), task.space, task.v_dim, scale)
    cases = task.all_cases
    x = task.space.one_hot(cases.block)
    errors = [
        np.abs(NumpyHead(head)(x[row][real]) - cases.target[row][real])[cases.counted[row][real]].max()
        for row, real in enumerate(cases.block.real)
    ]
    tables = PlaceTables.of(head, task.space, ROUNDOFF)
    assert cases.queries is not None
    listed, pairs = bound_of_queries(tables, cases.queries), bound_of_pairs(tables, task.description)
    assert max(errors) <= listed.error
    assert max(errors) <= pairs.error
    assert pairs.margin <= listed.margin + 1e-9


def test_the_bound_is_tight_where_one_key_is_wanted_and_the_rest_are_equal() -> None:
    # Two letters, all other keys at the same score: the leakage is exactly (n - 1) e^-m / (1 + (n - 1) e^-m).
    task = TASKS["copy_first"]("AB", 5)
    assert task.description is not None
    km = np.zeros((7, 1))
    km[2, 0] = 3.0
    head = HeadWeights(km, np.r_[np.ones((2, 1)), np.zeros((5, 1))], np.r_[np.eye(2), np.zeros((5, 2))], np.eye(5))
    bound = bound_of_pairs(PlaceTables.of(head, task.space, ROUNDOFF), task.description)
    expected = 4 * np.exp(-3) / (1 + 4 * np.exp(-3))
    assert bound.margin == pytest.approx(3.0, rel=1e-12)
    assert bound.error == pytest.approx(expected, rel=1e-9)
    out = NumpyHead(head)(np.eye(2)[[0, 1, 1, 1, 1]])
    assert 1 - out[0, 0] == pytest.approx(expected, rel=1e-12)


@given(margin=st.floats(-700, 700), others=st.integers(0, 70))
def test_leakage_is_the_weight_of_equal_keys_below_one(margin: float, others: int) -> None:
    found = float(leakage(np.array(margin), np.array(others)))
    if others == 0:
        assert found == 0
    elif margin > 30:
        assert found == pytest.approx(others * np.exp(-margin), rel=1e-9)
    else:
        assert found == pytest.approx(1 / (1 + np.exp(margin - np.log(others))), rel=1e-9)
    assert found <= others * np.exp(-margin) * (1 + 1e-12)


@pytest.mark.parametrize("share", [Fraction(n, 60) for n in range(1, 60)])
def test_unevenness_is_the_largest_total_variation(share: Fraction) -> None:
    for spread in (0.1, 1.0, 5.0, 40.0):
        a = float(share)
        variation = a * (1 - a) * np.expm1(spread) / (1 + a * np.expm1(spread))
        assert variation <= np.tanh(spread / 4) + 1e-15
    best = 1 / (1 + np.exp(0.5))
    assert best * (1 - best) * np.expm1(1.0) / (1 + best * np.expm1(1.0)) == pytest.approx(np.tanh(0.25), rel=1e-12)


def test_score_tables_are_the_heads_scores() -> None:
    space = SequenceSpace(tuple("AB"), 3, has_cls=True)
    head = random_weights(np.random.default_rng(8), space, 2, 1.0)
    tables = PlaceTables.of(head, space, ROUNDOFF)
    block = space.block([space.encode("BAB")])
    trace = NumpyHead(head).trace(space.one_hot(block)[0])
    place = space.place_of(block)[0]
    np.testing.assert_allclose(tables.scores[np.ix_(place, place)], trace.scores, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(tables.values[place], trace.V, rtol=1e-13, atol=1e-14)
    assert tables.largest_score >= np.abs(tables.scores).max()


def test_rounding_of_scores_stays_within_what_is_claimed() -> None:
    """Scores of a float32 head against the same weights in exact rational arithmetic."""
    rng = np.random.default_rng(9)
    space = SequenceSpace(tuple("ABC"), 4)
    for _ in range(20):
        head = random_weights(rng, space, 2, 10.0)
        rounded = HeadWeights(**{name: m.astype(np.float32).astype(float) for name, m in head.matrices.items()})
        tables = PlaceTables.of(rounded, space, 2.0**-24)
        single = {name: m.astype(np.float32) for name, m in rounded.matrices.items()}
        x = np.eye(3, dtype=np.float32)[[0, 1, 2, 0]]
        x = x if rounded.pos is None else np.concatenate([x, single["pos"]], axis=1)
        scores = (x @ single["Qm"]) @ (x @ single["Km"]).T / np.sqrt(np.float32(rounded.qk_dim))
        place = space.place_of(space.block([np.array([0, 1, 2, 0])]))[0]
        assert np.abs(scores - tables.scores[np.ix_(place, place)]).max() <= tables.score_rounding


DESCRIPTIONS = [
    same_token(),
    previous().otherwise(itself()),
    latest(),
    same_token().but_not(itself()).otherwise(token(CLS)),
    previous(),
]


@pytest.mark.parametrize("selector", DESCRIPTIONS, ids=lambda selector: selector.text)
def test_the_lowest_best_tier_is_the_worst_over_all_sequences(selector: object) -> None:
    space = SequenceSpace(tuple("AB"), 3, has_cls=True)
    description = Description(space, selector)  # type: ignore[arg-type]
    tiers = description.table.tiers
    worst: dict[int, int] = {}
    for length in (1, 2, 3):
        for letters in product(range(2), repeat=length):
            place = space.place_of(space.block([np.array(letters)]))[0]
            for query in place[1:].tolist():
                best = int(tiers[query, place].max())
                worst[query] = min(worst.get(query, best), best)
    found = lowest_best_tier(space, tiers)
    assert all(found[query] <= best for query, best in worst.items())
    # Sharp for relations to positions, which every sequence of the length fills.
    if "token" not in description.attend.text:
        assert all(found[query] == best for query, best in worst.items())
