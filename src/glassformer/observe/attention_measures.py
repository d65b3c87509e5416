"""What attention weights look like in numbers: how spread they are, how far they reach, where they rest.

Everything here takes plain arrays of weights, whatever they come from. Where a row sums to less than 1, the rest lies
on the head's sink.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from glassformer.errors import require

_ROUNDING = 1e-2
"""How far above 1 a row may sum, in weights of half precision."""


@dataclass(frozen=True, eq=False)
class HeadMeasures:
    """One number for each head: means over its queries, NaN where no query counts.

    Attributes:
        entropy: Of the weights on keys, in nats: 0 where a query reads one key, ``ln n`` where it reads n alike.
        entropy_share: The entropy as a share of its largest value, ``ln`` of the number of keys that may be seen, in
            [0, 1]. Queries that may see one key only do not count.
        distance: Of a key from its query in positions, weighted by attention.
        first: The weight on key 0.
        itself: The weight of a query on its own position.
        previous: The weight on the position before; the query at position 0 does not count.
        sink: What is left of 1: the weight on the head's sink; 0 for a head without one.
    """

    entropy: Float[np.ndarray, "*heads"]
    entropy_share: Float[np.ndarray, "*heads"]
    distance: Float[np.ndarray, "*heads"]
    first: Float[np.ndarray, "*heads"]
    itself: Float[np.ndarray, "*heads"]
    previous: Float[np.ndarray, "*heads"]
    sink: Float[np.ndarray, "*heads"]


def head_measures(
    weights: Float[np.ndarray, "*heads query key"],
    *,
    visible: Bool[np.ndarray, "query key"] | None = None,
    positions: Int[np.ndarray, " query"] | None = None,
) -> HeadMeasures:
    """Every measure of every head. Heads are gone through one by one, so memory holds a few copies of one head.

    Args:
        weights: Attention weights, with any axes in front, such as ``[layer, head, query, key]``. Cut padding off
            before.
        visible: Which keys a query may see, such as ``np.tri(n, dtype=bool)`` for a causal head; all when None.
        positions: Which key stands where the query does; None for query i at key i, which needs as many of both.

    Raises:
        InputError: No queries or keys, weights below 0 or not finite, rows that sum to more than 1, a weight on what
            is not visible, or positions that are not among the keys.
    """
    _check(weights)
    queries, keys = weights.shape[-2:]
    require(
        positions is not None or queries == keys,
        f"{queries} queries and {keys} keys without positions",
        "which key stands where each query does",
        "Pass positions=np.arange(start, start + queries); for cross-attention use entropy() alone.",
    )
    places = np.arange(keys) if positions is None else positions
    require(
        len(places) == queries and bool(((places >= 0) & (places < keys)).all()),
        f"positions = {np.array2string(places, threshold=6)}",
        f"{queries} in [0, {keys})",
        "Count positions among the keys.",
    )
    heads = weights.shape[:-2]
    names = list(HeadMeasures.__dataclass_fields__)
    found = {name: np.full(heads, np.nan) for name in names}
    for head in np.ndindex(heads):
        for name, rows in zip(names, _measure(weights[head].astype(np.float64), visible, places), strict=True):
            counted = rows[~np.isnan(rows)]
            found[name][head] = counted.mean() if counted.size else np.nan
    return HeadMeasures(**found)


def entropy(weights: Float[np.ndarray, "*rows key"]) -> Float[np.ndarray, "*rows"]:
    """The entropy of each row in nats: ``-sum over keys of p ln p`` with ``p = weights / sum of weights``.

    A row without weight has none: NaN.

    Source: Shannon 1948, "A mathematical theory of communication".
    """
    p = _shares(weights)
    return -(p * np.log(np.where(p > 0, p, 1.0))).sum(-1) + 0.0


def distances(
    weights: Float[np.ndarray, "*heads query key"], positions: Int[np.ndarray, " query"] | None = None
) -> Float[np.ndarray, "*heads query"]:
    """How far each query reads: ``sum over keys of p |key - position|``, with p as for :func:`entropy`.

    Args:
        weights: Attention weights.
        positions: Which key stands where the query does; None for query i at key i.
    """
    queries, keys = weights.shape[-2:]
    places = np.arange(queries) if positions is None else positions
    apart = np.abs(places[:, None] - np.arange(keys))
    return (_shares(weights) * apart).sum(-1)


def divergence(
    first: Float[np.ndarray, "*rows key"], second: Float[np.ndarray, "*rows key"]
) -> Float[np.ndarray, "*rows"]:
    """The Jensen-Shannon divergence of two heads in each row: ``H((p + q) / 2) - (H(p) + H(q)) / 2``.

    In nats: 0 where both read the same, ln 2 = 0.693 where they share no key. Each row is divided by its sum first;
    NaN where one of the two has no weight.

    Source: Lin 1991, "Divergence measures based on the Shannon entropy".
    """
    p, q = _shares(first), _shares(second)
    # Rounding can put it a little outside of its range.
    return np.clip(entropy((p + q) / 2) - (entropy(p) + entropy(q)) / 2, 0.0, np.log(2))


def divergences(weights: Float[np.ndarray, "head query key"]) -> Float[np.ndarray, "head head"]:
    """The :func:`divergence` of every two heads, the mean over queries; NaN where no query counts.

    Raises:
        InputError: As for :func:`head_measures`.
    """
    _check(weights)
    found = np.zeros((len(weights), len(weights)))
    for one in range(len(weights)):
        for other in range(one):
            between = divergence(weights[one], weights[other])
            counted = between[~np.isnan(between)]
            found[one, other] = found[other, one] = counted.mean() if counted.size else np.nan
    return found


def _shares(weights: np.ndarray) -> np.ndarray:
    """Each row divided by its sum, in float64; NaN where that is 0."""
    wide = weights.astype(np.float64)
    sums = wide.sum(-1, keepdims=True)
    return np.divide(wide, sums, out=np.full_like(wide, np.nan), where=sums > 0)


def _measure(
    weights: Float[np.ndarray, "query key"], visible: np.ndarray | None, places: np.ndarray
) -> tuple[Float[np.ndarray, " query"], ...]:
    """The measures of one head, query by query, in the order of :class:`HeadMeasures`."""
    queries, keys = weights.shape
    if visible is not None:
        hidden = float(weights[~visible].max(initial=0.0))
        require(hidden == 0, f"a weight of {hidden:g} on a key that is not visible", "0", "Pass the mask of the model.")
    seen = np.full(queries, keys) if visible is None else visible.sum(-1)
    rows, spread = np.arange(queries), entropy(weights)
    share = np.divide(spread, np.log(np.maximum(seen, 1)), out=np.full(queries, np.nan), where=seen > 1)
    previous = np.where(places > 0, weights[rows, np.maximum(places - 1, 0)], np.nan)
    sink = np.maximum(0.0, 1.0 - weights.sum(-1))
    return spread, share, distances(weights, places), weights[:, 0], weights[rows, places], previous, sink


def _check(weights: np.ndarray) -> None:
    require(
        min(weights.shape[-2:]) > 0,
        f"weights of shape {list(weights.shape)}",
        "at least one query and one key",
        "Pass the weights of a text that is not empty.",
    )
    if weights.size == 0:
        return
    least, most = float(weights.min()), float(weights.sum(-1, dtype=np.float64).max())
    require(
        least >= 0 and bool(np.isfinite(most)),
        f"a least weight of {least:g} and a row that sums to {most:g}",
        "finite numbers from 0 on",
        "Pass weights, which come after the softmax, and not scores.",
    )
    require(
        most <= 1 + _ROUNDING,
        f"a row that sums to {most:g}",
        "at most 1",
        "Take the weights before dropout, with [query, key] as their last axes.",
    )
