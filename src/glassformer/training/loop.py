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
from glassformer.training.environment import changes, environment_of
from glassformer.training.metrics import MetricsFile, Progress, Record, TensorBoard, read_records
from glassformer.training.run_directory import Best, Description, RunDirectory, RunState
from glassformer.training.stepper import Stepper, StopRequest, open_accelerator
from glassformer.training.task import Task

Ending = Literal["finished", "patience", "interrupted"]


@dataclass(frozen=True)
class TrainingResult:
    """The result of a run; it includes what came before a resume."""

    step: int
    """Updates done."""
    ending: Ending
    """"finished" after all steps, "patience" after evaluations without progress, "interrupted" by
    Ctrl-C.
    """
    history: list[Record]
    """The records of metrics.jsonl."""
    best: Best | None
    """The best evaluation; None before the first."""
    seconds: float
    """Time spent in updates."""
    directory: Path | None

    @property
    def losses(self) -> list[tuple[int, float]]:
        """(step, loss) of every logged step."""
        return [(record["step"], record["loss"]) for record in self.history if "loss" in record]

    @property
    def evaluations(self) -> list[tuple[int, dict[str, float]]]:
        """(step, metrics) of every evaluation."""
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

    With a ``directory`` the run can be continued after Ctrl-C, a crash or a power cut, and gives
    the losses and weights
    that it would have given without: bit for bit on the same machine with the same number of
    threads, the same versions and switches, otherwise to rounding. A line on stderr says what has
    changed, and config.json holds all of it. Random numbers of a step (dropout) are drawn from
    (``config.seed``, step, process); the caller's generators are left alone. Gradients that the
    weights hold before are dropped.

    Args:
        model: The network, plain or compiled. It ends with the weights of the last step, on the
            device of training; the best ones are in ``directory / "best"``, for
            :func:`~glassformer.training.checkpoint.load_weights`.
        directory: The run directory, new or without a run. None keeps nothing.
        resume: Continue the run in ``directory`` from its latest checkpoint, or from the start if
            it has none yet.
        description: What else defines the run, as JSON values: the model's configuration, the data.
            Kept in config.json, and compared on resuming.
        progress: Whether to show a progress bar on a terminal, and elsewhere a line for each
            evaluation and one in about ten seconds between evaluations.
        advice: What is printed after Ctrl-C on how to continue.

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
    if (directory is None and resume) or config.tensorboard:
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
    # Mixed precision replaces forward(), and Accelerate's unwrap_model() would take the caller's
    # decorators off it.
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
    """:func:`train` in a run directory, going on with what is there; None keeps nothing.

    The model ends on the CPU, in evaluation mode, with the weights of the last step.
    ``description`` is compared with that of a run that is continued. Ctrl-C saves what was done and
    goes on as a ``KeyboardInterrupt``.
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
            self.state = RunState.read(latest / "state.json")
        self.history: list[Record] = []
        if latest is not None:
            got = f"{latest} with the state of step {self.state.step}"
            fix = "Remove it to use an earlier checkpoint."
            if latest.name != f"step-{self.state.step:08d}":
                raise InputError(
                    got=got,
                    expected="the state of its own step",
                    fix=fix,
                )
        if run is not None and resume:
            if not self.state.step <= config.steps:
                raise InputError(
                    got=f"steps = {config.steps}, of which the run has done {self.state.step}",
                    expected=f"steps of at least {self.state.step}",
                    fix="Raise steps, or start a new run in another directory.",
                )
            self.history = read_records(run.metrics_file, self.state.step, self._warn)
            lost = self.state.records - len(self.history)
            if lost > 0:
                counted = f"{len(self.history)} of the {self.state.records} records up to step {self.state.step}"
                self._warn(f"{run.metrics_file} holds {counted}: the others are lost.")
            best = self.state.best
            evaluated = {each["step"] for each in self.history if "evaluation" in each}
            if run.metrics_file.exists() and best is not None:
                got = f"{run.metrics_file} without the evaluation after step {best.step}"
                fix = "Restore the file from a copy. To go on without earlier records, remove it."
                if best.step not in evaluated:
                    raise InputError(
                        got=got,
                        expected="the records of the whole run",
                        fix=fix,
                    )
        got = "training under torch.no_grad() or inference_mode(), or of weights that were made under the latter"
        usable = torch.is_grad_enabled() and not any(
            weight.is_inference() for weight in model.parameters()
        )
        done = self._ending() is not None  # a run that has ended is only read
        if not (usable or done):
            raise InputError(
                got=got,
                expected="gradients",
                fix="Build the model and train it outside of such blocks.",
            )
        if run is not None and latest is not None and not done:
            changed = "".join(changes(each, environment) for each in run.environments()[-1:])
            if changed:
                self._warn(
                    f"{run.path} goes on with {changed}. Rounding, and so its weights, may differ."
                )
        if latest is not None:
            load_weights(model, latest)
        model.train()
        self._stepper = Stepper(accelerator, model, task, config)
        if latest is not None:
            load_optimizers(self._stepper.model, self._stepper.optimizers, latest)
        if accelerator.scaler is not None and self.state.loss_scale:
            accelerator.scaler.load_state_dict(self.state.loss_scale)
        self._saved_step = None if latest is None else self.state.step
        # The best model may be of a step after the checkpoint: it is evaluated again there, however
        # often others are.
        if run is None or not resume:
            found = []
        else:
            found = [*run.best.glob("state.json")]
        self._evaluated = {config.steps, *(RunState.read(path).step for path in found)}
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

    def run(self, stop: StopRequest) -> Ending:
        """Update until the run ends, then save."""
        while (ending := self._ending()) is None:
            self._step(stop)
            if self._is_due(self._config.eval_every) or self.state.step in self._evaluated:
                self._evaluate()
            if self._is_due(self._config.checkpoint_every):
                self._save()
        if self._saved_step != self.state.step:
            self._save()
        if ending == "interrupted" and self._accelerator.is_main_process:
            self._progress.say(self._stopped())
        return ending

    def _stopped(self) -> str:
        """Return what is printed after Ctrl-C."""
        if self._run is None:
            return f"Stopped after step {self.state.step}; nothing was saved, because the run has no directory."
        stopped = f"Stopped after step {self.state.step} of {self._config.steps} and saved to {self._run.path}."
        if self._advice is None:
            return stopped
        return f"{stopped} {self._advice}"

    def _warn(self, message: str) -> None:
        if self._accelerator.is_main_process:
            print(f"glassformer: warning: {message}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Close files and bar."""
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
            self._log(
                {
                    "step": self.state.step,
                    "loss": update.loss,
                    "learning_rate": update.learning_rate_factor * self._config.learning_rate,
                    "grad_norm": update.grad_norm,
                    f"{self._task.unit}_per_second": self._count_since_log
                    / self._seconds_since_log,
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
        best = self.state.best
        better = best is None or (
            value > best.value if self._task.higher_is_better else value < best.value
        )
        # Nothing is better than NaN, which is the worst.
        if better or (best is not None and math.isnan(best.value) and not math.isnan(value)):
            self.state.best = Best(self.state.step, value)
            self.state.evaluations_since_best = 0
            if self._run is not None:
                self._run.save_best(self._stepper.model, self.state)
        else:
            self.state.evaluations_since_best += 1

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
