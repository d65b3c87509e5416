"""The rule that numbers follow: found where the numbers tell it, and only there."""

import tracemalloc
from itertools import product
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.data.recurrence import Generators, RecurrenceConfig, sample_sequences
from glassformer.explorer.loading.recurrence_rule import (
    likely_coefficients,
    may_follow,
    rule_in_words,
)

SEVEN = RecurrenceConfig(order=2, vocab_size=7, next_prob=0.1, seq_len=64)


def _made(coefficients: tuple[int, ...], seed: int, config: RecurrenceConfig = SEVEN) -> list[int]:
    generators = Generators(torch.tensor([[1, 3]]), torch.tensor([coefficients]))
    return sample_sequences(config, generators, np.random.default_rng(seed))[0].tolist()


def _posterior(tokens: list[int], config: RecurrenceConfig) -> dict[tuple[int, ...], float]:
    """Bayes' rule step by step, in plain loops."""
    found = {}
    for rule in product(range(config.vocab_size), repeat=config.order):
        chance = 1.0
        for place in range(config.order, len(tokens)):
            state = tokens[place - config.order : place]
            by_rule = (
                sum(a * b for a, b in zip(rule, state, strict=True)) % config.vocab_size
                == tokens[place]
            )
            by_increment = (state[-1] + 1) % config.vocab_size == tokens[place]
            step = config.next_prob * by_increment + (1 - config.next_prob) * by_rule
            chance *= 0.999 * step + 0.001 / config.vocab_size
        found[rule] = chance
    total = sum(found.values())
    return {rule: chance / total for rule, chance in found.items()}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=3, max_size=20))
def test_a_rule_is_named_when_bayes_is_sure(tokens: list[int]) -> None:
    config = RecurrenceConfig(order=2, vocab_size=5)
    posterior = _posterior(tokens, config)
    best = max(posterior.values())
    good = [rule for rule, chance in posterior.items() if chance > best / 2]
    mass = sum(posterior[rule] for rule in good)
    nexts = {sum(a * b for a, b in zip(rule, tokens[-2:], strict=True)) % 5 for rule in good}
    shortest = min(good, key=lambda rule: (len(rule) - rule.count(0), rule))
    wanted = shortest if mass > 0.95 and len(nexts) == 1 else None
    near = abs(mass - 0.95) < 1e-6 or any(
        abs(chance / best - 0.5) < 1e-6 for chance in posterior.values()
    )
    if not near:
        assert likely_coefficients(tokens, config) == wanted


@pytest.mark.parametrize("coefficients", [(3, 4), (0, 5), (1, 0)])
def test_the_rule_that_made_the_numbers_is_found(coefficients: tuple[int, int]) -> None:
    tokens = _made(coefficients, seed=4)
    assert likely_coefficients(tokens, SEVEN) == coefficients
    tokens[30] = (tokens[30] + 3) % 7  # a slip breaks three steps
    assert likely_coefficients(tokens, SEVEN) == coefficients


def test_the_rule_in_words() -> None:
    assert (
        rule_in_words(_made((3, 4), 4), SEVEN) == "x[t] = 4 x[t-1] + 3 x[t-2] mod 7, or x[t-1] + 1"
    )
    assert rule_in_words(_made((1, 0), 4), SEVEN) == "x[t] = x[t-2] mod 7, or x[t-1] + 1"
    sure = RecurrenceConfig(order=2, vocab_size=7, next_prob=0.0)
    assert rule_in_words(_made((0, 0), 4, sure), sure) == "x[t] = 0 mod 7"


def test_of_rules_that_make_the_same_numbers_the_shortest_is_told() -> None:
    tokens = [1, 3, 2, 6, 4, 5] * 4
    assert rule_in_words(tokens, SEVEN) == "x[t] = 3 x[t-1] mod 7, or x[t-1] + 1"
    assert may_follow(tokens, 1, SEVEN)
    assert may_follow(tokens, 2, SEVEN) is False


def test_what_may_follow() -> None:
    tokens = _made((3, 4), 4)[:50]
    by_rule = (3 * tokens[-2] + 4 * tokens[-1]) % 7
    allowed = {by_rule, (tokens[-1] + 1) % 7}
    assert {number for number in range(7) if may_follow(tokens, number, SEVEN)} == allowed


@pytest.mark.parametrize("tokens", [[], [1], [1, 2], [3, 3, 4]])
def test_too_few_numbers_leave_it_open(tokens: list[int]) -> None:
    assert rule_in_words(tokens, SEVEN) is None
    assert may_follow(tokens, 1, SEVEN) is None


DRAWN = np.random.default_rng(0).integers(101, size=4095).tolist()


@pytest.mark.parametrize(
    ("order", "size", "tokens", "most"),
    [
        (4, 30, list(range(20)), 20),
        (22, 2, [0] * 60, 20),
        (2, 512, [0] * 60, 20),
        (2, 101, DRAWN, 27),
    ],
)
def test_too_many_rules_and_steps_are_left_alone(
    order: int, size: int, tokens: list[int], most: int
) -> None:
    config = RecurrenceConfig(order=order, vocab_size=size, next_prob=0.1, seq_len=64)
    tracemalloc.start()
    assert may_follow(tokens, 1, config) is None
    _, taken = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 2**most  # every rule on every step of the last takes a gigabyte


def test_a_rule_among_many_is_found() -> None:
    config = RecurrenceConfig(order=2, vocab_size=101, next_prob=0.1, seq_len=64)
    assert likely_coefficients(_made((3, 4), 4, config), config) == (3, 4)


def test_the_rule_of_a_text_is_looked_for_once() -> None:
    tokens = _made((3, 4), 5)
    with patch("glassformer.explorer.loading.recurrence_rule.np.unique", wraps=np.unique) as judged:
        may_follow(tokens, 0, SEVEN)
        once = judged.call_count
        assert once > 0
        assert any(may_follow(tokens, number, SEVEN) for number in range(7))
        assert rule_in_words(tokens, SEVEN) is not None
        assert judged.call_count == once
