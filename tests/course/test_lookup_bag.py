"""The lookup lesson's exercise "bag": every context has to be there, in each variant, and any data
is survived.
"""

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.course.exercises.lookup import EXERCISES, draw_bag

JUDGE = {exercise.name: exercise for exercise in EXERCISES}["bag"].judge
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda parts: (
        st.lists(parts, max_size=3) | st.dictionaries(st.text(max_size=3), parts, max_size=3)
    ),
)


def right(seed: int) -> dict[str, Any]:
    """The right answer of a variant."""
    keys, values = draw_bag(seed)
    contexts = [dict(zip(keys, order, strict=True)) for order in permutations(values)]
    return {"contexts": contexts, "share": 1 / len(values)}


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 10**6])
def test_one_context_more_or_less_is_seen(seed: int) -> None:
    answer = right(seed)
    assert JUDGE(answer, seed).passed
    assert JUDGE({"share": answer["share"], "contexts": answer["contexts"][::-1]}, seed).passed
    for number, context in enumerate(answer["contexts"]):
        others = answer["contexts"][:number] + answer["contexts"][number + 1 :]
        for contexts in (others, [*others, others[0]], [*answer["contexts"], context]):
            assert not JUDGE({**answer, "contexts": contexts}, seed).passed
        assert str(context) in JUDGE({**answer, "contexts": others}, seed).message
    first = answer["contexts"][0]
    foreign = {**first, next(iter(first)): "?"}
    assert not JUDGE({**answer, "contexts": [foreign, *answer["contexts"][1:]]}, seed).passed


@pytest.mark.parametrize(
    "share", [0, 1, 1 / 2, 1 / 6, 1 - 1 / 3, 10**400, -1 / 3, True, None, "1/3", [1 / 3]]
)
def test_another_share_is_refused(share: Any) -> None:
    assert not JUDGE({**right(0), "share": share}, 0).passed


def test_neighbours_have_other_bags() -> None:
    bags = [draw_bag(seed) for seed in range(50)]
    assert bags[0] == (["A", "B", "C"], ["1", "2", "3"])
    assert {len(keys) for keys, _ in bags} == {3, 4}
    assert all(
        len(set(keys)) == len(keys) == len(set(values)) == len(values) for keys, values in bags
    )
    passed = [
        (mine, other)
        for mine in range(50)
        for other in range(50)
        if JUDGE(right(mine), other).passed
    ]
    assert len(passed) <= 52


@given(JSON | st.fixed_dictionaries({"contexts": JSON | st.lists(JSON, max_size=8), "share": JSON}))
def test_any_data_is_survived(data: Any) -> None:
    assert not JUDGE(data, 0).passed
