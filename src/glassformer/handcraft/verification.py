"""Verification of a head on a task, by running every sequence or by a bound on the error.

The result is a :class:`Certificate`: a proof, a counterexample, or neither. It is neither where
rounding decides: an output is judged together with all outputs that other ways of computing it may
give (:mod:`glassformer.handcraft.rounding`).
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.errors import InputError, require_above_zero
from glassformer.handcraft import circuits
from glassformer.handcraft.bounds import Bound, PlaceTables, bound_of_pairs, bound_of_queries
from glassformer.handcraft.proof_settings import proof_settings
from glassformer.handcraft.rounding import OutputRounding
from glassformer.handcraft.sequences import CLS, format_count
from glassformer.handcraft.single_head import HeadWeights, run_head
from glassformer.handcraft.subject import DefinitionDigest, Subject, weights_digest
from glassformer.handcraft.tasks import Cases, Queries, Task, queries_of
from glassformer.layers.attention import is_edited
from glassformer.text import rounded_up

_SCORES_AT_ONCE = 1 << 19
_SHORT_SEQUENCES = 20_000
_SAMPLES = 2_000
_SAMPLED_SCORES = 1 << 26
_SAME_TARGET = 1e-9
_KEYS_AT_ONCE = 1 << 19
_MOST_LETTERS = 12
_OF_A_DIFFERENCE = 2.0**-50
"""More than the relative rounding of a difference in float64."""

Verdict = Literal["holds", "fails", "undecided"]
RestsOn = Literal["every sequence", "the listed examples", "the bound", "samples"]


@dataclass(frozen=True)
class Failure:
    """One output of one sequence and its largest absolute error.

    The sequence has no CLS; positions count its letters from 0.
    """

    sequence: str
    position: int
    output: tuple[float, ...]
    target: tuple[float, ...]
    error: float

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Failure":
        """Return the failure that :meth:`Certificate.to_json` wrote.

        An error that JSON does not have is infinite.
        """
        numbers = {name: tuple(values[name]) for name in ("output", "target")}
        error = math.inf if values["error"] is None else values["error"]
        return cls(**{**values, **numbers, "error": error})

    def __str__(self) -> str:
        output = " ".join(f"{number:.4g}" for number in self.output)
        target = " ".join(f"{number:.4g}" for number in self.target)
        return f"{self.sequence}, position {self.position}: got [{output}], wanted [{target}]"


@dataclass(frozen=True)
class Certificate:
    """The verdict on one head and one task, with the figures that support it.

    Attributes:
        verdict: "holds", "fails" with a counterexample, or "undecided": neither a counterexample
            nor a proof. "holds" and "fails" are true in exact arithmetic and for every way of
            computing the head in this number format.
        rests_on: "every sequence" and "the listed examples" were all run. "the bound" follows from
            the scores and values of all pairs of places, and covers all sequences though only some
            were run. "samples" proves nothing.
        criterion: The condition on every output.
        num_checked: Number of sequences run, of ``num_possible``.
        num_right: Number of outputs, of ``num_outputs``, whose readout is correct, or whose error
            is within the tolerance, as they were computed.
        num_undecided: Number of outputs for which rounding decides whether they are correct.
        largest_error: Largest absolute error of an output, the error of ``worst``.
        margin: Smallest lead of a query's best wanted score over its best unwanted one; None if no
            query has unwanted keys, or if neither all sequences were run nor a description says
            which keys are wanted.
        bound: Upper bound on the error, see :mod:`glassformer.handcraft.bounds`; infinite if
            unknown.
        counterexample: The first output that fails, in order of length and alphabet.
        undecided: The first output for which rounding decides.
        rounding: Largest distance of that output from the same output computed in another way.
        subject: The head, task and criterion that it is about; None for results of earlier
            versions.
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
    num_undecided: int = 0
    undecided: Failure | None = None
    rounding: float = 0.0
    subject: Subject | None = None

    @property
    def holds(self) -> bool:
        """True if the verdict is "holds": a proof for all sequences that ``rests_on`` names.

        If that is the bound, the head is proved to do what the task's description says on every
        sequence; that the description agrees with the target was checked on ``num_checked``
        sequences.
        """
        return self.verdict == "holds"

    def to_json(self) -> dict[str, Any]:
        """Return all attributes as JSON values, with null for numbers that JSON does not have."""
        named = asdict(self) | {"subject": self.subject and self.subject.to_json()}
        values: dict[str, Any] = json.loads(json.dumps(named), parse_constant=lambda _: None)
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Certificate":
        """Return the certificate that :meth:`to_json` wrote.

        Raises:
            InputError: No certificate, or one of an earlier version, which names no subject.
        """
        try:
            named = dict(values)
            named["subject"] = Subject.from_json(named["subject"])
            for name in ("worst", "counterexample", "undecided"):
                if named[name] is not None:
                    named[name] = Failure.from_json(named[name])
            for name in ("largest_error", "bound", "rounding"):
                if named[name] is None:
                    named[name] = math.inf
            return cls(**named)
        except (TypeError, KeyError, AttributeError) as error:
            raise InputError(
                got=f"values without {error}",
                expected="a certificate that names its subject",
                fix="Verify the head again.",
            ) from error

    def require_subject(self, head: HeadWeights, task: Task) -> None:
        """Refuse to speak of another head or task, by what the certificate's subject names.

        Raises:
            InputError: Other weights, letters, length, readout or targets. They are named.
        """
        if self.subject is None:
            raise InputError(
                got="a certificate that names no subject",
                expected="a certificate that names its subject",
                fix="Verify the head again.",
            )
        limit = task.count
        if self.rests_on in ("the bound", "samples"):
            limit = 0
        subject = subject_of(
            head,
            task,
            tolerance=self.subject.tolerance,
            dtype=getattr(torch, self.subject.dtype),
            limit=limit,
        )
        self.subject.require(subject)

    def __str__(self) -> str:
        share = self.num_right / self.num_outputs
        error = f"{self.largest_error:.3g}"
        if self.worst:
            error += f" at {self.worst}"
        bound = "unknown"
        margin = "unknown"
        if math.isfinite(self.bound):
            bound = rounded_up(self.bound, 3)
            margin = "none"
        if self.margin is not None:
            margin = f"{self.margin:.6g}"
        lines = [f"{self.task}: {self.verdict.upper()} ({self.criterion}; {self.dtype})"]
        if self.subject:
            lines.append(f"  covers          {self.covers}")
        lines += [
            f"  based on        {self._basis()}",
            f"  correct         {self.num_right:,} of {self.num_outputs:,} outputs ({share:.2%})",
            f"  largest error   {error}",
            f"  margin          {margin}",
            f"  bound on error  {bound}",
        ]
        if self.counterexample is not None:
            lines.append(f"  counterexample  {self.counterexample}")
        if self.verdict == "undecided" and self.undecided is not None:
            outputs = f"{self.num_undecided:,} of {self.num_outputs:,} outputs"
            rounding = rounded_up(self.rounding, 3)
            lines.append(f"  rounding        decides {outputs}, by up to {rounding}")
            lines.append(f"  the first       {self.undecided}")
        return "\n".join(lines)

    def _basis(self) -> str:
        """Return in words what the verdict rests on."""
        checked = f"{self.num_checked:,}"
        possible = format_count(self.num_possible)
        if self.rests_on == "every sequence":
            return f"every sequence: {checked} of {possible} run"
        if self.rests_on == "the listed examples":
            return f"the {checked} listed examples, all run; other sequences were not checked"
        if self.rests_on == "the bound":
            return (
                f"the bound, for all {possible} sequences; that the description matches the task "
                f"was checked on {checked} of them"
            )
        return f"samples: {checked} of {possible} sequences run, and no bound covers the rest"

    @property
    def covers(self) -> str:
        """The letters and lengths of the subject's sequences, in words; empty without a subject."""
        if self.subject is None:
            return ""
        first = ", after CLS" if self.subject.inputs[-1] == CLS else ""
        letters = [name for name in self.subject.inputs if name != CLS]
        if len(letters) <= _MOST_LETTERS:
            listed = " ".join(letters)
        else:
            listed = f"{letters[0]} to {letters[-1]}"
        if self.subject.max_len == 1:
            lengths = "1 letter"
        else:
            lengths = f"1 to {self.subject.max_len} letters"
        return f"{lengths} of {listed}{first}"


@proof_settings()
def verify(
    head: HeadWeights,
    task: Task,
    *,
    tolerance: float | Literal["task"] | None = "task",
    dtype: torch.dtype = torch.float64,
    limit: int = 1_000_000,
) -> Certificate:
    """Prove that ``head`` solves ``task``, or find a sequence on which it does not.

    Up to ``limit`` sequences are all run, in batches, shorter ones first. Beyond that, all short
    ones, regular ones of every length and up to 2,000 random ones are run in search of a
    counterexample. Then :func:`~glassformer.handcraft.bounds.bound_of_pairs` decides: it proves,
    for every sequence, that the head computes the task's description. Whether the description
    matches the target is checked only on the sequences that are run.

    "Holds" and "fails" are true in exact arithmetic, in
    :class:`~glassformer.handcraft.single_head.NumpyHead` and in
    :class:`~glassformer.handcraft.single_head.SingleHead`, in any batch. Where these may differ by
    rounding, the verdict is "undecided". Settings of the caller (autocast, precisions, dtypes,
    devices, NumPy's errors) change nothing.

    Args:
        tolerance: The largest error of an output that counts as solved. With ``None`` only the
            readout has to be correct (largest entry, or sign). ``"task"`` takes the task's own.
        dtype: Number format in which the head is run: float64 or float32.
        limit: Largest number of sequences that are all run.

    Example:
        >>> from glassformer.handcraft import CLS, TASKS, Description, SequenceSpace
        >>> from glassformer.handcraft import build, itself, same_token, token
        >>> attend = same_token().but_not(itself()).otherwise(token(CLS))
        >>> space = SequenceSpace(tuple("ABC"), max_len=4, has_cls=True)
        >>> description = Description(space, attend, {CLS: 1, "A": -1, "B": -1, "C": -1})
        >>> head = build(description, largest_error=1e-9)
        >>> verify(head.weights, TASKS["unique"](), tolerance=1e-9).verdict
        'holds'
    """
    tolerance = task.tolerance if tolerance == "task" else tolerance
    _require_settings(tolerance, dtype)
    require_fits(head, task)
    matrices = {name: torch.tensor(matrix, dtype=dtype) for name, matrix in head.matrices.items()}
    rounded = _rounded(head, matrices, dtype)
    roundoff = torch.finfo(dtype).eps / 2
    tables = PlaceTables.of(rounded, task.space, roundoff)
    _require_range(tables, dtype)
    rounding = OutputRounding(rounded, task.space, tables, roundoff)
    tally = _Tally(task, matrices, tables, rounding, tolerance, _definition(task))
    run_all = task.examples is not None or task.count <= limit
    for cases in _cases(task, run_all):
        tally.add(cases)
    subject = _subject(head, task, tolerance, dtype, tally.definition)
    if run_all and task.examples is None:
        return tally.certificate(subject, "every sequence", tally.known)
    if run_all:
        return tally.certificate(subject, "the listed examples", tally.known)
    if task.description is None or not (tally.missed <= _SAME_TARGET):
        return tally.certificate(subject, "samples", Bound(math.inf, math.inf))
    bound = bound_of_pairs(tables, task.description)
    bound = bound._replace(error=bound.error + tally.missed)
    return tally.certificate(subject, "the bound", bound)


def subject_of(
    head: HeadWeights,
    task: Task,
    *,
    tolerance: float | Literal["task"] | None = "task",
    dtype: torch.dtype = torch.float64,
    limit: int = 1_000_000,
) -> Subject:
    """Return the subject of :func:`verify`'s certificate, without running the head."""
    tolerance = task.tolerance if tolerance == "task" else tolerance
    _require_settings(tolerance, dtype)
    require_fits(head, task)
    definition = _definition(task)
    for cases in _cases(task, task.examples is not None or task.count <= limit):
        definition.add(cases.target)
    return _subject(head, task, tolerance, dtype, definition)


def _definition(task: Task) -> DefinitionDigest:
    return DefinitionDigest(task.name, task.readout, task.v_dim, task.decisive_error, task.examples)


def _subject(
    head: HeadWeights,
    task: Task,
    tolerance: float | None,
    dtype: torch.dtype,
    definition: DefinitionDigest,
) -> Subject:
    return Subject(
        kind="head",
        definition=task.name,
        inputs=task.space.token_names,
        max_len=task.space.max_len,
        readout=task.readout,
        tolerance=None if tolerance is None else float(tolerance),
        dtype=str(dtype).removeprefix("torch."),
        weights_digest=weights_digest(head.matrices),
        definition_digest=definition.hexdigest(),
    )


def _require_range(tables: PlaceTables, dtype: torch.dtype) -> None:
    """Refuse a head whose sums may overflow in ``dtype``."""
    most = torch.finfo(dtype).max / 4
    kinds = (("queries or keys", "Km or Qm"), ("scores", "Km or Qm"), ("sums of values", "Vm"))
    for size, (kind, matrix) in zip(tables.largest, kinds, strict=True):
        if not (size < most):
            raise InputError(
                got=f"{kind} of up to {size:.3g}",
                expected=f"below {most:.2g}, which {dtype} can hold",
                fix=f"Scale {matrix} down.",
            )


def _require_settings(tolerance: float | None, dtype: torch.dtype) -> None:
    """Refuse a tolerance that is not positive, other dtypes, and edits."""
    if tolerance is not None:
        require_above_zero(tolerance=tolerance)
    if dtype not in (torch.float64, torch.float32):
        raise InputError(
            got=f"dtype = {dtype}",
            expected="torch.float64 or float32",
            fix="Use one of them.",
        )
    if is_edited():
        raise InputError(
            got="a head within edits",
            expected="the head alone",
            fix="Verify it outside of intervene().",
        )


def _rounded(head: HeadWeights, matrices: dict[str, Tensor], dtype: torch.dtype) -> HeadWeights:
    """Return the head with the weights of ``matrices``, in float64."""
    if dtype == torch.float64:
        return head
    try:
        return HeadWeights(**{name: matrix.double().numpy() for name, matrix in matrices.items()})
    except InputError as error:
        raise InputError(
            got=error.got,
            expected=f"weights that {dtype} can hold",
            fix="Scale the weights down.",
        ) from error


def _cases(task: Task, run_all: bool) -> Iterator[Cases]:
    """Return all sequences, or candidates for a counterexample."""
    per_block = max(1, _SCORES_AT_ONCE // task.space.num_positions**2)
    if run_all:
        return task.case_blocks(per_block)
    return _search(task, per_block)


def _search(task: Task, per_block: int) -> Iterator[Cases]:
    """Yield candidates for a counterexample: all short sequences, regular ones, random ones."""
    space = task.space
    listed = space.longest_listable(_SHORT_SEQUENCES)
    yield from task.case_blocks(per_block, listed)
    square = space.num_positions**2
    num_lengths = _SAMPLED_SCORES // (2 * len(space.letters) * square)
    num_samples = _SAMPLED_SCORES // square
    regular = space.regular(max(4, min(64, num_lengths)))
    samples = space.sample(min(_SAMPLES, max(20, num_samples)), seed=0)
    others = space.longer([*regular, *samples], listed)
    for start in range(0, len(others), per_block):
        yield task.cases(space.block(others[start : start + per_block]))


def require_fits(head: HeadWeights, task: Task) -> None:
    """Refuse a head with a matrix that has not the shape that ``task`` needs; name the matrix."""
    circuits.require_fits(head, task.space)
    if head.v_dim != task.v_dim:
        raise InputError(
            got=f"Vm of shape {list(head.Vm.shape)}",
            expected=f"{task.v_dim} columns, the length of an output of the task {task.name!r}",
            fix="Give Vm one column for each number of an output.",
        )


@dataclass
class _Tally:
    """Statistics of the sequences that have been run."""

    task: Task
    matrices: dict[str, Tensor]
    tables: PlaceTables
    rounding: OutputRounding
    tolerance: float | None
    definition: DefinitionDigest
    num_sequences: int = 0
    num_outputs: int = 0
    num_right: int = 0
    num_undecided: int = 0
    largest_error: float = -math.inf
    worst: Failure | None = None
    first: Failure | None = None
    undecided: Failure | None = None
    undecided_rounding: float = 0.0
    known: Bound = field(default_factory=lambda: Bound(math.inf, 0.0))
    missed: float = 0.0

    def add(self, cases: Cases) -> None:
        """Run sequences and judge their outputs."""
        block = cases.block
        counted = cases.counted
        target = cases.target
        with torch.inference_mode():
            inputs = torch.from_numpy(cases.inputs).to(self.matrices["Km"].dtype)
            real = torch.from_numpy(block.real)
            output = run_head(inputs, **self.matrices, real=real).double().numpy()
        # NumPy is slow along a short last axis.
        by_entry = np.ascontiguousarray(np.abs(output - target).transpose(2, 0, 1))
        error = by_entry.max(axis=0)
        # NaN counts as an infinite error: comparisons with it are False.
        error = np.where(np.isnan(error), np.inf, error)
        error = np.where(counted, error, -np.inf)
        # Outputs with smaller errors are certain to be read correctly.
        right = error < self.task.decisive_error
        doubtful = counted & ~right
        right[doubtful] = self.task.is_right(output[doubtful], target[doubtful])
        if self.tolerance is None:
            solved = right
        else:
            solved = error <= self.tolerance
        self.num_sequences += len(block.tokens)
        self.num_outputs += int(counted.sum())
        self.num_right += int(((right | solved) & counted).sum())
        self.definition.add(target)
        if error.max() > self.largest_error:
            self.largest_error = float(error.max())
            self.worst = self._failure(cases, output, int(error.argmax()))
        bound = bound_of_queries(self.tables, cases.queries or self._queries_by_value(cases))
        self.known = Bound(
            margin=min(self.known.margin, bound.margin),
            error=float(np.maximum(self.known.error, bound.error)),
        )
        self.missed = max(self.missed, cases.missed)
        if not self._proves(bound.error) or not (error.max() <= bound.error):
            self._decide(cases, output, counted & ~(error < self._certain_error))

    @cached_property
    def _certain_error(self) -> float:
        """The error below which outputs are right for every way of computing them."""
        allowed = self.tolerance
        if allowed is None:
            allowed = self.task.decisive_error
        return (allowed - self.rounding.most) * (1 - _OF_A_DIFFERENCE)

    def _proves(self, error: float) -> bool:
        """Return whether outputs within ``error`` of their targets are right."""
        if self.tolerance is None:
            return error < self.task.decisive_error
        return error <= self.tolerance

    def _decide(
        self,
        cases: Cases,
        output: Float[np.ndarray, "sequence position v_dim"],
        doubtful: Bool[np.ndarray, "sequence position"],
    ) -> None:
        """Record the first output that is wrong and the first that rounding decides, if any."""
        places = np.argwhere(doubtful)
        if not len(places):
            return
        right, wrong = self._certainty(output[doubtful], cases.target[doubtful], self.rounding.most)
        # No rounding gives NaN or infinity.
        wrong |= ~np.isfinite(output[doubtful]).all(axis=1)
        radius = np.full(len(places), self.rounding.most)
        place = self.task.space.place_of(cases.block)
        rest = np.flatnonzero(~(right | wrong))
        step = max(1, _KEYS_AT_ONCE // place.shape[1] // output.shape[2])
        for start in range(0, len(rest), step):
            some = rest[start : start + step]
            rows, positions = places[some].T
            real = cases.block.real[rows]
            computed = self.rounding.compute(place[rows, positions], place[rows], real)
            distance = np.abs(output[rows, positions] - computed.outputs)
            if not (distance <= computed.radius).all():
                raise RuntimeError(
                    "an output further from others of the same head than rounding allows"
                )
            target = cases.target[rows, positions]
            right[some], wrong[some] = self._certainty(computed.outputs, target, computed.radius)
            radius[some] = computed.radius.max(axis=1)
        undecided = ~(right | wrong)
        self.num_undecided += int(undecided.sum())
        width = output.shape[1]
        if self.first is None and wrong.any():
            row, position = places[wrong.argmax()].tolist()
            self.first = self._failure(cases, output, row * width + position)
        if self.undecided is None and undecided.any():
            row, position = places[undecided.argmax()].tolist()
            self.undecided = self._failure(cases, output, row * width + position)
            self.undecided_rounding = float(radius[undecided.argmax()])

    def _certainty(
        self,
        output: Float[np.ndarray, "output v_dim"],
        target: Float[np.ndarray, "output v_dim"],
        radius: float | Float[np.ndarray, "output v_dim"],
    ) -> tuple[Bool[np.ndarray, " output"], Bool[np.ndarray, " output"]]:
        """Return where all outputs within ``radius`` are right, and where all are wrong."""
        if self.tolerance is None:
            return self.task.certainty(output - radius, output + radius, target)
        error = np.abs(output - target)
        slack = radius + np.where(np.asarray(radius) > 0, _OF_A_DIFFERENCE * error, 0.0)
        right = (error + slack <= self.tolerance).all(axis=1)
        wrong = (error - slack > self.tolerance).any(axis=1)
        return right, wrong

    def certificate(self, subject: Subject, rests_on: RestsOn, known: Bound) -> Certificate:
        """Return the certificate, given the bound ``known`` for all sequences."""
        if self.tolerance is not None:
            criterion = f"every error at most {self.tolerance:g}"
        elif self.task.readout == "sign":
            criterion = "every sign right"
        else:
            criterion = "every largest entry right"
        if rests_on in ("the bound", "samples"):
            proved = self._proves(known.error)
        else:
            proved = self.undecided is None
        verdict: Verdict = "undecided"
        if self.first is not None:
            verdict = "fails"
        elif proved:
            verdict = "holds"
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
            num_undecided=self.num_undecided,
            undecided=self.undecided,
            rounding=self.undecided_rounding,
            subject=subject,
        )

    def _queries_by_value(self, cases: Cases) -> Queries:
        """Return the queries without a description.

        The wanted keys have the target as their value. All keys are wanted if none has.
        """
        space = self.task.space
        block = cases.block
        values = self.tables.values[space.place_of(block)]
        real = block.real[:, None, :]
        distance = np.abs(values[:, None, :, :] - cases.target[:, :, None, :]).max(axis=3)
        matches = (distance <= (self.tolerance or _SAME_TARGET)) & real
        keys = np.where(matches.any(axis=2, keepdims=True), matches, real)
        return queries_of(space, block, cases.counted, keys, cases.target)

    def _failure(
        self, cases: Cases, output: Float[np.ndarray, "sequence position v_dim"], index: int
    ) -> Failure:
        """Return the output with this index as a failure."""
        row, position = divmod(index, output.shape[1])
        first = int(self.task.space.has_cls)
        letters = cases.block.tokens[row, first:][cases.block.real[row, first:]]
        numbers = output[row, position]
        target = cases.target[row, position]
        return Failure(
            sequence=self.task.space.decode(letters),
            position=position - first,
            output=tuple(numbers.tolist()),
            target=tuple(target.tolist()),
            error=float(np.abs(numbers - target).max()),
        )
