import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from training_toys import ToyModel, ToyTask

from glassformer.training import TrainingConfig, load_weights, run_directory, train
from glassformer.training.optim import build_optimizers
from glassformer.training.run_directory import Best, RunDirectory, RunState
from refusals import refused

CONFIG = TrainingConfig()


def test_a_state_survives_its_file(tmp_path: Path) -> None:
    for state in (RunState(0), RunState(7, 1.5, Best(5, 0.25), 2, {"scale": 2.0})):
        (tmp_path / "state.json").write_text(state.to_json())
        assert RunState.read(tmp_path / "state.json") == state


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "{}", '{"step": 1, "best": 3}', '{"step": 1, "x": 1}', '{"step": true}'),
        *(
            '{"step": 1, "step": 2}',
            "[" * 10**5,
            '{"step": 1, "loss_scale": ' + '{"a":' * 900 + "1" + "}" * 901,
        ),
    ],
)
def test_an_unreadable_state_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(text)
    with refused(r"state\.json, which cannot be read"):
        RunState.read(path)
    with refused(r"elsewhere\.json"):
        RunState.read(tmp_path / "elsewhere.json")


def test_a_changed_configuration_or_description_is_refused(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.begin(CONFIG, {"model": {"layers": (2, 3)}, "data": "a"})
    described = {"model": {"layers": [2, 3]}, "data": "a"}
    assert json.loads(run.config_file.read_text()) == {
        "training": json.loads(CONFIG.to_json()),
        "description": described,
        "environments": [],
    }
    run.require_continues(CONFIG, {"model": {"layers": (2, 3)}, "data": "a"})
    with refused("seed was 0, is 1"):
        run.require_continues(TrainingConfig(seed=1), {"model": {"layers": (2, 3)}, "data": "a"})
    with refused("data was 'a', is 'b'"):
        run.require_continues(CONFIG, {"model": {"layers": (2, 3)}, "data": "b"})
    with refused("data was 'a', is None, more was None, is 1"):
        run.require_continues(CONFIG, {"model": {"layers": (2, 3)}, "more": 1})
    with refused("not JSON"):
        run.require_continues(CONFIG, {"model": object()})


_DEEP = '{"training": {"steps": ' + "[" * 900 + "]" * 900 + '}, "description": {}}'


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"training": {}}', '{"training": ' + "[" * 10**5, _DEEP]
)
def test_an_unreadable_configuration_is_named(tmp_path: Path, text: str) -> None:
    run = RunDirectory(tmp_path)
    run.config_file.write_text(text)
    with refused(None if text == _DEEP else r"config\.json, which cannot be read"):
        run.require_continues(CONFIG, {})


def test_the_latest_checkpoints_are_kept(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    model = ToyModel()
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


def test_a_directory_that_is_moved_while_it_is_written_can_be_continued(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.begin(CONFIG, {"data": "toy"})
    run.path.rename(tmp_path / "moved")
    run.save(ToyModel(), [], RunState(3), 1)
    for path in (run.path, tmp_path / "moved"):
        RunDirectory(path).require_continues(CONFIG, {"data": "toy"})


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


def test_beginning_clears_what_a_killed_process_left(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.begin(CONFIG, {})
    half = tmp_path / "checkpoints" / ".step-00000005.glassformer-partial"
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    (tmp_path / ".config.json.glassformer-partial").write_text("{")
    run.save_best(ToyModel(), RunState(1))
    run.best.rename(tmp_path / ".best.glassformer-replaced")
    assert run.checkpoints() == []
    run.begin(CONFIG, {})
    assert not half.exists()
    assert run.best.is_dir()
    assert {entry.name for entry in tmp_path.iterdir()} == {"config.json", "checkpoints", "best"}


def test_only_the_writing_process_writes(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run", writes=False)
    model = ToyModel()
    run.begin(CONFIG, {})
    run.save(model, build_optimizers(model, CONFIG), RunState(3), 1)
    run.save_best(model, RunState(3))
    assert not (tmp_path / "run").exists()


_HOLDER = """
import sys, time
from pathlib import Path
from glassformer.training.run_directory import RunDirectory
run = RunDirectory(Path(sys.argv[1]))
run.lock()
print("locked", flush=True)
time.sleep(600)
"""


def test_a_run_has_one_writer_which_a_killed_process_does_not_remain(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _HOLDER, str(tmp_path / "run")]
    source = str(Path(run_directory.__file__).parents[2])
    holder = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": source}
    )
    try:
        assert holder.stdout.readline() == "locked\n"
        run = RunDirectory(tmp_path / "run")
        for _ in range(2):
            with refused(rf"run, in which the process {holder.pid} is training"):
                run.lock()
        RunDirectory(tmp_path / "run", writes=False).lock()  # of the same run, on other devices
    finally:
        holder.kill()
        holder.wait()
    run.lock()
    with refused(rf"the process {os.getpid()} is training"):
        RunDirectory(tmp_path / "run").lock()  # in another thread
    run.unlock()
    RunDirectory(tmp_path / "run").lock()


def test_a_second_training_changes_nothing_of_the_first(tmp_path: Path) -> None:
    config = TrainingConfig(steps=4, batch_size=2, eval_every=2, log_every=1, schedule="constant")
    first = train(ToyModel(), ToyTask(), config, tmp_path, progress=False)
    held = RunDirectory(tmp_path)
    held.lock()
    before = {
        each: each.read_bytes()
        for each in tmp_path.rglob("*")
        if each.is_file() and each.name != ".lock"
    }
    longer = replace(config, steps=6)
    with refused("is training"):
        train(ToyModel(), ToyTask(), longer, tmp_path, resume=True, progress=False)
    assert {each: each.read_bytes() for each in before} == before
    held.unlock()
    assert train(ToyModel(), ToyTask(), longer, tmp_path, resume=True, progress=False).step == 6
    assert first.step == 4


@pytest.mark.parametrize("left", [b"", b'{"step": 1, "loss": 2.0}\n'])
def test_lost_metrics_are_no_silent_gap(left: bytes, tmp_path: Path) -> None:
    config = TrainingConfig(steps=4, batch_size=2, eval_every=2, log_every=1, schedule="constant")
    train(ToyModel(), ToyTask(), config, tmp_path, progress=False)
    (tmp_path / "metrics.jsonl").write_bytes(left)
    with refused(r"metrics\.jsonl without the evaluation after step"):
        train(
            ToyModel(), ToyTask(), replace(config, steps=6), tmp_path, resume=True, progress=False
        )
    assert (tmp_path / "metrics.jsonl").read_bytes() == left
    (tmp_path / "metrics.jsonl").unlink()
    result = train(
        ToyModel(), ToyTask(), replace(config, steps=6), tmp_path, resume=True, progress=False
    )
    assert [step for step, _ in result.losses] == [5, 6]


def test_a_full_disk_is_an_error_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = SafetensorError(
        "Error while serializing: I/O error: No space left on device (os error 28)"
    )
    full = Mock(side_effect=error)
    monkeypatch.setattr("glassformer.training.checkpoint.save_file", full)
    with pytest.raises(OSError, match=r"model\.safetensors cannot be written .* No space left"):
        RunDirectory(tmp_path).save(ToyModel(), [], RunState(1), 1)
