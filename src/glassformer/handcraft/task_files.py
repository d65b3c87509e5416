"""User-defined tasks, from a JSON table of examples or from a small Python file.

**JSON**, ``mine.json``: sequences and their target outputs; only these are checked::

    {"letters": "ABC", "cls": false, "readout": "argmax", "tolerance": 0.001,
     "examples": [{"input": "ABCC", "output": "ABCC"}, {"input": "CA", "output": "CA"}]}

An output is text (each position outputs that letter, one-hot), a list of numbers (one for each
position), or a list of lists of numbers. Only ``letters`` and ``examples`` are required.

**Python**, ``mine.py``: a function that returns the target output of any sequence, so that all
sequences are checked::

    letters, max_len = "AB", 5

    def target(sequence):
        return [1 if letter == sequence[0] else -1 for letter in sequence]

``cls``, ``readout`` and ``tolerance`` are optional as well. Such a file can do anything on the
computer that it is run on, so it is run only on request.
"""

from numbers import Real
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from jaxtyping import Float, Int
from pydantic import Field
from typing_extensions import TypedDict

from glassformer.config import Positive, config
from glassformer.errors import InputError
from glassformer.files import local_path
from glassformer.handcraft.sequences import SequenceSpace
from glassformer.handcraft.tasks import Readout, Target, Task
from glassformer.text import short, shown
from glassformer.untrusted import error_in, in_file, parse_json, require_permission, run_python_file

Rows = Float[np.ndarray, "letter v_dim"]

MAX_EXAMPLES = 20_000
MAX_CELLS = 1 << 23
"""Limit on examples x positions x positions x numbers of an output.

Each example counts with the longest length.
"""


class _Example(TypedDict):
    input: Annotated[str, Field(min_length=1)]
    output: Any


@config
class TaskFile:
    """The settings of a table or a program; only tables have examples."""

    letters: str | list[str] | tuple[str, ...]
    examples: Annotated[list[_Example] | None, Field(min_length=1, max_length=MAX_EXAMPLES)] = None
    cls: bool = False
    readout: Readout | None = None
    tolerance: Positive | None = None


def read_task(path: Path | str, run_python: bool = False) -> Task:
    """Read the task that the file ``path`` describes; its name is the file's.

    Without ``readout``, it is the sign of outputs with one number and the largest entry of longer
    ones. Without ``tolerance``, only the readout counts.

    Args:
        path: Ends in .json or .py.
        run_python: True if a .py file may be run, with all permissions of the current user.
    """
    path = local_path(path)
    kind = path.suffix.lower()
    if kind not in (".json", ".py"):
        raise InputError(
            got=f"the task file {shown(path)}",
            expected="a .json table of examples or a .py file",
            fix="Rename it.",
        )
    if kind == ".py":
        require_permission(path, run_python)
        settings, space, v_dim, target = _run_program(path)
    else:
        settings, space, v_dim, target = _read_table(path)
    readout: Readout = "sign" if v_dim == 1 else "argmax"
    examples = None
    if settings.examples:
        examples = tuple(example["input"] for example in settings.examples)
    with in_file(path):
        if settings.readout not in (None, readout):
            raise InputError(
                got=f"readout = {settings.readout!r} for outputs of {v_dim} numbers",
                expected="sign for one number, argmax for more",
                fix="Use the other readout, or change the outputs.",
            )
    return Task(
        name=shown(Path(path.stem)),
        summary=f"the task of {shown(path)}",
        space=space,
        v_dim=v_dim,
        target=target,
        readout=readout,
        tolerance=settings.tolerance,
        # The lead of an output's largest entry is not known without computing all outputs.
        decisive_error=0.0,
        examples=examples,
    )


def _read_table(path: Path) -> tuple[TaskFile, SequenceSpace, int, Target]:
    """Return the settings, sequences, output length and targets of a JSON table."""
    content = parse_json(path)
    with in_file(path):
        if not isinstance(content, dict):
            raise InputError(
                got="JSON that is not an object",
                expected='an object {"letters": ...}',
                fix="Add the names.",
            )
        table = TaskFile(**content)
        examples = table.examples or []
        if not examples:
            raise InputError(
                got="no examples",
                expected="letters and examples",
                fix="Add examples.",
            )
        inputs = [example["input"] for example in examples]
        space = SequenceSpace(tuple(table.letters), max(map(len, inputs)), table.cls)
        v_dim = _rows(inputs[0], examples[0]["output"], space).shape[1]
        cells = len(inputs) * space.num_positions**2 * v_dim
        if cells > MAX_CELLS:
            raise InputError(
                got=(
                    f"{len(inputs):,} examples of up to {space.max_len:,} letters with outputs of "
                    f"{v_dim:,} numbers"
                ),
                expected=(
                    f"at most {MAX_CELLS:,} for examples x positions x positions x numbers, not "
                    f"{cells:,}"
                ),
                fix="Split the file.",
            )
        outputs: dict[str, Rows] = {}
        for example in examples:
            text = example["input"]
            space.encode(text)
            if text in outputs:
                raise InputError(
                    got=f"the input {short(text)} twice",
                    expected="each input once",
                    fix="Remove one of them.",
                )
            outputs[text] = _rows(text, example["output"], space, v_dim)

    def target(
        numbers: Int[np.ndarray, "sequence letter"],
    ) -> Float[np.ndarray, "sequence letter v_dim"]:
        texts = [space.decode(row) for row in numbers]
        for text in texts:
            if text not in outputs:
                raise InputError(
                    got=f"the sequence {short(text)}",
                    expected="a listed example",
                    fix="Add it to the task's file.",
                )
        return np.stack([outputs[text] for text in texts])

    return table, space, v_dim, target


def _run_program(path: Path) -> tuple[TaskFile, SequenceSpace, int, Target]:
    """Return the settings, sequences, output length and targets of a Python file."""
    definitions = run_python_file(path, ("letters", "max_len", "target"))
    names = ("letters", "cls", "readout", "tolerance")
    with in_file(path):
        settings = TaskFile(**{name: definitions[name] for name in names if name in definitions})
        function = definitions["target"]
        if not callable(function):
            raise InputError(
                got=f"target = {short(repr(function))}",
                expected="a function",
                fix="Define target().",
            )
        space = SequenceSpace(tuple(settings.letters), definitions["max_len"], settings.cls)

    def output_of(text: str) -> Any:
        try:
            value = function(text)
        except (Exception, SystemExit) as error:
            raise error_in(path, error, f"for target({text[:40]!r})") from error
        if isinstance(value, np.ndarray):
            return value.tolist()
        return value

    value = output_of(space.letters[0])
    with in_file(path):
        v_dim = _rows(space.letters[0], value, space).shape[1]

    def target(
        numbers: Int[np.ndarray, "sequence letter"],
    ) -> Float[np.ndarray, "sequence letter v_dim"]:
        outputs = [(text, output_of(text)) for text in map(space.decode, numbers)]
        with in_file(path):
            return np.stack([_rows(text, output, space, v_dim) for text, output in outputs])

    return settings, space, v_dim, target


def _rows(text: str, output: Any, space: SequenceSpace, v_dim: int | None = None) -> Rows:
    """Return the target vectors for the positions of a text, from any form of ``output``."""
    description = f"the output {short(repr(output))} for the input {short(text)}"
    if not isinstance(output, str | list | tuple) or len(output) != len(text):
        raise InputError(
            got=description,
            expected=f"a text or a list as long as the input: {len(text)}",
            fix="Give one output for each letter; none for CLS.",
        )
    if isinstance(output, str):
        vectors = np.eye(len(space.letters))[space.encode(output)]
    else:
        vectors = _vectors(output)
    if (
        vectors.ndim != 2
        or vectors.size == 0
        or not bool(np.isfinite(vectors).all())
        or v_dim not in (None, vectors.shape[1])
    ):
        as_first = ""
        if v_dim:
            as_first = f"; {v_dim} for each letter, as in the first output"
        raise InputError(
            got=description,
            expected=f"finite numbers, or lists of them{as_first}",
            fix="Write [1, -1] or [[1, 0], [0, 1]], for example.",
        )
    return vectors


def _vectors(output: list[Any] | tuple[Any, ...]) -> Float[np.ndarray, "..."]:
    """Return numbers, or lists of numbers, as vectors; an empty array for anything else."""
    rows = []
    for vector in output:
        row = list(vector) if isinstance(vector, list | tuple) else [vector]
        if not all(isinstance(number, Real) and not isinstance(number, bool) for number in row):
            return np.empty(0)
        rows.append(row)
    try:
        return np.array(rows, dtype=float)
    except (ValueError, OverflowError):  # rows of different lengths, or numbers above every float
        return np.empty(0)
