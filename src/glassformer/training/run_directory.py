"""The directory of one run: its configuration, metrics, checkpoints and best model.

::

    .lock                        the training process's number; the lock ends with the process
    config.json                  the training configuration, the caller's description of model and
                                 data, and the environments at the start and at each continuation
    metrics.jsonl                a line for every logged step and every evaluation
    checkpoints/step-00000632/   model.safetensors, optimizer.safetensors, state.json
    best/                        model.safetensors, state.json: the model with the best metric
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter
from pydantic.dataclasses import dataclass
from torch import nn
from torch.optim import Optimizer

from glassformer.checkpoints.tensor_files import read_json
from glassformer.errors import CheckpointError, InputError
from glassformer.files import (
    Written,
    fcntl,
    local_path,
    new_directory,
    recover,
    remove_directory,
    remove_leftovers,
    set_aside,
    write_text,
)
from glassformer.text import shown
from glassformer.training.checkpoint import (
    OPTIMIZER_FILE,
    WEIGHTS_FILE,
    save_optimizers,
    save_weights,
)
from glassformer.training.config import TrainingConfig
from glassformer.training.environment import Environment, changes

Description = dict[str, Any]
_CHECKPOINT = Written(
    "a checkpoint",
    (WEIGHTS_FILE, OPTIMIZER_FILE, "state.json"),
    lambda directory: (directory / WEIGHTS_FILE).is_file(),
)


_STRICT = ConfigDict(strict=True, extra="forbid")


@dataclass(frozen=True, config=_STRICT)
class Best:
    """Step and metric of the best evaluation so far."""

    step: int
    value: float


@dataclass(config=_STRICT)
class RunState:
    """Progress of a run: all that resuming needs besides weights and optimiser state."""

    step: int
    """Updates done."""
    seconds: float = 0.0
    """Time spent in updates, without evaluations and saving."""
    best: Best | None = None
    """The best evaluation so far."""
    evaluations_since_best: int = 0
    """Evaluations since then, for early stopping."""
    loss_scale: dict[str, Any] = field(default_factory=dict)
    """State of float16's gradient scaler; empty with other precisions."""
    records: int = 0
    """Number of lines of metrics.jsonl up to this step; 0 if unknown."""

    def to_json(self) -> str:
        """Return the state as a JSON object."""
        return json.dumps(asdict(self), indent=2)

    @classmethod
    def read(cls, path: Path) -> RunState:
        """Read the state that :meth:`to_json` wrote into the file ``path``."""
        try:
            return TypeAdapter(cls).validate_json(json.dumps(read_json(path)), strict=True)
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"{path}, which cannot be read ({error})",
                "the state of a run",
                "The file is damaged: remove its directory to use an earlier checkpoint.",
            ) from error


class RunDirectory:
    """The files of one run, which only one process writes.

    Args:
        path: The directory; it may be new.
        writes: Whether this process writes. The others call the same methods and give their shards
            of the weights.
    """

    def __init__(self, path: str | os.PathLike[str], *, writes: bool = True) -> None:
        path = local_path(path)
        self.path = path
        self._writes = writes
        self._lock: int | None = None
        self._content = ""
        self.config_file = path / "config.json"
        self.metrics_file = path / "metrics.jsonl"
        self.best = path / "best"
        self.tensorboard = path / "tensorboard"
        self._checkpoints = path / "checkpoints"

    def checkpoints(self) -> list[Path]:
        """Return the complete checkpoints, oldest first."""
        return sorted(self._checkpoints.glob(f"step-{'[0-9]' * 8}"))

    def require_new(self) -> None:
        """Check that the directory has no run, and can be made."""
        for path in (self.path, *self.path.parents):
            if path.is_file():
                where = "" if path == self.path else f" for {self.path}"
                raise InputError(
                    got=f"{path}{where}, which is a file",
                    expected="a directory",
                    fix="Choose another path.",
                )
        if self.config_file.exists() or self.checkpoints():
            raise InputError(
                got=f"{self.path}, which already holds a run",
                expected="a directory without a run",
                fix=(
                    "Continue that run with resume=True (on the command line: --resume), or choose "
                    "another directory."
                ),
            )
        for path in (self.metrics_file, self.best, *self._checkpoints.glob("*")):
            if os.path.lexists(path):
                raise InputError(
                    got=f"{path}, which exists already",
                    expected="a directory without metrics.jsonl, best and checkpoints",
                    fix="Choose another directory, or move it away.",
                )

    def require_continues(self, config: TrainingConfig, description: Description) -> None:
        """Check that the directory's run may continue with this configuration and description."""
        if not self.config_file.exists():
            raise InputError(
                got=f"{self.path}, which holds no run, with resume=True",
                expected="the directory of a run",
                fix="Start the run without resume, or correct the path.",
            )
        try:
            stored = read_json(self.config_file)
            earlier = TrainingConfig.from_json(json.dumps(stored["training"]))
            earlier_description = stored["description"]
        except (CheckpointError, KeyError, TypeError, RecursionError) as error:
            raise InputError(
                f"{self.config_file}, which cannot be read ({error!r})",
                "the configuration of a run",
                "Start a new run in another directory.",
            ) from error
        config.require_continues(earlier)
        new_description = json.loads(_description_json(description))
        differences = []
        for key in sorted(earlier_description.keys() | new_description.keys()):
            old = earlier_description.get(key)
            new = new_description.get(key)
            if old != new:
                differences.append(f"{key} was {old!r}, is {new!r}")
        if differences:
            raise InputError(
                got=f"a changed description: {', '.join(differences)}",
                expected="the model and the data that the run was started with",
                fix="Resume with the old ones, or start a new run in another directory.",
            )

    def lock(self) -> None:
        """Make the directory and lock it against other processes, until :meth:`unlock`."""
        if not self._writes or fcntl is None:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(self._lock, 20).decode(errors="replace")
            self.unlock()
            raise InputError(
                f"{self.path}, in which the process {holder or 'of another user'} is training",
                "a run that no other process writes",
                "Wait until it ends, or stop it, and then continue the run with resume=True.",
            ) from error
        except OSError:  # a file system without locks
            self.unlock()
            return
        os.ftruncate(self._lock, 0)
        os.write(self._lock, str(os.getpid()).encode())

    def unlock(self) -> None:
        """Let other processes write there."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def environments(self) -> list[Environment]:
        """Return the environments in which the run was begun and continued, the latest last.

        A run of an earlier version has none.
        """
        environments = None
        if self.config_file.exists():
            environments = read_json(self.config_file).get("environments")
        if isinstance(environments, list):
            return [entry for entry in environments if isinstance(entry, dict)]
        return []

    def begin(
        self,
        config: TrainingConfig,
        description: Description,
        environment: Environment | None = None,
        step: int = 0,
    ) -> None:
        """Write the configuration and remove files that a killed process left incomplete.

        Args:
            environment: Environment of the run after ``step``; None if the run has ended.
        """
        if not self._writes:
            return
        environments = self.environments()
        if environment is not None and (not environments or changes(environments[-1], environment)):
            environments.append({"step": step, **environment})
        self._checkpoints.mkdir(parents=True, exist_ok=True)
        for parent in (self.path, self._checkpoints):
            remove_leftovers(parent)
        recover(self.best)
        self._content = (
            f'{{"training": {config.to_json()}, "description": {_description_json(description)}, '
            f'"environments": {json.dumps(environments)}}}\n'
        )
        write_text(self.config_file, self._content)

    def save(
        self, model: nn.Module, optimizers: list[Optimizer], state: RunState, keep: int
    ) -> Path:
        """Write the checkpoint of ``state.step``, and remove all but the latest ``keep``.

        Earlier checkpoints with foreign files are not removed.
        """
        path = self._checkpoints / f"step-{state.step:08d}"
        self._write(path, model, state, optimizers)
        if self._writes:
            # The directory may have been moved while the run goes on.
            if self._content and not self.config_file.exists():
                write_text(self.config_file, self._content)
            for old in self.checkpoints()[:-keep]:
                if not _CHECKPOINT.foreign_entries(old):
                    remove_directory(old)
        return path

    def save_best(self, model: nn.Module, state: RunState) -> None:
        """Write ``model`` as the best one so far."""
        self._write(self.best, model, state, [])

    def _write(
        self, path: Path, model: nn.Module, state: RunState, optimizers: list[Optimizer]
    ) -> None:
        if self._writes and path.is_dir() and _CHECKPOINT.foreign_entries(path):
            print(
                f"glassformer: {shown(set_aside(path))} keeps what else {shown(path)} held",
                file=sys.stderr,
            )
        directory: AbstractContextManager[Path]
        if self._writes:
            directory = new_directory(path, replaces=_CHECKPOINT)
        else:
            directory = nullcontext(path)
        with directory as draft:
            save_weights(model, draft, write=self._writes)
            if optimizers:
                save_optimizers(model, optimizers, draft, write=self._writes)
            if self._writes:
                (draft / "state.json").write_text(state.to_json(), encoding="utf-8")


def _description_json(description: Description) -> str:
    try:
        return json.dumps(description)
    except TypeError as error:
        raise InputError(
            f"a description that is not JSON ({error})", "JSON values", "Use asdict(config)."
        ) from error
