"""What verifying a head came to: a proof, a counterexample, or neither."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

Verdict = Literal["holds", "fails", "undecided"]
RestsOn = Literal["every sequence", "the listed examples", "the bound", "samples"]


@dataclass(frozen=True)
class Failure:
    """One output of one sequence, beside what was wanted.

    Attributes:
        sequence: The letters, CLS left out.
        position: Which letter's output, from 0.
        output: What the head gave.
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
    """The verdict on one head and one task, with the figures it rests on.

    Attributes:
        task: Name of the task.
        verdict: "holds", "fails" with a counterexample, or "undecided": no counterexample was met, and no proof either.
        rests_on: "every sequence" and "the listed examples" were all run. "the bound" follows from the scores and
            values of all pairs of places, and covers all sequences though only some were run. "samples" proves nothing.
        criterion: What had to hold of every output.
        dtype: Number format of the head.
        num_checked: Sequences that were run.
        num_possible: Sequences that the task is asked of.
        num_outputs: Outputs judged in the sequences that were run.
        num_right: Those of them that read as wanted.
        largest_error: Largest absolute error of an output in the sequences that were run.
        worst: The output that has it.
        margin: Smallest score by which a query's best wanted key stands above its best unwanted one; None if no query
            ever meets an unwanted key, or no description says which are wanted and not all sequences were run.
        bound: No error can be larger; see :mod:`glassformer.handcraft.bounds`. Infinite if nothing is known.
        counterexample: The first output that fails, in the order of length and alphabet.
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
        """Whether the verdict is "holds": a proof, of all that ``rests_on`` names.

        Where that is the bound, the head is proved to do what the task's description says on every sequence; that the
        description is the task was checked on ``num_checked`` sequences.
        """
        return self.verdict == "holds"

    def to_json(self) -> dict[str, Any]:
        """All attributes as JSON values, with null for numbers that JSON does not have."""
        values: dict[str, Any] = _finite(asdict(self))
        return values

    def __str__(self) -> str:
        share = self.num_right / self.num_outputs
        lines = [
            f"{self.task}: {self.verdict.upper()} ({self.criterion}; {self.dtype})",
            f"  rests on        {self._ground()}",
            f"  read rightly    {self.num_right:,} of {self.num_outputs:,} outputs ({share:.2%})",
            f"  largest error   {self.largest_error:.3g}" + (f" at {self.worst}" if self.worst else ""),
            f"  margin          {self._margin()}",
            f"  bound on error  {f'{self.bound:.3g}' if math.isfinite(self.bound) else 'none known'}",
        ]
        if self.counterexample is not None:
            lines.append(f"  counterexample  {self.counterexample}")
        return "\n".join(lines)

    def _margin(self) -> str:
        if self.margin is not None:
            return f"{self.margin:.6g}"
        return "none needed" if math.isfinite(self.bound) else "not known"

    def _ground(self) -> str:
        possible = f"{self.num_possible:,}" if self.num_possible < 10**12 else f"{self.num_possible:.3g}"
        if self.rests_on == "every sequence":
            return f"every sequence: {self.num_checked:,} of {possible} run"
        if self.rests_on == "the listed examples":
            return f"the {self.num_checked:,} listed examples, all run; other sequences were not looked at"
        if self.rests_on == "the bound":
            return (
                f"the bound, for all {possible} sequences; that the description is the task was checked on "
                f"{self.num_checked:,} of them"
            )
        return f"samples: {self.num_checked:,} of {possible} sequences were run, and no bound covers the rest"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
