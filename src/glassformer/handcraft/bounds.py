r"""How large an output's error can be, from scores and values alone.

One query, its keys j with scores s_j and values v_j, and the wanted output t. Some keys S are wanted, the others U are
not. The weights w are the softmax of s; restricted to S they are p = w_S / w(S). For each coordinate::

    sum_j w_j v_j - t  =  w(S) (sum_S p_j v_j - t)  +  sum_U w_j (v_j - t)

1. *Leakage.* With the margin ``m = max_S s - max_U s``, the wanted keys' exponentials add up to at least
   ``exp(max_S s)`` and the others' to at most ``|U| exp(max_U s)``, so ``w(U) <= |U| e^-m / (1 + |U| e^-m)``.
   With n keys this is below ``(n - 1) e^-m``.
2. *Unevenness.* Equal scores within S give the plain mean. If they spread over ``d = max_S s - min_S s``, the total
   variation between p and uniform weights is at most ``tanh(d / 4)``: with a share a of the keys at the top score and
   the rest at the lowest it is ``a (1 - a)(e^d - 1) / (1 + a (e^d - 1))``, which is largest at
   ``a = 1 / (1 + e^(d/2))``. A mean moves by at most the total variation times the range of the values, which is at
   most twice their largest distance from t.

Together, with ``r = |mean_S v - t|``, what an even mean of the wanted values would miss::

    |error| <= r + tanh(d / 4) range_S(v) + w(U) max_U |v - t|

*Rounding.* A machine with unit roundoff u computes each score to within ``sigma = (2 inputs + qk_dim + 8) u A``, where
A is the largest sum of absolute products in a score (Higham 2002, section 3.1). The scores that m and d are read from
are rounded as well, so m shrinks and d grows by 4 sigma. What remains, of exponentials, values and means, here and in
the head, is below ``2 (n + inputs + 16) u`` times the largest sum of absolute products in a value.

*Pairs instead of sequences.* A score depends on the query's place and the key's place (a place is a token at a
position), and so do tiers and values. For each query place and each tier that can be the highest one in its sequence,
let S be any of the tier's places and U any n - 1 of lower tiers. The bound over all of these covers every sequence,
however many there are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from glassformer.handcraft.circuits import place_inputs, possible_pairs
from glassformer.handcraft.description import Description
from glassformer.handcraft.sequences import SequenceSpace
from glassformer.handcraft.single_head import HeadWeights
from glassformer.handcraft.tasks import Queries

_NUMBERS_AT_ONCE = 1 << 15


class Bound(NamedTuple):
    """What scores and values imply.

    Attributes:
        margin: Smallest distance of a query's best wanted score from its best unwanted one; infinite without any.
        error: No output is further from its target.
    """

    margin: float
    error: float


@dataclass(frozen=True, eq=False)
class PlaceTables:
    """What a head makes of every place: the scores of all pairs, all values, and how exact a machine is about them.

    Attributes:
        scores: ``[query place, key place]``.
        values: ``[place, v_dim]``.
        score_rounding: Largest rounding error of a difference of two scores, in the head and in these tables.
        value_rounding: The same of an output, that of its scores left out.
        largest_score: Largest sum of absolute products in a score.
        largest_value: Largest sum of absolute products in a value.
    """

    scores: Float[np.ndarray, "query key"]
    values: Float[np.ndarray, "place v_dim"]
    score_rounding: float
    value_rounding: float
    largest_score: float
    largest_value: float

    @classmethod
    def of(cls, head: HeadWeights, space: SequenceSpace, roundoff: float) -> PlaceTables:
        """The tables of ``head`` for the places of ``space``, on a machine with this unit roundoff."""
        x = place_inputs(head, space)
        scale = 1 / math.sqrt(head.qk_dim)
        with np.errstate(over="ignore", invalid="ignore"):
            scores = (x @ head.Qm) @ (x @ head.Km).T * scale
            query_sums, key_sums = np.abs(x) @ np.abs(head.Qm), np.abs(x) @ np.abs(head.Km)
            largest = float((query_sums.max(axis=0) @ key_sums.max(axis=0)) * scale)
            values = x @ head.Vm
            value_sum = float((np.abs(x) @ np.abs(head.Vm)).max())
        inputs = x.shape[1]
        return cls(
            scores,
            values,
            4 * (2 * inputs + head.qk_dim + 8) * roundoff * largest,
            2 * (space.num_positions + inputs + 16) * roundoff * value_sum,
            largest,
            value_sum,
        )


def leakage(margin: Float[np.ndarray, "..."], others: Int[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """The largest weight that ``others`` keys, all at least ``margin`` below one, can take together."""
    with np.errstate(divide="ignore", over="ignore"):
        return np.asarray(1 / (1 + np.exp(margin) / others))


def bound_of_queries(tables: PlaceTables, queries: Queries) -> Bound:
    """The bound for listed queries, from each one's own scores."""
    margin, error = math.inf, 0.0
    # Pieces that stay in the processor's cache.
    step = max(1, _NUMBERS_AT_ONCE // (len(queries.keys) * len(queries.target)))
    for start in range(0, len(queries.place), step):
        part = _bound_of_piece(tables, Queries(*(each[..., start : start + step] for each in queries)))
        margin, error = min(margin, part.margin), max(error, part.error)
    return Bound(margin, error + tables.value_rounding)


def _bound_of_piece(tables: PlaceTables, queries: Queries) -> Bound:
    """The bound for these queries, but for the rounding of values."""
    place, keys, wanted, others, target = queries
    scores = tables.scores.ravel().take(place * len(tables.scores) + keys)
    best, worst = _largest(scores, wanted), -_largest(-scores, wanted)
    margin, spread = best - _largest(scores, others), best - worst
    leaked = leakage(margin - tables.score_rounding, others.sum(axis=0))
    uneven = np.tanh((spread + tables.score_rounding) / 4)
    # Products with 0 and 1 leave out keys faster than np.where does.
    on_wanted, on_others = wanted.astype(float), others.astype(float)
    difference = tables.values.T.take(keys, axis=1) - target[:, None]
    distance = np.abs(difference)
    missed = np.abs((difference * on_wanted).sum(axis=1)) / on_wanted.sum(axis=0)
    span = 2 * (distance * on_wanted).max(axis=1)
    error = missed + uneven * span + leaked * (distance * on_others).max(axis=1)
    return Bound(float(margin.min()), float(error.max()))


def bound_of_pairs(tables: PlaceTables, description: Description) -> Bound:
    """The bound for every sequence of the description's space, from pairs of places; see the module's text."""
    ideal, values, rounding = description.place_values, tables.values, tables.score_rounding
    others = np.array(description.space.num_positions - 1)
    margin, error = math.inf, 0.0
    for case in tier_cases(description.space, description.table.tiers, tables.scores):
        wanted, lower = values[case.wanted], values[case.lower]
        missed = np.abs(wanted - ideal[case.wanted]).max(axis=0)
        span = wanted.max(axis=0) - wanted.min(axis=0)
        low, high = ideal[case.wanted].min(axis=0), ideal[case.wanted].max(axis=0)
        distance = np.zeros(len(missed))
        if case.lower.any():
            distance = np.maximum(np.maximum(lower.max(axis=0) - low, high - lower.min(axis=0)), 0.0)
        leaked = leakage(case.margin - rounding, others)
        uneven = np.tanh((case.spread + rounding) / 4)
        errors = missed + uneven[:, None] * span + leaked[:, None] * distance
        margin, error = min(margin, float(case.margin.min())), max(error, float(errors.max()))
    return Bound(margin, error + tables.value_rounding)


class TierCase(NamedTuple):
    """Some query places that have one tier as their highest, and how its scores stand to those of lower tiers.

    Attributes:
        queries: The query places.
        wanted: The places of the tier.
        lower: The places of lower tiers.
        margin: For each query the lowest score of the tier less the highest of lower tiers; infinite without any.
        spread: For each query the highest score of the tier less its lowest.
    """

    queries: Int[np.ndarray, " query"]
    wanted: Bool[np.ndarray, " place"]
    lower: Bool[np.ndarray, " place"]
    margin: Float[np.ndarray, " query"]
    spread: Float[np.ndarray, " query"]


def tier_cases(
    space: SequenceSpace, tiers: Int[np.ndarray, "query key"], scores: Float[np.ndarray, "query key"]
) -> Iterator[TierCase]:
    """Every tier that can be the highest one of a judged query, with the queries whose places are told apart alike."""
    possible = possible_pairs(space)
    highest, lowest = np.where(possible, scores, -np.inf), np.where(possible, scores, np.inf)
    floors = lowest_best_tier(space, tiers)
    groups: dict[bytes, list[int]] = {}
    for query in range(int(space.has_cls), len(tiers)):
        groups.setdefault(tiers[query].tobytes(), []).append(query)
    for group in groups.values():
        row = tiers[group[0]]
        for tier in np.unique(row).tolist():
            wanted, lower = row == tier, row < tier
            queries = np.array([query for query in group if floors[query] <= tier], dtype=np.int64)
            queries = queries[possible[np.ix_(queries, wanted)].any(axis=1)]
            if not len(queries):
                continue
            top = highest[np.ix_(queries, wanted)].max(axis=1)
            bottom = lowest[np.ix_(queries, wanted)].min(axis=1)
            below = highest[np.ix_(queries, lower)].max(axis=1, initial=-np.inf)
            yield TierCase(queries, wanted, lower, bottom - below, top - bottom)


def lowest_best_tier(space: SequenceSpace, tiers: Int[np.ndarray, "query key"]) -> Int[np.ndarray, " query"]:
    """For each query place, a tier that some key of its sequence is sure to reach, whatever the other letters are.

    A query meets itself, CLS where there is one, and some letter at every earlier position.
    """
    _, positions = space.places
    first = int(space.has_cls)
    own = np.diagonal(tiers)
    if space.has_cls:
        own = np.maximum(own, tiers[:, 0])
    worst = tiers[:, first:].reshape(len(tiers), space.max_len, len(space.letters)).min(axis=2)
    before = np.arange(first, space.num_positions) < positions[:, None]
    return np.asarray(np.maximum(own, np.where(before, worst, -1).max(axis=1)))


def _largest(values: Float[np.ndarray, "..."], where: Bool[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """The maximum over the keys, which come first, of those ``where`` holds; minus infinity if none."""
    return np.asarray(np.where(where, values, -np.inf).max(axis=0))
