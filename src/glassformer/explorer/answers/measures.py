"""What every head of a stack does, in figures and in small."""

from __future__ import annotations

import math

from glassformer.explorer.answers.runs import Runs
from glassformer.explorer.answers.tiles import overview
from glassformer.explorer.messages import AskMeasures, Measures


def measures(runs: Runs, ask: AskMeasures) -> Measures:
    """Mean entropy, distance and sink share of every head, and its thumbnail; one pass over each, of which all is kept.

    Entropy and distance are those of :mod:`glassformer.observe.attention_measures`: of each row divided by its sum, so
    that what goes to a sink does not count. A head whose queries see nothing has 0 in all, one with weights that are no
    numbers None and an empty thumbnail.

    Raises:
        UnknownName: No such run or part.
    """
    run = runs.of(ask.run)
    stack = run.layers(ask.part)
    heads = range(stack[0].q.shape[1])
    found = [[overview(runs, ask.run, ask.part, layer, head) for head in heads] for layer in range(len(stack))]
    with_sinks = any(given.sinks is not None for given in stack)
    return Measures(
        entropy=[[each.entropy / math.log(2) if each.finite else None for each in row] for row in found],
        distance=None
        if ask.part == "cross"
        else [[each.distance if each.finite else None for each in row] for row in found],
        sink=[[each.sink if each.finite else None for each in row] for row in found] if with_sinks else None,
        # Four digits are more than a thumbnail's colours tell apart.
        thumbnails=[[each.thumbnail.round(4).tolist() if each.finite else [] for each in row] for row in found],
    )
