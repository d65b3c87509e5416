"""Trainings: what differs between the models, and that they continue where they stopped."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from glassformer.labs.gpt_oss import LAB
from glassformer.labs.gpt_oss.experiments import Results, Settings, models
from glassformer.labs.gpt_oss.experiments.models import COURSE_MODEL, MODELS, RECIPES, Trained, train_model
from glassformer.labs.gpt_oss.experiments.sequences import DATA, batches, measured_of, split_of
from glassformer.labs.run import Run, read
from glassformer.models import Decoder
from glassformer.training import TrainingResult


@pytest.fixture
def current(tmp_path: Path, small: Settings) -> Run:
    return Run(tmp_path, small, 1, SimpleNamespace())


def test_every_model_is_one_of_the_course_and_stays_in_its_budget() -> None:
    assert RECIPES["Muon"].steps == 8 * len(batches(torch.zeros(10_000, 65), 128)) == 632
    assert COURSE_MODEL["n_layers"] == 4
    assert {made.recipe for made in MODELS.values()} == {*RECIPES, models.COURSE_RECIPE}
    assert set(LAB.settings.models) | set(LAB.quick["models"]) == set(MODELS)
    assert MODELS["all-together"].changes == {
        name: value
        for each in ("grouped-heads", "sliding-window", "mixture-of-experts")
        for name, value in MODELS[each].changes.items()
    }


def seen(run: Run, name: str, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The sequences of the first three batches of a training."""
    found: list[torch.Tensor] = []

    def keep(directory, model, task, config, description):
        found.extend(task.batch(step, 64)["tokens"] for step in range(3))
        return TrainingResult(3, "finished", [], None, 0.0, None)

    with monkeypatch.context() as patch:
        patch.setattr(models, "train_in", keep)
        train_model(run, name)
    return [tuple(row) for each in found for row in each.tolist()]


def test_sequences_are_the_same_or_new(current: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {tuple(row) for row in split_of(current).train.tokens.tolist()}
    rows = {name: seen(current, name, monkeypatch) for name in ("long-fixed", "long-new", "long-all")}
    assert set(rows["long-fixed"]) == own
    assert not set(rows["long-new"]) & own
    assert rows["long-new"] != rows["long-all"]


def test_held_out_generators_are_left_out_or_not(current: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []
    drawn = models.fresh_batch

    def keep(*arguments, excluded, **options):
        given.append(None if excluded is None else excluded.numbers(DATA).tolist())
        return drawn(*arguments, excluded=excluded, **options)

    monkeypatch.setattr(models, "fresh_batch", keep)
    for name in ("long-new", "long-all", "long-sinks"):
        seen(current, name, monkeypatch)
    held_out = split_of(current).test.generators.numbers(DATA).tolist()
    assert given == [held_out] * 3 + [None] * 6


@pytest.mark.parametrize("name", ["base", "long-new"])
def test_an_interrupted_training_continues_to_the_same_weights(
    name: str, current: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = train_model(replace(current, out=tmp_path / "whole"), name)

    class Stops(models.NextTokenTask):
        def batch(self, step: int, size: int):
            if step == 2:
                raise RuntimeError("power cut")
            return super().batch(step, size)

    with monkeypatch.context() as patch:
        patch.setattr(models, "NextTokenTask", Stops)
        with pytest.raises(RuntimeError, match="power cut"):
            train_model(current, name)
    continued, result = train_model(current, name)
    weights = whole.state_dict()
    assert all(torch.equal(weight, weights[name]) for name, weight in continued.state_dict().items())
    assert [step for step, _ in result.losses] == list(range(1, result.step + 1))


def test_initial_weights_follow_the_seed_alone(current: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "train_in", lambda *_: TrainingResult(0, "finished", [], None, 0.0, None))
    before = torch.random.get_rng_state()
    one, same, other = (train_model(current, "base", number)[0] for number in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(one.output.weight, same.output.weight)
    assert not torch.equal(one.output.weight, other.output.weight)


def test_the_lab_measures_every_model_and_seed(tiny_run: Path, small: Settings) -> None:
    results: Results = read(tiny_run / "results.json", Results)
    assert {name: len(seeds) for name, seeds in results.models.items()} == {
        "course": 2, "base": 2, "all-together": 1, "long-new": 1, "long-sinks": 1,
    }  # fmt: skip
    run = Run(tiny_run, small, 5, SimpleNamespace())
    tokens = measured_of(run).tokens
    model, training = train_model(run, "base", 1)
    assert isinstance(model, Decoder)
    with torch.no_grad():
        hits = model(tokens[:, :-1]).argmax(-1) == tokens[:, 1:]
    found = results.models["base"][1]
    assert found.by_position == pytest.approx(hits.double().mean(0).tolist())
    assert found.steps == training.step == 3
    course = results.models["course"][0]
    assert [step for step, _ in course.evaluations] == [0, 1, 2]
    assert json.loads((tiny_run / "trainings" / "base" / "config.json").read_text())["description"]["seed"] == 5


def test_seeds_of_one_model_differ(tiny_run: Path) -> None:
    one, other = (read(tiny_run / "steps" / f"model-course-{number}.json", Trained) for number in (0, 1))
    assert one.losses != other.losses
