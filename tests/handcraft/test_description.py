from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glassformer.handcraft.description import (
    Description,
    at_position,
    everything,
    itself,
    latest,
    previous,
    same_token,
    token,
)
from glassformer.handcraft.sequences import CLS, SequenceSpace
from refusals import refused

SPACE = SequenceSpace(tuple("AB"), 3, has_cls=True)


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
    np.testing.assert_array_equal(Description(SPACE, itself()).value_rows[:3], [[1, 0], [0, 1], [0, 0]])
    np.testing.assert_array_equal(Description(SPACE, itself(), {"B": 3}).value_rows[:3, 0], [0, 3, 0])


def test_positions_can_be_worth_something_too() -> None:
    space = SequenceSpace(tuple("AB"), 3)
    description = Description(space, latest(), {"A": 0.0, "B": 10.0}, position_values=[[1], [2], [3]])
    np.testing.assert_array_equal(description.output(space.block([space.encode("AB")]))[0, :, 0], [12, 12])


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


def test_a_description_says_itself() -> None:
    assert str(Description(SPACE, same_token())) == "attend to the same token"
