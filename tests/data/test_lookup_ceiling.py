import itertools
import math
from collections import Counter, defaultdict
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.data.in_context_lookup import (
    LookupConfig,
    bag_ceiling,
    encode,
    expected_largest,
    sample,
)
from refusals import refused


def bayes_accuracy(config: LookupConfig, num_facts: int) -> Fraction:
    """The accuracy of the best answer to every (bag, asked key), by listing all contexts and
    questions.
    """
    evidence: dict[object, Counter[int | str]] = defaultdict(Counter)
    for keys in itertools.permutations(range(config.num_keys), num_facts):
        for values in itertools.product(range(config.num_values), repeat=num_facts):
            if config.distinct_values and len(set(values)) < num_facts:
                continue
            bag = (frozenset(keys), tuple(sorted(values)))
            present = (1 - Fraction(config.missing)) / num_facts
            for key, value in zip(keys, values, strict=True):
                evidence[bag, key][value] += present  # type: ignore[assignment]
            absent = set(range(config.num_keys)) - set(keys)
            for key in absent if config.missing else ():
                evidence[bag, key]["none"] += Fraction(config.missing) / len(absent)  # type: ignore[assignment]
    total = sum(sum(counts.values()) for counts in evidence.values())
    return Fraction(sum(max(counts.values()) for counts in evidence.values())) / total


@pytest.mark.parametrize("distinct", [True, False])
@pytest.mark.parametrize("num_facts", [1, 2, 3])
@pytest.mark.parametrize("missing", [0.0, 0.25])
def test_the_ceiling_is_the_best_answer_to_every_bag(
    distinct: bool, num_facts: int, missing: float
) -> None:
    config = LookupConfig(
        num_keys=4,
        num_values=4,
        max_facts=num_facts,
        missing=missing,
        distinct_values=distinct,
        held_out=0.0,
    )
    assert bag_ceiling(config, num_facts) == pytest.approx(
        float(bayes_accuracy(config, num_facts)), abs=1e-12
    )


def test_different_values_allow_one_guess_among_all() -> None:
    config = LookupConfig(held_out=0.0)
    assert [bag_ceiling(config, n) for n in (1, 2, 4, 8)] == [1.0, 0.5, 0.25, 0.125]


@given(throws=st.integers(1, 7), cells=st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_the_fullest_cell_by_listing_every_throw(throws: int, cells: int) -> None:
    total = Fraction(0)
    for counts in itertools.product(range(throws + 1), repeat=cells):
        if sum(counts) == throws:
            ways = math.factorial(throws) // math.prod(math.factorial(count) for count in counts)
            total += Fraction(ways * max(counts), cells**throws)
    assert expected_largest(throws, cells) == pytest.approx(float(total), rel=1e-11)


def test_the_fullest_cell_of_very_many() -> None:
    for cells in (10**4, 10**6, 10**9, 10**12):
        assert expected_largest(2, cells) == pytest.approx(1 + 1 / cells, abs=1e-12)


@pytest.mark.parametrize(("throws", "cells"), [(64, 256), (300, 40), (512, 512)])
def test_the_fullest_cell_of_many_by_throwing(throws: int, cells: int) -> None:
    rng = np.random.default_rng(0)
    largest = rng.multinomial(throws, np.full(cells, 1 / cells), size=4000).max(axis=1)
    error = largest.std() / len(largest) ** 0.5
    assert expected_largest(throws, cells) == pytest.approx(largest.mean(), abs=5 * error)


@pytest.mark.parametrize("distinct", [True, False])
def test_the_most_frequent_value_of_the_bag_is_right_as_often_as_the_ceiling_says(
    distinct: bool,
) -> None:
    config = LookupConfig(
        num_keys=64, num_values=24, missing=0.2, distinct_values=distinct, held_out=0.0
    )
    facts = sample(config, 20_000, 5, split="all", num_facts=8)
    tokens, _ = encode(facts, "bag", seed=1)
    is_value = (tokens >= config.first_value) & (tokens < config.none)
    counts = torch.nn.functional.one_hot(torch.where(is_value, tokens, 0), config.vocab_size).sum(1)
    counts[:, 0] = 0
    asked_is_there = (tokens == facts.query[:, None]).any(1)
    best = torch.where(asked_is_there, counts.argmax(1), config.none)
    # Five standard errors of 20,000 hits or misses.
    assert float((best == facts.answer).double().mean()) == pytest.approx(
        bag_ceiling(config, 8), abs=5 * 0.0035
    )


def test_bad_input_is_refused() -> None:
    config = LookupConfig(num_values=8, max_facts=4, held_out=0.0)
    for call, got in [
        (lambda: bag_ceiling(config, 0), "num_facts = 0"),
        (lambda: bag_ceiling(config, 9), "9 distinct values"),
        (
            lambda: bag_ceiling(LookupConfig(distinct_values=False), 257),
            "257 facts with num_keys = 256",
        ),
        (lambda: expected_largest(1, 0), "cells = 0"),
        (lambda: expected_largest(1501, 4), "throws = 1501"),
    ]:
        with refused(got):
            call()
