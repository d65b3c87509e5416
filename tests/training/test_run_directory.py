from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from training_toys import ToyModel

from glassformer.training import TrainingConfig, load_weights
from glassformer.training.optim import build_optimizers
from glassformer.training.run_directory import Best, RunDirectory, RunState
from refusals import refused

CONFIG = TrainingConfig()


def test_a_state_survives_its_file(tmp_path: Path) -> None:
    for state in (RunState(0), RunState(7, 1.5, Best(5, 0.25), 2, {"scale": 2.0})):
        (tmp_path / "state.json").write_text(state.to_json())
        assert RunState.read(tmp_path / "state.json") == state


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"step": 1, "best": 3}', '{"step": 1, "x": 1}', '{"step": true}']
)
def test_an_unreadable_state_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(text)
    with refused(r"state\.json, which cannot be read"):
        RunState.read(path)
    with refused(r"elsewhere\.json"):
        RunState.read(tmp_path / "elsewhere.json")


def test_a_run_is_not_begun_twice_and_not_continued_before_it_began(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.require_new()
    with refused("holds no run"):
        run.require_continues(CONFIG, {})
    run.begin(CONFIG, {"model": {"layers": 2}})
    with refused("already holds a run", fix="resume=True"):
        run.require_new()
    run.require_continues(CONFIG, {"model": {"layers": 2}})
    stored = json.loads(run.config_file.read_text())
    assert stored == {"training": json.loads(CONFIG.to_json()), "description": {"model": {"layers": 2}}}


def test_a_changed_configuration_or_description_is_refused(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.begin(CONFIG, {"model": {"layers": (2, 3)}, "data": "a"})
    run.require_continues(CONFIG, {"model": {"layers": (2, 3)}, "data": "a"})
    with refused("seed was 0, is 1"):
        run.require_continues(TrainingConfig(seed=1), {"model": {"layers": (2, 3)}, "data": "a"})
    with refused("data was 'a', is 'b'"):
        run.require_continues(CONFIG, {"model": {"layers": (2, 3)}, "data": "b"})
    with refused("data was 'a', is None, more was None, is 1"):
        run.require_continues(CONFIG, {"model": {"layers": (2, 3)}, "more": 1})
    with refused("not JSON"):
        run.require_continues(CONFIG, {"model": object()})


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"training": {}}'])
def test_an_unreadable_configuration_is_named(tmp_path: Path, text: str) -> None:
    run = RunDirectory(tmp_path)
    run.config_file.write_text(text)
    with refused(r"config\.json, which cannot be read"):
        run.require_continues(CONFIG, {})


def test_the_latest_checkpoints_are_kept(tmp_path: Path) -> None:
    run, model = RunDirectory(tmp_path), ToyModel()
    run.begin(CONFIG, {})
    for step in (5, 10, 15, 20):
        path = run.save(model, build_optimizers(model, CONFIG), RunState(step), 2)
        assert run.checkpoints()[-1] == path
        assert {entry.name for entry in path.iterdir()} == {
            "model.safetensors",
            "optimizer.safetensors",
            "state.json",
        }
    assert [path.name for path in run.checkpoints()] == ["step-00000015", "step-00000020"]


def test_best_is_replaced(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.begin(CONFIG, {})
    for seed in (1, 2):
        run.save_best(ToyModel(seed=seed), RunState(seed))
    model = ToyModel()
    load_weights(model, run.best)
    assert torch.equal(model.head.weight, ToyModel(seed=2).head.weight)
    assert RunState.read(run.best / "state.json").step == 2
    assert set(load_file(run.best / "model.safetensors")) == set(model.state_dict())


def test_weights_are_the_best_ones_or_else_the_latest(tmp_path: Path) -> None:
    run, model = RunDirectory(tmp_path), ToyModel()
    assert run.weights() is None
    run.begin(CONFIG, {})
    assert run.weights() is None
    run.save(model, build_optimizers(model, CONFIG), RunState(5), 2)
    latest = run.save(model, build_optimizers(model, CONFIG), RunState(10), 2)
    assert run.weights() == latest
    run.save_best(model, RunState(5))
    assert run.weights() == run.best


def test_beginning_clears_what_a_killed_process_left(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.begin(CONFIG, {})
    half = tmp_path / "checkpoints" / ".step-00000005.partial"
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    (tmp_path / ".config.json.partial").write_text("{")
    run.save_best(ToyModel(), RunState(1))
    run.best.rename(tmp_path / ".best.replaced")
    assert run.checkpoints() == []
    run.begin(CONFIG, {})
    assert not half.exists()
    assert run.best.is_dir()
    assert {entry.name for entry in tmp_path.iterdir()} == {"config.json", "checkpoints", "best"}


def test_only_the_writing_process_writes(tmp_path: Path) -> None:
    run, model = RunDirectory(tmp_path / "run", writes=False), ToyModel()
    run.begin(CONFIG, {})
    run.save(model, build_optimizers(model, CONFIG), RunState(3), 1)
    run.save_best(model, RunState(3))
    assert not (tmp_path / "run").exists()
