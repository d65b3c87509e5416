"""The result of verifying a head: a proof, a counterexample, or neither."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

Verdict = Literal["holds", "fails", "undecided"]
RestsOn = Literal["every sequence", "the listed examples", "the bound", "samples"]


@dataclass(frozen=True)
class Failure:
    """One output of one sequence, with its target.

    Attributes:
        sequence: The letters, without CLS.
        position: Index of the letter, from 0.
        output: What the head computed.
        target: What was wanted.
        error: The largest absolute difference of the two.
    """

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
        task: Name of the task.
        verdict: "holds", "fails" with a counterexample, or "undecided": neither a counterexample nor a proof.
        rests_on: "every sequence" and "the listed examples" were all run. "the bound" follows from the scores and
            values of all pairs of places, and covers all sequences though only some were run. "samples" proves nothing.
        criterion: The condition on every output.
        dtype: Number format of the head.
        num_checked: Number of sequences run.
        num_possible: Number of sequences of the task.
        num_outputs: Number of outputs of the sequences run.
        num_right: Number of these whose readout is correct.
        largest_error: Largest absolute error of an output in the sequences run.
        worst: The output with that error.
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
        margin = f"{self.margin:.6g}" if self.margin is not None else "none needed"
        known = math.isfinite(self.bound)
        lines = [
            f"{self.task}: {self.verdict.upper()} ({self.criterion}; {self.dtype})",
            f"  based on        {self._basis()}",
            f"  correct         {self.num_right:,} of {self.num_outputs:,} outputs ({share:.2%})",
            f"  largest error   {self.largest_error:.3g}" + (f" at {self.worst}" if self.worst else ""),
            f"  margin          {margin if known or self.margin is not None else 'unknown'}",
            f"  bound on error  {f'{self.bound:.3g}' if known else 'unknown'}",
        ]
        if self.counterexample is not None:
            lines.append(f"  counterexample  {self.counterexample}")
        return "\n".join(lines)

    def _basis(self) -> str:
        checked = f"{self.num_checked:,}"
        possible = f"{self.num_possible:,}" if self.num_possible < 10**12 else f"{self.num_possible:.3g}"
        return {
            "every sequence": f"every sequence: {checked} of {possible} run",
            "the listed examples": f"the {checked} listed examples, all run; other sequences were not checked",
            "the bound": f"the bound, for all {possible} sequences; "
            f"that the description matches the task was checked on {checked} of them",
            "samples": f"samples: {checked} of {possible} sequences run, and no bound covers the rest",
        }[self.rests_on]
