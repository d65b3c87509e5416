"""Verify a head on a task: by running every sequence if there are few enough, else by a bound on the error."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.errors import InputError, require
from glassformer.handcraft import circuits
from glassformer.handcraft.bounds import Bound, PlaceTables, bound_of_pairs, bound_of_queries
from glassformer.handcraft.certificate import Certificate, Failure, RestsOn, Verdict
from glassformer.handcraft.single_head import HeadWeights, run_head
from glassformer.handcraft.tasks import Cases, Queries, Task, queries_of

_SCORES_AT_ONCE = 1 << 19
_SHORT_SEQUENCES = 20_000
_SAMPLES = 2_000
_SAMPLED_SCORES = 1 << 26
_SAME_TARGET = 1e-9
_DTYPES = (torch.float64, torch.float32)


def verify(
    head: HeadWeights,
    task: Task,
    *,
    tolerance: float | Literal["task"] | None = "task",
    dtype: torch.dtype = torch.float64,
    limit: int = 1_000_000,
) -> Certificate:
    """Prove that ``head`` solves ``task``, find a sequence on which it does not, or return "undecided".

    Up to ``limit`` sequences are all run, in batches, shorter ones first. Beyond that, all short ones, regular ones of
    every length and up to 2,000 random ones are run in search of a counterexample, and
    :func:`~glassformer.handcraft.bounds.bound_of_pairs` decides: it proves, for every sequence, that the head does what
    the task's description says. That the description matches the target is checked only on the sequences that are run.

    Args:
        head: The weights.
        task: The task.
        tolerance: The largest error of an output that counts as solved. With ``None`` only the readout has to be
            correct (largest entry, or sign). ``"task"`` takes the task's own.
        dtype: Number format in which the head is run: float64 or float32.
        limit: Largest number of sequences that are all run.

    Raises:
        InputError: Shapes that do not fit the task, weights whose scores or values could overflow ``dtype``, a
            tolerance that is not above 0, or another dtype.
    """
    tolerance = task.tolerance if tolerance == "task" else tolerance
    require(
        tolerance is None or (tolerance > 0 and math.isfinite(tolerance)),
        f"tolerance = {tolerance}",
        "a number above 0, or None",
        "Pass 1e-3, for example.",
    )
    require(dtype in _DTYPES, f"dtype = {dtype}", "torch.float64 or torch.float32", "Choose one of these.")
    require_fits(head, task)
    matrices = {name: torch.from_numpy(matrix.copy()).to(dtype) for name, matrix in head.matrices.items()}
    tables = PlaceTables.of(_rounded(head, matrices, dtype), task.space, torch.finfo(dtype).eps / 2)
    most = torch.finfo(dtype).max / 4
    for what, size, matrices_to_scale in (
        ("scores", tables.largest_score, "Km or Qm"),
        ("values", tables.largest_value, "Vm"),
    ):
        require(
            size < most,
            f"{what} of up to {size:.3g}",
            f"{what} that {str(dtype).removeprefix('torch.')} can hold, below {most:.2g}",
            f"Scale {matrices_to_scale} down.",
        )
    tally = _Tally(task, matrices, tables, tolerance)
    if task.examples is not None or task.count <= limit:
        for cases in task.case_blocks(_block_size(task)):
            tally.add(cases)
        return tally.certificate(
            "every sequence" if task.examples is None else "the listed examples", Bound(tally.margin, tally.bound)
        )
    for cases in _search(task):
        tally.add(cases)
    if task.description is None or not tally.as_described:
        return tally.certificate("samples", Bound(math.inf, math.inf))
    return tally.certificate("the bound", bound_of_pairs(tables, task.description))


def _search(task: Task) -> Iterator[Cases]:
    """Candidates for a counterexample: all short sequences, regular ones of every length, random ones."""
    space, per_block = task.space, _block_size(task)
    yield from task.case_blocks(per_block, space.longest_listable(_SHORT_SEQUENCES))
    square = space.num_positions**2
    regular = space.regular(max(4, min(64, _SAMPLED_SCORES // (2 * len(space.letters) * square))))
    for start in range(0, len(regular), per_block):
        yield task.cases(space.block(regular[start : start + per_block]))
    samples = min(_SAMPLES, max(20, _SAMPLED_SCORES // square))
    for number in range(-(-samples // per_block)):
        yield task.random_cases(min(per_block, samples - number * per_block), seed=number)


def require_fits(head: HeadWeights, task: Task) -> None:
    """Check that the matrices of ``head`` have the shapes that ``task`` needs.

    Raises:
        InputError: Naming the matrix, its shape and the needed one.
    """
    circuits.require_fits(head, task.space)
    require(
        head.v_dim == task.v_dim,
        f"Vm of shape {list(head.Vm.shape)}",
        f"{task.v_dim} columns, the length of an output of the task {task.name!r}",
        "Give Vm one column for each number of an output.",
    )


@dataclass
class _Tally:
    """Statistics of the sequences that have been run."""

    task: Task
    matrices: dict[str, Tensor]
    tables: PlaceTables
    tolerance: float | None
    num_sequences: int = 0
    num_outputs: int = 0
    num_right: int = 0
    largest_error: float = -math.inf
    worst: Failure | None = None
    first: Failure | None = None
    margin: float = math.inf
    bound: float = 0.0
    as_described: bool = True

    def add(self, cases: Cases) -> None:
        """Run the sequences of ``cases``."""
        block, counted, target = cases[:3]
        output = self._run(cases)
        # numpy is slow along a short last axis.
        by_entry = np.ascontiguousarray(np.abs(output - target).transpose(2, 0, 1))
        error = by_entry.max(axis=0)
        # NaN counts as an infinite error: comparisons with it are False.
        error = np.where(counted, np.where(np.isnan(error), np.inf, error), -np.inf)
        # Outputs closer than that are certain to be read correctly.
        right = error < self.task.decisive_error
        doubtful = counted & ~right
        right[doubtful] = self.task.is_right(output[doubtful], target[doubtful])
        failing = counted & ~(right if self.tolerance is None else error <= self.tolerance)
        self.num_sequences += len(block.tokens)
        self.num_outputs += int(counted.sum())
        self.num_right += int((right & counted).sum())
        if error.max() > self.largest_error:
            self.largest_error = float(error.max())
            self.worst = self._failure(cases, output, int(error.argmax()))
        if self.first is None and failing.any():
            self.first = self._failure(cases, output, int(failing.argmax()))
        found = bound_of_queries(self.tables, cases.queries or self._queries_by_value(cases))
        self.margin, self.bound = min(self.margin, found.margin), float(np.maximum(self.bound, found.error))
        self.as_described &= cases.as_described

    def certificate(self, rests_on: RestsOn, known: Bound) -> Certificate:
        """The verdict, given the bound ``known`` for all sequences."""
        if self.tolerance is not None:
            criterion = f"every error at most {self.tolerance:g}"
        else:
            criterion = "every sign right" if self.task.readout == "sign" else "every largest entry right"
        verdict: Verdict = "holds"
        if self.first is not None:
            verdict = "fails"
        elif rests_on in ("the bound", "samples"):
            decisive = known.error < self.task.decisive_error
            proved = decisive if self.tolerance is None else known.error <= self.tolerance
            verdict = "holds" if proved else "undecided"
        return Certificate(
            task=self.task.name,
            verdict=verdict,
            rests_on=rests_on,
            criterion=criterion,
            dtype=str(self.matrices["Km"].dtype).removeprefix("torch."),
            num_checked=self.num_sequences,
            num_possible=self.task.count,
            num_outputs=self.num_outputs,
            num_right=self.num_right,
            largest_error=self.largest_error,
            worst=self.worst,
            margin=known.margin if math.isfinite(known.margin) else None,
            bound=known.error,
            counterexample=self.first,
        )

    def _run(self, cases: Cases) -> Float[np.ndarray, "sequence position v_dim"]:
        dtype = self.matrices["Km"].dtype
        inputs = torch.from_numpy(cases.inputs).to(dtype)
        with torch.inference_mode():
            return run_head(inputs, **self.matrices, real=torch.from_numpy(cases.block.real)).double().numpy()

    def _queries_by_value(self, cases: Cases) -> Queries:
        """The queries without a description: wanted are the keys whose value is the target, or all if there is none."""
        space, block = self.task.space, cases.block
        values, real = self.tables.values[space.place_of(block)], block.real[:, None, :]
        distance = np.abs(values[:, None, :, :] - cases.target[:, :, None, :]).max(axis=3)
        matches = (distance <= (self.tolerance or _SAME_TARGET)) & real
        wanted = np.where(matches.any(axis=2, keepdims=True), matches, real)
        return queries_of(space, block, cases.counted, wanted, cases.target)

    def _failure(self, cases: Cases, output: Float[np.ndarray, "sequence position v_dim"], index: int) -> Failure:
        row, position = divmod(index, output.shape[1])
        first = int(self.task.space.has_cls)
        letters = cases.block.tokens[row, first:][cases.block.real[row, first:]]
        got, wanted = output[row, position].tolist(), cases.target[row, position].tolist()
        error = float(np.abs(output[row, position] - cases.target[row, position]).max())
        return Failure(self.task.space.decode(letters), position - first, tuple(got), tuple(wanted), error)


def _rounded(head: HeadWeights, matrices: dict[str, Tensor], dtype: torch.dtype) -> HeadWeights:
    """The weights as they are after rounding to ``dtype``."""
    if dtype == torch.float64:
        return head
    try:
        return HeadWeights(**{name: matrix.double().numpy() for name, matrix in matrices.items()})
    except InputError as error:
        raise InputError(error.got, f"weights that {dtype} can hold", "Scale the weights down.") from error


def _block_size(task: Task) -> int:
    return max(1, _SCORES_AT_ONCE // task.space.num_positions**2)
