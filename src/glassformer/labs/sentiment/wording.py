"""How the report and the answers write numbers and names."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from glassformer.labs.sentiment.results import Results

_ALIKE = 0.01
"""Accuracies over a thousand and more texts that are nearer than this are called alike: seeds differ by as much."""


def percent(share: float) -> str:
    """A share in [0, 1]."""
    return f"{100 * share:.1f} %"


def listed(names: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def alike(first: float, second: float, count: int) -> bool:
    """Whether two accuracies over ``count`` texts differ by less than two standard errors of such a difference.

    ``2 sqrt(2 p (1 - p) / count)``, with p half way between the two; and at least by :data:`_ALIKE`.
    """
    middle = (first + second) / 2
    return abs(first - second) < max(_ALIKE, 2 * math.sqrt(2 * middle * (1 - middle) / count))


def verdict_of(results: Results, first: str, second: str, sentence: str) -> str:
    """``sentence`` with ``{first}``, ``{second}`` and the ``{relation}`` of their median test accuracies filled in."""
    one, other = (results.median(name).measured.test_accuracy for name in (first, second))
    better = "do better than" if one > other else "do less well than"
    relation = "do about as well as" if alike(one, other, results.data.num_test) else better
    return sentence.format(
        first=f"{first} ({percent(one)})", second=f"the {second} ({percent(other)})", relation=relation
    )


def recalled(results: Results) -> str:
    """What the training on first tokens showed, at every learning rate: one rate alone could show either."""
    reach = results.experiments.reach
    longest = max(run.length for run in reach.recalled)
    rates = sorted({run.learning_rate for run in reach.recalled})

    def told(name: str) -> str:
        return listed(
            [f"{percent(reach.accuracy(name, longest, rate))} at a learning rate of {rate:g}" for rate in rates]
        )

    gru, encoder = (reach.accuracy(name, longest) for name in ("GRU", "encoder, 1 block"))
    robust = min(reach.accuracy("encoder, 1 block", longest, rate) for rate in rates)
    verdict = (
        "so the recurrence can learn to reach back, but needs the right settings for it"
        if gru > encoder - _ALIKE and robust > min(reach.accuracy("GRU", longest, rate) for rate in rates) + _ALIKE
        else "so here the short path decides"
        if encoder > gru + _ALIKE
        else "so a vanishing gradient at the start is no verdict on what can be learned"
    )
    return (
        f"Trained for {reach.updates} updates to name the first token of {longest} (chance {percent(reach.chance)}), a "
        f"one-block encoder gets {told('encoder, 1 block')}, a GRU {told('GRU')}: {verdict}."
    )


def training_seconds(results: Results, name: str) -> float:
    """The median over seeds."""
    return statistics.median(model.measured.training_seconds for model in results.models if model.measured.name == name)
