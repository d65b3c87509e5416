"""Scores and weights of a few heads and queries of an attention, in blocks whose memory is bounded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from glassformer.layers.attention_weights import weights_of_scores
from glassformer.layers.pattern import FULL, Pattern

BLOCK_BYTES = 2**21
"""What the scores of one block take at most; a row of one head is the least."""


@dataclass(frozen=True, eq=False)
class Given:
    """What an attention was given.

    Args:
        q: Queries.
        k: Keys; consecutive query heads share a key-value head.
        v: Values.
        scale: Factor on the scores.
        pattern: Who may see whom.
        mask: Further restriction: True = may attend, or numbers that are added to the scores.
        key_weights: One factor per query head on its keys.
        sinks: One logit per query head that takes part in the softmax and carries no value.
    """

    q: Float[Tensor, "batch head query head_dim"]
    k: Float[Tensor, "batch kv_head key head_dim"]
    v: Float[Tensor, "batch kv_head key value_dim"]
    scale: float
    pattern: Pattern = FULL
    mask: Shaped[Tensor, "#batch #head #query key"] | None = None
    key_weights: Float[Tensor, " head"] | None = None
    sinks: Float[Tensor, " head"] | None = None

    @property
    def group(self) -> int:
        """How many query heads share a key-value head."""
        return self.q.shape[1] // self.k.shape[1]


@dataclass(frozen=True, eq=False)
class Rows:
    """Some rows of some heads; the key axis holds the keys ``first`` to ``first + weights.shape[-1] - 1``."""

    first: int
    weights: Float[Tensor, "batch head query key"] | None = None
    scores: Float[Tensor, "batch head query key"] | None = None
    sinks: Float[Tensor, "batch head query"] | None = None


def seen_keys(given: Given, queries: Sequence[int]) -> tuple[int, int]:
    """The first key that any of the queries may see by causality and window, and the one behind the last."""
    keys, offset = given.k.shape[2], given.k.shape[2] - given.q.shape[2]
    pattern = given.pattern
    if not pattern.causal:
        return 0, keys
    first = 0 if pattern.window is None else max(0, offset + min(queries) - pattern.window + 1)
    return first, offset + max(queries) + 1


@torch.no_grad()
def exact_rows(given: Given, heads: Sequence[int], queries: Sequence[int], what: Sequence[str]) -> Rows:
    r"""Rows of the attention matrix of some heads::

        scores[h, i, j]  = scale * key_weights[h] * q[h, i] . k[g, j] + mask[i, j]      -inf where forbidden
        weights[h, i, j] = exp(scores[h, i, j]) / (exp(sinks[h]) + sum_j' exp(scores[h, i, j']))
        sinks[h, i]      = exp(sinks[h]) / (exp(sinks[h]) + sum_j' exp(scores[h, i, j']))

    with g = h // group. Beside the result itself, a few times ``BLOCK_BYTES`` are held at a time: each block of queries
    meets only the keys that it can see, and keys are not copied.

    Args:
        given: The attention.
        heads: Query heads, ascending.
        queries: Rows, ascending.
        what: Which of "weights", "scores" and "sinks" to fill.

    Returns:
        What was asked for, in float32 or wider. A row that may see nothing has weights of 0.
    """
    first, last = seen_keys(given, queries)
    wide = torch.promote_types(given.q.dtype, torch.float32)
    shape = (given.q.shape[0], len(heads), len(queries), last - first)
    new = partial(torch.full, dtype=wide, device=given.q.device)
    weights = new(shape, 0.0) if "weights" in what else None
    scores = new(shape, -torch.inf) if "scores" in what else None
    sinks = new(shape[:3], 0.0) if "sinks" in what else None
    for at, members in _by_key_value_head(heads, given.group):
        rows = max(1, BLOCK_BYTES // (shape[0] * len(members) * shape[3] * wide.itemsize))
        for start, stop in _runs(queries, rows):
            block, allowed, low = _block(given, members, range(queries[start], queries[stop - 1] + 1), wide)
            place = (slice(None), slice(at, at + len(members)), slice(start, stop))
            keys = slice(low - first, low - first + block.shape[3])
            if scores is not None:
                scores[(*place, keys)] = block
            share = None
            if given.sinks is not None:
                logit = given.sinks[list(members)].to(wide)[:, None]
                share = torch.sigmoid(logit - block.logsumexp(-1))
                if sinks is not None:
                    sinks[place] = share
            if weights is not None:
                mixed = block.softmax(-1) if allowed is None else weights_of_scores(block, allowed)
                weights[(*place, keys)] = mixed if share is None else mixed.mul_(1 - share[..., None])
    return Rows(first, weights, scores, sinks)


def _block(given: Given, heads: range, queries: range, wide: torch.dtype) -> tuple[Tensor, Tensor | None, int]:
    """Scores of heads that share their keys, for consecutive queries; who may see whom; the number of the first key."""
    low, high = seen_keys(given, queries)
    batch, head_dim = given.q.shape[0], given.q.shape[3]
    q = given.q[:, heads.start : heads.stop, queries.start : queries.stop].to(wide) * given.scale
    if given.key_weights is not None:
        q = q * given.key_weights[heads.start : heads.stop].to(wide)[:, None, None]
    k = given.k[:, heads.start // given.group, low:high].to(wide)
    with torch.autocast(q.device.type, enabled=False):  # which would make the product narrow again
        scores = (q.reshape(batch, -1, head_dim) @ k.mT).view(batch, len(heads), len(queries), high - low)
    allowed = None
    padding = given.pattern.key_padding
    if given.pattern.causal or padding is not None:
        # The last of these queries stands at the last of these keys, as a pattern has it.
        padding = None if padding is None else padding[:, low:high]
        narrow = Pattern(given.pattern.causal, given.pattern.window, padding)
        allowed = narrow.mask(len(queries), high - low, scores.device)
        scores.masked_fill_(~allowed, -torch.inf)
    if given.mask is not None:
        mask = given.mask[..., low:high]
        mask = mask if mask.shape[2] == 1 else mask[:, :, queries.start : queries.stop]
        mask = mask if mask.shape[1] == 1 else mask[:, heads.start : heads.stop]
        if mask.dtype == torch.bool:
            scores.masked_fill_(~mask, -torch.inf)
            allowed = mask if allowed is None else allowed & mask
        else:
            scores += mask
            allowed = scores > -torch.inf
    return scores, allowed, low


def _by_key_value_head(heads: Sequence[int], group: int) -> Iterator[tuple[int, range]]:
    """Consecutive heads that share their keys, each with the place of the first in ``heads``."""
    start = 0
    for stop in range(1, len(heads) + 1):
        ends = stop == len(heads) or heads[stop] != heads[stop - 1] + 1 or heads[stop] // group != heads[start] // group
        if ends:
            yield start, range(heads[start], heads[stop - 1] + 1)
            start = stop


def _runs(queries: Sequence[int], longest: int) -> Iterator[tuple[int, int]]:
    """Places of consecutive queries, at most ``longest`` at a time."""
    start = 0
    for stop in range(1, len(queries) + 1):
        if stop == len(queries) or queries[stop] != queries[stop - 1] + 1 or stop - start == longest:
            yield start, stop
            start = stop
