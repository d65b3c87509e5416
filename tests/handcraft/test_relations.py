"""Each relation against its meaning in plain Python, for every pair of places."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from glassformer.handcraft.description import (
    Selector,
    at_position,
    earlier,
    everything,
    itself,
    later,
    latest,
    pair_scores,
    previous,
    same_token,
    token,
)
from glassformer.handcraft.sequences import CLS, SequenceSpace
from refusals import refused

SPACES = [SequenceSpace(tuple("ABC"), 4), SequenceSpace(tuple("AB"), 3, has_cls=True)]

Place = tuple[str, int]
"""A token's name and its position, that of CLS being -1."""

MEANINGS: list[tuple[Selector, Callable[[Place, Place], int]]] = [
    (everything(), lambda q, k: 0),
    (same_token(), lambda q, k: int(q[0] == k[0])),
    (itself(), lambda q, k: int(q[1] == k[1])),
    (previous(), lambda q, k: int(q[1] - k[1] == 1)),
    (previous(2), lambda q, k: int(q[1] - k[1] == 2)),
    (earlier(), lambda q, k: int(k[1] < q[1])),
    (later(), lambda q, k: int(k[1] > q[1])),
    (token("B"), lambda q, k: int(k[0] == "B")),
    (at_position(1), lambda q, k: int(k[1] == 1)),
    (same_token().but_not(itself()), lambda q, k: int(q[0] == k[0] and q[1] != k[1])),
    (same_token() & earlier(), lambda q, k: int(q[0] == k[0] and k[1] < q[1])),
    (previous().otherwise(itself()), lambda q, k: 2 if q[1] - k[1] == 1 else int(q[1] == k[1])),
    (
        same_token().but_not(itself()).otherwise(token("A")),
        lambda q, k: 2 if q[0] == k[0] and q[1] != k[1] else int(k[0] == "A"),
    ),
]


def places(space: SequenceSpace) -> list[Place]:
    letters = [(letter, position) for position in range(space.max_len) for letter in space.letters]
    return [(CLS, -1), *letters] if space.has_cls else letters


@pytest.mark.parametrize("space", SPACES, ids=["letters", "with CLS"])
@pytest.mark.parametrize(("selector", "meaning"), MEANINGS, ids=[selector.text for selector, _ in MEANINGS])
def test_tiers_are_what_the_words_mean(
    space: SequenceSpace, selector: Selector, meaning: Callable[[Place, Place], int]
) -> None:
    expected = [[meaning(query, key) for key in places(space)] for query in places(space)]
    np.testing.assert_array_equal(selector.table(space).tiers, expected)


@pytest.mark.parametrize("space", SPACES, ids=["letters", "with CLS"])
def test_the_last_place_has_the_highest_tier(space: SequenceSpace) -> None:
    table = latest().table(space)
    positions = [position for _, position in places(space)]
    for row, other in product(table.tiers, repeat=2):
        assert (row == other).all()
    order = np.argsort(table.tiers[0], kind="stable")
    assert [positions[i] for i in order] == sorted(positions)


@pytest.mark.parametrize("selector", [selector for selector, _ in MEANINGS], ids=lambda selector: selector.text)
def test_scores_are_those_of_the_factors(selector: Selector) -> None:
    space = SPACES[1]
    table = selector.table(space)
    total = pair_scores(table.factors, space)
    np.testing.assert_allclose(table.scores, total, rtol=0, atol=1e-12)


def test_a_selector_says_itself_in_words() -> None:
    text = same_token().but_not(itself()).otherwise(token(CLS)).text
    assert text == "the same token but not itself, otherwise the token CLS"


def test_relations_that_cannot_be_are_refused() -> None:
    space = SPACES[0]
    with refused("the token 'Z'"):
        token("Z").table(space)
    with refused("the token 'CLS'"):
        token(CLS).table(space)
    with refused("position 4"):
        at_position(4).table(space)
    with refused("index = -1"):
        at_position(-1)
    with refused("distance = 0"):
        previous(0)
