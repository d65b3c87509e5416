"""Texts that repeat themselves, and texts that only seem to."""

import random
from collections.abc import Iterable

import pytest

from glassformer.generation.loops import (
    FEWEST_OF_A_LIST,
    FEWEST_TOKENS,
    LONGEST_PERIOD,
    LoopDetector,
)


def ends_in_a_loop(tokens: Iterable[int]) -> bool:
    loop = LoopDetector()
    return any(loop.add(token) for token in tokens)


@pytest.mark.parametrize("period", [1, 2, 4, 7, 31, LONGEST_PERIOD])
@pytest.mark.parametrize("before", [0, 1, 100])
def test_a_loop_is_found_when_it_has_lasted(period: int, before: int) -> None:
    loop = LoopDetector()
    begin = [-1 - each for each in range(before)]
    text = [*begin, *(each % period for each in range(1000))]
    found = next(at for at, token in enumerate(text) if loop.add(token))
    assert found - before + 1 == max(FEWEST_TOKENS, 4 * period)


def test_texts_that_go_on_are_no_loops() -> None:
    rng = random.Random(0)
    assert not ends_in_a_loop([rng.randrange(4) for _ in range(20_000)])
    numbered = [token for item in range(300) for token in (1, item, 2, 3, 4)]
    assert not ends_in_a_loop(numbered)
    counted = [
        token
        for item in range(1000)
        for token in (100 + item // 100, 100 + item // 10 % 10, 100 + item % 10)
    ]
    assert not ends_in_a_loop(counted)
    rows = [token for item in range(40) for token in (*[5] * 20, item)]  # lines of dashes
    assert not ends_in_a_loop(rows)


def test_a_loop_longer_than_the_longest_period_is_none() -> None:
    assert not ends_in_a_loop([*range(LONGEST_PERIOD + 1)] * 50)


def numbered(words: int, items: int) -> list[int]:
    """A list whose items are the same words after numbers that grow; numbers are below 0."""
    return [token for item in range(items) for token in (-item - 1, *range(words))]


@pytest.mark.parametrize("words", [FEWEST_OF_A_LIST, 10, 30])
def test_a_list_whose_items_differ_in_their_numbers_is_a_loop(words: int) -> None:
    loop = LoopDetector(lambda token: token < 0)
    found = next(at for at, token in enumerate(numbered(words, 100)) if loop.add(token))
    assert found + 1 == FEWEST_OF_A_LIST * (words + 1)


def test_counting_and_tables_are_no_loops() -> None:
    for words in range(FEWEST_OF_A_LIST):
        loop = LoopDetector(lambda token: token < 0)
        # Words that repeat while numbers go on: 1, 2, 3; 7 times 1 is 7.
        assert not any(loop.add(token) for token in numbered(words, 100))
    loop = LoopDetector(lambda token: token < 0)
    assert not any(loop.add(token) for token in numbered(20, FEWEST_OF_A_LIST - 1))
