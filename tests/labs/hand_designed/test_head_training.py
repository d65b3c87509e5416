"""Training many heads at once is training each alone, as the course draws sequences; recipes, outcomes, circuits."""

from collections import Counter

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.handcraft.designs import design
from glassformer.handcraft.single_head import HeadWeights, NumpyHead, SingleHead
from glassformer.handcraft.tasks import TASKS, unique
from glassformer.handcraft.verification import verify
from glassformer.labs.hand_designed.experiments.study import (
    COURSE_SIZES,
    FAST_SIZES,
    course_recipe,
    fast_recipe,
    unique_circuit,
)
from glassformer.labs.hand_designed.head_training import (
    Heads,
    Recipe,
    Sequences,
    Stage,
    curvature,
    outcomes_of,
    stacked,
    unstacked,
)
from glassformer.training import mix_seed

COURSE = (Stage(40, "sgd", 0.03, 1),)
FAST = (Stage(20, "sgd", 1.0, 8, cosine=True, clip=1.0), Stage(10, "adam", 0.1, None, cosine=True))


def recipe(name: str, *stages: Stage) -> Recipe:
    return Recipe("a name", name, *FAST_SIZES[name], stages)


def few(name: str, seeds: list[int]) -> Heads:
    """Untrained heads."""
    return recipe(name).new(seeds)


@pytest.mark.parametrize(("name", "stages"), [("unique", COURSE), ("unique", FAST), ("identity", FAST)])
def test_each_head_is_trained_as_if_alone(name: str, stages: tuple[Stage, ...]) -> None:
    seeds = [4, 9, 2]
    together = few(name, seeds)
    recipe(name, *stages).train(together, seeds)
    for seed, head in zip(seeds, unstacked(together), strict=True):
        alone = few(name, [seed])
        recipe(name, *stages).train(alone, [seed])
        for key, matrix in unstacked(alone)[0].matrices.items():
            np.testing.assert_allclose(matrix, head.matrices[key], rtol=1e-3, atol=1e-4)


def test_one_sequence_per_step_is_a_plain_loop() -> None:
    task, heads = unique(), few("unique", [8])
    bare, cases = SingleHead.from_weights(unstacked(heads)[0], torch.float32), task.all_cases
    recipe("unique", *COURSE).train(heads, [8])
    optimizer = torch.optim.SGD(bare.parameters(), lr=0.03)
    for row in Sequences(task).draw(40, 1, mix_seed(8, 0))[:, 0]:
        real = cases.block.real[row]
        x, target = (torch.from_numpy(each[row, real]).float() for each in (cases.inputs, cases.target))
        loss = F.mse_loss(bare(x)[1:], target[1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for name, matrix in bare.to_weights().matrices.items():
        np.testing.assert_allclose(matrix, unstacked(heads)[0].matrices[name], rtol=1e-4, atol=1e-5)


def test_a_clipped_step_has_the_norm_of_the_limit() -> None:
    heads = few("copy_first", [0, 1])
    before = {name: tensor.clone() for name, tensor in heads.items()}
    recipe("copy_first", Stage(1, "sgd", 1.0, 8, clip=1e-3)).train(heads, [0, 1])
    moved = sum((heads[name] - before[name]).square().sum(dim=(1, 2)) for name in heads).sqrt()
    assert moved.tolist() == pytest.approx([1e-3, 1e-3], rel=1e-2)


@pytest.mark.parametrize("name", ["identity", "unique"])
def test_the_expected_loss_is_the_mean_over_lengths_and_letters(name: str) -> None:
    task, heads = TASKS[name](), few(name, [0, 1, 2])
    cases, space = task.all_cases, task.space
    for head, loss in zip(unstacked(heads), Sequences(task).loss(heads), strict=True):
        expected = 0.0
        for row, counted in enumerate(cases.counted):
            output = NumpyHead(head)(cases.inputs[row, cases.block.real[row]])[-counted.sum() :]
            error = ((output - cases.target[row, counted]) ** 2).mean()
            expected += error / space.max_len / len(space.letters) ** counted.sum()
        assert loss.item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("uniform", [False, True])
def test_sequences_are_drawn_as_the_course_draws_them_or_uniformly(uniform: bool) -> None:
    task = unique()
    rows = Sequences(task, uniform).draw(4_000, 1, seed=1).ravel()
    lengths = Counter(task.all_cases.counted.sum(axis=1)[rows].tolist())
    expected = {length: 3**length / 120 if uniform else 1 / 4 for length in (1, 2, 3, 4)}
    # Five standard deviations of a share of one half, which is the widest.
    assert {length: lengths[length] / 4_000 for length in expected} == pytest.approx(expected, abs=5 * 0.5 / 4_000**0.5)
    assert np.array_equal(rows, Sequences(task, uniform).draw(4_000, 1, seed=1).ravel())
    longest = np.flatnonzero(task.all_cases.counted.sum(axis=1) == 4)
    assert len(set(rows) & set(longest)) > 0.99 * 81


def test_curvature_is_that_of_the_loss() -> None:
    task = unique("AB", 2)
    rng = np.random.default_rng(3)
    head = HeadWeights(*(rng.normal(size=size) for size in ((4, 2), (4, 2), (4, 1), (3, 1))))
    found = curvature(head, task)
    sequences, shapes = Sequences(task, dtype=torch.float64), [each.shape for each in head.matrices.values()]
    flat = np.concatenate([matrix.ravel() for matrix in head.matrices.values()])

    def gradient(point: np.ndarray) -> np.ndarray:
        parts = np.split(point, np.cumsum([np.prod(shape) for shape in shapes])[:-1])
        heads = {
            name: torch.tensor(part.reshape(1, *shape), requires_grad=True)
            for name, part, shape in zip(head.matrices, parts, shapes, strict=True)
        }
        sequences.loss(heads).sum().backward()
        return np.concatenate([tensor.grad.numpy().ravel() for tensor in heads.values()])

    step = 1e-5
    columns = [(gradient(flat + step * e) - gradient(flat - step * e)) / (2 * step) for e in np.eye(len(flat))]
    numbers = np.linalg.eigvalsh(np.stack(columns))
    assert found.mse == pytest.approx(Sequences(task).loss(stacked([head])).item(), rel=1e-5)
    assert (found.lowest_curvature, found.highest_curvature) == pytest.approx((numbers[0], numbers[-1]), abs=1e-6)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000), name=st.sampled_from(sorted(COURSE_SIZES)))
def test_outcomes_agree_with_the_verifier(seed: int, name: str) -> None:
    task, heads = TASKS[name](), fast_recipe(name).new([seed])
    (outcome,) = outcomes_of(heads, task)
    certificate = verify(unstacked(heads)[0], task, tolerance=None, dtype=torch.float32)
    assert outcome.outputs_right == pytest.approx(certificate.num_right / certificate.num_outputs)
    assert outcome.largest_error == pytest.approx(certificate.largest_error, rel=1e-4)
    assert sum(outcome.misread) == certificate.num_outputs - certificate.num_right
    assert len(outcome.misread) == task.space.max_len
    assert outcome.solved == certificate.holds


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
    fast = fast_recipe("unique")
    scaled = fast.scaled(0.1)
    assert [stage.steps for stage in scaled.stages] == [200, 100]
    assert scaled.scaled(10) == fast


@pytest.mark.slow
@pytest.mark.parametrize("name", ["copy_first", "unique"])
def test_the_fast_recipe_solves_its_task(name: str) -> None:
    fast = fast_recipe(name)
    heads = fast.new(range(10))
    fast.train(heads, range(10))
    assert max(outcome.largest_error for outcome in outcomes_of(heads, TASKS[name]())) < 0.01


def test_a_designed_head_excludes_itself() -> None:
    circuit = unique_circuit(design(unique()).weights, unique())
    assert circuit.self_shares == pytest.approx([0] * 4, abs=1e-8)
    assert circuit.values == pytest.approx([1, -1, -1, -1, -1])


def test_a_circuit_by_hand() -> None:
    # Even attention: every key has the same weight, so a letter's own is a half of it and another's.
    task = unique("AB", 2)
    circuit = unique_circuit(HeadWeights(np.zeros((3, 1)), np.zeros((3, 1)), [[1.0], [-1.0], [3.0]]), task)
    assert circuit.self_shares == pytest.approx([0.5, 0.5])
    assert circuit.values == pytest.approx([3, 0, 0])
