"""Each term of the bound: never below the error, equal to it where nothing is given away, and
needed.

Heads over one letter have places that are positions, so that every score and every value can be
chosen freely.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.handcraft.bounds import (
    Bound,
    PlaceTables,
    bound_of_pairs,
    bound_of_queries,
    gamma,
    leakage,
    lowest_best_tier,
)
from glassformer.handcraft.description import (
    Description,
    Selector,
    Table,
    at_position,
    everything,
    itself,
    latest,
    previous,
    same_token,
    token,
)
from glassformer.handcraft.sequences import CLS, SequenceSpace
from glassformer.handcraft.single_head import HeadWeights, NumpyHead
from glassformer.handcraft.tasks import queries_of
from random_heads import random_head

ROUNDOFF = 2.0**-53
BoundOf = Callable[[HeadWeights, Description], Bound]


def head_of(scores: np.ndarray, values: np.ndarray) -> HeadWeights:
    """The head over one letter with ``scores`` [query, key] and ``values`` [position, v_dim]."""
    n = len(scores)
    blank = np.zeros((1, n))
    return HeadWeights(
        np.concatenate([blank, math.sqrt(n) * np.eye(n)]),
        np.concatenate([blank, scores]),
        np.concatenate([np.zeros((1, values.shape[1])), values]),
        np.eye(n),
    )


def description_of(ideal: np.ndarray, attend: Selector) -> Description:
    return Description(
        SequenceSpace(("A",), len(ideal)), attend, {"A": np.zeros(ideal.shape[1])}, ideal
    )


def with_tiers(tiers: np.ndarray) -> Selector:
    return Selector("tiers", lambda space: Table(tiers, tiers.astype(float), ()))


def from_queries(head: HeadWeights, description: Description, roundoff: float = ROUNDOFF) -> Bound:
    """The bound for every query of every sequence, listed."""
    space = description.space
    block = next(space.blocks(100_000))
    counted = block.real.copy()
    counted[:, : int(space.has_cls)] = False
    queries = queries_of(
        space, block, counted, description.wanted(block), description.output(block)
    )
    return bound_of_queries(PlaceTables.of(head, space, roundoff), queries)


def from_pairs(head: HeadWeights, description: Description, roundoff: float = ROUNDOFF) -> Bound:
    return bound_of_pairs(PlaceTables.of(head, description.space, roundoff), description)


def error_of(head: HeadWeights, description: Description) -> float:
    """The largest error of any judged output of any sequence, one sequence at a time."""
    space = description.space
    largest = 0.0
    for block in space.blocks(1000):
        ideal = description.output(block)
        for x, real, target in zip(space.one_hot(block), block.real, ideal, strict=True):
            error = np.abs(NumpyHead(head)(x[real]) - target[real])[int(space.has_cls) :]
            largest = max(largest, float(error.max()))
    return largest


both = pytest.mark.parametrize("bound_of", [from_queries, from_pairs])


def assert_tight(
    head: HeadWeights, description: Description, bound_of: BoundOf, factor: float = 1 + 1e-9
) -> None:
    error = error_of(head, description)
    bound = bound_of(head, description).error
    assert error <= bound <= factor * error


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    letters=st.sampled_from(["A", "AB", "ABC"]),
    max_len=st.integers(1, 5),
    has_cls=st.booleans(),
    num_tiers=st.integers(1, 3),
    scale=st.sampled_from([0.0, 0.01, 0.3, 1.0, 5.0, 50.0]),
    missed=st.sampled_from([0.0, 1e-3, 1.0]),
)
def test_no_error_exceeds_either_bound(
    seed: int,
    letters: str,
    max_len: int,
    has_cls: bool,
    num_tiers: int,
    scale: float,
    missed: float,
) -> None:
    """Arbitrary tiers, uneven scores among wanted keys, margins of either sign, few and many
    others, every sequence.
    """
    max_len = min(max_len, 3) if letters == "ABC" else max_len
    rng = np.random.default_rng(seed)
    space = SequenceSpace(tuple(letters), max_len, has_cls)
    size = len(space.places[0])
    tiers = rng.integers(0, num_tiers, size=(size, size))
    values = {name: rng.normal(size=2) for name in space.token_names}
    description = Description(
        space, with_tiers(tiers), values, rng.normal(size=(space.num_positions, 2))
    )
    rows = space.num_tokens + space.num_positions
    qk_dim = int(rng.integers(1, 6))
    head = HeadWeights(
        scale * rng.normal(size=(rows, qk_dim)),
        rng.normal(size=(rows, qk_dim)),
        description.value_rows + missed * rng.normal(size=(rows, 2)),
        np.eye(space.num_positions),
    )
    error = error_of(head, description)
    listed = from_queries(head, description)
    pairs = from_pairs(head, description)
    assert error <= min(listed.error, pairs.error)
    assert pairs.margin <= listed.margin + 1e-9


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(2, 12),
    wanted=st.integers(1, 6),
    margin=st.floats(-1, 4),
    spread=st.floats(0, 6),
)
def test_no_error_exceeds_the_bound_where_two_scores_and_extreme_values_make_it_large(
    seed: int, n: int, wanted: int, margin: float, spread: float
) -> None:
    """The first keys wanted, with scores and values at the ends of their ranges; the others all at
    the margin.
    """
    rng = np.random.default_rng(seed)
    row = np.where(np.arange(n) < wanted, spread * rng.integers(0, 2, n), -margin)
    ideal = np.where(rng.integers(0, 2, (n, 1)) == 1, 1.0, -1.0)
    tiers = np.tile((np.arange(n) < wanted).astype(int), (n, 1))
    head = head_of(np.tile(row, (n, 1)), ideal)
    description = description_of(ideal, with_tiers(tiers))
    error = error_of(head, description)
    assert error <= from_queries(head, description).error
    assert error <= from_pairs(head, description).error


@both
@pytest.mark.parametrize("n", [2, 3, 40])
@pytest.mark.parametrize("margin", [-2.0, 0.01, 1.0, 5.0, 12.0])
@pytest.mark.parametrize("value", [-1.0, 0.25])
def test_leakage_is_exact_where_all_others_have_one_score(
    bound_of: BoundOf, n: int, margin: float, value: float
) -> None:
    row = np.where(np.arange(n) == 0, margin, 0.0)
    ideal = np.where(np.arange(n) == 0, 0.0, value)[:, None]
    head = head_of(np.tile(row, (n, 1)), ideal)
    description = description_of(ideal, at_position(0))
    assert error_of(head, description) == pytest.approx(
        abs(value) * (n - 1) / (n - 1 + math.exp(margin)), rel=1e-9
    )
    assert_tight(head, description, bound_of, 1 + 1e-6)
    assert bound_of(head, description).margin == pytest.approx(margin, rel=1e-12)


@both
@pytest.mark.parametrize("k", [2, 5, 30])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_unevenness_is_exact_at_its_worst_share(bound_of: BoundOf, k: int, sign: float) -> None:
    """One key of 1 + k is ahead by d = 2 ln k, a share of 1 / (1 + e^(d / 2)), and alone has
    another value.
    """
    first = np.arange(1 + k) == 0
    scores = np.tile(np.where(first, 2 * math.log(k), 0.0), (1 + k, 1))
    ideal = np.where(first, sign, 0.0)[:, None]
    head = head_of(scores, ideal)
    description = description_of(ideal, everything())
    assert error_of(head, description) == pytest.approx((k - 1) / (k + 1), rel=1e-9)
    assert_tight(head, description, bound_of)
    assert bound_of(head, description).margin == math.inf


@both
@pytest.mark.parametrize("offset", [-0.3, 0.3])
def test_a_mean_that_is_missed_counts_in_full_and_once(bound_of: BoundOf, offset: float) -> None:
    ideal = np.full((4, 2), [5.0, -2.0])
    head = head_of(np.zeros((4, 4)), ideal + np.array([0.0, offset]))
    assert_tight(head, description_of(ideal, everything()), bound_of)


def test_values_that_differ_but_have_the_wanted_mean_cost_nothing_when_listed() -> None:
    ideal = np.array([[2.0], [2.0]])
    head = head_of(np.zeros((2, 2)), np.array([[1.0], [3.0]]))
    description = description_of(ideal, everything())
    space = description.space
    block = space.block([np.array([0, 0])])
    target = description.output(block)
    queries = queries_of(space, block, block.real, description.wanted(block), target)
    assert bound_of_queries(PlaceTables.of(head, space, ROUNDOFF), queries).error < 1e-13
    # Pairs do not know which of the wanted keys a sequence has.
    assert from_pairs(head, description).error == pytest.approx(1.0)


@both
@pytest.mark.parametrize("lower_first", [False, True])
def test_a_missed_mean_and_leakage_add_up(bound_of: BoundOf, lower_first: bool) -> None:
    n = 4
    missed = 0.3
    margin = math.log(60)
    chosen = np.arange(n) == (n - 1 if lower_first else 0)
    ideal = np.where(chosen, 1.0, 4.0)[:, None]
    tiers = np.tile(chosen.astype(int), (n, 1))
    # In shorter sequences than those with the chosen key, all keys are wanted and have what they
    # are worth.
    head = head_of(np.tile(margin * chosen, (n, 1)), ideal + missed * chosen[:, None])
    assert_tight(head, description_of(ideal, with_tiers(tiers)), bound_of, 1.04)


@both
def test_a_missed_mean_and_unevenness_add_up(bound_of: BoundOf) -> None:
    k = 3
    missed = 0.2
    first = np.arange(1 + k) == 0
    ideal = np.where(first, 1.0, 0.0)[:, None]
    head = head_of(np.tile(2 * math.log(k) * first, (1 + k, 1)), ideal + missed)
    # Listed queries take the range of the differences and 0, which a mean that is missed widens.
    factor = 1.2 if bound_of is from_queries else 1 + 1e-9
    assert_tight(head, description_of(ideal, everything()), bound_of, factor)


def test_unevenness_and_leakage_add_up_when_listed() -> None:
    k = 3
    margin = 9.0
    first = np.arange(k + 2) == 0
    last = np.arange(k + 2) == k + 1
    row = np.where(last, 2 * math.log(k) - margin, np.where(first, 2 * math.log(k), 0.0))
    ideal = np.where(first, 1.0, np.where(last, 800.0, 0.0))[:, None]
    tiers = np.tile((~last).astype(int), (k + 2, 1))
    assert_tight(
        head_of(np.tile(row, (k + 2, 1)), ideal),
        description_of(ideal, with_tiers(tiers)),
        from_queries,
        1.08,
    )


@both
@pytest.mark.parametrize("coordinate", [0, 1, 2])
def test_the_largest_coordinate_counts(bound_of: BoundOf, coordinate: int) -> None:
    ideal = np.zeros((3, 3))
    values = ideal + 0.1
    values[:, coordinate] = -0.5
    assert_tight(head_of(np.zeros((3, 3)), values), description_of(ideal, everything()), bound_of)


@both
@pytest.mark.parametrize("worst", range(4))
def test_the_worst_query_counts(bound_of: BoundOf, worst: int) -> None:
    """Every query has a margin of its own; the smallest one decides, wherever it stands."""
    margins = np.where(np.arange(4) == worst, 1.5, [4.0, 5.0, 6.0, 7.0])
    scores = np.zeros((4, 4))
    scores[:, 0] = margins
    ideal = np.array([[0.0], [1.0], [1.0], [1.0]])
    head = head_of(scores, ideal)
    description = description_of(ideal, at_position(0))
    assert_tight(head, description, bound_of)
    assert bound_of(head, description).margin == pytest.approx(1.5)


def test_pieces_of_many_queries_are_all_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    head = head_of(rng.normal(size=(5, 5)), rng.normal(size=(5, 2)))
    description = description_of(rng.normal(size=(5, 2)), at_position(0))
    whole = from_queries(head, description)
    monkeypatch.setattr("glassformer.handcraft.bounds._NUMBERS_AT_ONCE", 1)
    assert from_queries(head, description) == whole


def test_keys_at_the_querys_own_position_do_not_count() -> None:
    # B at the position of A scores highest and is worth most, but no sequence has both.
    space = SequenceSpace(("A", "B"), 1)
    head = HeadWeights(np.array([[0.0], [9.0]]), np.ones((2, 1)), np.array([[1.0], [100.0]]))
    bound = from_pairs(
        head, Description(space, token("A").otherwise(token("B")), {"A": 1.0, "B": 100.0})
    )
    assert bound.margin == math.inf
    assert bound.error < 1e-11


def test_outputs_of_cls_do_not_count() -> None:
    # CLS as a query attends to the wrong key; letters attend to CLS.
    space = SequenceSpace(("A",), 1, has_cls=True)
    head = HeadWeights(
        np.array([[0.0], [40.0]]), np.array([[1.0], [-1.0]]), np.array([[0.0], [1.0]])
    )
    description = Description(space, token(CLS), {"A": 0.0, CLS: 1.0})
    assert from_pairs(head, description).error < 1e-15 + 1e-11
    assert from_queries(head, description).error < 1e-15 + 1e-11


# Rounding: a machine that loses a share u of every result, in the direction that hurts.


def lossy_scores(u: float, inputs: int, qk_dim: int, score: float, *, gain: bool) -> float:
    """A score whose products are all in the first of ``inputs`` and of ``qk_dim`` terms, and so are
    rounded most.

    ``inputs`` roundings for the query, as many for the key, ``qk_dim`` for their product; 6 for a
    scale whose root is put on both, and 1 for the subtraction of the largest score.
    """
    return score * (1 + u if gain else 1 - u) ** (2 * inputs + qk_dim + 6 + 1)


def two_sided(n: int, inputs: int, qk_dim: int, ahead: int, score: float) -> HeadWeights:
    """The head with ``ahead`` keys at +score and the others at -score, all from the first input and
    column.
    """
    km = np.zeros((inputs, qk_dim))
    qm = km.copy()
    vm = np.zeros((inputs, 1))
    pos = np.zeros((n, inputs - 1))
    pos[:, 0] = np.where(np.arange(n) < ahead, 1.0, -1.0)
    qm[0, 0], km[1, 0] = 1.0, score * math.sqrt(qk_dim)
    vm[1, 0] = 1.0
    return HeadWeights(km, qm, vm, pos)


SIZES = [(3, 1), (3, 150), (200, 1), (100, 100)]


def check_used(exact: float, error: float, bound: float, share: float) -> None:
    """The error of rounding is within what the bound leaves to it, and takes more than a share of
    that.
    """
    assert exact < error <= bound
    assert (error - exact) / (bound - exact) > share


@both
@pytest.mark.parametrize(("inputs", "qk_dim"), SIZES)
def test_rounding_may_cost_margin(bound_of: Callable[..., Bound], inputs: int, qk_dim: int) -> None:
    """The lossy machine's leakage against the bound, whose score rounding is more than half used
    up.
    """
    u = 1e-4
    n = 6
    score = 4.0
    head = two_sided(n, inputs, qk_dim, 1, score)
    ideal = np.where(np.arange(n) == 0, 1.0, -1.0)[:, None]
    description = description_of(ideal, at_position(0))
    margin = 2 * lossy_scores(u, inputs, qk_dim, score, gain=False)
    error = 2 * (n - 1) / (n - 1 + math.exp(margin))
    exact = 2 * (n - 1) / (n - 1 + math.exp(2 * score))
    bound = (
        bound_of(head, description, u).error
        - PlaceTables.of(head, description.space, u).value_rounding
    )
    check_used(exact, error, bound, 0.9 if max(inputs, qk_dim) >= 100 else 0.6)


@both
@pytest.mark.parametrize(("inputs", "qk_dim"), SIZES)
def test_rounding_may_widen_the_spread(
    bound_of: Callable[..., Bound], inputs: int, qk_dim: int
) -> None:
    u = 1e-5
    k = 4
    head = two_sided(1 + k, inputs, qk_dim, 1, math.log(k))
    ideal = np.where(np.arange(1 + k) == 0, 1.0, -1.0)[:, None]
    description = description_of(ideal, everything())
    spread = 2 * lossy_scores(u, inputs, qk_dim, math.log(k), gain=True)
    top = math.exp(spread) / (math.exp(spread) + k)
    error = 2 * (top - 1 / (1 + k))
    exact = 2 * (k - 1) / (k + 1)
    bound = (
        bound_of(head, description, u).error
        - PlaceTables.of(head, description.space, u).value_rounding
    )
    check_used(exact, error, bound, 0.9 if max(inputs, qk_dim) >= 100 else 0.6)


@both
@pytest.mark.parametrize(("inputs", "n"), [(2, 1), (2, 120), (800, 1)])
def test_rounding_may_move_an_output(bound_of: Callable[..., Bound], inputs: int, n: int) -> None:
    """Values, the weighted sum and its normaliser, all rounded most for the first key, which has
    all of the weight.
    """
    u = 1e-6
    km = np.zeros((inputs, 1))
    vm = np.zeros((inputs, 1))
    pos = np.zeros((n, inputs - 1))
    km[1, 0], pos[0, 0], vm[0, 0] = 800.0, 1.0, 3.0
    head = HeadWeights(km, np.eye(inputs, 1), vm, pos)
    description = description_of(np.full((n, 1), 3.0), at_position(0))
    value = (1 + u) ** inputs
    weighted = (1 + u) ** n
    normaliser = (1 - u) ** (n - 1)
    error = 3.0 * abs(value * weighted * (1 + u) / normaliser - 1)
    bound = bound_of(head, description, u).error
    assert error <= bound
    assert error / bound > (0.8 if max(inputs, n) > 2 else 0.05)


@both
def test_exponentials_may_be_wrong_by_twenty_units_in_the_last_place(
    bound_of: Callable[..., Bound],
) -> None:
    u = 1e-6
    head = two_sided(2, 2, 1, 1, 0.0)
    description = description_of(np.array([[1.0], [-1.0]]), everything())
    more = 1 + 40 * u
    less = 1 - 40 * u
    error = (more - less) / (more + less)
    bound = bound_of(head, description, u).error
    assert error <= bound
    assert error / bound > 0.7


exact = np.vectorize(Fraction, otypes=[object])
"""Numbers as rational ones, whose products and sums are exact."""


def test_rounding_of_the_tables_themselves_is_counted() -> None:
    """Tables against rational arithmetic, for a machine without any rounding of its own (u = 0)."""
    rng = np.random.default_rng(9)
    space = SequenceSpace(tuple("ABC"), 3)
    seen = np.zeros(2)
    for _ in range(10):
        rows = (3 + 3, 4)  # qk_dim = 4: the division by sqrt(qk_dim) is exact
        head = HeadWeights(
            10 * rng.normal(size=rows),
            rng.normal(size=rows),
            rng.normal(size=(6, 2)),
            rng.normal(size=(3, 3)),
        )
        tables = PlaceTables.of(head, space, 0.0)
        tokens, positions = space.places
        x = exact(np.concatenate([np.eye(3)[tokens], head.matrices["pos"][positions]], axis=1))
        km, qm, vm = map(exact, (head.Km, head.Qm, head.Vm))
        off = np.abs(exact(tables.scores) - (x @ qm) @ (x @ km).T / 2).max()
        value_off = np.abs(exact(tables.values) - x @ vm).max()
        assert 2 * off <= tables.score_rounding
        assert value_off <= tables.value_rounding
        seen = np.maximum(seen, [float(off), float(value_off)])
    assert (seen > 0).all()


def test_rounding_of_the_bounds_own_arithmetic_is_counted() -> None:
    """A target so far away that the values' rounding is nothing beside that of their difference
    from it.
    """
    space = SequenceSpace(("A",), 1)
    missing = 0
    for seed in range(40):
        value, target = np.random.default_rng(seed).normal(size=2) * [1.0, 1e9]
        head = HeadWeights([[0.0]], [[0.0]], [[value]])
        description = Description(space, everything(), {"A": target})
        exact = abs(Fraction(value) - Fraction(target))
        for bound_of in (from_queries, from_pairs):
            assert Fraction(bound_of(head, description, 0.0).error) >= exact
        missing += Fraction(abs(value - target)) + Fraction(60 * ROUNDOFF * abs(value)) < exact
    assert missing > 5


@pytest.mark.parametrize("roundoff", [0.0, 2.0**-53, 2.0**-24, 1e-3])
@pytest.mark.parametrize(("inputs", "qk_dim", "n"), [(2, 1, 1), (5, 3, 2), (9, 16, 40)])
def test_rounding_terms_are_the_documented_ones(
    roundoff: float, inputs: int, qk_dim: int, n: int
) -> None:
    """The reserves in them as well, which no machine at hand uses up."""
    rng = np.random.default_rng(0)
    km, qm = rng.normal(size=(2, inputs, qk_dim))
    head = HeadWeights(km, qm, rng.normal(size=(inputs, 3)), rng.normal(size=(n, inputs - 1)))
    tables = PlaceTables.of(head, SequenceSpace(("A",), n), roundoff)
    x = np.concatenate([np.ones((n, 1)), head.matrices["pos"]], axis=1)
    a = (abs(x) @ abs(qm)).max(axis=0) @ (abs(x) @ abs(km)).max(axis=0) / math.sqrt(qk_dim)
    b = (abs(x) @ abs(head.Vm)).max()
    vector = max((abs(x) @ abs(each)).max() for each in (qm, km))
    assert tables.largest == pytest.approx((vector, a * math.sqrt(qk_dim), n * b), rel=1e-12)

    def both_machines(roundings: int) -> float:
        return sum(roundings * u / (1 - roundings * u) for u in (roundoff, ROUNDOFF))

    tiles = 1 if n == 40 else 0  # of 32 keys, after the first
    in_scores = both_machines(2 * inputs + qk_dim + 8 + 2 * tiles) * a
    of_tiles = 42 * tiles * roundoff / (1 - 42 * tiles * roundoff)
    assert tables.score_rounding == pytest.approx(2 * (in_scores + of_tiles), rel=1e-12)
    assert tables.value_rounding == pytest.approx(both_machines(2 * n + inputs + 48) * b, rel=1e-12)
    assert tables.bound_rounding == pytest.approx((2 * n + inputs + 48) * ROUNDOFF, rel=1e-9)


def test_so_many_roundings_that_nothing_is_known_are_infinitely_bad() -> None:
    assert gamma(10, 0.01) == pytest.approx(Fraction(1, 9))
    assert gamma(0, 0.5) == 0
    assert gamma(2, 0.5) == gamma(3, 0.5) == math.inf
    for roundings in (1, 7, 100, 5000):
        assert (1 + 1e-4) ** roundings - 1 <= gamma(roundings, 1e-4)


def test_no_number_proves_nothing() -> None:
    """0 x infinity: values further from a target than float64 can say, at a weight that is 0."""
    ideal = np.array([[1.7e308], [0.0]])
    head = head_of(np.array([[800.0, 0.0], [800.0, 0.0]]), np.array([[1.7e308], [-4e307]]))
    bound = from_pairs(head, description_of(ideal, at_position(0)))
    assert not bound.error <= 1e300  # NaN or infinity


# Parts of the bound, and tables of any head


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


def test_rounding_of_scores_stays_within_what_is_claimed() -> None:
    """Scores of a float32 head against the same weights in exact rational arithmetic."""
    space = SequenceSpace(tuple("ABC"), 4)
    for seed in range(20):
        head = random_head(space, seed, pos_dim=seed % 4, scale=10.0)
        rounded = HeadWeights(
            **{name: m.astype(np.float32).astype(float) for name, m in head.matrices.items()}
        )
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
