"""A task of one's own, from a JSON table of examples or from a small Python file.

**JSON**, ``mine.json``: sequences with the outputs that are wanted of them, and nothing else is asked::

    {"letters": "ABC", "cls": false, "readout": "argmax", "tolerance": 0.001,
     "examples": [{"input": "ABCC", "output": "ABCC"}, {"input": "CA", "output": "CA"}]}

An output is text (each position is to output that letter, one-hot), a list of numbers (one for each position), or a
list of lists of numbers. All but ``letters`` and ``examples`` may be left out.

**Python**, ``mine.py``: a function that says what is wanted of any sequence, so that all of them are asked::

    letters, max_len = "AB", 5

    def target(sequence):
        return [1 if letter == sequence[0] else -1 for letter in sequence]

``cls``, ``readout`` and ``tolerance`` may be set as well. Such a file can do anything on the computer that it is run
on, so it is run only when that is asked for.
"""

from __future__ import annotations

import runpy
import traceback
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from glassformer.errors import InputError, require
from glassformer.handcraft.sequences import SequenceSpace
from glassformer.handcraft.tasks import Readout, Task
from glassformer.handcraft.untrusted import parse_json, read_text
from glassformer.text import known_name, short, shown

MAX_EXAMPLES = 20_000
MAX_CELLS = 1 << 23
"""Most numbers in a table of examples, each counted at the longest one's length and for each key it may attend to."""

_LARGEST_PROGRAM = 1 << 20
_OPTIONS = ("cls", "readout", "tolerance")
_JSON_KEYS = ("letters", *_OPTIONS, "examples")


def read_task(path: Path | str, run_python: bool = False) -> Task:
    """The task that the file ``path`` describes; its name is the file's.

    Where the readout is left out, it is the sign of outputs with one number and the largest entry of longer ones. Where
    the tolerance is left out, only the readout counts.

    Args:
        path: Ends in .json or .py.
        run_python: Whether a .py file may be run, which can do anything that its reader may do on this computer.

    Raises:
        InputError: Another ending; a Python file without ``run_python``; whatever
            :func:`~glassformer.handcraft.weight_files.parse_json` refuses; a missing, unknown or ill-typed entry; a
            letter outside the alphabet; outputs whose number or length does not fit; an error in the Python file, with
            its line.
    """
    path = Path(path)
    kind = path.suffix.lower()
    if kind == ".json":
        return _read_table(path)
    require(kind == ".py", f"the task file {shown(path)}", "a .json table of examples or a .py file", "Rename it.")
    require(
        run_python,
        f"the task file {shown(path)}, a Python file, which can do anything on this computer",
        "permission to run it",
        "Read it, and if you trust it, pass --run-python (in Python: run_python=True). A JSON table is never run.",
    )
    return _run_program(path)


def _read_table(path: Path) -> Task:
    table = parse_json(path)
    require(isinstance(table, dict), f"{shown(path)}, which is no object", 'an object {"letters": ...}', "Mend it.")
    _check_keys(shown(path), table, _JSON_KEYS, required=("letters", "examples"))
    letters = _letters(path, table["letters"])
    has_cls = _has_cls(path, table)
    examples = table["examples"]
    require(
        isinstance(examples, list) and 1 <= len(examples) <= MAX_EXAMPLES,
        f"{shown(path)} with {len(examples) if isinstance(examples, list) else 'no list of'} examples",
        f"1 to {MAX_EXAMPLES:,}",
        'Write {"examples": [{"input": "AB", "output": "BA"}]}, say.',
    )
    inputs = [_input(f"{shown(path)}: example {number}", example) for number, example in enumerate(examples, start=1)]
    space = _space(path, letters, max(map(len, inputs)), has_cls)
    first = inputs[0]
    v_dim = _output(f"{shown(path)}: example 1", first, examples[0]["output"], letters).shape[1]
    cells = len(inputs) * space.num_positions**2 * v_dim
    require(
        cells <= MAX_CELLS,
        f"{shown(path)}: {len(inputs):,} examples of up to {space.max_len:,} letters with outputs of {v_dim:,} numbers",
        f"at most {MAX_CELLS:,} for examples x positions x positions x numbers, not {cells:,}",
        "Split the file.",
    )
    wanted: dict[str, Float[np.ndarray, "letter v_dim"]] = {}
    for number, (text, example) in enumerate(zip(inputs, examples, strict=True), start=1):
        place = f"{shown(path)}: example {number}"
        unknown = sorted(set(text) - set(letters))
        require(
            not unknown,
            f"{place} with {short(unknown[0]) if unknown else ''}",
            f"letters among {' '.join(letters)}",
            "Mend it.",
        )
        require(text not in wanted, f"{place}, {short(text)}, once more", "each input once", "Remove one of the two.")
        wanted[text] = _output(place, text, example["output"], letters)
        _require_same_length(shown(path), (first, v_dim), (text, wanted[text].shape[1]))

    def target(numbers: Int[np.ndarray, "sequence letter"]) -> Float[np.ndarray, "sequence letter v_dim"]:
        texts = [space.decode(row) for row in numbers]
        for text in texts:
            require(text in wanted, f"the sequence {short(text)}", "a listed example", "Add it to the task's file.")
        return np.stack([wanted[text] for text in texts])

    text_outputs = all(isinstance(example["output"], str) for example in examples)
    return _task(path, table, space, v_dim, target, text_outputs, tuple(inputs))


def _run_program(path: Path) -> Task:
    read_text(path, _LARGEST_PROGRAM)
    try:
        made = runpy.run_path(str(path), run_name="glassformer_task")
    except (Exception, SystemExit) as error:
        raise _in_program(path, error, "when it was run") from error
    for name in ("letters", "max_len", "target"):
        require(name in made, f"{shown(path)} without {name}", "letters, max_len and target", f"Define {name} there.")
    letters, longest, function = _letters(path, made["letters"]), made["max_len"], made["target"]
    require(callable(function), f"{shown(path)} with target = {short(repr(function))}", "a function", "Define it.")
    space = _space(path, letters, longest, _has_cls(path, made))

    def of(text: str) -> tuple[Any, Float[np.ndarray, "letter v_dim"]]:
        try:
            value = function(text)
        except (Exception, SystemExit) as error:
            raise _in_program(path, error, f"for target({text[:40]!r})") from error
        value = value.tolist() if isinstance(value, np.ndarray) else value
        return value, _output(f"{shown(path)}: target({text[:40]!r})", text, value, letters)

    example = letters[0]
    value, rows = of(example)
    v_dim = rows.shape[1]

    def target(numbers: Int[np.ndarray, "sequence letter"]) -> Float[np.ndarray, "sequence letter v_dim"]:
        texts = [space.decode(row) for row in numbers]
        outputs = [of(text)[1] for text in texts]
        for text, output in zip(texts, outputs, strict=True):
            _require_same_length(shown(path), (example, v_dim), (text, output.shape[1]))
        return np.stack(outputs)

    return _task(path, made, space, v_dim, target, isinstance(value, str), None)


def _task(
    path: Path,
    options: Mapping[str, Any],
    space: SequenceSpace,
    v_dim: int,
    target: Any,
    text_outputs: bool,
    examples: tuple[str, ...] | None,
) -> Task:
    readout: Readout | None = options.get("readout")
    if readout is None:
        readout = "sign" if v_dim == 1 and not text_outputs else "argmax"
    require(
        readout in ("argmax", "sign") and (readout == "sign") == (v_dim == 1),
        f"{shown(path)} with readout {short(str(readout))} for outputs of {v_dim} numbers",
        "sign for one number, argmax for more",
        "Choose the other, or change the outputs.",
    )
    tolerance = options.get("tolerance")
    valid = isinstance(tolerance, int | float) and not isinstance(tolerance, bool) and 0 < tolerance < 1e300
    require(
        tolerance is None or valid,
        f"{shown(path)} with tolerance {short(repr(tolerance))}",
        "a number above 0, or nothing if only the readout counts",
        "Write 0.001, for example.",
    )
    return Task(
        name=path.stem if path.stem.isprintable() else ascii(path.stem),
        summary=f"the task of {shown(path)}",
        space=space,
        v_dim=v_dim,
        target=target,
        readout=readout,
        tolerance=None if tolerance is None else float(tolerance),
        # Only of one-hot letters is it known, without asking for all outputs, how far the best entry stands above.
        decisive_error=0.5 if text_outputs and examples is None else 0.0,
        examples=examples,
    )


def _space(path: Path, letters: tuple[str, ...], max_len: Any, has_cls: bool) -> SequenceSpace:
    try:
        return SequenceSpace(letters, max_len, has_cls)
    except InputError as error:
        raise InputError(f"{shown(path)}: {error.got}", error.expected, error.fix) from error


def _letters(path: Path, letters: Any) -> tuple[str, ...]:
    require(
        isinstance(letters, str) or (isinstance(letters, Sequence) and all(isinstance(each, str) for each in letters)),
        f"{shown(path)} with letters {short(repr(letters))}",
        "a text of different letters",
        'Write "ABC", for example.',
    )
    return tuple(letters)


def _has_cls(path: Path, options: Mapping[str, Any]) -> bool:
    has_cls = options.get("cls", False)
    require(isinstance(has_cls, bool), f"{shown(path)} with cls {short(repr(has_cls))}", "true or false", "Mend it.")
    return bool(has_cls)


def _input(place: str, example: Any) -> str:
    require(
        isinstance(example, dict), f"{place}, which is no object", 'an object {"input": ..., "output": ...}', "Mend it."
    )
    _check_keys(place, example, ("input", "output"), required=("input", "output"))
    text = example["input"]
    require(
        isinstance(text, str) and text != "",
        f"{place} with the input {short(repr(text))}",
        "a text of one letter or more",
        'Write "ABC", for example.',
    )
    return str(text)


def _output(place: str, text: str, output: Any, letters: tuple[str, ...]) -> Float[np.ndarray, "letter v_dim"]:
    """The wanted vectors for the positions of ``text``, from whichever of the three ways they are written in."""
    require(
        isinstance(output, str | list | tuple) and len(output) == len(text),
        f"{place} with the output {short(repr(output))} for the input {short(text)}",
        f"a text or a list as long as the input: {len(text)}",
        "Give one output for each letter; none for CLS.",
    )
    if isinstance(output, str):
        for letter in output:
            require(
                letter in letters,
                f"{place} with the output {short(output)}",
                f"letters among {' '.join(letters)}",
                "Mend it.",
            )
        return np.eye(len(letters))[[letters.index(letter) for letter in output]]
    rows = [list(each) if isinstance(each, list | tuple) else [each] for each in output]
    try:
        numbers = all(isinstance(each, Real) and not isinstance(each, bool) for row in rows for each in row)
        made = np.array(rows, dtype=float) if numbers and all(rows) else np.empty(0)
    except (ValueError, OverflowError):  # of different lengths, or above every float
        made = np.empty(0)
    require(
        made.ndim == 2 and bool(np.isfinite(made).all()),
        f"{place} with the output {short(repr(output))}",
        "finite numbers, or lists of equally many",
        "Write [1, -1] or [[1, 0], [0, 1]], for example.",
    )
    return made


def _require_same_length(place: str, first: tuple[str, int], other: tuple[str, int]) -> None:
    require(
        first[1] == other[1],
        f"{place} with outputs of {first[1]} numbers for {short(first[0])} and {other[1]} for {short(other[0])}",
        "outputs of one length",
        "Give all positions of all sequences equally long outputs.",
    )


def _check_keys(place: str, table: Mapping[str, Any], known: Sequence[str], required: Sequence[str]) -> None:
    for key in table:
        require(key in known, f"{place} with {short(key)}", f"the entries {', '.join(known)}", known_name(key, known))
    for key in required:
        require(key in table, f"{place} without {key!r}", f"the entries {', '.join(required)}", f"Add {key!r}.")


def _in_program(path: Path, error: BaseException, when: str) -> InputError:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    line = lines[-1] if lines else None
    if isinstance(error, SyntaxError) and error.filename == str(path):
        line = error.lineno
    where = f", line {line}" if line is not None else ""
    what = " ".join(f"{type(error).__name__}: {error}".split())
    what = what[:200] if what.isprintable() else ascii(what[:200])
    return InputError(f"{shown(path)}{where}: {what} {when}", "a task file that runs", "Mend it there.")
