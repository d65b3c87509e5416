"""How the report and the answers write numbers and names."""

from __future__ import annotations

from collections.abc import Sequence

from glassformer.labs.sentiment.results import Results

_ALIKE = 0.01
"""Accuracies nearer than this are called alike: seeds differ by as much."""


def percent(share: float) -> str:
    """A share in [0, 1]."""
    return f"{100 * share:.1f} %"


def listed(names: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def verdict_of(results: Results, first: str, second: str, sentence: str) -> str:
    """``sentence`` with ``{first}``, ``{second}`` and the ``{relation}`` of their median test accuracies filled in."""
    one, other = (results.median(name).measured.test_accuracy for name in (first, second))
    relation = (
        "do about as well as" if abs(one - other) < _ALIKE else "do better than" if one > other else "do less well than"
    )
    return sentence.format(
        first=f"{first} ({percent(one)})", second=f"the {second} ({percent(other)})", relation=relation
    )
