"""The weights of an attention, from its queries and keys: for whoever wants to look at all of them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
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
    key_weights: Float[Tensor, " head"] | None = None,
    sinks: Float[Tensor, " head"] | None = None,
) -> Float[Tensor, "batch head query key"]:
    """How much of each value goes into each query's output::

        scores[h, i, j]  = scale * key_weights[h] * q[h, i] . k[g, j]
        weights[h, i, j] = exp(scores[h, i, j]) / (exp(sinks[h]) + sum_j' exp(scores[h, i, j']))

    over the keys that the pattern allows, 0 for the others, with g = h // (num_heads / num_kv_heads). They are the
    weights by which :func:`~glassformer.layers.attention.attend` mixes the values without ever holding them. Here
    all are held: ``batch * head * query * key`` numbers. They can be differentiated.

    Args:
        q: Queries.
        k: Keys; consecutive query heads share a key-value head.
        pattern: Who may see whom.
        scale: Factor on the scores; ``head_dim ** -0.5`` when None.
        key_weights: One factor per query head on its keys.
        sinks: One logit per query head that takes part in the softmax and carries no value.

    Returns:
        Rows that sum to 1, or to less with a sink, or hold zeros alone for a query that may see no key; in float32 or
        wider.

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
    for name, per_head in (("key_weights", key_weights), ("sinks", sinks)):
        require(
            per_head is None or per_head.shape == (q.shape[1],),
            f"{name} of shape {None if per_head is None else list(per_head.shape)}",
            f"one number per query head, [{q.shape[1]}]",
            f"Make {name} as long as num_heads.",
        )
    queries, keys = q.shape[2], k.shape[2]
    pattern.check(q.shape[0], queries, keys)
    wide = torch.promote_types(q.dtype, torch.float32)
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    scores = (q.to(wide) @ k.to(wide).mT) * (q.shape[3] ** -0.5 if scale is None else scale)
    if key_weights is not None:
        scores = scores * key_weights.to(wide)[:, None, None]
    allowed = pattern.mask(queries, keys, q.device)
    if sinks is None:
        return weights_of_scores(scores, allowed)
    logit = sinks.to(wide)[:, None, None].expand(*scores.shape[:3], 1)
    return weights_of_scores(torch.cat([scores, logit], dim=-1), F.pad(allowed, (0, 1), value=True))[..., :-1]


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
