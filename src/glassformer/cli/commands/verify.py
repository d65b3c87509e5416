"""``glassformer verify``: prove that a head solves a task, or print a sequence where it fails."""

import json

import numpy as np
import torch
from jaxtyping import Float

from glassformer.cli import writing
from glassformer.cli.flags import VerifyFlags
from glassformer.cli.terminal import say
from glassformer.errors import InputError
from glassformer.files import any_file, no_file, require_absent, write_text
from glassformer.handcraft.single_head import HeadWeights, NumpyHead
from glassformer.handcraft.task_files import read_task
from glassformer.handcraft.tasks import TASKS, Task
from glassformer.handcraft.verification import Certificate, Failure, verify
from glassformer.handcraft.weight_files import read_head

MOST_ROWS = 24
MOST_KEYS = 8
LONGEST = 60
"""Most rows and keys of the table, and the longest text of an output."""


def built_in(name: str, letters: str | None, max_len: int | None) -> Task:
    """Return the built-in task of this name; ``None`` keeps its own letters or length."""
    chosen = {"letters": letters, "max_len": max_len}
    return TASKS[name](**{key: value for key, value in chosen.items() if value is not None})


def show(head: HeadWeights, task: Task, failure: Failure, tolerance: float | None) -> str:
    """Return the failing sequence as text: outputs, expected ones, and the position's attention.

    Attention is computed in float64. Without a ``tolerance``, only the readout of an output has to
    be right.
    """
    space = task.space
    cases = task.cases(space.block([space.encode(failure.sequence)]))
    trace = NumpyHead(head).trace(space.one_hot(cases.block)[0])
    first = int(space.has_cls)
    names = enumerate(space.token_names[token] for token in cases.block.tokens[0])
    numbered = [f"{i - first} {name}" if i >= first else str(name) for i, name in names]
    outputs = trace.output[first:].copy()
    targets = cases.target[0, first:]
    # The failing output was computed in float32 if so requested; the trace is in float64.
    outputs[failure.position] = failure.output
    error = np.abs(outputs - targets).max(axis=1)
    right = task.is_right(outputs, targets) if tolerance is None else error <= tolerance
    marked = failure.position
    first_row = max(0, min(marked - MOST_ROWS // 2, len(outputs) - MOST_ROWS))
    rows = range(first_row, min(len(outputs), first_row + MOST_ROWS))
    target_texts = [_numbers(targets[row]) for row in rows]
    output_texts = [_numbers(outputs[row]) for row in rows]
    left = max(6, *map(len, target_texts))
    middle = max(6, *map(len, output_texts))
    margin = max(len(name) for name in numbered)
    lines = [f"{'':{margin + 2}}  {'wanted':<{left}}  {'got':<{middle}}  largest error"]
    for row, target, output in zip(rows, target_texts, output_texts, strict=True):
        mark = "> " if row == marked else "  "
        end = "" if right[row] else "  wrong"
        name = numbered[row + first]
        lines.append(
            f"{mark}{name:>{margin}}  {target:<{left}}  {output:<{middle}}  {error[row]:.2g}{end}"
        )
    if len(rows) < len(outputs):
        lines.append(f"  listed: {rows[0] + 1} to {rows[-1] + 1} of {len(outputs)}")
    weights = trace.weights[marked + first]
    strongest = [
        key for key in np.argsort(-weights, kind="stable")[:MOST_KEYS] if weights[key] >= 0.005
    ]
    lines.append(
        f"\nattention of {numbered[marked + first]}: "
        + ", ".join(f"{numbered[key]} {weights[key]:.0%}" for key in strongest)
    )
    return "\n".join(lines)


def _numbers(row: Float[np.ndarray, " v_dim"]) -> str:
    numbers = [f"{number + 0.0:.4g}" if abs(number) >= 5e-5 else "0" for number in row.tolist()]
    text = " ".join(numbers)
    if len(text) > LONGEST:
        return f"{text[: LONGEST - 3]}..."
    return text


def _advice(certificate: Certificate) -> str:
    """Return how to decide an undecided verdict."""
    if certificate.rests_on == "samples":
        return (
            f"To run them all, pass --limit {certificate.num_possible} or more, or choose shorter "
            "sequences."
        )
    if certificate.rests_on == "the bound":
        return (
            "The bound is above the tolerance: sharper scores (Qm times a factor) lower it, unless "
            "it is rounding."
        )
    return (
        "Rounding decides: another order of sums may give another verdict. Move these outputs away "
        "from there."
    )


def main(flags: VerifyFlags) -> int:
    """Verify, print the certificate and a counterexample, and write the requested JSON.

    Returns exit status 0 if the head is proved to solve the task, else 1: it fails or is undecided.
    """
    if flags.json is not None:
        require_absent(flags.json, flags.overwrite)
    head = read_head(flags.weights)
    if flags.task_file is not None:
        task = read_task(flags.task_file, flags.run_python)
    else:
        task = built_in(str(flags.task), flags.letters, flags.max_len)
    tolerance: float | None
    if flags.tolerance == "task":
        tolerance = task.tolerance
    elif flags.tolerance == "readout":
        tolerance = None
    else:
        tolerance = flags.tolerance
    dtype = torch.float64
    if flags.float32:
        dtype = torch.float32
    try:
        certificate = verify(head, task, tolerance=tolerance, dtype=dtype, limit=flags.limit)
    except InputError as error:
        raise InputError(f"{flags.weights} with {error.got}", error.expected, error.fix) from error
    say(str(certificate))
    failure = certificate.counterexample
    if failure is not None:
        say(
            f"\n{failure.sequence}, with the failing position marked:\n\n"
            f"{show(head, task, failure, tolerance)}"
        )
    if certificate.verdict == "undecided":
        say(f"\n{_advice(certificate)}")
    if flags.json is not None:
        text = json.dumps(certificate.to_json(), indent=2, allow_nan=False) + "\n"
        with writing(flags.json):
            write_text(flags.json, text, replaces=any_file if flags.overwrite else no_file)
        say(f"certificate: {flags.json}")
    return 0 if certificate.holds else 1
