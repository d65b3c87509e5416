import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn
from training_toys import InterruptedTask, ToyModel, ToyTask

from glassformer.training import Batch, DivergedError, TrainingConfig, load_weights, train
from refusals import refused

CONFIG = TrainingConfig(
    steps=20, batch_size=8, learning_rate=0.01, log_every=1, eval_every=4, checkpoint_every=5
)


@dataclass
class ScriptedTask(ToyTask):
    """A task whose metric follows a script, one value an evaluation."""

    script: tuple[float, ...] = ()
    asked: int = 0

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        self.asked += 1
        return {self.metric: self.script[self.asked - 1]}


def quiet(records: list[dict]) -> list[dict]:
    """Records without the numbers that a clock gives."""
    return [
        {
            name: value
            for name, value in record.items()
            if name not in ("seconds", "tokens_per_second")
        }
        for record in records
    ]


def metrics(directory: Path) -> list[dict]:
    return quiet(
        [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    )


def same_weights(first: nn.Module, second: nn.Module) -> bool:
    return all(
        torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True)
    )


@pytest.mark.parametrize(
    ("optimizer", "rate", "momentum"), [("adamw", 0.03, 0), ("muon", 0.03, 0), ("sgd", 0.1, 0.9)]
)
def test_it_learns(optimizer: str, rate: float, momentum: float) -> None:
    config = TrainingConfig(
        steps=150,
        batch_size=16,
        learning_rate=rate,
        optimizer=optimizer,
        momentum=float(momentum),
        warmup_steps=10,
    )
    result = train(ToyModel(), ToyTask(), config, progress=False)
    assert result.losses[0][1] > 1.5
    assert result.evaluations[-1][1]["loss"] < 0.3
    assert (result.step, result.ending, result.directory) == (150, "finished", None)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_plain_sgd_is_a_bare_loop(momentum: float) -> None:
    steps = 50
    rate = 0.03
    task = ToyTask()
    model = ToyModel()
    bare = ToyModel()
    config = TrainingConfig(
        steps=steps,
        batch_size=1,
        learning_rate=rate,
        optimizer="sgd",
        momentum=momentum,
        weight_decay=0.0,
        schedule="constant",
        clip_norm=None,
        log_every=1,
    )
    result = train(model, task, config, progress=False)
    optimizer = torch.optim.SGD(bare.parameters(), lr=rate, momentum=momentum)
    losses = []
    for step in range(steps):
        loss = task.loss(bare, task.batch(step, 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append((step + 1, loss.item()))
    assert result.losses == losses
    assert same_weights(model, bare)


def test_records_tell_the_run(tmp_path: Path) -> None:
    config = dataclasses.replace(
        CONFIG, steps=10, log_every=3, eval_every=4, schedule="constant", warmup_steps=5
    )
    result = train(ToyModel(), ToyTask(), config, tmp_path, progress=False)
    assert metrics(tmp_path) == quiet(result.history)
    assert [step for step, _ in result.losses] == [3, 6, 9, 10]
    assert [step for step, _ in result.evaluations] == [4, 8, 10]
    rates = [record["learning_rate"] for record in result.history if "loss" in record]
    assert rates == pytest.approx([0.006, 0.01, 0.01, 0.01])
    assert all(record["tokens_per_second"] > 0 for record in result.history if "loss" in record)
    assert result.seconds == result.history[-2]["seconds"] > 0
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {".lock", "best", "checkpoints", "config.json", "metrics.jsonl"}


def test_the_best_model_is_kept_and_the_last_returned(tmp_path: Path) -> None:
    task = ScriptedTask(script=(0.5, 0.7, 0.7, 0.6, 0.1), metric="accuracy", higher_is_better=True)
    model = ToyModel()
    result = train(model, task, CONFIG, tmp_path / "whole", progress=False)
    assert (result.best.step, result.best.value) == (8, 0.7)
    best = ToyModel(seed=9)
    short = ToyModel()
    load_weights(best, f"{tmp_path}/whole/best")
    train(short, ToyTask(), dataclasses.replace(CONFIG), tmp_path / "again", progress=False)
    assert same_weights(model, short)
    assert not same_weights(model, best)
    at_8 = ToyModel()
    config = dataclasses.replace(CONFIG, eval_every=None, checkpoint_every=8, keep_checkpoints=9)
    train(ToyModel(), ToyTask(), config, tmp_path / "third", progress=False)
    load_weights(at_8, tmp_path / "third" / "checkpoints" / "step-00000008")
    assert same_weights(best, at_8)


def test_lower_may_be_better() -> None:
    result = train(
        ToyModel(), ScriptedTask(script=(0.5, 0.2, 0.7, 0.6, 0.3)), CONFIG, progress=False
    )
    assert (result.best.step, result.best.value) == (8, 0.2)


def test_patience_ends_a_run_that_stands_still(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, patience=2)
    script = (0.5, 0.4, 0.45, 0.4, 0.1)
    result = train(ToyModel(), ScriptedTask(script=script), config, tmp_path, progress=False)
    assert (result.step, result.ending, result.best.step) == (16, "patience", 8)
    again = train(
        ToyModel(), ScriptedTask(script=script), config, tmp_path, resume=True, progress=False
    )
    assert (again.step, again.ending) == (16, "patience")
    more = dataclasses.replace(config, patience=3)
    patient = train(
        ToyModel(), ScriptedTask(script=(0.1,)), more, tmp_path, resume=True, progress=False
    )
    assert (patient.step, patient.ending, patient.best.step) == (20, "finished", 20)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("at", [0, 6, 19])
def test_interrupted_runs_are_resumed(
    tmp_path: Path, at: int, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = ToyModel(dropout=0.3)
    expected = train(whole, ToyTask(), CONFIG, tmp_path / "whole", progress=False)
    task = InterruptedTask(at=at, number=number)
    first = train(ToyModel(dropout=0.3), task, CONFIG, tmp_path / "parts", progress=False)
    assert first.step == at + 1
    said = capsys.readouterr().err
    if at == 19:
        assert first.ending == "finished"
    else:
        assert first.ending == "interrupted"
        assert f"after step {at + 1} of 20" in said
        assert "resume=True" in said
    model = ToyModel(seed=5, dropout=0.3)
    second = train(model, ToyTask(), CONFIG, tmp_path / "parts", resume=True, progress=False)
    assert (second.step, second.ending, second.best) == (20, "finished", expected.best)
    assert quiet(second.history) == quiet(expected.history) == metrics(tmp_path / "parts")
    assert same_weights(model, whole)
    assert second.seconds > first.seconds or at == 19


def test_ctrl_c_without_a_directory_says_that_nothing_was_saved(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert train(ToyModel(), InterruptedTask(at=3), CONFIG, progress=False).ending == "interrupted"
    assert "nothing was saved" in capsys.readouterr().err


@pytest.mark.slow
def test_a_killed_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    here = Path(__file__).resolve().parent
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(here / "killed_worker.py"), str(tmp_path)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    whole = tmp_path / "whole"
    runs = sorted(path for path in tmp_path.iterdir() if path != whole)
    assert len(runs) == 12
    for run in runs:
        assert metrics(run) == metrics(whole), run.name
        files = {path.relative_to(run) for path in run.rglob("*") if path.is_file()}
        assert files == {path.relative_to(whole) for path in whole.rglob("*") if path.is_file()}, (
            run.name
        )
        for file in files:
            if file.suffix == ".safetensors":
                assert (run / file).read_bytes() == (whole / file).read_bytes(), (
                    f"{run.name}: {file}"
                )


def test_a_run_is_neither_overwritten_nor_invented(tmp_path: Path) -> None:
    with refused("holds no run"):
        train(ToyModel(), ToyTask(), CONFIG, tmp_path / "run", resume=True, progress=False)
    assert not (tmp_path / "run").exists()
    train(ToyModel(), ToyTask(), CONFIG, tmp_path / "run", progress=False)
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with refused("already holds a run", fix="resume=True"):
        train(ToyModel(), ToyTask(), CONFIG, tmp_path / "run", progress=False)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_a_constant_schedule_can_be_prolonged(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, schedule="constant")
    whole = ToyModel()
    model = ToyModel()
    train(whole, ToyTask(), config, progress=False)
    train(model, ToyTask(), dataclasses.replace(config, steps=7), tmp_path, progress=False)
    result = train(model, ToyTask(), config, tmp_path, resume=True, progress=False)
    assert result.step == 20
    assert same_weights(model, whole)
    with refused("steps = 9, of which the run has done 20"):
        train(
            model,
            ToyTask(),
            dataclasses.replace(config, steps=9),
            tmp_path,
            resume=True,
            progress=False,
        )


def test_resuming_a_finished_run_gives_its_result(tmp_path: Path) -> None:
    first = train(ToyModel(), ToyTask(), CONFIG, tmp_path, progress=False)
    model = ToyModel(seed=3)
    assert train(model, ToyTask(), CONFIG, tmp_path, resume=True, progress=False) == first
    trained = ToyModel(seed=4)
    load_weights(trained, tmp_path / "checkpoints" / "step-00000020")
    assert same_weights(model, trained)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_serves(tmp_path: Path, name: str) -> None:
    whole = ToyModel()
    train(whole, ToyTask(), CONFIG, tmp_path, progress=False)
    latest = tmp_path / "checkpoints" / "step-00000020"
    (latest / name).write_bytes(b"rubbish")
    with refused(rf"step-00000020/{name}, which cannot be read") as error:
        train(ToyModel(), ToyTask(), CONFIG, tmp_path, resume=True, progress=False)
    assert "remove its directory to use an earlier checkpoint" in str(error.value)
    latest.rename(tmp_path / "elsewhere")
    model = ToyModel()
    train(model, ToyTask(), CONFIG, tmp_path, resume=True, progress=False)
    assert same_weights(model, whole)


@dataclass
class ValleyTask(ToyTask):
    """A task whose metric is best after 7 updates, and whose batch number ``fails`` cannot be had."""

    fails: int = -1
    step: int = 0

    def batch(self, step: int, size: int) -> Batch:
        if step == self.fails:
            raise OSError("no such file")
        self.step = step
        return super().batch(step, size)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        return {"loss": abs(self.step + 1 - 7.0)}


def test_the_best_model_is_the_one_that_is_reported_however_often_a_continued_run_evaluates(
    tmp_path: Path,
) -> None:
    with pytest.raises(OSError, match="no such file"):
        train(
            ToyModel(),
            ValleyTask(fails=8),
            dataclasses.replace(CONFIG, eval_every=1),
            tmp_path,
            progress=False,
        )
    config = dataclasses.replace(CONFIG, eval_every=20)
    result = train(ToyModel(), ValleyTask(), config, tmp_path, resume=True, progress=False)
    assert result.best is not None
    assert (
        result.best.step == json.loads((tmp_path / "best" / "state.json").read_text())["step"] == 7
    )


def test_a_metric_that_is_nan_is_never_the_best() -> None:
    task = ScriptedTask(script=(math.nan, 0.5, math.nan, 0.25))
    result = train(
        ToyModel(), task, dataclasses.replace(CONFIG, steps=4, eval_every=1), progress=False
    )
    assert (result.best.step, result.best.value) == (4, 0.25)


def test_a_diverging_run_stops_and_keeps_its_checkpoint(tmp_path: Path) -> None:
    class DivergingTask(ToyTask):
        def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
            loss = super().loss(model, batch)
            return loss * float("nan") if model.head.weight.abs().sum() != start else loss

    model = ToyModel()
    start = model.head.weight.abs().sum()
    config = dataclasses.replace(CONFIG, checkpoint_every=1)
    with pytest.raises(DivergedError, match="step 2: loss = nan"):
        train(model, DivergingTask(), config, tmp_path, progress=False)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]
    saved = ToyModel(seed=2)
    load_weights(saved, tmp_path / "checkpoints" / "step-00000001")
    assert same_weights(saved, model)
    assert all(weight.isfinite().all() for weight in saved.parameters())


def test_the_callers_model_and_random_numbers_are_left_as_they_were() -> None:
    model = ToyModel().eval()
    torch.manual_seed(7)
    expected = torch.rand(2)
    torch.manual_seed(7)
    train(model, ToyTask(), dataclasses.replace(CONFIG, precision="bf16"), progress=False)
    assert torch.equal(torch.rand(2), expected)
    assert not any(each.training for each in model.modules())
    assert model(torch.ones(1, 2, dtype=torch.long)).dtype == torch.float32
    assert "forward" not in vars(model), "a decorated one would be left without its decorators"


def test_gradients_that_were_there_before_do_not_count() -> None:
    model = ToyModel()
    clean = ToyModel()
    task = ToyTask()
    (100 * task.loss(model, task.batch(0, 8))).backward()
    for each in (model, clean):
        train(each, task, CONFIG, progress=False)
    assert same_weights(model, clean)


@pytest.mark.parametrize("switched_off", [torch.no_grad, torch.inference_mode])
def test_training_without_gradients_is_refused(switched_off: type, tmp_path: Path) -> None:
    with switched_off(), refused("no_grad"):
        train(ToyModel(), ToyTask(), CONFIG, progress=False)
    with torch.inference_mode():
        model = ToyModel()
    with refused("weights that were made"):
        train(model, ToyTask(), CONFIG, progress=False)
    train(ToyModel(), ToyTask(), CONFIG, tmp_path, progress=False)
    with switched_off():  # what is finished is read there
        assert (
            train(ToyModel(), ToyTask(), CONFIG, tmp_path, resume=True, progress=False).step
            == CONFIG.steps
        )


@pytest.mark.parametrize("compiled", [False, True])
def test_each_block_keeps_its_mode(compiled: bool) -> None:
    model = ToyModel()
    next(model.children()).eval()
    modes = [each.training for each in model.modules()]
    train(
        torch.compile(model, backend="eager") if compiled else model,
        ToyTask(),
        CONFIG,
        progress=False,
    )
    assert [each.training for each in model.modules()] == modes


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_a_compiled_model_trains_alike_and_its_checkpoints_are_plain(
    tmp_path: Path, precision: str
) -> None:
    config = dataclasses.replace(CONFIG, precision=precision, optimizer="muon")
    plain = ToyModel()
    inner = ToyModel()
    compiled = torch.compile(inner, backend="eager")
    expected = train(plain, ToyTask(), config, progress=False)
    train(compiled, InterruptedTask(at=6), config, tmp_path, progress=False)
    result = train(ToyModel(seed=1), ToyTask(), config, tmp_path, resume=True, progress=False)
    assert result.step == 20
    assert [loss for _, loss in result.losses] == pytest.approx(
        [loss for _, loss in expected.losses], abs=1e-3
    )


def test_a_bar_and_tensorboard_can_be_had(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboard")
    config = dataclasses.replace(CONFIG, tensorboard=True)
    train(ToyModel(), ToyTask(), config, tmp_path)
    assert len(list((tmp_path / "tensorboard").iterdir())) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        f"step {step}/20" for step in (4, 8, 12, 16, 20)
    ]


def test_what_needs_a_directory_says_so() -> None:
    with refused("without a directory"):
        train(ToyModel(), ToyTask(), CONFIG, resume=True, progress=False)
    with refused("without a directory"):
        train(ToyModel(), ToyTask(), dataclasses.replace(CONFIG, tensorboard=True), progress=False)
