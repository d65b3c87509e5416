"""Measures of attention weights: entropy, distance, and how far two heads differ.

All functions take arrays of weights. If a row sums to less than 1, the rest is on the head's sink.
"""

import numpy as np
from jaxtyping import Float, Int


def entropy(weights: Float[np.ndarray, "*rows key"]) -> Float[np.ndarray, "*rows"]:
    """Return the entropy of each row in nats: ``-sum over keys of p ln p``.

    ``p = weights / sum of weights``; NaN for a row without weight.

    Source: Shannon 1948, "A mathematical theory of communication".
    """
    p = _shares(weights)
    return -(p * np.log(np.where(p > 0, p, 1.0))).sum(-1) + 0.0


def distances(
    weights: Float[np.ndarray, "*heads query key"],
    positions: Int[np.ndarray, " query"] | None = None,
) -> Float[np.ndarray, "*heads query"]:
    """Return the mean distance of each query to its keys: ``sum over keys of p |key - position|``.

    ``p`` is as in :func:`entropy`. ``positions`` are the indices of the keys at the queries'
    positions; query i is at key i when None.
    """
    num_queries, num_keys = weights.shape[-2:]
    if positions is None:
        positions = np.arange(num_queries)
    distance = np.abs(positions[:, None] - np.arange(num_keys))
    return (_shares(weights) * distance).sum(-1)


def divergence(
    first: Float[np.ndarray, "*rows key"], second: Float[np.ndarray, "*rows key"]
) -> Float[np.ndarray, "*rows"]:
    """Return the Jensen-Shannon divergence of two heads in each row.

    It is ``H((p + q) / 2) - (H(p) + H(q)) / 2`` in nats: 0 for equal rows, ln 2 = 0.693 for rows
    without a common key. Each row is divided by its sum first; NaN if one of the two has no weight.

    Source: Lin 1991, "Divergence measures based on the Shannon entropy".
    """
    p = _shares(first)
    q = _shares(second)
    # Rounding may exceed the range.
    return np.clip(entropy((p + q) / 2) - (entropy(p) + entropy(q)) / 2, 0.0, np.log(2))


def _shares(weights: np.ndarray) -> np.ndarray:
    """Return each row divided by its sum, in float64; NaN where the sum is 0."""
    wide = weights.astype(np.float64)
    sums = wide.sum(-1, keepdims=True)
    return np.divide(wide, sums, out=np.full_like(wide, np.nan), where=sums > 0)
