"""The plans: the course's model and budget, and what is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from glassformer.labs.gpt_oss.network import Transformer
from glassformer.labs.gpt_oss.plan import BASE, COURSE_MODEL, DATA, FULL, LONG, QUICK, RECIPES, Plan
from glassformer.training import EpochBatches
from refusals import refused


def test_the_full_plan_stays_in_the_courses_budget() -> None:
    batches = EpochBatches({"numbers": torch.arange(FULL.num_train)})
    eight_epochs = 8 * batches.steps_per_epoch(RECIPES["course"].batch_size)
    assert {FULL.recipes[experiment.recipe].steps for experiment in FULL.experiments if not experiment.fresh} == {
        eight_epochs
    }
    assert (FULL.num_train, FULL.num_test, RECIPES["course"].batch_size) == (10_000, 1_000, 128)
    assert (DATA.vocab_size, DATA.order, DATA.next_prob, DATA.seq_len) == (7, 2, 0.1, 64)


@pytest.mark.parametrize("plan", [FULL, QUICK], ids=lambda plan: plan.name)
def test_every_model_of_a_plan_can_be_built_and_starts_with_the_courses(plan: Plan) -> None:
    assert plan.experiments[0].name == BASE.name
    assert plan.experiments[0].model == {}
    names = [experiment.name for experiment in plan.experiments]
    assert len(set(names)) == len(names)
    for experiment in plan.experiments:
        Transformer(**{**COURSE_MODEL, **experiment.model})
        assert plan.config(experiment, seed=3).seed == 3


def test_the_full_plan_has_every_variant_and_a_longer_run() -> None:
    changed = [set(experiment.model) for experiment in FULL.experiments]
    together = {"num_kv_heads", "use_sliding_window_alternating", "window_size", "use_moe", "num_experts", "top_k"}
    assert [len(change) for change in changed] == [0, 1, 2, 3, 6, 0]
    assert changed[4] == together
    assert FULL.experiments[-1] == LONG
    assert FULL.config(LONG, 0).steps > FULL.config(BASE, 0).steps


@pytest.mark.parametrize(
    ("changes", "helpful"),
    [
        ({"num_measured": 0}, "num_measured = 0"),
        ({"prompt_length": 1}, "prompt_length = 1"),
        ({"prompt_length": 60, "new_tokens": 6}, "at most 65"),
        ({"num_prompts": 5000}, "num_prompts = 5000"),
        ({"experiments": ()}, "at least one"),
        ({"recipes": {}}, "no recipe for"),
    ],
)
def test_impossible_plans_are_refused(changes: dict[str, Any], helpful: str) -> None:
    with refused(anywhere=helpful):
        dataclasses.replace(FULL, **changes)
