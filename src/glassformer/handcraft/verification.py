"""Verify a head on a task: by running every sequence if there are few enough, else by a bound on the error.

The result is a :class:`Certificate`: a proof, a counterexample, or neither.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.errors import InputError, require, require_above_zero
from glassformer.handcraft import circuits
from glassformer.handcraft.bounds import Bound, PlaceTables, bound_of_pairs, bound_of_queries, require_own_dtype
from glassformer.handcraft.sequences import format_count
from glassformer.handcraft.single_head import HeadWeights, run_head
from glassformer.handcraft.tasks import Cases, Queries, Task, queries_of

_SCORES_AT_ONCE = 1 << 19
_SHORT_SEQUENCES = 20_000
_SAMPLES = 2_000
_SAMPLED_SCORES = 1 << 26
_SAME_TARGET = 1e-9

Verdict = Literal["holds", "fails", "undecided"]
RestsOn = Literal["every sequence", "the listed examples", "the bound", "samples"]


@dataclass(frozen=True)
class Failure:
    """One output of one sequence (without CLS; positions count its letters from 0) and its largest absolute error."""

    sequence: str
    position: int
    output: tuple[float, ...]
    target: tuple[float, ...]
    error: float

    def __str__(self) -> str:
        got, wanted = (" ".join(f"{number:.4g}" for number in numbers) for numbers in (self.output, self.target))
        return f"{self.sequence}, position {self.position}: got [{got}], wanted [{wanted}]"


@dataclass(frozen=True)
class Certificate:
    """The verdict on one head and one task, with the figures that support it.

    Attributes:
        verdict: "holds", "fails" with a counterexample, or "undecided": neither a counterexample nor a proof.
        rests_on: "every sequence" and "the listed examples" were all run. "the bound" follows from the scores and
            values of all pairs of places, and covers all sequences though only some were run. "samples" proves nothing.
        criterion: The condition on every output.
        num_checked: Number of sequences run, of ``num_possible``.
        num_right: Number of their ``num_outputs`` whose readout is correct, or whose error is within the tolerance.
        largest_error: Largest absolute error of these, that of ``worst``.
        margin: Smallest difference between a query's best wanted score and its best unwanted one; None if no query
            has unwanted keys, or if neither all sequences were run nor a description says which keys are wanted.
        bound: Upper bound on the error, see :mod:`glassformer.handcraft.bounds`; infinite if unknown.
        counterexample: The first output that fails, in order of length and alphabet.
    """

    task: str
    verdict: Verdict
    rests_on: RestsOn
    criterion: str
    dtype: str
    num_checked: int
    num_possible: int
    num_outputs: int
    num_right: int
    largest_error: float
    worst: Failure | None
    margin: float | None
    bound: float
    counterexample: Failure | None

    @property
    def holds(self) -> bool:
        """Whether the verdict is "holds": a proof for all sequences that ``rests_on`` names.

        If that is the bound, the head is proved to do what the task's description says on every sequence; that the
        description agrees with the target was checked on ``num_checked`` sequences.
        """
        return self.verdict == "holds"

    def to_json(self) -> dict[str, Any]:
        """All attributes as JSON values, with null for numbers that JSON does not have."""
        values: dict[str, Any] = json.loads(json.dumps(asdict(self)), parse_constant=lambda _: None)
        return values

    def __str__(self) -> str:
        share = self.num_right / self.num_outputs
        margin = f"{self.margin:.6g}" if self.margin is not None else "none"
        known = math.isfinite(self.bound)
        checked = f"{self.num_checked:,}"
        possible = format_count(self.num_possible)
        basis = {
            "every sequence": f"every sequence: {checked} of {possible} run",
            "the listed examples": f"the {checked} listed examples, all run; other sequences were not checked",
            "the bound": f"the bound, for all {possible} sequences; "
            f"that the description matches the task was checked on {checked} of them",
            "samples": f"samples: {checked} of {possible} sequences run, and no bound covers the rest",
        }[self.rests_on]
        lines = [
            f"{self.task}: {self.verdict.upper()} ({self.criterion}; {self.dtype})",
            f"  based on        {basis}",
            f"  correct         {self.num_right:,} of {self.num_outputs:,} outputs ({share:.2%})",
            f"  largest error   {self.largest_error:.3g}" + (f" at {self.worst}" if self.worst else ""),
            f"  margin          {margin if known or self.margin is not None else 'unknown'}",
            f"  bound on error  {f'{self.bound:.3g}' if known else 'unknown'}",
        ]
        if self.counterexample is not None:
            lines.append(f"  counterexample  {self.counterexample}")
        return "\n".join(lines)


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
        tolerance: The largest error of an output that counts as solved. With ``None`` only the readout has to be
            correct (largest entry, or sign). ``"task"`` takes the task's own.
        dtype: Number format in which the head is run: float64 or float32.
        limit: Largest number of sequences that are all run.

    Example:
        >>> from glassformer.handcraft import CLS, TASKS, Description, SequenceSpace, build, itself, same_token, token
        >>> attend = same_token().but_not(itself()).otherwise(token(CLS))
        >>> space = SequenceSpace(tuple("ABC"), max_len=4, has_cls=True)
        >>> head = build(Description(space, attend, {CLS: 1, "A": -1, "B": -1, "C": -1}), largest_error=1e-9)
        >>> verify(head.weights, TASKS["unique"](), tolerance=1e-9).verdict
        'holds'
    """
    tolerance = task.tolerance if tolerance == "task" else tolerance
    if tolerance is not None:
        require_above_zero(tolerance=tolerance)
    require_own_dtype()
    require(dtype in (torch.float64, torch.float32), f"dtype = {dtype}", "torch.float64 or float32", "Use one of them.")
    require_fits(head, task)
    matrices = {name: torch.tensor(matrix, dtype=dtype) for name, matrix in head.matrices.items()}
    rounded = head
    try:
        if dtype != torch.float64:
            rounded = HeadWeights(**{name: matrix.double().numpy() for name, matrix in matrices.items()})
    except InputError as error:
        raise InputError(error.got, f"weights that {dtype} can hold", "Scale the weights down.") from error
    tables, most = PlaceTables.of(rounded, task.space, torch.finfo(dtype).eps / 2), torch.finfo(dtype).max / 4
    below = f"below {most:.2g}, which {dtype} can hold"
    kinds = (("queries or keys", "Km or Qm"), ("scores", "Km or Qm"), ("sums of values", "Vm"))
    for size, (kind, matrix) in zip(tables.largest, kinds, strict=True):
        require(size < most, f"{kind} of up to {size:.3g}", below, f"Scale {matrix} down.")
    tally = _Tally(task, matrices, tables, tolerance)
    per_block = max(1, _SCORES_AT_ONCE // task.space.num_positions**2)
    run_all = task.examples is not None or task.count <= limit
    for cases in task.case_blocks(per_block) if run_all else _search(task, per_block):
        tally.add(cases)
    if run_all:
        return tally.certificate("every sequence" if task.examples is None else "the listed examples", tally.known)
    if task.description is None or not tally.missed <= _SAME_TARGET:
        return tally.certificate("samples", Bound(math.inf, math.inf))
    proved = bound_of_pairs(tables, task.description)
    return tally.certificate("the bound", proved._replace(error=proved.error + tally.missed))


def _search(task: Task, per_block: int) -> Iterator[Cases]:
    """Candidates for a counterexample: all short sequences, regular ones of every length, random ones."""
    space = task.space
    listed = space.longest_listable(_SHORT_SEQUENCES)
    yield from task.case_blocks(per_block, listed)
    square = space.num_positions**2
    regular = space.regular(max(4, min(64, _SAMPLED_SCORES // (2 * len(space.letters) * square))))
    samples = space.sample(min(_SAMPLES, max(20, _SAMPLED_SCORES // square)), seed=0)
    others = space.longer([*regular, *samples], listed)
    for start in range(0, len(others), per_block):
        yield task.cases(space.block(others[start : start + per_block]))


def require_fits(head: HeadWeights, task: Task) -> None:
    """Raise :class:`InputError` naming the matrix of ``head``, if any, that has not the shape that ``task`` needs."""
    circuits.require_fits(head, task.space)
    got = f"Vm of shape {list(head.Vm.shape)}"
    expected = f"{task.v_dim} columns, the length of an output of the task {task.name!r}"
    require(head.v_dim == task.v_dim, got, expected, "Give Vm one column for each number of an output.")


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
    known: Bound = field(default_factory=lambda: Bound(math.inf, 0.0))
    missed: float = 0.0

    def add(self, cases: Cases) -> None:
        block, counted, target = cases[:3]
        with torch.inference_mode():
            inputs = torch.from_numpy(cases.inputs).to(self.matrices["Km"].dtype)
            output = run_head(inputs, **self.matrices, real=torch.from_numpy(block.real)).double().numpy()
        # numpy is slow along a short last axis.
        by_entry = np.ascontiguousarray(np.abs(output - target).transpose(2, 0, 1))
        error = by_entry.max(axis=0)
        # NaN counts as an infinite error: comparisons with it are False.
        error = np.where(counted, np.where(np.isnan(error), np.inf, error), -np.inf)
        # Outputs closer than that are certain to be read correctly.
        right = error < self.task.decisive_error
        doubtful = counted & ~right
        right[doubtful] = self.task.is_right(output[doubtful], target[doubtful])
        solved = right if self.tolerance is None else error <= self.tolerance
        failing = counted & ~solved
        self.num_sequences += len(block.tokens)
        self.num_outputs += int(counted.sum())
        self.num_right += int(((right | solved) & counted).sum())
        if error.max() > self.largest_error:
            self.largest_error = float(error.max())
            self.worst = self._failure(cases, output, int(error.argmax()))
        if self.first is None and failing.any():
            self.first = self._failure(cases, output, int(failing.argmax()))
        found = bound_of_queries(self.tables, cases.queries or self._queries_by_value(cases))
        self.known = Bound(min(self.known.margin, found.margin), float(np.maximum(self.known.error, found.error)))
        self.missed = max(self.missed, cases.missed)

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
