from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.handcraft.designs import design
from glassformer.handcraft.single_head import HeadWeights, NumpyHead, SingleHead
from glassformer.handcraft.tasks import Task, copy_first, identity, occurs_earlier, unique
from glassformer.handcraft.verification import verify
from glassformer.labs.hand_designed import training_runs
from glassformer.labs.hand_designed.recipes import Recipe, Stage, course_recipe, descent_recipe, fast_recipe
from glassformer.labs.hand_designed.training_runs import (
    HeadTask,
    build_head,
    circuit_of,
    continue_training,
    curvature,
    moment_of,
    train_head,
)
from glassformer.training import TrainingConfig
from glassformer.training.task import shares
from refusals import refused

TASKS = {"identity": identity("AB", 3), "copy_first": copy_first(), "unique": unique()}


def random_head(task: Task, seed: int, pos_dim: int = 3) -> SingleHead:
    torch.manual_seed(seed)
    return SingleHead(task.space.num_tokens, 5, task.v_dim, pos_dim, task.space.num_positions)


def text_of(task: Task, seq: torch.Tensor, real: torch.Tensor) -> str:
    tokens = seq[real].argmax(dim=1)[int(task.space.has_cls) :]
    return task.space.decode(tokens.tolist())


def losses_by_hand(task: Task, weights: HeadWeights) -> dict[str, float]:
    """The mean squared error of every sequence, by the readable twin."""
    twin, first, found = NumpyHead(weights), int(task.space.has_cls), {}
    for row in range(task.count):
        real = task.all_cases.block.real[row]
        tokens = task.all_cases.block.tokens[row][real]
        output = twin(np.eye(task.space.num_tokens)[tokens])[first:]
        wanted = task.target(tokens[None, first:])[0]
        found[task.space.decode(tokens[first:])] = float(((output - wanted) ** 2).mean())
    return found


@pytest.mark.parametrize("name", TASKS)
def test_one_sequence_has_the_courses_loss(name: str) -> None:
    task, first = TASKS[name], int(TASKS[name].space.has_cls)
    head, run = random_head(task, 1), HeadTask(task, seed=3)
    for step in range(20):
        batch = run.batch(step, 1)
        assert batch["real"].all(), "a lone sequence needs no padding"
        letters = batch["seq"][0, first:].argmax(dim=1).numpy()
        wanted = torch.from_numpy(task.target(letters[None])[0]).float()
        loss = F.mse_loss(head(batch["seq"][0])[first:], wanted)
        torch.testing.assert_close(run.loss(head, batch), loss)


@pytest.mark.parametrize("name", TASKS)
def test_a_batch_has_the_mean_of_its_sequences_losses(name: str) -> None:
    task = TASKS[name]
    head, run = random_head(task, 2), HeadTask(task)
    by_hand, batch = losses_by_hand(task, head.to_weights()), run.batch(7, 30)
    texts = [text_of(task, seq, real) for seq, real in zip(batch["seq"], batch["real"], strict=True)]
    assert run.loss(head, batch).item() == pytest.approx(np.mean([by_hand[text] for text in texts]), rel=1e-5)
    parts = [part for part in shares(batch, 4) if part is not None]
    total = sum(run.loss(head, part).item() * run.count(part) for part in parts)
    assert total / run.count(batch) == pytest.approx(run.loss(head, batch).item(), rel=1e-6)


@pytest.mark.parametrize("name", TASKS)
def test_all_sequences_together_have_the_expected_loss(name: str) -> None:
    task = TASKS[name]
    head, run = random_head(task, 4), HeadTask(task, batches="all")
    letters, longest = len(task.space.letters), task.space.max_len
    by_hand = losses_by_hand(task, head.to_weights())
    expected = sum(loss / longest / letters ** len(text) for text, loss in by_hand.items())
    batch = run.batch(0, 1)
    assert len(batch["seq"]) == run.count(batch) == task.count
    assert run.loss(head, batch).item() == pytest.approx(expected, rel=1e-5)
    assert run.evaluate(head)["mse"] == pytest.approx(expected, rel=1e-5)


def test_batches_are_a_function_of_step_and_seed() -> None:
    task = unique()
    first, second = HeadTask(task, seed=5), HeadTask(task, seed=5)
    for step in (0, 9000, 3, 4095, 4096, 0):
        assert all(torch.equal(tensor, second.batch(step, 6)[name]) for name, tensor in first.batch(step, 6).items())
    assert not torch.equal(first.batch(0, 50)["seq"].sum(), HeadTask(task, seed=6).batch(0, 50)["seq"].sum())
    texts = [text_of(task, first.batch(step, 1)["seq"][0], first.batch(step, 1)["real"][0]) for step in range(200)]
    assert len(set(texts)) > 50


def test_sequences_are_drawn_as_the_course_draws_them() -> None:
    task = unique()
    batch = HeadTask(task, seed=1).batch(0, 4_000)
    texts = [text_of(task, seq, real) for seq, real in zip(batch["seq"], batch["real"], strict=True)]
    # Five standard deviations of a share of one half, which is the widest.
    assert {length: count / 4_000 for length, count in Counter(map(len, texts)).items()} == pytest.approx(
        dict.fromkeys((1, 2, 3, 4), 1 / 4), abs=5 * 0.5 / 4_000**0.5
    )
    for length in (1, 4):
        last = Counter(text[-1] for text in texts if len(text) == length)
        assert [last[letter] / last.total() for letter in "ABC"] == pytest.approx(
            [1 / 3] * 3, abs=5 * 0.5 / last.total() ** 0.5
        )


def test_listed_examples_are_all_there_is() -> None:
    task = dataclasses.replace(unique(), examples=("AB", "CCC"))
    run = HeadTask(task)
    batch = run.batch(0, 100)
    drawn = Counter(text_of(task, seq, real) for seq, real in zip(batch["seq"], batch["real"], strict=True))
    assert set(drawn) == {"AB", "CCC"}
    head = random_head(task, 0)
    by_hand = losses_by_hand(task, head.to_weights())
    assert run.evaluate(head)["mse"] == pytest.approx(sum(by_hand.values()) / 2, rel=1e-5)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), name=st.sampled_from(sorted(TASKS)))
def test_the_measure_agrees_with_the_verifier(seed: int, name: str) -> None:
    task = TASKS[name]
    head = random_head(task, seed)
    measured = HeadTask(task).evaluate(head)
    certificate = verify(head.to_weights(), task, tolerance=None, dtype=torch.float32)
    assert measured["outputs_right"] == pytest.approx(certificate.num_right / certificate.num_outputs)
    assert measured["largest_error"] == pytest.approx(certificate.largest_error, rel=1e-5)
    assert (measured["sequences_right"] == 1.0) == certificate.holds


def test_the_courses_recipe_is_a_bare_loop() -> None:
    task = unique()
    recipe = course_recipe("unique").scaled(50 / 10_001)
    head = build_head(task, recipe, 8)
    bare = build_head(task, recipe, 8)
    continue_training(head, task, recipe.stages[0], 9)
    optimizer, run = torch.optim.SGD(bare.parameters(), lr=0.03), HeadTask(task, 9)
    for step in range(50):
        batch = run.batch(step, 1)
        loss = F.mse_loss(bare(batch["seq"][0])[1:], batch["target"][0, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for name, weight in head.state_dict().items():
        torch.testing.assert_close(weight, bare.state_dict()[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["identity", "copy_first", "unique"])
def test_a_head_has_the_recipes_sizes_and_pytorchs_initial_weights(name: str) -> None:
    task = {"identity": identity, "copy_first": copy_first, "unique": unique}[name]()
    for recipe in (course_recipe(name), fast_recipe(name)):
        heads = [build_head(task, recipe, seed).to_weights() for seed in range(60)]
        assert (heads[0].qk_dim, heads[0].pos_dim) == (recipe.qk_dim, recipe.pos_dim or 0)
        bound = (task.space.num_tokens + (recipe.pos_dim or 0)) ** -0.5
        entries = np.concatenate([head.Qm.ravel() for head in heads])
        assert np.abs(entries).max() <= bound
        assert entries.std() == pytest.approx(bound / 3**0.5, rel=0.15)
        if recipe.pos_dim:
            assert np.concatenate([head.pos.ravel() for head in heads]).std() == pytest.approx(1, rel=0.1)
    again = build_head(task, recipe, 3).to_weights()
    assert np.array_equal(again.Km, heads[3].Km)
    assert not np.array_equal(again.Km, heads[4].Km)


def test_the_same_seed_gives_the_same_head() -> None:
    task, recipe = copy_first(), fast_recipe("copy_first").scaled(0.1)
    (first, results, seconds), (second, _, _), (other, _, _) = (train_head(task, recipe, seed) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first.Km.weight, other.Km.weight)
    assert [result.step for result in results] == [50, 30]
    assert seconds >= sum(result.seconds for result in results)
    assert results[-1].evaluations[-1][1] == HeadTask(task).evaluate(first)


@pytest.mark.slow
def test_training_teaches() -> None:
    head, _, _ = train_head(copy_first(), fast_recipe("copy_first"), 0)
    measured = HeadTask(copy_first()).evaluate(head)
    assert measured["sequences_right"] == 1.0
    assert measured["largest_error"] < 0.01


def test_an_interrupted_training_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    original = training_runs.train

    def interrupted(*args: object, **kwargs: object) -> object:
        return dataclasses.replace(original(*args, **kwargs), ending="interrupted")

    monkeypatch.setattr(training_runs, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train_head(copy_first(), fast_recipe("copy_first").scaled(0.01), 0)


@pytest.mark.usefixtures("without_type_checks")
def test_bad_requests_are_refused() -> None:
    with refused("seed = -1"):
        HeadTask(unique(), -1)
    with refused("batches = 'none'"):
        HeadTask(unique(), batches="none")
    with refused(anywhere="at most 20,000"):
        HeadTask(unique("ABCDEFGHIJ", 6))


def test_a_designed_head_takes_its_ones_from_cls_and_leaves_letters_out() -> None:
    circuit = circuit_of(design(unique()).weights, unique())
    assert circuit.cls_share == pytest.approx(1)
    assert circuit.self_shares == pytest.approx((0,) * 4, abs=1e-8)


def test_a_circuit_by_hand() -> None:
    # Even attention: every key has the same weight, so a letter's own is a half of it and another's.
    task = unique("AB", 2)
    values = [[1.0], [-1.0], [3.0]]
    weights = HeadWeights(np.zeros((3, 1)), np.zeros((3, 1)), values)
    circuit = circuit_of(weights, task)
    # A gives 3 and 1, B gives 3 and nothing, AB twice and BA twice: 3 and 1, each at a third of the weight.
    from_cls, from_letters = 3 / 2 + 3 / 2 + 4 * 3 / 3, 1 / 2 + 4 * 1 / 3
    assert circuit.cls_share == pytest.approx(from_cls / (from_cls + from_letters))
    assert circuit.self_shares == pytest.approx((0.5, 0.5))


def test_a_circuit_needs_cls_and_a_sign() -> None:
    with refused(expected="one with CLS"):
        circuit_of(design(identity()).weights, identity())


def test_a_moment_names_what_is_wrong() -> None:
    task = unique()
    right = SingleHead.from_weights(design(task).weights, torch.float32)
    moment = moment_of(right, task, 5)
    assert (moment.steps, moment.outputs_right, moment.wrong) == (5, 1.0, ())
    earlier = SingleHead.from_weights(design(occurs_earlier()).weights, torch.float32)
    with torch.no_grad():
        earlier.Vm.weight *= -1
    # It takes the first of several for one that occurs once.
    wrong = moment_of(earlier, task, 0).wrong
    assert set(wrong) == {text for text in losses_by_hand(task, design(task).weights) if len(set(text)) < len(text)}


def test_curvature_is_that_of_the_loss() -> None:
    task = unique("AB", 2)
    head = random_head(task, 3, pos_dim=1)
    found = curvature(head, task)
    exact, run = head.double(), HeadTask(task, batches="all")
    batch = {name: each.double() if each.is_floating_point() else each for name, each in run.batch(0, 1).items()}
    parameters = list(exact.parameters())

    def gradient() -> torch.Tensor:
        return torch.cat([g.flatten() for g in torch.autograd.grad(run.loss(exact, batch), parameters)])

    assert found.mse == pytest.approx(run.loss(exact, batch).item(), rel=1e-6)
    assert found.gradient_norm == pytest.approx(gradient().norm().item(), rel=1e-5)
    columns, step = [], 1e-5
    for parameter in parameters:
        for i in range(parameter.numel()):
            sides = []
            for sign in (1, -1):
                with torch.no_grad():
                    parameter.view(-1)[i] += sign * step
                sides.append(gradient())
                with torch.no_grad():
                    parameter.view(-1)[i] -= sign * step
            columns.append((sides[0] - sides[1]) / (2 * step))
    numbers = torch.linalg.eigvalsh(torch.stack(columns))
    assert found.lowest_curvature == pytest.approx(numbers[0].item(), abs=1e-5)
    assert found.highest_curvature == pytest.approx(numbers[-1].item(), rel=1e-5)


def test_a_stage_may_take_all_sequences() -> None:
    config = TrainingConfig(steps=2, optimizer="sgd", schedule="constant", clip_norm=None)
    recipe = Recipe("mine", "copy_first", 2, 3, (Stage(config, "all"), Stage(config)))
    _, results, _ = train_head(copy_first(), recipe, 0)
    assert [result.step for result in results] == [2, 2]
    assert descent_recipe("unique").stages[0].batches == "all"
