"""Measures of attention weights: entropy, distance, and shares of certain keys.

All functions take arrays of weights. Where a row sums to less than 1, the rest is on the head's sink.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from glassformer.errors import require

_ROUNDING = 1e-2
"""How far a row's sum may exceed 1, as weights in half precision do."""


@dataclass(frozen=True, eq=False)
class HeadMeasures:
    """One number for each head: means over its queries, NaN where no query counts."""

    # In nats: 0 where a query reads one key, ln n where it reads n keys equally.
    entropy: Float[np.ndarray, "*heads"]
    # Divided by ln of the number of visible keys, in [0, 1]; queries with one visible key do not count.
    entropy_share: Float[np.ndarray, "*heads"]
    distance: Float[np.ndarray, "*heads"]  # of a key from its query in positions, weighted by attention
    first: Float[np.ndarray, "*heads"]  # the weight on key 0
    itself: Float[np.ndarray, "*heads"]  # the weight of a query on its own position
    previous: Float[np.ndarray, "*heads"]  # the weight on the previous position; position 0 does not count
    sink: Float[np.ndarray, "*heads"]  # the weight on the head's sink: 1 minus the sum of the row


def head_measures(
    weights: Float[np.ndarray, "*heads query key"],
    *,
    visible: Bool[np.ndarray, "query key"] | None = None,
    positions: Int[np.ndarray, " query"] | None = None,
) -> HeadMeasures:
    """All measures of every head. Heads are processed one by one, so memory holds a few copies of one head.

    Args:
        weights: Attention weights without padding, with any leading axes, such as ``[layer, head, query, key]``.
        visible: Which keys a query may see, such as ``np.tri(n, dtype=bool)`` for a causal head; all when None.
        positions: Index of the key at each query's position; query i is at key i when None, for as many of both.
    """
    _check(weights)
    queries, keys = weights.shape[-2:]
    got = f"{queries} queries and {keys} keys without positions"
    fix = "Pass positions=np.arange(start, start + queries); for cross-attention use entropy() alone."
    require(positions is not None or queries == keys, got, "the key at each query's position", fix)
    places = np.arange(keys) if positions is None else positions
    fits = len(places) == queries and bool(((places >= 0) & (places < keys)).all())
    got = f"positions = {np.array2string(places, threshold=6)}"
    require(fits, got, f"{queries} in [0, {keys})", "Pass indices of keys.")
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

    NaN for a row without weight.

    Source: Shannon 1948, "A mathematical theory of communication".
    """
    p = _shares(weights)
    return -(p * np.log(np.where(p > 0, p, 1.0))).sum(-1) + 0.0


def distances(
    weights: Float[np.ndarray, "*heads query key"], positions: Int[np.ndarray, " query"] | None = None
) -> Float[np.ndarray, "*heads query"]:
    """How far each query reads: ``sum over keys of p |key - position|``, with p as for :func:`entropy`.

    ``positions`` are the indices of the keys at the queries' positions; query i is at key i when None.
    """
    queries, keys = weights.shape[-2:]
    places = np.arange(queries) if positions is None else positions
    apart = np.abs(places[:, None] - np.arange(keys))
    return (_shares(weights) * apart).sum(-1)


def divergence(
    first: Float[np.ndarray, "*rows key"], second: Float[np.ndarray, "*rows key"]
) -> Float[np.ndarray, "*rows"]:
    """The Jensen-Shannon divergence of two heads in each row: ``H((p + q) / 2) - (H(p) + H(q)) / 2``.

    In nats: 0 for equal rows, ln 2 = 0.693 for rows without a common key. Each row is divided by its sum first; NaN
    where one of the two has no weight.

    Source: Lin 1991, "Divergence measures based on the Shannon entropy".
    """
    p, q = _shares(first), _shares(second)
    # Rounding may exceed the range.
    return np.clip(entropy((p + q) / 2) - (entropy(p) + entropy(q)) / 2, 0.0, np.log(2))


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
        require(hidden == 0, f"a weight of {hidden:g} on a key that is not visible", "0", "Pass the model's mask.")
    seen = np.full(queries, keys) if visible is None else visible.sum(-1)
    rows, spread = np.arange(queries), entropy(weights)
    share = np.divide(spread, np.log(np.maximum(seen, 1)), out=np.full(queries, np.nan), where=seen > 1)
    previous = np.where(places > 0, weights[rows, np.maximum(places - 1, 0)], np.nan)
    sink = np.maximum(0.0, 1.0 - weights.sum(-1))
    return spread, share, distances(weights, places), weights[:, 0], weights[rows, places], previous, sink


def _check(weights: np.ndarray) -> None:
    got = f"weights of shape {list(weights.shape)}"
    require(min(weights.shape[-2:]) > 0, got, "at least one query and one key", "Pass weights of a text with tokens.")
    least, most = float(weights.min(initial=0.0)), float(weights.sum(-1, dtype=np.float64).max(initial=0.0))
    got = f"a least weight of {least:g} and a row that sums to {most:g}"
    fix = "Pass attention weights (after the softmax), not scores."
    require(least >= 0 and bool(np.isfinite(most)), got, "finite numbers from 0 on", fix)
    fix = "Take the weights before dropout, with [query, key] as their last axes."
    require(most <= 1 + _ROUNDING, f"a row that sums to {most:g}", "at most 1", fix)
