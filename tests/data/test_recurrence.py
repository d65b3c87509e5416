import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.data.recurrence import (
    Generators,
    RecurrenceConfig,
    fresh_batch,
    make_split,
    obeys_recurrence,
    sample_generators,
    sample_sequences,
)
from refusals import refused

Tokens = tuple[int, ...]
TINY = RecurrenceConfig(order=2, vocab_size=3, next_prob=0.3, seq_len=2)


def emit(
    initial: Sequence[int], coefficients: Sequence[int], vocab_size: int, increments: Sequence[bool]
) -> Tokens:
    """One sequence, one token at a time, with the random choices given: the definition in plain
    Python.
    """
    state = list(initial)
    tokens = []
    for increment in increments:
        if increment:
            new = state[-1] + 1
        else:
            new = sum(
                value * coefficient for value, coefficient in zip(state, coefficients, strict=True)
            )
        new %= vocab_size
        state = [*state, new][1:]
        tokens.append(new)
    return tuple(tokens)


def all_generators(config: RecurrenceConfig) -> Generators:
    values = torch.tensor(
        list(itertools.product(range(config.vocab_size), repeat=2 * config.order))
    )
    return Generators(initial=values[:, : config.order], coefficients=values[:, config.order :])


def exact_distribution(config: RecurrenceConfig) -> dict[Tokens, float]:
    """Probability of every sequence, by enumerating every generator and every pattern of
    increments.
    """
    length = config.seq_len + 1
    vectors = list(itertools.product(range(config.vocab_size), repeat=config.order))
    distribution = dict.fromkeys(itertools.product(range(config.vocab_size), repeat=length), 0.0)
    for initial, coefficients in itertools.product(vectors, vectors):
        for pattern in itertools.product([True, False], repeat=length):
            probability = np.prod(
                [config.next_prob if step else 1 - config.next_prob for step in pattern]
            )
            tokens = emit(initial, coefficients, config.vocab_size, pattern)
            distribution[tokens] += float(probability) / config.num_generators
    return distribution


def chi_square(counts: np.ndarray, probabilities: np.ndarray) -> float:
    expected = counts.sum() * probabilities
    return float(((counts - expected) ** 2 / expected).sum())


@given(
    order=st.integers(1, 3),
    vocab_size=st.integers(1, 9),
    increment=st.booleans(),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=40, deadline=None)
def test_without_chance_sequences_are_the_definitions(
    order: int, vocab_size: int, increment: bool, seed: int
) -> None:
    config = RecurrenceConfig(
        order=order, vocab_size=vocab_size, next_prob=float(increment), seq_len=9
    )
    rng = np.random.default_rng(seed)
    generators = sample_generators(config, 20, rng)
    tokens = sample_sequences(config, generators, rng)
    for row, initial, coefficients in zip(
        tokens, generators.initial, generators.coefficients, strict=True
    ):
        expected = emit(initial.tolist(), coefficients.tolist(), vocab_size, [increment] * 10)
        assert tuple(row.tolist()) == expected


def test_sequences_have_the_exact_distribution() -> None:
    exact = exact_distribution(TINY)
    assert sum(exact.values()) == pytest.approx(1)
    drawn = fresh_batch(TINY, 100_000, seed=0, step=0).tokens
    counts = np.bincount((drawn @ torch.tensor([9, 3, 1])).numpy(), minlength=27)
    probabilities = np.array(list(exact.values()))
    possible = probabilities > 0
    assert counts[~possible].sum() == 0
    # At most 26 degrees of freedom: the 99.9 % point of chi-square is 54.1.
    assert chi_square(counts[possible], probabilities[possible]) < 54.1


def test_generators_are_uniform_over_those_not_excluded() -> None:
    excluded = Generators(
        initial=torch.tensor([[0, 0], [2, 2], [1, 0], [0, 0]]),
        coefficients=torch.tensor([[0, 0], [2, 2], [2, 1], [0, 0]]),
    )
    drawn = sample_generators(TINY, 60_000, np.random.default_rng(3), excluded)
    counts = np.bincount(drawn.numbers(TINY).numpy(), minlength=81)
    assert set(np.flatnonzero(counts == 0)) == set(excluded.numbers(TINY).tolist())
    # 77 degrees of freedom: the 99.9 % point of chi-square is 121.1.
    assert chi_square(counts[counts > 0], np.full(78, 1 / 78)) < 121.1


@given(left=st.sets(st.integers(0, 80), min_size=1), seed=st.integers(0, 1000))
@settings(deadline=None)
def test_any_exclusion_leaves_exactly_the_others(left: set[int], seed: int) -> None:
    everything = all_generators(TINY)
    out = torch.tensor([number not in left for number in range(81)])
    excluded = Generators(
        initial=everything.initial[out], coefficients=everything.coefficients[out]
    )
    drawn = sample_generators(TINY, 50 * len(left), np.random.default_rng(seed), excluded)
    assert set(drawn.numbers(TINY).tolist()) <= left
    if len(left) <= 2:
        assert set(drawn.numbers(TINY).tolist()) == left


def test_generator_numbers_tell_every_generator_apart() -> None:
    assert all_generators(TINY).numbers(TINY).tolist() == list(range(81))


def test_split_shares_no_generator_and_has_the_shapes_asked_for() -> None:
    config = RecurrenceConfig()
    split = make_split(config, seed=4)
    assert split.train.tokens.shape == (10_000, 65)
    assert split.test.tokens.shape == (1_000, 65)
    assert torch.equal(split.test.inputs, split.test.tokens[:, :64])
    assert torch.equal(split.test.targets, split.test.tokens[:, 1:])
    assert split.train.tokens.dtype == torch.int64
    assert split.train.tokens.unique().tolist() == list(range(7))
    held_out = split.test.generators.numbers(config)
    assert not torch.isin(split.train.generators.numbers(config), held_out).any()
    # 2401 * (1 - (1 - 1/2401) ** 1000) = 817.9 different ones are expected among 1000 draws, give
    # or take 11.
    assert 770 < len(held_out.unique()) < 865


def test_split_depends_on_the_seed_alone() -> None:
    first, again, other = (
        make_split(TINY, num_train=50, num_test=20, seed=seed) for seed in (1, 1, 2)
    )
    assert torch.equal(first.train.tokens, again.train.tokens)
    assert torch.equal(first.test.tokens, again.test.tokens)
    assert not torch.equal(first.train.tokens, other.train.tokens)


def test_fresh_batches_depend_on_seed_and_step_alone() -> None:
    config = RecurrenceConfig()
    in_order = [fresh_batch(config, 16, seed=7, step=step).tokens for step in range(4)]
    assert torch.equal(fresh_batch(config, 16, seed=7, step=3).tokens, in_order[3])
    for one, other in itertools.combinations(
        [*in_order, fresh_batch(config, 16, seed=8, step=0).tokens], 2
    ):
        assert not torch.equal(one, other)


def test_fresh_batches_leave_out_excluded_generators() -> None:
    config = RecurrenceConfig()
    held_out = make_split(config, num_train=1, seed=0).test.generators
    drawn = fresh_batch(config, 5_000, seed=0, step=9, excluded=held_out).generators
    assert not torch.isin(drawn.numbers(config), held_out.numbers(config)).any()


def test_obeys_recurrence_judges_each_step_by_hand() -> None:
    # Rule with coefficients (2, 1) modulo 5: 2 * 1 + 3 = 0, then 2 * 3 + 0 = 1, then 2 * 0 + 1 = 1,
    # then 2 * 1 + 1 = 3.
    tokens = torch.tensor([[1, 3, 0, 1, 2, 4]])
    kinds = obeys_recurrence(tokens, torch.tensor([[2, 1]]), 5)
    assert kinds.rule.tolist() == [[True, True, False, True]]
    assert kinds.increment.tolist() == [[False, True, True, False]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"order": 0}, "order = 0"),
        ({"vocab_size": 0}, "vocab_size = 0"),
        ({"seq_len": -1}, "seq_len = -1"),
        ({"seq_len": 2.5}, "seq_len = 2.5"),
        ({"next_prob": 1.1}, "next_prob = 1.1"),
        ({"next_prob": float("nan")}, "next_prob = nan"),
        ({"next_prob": "often"}, "next_prob = 'often'"),
        ({"order": 40}, "64-bit"),
    ],
)
def test_impossible_configs_are_refused(arguments: dict[str, object], message: str) -> None:
    with refused(anywhere=message):
        RecurrenceConfig(**arguments)  # type: ignore[arg-type]


def test_impossible_draws_are_refused() -> None:
    rng = np.random.default_rng(0)
    with refused("count = 0"):
        sample_generators(TINY, 0, rng)
    with refused("all 81 generators excluded"):
        sample_generators(TINY, 5, rng, all_generators(TINY))
    with refused("generators of order"):
        sample_sequences(RecurrenceConfig(order=1), all_generators(TINY), rng)
    with refused("generators between 0 and 2"):
        sample_sequences(RecurrenceConfig(vocab_size=2), all_generators(TINY), rng)


@pytest.mark.usefixtures("without_type_checks")
def test_impossible_sequences_are_refused_when_judged() -> None:
    one = torch.ones(1, 2, dtype=torch.int64)
    with refused("order 2 with 1 sequences of length 2"):
        obeys_recurrence(one, one, 7)
    with refused("tokens between 1 and 1"):
        obeys_recurrence(one, one, 1)
    with refused("float32"):
        obeys_recurrence(torch.ones(1, 4), one, 7)
    with refused(r"shape \(0, 4\)"):
        obeys_recurrence(torch.ones(0, 4, dtype=torch.int64), one, 7)
    with refused("with 3 sequences"):
        obeys_recurrence(torch.ones(3, 4, dtype=torch.int64), one, 7)
