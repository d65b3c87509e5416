"""Training many heads at once is training each alone, on sequences drawn as the course draws them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from glassformer.handcraft.single_head import HeadWeights, NumpyHead, SingleHead
from glassformer.handcraft.tasks import TASKS, unique
from glassformer.labs.hand_designed.head_training import (
    Heads,
    Sequences,
    Stage,
    curvature,
    new_heads,
    run_heads,
    stacked,
    train_heads,
    unstacked,
)
from glassformer.training import mix_seed

SIZES = {"identity": (3, None), "copy_first": (1, 4), "unique": (16, 5)}
COURSE = [Stage(40, "sgd", 0.03, 1)]
FAST = [Stage(20, "sgd", 1.0, 8, cosine=True, clip=1.0), Stage(10, "adam", 0.1, None, cosine=True)]


def few(name: str, seeds: list[int]) -> Heads:
    """Untrained heads."""
    return new_heads(TASKS[name](), *SIZES[name], seeds)


@pytest.mark.parametrize("name", SIZES)
def test_heads_compute_what_each_computes_alone(name: str) -> None:
    heads, cases = few(name, [0, 1, 2]), TASKS[name]().all_cases
    inputs, real = torch.from_numpy(cases.inputs).float(), torch.from_numpy(cases.block.real)
    outputs = run_heads(heads, inputs[None], real[None])
    for head, output in zip(unstacked(heads), outputs.numpy(), strict=True):
        for row in range(0, len(inputs), 37):
            alone = NumpyHead(head)(cases.inputs[row, cases.block.real[row]])
            np.testing.assert_allclose(output[row, cases.block.real[row]], alone, atol=1e-5)


@pytest.mark.parametrize(("name", "stages"), [("unique", COURSE), ("unique", FAST), ("identity", FAST)])
def test_each_head_is_trained_as_if_alone(name: str, stages: list[Stage]) -> None:
    seeds = [4, 9, 2]
    together = few(name, seeds)
    train_heads(together, TASKS[name](), stages, seeds)
    for seed, head in zip(seeds, unstacked(together), strict=True):
        alone = few(name, [seed])
        train_heads(alone, TASKS[name](), stages, [seed])
        for key, matrix in unstacked(alone)[0].matrices.items():
            np.testing.assert_allclose(matrix, head.matrices[key], rtol=1e-3, atol=1e-4)


def test_one_sequence_per_step_is_a_plain_loop() -> None:
    task, heads = unique(), few("unique", [8])
    bare, cases = SingleHead.from_weights(unstacked(heads)[0], torch.float32), task.all_cases
    train_heads(heads, task, COURSE, [8])
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
    train_heads(heads, TASKS["copy_first"](), [Stage(1, "sgd", 1.0, 8, clip=1e-3)], [0, 1])
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
    assert found.gradient_norm == pytest.approx(np.linalg.norm(gradient(flat)), rel=1e-8)
    assert (found.lowest_curvature, found.highest_curvature) == pytest.approx((numbers[0], numbers[-1]), abs=1e-6)
