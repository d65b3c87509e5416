"""Attention as the textbook writes it, in float64: every score, every weight."""

import torch
from torch import Tensor

from glassformer.layers.attention import Attended


def textbook(given: Attended) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, -inf where forbidden; weights, 0 where a query sees nothing; and the shares of the
    sinks.
    """
    q = given.q.double()
    k = given.k.double().repeat_interleave(given.group, 1)
    pattern = given.pattern
    scores = given.scale * torch.einsum("bhqd,bhkd->bhqk", q, k)
    if given.key_weights is not None:
        scores = scores * given.key_weights.double()[:, None, None]
    queries, keys = scores.shape[2:]
    behind = torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)
    allowed = torch.ones(scores.shape, dtype=torch.bool)
    if pattern.causal:
        allowed &= behind >= 0
    if pattern.window is not None:
        allowed &= behind < pattern.window
    if pattern.key_padding is not None:
        allowed &= pattern.key_padding[:, None, None]
    if given.mask is not None and given.mask.dtype == torch.bool:
        allowed &= given.mask
    elif given.mask is not None:
        scores = scores + given.mask
    scores = scores.masked_fill(~allowed, -torch.inf)
    terms = scores.exp()
    sink = 0.0 if given.sinks is None else given.sinks.double().exp()[:, None]
    total = terms.sum(-1) + sink
    total = total.masked_fill(total == 0, 1.0)
    return scores, terms / total[..., None], sink / total
