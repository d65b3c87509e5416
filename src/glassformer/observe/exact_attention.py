"""Compute exact attention scores and weights of chosen heads and queries in bounded memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.kernels import attention as kernel
from glassformer.kernels.pattern import FULL, Pattern
from glassformer.layers.attention import Attended, check_inputs, matrices

BLOCK_BYTES = 2**19
"""Most bytes of the scores of one block, which has at least one row of one head."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of the attention matrix of some heads.

    Args:
        first: The first key on the axis "key"; the others follow it.
        weights: The weights.
        scores: The scores.
        sinks: The share of the sink in each row.
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
    """Return the weights with which :func:`~glassformer.layers.attention.attend` mixes values.

    Arguments are those of ``attend``.

    All ``batch * head * query * key`` weights are in memory, in float32 or wider, and can be
    differentiated. Rows sum to 1, to less with a sink, or to 0 for a query without an allowed key.
    """
    check_inputs(q, k, k, pattern, key_weights, sinks)
    allowed = pattern.mask(q.shape[2], k.shape[2], q.device)
    if scale is None:
        scale = q.shape[3] ** -0.5
    if key_weights is not None:
        q = q * key_weights.to(q.dtype)[:, None, None]
    if sinks is not None:
        sinks = sinks.view(1, -1, 1)
    return kernel.weights(q, k, allowed, scale, sinks, cap)


def seen_keys(inputs: Attended, queries: Sequence[int]) -> tuple[int, int]:
    """Return the range of keys that causality and window allow the queries, its end exclusive."""
    num_keys = inputs.k.shape[2]
    offset = num_keys - inputs.q.shape[2]
    pattern = inputs.pattern
    if not pattern.causal:
        return 0, num_keys
    first = 0
    if pattern.window is not None:
        first = max(0, offset + min(queries) - pattern.window + 1)
    return first, offset + max(queries) + 1


@torch.no_grad()
def exact_rows(
    inputs: Attended, heads: Sequence[int], queries: Sequence[int], what: Sequence[str]
) -> Rows:
    r"""Compute rows of the attention matrix of some heads::

        scores[h, i, j]  = scale * key_weights[h] * q[h, i] . k[g, j] + mask[i, j]
        normaliser[h, i] = exp(sinks[h]) + sum_j exp(scores[h, i, j])
        weights[h, i, j] = exp(scores[h, i, j]) / normaliser[h, i]
        sinks[h, i]      = exp(sinks[h]) / normaliser[h, i]

    with g = h // group; scores are -inf where a key is forbidden. With a cap,
    ``cap * tanh(product / cap)`` takes the place of the product. Besides the result, memory holds a
    few times ``BLOCK_BYTES``: each block of queries meets only the keys that it can see, and keys
    are not copied.

    ``heads`` and ``queries`` are in any order. ``what`` selects "weights", "scores" and "sinks",
    which are in float32 or wider. A row that may see no key has weights of 0.
    """
    first, last = seen_keys(inputs, queries)
    if inputs.rewrites:
        scores, weights = (
            matrix[:, :, list(queries), first:last] for matrix in matrices(inputs, heads)
        )
        sinks = None
        if inputs.sinks is not None:  # before weights are rewritten
            sinks = _sink_shares(inputs.sinks[list(heads)], scores)
        return Rows(first, weights, scores, sinks)
    wide = torch.promote_types(inputs.q.dtype, torch.float32)
    shape = (inputs.q.shape[0], len(heads), len(queries), last - first)
    results: dict[str, Tensor] = {}

    def store(name: str, part: Tensor, place: tuple[slice, ...], otherwise: float) -> None:
        full_shape = shape[: part.dim()]
        if name not in what:
            return
        if part.shape == full_shape:
            results[name] = part
            return
        if name not in results:
            results[name] = part.new_full(full_shape, otherwise)
        results[name][place] = part

    head_runs = [(0, len(heads))]
    if tuple(heads) != tuple(range(inputs.q.shape[1])):
        head_runs = list(_runs(heads, len(heads), inputs.group))  # each shares its keys
    for first_head, end_head in head_runs:
        head_range = range(heads[first_head], heads[end_head - 1] + 1)
        row_bytes = shape[0] * len(head_range) * shape[3] * wide.itemsize
        for start, stop in _runs(queries, max(1, BLOCK_BYTES // row_bytes)):
            query_range = range(queries[start], queries[stop - 1] + 1)
            block, sees_keys, low = _block(inputs, head_range, query_range, wide)
            rows = (slice(None), slice(first_head, end_head), slice(start, stop))
            keys = slice(low - first, low - first + block.shape[3])
            store("scores", block, (*rows, keys), -torch.inf)
            share: Tensor | None = None
            if inputs.sinks is not None:
                share = _sink_shares(inputs.sinks[list(head_range)], block)
                store("sinks", share, rows, 0.0)
            if "weights" in what:
                out = None if "scores" in what else block
                store("weights", _softmax(block, sees_keys, share, out), (*rows, keys), 0.0)
    if "sinks" in what and inputs.sinks is None:
        results["sinks"] = torch.zeros(shape[:3], dtype=wide, device=inputs.q.device)
    return Rows(first, **results)


def _softmax(
    scores: Float[Tensor, "batch head query key"],
    sees_keys: bool,
    share: Float[Tensor, "batch head query"] | None,
    out: Tensor | None,
) -> Float[Tensor, "batch head query key"]:
    """Return the weights of some scores, in ``out`` if it is given.

    Rows without a key get 0, unless each ``sees_keys``; ``share`` is that of the sink.
    """
    is_empty: Tensor | None = None
    if not sees_keys:
        is_empty = (scores == -torch.inf).all(-1, keepdim=True)
    weights = torch.softmax(scores, -1, out=out)
    if is_empty is not None:
        weights.masked_fill_(is_empty, 0.0)
    if share is not None:
        weights.mul_(1 - share[..., None])
    return weights


def _sink_shares(
    sinks: Float[Tensor, " head"], scores: Float[Tensor, "batch head query key"]
) -> Float[Tensor, "batch head query"]:
    """Return the share of each query's softmax that goes to the sink."""
    sinks = sinks.to(scores.dtype)[:, None]
    return torch.sigmoid(sinks - scores.logsumexp(-1)).masked_fill_(sinks == -torch.inf, 0.0)


def _block(
    inputs: Attended, heads: range, queries: range, wide: torch.dtype
) -> tuple[Tensor, bool, int]:
    """Return the scores of consecutive queries and of all heads, or of heads that share their keys.

    The other results tell whether each query certainly sees a key, and the index of the first key.
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
    # Autocast would lower the precision of the product.
    with torch.autocast(q.device.type, enabled=False):
        q = q.reshape(batch * k.shape[1], -1, head_dim)
        k = k.flatten(0, 1)
        scores = torch.baddbmm(q.new_empty(1, 1, 1), q, k.mT, beta=0, alpha=inputs.scale)
    scores = scores.view(batch, len(heads), len(queries), high - low)
    if inputs.cap is not None:
        scores = kernel.soft_capped(scores, inputs.cap)
    pattern = inputs.pattern
    padding = inputs.pattern.key_padding
    if pattern.causal and padding is None and pattern.window is None:
        num_before = scores.shape[3] - len(queries)  # keys before all queries
        # masked_fill_ takes ten times as long. First 0, since the masked numbers may be NaN.
        future = torch.full_like(scores[0, 0], -torch.inf).triu_(num_before + 1)
        scores.tril_(num_before).add_(future)
    elif pattern.causal or padding is not None:
        # As a pattern expects, the last query is at the last key.
        if padding is not None:
            padding = padding[:, low:high]
        narrow = Pattern(pattern.causal, pattern.window, padding)
        scores.masked_fill_(~narrow.mask(len(queries), high - low, scores.device), -torch.inf)
    if inputs.mask is not None:
        mask = inputs.mask[..., low:high]
        if mask.shape[2] > 1:
            mask = mask[:, :, queries.start : queries.stop]
        if mask.shape[1] > 1:
            mask = mask[:, heads.start : heads.stop]
        if mask.dtype == torch.bool:
            scores = scores.masked_fill_(~mask, -torch.inf)
        else:
            scores = scores.add_(mask)
    is_unmasked = padding is None and inputs.mask is None
    return scores, is_unmasked and inputs.q.shape[2] <= inputs.k.shape[2], low


def _runs(
    numbers: Sequence[int], longest: int, group: int | None = None
) -> Iterator[tuple[int, int]]:
    """Yield index ranges of consecutive numbers, at most ``longest`` each.

    They stay within multiples of ``group``.
    """
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
