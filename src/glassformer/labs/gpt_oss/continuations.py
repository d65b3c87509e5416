"""What continuations of recurrences are made of: steps of the rule, increments, and repetitions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from glassformer.data.recurrence import obeys_recurrence

_NGRAM = 4


@dataclass(frozen=True)
class Behaviour:
    """What continuations are made of, see :func:`behaviour`; every number is a share in [0, 1]."""

    rule: float  # steps that follow the hidden recurrence
    increment: float  # steps that do not, and are the previous token + 1
    neither: float  # steps that are neither
    repeated: float  # runs of four tokens that the same continuation had before
    cycling: float  # continuations whose second half repeats itself, in two rounds or more
    errors: dict[str, float]  # the standard error of each of these over the continuations

    def distance(self, other: Behaviour) -> float:
        """Total variation between the two mixtures of rule, increment and neither, in [0, 1]."""
        return sum(abs(getattr(self, name) - getattr(other, name)) for name in ("rule", "increment", "neither")) / 2

    def above(self, other: Behaviour, part: str) -> bool:
        """Whether ``part`` is larger than in ``other``, by more than two standard errors of the difference."""
        error = math.hypot(self.errors[part], other.errors[part])
        return getattr(self, part) - getattr(other, part) > 2 * error


def behaviour(
    sequences: Int64[Tensor, "batch length"],
    coefficients: Int64[Tensor, "batch order"],
    prompt_length: int,
    vocab_size: int,
) -> Behaviour:
    """What the steps after the first ``prompt_length`` tokens are, for generators with these ``coefficients``."""
    kinds = obeys_recurrence(sequences[:, prompt_length - coefficients.shape[1] :], coefficients, vocab_size)
    increment, continuation = kinds.increment & ~kinds.rule, sequences[:, prompt_length:]
    rows = {
        "rule": kinds.rule.double().mean(dim=1),
        "increment": increment.double().mean(dim=1),
        "neither": (~kinds.rule & ~increment).double().mean(dim=1),
        "repeated": _repeated(continuation),
        "cycling": _cycles(continuation[:, continuation.shape[1] // 2 :]).double(),
    }
    errors = {name: float(row.std(correction=0)) / math.sqrt(len(row)) for name, row in rows.items()}
    return Behaviour(**{name: float(row.mean()) for name, row in rows.items()}, errors=errors)


def _repeated(continuation: Int64[Tensor, "batch length"]) -> Tensor:
    """The share of runs of ``_NGRAM`` tokens that occurred before in the same row, for each row."""
    rows = continuation.unfold(1, _NGRAM, 1).tolist()
    return torch.tensor([1 - len({tuple(run) for run in row}) / len(row) for row in rows], dtype=torch.float64)


def _cycles(ending: Int64[Tensor, "batch length"]) -> Tensor:
    """Which rows are two or more rounds of one cycle."""
    rounds = [(ending[:, n:] == ending[:, :-n]).all(dim=1) for n in range(1, ending.shape[1] // 2 + 1)]
    return torch.stack(rounds).any(dim=0)
