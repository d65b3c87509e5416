"""The lab's recipes, what comes of them, and the circuit of a head on unique."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.handcraft.designs import design
from glassformer.handcraft.single_head import HeadWeights
from glassformer.handcraft.tasks import TASKS, unique
from glassformer.handcraft.verification import verify
from glassformer.labs.hand_designed.experiments.study import (
    COURSE_SIZES,
    FAST_SIZES,
    course_recipe,
    fast_recipe,
    unique_circuit,
)
from glassformer.labs.hand_designed.head_training import outcomes_of, unstacked


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000), name=st.sampled_from(sorted(COURSE_SIZES)))
def test_outcomes_agree_with_the_verifier(seed: int, name: str) -> None:
    task, heads = TASKS[name](), fast_recipe(name).new([seed])
    (outcome,) = outcomes_of(heads, task)
    certificate = verify(unstacked(heads)[0], task, tolerance=None, dtype=torch.float32)
    assert outcome.outputs_right == pytest.approx(certificate.num_right / certificate.num_outputs)
    assert outcome.largest_error == pytest.approx(certificate.largest_error, rel=1e-4)
    assert sum(outcome.misread) == certificate.num_outputs - certificate.num_right
    assert len(outcome.wrong) == len(outcome.misread) == task.space.max_len
    assert any(outcome.wrong) != certificate.holds


@pytest.mark.parametrize("name", COURSE_SIZES)
def test_recipes_have_their_sizes_and_pytorchs_initial_weights(name: str) -> None:
    task = TASKS[name]()
    course, fast = course_recipe(name), fast_recipe(name)
    assert (course.steps, course.stages[0].batch_size, course.stages[0].clip) == (10_001, 1, None)
    assert fast.steps <= course.steps / 3
    assert [stage.batch_size for stage in fast.stages] == [8, None]
    assert FAST_SIZES["unique"][1] == unique().space.num_positions
    heads = unstacked(course.new(range(60)))
    assert (heads[0].qk_dim, heads[0].pos_dim or None) == COURSE_SIZES[name]
    bound = (task.space.num_tokens + heads[0].pos_dim) ** -0.5
    entries = np.concatenate([head.Qm.ravel() for head in heads])
    assert np.abs(entries).max() <= bound
    assert entries.std() == pytest.approx(bound / 3**0.5, rel=0.15)
    assert np.array_equal(heads[3].Km, unstacked(course.new([3]))[0].Km)


def test_scaling_changes_the_steps_alone() -> None:
    recipe = fast_recipe("unique")
    scaled = recipe.scaled(0.1)
    assert [stage.steps for stage in scaled.stages] == [200, 100]
    assert scaled.scaled(10) == recipe


@pytest.mark.slow
@pytest.mark.parametrize("name", ["copy_first", "unique"])
def test_the_fast_recipe_solves_its_task(name: str) -> None:
    recipe = fast_recipe(name)
    heads = recipe.new(range(10))
    recipe.train(heads, range(10))
    assert max(outcome.largest_error for outcome in outcomes_of(heads, TASKS[name]())) < 0.01


def test_a_designed_head_takes_its_ones_from_cls_and_excludes_itself() -> None:
    circuit = unique_circuit(design(unique()).weights, unique())
    assert circuit.cls_share == pytest.approx(1)
    assert circuit.self_shares == pytest.approx([0] * 4, abs=1e-8)
    assert circuit.values == pytest.approx([1, -1, -1, -1, -1])


def test_a_circuit_by_hand() -> None:
    # Even attention: every key has the same weight, so a letter's own is a half of it and another's.
    task = unique("AB", 2)
    circuit = unique_circuit(HeadWeights(np.zeros((3, 1)), np.zeros((3, 1)), [[1.0], [-1.0], [3.0]]), task)
    # A gives 3 and 1, B gives 3 and nothing, AB twice and BA twice: 3 and 1, each at a third of the weight.
    from_cls, from_letters = 3 / 2 + 3 / 2 + 4 * 3 / 3, 1 / 2 + 4 * 1 / 3
    assert circuit.cls_share == pytest.approx(from_cls / (from_cls + from_letters))
    assert circuit.self_shares == pytest.approx([0.5, 0.5])
    assert circuit.values == pytest.approx([3, 0, 0])
