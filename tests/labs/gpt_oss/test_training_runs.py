"""The recurrence as a task: its batches, its loss, and trainings that go on where they stopped."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import nn

from glassformer.data.recurrence import RecurrenceConfig, RecurrenceSplit, make_split
from glassformer.labs.gpt_oss import training_runs
from glassformer.labs.gpt_oss.plan import BASE, DATA, LONG
from glassformer.labs.gpt_oss.training_runs import RecurrenceTask, batches, build_model, train_model
from glassformer.training import Task, TrainingConfig, TrainingResult
from refusals import refused

CONFIG = TrainingConfig(steps=4, batch_size=8, checkpoint_every=1, log_every=1)


@pytest.fixture
def split() -> RecurrenceSplit:
    return make_split(DATA, num_train=20, num_test=12, seed=3)


class Constant(nn.Module):
    """Always predicts token 2 with probability one half."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        probabilities = torch.full((7,), 1 / 12)
        probabilities[2] = 0.5
        return probabilities.log().expand(*tokens.shape, 7)


def test_an_epoch_visits_every_training_sequence_once(split: RecurrenceSplit) -> None:
    task = RecurrenceTask(DATA, split)
    seen = torch.cat([task.batch(step, 8)["tokens"] for step in range(3)])
    assert sorted(seen.tolist()) == sorted(split.train.tokens.tolist())
    assert not torch.equal(seen, split.train.tokens)


def test_fresh_batches_are_new_each_step_and_the_same_for_the_same_seed(split: RecurrenceSplit) -> None:
    task = RecurrenceTask(DATA, split, fresh=True, seed=1)
    first, second = (task.batch(step, 64)["tokens"] for step in (0, 1))
    assert first.shape == (64, 65)
    assert not torch.equal(first, second)
    assert torch.equal(first, RecurrenceTask(DATA, split, fresh=True, seed=1).batch(0, 64)["tokens"])


def test_loss_and_accuracy_are_those_of_the_next_tokens(split: RecurrenceSplit) -> None:
    task = RecurrenceTask(DATA, split)
    assert isinstance(task, Task)
    twos = (split.test.tokens[:, 1:] == 2).double().mean()
    assert task.evaluate(Constant())["accuracy"] == pytest.approx(float(twos))
    batch = {"tokens": split.test.tokens}
    expected = -(twos * torch.tensor(0.5).log() + (1 - twos) * torch.tensor(1 / 12).log())
    assert float(task.loss(Constant(), batch)) == pytest.approx(float(expected), abs=1e-5)
    assert task.count(batch) == 12 * 64


def test_batches_cut_tokens_and_next_tokens() -> None:
    tokens = torch.arange(600 * 5).view(600, 5)
    parts = batches(tokens)
    assert [len(x) for x, _ in parts] == [250, 250, 100]
    assert torch.equal(torch.cat([x for x, _ in parts]), tokens[:, :-1])
    assert torch.equal(torch.cat([y for _, y in parts]), tokens[:, 1:])


def test_initial_weights_follow_the_seed_alone() -> None:
    before = torch.random.get_rng_state()
    one, same, other = build_model(BASE, 1), build_model(BASE, 1), build_model(BASE, 2)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(one.output.weight, same.output.weight)
    assert not torch.equal(one.output.weight, other.output.weight)


@pytest.mark.parametrize("experiment", [BASE, LONG], ids=lambda experiment: experiment.name)
def test_an_interrupted_training_goes_on_to_the_same_weights(
    experiment: training_runs.Experiment, split: RecurrenceSplit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = train_model(experiment, CONFIG, DATA, split, tmp_path / "whole", seed=1)

    class Stops(RecurrenceTask):
        def batch(self, step: int, size: int) -> training_runs.Batch:
            if step == 2:
                raise RuntimeError("power cut")
            return super().batch(step, size)

    with monkeypatch.context() as patch:
        patch.setattr(training_runs, "RecurrenceTask", Stops)
        with pytest.raises(RuntimeError, match="power cut"):
            train_model(experiment, CONFIG, DATA, split, tmp_path / "cut", seed=1)
    mended, result = train_model(experiment, CONFIG, DATA, split, tmp_path / "cut", seed=1)
    weights = whole.state_dict()
    assert all(torch.equal(weight, weights[name]) for name, weight in mended.state_dict().items())
    assert [step for step, _ in result.losses] == [1, 2, 3, 4]


def test_a_finished_training_is_loaded_and_not_repeated(
    split: RecurrenceSplit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = train_model(BASE, CONFIG, DATA, split, tmp_path / "run", seed=1)

    def never(self: RecurrenceTask, step: int, size: int) -> None:
        raise AssertionError("a step was repeated")

    monkeypatch.setattr(RecurrenceTask, "batch", never)
    again, result = train_model(BASE, CONFIG, DATA, split, tmp_path / "run", seed=1)
    assert torch.equal(first.output.weight, again.output.weight)
    assert result.step == 4


def test_ctrl_c_ends_the_lab_and_not_just_the_training(
    split: RecurrenceSplit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object, **kwargs: object) -> TrainingResult:
        return TrainingResult(step=1, ending="interrupted", history=[], best=None, seconds=0.0, directory=tmp_path)

    monkeypatch.setattr(training_runs, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train_model(BASE, CONFIG, DATA, split, tmp_path / "run", seed=1)


def test_what_does_not_fit_is_refused(split: RecurrenceSplit, tmp_path: Path) -> None:
    with refused("sequences of 65 tokens"):
        RecurrenceTask(RecurrenceConfig(seq_len=10), split)
    train_model(BASE, CONFIG, DATA, split, tmp_path / "run", seed=1)
    changed = dataclasses.replace(CONFIG, learning_rate=0.5)
    with refused("learning_rate"):
        train_model(BASE, changed, DATA, split, tmp_path / "run", seed=1)
    with refused("description"):
        train_model(LONG, CONFIG, DATA, split, tmp_path / "run", seed=1)
