import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from training_toys import ToyModel, ToyTask

from glassformer.layers.quantized.packed import PackedLinear
from glassformer.training import Batch, DivergedError, EpochBatches, TrainingConfig, train
from glassformer.training.optim import build_optimizers, learning_rate_factor
from glassformer.training.run_directory import RunState
from glassformer.training.stepper import Stepper, StopRequest, open_accelerator
from refusals import refused

HERE = Path(__file__).resolve().parent


def make_stepper(model: nn.Module, task: ToyTask, config: TrainingConfig) -> Stepper:
    return Stepper(open_accelerator(config.precision), model, task, config)


def plain_update(
    model: nn.Module, task: ToyTask, config: TrainingConfig, step: int
) -> tuple[float, float]:
    """The update written out: the whole batch at once."""
    (adamw,) = build_optimizers(model, config)
    for group in adamw.param_groups:
        group["lr"] = config.learning_rate * learning_rate_factor(step, config)
    loss = task.loss(model, task.batch(step, config.batch_size))
    loss.backward()
    weights = list(model.parameters())
    norm = torch.cat([weight.grad.flatten() for weight in weights]).norm()
    if config.clip_norm is not None and norm > config.clip_norm:
        for weight in weights:
            weight.grad *= config.clip_norm / norm
    adamw.step()
    return loss.item(), norm.item()


def test_packed_weights_are_named_as_not_trained() -> None:
    with pytest.warns(UserWarning, match="weights of 1 layers are packed"):
        build_optimizers(
            nn.Sequential(PackedLinear(32, 2, "Q8_0"), nn.Linear(2, 2)), TrainingConfig()
        )


@pytest.mark.parametrize("accumulation", [1, 2, 3, 9])
@pytest.mark.parametrize("clip_norm", [None, 0.1])
def test_an_update_is_that_of_the_whole_batch(accumulation: int, clip_norm: float | None) -> None:
    # Sequences differ in length, so a mean of means would differ; 9 micro-batches leave some
    # without an example.
    config = TrainingConfig(
        steps=10,
        warmup_steps=4,
        batch_size=7,
        clip_norm=clip_norm,
        accumulation=accumulation,
        schedule="constant",
    )
    task = ToyTask()
    model = ToyModel()
    reference = ToyModel()
    update = make_stepper(model, task, config).update(2)
    loss, norm = plain_update(reference, task, config, 2)
    assert update.loss == pytest.approx(loss, rel=1e-6)
    assert update.grad_norm == pytest.approx(norm, rel=1e-5)
    assert update.learning_rate_factor == 0.75
    assert update.count == int((task.batch(2, 7)["tokens"][:, 1:] != 0).sum())
    for weight, expected in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(weight, expected, rtol=0, atol=2e-6)


def test_random_numbers_of_a_step_are_its_own() -> None:
    config = TrainingConfig(batch_size=8, learning_rate=1e-9, weight_decay=0.0)

    def losses(steps: list[int], seed: int = 0) -> list[float]:
        task = ToyTask(examples=8)
        task.batches = EpochBatches(task.batches.tensors, shuffle=False)
        stepper = make_stepper(ToyModel(dropout=0.5), task, dataclasses.replace(config, seed=seed))
        found = []
        for step in steps:
            torch.rand(3)
            found.append(stepper.update(step).loss)
        return found

    first = losses([0, 1, 3])
    again = losses([0, 1, 3])
    assert first == again
    # The batch is always the same and the weights hardly move: what differs is dropout.
    assert min(abs(first[0] - first[1]), abs(first[1] - first[2]), abs(first[0] - first[2])) > 1e-3
    assert losses([3])[0] == pytest.approx(first[2], abs=1e-5)
    assert abs(losses([0], seed=1)[0] - first[0]) > 1e-3


@dataclass
class SpoiledTask(ToyTask):
    """From step 3 on the loss, or only its gradient, is not finite."""

    spoil: Callable[[Tensor], Tensor] = torch.log

    def batch(self, step: int, size: int) -> Batch:
        return {**super().batch(step, size), "good": torch.full((size,), step < 3)}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        loss = super().loss(model, {"tokens": batch["tokens"]})
        return loss if batch["good"].all() else loss + self.spoil(loss - loss)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda zero: torch.log(zero - 1), "loss = nan"),
        (torch.log, "loss = -inf"),
        (torch.sqrt, "gradient norm = nan"),
    ],
)
def test_an_update_that_is_not_finite_is_not_made(
    spoil: Callable[[Tensor], Tensor], message: str
) -> None:
    model = ToyModel()
    stepper = make_stepper(model, SpoiledTask(spoil=spoil), TrainingConfig(batch_size=8))
    for step in range(3):
        stepper.update(step)
    before = [weight.clone() for weight in model.parameters()]
    with pytest.raises(DivergedError, match="step 4") as error:
        stepper.update(3)
    assert message in str(error.value)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_evaluation_is_without_dropout_and_gradients() -> None:
    seen = []

    @dataclass
    class WatchingTask(ToyTask):
        def evaluate(self, model: nn.Module) -> dict[str, float]:
            seen.append((model.training, torch.is_grad_enabled()))
            return super().evaluate(model)

    model = ToyModel(dropout=0.5).train()
    stepper = make_stepper(model, WatchingTask(), TrainingConfig())
    assert stepper.evaluate() == stepper.evaluate()
    assert seen == [(False, False)] * 2
    assert model.training


def test_tasks_that_break_their_word_are_refused() -> None:
    stepper = make_stepper(ToyModel(), ToyTask(metric="accuracy"), TrainingConfig())
    with refused(r"\['examples', 'loss'\]", expected="'accuracy'"):
        stepper.evaluate()

    class EmptyTask(ToyTask):
        def count(self, batch: Batch) -> int:
            return 0

    with refused("count 0"):
        make_stepper(ToyModel(), EmptyTask(), TrainingConfig()).update(0)


def test_runs_of_different_precision_may_follow_one_another() -> None:
    losses = {}
    for precision in ("no", "bf16", "no"):
        model = ToyModel()
        stepper = make_stepper(model, ToyTask(), TrainingConfig(precision=precision))
        losses.setdefault(precision, []).append([stepper.update(step).loss for step in range(3)])
        assert all(weight.dtype == torch.float32 for weight in model.parameters())
    assert losses["no"][0] == losses["no"][1]
    assert losses["bf16"][0] != losses["no"][0]
    assert losses["bf16"][0] == pytest.approx(losses["no"][0], rel=0.02)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU has float16")
def test_a_precision_that_the_device_lacks_is_refused() -> None:
    with refused('precision = "fp16"'):
        open_accelerator("fp16")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_noted_and_handlers_come_back(number: int) -> None:
    # where the tests run under nohup, it is ignored
    before = signal.signal(number, signal.default_int_handler)
    try:
        with StopRequest() as stop:
            assert not stop.requested
            os.kill(os.getpid(), number)
            assert stop.requested
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.requested
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.fixture
def usual_handler() -> Iterator[None]:
    """Python's own handler of Ctrl-C; where the tests run in the background, the signal is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("usual_handler")
def test_the_second_signal_acts_as_usual() -> None:
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_other_threads_are_left_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def work() -> None:
        with StopRequest() as stop:
            seen.append((stop.requested, signal.getsignal(signal.SIGINT) is before))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, True)]


# Several processes
# ----------------------------------------------------------------------------------------------------

SETTINGS = {
    "steps": 12,
    "batch_size": 7,
    "log_every": 1,
    "eval_every": 4,
    "checkpoint_every": 4,
    "accumulation": 2,
}
LAUNCH = (
    "-m accelerate.commands.launch --num_processes 2 --num_machines 1 --mixed_precision no "
    "--dynamo_backend no"
    " --num_cpu_threads_per_process 1 --main_process_port {port}"
)
LAUNCHERS = {
    "one": "",
    "ddp": f"{LAUNCH} --multi_gpu",
    "sharded": f"{LAUNCH} --use_fsdp --fsdp_version 2",
}


def start(kind: str, port: int, directory: Path, **arguments: object) -> subprocess.Popen[str]:
    """Begin to train the toy in ``directory`` on one process, or on two with replicated or sharded
    weights.
    """
    # The variable turns the launcher's GPU processes into CPU processes; its own --cpu would start
    # only one.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    launcher = LAUNCHERS[kind].format(port=port).split()
    request = {"directory": str(directory), "config": SETTINGS, "kind": kind, **arguments}
    return subprocess.Popen(
        [sys.executable, *launcher, str(HERE / "distributed_worker.py"), json.dumps(request)],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    """Wait for ``process``; returns what it wrote to standard error."""
    try:
        return process.communicate(timeout=600)[1]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise


def launch(kind: str, port: int, directory: Path, **arguments: object) -> None:
    """Train to the end, and without an error."""
    process = start(kind, port, directory, **arguments)
    errors = finish(process)
    assert process.returncode == 0, errors


def curve(directory: Path) -> dict[tuple[int, str], float]:
    """Losses, gradient norms and metrics by step, each step once."""
    found: dict[tuple[int, str], float] = {}
    for line in (directory / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        numbers = record.get("evaluation") or {name: record[name] for name in ("loss", "grad_norm")}
        for name, value in numbers.items():
            key = (record["step"], f"evaluation {name}" if "evaluation" in record else name)
            assert key not in found
            found[key] = value
    return found


@pytest.fixture
def port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"), [("ddp", "one"), ("one", "ddp"), ("sharded", "one"), ("one", "sharded")]
)
def test_any_number_of_processes_follows_the_same_curve(
    tmp_path: Path, port: int, before: str, after: str
) -> None:
    train(
        ToyModel(tied=True),
        ToyTask(),
        TrainingConfig(**SETTINGS),
        tmp_path / "whole",
        progress=False,
    )
    # Only the last process is asked to stop, in update 6; all must agree, and save one checkpoint
    # between them.
    launch(before, port, tmp_path / "parts", tied=True, stop_at=5)
    assert [path.name for path in (tmp_path / "parts" / "checkpoints").iterdir()].count(
        "step-00000006"
    ) == 1
    launch(after, port, tmp_path / "parts", tied=True, resume=True)

    whole = curve(tmp_path / "whole")
    parts = curve(tmp_path / "parts")
    assert whole.keys() == parts.keys()
    assert max(abs(whole[key] - parts[key]) for key in whole) <= 1e-5
    for name in (
        "checkpoints/step-00000012/model",
        "checkpoints/step-00000012/optimizer",
        "best/model",
    ):
        expected = load_file(tmp_path / "whole" / f"{name}.safetensors")
        found = load_file(tmp_path / "parts" / f"{name}.safetensors")
        assert expected.keys() == found.keys()
        for key, tensor in expected.items():
            torch.testing.assert_close(found[key], tensor, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_ctrl_c_at_the_launcher_saves_and_resumes(tmp_path: Path, port: int) -> None:
    config = {"steps": 4000, "batch_size": 8, "log_every": 1, "schedule": "constant"}
    process = start("ddp", port, tmp_path, config=config, pause=0.02)
    log = tmp_path / "metrics.jsonl"
    deadline = time.monotonic() + 600
    while (
        not (log.exists() and log.stat().st_size)
        and process.poll() is None
        and time.monotonic() < deadline
    ):
        time.sleep(0.05)
    # As a terminal does. The launcher passes it on to its processes.
    os.killpg(process.pid, signal.SIGINT)
    assert "Continue with resume=True" in finish(process)

    (checkpoint,) = (tmp_path / "checkpoints").iterdir()
    step = RunState.read(checkpoint / "state.json").step
    assert 0 < step < 4000
    config["steps"] = step + 5
    launch("one", port, tmp_path, config=config, resume=True)
    assert [key[0] for key in curve(tmp_path) if key[1] == "loss"] == list(range(1, step + 6))
