from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from glassformer.handcraft.tasks import TASKS
from glassformer.labs.hand_designed.recipes import (
    COURSE_SIZES,
    FAST_SIZES,
    Recipe,
    Stage,
    course_recipe,
    descent_recipe,
    fast_recipe,
    recipes,
)
from glassformer.training import TrainingConfig
from glassformer.training.optim import build_optimizers, learning_rate_factor
from refusals import refused


@pytest.mark.parametrize("task", COURSE_SIZES)
def test_the_courses_recipe_is_the_courses(task: str) -> None:
    recipe = course_recipe(task)
    (stage,) = recipe.stages
    assert (recipe.steps, stage.batches, stage.config.batch_size, stage.config.clip_norm) == (10_001, "random", 1, None)
    (sgd,) = build_optimizers(torch.nn.Linear(2, 2), stage.config)
    assert isinstance(sgd, torch.optim.SGD)
    assert {(group["lr"], group["momentum"], group["weight_decay"]) for group in sgd.param_groups} == {(0.03, 0.0, 0.0)}
    assert {learning_rate_factor(step, stage.config) for step in (0, 1, 5000, 10_000)} == {1.0}


def test_sizes_fit_the_tasks() -> None:
    assert COURSE_SIZES == {"identity": (3, None), "copy_first": (1, 4), "unique": (8, 4)}
    assert set(COURSE_SIZES) == set(FAST_SIZES) <= set(TASKS)
    assert FAST_SIZES["unique"][1] == TASKS["unique"]().space.num_positions


@pytest.mark.parametrize("task", COURSE_SIZES)
def test_the_fast_recipe_is_shorter_and_ends_with_the_descent(task: str) -> None:
    course, fast = recipes(task)
    assert (course, fast) == (course_recipe(task), fast_recipe(task))
    assert fast.steps <= course.steps / 3
    assert fast.stages[1:] == descent_recipe(task).stages
    assert [stage.batches for stage in fast.stages] == ["random", "all"]
    assert len({course.name, fast.name, descent_recipe(task).name}) == 3


@given(task=st.sampled_from(sorted(COURSE_SIZES)), factor=st.floats(1e-6, 10))
def test_scaling_changes_the_steps_alone(task: str, factor: float) -> None:
    recipe = fast_recipe(task)
    scaled = recipe.scaled(factor)
    for before, after in zip(recipe.stages, scaled.stages, strict=True):
        assert after.config.steps == max(1, round(before.config.steps * factor))
        assert dataclasses.replace(after.config, steps=before.config.steps) == before.config
    assert scaled.steps == sum(stage.config.steps for stage in scaled.stages)
    assert dataclasses.replace(scaled, stages=recipe.stages) == recipe


def test_a_warm_up_stays_within_a_shortened_stage() -> None:
    recipe = Recipe("mine", "unique", 2, 2, (Stage(TrainingConfig(steps=100, warmup_steps=50)),))
    assert recipe.scaled(0.1).stages[0].config.warmup_steps == 10


def test_json_tells_every_field() -> None:
    values = json.loads(json.dumps(fast_recipe("unique").to_json()))
    assert values["stages"][0]["config"]["clip_norm"] == 1.0
    assert values["stages"][1]["batches"] == "all"
    assert (values["name"], values["task"], values["qk_dim"], values["pos_dim"]) == ("fast", "unique", 16, 5)
    assert fast_recipe("unique").to_json() == values, "what was read back can be compared with what is made"


def test_bad_recipes_are_refused() -> None:
    stage = Stage(TrainingConfig())
    for make in (course_recipe, fast_recipe, descent_recipe):
        with refused(anywhere="one of identity, copy_first, unique"):
            make("parity")
    with refused("qk_dim"):
        Recipe("mine", "unique", 0, 4, (stage,))
    with refused("pos_dim"):
        Recipe("mine", "unique", 1, 0, (stage,))
    with refused("without stages"):
        Recipe("mine", "unique", 1, 1, ())
    with refused("factor = 0"):
        fast_recipe("unique").scaled(0.0)
