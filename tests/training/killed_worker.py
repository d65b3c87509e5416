"""Runs that are killed at chosen moments and resumed, each part in a process of its own. Argument:
the directory.

One process imports torch and forks a child for every part, because importing takes longer than
training here.
"""

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch._dynamo  # the optimisers import it late, once in every child
from training_toys import InterruptedTask, ToyModel

from glassformer import files as directory_module
from glassformer.training import TrainingConfig, checkpoint, metrics, train

CONFIG = TrainingConfig(
    steps=20,
    batch_size=8,
    log_every=1,
    eval_every=4,
    checkpoint_every=5,
    learning_rate=0.01,
    optimizer="muon",
)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def at_update(step: int) -> Callable[[], int]:
    return lambda: step


def while_writing_optimizer() -> int:
    """Die in the second checkpoint with half a file written."""
    save_file = checkpoint.save_file
    written = []

    def half_save(tensors: dict[str, torch.Tensor], path: Path, **options: object) -> None:
        save_file(tensors, path, **options)
        written.append(path)
        if "step-00000010" in str(path) and path.name == "optimizer.safetensors":
            path.write_bytes(path.read_bytes()[:500])
            die()

    checkpoint.save_file = half_save
    return -1


def at_rename(target: str, occurrence: int, *, after: bool = False) -> Callable[[], int]:
    """Die before (or after) the rename number ``occurrence`` that makes a directory called
    ``target``.
    """

    def prepare() -> int:
        replace = os.replace
        seen = []

        def dying_replace(source: Path, destination: Path) -> None:
            if Path(destination).name == target:
                seen.append(destination)
            if len(seen) == occurrence and not after:
                die()
            replace(source, destination)
            if len(seen) == occurrence and after:
                die()

        directory_module.os.replace = dying_replace
        return -1

    return prepare


def while_removing_old() -> int:
    """Die with the oldest checkpoint half removed."""

    rmtree = shutil.rmtree

    def half_remove(path: Path, **options: bool) -> None:
        if path.exists() and "step-" in path.name:
            next(path.iterdir()).unlink()
            die()
        rmtree(path, **options)

    directory_module.shutil.rmtree = half_remove
    return -1


def while_logging() -> int:
    """Die in the middle of a line of metrics.jsonl, a few steps after a checkpoint."""
    write = metrics.MetricsFile.write

    def half_write(self: metrics.MetricsFile, record: dict) -> None:
        if record["step"] == 13:
            self._file.write('{"step": 13, "lo')
            self._file.flush()
            die()
        write(self, record)

    metrics.MetricsFile.write = half_write
    return -1


SCENARIOS: dict[str, list[Callable[[], int]]] = {
    "whole": [],
    "before-the-first-checkpoint": [at_update(3)],
    "after-a-checkpoint": [at_update(5)],
    "between-checkpoints": [at_update(12)],
    "at-the-last-update": [at_update(19)],
    "three-times": [at_update(2), at_update(9), at_update(17)],
    "writing-a-checkpoint": [while_writing_optimizer],
    "before-a-checkpoint-appears": [at_rename("step-00000010", 1)],
    "after-a-checkpoint-appears": [at_rename("step-00000010", 1, after=True)],
    "before-the-best-is-set-aside": [at_rename(".best.glassformer-replaced", 1)],
    "between-the-two-renames-of-the-best": [at_rename("best", 2)],
    "removing-an-old-checkpoint": [while_removing_old],
    "writing-a-line": [while_logging],
}


def run_part(path: Path, *, prepare: Callable[[], int] | None, resume: bool) -> None:
    """Train in a forked child; it must be killed exactly if ``prepare`` arranged that."""
    child = os.fork()
    if child == 0:
        try:
            dies_at = -1 if prepare is None else prepare()
            model = ToyModel(dropout=0.3, tied=True)
            task = InterruptedTask(at=dies_at, number=signal.SIGKILL)
            train(model, task, CONFIG, path, resume=resume, progress=False)
        except BaseException as error:
            print(path.name, repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    expected = 0 if prepare is None else signal.SIGKILL
    assert status == expected, f"{path.name}: status {status}, expected {expected}"


def main() -> None:
    torch.set_num_threads(1)
    parent = Path(sys.argv[1])
    for name, deaths in SCENARIOS.items():
        for part, prepare in enumerate([*deaths, None]):
            run_part(parent / name, prepare=prepare, resume=part > 0)


if __name__ == "__main__":
    main()
