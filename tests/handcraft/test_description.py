"""Each relation against its meaning in plain Python, for every pair of places, and what
descriptions attend to.
"""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

from glassformer.handcraft.description import (
    Description,
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

SPACE = SequenceSpace(tuple("AB"), 3, has_cls=True)
SPACES = [SequenceSpace(tuple("ABC"), 4), SPACE]

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
@pytest.mark.parametrize(
    ("selector", "meaning"), MEANINGS, ids=[selector.text for selector, _ in MEANINGS]
)
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


@pytest.mark.parametrize(
    "selector", [selector for selector, _ in MEANINGS], ids=lambda selector: selector.text
)
def test_scores_are_those_of_the_factors(selector: Selector) -> None:
    space = SPACES[1]
    table = selector.table(space)
    total = pair_scores(table.factors, space)
    np.testing.assert_allclose(table.scores, total, rtol=0, atol=1e-12)


def test_selectors_and_descriptions_say_themselves_in_words() -> None:
    assert str(Description(SPACE, same_token())) == "attend to the same token"
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


def test_wanted_keys_are_those_of_the_highest_tier_present() -> None:
    description = Description(SPACE, same_token().but_not(itself()).otherwise(token(CLS)))
    block = SPACE.block([SPACE.encode("ABA"), SPACE.encode("B")])
    wanted = description.wanted(block)
    np.testing.assert_array_equal(wanted[0, 1:], [[0, 0, 0, 1], [1, 0, 0, 0], [0, 1, 0, 0]])
    np.testing.assert_array_equal(wanted[1, 1], [1, 0, 0, 0])


def test_with_nothing_to_attend_to_a_query_attends_to_all() -> None:
    description = Description(SequenceSpace(tuple("AB"), 3), at_position(2))
    wanted = description.wanted(description.space.block([np.array([0, 1])]))
    np.testing.assert_array_equal(wanted[0], [[1, 1], [1, 1]])


def test_the_output_is_the_mean_of_the_wanted_values() -> None:
    description = Description(SPACE, everything(), {"A": [1, 0], "B": [0, 2], CLS: [4, 4]})
    out = description.output(SPACE.block([SPACE.encode("AB")]))
    np.testing.assert_allclose(out[0], [[5 / 3, 2]] * 3, rtol=1e-15)


def test_letters_are_worth_their_one_hot_vector_and_cls_nothing_unless_said() -> None:
    np.testing.assert_array_equal(
        Description(SPACE, itself()).value_rows[:3], [[1, 0], [0, 1], [0, 0]]
    )
    np.testing.assert_array_equal(
        Description(SPACE, itself(), {"B": 3}).value_rows[:3, 0], [0, 3, 0]
    )


def test_positions_can_be_worth_something_too() -> None:
    space = SequenceSpace(tuple("AB"), 3)
    description = Description(
        space, latest(), {"A": 0.0, "B": 10.0}, position_values=[[1], [2], [3]]
    )
    np.testing.assert_array_equal(
        description.output(space.block([space.encode("AB")]))[0, :, 0], [12, 12]
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"values": {"Z": 1}}, "a value for 'Z'"),
        ({"values": {}}, "no values"),
        ({"values": {"A": [1], "B": [1, 2]}}, r"values of shapes \[\(1,\), \(2,\)\]"),
        ({"values": {"A": float("nan")}}, "finite"),
        ({"values": {"A": "much"}}, "a number or a list of numbers"),
        ({"position_values": [[1, 2]]}, r"position_values of shape \[1, 2\]"),
    ],
)
def test_values_that_are_none_are_refused(arguments: dict[str, Any], message: str) -> None:
    with refused(anywhere=message):
        _ = Description(SPACE, previous(), **arguments).place_values
