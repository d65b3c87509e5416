"""The training loop: one for every model, on one process or on many under ``accelerate launch``."""

import json
import math
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from accelerate import Accelerator
from torch import nn

from glassformer.errors import InputError
from glassformer.files import local_path
from glassformer.modes import keeping_modes
from glassformer.training.checkpoint import load_optimizers, load_weights, plain_model
from glassformer.training.config import TrainingConfig
from glassformer.training.environment import Environment, changes, environment_of
from glassformer.training.metrics import MetricsFile, Progress, Record, TensorBoard, read_records
from glassformer.training.run_directory import Best, Description, RunDirectory, RunState
from glassformer.training.stepper import Stepper, StopRequest, open_accelerator
from glassformer.training.task import Task

Ending = Literal["finished", "patience", "interrupted"]


@dataclass(frozen=True)
class TrainingResult:
    """The result of a run, including the part before a resume."""

    step: int
    """Updates done."""
    ending: Ending
    """"finished" after all steps, "patience" without progress, "interrupted" by Ctrl-C."""
    history: list[Record]
    """The records of metrics.jsonl."""
    best: Best | None
    """The best evaluation; None before the first."""
    seconds: float
    """Time spent in updates."""
    directory: Path | None

    @property
    def losses(self) -> list[tuple[int, float]]:
        """Return (step, loss) of every logged step."""
        return [(record["step"], record["loss"]) for record in self.history if "loss" in record]

    @property
    def evaluations(self) -> list[tuple[int, dict[str, float]]]:
        """Return (step, metrics) of every evaluation."""
        return [
            (record["step"], record["evaluation"])
            for record in self.history
            if "evaluation" in record
        ]


def train(
    model: nn.Module,
    task: Task,
    config: TrainingConfig,
    directory: str | os.PathLike[str] | None = None,
    *,
    resume: bool = False,
    description: Description | None = None,
    progress: bool = True,
    advice: str | None = "Continue with resume=True.",
) -> TrainingResult:
    """Train ``model``, in place, on ``task``.

    A step is one update on the global batch ``task.batch(step, config.batch_size)``. The same call
    trains on one process, and under ``accelerate launch`` on several, with replicated (DDP) or
    sharded (FSDP2) weights; the global batch is then split among them. Build the model from the
    same seed on every process.

    With a ``directory`` the run can be continued after Ctrl-C, a crash or a power cut. Its losses
    and weights are then those of a run without interruption: bit for bit on the same machine with
    the same number of threads, versions and switches, otherwise to rounding. A line on stderr says
    what has changed; config.json has all settings. Random numbers of a step (dropout) are drawn
    from (``config.seed``, step, process); the caller's generators are unchanged. Earlier gradients
    of the weights are dropped.

    Args:
        model: The network, plain or compiled. It ends with the weights of the last step, on the
            device of training; the best ones are in ``directory / "best"``, for
            :func:`~glassformer.training.checkpoint.load_weights`.
        directory: The run directory, new or without a run. None keeps nothing.
        resume: Continue the run in ``directory`` from its latest checkpoint, or from the start if
            it has none yet.
        description: Other values that define the run, as JSON: the model's configuration, the data.
            They are stored in config.json, and compared on resuming.
        progress: Whether to show a progress bar on a terminal, and elsewhere a line for each
            evaluation and one in about ten seconds between evaluations.
        advice: Text that is printed after Ctrl-C on how to continue.

    Raises:
        InputError: If the directory holds a run and ``resume`` is false, or holds none and it is
            true; if a checkpoint is damaged or belongs to another configuration; if the device
            lacks ``config.precision``; where gradients are switched off.
        DivergedError: If loss or gradient become NaN or infinite. Checkpoints stay as they were.

    Example:
        >>> from glassformer.models import Decoder, DecoderConfig
        >>> from glassformer.training import EpochBatches, NextTokenTask
        >>> tokens = torch.arange(12).repeat(8, 1) % 5  # eight texts: 0 1 2 3 4 0 1 ...
        >>> task = NextTokenTask(EpochBatches({"tokens": tokens}), tokens, metric="accuracy")
        >>> model = Decoder(DecoderConfig(5, 1, 16, 32, 2, 8))
        >>> config = TrainingConfig(steps=60, batch_size=8, learning_rate=0.01)
        >>> train(model, task, config, progress=False).ending, task.evaluate(model)["accuracy"]
        ('finished', 1.0)
    """
    if directory is None and (resume or config.tensorboard):
        raise InputError(
            got=f"resume = {resume}, tensorboard = {config.tensorboard} without a directory",
            expected="a run directory",
            fix="Pass directory=Path('runs/my-run').",
        )
    accelerator = open_accelerator(config.precision)
    if directory is None:
        run = None
    else:
        run = RunDirectory(directory, writes=accelerator.is_main_process)
    if accelerator.device.type == "cuda":
        devices = [accelerator.device]
    else:
        devices = []
    # Mixed precision replaces forward(). It is put back by hand: Accelerate's unwrap_model() would
    # remove the caller's decorators, too.
    forwards = [
        (vars(module), vars(module).get("forward")) for module in (model, plain_model(model))
    ]
    with keeping_modes(model), torch.random.fork_rng(devices=devices), StopRequest() as stop:
        try:
            loop = _Loop(
                accelerator, model, task, config, run, resume, description or {}, progress, advice
            )
            try:
                ending = loop.run(stop)
            finally:
                loop.close()
        finally:
            if run is not None:
                run.unlock()
            for attributes, forward in forwards:
                attributes.pop("_original_forward", None)
                attributes.pop("forward", None)
                if forward is not None:
                    attributes["forward"] = forward
    return TrainingResult(
        step=loop.state.step,
        ending=ending,
        history=loop.history,
        best=loop.state.best,
        seconds=loop.state.seconds,
        directory=None if run is None else run.path,
    )


def train_in(
    directory: Path | str | None,
    model: nn.Module,
    task: Task,
    config: TrainingConfig,
    description: Description,
) -> TrainingResult:
    """Call :func:`train` in a run directory, and continue a run there; None stores nothing.

    The model ends on the CPU, in evaluation mode, with the weights of the last step. On continuing,
    ``description`` is compared with the stored one. Ctrl-C saves the run and then raises
    ``KeyboardInterrupt``.
    """
    begun = directory is not None and (local_path(directory) / "config.json").exists()
    description = json.loads(json.dumps(description))  # as a file gives it back: lists for tuples
    result = train(
        model, task, config, directory, resume=begun, description=description, progress=False
    )
    if result.ending == "interrupted":
        raise KeyboardInterrupt
    model.cpu().eval()
    return result


def _read_state(checkpoint: Path) -> RunState:
    state = RunState.read(checkpoint / "state.json")
    if checkpoint.name != f"step-{state.step:08d}":
        raise InputError(
            got=f"{checkpoint} with the state of step {state.step}",
            expected="the state of its own step",
            fix="Remove it to use an earlier checkpoint.",
        )
    return state


def _check_gradients(model: nn.Module) -> None:
    """Refuse to train where no gradients can be computed."""
    made_in_inference = any(weight.is_inference() for weight in model.parameters())
    if made_in_inference or not torch.is_grad_enabled():
        raise InputError(
            got=(
                "training under torch.no_grad() or inference_mode(), or of weights that were made "
                "under the latter"
            ),
            expected="gradients",
            fix="Build the model and train it outside of such blocks.",
        )


class _Loop:
    """Decides when to log, evaluate, save and stop; :class:`Stepper` makes the updates."""

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        task: Task,
        config: TrainingConfig,
        run: RunDirectory | None,
        resume: bool,
        description: Description,
        progress: bool,
        advice: str | None,
    ) -> None:
        self._advice = advice
        self._accelerator = accelerator
        self._task = task
        self._config = config
        self._run = run
        environment = environment_of(accelerator.device, accelerator.num_processes)
        latest: Path | None = None
        if run is not None and resume:
            run.require_continues(config, description)
            run.lock()
            latest = next(reversed(run.checkpoints()), None)
        elif run is not None:
            run.require_new()
        self._interrupted = False
        if latest is None:
            self.state = RunState(0)
        else:
            self.state = _read_state(latest)
        self.history: list[Record] = []
        if run is not None and resume:
            self.history = self._read_history(run)
        done = self._ending() is not None  # a run that has ended is only read
        if not done:
            _check_gradients(model)
        if run is not None and latest is not None and not done:
            self._warn_of_changes(run, environment)
        if latest is not None:
            load_weights(model, latest)
        model.train()
        self._stepper = Stepper(accelerator, model, task, config)
        if latest is not None:
            load_optimizers(self._stepper.model, self._stepper.optimizers, latest)
        if accelerator.scaler is not None and self.state.loss_scale:
            accelerator.scaler.load_state_dict(self.state.loss_scale)
        self._saved_step = None if latest is None else self.state.step
        self._extra_evaluations = {config.steps}
        """Steps after which the model is evaluated whatever ``eval_every`` says."""
        if run is not None and resume:
            # The best model may come from a step after the checkpoint: evaluate it there again.
            for path in run.best.glob("state.json"):
                self._extra_evaluations.add(RunState.read(path).step)
        self._count_since_log = 0
        self._seconds_since_log = 0.0
        # Every process must have read the directory before one writes there.
        accelerator.wait_for_everyone()
        self._logs: list[MetricsFile | TensorBoard] = []
        if run is not None and accelerator.is_main_process:
            if config.tensorboard:
                self._logs.append(TensorBoard(run.tensorboard, self.state.step))
            if not resume:
                run.lock()
                run.require_new()
            run.begin(config, description, None if done else environment, self.state.step)
            self._logs.append(MetricsFile(run.metrics_file, self.history))
        self._progress = Progress(
            config.steps,
            self.state.step,
            task.metric,
            task.unit,
            progress and accelerator.is_main_process,
        )

    def _read_history(self, run: RunDirectory) -> list[Record]:
        """Return the stored records up to the checkpoint, after a check that they belong to it."""
        step = self.state.step
        if step > self._config.steps:
            raise InputError(
                got=f"steps = {self._config.steps}, of which the run has done {step}",
                expected=f"steps of at least {step}",
                fix="Raise steps, or start a new run in another directory.",
            )
        history = read_records(run.metrics_file, step, self._warn)
        if len(history) < self.state.records:
            self._warn(
                f"{run.metrics_file} holds {len(history)} of the {self.state.records} records up "
                f"to step {step}: the others are lost."
            )
        best = self.state.best
        evaluated = {record["step"] for record in history if "evaluation" in record}
        if run.metrics_file.exists() and best is not None and best.step not in evaluated:
            raise InputError(
                got=f"{run.metrics_file} without the evaluation after step {best.step}",
                expected="the records of the whole run",
                fix="Restore the file from a copy. To go on without earlier records, remove it.",
            )
        return history

    def _warn_of_changes(self, run: RunDirectory, environment: Environment) -> None:
        changed = "".join(changes(earlier, environment) for earlier in run.environments()[-1:])
        if changed:
            self._warn(
                f"{run.path} goes on with {changed}. Rounding, and so its weights, may differ."
            )

    def run(self, stop: StopRequest) -> Ending:
        """Update until the run ends, then save."""
        while (ending := self._ending()) is None:
            self._step(stop)
            is_extra = self.state.step in self._extra_evaluations
            if is_extra or self._is_due(self._config.eval_every):
                self._evaluate()
            if self._is_due(self._config.checkpoint_every):
                self._save()
        if self._saved_step != self.state.step:
            self._save()
        if ending == "interrupted" and self._accelerator.is_main_process:
            self._progress.say(self._stopped())
        return ending

    def _stopped(self) -> str:
        """Return the message after Ctrl-C."""
        if self._run is None:
            return (
                f"Stopped after step {self.state.step}; nothing was saved, because the run has no "
                "directory."
            )
        stopped = (
            f"Stopped after step {self.state.step} of {self._config.steps} and saved to "
            f"{self._run.path}."
        )
        if self._advice is None:
            return stopped
        return f"{stopped} {self._advice}"

    def _warn(self, message: str) -> None:
        if self._accelerator.is_main_process:
            print(f"glassformer: warning: {message}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Close the files and the progress bar."""
        self._progress.close()
        for log in self._logs:
            log.close()

    def _ending(self) -> Ending | None:
        if self.state.step >= self._config.steps:
            return "finished"
        if (
            self._config.patience is not None
            and self.state.evaluations_since_best >= self._config.patience
        ):
            return "patience"
        return "interrupted" if self._interrupted else None

    def _is_due(self, every: int | None) -> bool:
        return every is not None and self.state.step % every == 0

    def _step(self, stop: StopRequest) -> None:
        begun = time.perf_counter()
        update = self._stepper.update(self.state.step, stop)
        seconds = time.perf_counter() - begun
        self.state.step += 1
        self.state.seconds += seconds
        self._count_since_log += update.count
        self._seconds_since_log += seconds
        self._interrupted = update.stop
        self._progress.advance()
        if self._is_due(self._config.log_every) or self.state.step == self._config.steps:
            speed = self._count_since_log / self._seconds_since_log
            self._log(
                {
                    "step": self.state.step,
                    "loss": update.loss,
                    "learning_rate": update.learning_rate_factor * self._config.learning_rate,
                    "grad_norm": update.grad_norm,
                    f"{self._task.unit}_per_second": speed,
                    "seconds": self.state.seconds,
                }
            )
            self._count_since_log = 0
            self._seconds_since_log = 0.0

    def _log(self, record: Record) -> None:
        self.history.append(record)
        for log in self._logs:
            log.write(record)
        self._progress.show(record)

    def _evaluate(self) -> None:
        metrics = self._stepper.evaluate()
        self._log({"step": self.state.step, "evaluation": metrics})
        value = metrics[self._task.metric]
        if self._is_better(value):
            self.state.best = Best(self.state.step, value)
            self.state.evaluations_since_best = 0
            if self._run is not None:
                self._run.save_best(self._stepper.model, self.state)
        else:
            self.state.evaluations_since_best += 1

    def _is_better(self, value: float) -> bool:
        """Return whether ``value`` is better than the best so far; NaN is the worst."""
        best = self.state.best
        if best is None:
            return True
        if math.isnan(best.value):
            return not math.isnan(value)
        if self._task.higher_is_better:
            return value > best.value
        return value < best.value

    def _save(self) -> None:
        if self._run is None:
            return
        for log in self._logs:
            log.sync()
        if self._accelerator.scaler is not None:
            self.state.loss_scale = self._accelerator.scaler.state_dict()
        self.state.records = len(self.history)
        self._run.save(
            self._stepper.model, self._stepper.optimizers, self.state, self._config.keep_checkpoints
        )
        self._saved_step = self.state.step
        self._accelerator.wait_for_everyone()
