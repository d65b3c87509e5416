"""How much the lab does: what a plan refuses, and that the two plans there are hang together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from glassformer.errors import InputError
from glassformer.labs.lookup.course_data import NUM_EPOCHS
from glassformer.labs.lookup.plan import FULL, QUICK, Plan, shortened
from glassformer.labs.lookup.recipes import BAG, LONG_CONTEXTS, SLOTS


@pytest.mark.parametrize("plan", [FULL, QUICK])
def test_plans_keep_to_the_course(plan: Plan) -> None:
    assert plan.course_epochs <= NUM_EPOCHS
    assert plan.course_samples == 5000
    assert plan.max_orders >= 120
    assert {recipe.encoding for recipe in plan.encodings} == {"slots", "bag", "positions"}
    assert set(plan.lengths) >= {1, 2, 4, 8}


def test_the_full_plan_has_three_seeds_and_goes_far() -> None:
    assert FULL.course_seeds == FULL.slots_seeds == 3
    assert set(FULL.lengths) >= {32, 64, 1024}
    assert FULL.changes[-1] == LONG_CONTEXTS
    assert len({recipe.steps for recipe in FULL.changes}) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"course_seeds": 0}, "course_seeds = 0"),
        ({"num_questions": 0}, "num_questions = 0"),
        ({"encodings": ()}, "slots first"),
        ({"encodings": (BAG, SLOTS)}, "slots first"),
        ({"encodings": (SLOTS, SLOTS)}, "each encoding once"),
        ({"changes": (SLOTS,)}, "different names"),
        ({"lengths": ()}, "no lengths"),
    ],
)
def test_impossible_plans_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(replace(FULL, encodings=(SLOTS, BAG), changes=()), **change)


def test_a_shortened_recipe_is_the_same_but_for_its_size() -> None:
    short = shortened(SLOTS, steps=7, tokens=20)
    assert (short.steps, short.data.num_keys, short.data.num_values) == (7, 20, 20)
    same = {"steps": SLOTS.steps, "data": SLOTS.data, "batch_size": SLOTS.batch_size}
    assert replace(short, **same) == SLOTS
