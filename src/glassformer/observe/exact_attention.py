"""Exact attention scores and weights of chosen heads and queries, computed in blocks of bounded
memory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.kernels import attention as kernel
from glassformer.kernels.pattern import FULL, Pattern
from glassformer.layers.attention import Attended, check_inputs, matrices

BLOCK_BYTES = 2**19
"""The most memory that the scores of one block take; a block has at least one row of one head."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Some rows of some heads; the key axis holds the keys ``first`` to ``first + weights.shape[-1]
    - 1``.
    """

    first: int
    weights: Float[Tensor, "batch head query key"] | None = None
    scores: Float[Tensor, "batch head query key"] | None = None
    sinks: Float[Tensor, "batch head query"] | None = None


def attention_weights(
    q: Float[Tensor, "batch head query head_dim"],
    k: Float[Tensor, "batch kv_head key head_dim"],
    pattern: Pattern = FULL,
    *,
    scale: float | None = None,
    cap: float | None = None,
    key_weights: Float[Tensor, " head"] | None = None,
    sinks: Float[Tensor, " head"] | None = None,
) -> Float[Tensor, "batch head query key"]:
    """The weights with which :func:`~glassformer.layers.attention.attend` mixes the values of these
    arguments.

    All ``batch * head * query * key`` of them are held, in float32 or wider, and can be
    differentiated. Rows sum to 1, to less with a sink, or to 0 for a query without an allowed key.
    """
    check_inputs(q, k, k, pattern, key_weights, sinks)
    allowed = pattern.mask(q.shape[2], k.shape[2], q.device)
    scale = q.shape[3] ** -0.5 if scale is None else scale
    if key_weights is None:
        q = q
    else:
        q = q * key_weights.to(q.dtype)[:, None, None]
    return kernel.weights(
        q, k, allowed, scale, None if sinks is None else sinks.view(1, -1, 1), cap
    )


def seen_keys(inputs: Attended, queries: Sequence[int]) -> tuple[int, int]:
    """The range of keys that causality and window allow the queries: the first key, and the one
    after the last.
    """
    keys = inputs.k.shape[2]
    offset = inputs.k.shape[2] - inputs.q.shape[2]
    pattern = inputs.pattern
    if not pattern.causal:
        return 0, keys
    if pattern.window is None:
        first = 0
    else:
        first = max(0, offset + min(queries) - pattern.window + 1)
    return first, offset + max(queries) + 1


@torch.no_grad()
def exact_rows(
    inputs: Attended, heads: Sequence[int], queries: Sequence[int], what: Sequence[str]
) -> Rows:
    r"""Rows of the attention matrix of some heads::

        scores[h, i, j]  = scale * key_weights[h] * q[h, i] . k[g, j] + mask[i, j]      -inf where
        forbidden weights[h, i, j] = exp(scores[h, i, j]) / (exp(sinks[h]) + sum_j' exp(scores[h, i,
        j'])) sinks[h, i]      = exp(sinks[h]) / (exp(sinks[h]) + sum_j' exp(scores[h, i, j']))

    with g = h // group, and ``cap * tanh(product / cap)`` in place of the product where there is a
    cap. Besides the result, memory holds a few times ``BLOCK_BYTES``: each block of queries meets
    only the keys that it can see, and keys are not copied.

    ``heads`` and ``queries`` are in any order; ``what`` says which of "weights", "scores" and
    "sinks" to compute, in float32 or wider. A row that may see no key has weights of 0.
    """
    first, last = seen_keys(inputs, queries)
    wide = torch.promote_types(inputs.q.dtype, torch.float32)
    if inputs.rewrites:
        scores, weights = (
            each[:, :, list(queries), first:last] for each in matrices(inputs, heads)
        )
        sinks = None
        if inputs.sinks is not None:  # of the softmax, before weights are rewritten
            sinks = _sink_shares(inputs.sinks[list(heads)], scores)
        return Rows(first, weights, scores, sinks)
    shape = (inputs.q.shape[0], len(heads), len(queries), last - first)
    kept: dict[str, Tensor] = {}

    def keep(name: str, part: Tensor, place: tuple[slice, ...], otherwise: float) -> None:
        full = shape[: part.dim()]
        if name in what and part.shape == full:
            kept[name] = part
        elif name in what:
            kept[name] = kept[name] if name in kept else part.new_full(full, otherwise)
            kept[name][place] = part

    every = tuple(heads) == tuple(range(inputs.q.shape[1]))
    for at, end in (
        [(0, len(heads))] if every else _runs(heads, len(heads), inputs.group)
    ):  # which share their keys
        members = range(heads[at], heads[end - 1] + 1)
        rows = max(1, BLOCK_BYTES // (shape[0] * len(members) * shape[3] * wide.itemsize))
        for start, stop in _runs(queries, rows):
            block, whole, low = _block(
                inputs, members, range(queries[start], queries[stop - 1] + 1), wide
            )
            place = (slice(None), slice(at, end), slice(start, stop))
            keys = slice(low - first, low - first + block.shape[3])
            keep("scores", block, (*place, keys), -torch.inf)
            share = None
            if inputs.sinks is not None:
                share = _sink_shares(inputs.sinks[list(members)], block)
                keep("sinks", share, place, 0.0)
            if "weights" in what:
                if whole:
                    empty = None
                else:
                    empty = (block == -torch.inf).all(-1, keepdim=True)
                mixed = torch.softmax(block, -1, out=None if "scores" in what else block)
                if empty is None:
                    mixed = mixed
                else:
                    mixed = mixed.masked_fill_(empty, 0.0)
                keep(
                    "weights",
                    mixed if share is None else mixed.mul_(1 - share[..., None]),
                    (*place, keys),
                    0.0,
                )
    if "sinks" in what and inputs.sinks is None:
        kept["sinks"] = torch.zeros(shape[:3], dtype=wide, device=inputs.q.device)
    return Rows(first, **kept)


def _sink_shares(
    sinks: Float[Tensor, " head"], scores: Float[Tensor, "batch head query key"]
) -> Float[Tensor, "batch head query"]:
    sinks = sinks.to(scores.dtype)[:, None]
    return torch.sigmoid(sinks - scores.logsumexp(-1)).masked_fill_(sinks == -torch.inf, 0.0)


def _block(
    inputs: Attended, heads: range, queries: range, wide: torch.dtype
) -> tuple[Tensor, bool, int]:
    """For consecutive queries and all heads, or some that share their keys: their scores, whether
    each query certainly sees a key, and the index of the first key.
    """
    low, high = seen_keys(inputs, queries)
    batch = inputs.q.shape[0]
    head_dim = inputs.q.shape[3]
    q = inputs.q[:, heads.start : heads.stop, queries.start : queries.stop].to(wide)
    if inputs.key_weights is not None:
        q = q * inputs.key_weights[heads.start : heads.stop].to(wide)[:, None, None]
    k = inputs.k[
        :, heads.start // inputs.group : (heads.stop - 1) // inputs.group + 1, low:high
    ].to(wide)
    with torch.autocast(
        q.device.type, enabled=False
    ):  # which would lower the precision of the product
        q = q.reshape(batch * k.shape[1], -1, head_dim)
        k = k.flatten(0, 1)
        scores = torch.baddbmm(q.new_empty(1, 1, 1), q, k.mT, beta=0, alpha=inputs.scale)
    scores = scores.view(batch, len(heads), len(queries), high - low)
    if inputs.cap is None:
        scores = scores
    else:
        scores = kernel.soft_capped(scores, inputs.cap)
    pattern = inputs.pattern
    padding = inputs.pattern.key_padding
    if pattern.causal and padding is None and pattern.window is None:
        after = scores.shape[3] - len(queries)  # keys before all queries
        # Not masked_fill_, which takes ten times as long; first 0, as the masked numbers may be
        # NaN.
        scores.tril_(after).add_(torch.full_like(scores[0, 0], -torch.inf).triu_(after + 1))
    elif pattern.causal or padding is not None:
        # A pattern has the last query at the last key, as here.
        padding = None if padding is None else padding[:, low:high]
        narrow = Pattern(pattern.causal, pattern.window, padding)
        scores.masked_fill_(~narrow.mask(len(queries), high - low, scores.device), -torch.inf)
    if inputs.mask is not None:
        mask = inputs.mask[..., low:high]
        if mask.shape[2] == 1:
            mask = mask
        else:
            mask = mask[:, :, queries.start : queries.stop]
        if mask.shape[1] == 1:
            mask = mask
        else:
            mask = mask[:, heads.start : heads.stop]
        if mask.dtype == torch.bool:
            scores = scores.masked_fill_(~mask, -torch.inf)
        else:
            scores = scores.add_(mask)
    whole = padding is None and inputs.mask is None and inputs.q.shape[2] <= inputs.k.shape[2]
    return scores, whole, low


def _runs(
    numbers: Sequence[int], longest: int, group: int | None = None
) -> Iterator[tuple[int, int]]:
    """Index ranges of consecutive numbers, at most ``longest`` each, within multiples of ``group``."""
    start = 0
    for stop in range(1, len(numbers) + 1):
        ends = (
            stop == len(numbers)
            or numbers[stop] != numbers[stop - 1] + 1
            or stop - start == longest
        )
        if ends or (group is not None and numbers[stop] % group == 0):
            yield start, stop
            start = stop
