"""How much the lab does: what a plan refuses, and that the two plans there are hang together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from glassformer.errors import InputError
from glassformer.labs.lookup.course_data import NUM_EPOCHS
from glassformer.labs.lookup.plan import FULL, QUICK, Plan, shortened
from glassformer.labs.lookup.recipes import BAG, CHANGES, COMBINATIONS, FAR, POSITIONS, SLOTS, UP_TO_128


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
    assert (FULL.changes, FULL.combined) == ((FAR, *CHANGES), COMBINATIONS)
    assert len({recipe.steps for recipe in (*FULL.changes, *FULL.combined)}) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"course_seeds": 0}, "course_seeds = 0"),
        ({"num_questions": 0}, "num_questions = 0"),
        ({"encodings": ()}, "slots first"),
        ({"encodings": (BAG, SLOTS)}, "slots first"),
        ({"encodings": (SLOTS, SLOTS)}, "each encoding once"),
        ({"encodings": (SLOTS,)}, "a bag to compare"),
        ({"encodings": (SLOTS, replace(BAG, data=replace(BAG.data, max_facts=4)))}, "one range"),
        ({"encodings": (SLOTS, replace(SLOTS, name="bag", encoding="bag"))}, "no ceiling is derived"),
        ({"changes": (SLOTS,)}, "different names"),
        ({"changes": (FAR, replace(FAR, name="PLAIN"))}, "different names"),
        ({"changes": (FAR, replace(POSITIONS, name="placed"))}, "changes of slots"),
        ({"combined": (UP_TO_128,)}, "combinations without changes"),
        ({"lengths": ()}, "with 8, the most trained on"),
        ({"lengths": (1, 2)}, "with 8, the most trained on"),
        ({"lengths": (8, 1)}, "rising"),
        ({"lengths": (1, 8, 8)}, "rising"),
        ({"lengths": (0, 8)}, r"lengths\[0\] = 0"),
        ({"changes": (replace(FAR, data=replace(FAR.data, num_values=8, max_facts=4)),)}, "fewer than 8 facts"),
        ({"course_epochs": NUM_EPOCHS + 1}, "course_epochs = 51"),
        ({"max_orders": 1}, "max_orders = 1"),
    ],
)
def test_impossible_plans_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(replace(FULL, encodings=(SLOTS, BAG), changes=(), combined=()), **change)


def test_a_shortened_recipe_is_the_same_but_for_its_size() -> None:
    short = shortened(SLOTS, steps=7, tokens=20)
    assert (short.steps, short.data.num_keys, short.data.num_values) == (7, 20, 20)
    same = {"steps": SLOTS.steps, "data": SLOTS.data, "batch_size": SLOTS.batch_size}
    assert replace(short, **same) == SLOTS


def test_names_follow_the_numbers_of_a_shortened_recipe() -> None:
    short = shortened(UP_TO_128, steps=7, tokens=64)
    assert short.data.max_facts == 16
    assert short.name == "1 to 16 facts, shared tables, no mixing, batches of 64"
    assert [shortened(recipe).name for recipe in CHANGES[-2:]] == ["1 to 8 facts", "32 values"]
    assert shortened(CHANGES[3]).name == CHANGES[3].name == "width 128"
