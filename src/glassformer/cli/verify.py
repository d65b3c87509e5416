"""``glassformer verify``: does a head in a file solve a task? The proof, or the first sequence on which it does not."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import numpy as np
import torch
import tyro
from tyro.conf import FlagCreatePairsOff, Positional

from glassformer.cli.terminal import draw_attention_map, draw_outputs, needs_plain, say, terminal_width
from glassformer.errors import InputError, require, require_positive
from glassformer.files import write_text
from glassformer.handcraft.certificate import Certificate, Failure
from glassformer.handcraft.single_head import HeadWeights, NumpyHead
from glassformer.handcraft.task_files import read_task
from glassformer.handcraft.tasks import TASKS, Task
from glassformer.handcraft.verify import verify
from glassformer.handcraft.weight_files import read_head

Written = TypeVar("Written")

TaskName = Literal[
    "identity",
    "copy_first",
    "unique",
    "previous_token",
    "last_token",
    "majority_letter",
    "occurs_earlier",
    "parity",
]
"""The built-in tasks by name; the keys of :data:`~glassformer.handcraft.tasks.TASKS`."""


@dataclass(frozen=True)
class VerifyFlags:
    """Check whether an attention head solves a task, on every sequence.

    Exit status 0: proved. 1: refuted, and the first failing sequence is shown with its attention; or undecided. 2: the
    weights or the task cannot be used.

    WEIGHTS is one of
      head.json    {"Km": [[1, 0], [0, 1]], "Qm": ..., "Vm": ..., "pos": ...}
      head.npz     arrays of these names, as numpy.savez writes them
      directory    with Km.csv, Qm.csv, Vm.csv and pos.csv: numbers between commas, no header

    pos may be left out. Km, Qm and Vm have a row for each letter, then one for CLS if the task has it, then one
    for each column of pos; pos has a row for each position, CLS's first. Vm has a column for each number of an output.

    The task is one of
      --task NAME           a built-in one, for any letters and length
      --task-file my.json   a table of examples, and these alone are checked:
                            {"letters": "ABC", "examples": [{"input": "CA", "output": "CC"}]}
                            An output is text, a list of numbers or a list of lists; "cls" (true or false), "readout"
                            ("argmax" or "sign") and "tolerance" may be added.
      --task-file my.py     a Python file that defines letters, max_len and target(sequence), which returns such an
                            output, so that every sequence up to max_len is checked; also cls, readout, tolerance.

    A Python file can do anything on this computer: read, change or delete files, use the network. So it is run only
    when you ask for it with --run-python; read it first if it is not yours. A table of examples is never run.

    Raises:
        InputError: Not exactly one task; a flag that does not go with it; a number out of its range.
    """

    weights: Annotated[Positional[Path], tyro.conf.arg(metavar="WEIGHTS")]
    """The head: a .json or .npz file, or a directory of .csv files."""

    task: TaskName | None = None
    """A built-in task."""

    letters: Annotated[str | None, tyro.conf.arg(metavar="ABC")] = None
    """Alphabet of the built-in task. None: its own, mostly ABC."""

    max_len: int | None = None
    """Longest sequence of the built-in task, CLS not counted. None: its own, 4 to 6."""

    task_file: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """A task of your own, in a .json or .py file."""

    run_python: FlagCreatePairsOff[bool] = False
    """Run the task file if it is a Python file, which can do anything on this computer."""

    tolerance: float | Literal["task", "readout"] = "task"
    """Largest error of an output. readout: only the largest entry, or the sign, has to be right. task: what it says."""

    float32: FlagCreatePairsOff[bool] = False
    """Run the head in float32 instead of float64."""

    limit: int = 1_000_000
    """Run all sequences if they are at most this many; beyond that a bound decides, or nothing does."""

    figure: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Draw the attention of the failing sequence (if all is well, of the one with the largest error) into DIR."""

    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write the certificate as JSON as well."""

    def __post_init__(self) -> None:
        given = [name for name in ("task", "task_file") if getattr(self, name) is not None]
        require(
            len(given) == 1,
            "both --task and --task-file" if given else "no task",
            "one of --task and --task-file",
            "Pass --task unique, for example; 'glassformer verify --help' lists the tasks.",
        )
        require(
            self.task is not None or (self.letters is None and self.max_len is None),
            "--letters or --max-len with --task-file",
            "letters and length in the file itself",
            "Leave these flags away.",
        )
        require(
            not self.run_python or self.task_file is not None,
            "--run-python without --task-file",
            "a Python task file to run",
            "Leave it away, or add --task-file FILE.",
        )
        require_positive(limit=self.limit)
        require(
            isinstance(self.tolerance, str) or (self.tolerance > 0 and math.isfinite(self.tolerance)),
            f"--tolerance {self.tolerance}",
            "a number above 0, 'task' or 'readout'",
            "Pass 1e-3, for example.",
        )
        for flag, path, taken in (
            ("--json", self.json, self.json is not None and self.json.is_dir()),
            ("--figure", self.figure, self.figure is not None and self.figure.exists() and not self.figure.is_dir()),
        ):
            require(
                not taken,
                f"{flag} {path}, which is a {'directory' if flag == '--json' else 'file'}",
                f"a {'file' if flag == '--json' else 'directory'}, new or old",
                "Choose another name.",
            )
        inputs = [path.resolve() for path in (self.weights, self.task_file) if path is not None]
        require(
            self.json is None or self.json.resolve() not in inputs,
            f"--json {self.json}, which is read as well",
            "another file to write to",
            "Choose another name.",
        )


@dataclass(frozen=True)
class Shown:
    """One sequence as it is drawn.

    Attributes:
        names: Tokens of its positions, CLS included.
        attention: The head's weights, ``[query, key]``.
        text: The map and the outputs as text.
        title: For a figure.
    """

    names: list[str]
    attention: Any
    text: str
    title: str


def built_in(name: str, letters: str | None, max_len: int | None) -> Task:
    """The built-in task of this name; ``None`` leaves its own letters or length.

    Raises:
        InputError: Letters or a length that make no alphabet or sequences.
    """
    chosen = {"letters": letters, "max_len": max_len}
    return TASKS[name](**{key: value for key, value in chosen.items() if value is not None})


def show(head: HeadWeights, task: Task, failure: Failure, tolerance: float | None, width: int, plain: bool) -> Shown:
    """The sequence of ``failure``: its attention map with the query marked, and all its outputs beside the wanted ones.

    Args:
        head: The weights; the map is computed in float64.
        task: What the sequence belongs to.
        failure: An output of it, from a certificate.
        tolerance: Largest error that counts as right; None if only the readout counts.
        width: Columns of the terminal.
        plain: Whether to draw with ASCII alone.
    """
    space = task.space
    cases = task.cases(space.block([space.encode(failure.sequence)]))
    trace = NumpyHead(head).trace(space.one_hot(cases.block)[0])
    first = int(space.has_cls)
    names = [space.token_names[token] for token in cases.block.tokens[0]]
    numbered = [str(name) if i < first else f"{i - first} {name}" for i, name in enumerate(names)]
    got, wanted = trace.output[first:].copy(), cases.target[0, first:]
    # In float32 the output that failed may differ from the one in float64.
    got[failure.position] = failure.output
    right = task.is_right(got, wanted) if tolerance is None else np.abs(got - wanted).max(axis=1) <= tolerance
    attention = draw_attention_map(trace.weights, numbered, names, failure.position + first, width=width, plain=plain)
    outputs = draw_outputs(numbered[first:], wanted, got, right, failure.position, width=width)
    title = f"{failure.sequence[:40]}, position {failure.position}"
    return Shown(names, trace.weights, f"{attention}\n\n{outputs}", title)


def run(flags: VerifyFlags) -> Certificate:
    """Verify, print the certificate and what refutes it, and write the figure and the JSON that were asked for.

    Raises:
        InputError: The weights or the task cannot be read, or do not fit one another.
    """
    head = read_head(flags.weights)
    if flags.task_file is not None:
        task = read_task(flags.task_file, flags.run_python)
    else:
        task = built_in(str(flags.task), flags.letters, flags.max_len)
    tolerance = (
        {"task": task.tolerance, "readout": None}[flags.tolerance]
        if isinstance(flags.tolerance, str)
        else flags.tolerance
    )
    dtype = torch.float32 if flags.float32 else torch.float64
    try:
        certificate = verify(head, task, tolerance=tolerance, dtype=dtype, limit=flags.limit)
    except InputError as error:
        raise InputError(f"{flags.weights} with {error.got}", error.expected, error.fix) from error
    say(str(certificate))
    failure = certificate.counterexample
    chosen = failure or (certificate.worst if flags.figure is not None else None)
    shown = show(head, task, chosen, tolerance, terminal_width(), needs_plain()) if chosen is not None else None
    if failure is not None and shown is not None:
        say(f"\n{failure.sequence}, with the failing position marked:\n\n{shown.text}")
    if certificate.verdict == "undecided":
        say(f"\n{_advice(certificate)}")
    if flags.figure is not None and shown is not None:
        name = "counterexample" if failure is not None else "largest-error"
        for path in _written(flags.figure, lambda directory: _draw(shown, directory, name)):
            say(f"figure: {path}")
    if flags.json is not None:
        text = json.dumps(certificate.to_json(), indent=2, allow_nan=False) + "\n"
        _written(flags.json, lambda path: write_text(path, text))
        say(f"certificate: {flags.json}")
    return certificate


def main(arguments: Sequence[str], prog: str) -> int:
    """Parse ``arguments``, verify, and return the exit status: 0 if the head is proved to solve the task, else 1."""
    flags = tyro.cli(VerifyFlags, prog=prog, args=arguments)
    return 0 if run(flags).holds else 1


def _advice(certificate: Certificate) -> str:
    if certificate.rests_on == "samples":
        return f"To run them all, pass --limit {certificate.num_possible} or more, or choose shorter sequences."
    return "The bound is above what is allowed: sharper scores (Qm times a factor) make it smaller."


def _draw(shown: Shown, directory: Path, name: str) -> list[Path]:
    # matplotlib takes a second to load, which only a figure is worth.
    from glassformer.observe.figures.single_heads import draw_attention
    from glassformer.observe.figures.style import save_figure

    return save_figure(draw_attention(shown.attention, shown.names, shown.names, shown.title), directory, name)


def _written(path: Path, write: Callable[[Path], Written]) -> Written:
    """What ``write`` returns. A place that cannot be written to is bad input, with its own exit status."""
    try:
        return write(path)
    except OSError as error:
        raise InputError(f"{path} ({error.strerror})", "a place that can be written to", "Choose another.") from error
