"""The weights of an attention, from its queries and keys: for whoever wants to look at all of them."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.errors import require
from glassformer.layers.pattern import FULL, Pattern


def attention_weights(
    q: Float[Tensor, "batch head query head_dim"],
    k: Float[Tensor, "batch kv_head key head_dim"],
    pattern: Pattern = FULL,
    *,
    scale: float | None = None,
) -> Float[Tensor, "batch head query key"]:
    """How much of each value goes into each query's output::

        weights[h, i, j] = exp(scale * q[h, i] . k[g, j]) / sum_j' exp(scale * q[h, i] . k[g, j'])

    over the keys that the pattern allows, 0 for the others, with g = h // (num_heads / num_kv_heads). They are the
    weights by which :func:`~glassformer.layers.attention.attend` mixes the values without ever holding them. Here
    all are held: ``batch * head * query * key`` numbers. They can be differentiated.

    Args:
        q: Queries.
        k: Keys; consecutive query heads share a key-value head.
        pattern: Who may see whom.
        scale: Factor on the scores; ``head_dim ** -0.5`` when None.

    Returns:
        Rows that sum to 1, or hold zeros alone for a query that may see no key; in float32 or wider.

    Raises:
        InputError: Sizes that do not fit one another, or a pattern that does not fit them.

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.2.1.
    """
    shapes = f"q {list(q.shape)}, k {list(k.shape)}"
    require(
        q.dim() == k.dim() == 4 and q.shape[0] == k.shape[0] and q.shape[3] == k.shape[3],
        shapes,
        "[batch, head, position, head_dim], alike in batch and head_dim",
        "Split heads before attending.",
    )
    require(
        k.shape[1] >= 1 and q.shape[1] % k.shape[1] == 0,
        shapes,
        "key-value heads that divide the query heads",
        "Choose num_kv_heads among the divisors of num_heads.",
    )
    queries, keys = q.shape[2], k.shape[2]
    pattern.check(q.shape[0], queries, keys)
    wide = torch.promote_types(q.dtype, torch.float32)
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    scores = (q.to(wide) @ k.to(wide).mT) * (q.shape[3] ** -0.5 if scale is None else scale)
    return weights_of_scores(scores, pattern.mask(queries, keys, q.device))


def weights_of_scores(
    scores: Float[Tensor, "*batch query key"], allowed: Bool[Tensor, "*shape key"]
) -> Float[Tensor, "*batch query key"]:
    """The softmax of each row over its allowed keys; zeros for the other keys, and in a row that may see none.

    Args:
        scores: What the softmax is of, scaled already.
        allowed: True where a query may see a key; shaped to be broadcast to the scores.
    """
    weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
    return weights.masked_fill(~allowed.any(-1, keepdim=True), 0.0)
