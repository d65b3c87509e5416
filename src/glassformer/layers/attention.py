"""The one door that every attention of every model passes: :func:`attend`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.errors import require
from glassformer.layers.pattern import FULL, Pattern

_SHORTEST_BLOCK, _LONGEST_BLOCK = 32, 512


@dataclass(frozen=True, eq=False)
class Attended:
    """What one call of :func:`attend` was given; ``scale`` is filled in."""

    q: Float[Tensor, "batch head query head_dim"]
    k: Float[Tensor, "batch kv_head key head_dim"]
    v: Float[Tensor, "batch kv_head key value_dim"]
    pattern: Pattern
    scale: float
    key_weights: Float[Tensor, " head"] | None
    sinks: Float[Tensor, " head"] | None


_watchers: list[Callable[[Attended], None]] = []


@contextmanager
def watching(watcher: Callable[[Attended], None]) -> Iterator[None]:
    """Call ``watcher`` with what each call of :func:`attend` is given, until the ``with`` block is left.

    It hears of calls in every thread, before they are computed, and of none while ``torch.compile`` traces or within
    what it has compiled.
    """
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


def attend(
    q: Float[Tensor, "batch head query head_dim"],
    k: Float[Tensor, "batch kv_head key head_dim"],
    v: Float[Tensor, "batch kv_head key value_dim"],
    pattern: Pattern = FULL,
    *,
    scale: float | None = None,
    key_weights: Float[Tensor, " head"] | None = None,
    sinks: Float[Tensor, " head"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "batch head query value_dim"]:
    r"""Attention: each query's mean of the values, weighted by how well query and key agree.

    For head h, which reads key-value head g(h) = h // (num_heads / num_kv_heads)::

        scores[i, j]  = scale * key_weights[h] * q[h, i] . k[g, j]      -inf where the pattern forbids
        weights[i, j] = exp(scores[i, j]) / (exp(sinks[h]) + sum_j' exp(scores[i, j']))
        output[h, i]  = sum_j weights[i, j] * v[g, j]

    Without ``sinks`` that is the softmax. A query that may see no key at all gives zeros.

    Exact always; fast where it can be. Full and causal attention run in PyTorch's fused kernel, which never holds the
    weights. A window is computed in blocks of queries, so time and memory grow linearly with the length, forward and
    backward. Sinks keep the fused kernel: its log-sum-exp is corrected for the sink after the fact.

    Args:
        q: Queries. With a causal pattern they are the last positions of the keys.
        k: Keys; ``kv_head`` divides ``head``, and consecutive query heads share a key-value head.
        v: Values. With a ``value_dim`` other than ``head_dim`` the weights are held, as no fused kernel takes them.
        pattern: Who may see whom.
        scale: Factor on the scores; ``head_dim ** -0.5`` when None.
        key_weights: One factor per query head on its keys (weighted grouped-query attention).
        sinks: One logit per query head that takes part in the softmax and carries no value (gpt-oss).
        dropout: Probability of dropping a weight; the rest grow by ``1 / (1 - dropout)``. Leaves the fused path.

    Raises:
        InputError: Sizes that do not fit one another, a pattern that does not fit them, or dropout outside [0, 1).

    Source: Vaswani et al. 2017 (scaled dot product); Ainslie et al. 2023 (grouped queries); Chinnakonduru and
    Mohapatra 2024, arXiv 2407.10855 (key weights); OpenAI 2025, gpt-oss model card (sinks); Beltagy et al. 2020
    (windows).
    """
    _check_sizes(q, k, v, pattern, key_weights, sinks, dropout)
    heads, queries, head_dim = q.shape[1:]
    scale = head_dim**-0.5 if scale is None else scale
    if not torch.compiler.is_compiling() and _watchers:
        for watcher in tuple(_watchers):
            watcher(Attended(q, k, v, pattern, scale, key_weights, sinks))
    if key_weights is not None:
        q = q * key_weights.to(q.dtype)[:, None, None]  # w (q . k) = (w q) . k, and q is the smaller of the two
    pattern = pattern.narrowed(queries, k.shape[2])
    sink = None if sinks is None else sinks.view(1, heads, 1)
    if pattern.window is not None:
        return _windowed(q, k, v, pattern, scale, sink, dropout)
    return _dense(q, k, v, pattern, scale, sink, dropout)


def _check_sizes(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: Pattern,
    key_weights: Tensor | None,
    sinks: Tensor | None,
    dropout: float,
) -> None:
    shapes = f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"
    fits = q.dim() == k.dim() == v.dim() == 4 and k.shape[:3] == v.shape[:3]
    fits = fits and q.shape[0] == k.shape[0] and q.shape[3] == k.shape[3]
    expected = "[batch, head, position, head_dim], k and v alike in all but the last"
    require(fits, shapes, expected, "Split heads before attending.")
    require(
        k.shape[1] >= 1 and q.shape[1] % k.shape[1] == 0,
        f"{q.shape[1]} query heads and {k.shape[1]} key-value heads",
        "key-value heads that divide the query heads",
        "Choose num_kv_heads among the divisors of num_heads.",
    )
    require(q.shape[2] >= 1 and k.shape[2] >= 1, shapes, "at least one query and one key", "Pass a token or more.")
    for name, per_head in (("key_weights", key_weights), ("sinks", sinks)):
        require(
            per_head is None or per_head.shape == (q.shape[1],),
            f"{name} of shape {None if per_head is None else list(per_head.shape)}",
            f"one number per query head, [{q.shape[1]}]",
            f"Make {name} as long as num_heads.",
        )
    require(0.0 <= dropout < 1.0, f"dropout = {dropout}", "a probability in [0, 1)", "Use 0 to switch it off.")
    pattern.check(q.shape[0], q.shape[2], k.shape[2])


def _dense(
    q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, scale: float, sink: Tensor | None, dropout: float
) -> Tensor:
    """Attention without a window: no mask at all where the kernel knows the pattern by itself."""
    batch, heads, queries, head_dim = q.shape
    keys, groups = k.shape[2], heads // k.shape[1]
    if queries == 1 and groups > 1:
        # One query a head: the heads that share keys become the queries of one head, and no key is read twice.
        folded = q.view(batch, k.shape[1], groups, head_dim)
        sink = None if sink is None else sink.view(1, k.shape[1], groups)
        return _kernel(folded, k, v, False, _padding_mask(pattern), scale, sink, dropout).reshape(batch, heads, 1, -1)
    if not pattern.causal:
        return _kernel(q, k, v, False, _padding_mask(pattern), scale, sink, dropout)
    square = queries == keys and pattern.key_padding is None
    mask = None if square else pattern.mask(queries, keys, q.device)
    return _kernel(q, k, v, square, mask, scale, sink, dropout)


def _padding_mask(pattern: Pattern) -> Tensor | None:
    """The mask of a pattern that is neither causal nor windowed: one row for all queries, which nothing multiplies."""
    return None if pattern.key_padding is None else pattern.key_padding[:, None, None, :]


def _windowed(
    q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, scale: float, sink: Tensor | None, dropout: float
) -> Tensor:
    """Attention in a causal window: blocks of queries, each with just the keys that its queries can see.

    The first queries, whose windows are cut off by the start of the sequence, are a small causal attention. The rest
    is cut into blocks of ``block`` queries and ``window - 1 + block`` keys that all share one band-shaped mask.
    """
    window = pattern.window
    assert window is not None  # narrowed() keeps causal with it
    queries = q.shape[2]
    reach = min(k.shape[2], queries + window - 1)
    if reach < k.shape[2]:
        k, v = k[:, :, -reach:], v[:, :, -reach:]
    padding = None if pattern.key_padding is None else pattern.key_padding[:, -reach:]
    block = min(max(window // 2, _SHORTEST_BLOCK), _LONGEST_BLOCK)
    head = min(queries, window + queries - reach)  # queries that see a window of keys or fewer
    tail = (queries - head) % block
    body = queries - head - tail
    if body < 2 * block:
        head, tail, body = (queries, 0, 0) if queries <= 2 * block else (head, queries - head, 0)

    def part(piece: Tensor, stop: int) -> Tensor:
        """The queries of ``piece``, which end before ``stop``, with the keys they can see, under a dense mask."""
        count, last = piece.shape[2], reach - queries + stop
        first = max(0, last - count - window + 1)
        seen_padding = None if padding is None else padding[:, first:last]
        small = Pattern(True, window, seen_padding).narrowed(count, last - first)
        seen_k, seen_v = k[:, :, first:last], v[:, :, first:last]
        if small.window is None:
            return _dense(piece, seen_k, seen_v, small, scale, sink, dropout)
        mask = small.mask(count, last - first, q.device)
        return _kernel(piece, seen_k, seen_v, False, mask, scale, sink, dropout)

    # One split, whose gradient is one join; a slice each would make a whole gradient of zeros for each.
    q_head, q_body, q_tail = q.split((head, body, tail), dim=2)
    parts = [part(q_head, head)] if head else []
    if body:
        first = reach - queries + head - window + 1
        seen = slice(first, first + body + window - 1)
        seen_padding = None if padding is None else padding[:, seen]
        parts.append(_banded(q_body, k[:, :, seen], v[:, :, seen], window, block, seen_padding, scale, sink, dropout))
    if tail:
        parts.append(part(q_tail, queries))
    # Joined in the kernel's own order of memory, position before head, in which whoever merges the heads wants it.
    return parts[0] if len(parts) == 1 else torch.cat([each.transpose(1, 2) for each in parts], dim=1).transpose(1, 2)


def _banded(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    window: int,
    block: int,
    padding: Bool[Tensor, "batch key"] | None,
    scale: float,
    sink: Tensor | None,
    dropout: float,
) -> Tensor:
    """Blocks of ``block`` queries; query i sees keys i .. i + window - 1 of ``queries + window - 1``."""
    batch, heads, queries, _ = q.shape
    blocks, width = queries // block, window - 1 + block

    def blocks_of(keys: Tensor) -> Tensor:
        return keys.unfold(2, width, block).permute(0, 2, 1, 4, 3).flatten(0, 1)

    row = torch.arange(block, device=q.device)[:, None]
    key = torch.arange(width, device=q.device)[None, :]
    mask = ((key >= row) & (key < row + window))[None, None]
    if padding is not None:
        mask = mask & padding.unfold(1, width, block).expand(batch, -1, -1).flatten(0, 1)[:, None, None, :]
    folded = q.unflatten(2, (blocks, block)).transpose(1, 2).flatten(0, 1)
    out = _kernel(folded, blocks_of(k), blocks_of(v), False, mask, scale, sink, dropout)
    return out.unflatten(0, (batch, blocks)).transpose(1, 2).reshape(batch, heads, queries, -1)


def _kernel(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    mask: Bool[Tensor, "#batch #head #query key"] | None,
    scale: float,
    sink: Float[Tensor, "1 head #query"] | None,
    dropout: float,
) -> Tensor:
    """The fused product, with a sink or without; ``causal`` and ``mask`` exclude one another."""
    on_cpu = q.device.type == "cpu" and dropout == 0.0 and v.shape[3] == q.shape[3]
    if sink is not None and not on_cpu:
        return _attend_to_zero_key(q, k, v, causal, mask, scale, sink, dropout)
    slow_backward = on_cpu and q.dtype.itemsize < 4 and q.requires_grad
    if sink is not None or slow_backward:
        bias = None if mask is None else _as_bias(mask, q.dtype)
        sink = None if sink is None else sink.to(q.dtype)
        return _CpuAttention.apply(q, k, v, sink, causal, bias, scale)
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, mask, dropout, causal, scale=scale, enable_gqa=grouped)


def _as_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, float("-inf"))


class _CpuAttention(torch.autograd.Function):
    r"""The fused kernel of the CPU, with a sink if there is one, and with a backward pass in float32 or wider.

    With ``lse`` the kernel's log-sum-exp, a softmax with the extra logit ``s`` is the one without it times
    ``exp(lse - lse')``, where ``lse' = logaddexp(lse, s)``. The kernel's own backward pass, given the corrected output
    and ``lse'``, rebuilds exactly the weights ``exp(scores - lse')`` and needs no other change. What the sink receives
    is ``d loss / d s = -sum_i exp(s - lse'_i) (grad_i . output_i)``.

    In bfloat16 the kernel's backward pass takes about twice the time of the same in float32, so it is given float32.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, causal: bool, bias: Tensor | None, scale: float
    ) -> Tensor:
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, causal, attn_mask=bias, scale=scale
        )
        if sink is not None:
            # A query that sees no key has lse = -inf or nan; its output is zero already.
            sees = lse.isfinite()
            with_sink = torch.where(sees, torch.logaddexp(lse, sink.to(lse.dtype)), sink.to(lse.dtype))
            out = out * torch.where(sees, torch.exp(lse - with_sink), 0.0).unsqueeze(-1).to(out.dtype)
            lse = with_sink
        ctx.save_for_backward(q, k, v, sink, bias, out, lse)
        ctx.causal, ctx.scale = causal, scale
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, sink, bias, out, lse = ctx.saved_tensors
        wide = torch.promote_types(q.dtype, torch.float32)
        grad, wide_q, wide_k, wide_v, out = (x.to(wide) for x in (grads[0], q, k, v, out))
        bias = None if bias is None else bias.to(wide)
        grad_q, grad_k, grad_v = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, wide_q, wide_k, wide_v, out, lse, 0.0, ctx.causal, attn_mask=bias, scale=ctx.scale
        )
        grad_sink = None
        if sink is not None and ctx.needs_input_grad[3]:
            flow = -torch.exp(sink.to(lse.dtype) - lse) * (grad * out).sum(-1).to(lse.dtype)
            grad_sink = flow.sum_to_size(sink.shape).to(sink.dtype)
        return grad_q.to(q.dtype), grad_k.to(q.dtype), grad_v.to(q.dtype), grad_sink, None, None, None


def _attend_to_zero_key(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Tensor | None, scale: float, sink: Tensor, dropout: float
) -> Tensor:
    """A sink on any device: one more key, of zeros, whose score comes from an additive mask, and a value of zeros."""
    batch, heads, queries, _ = q.shape
    if causal:
        mask = Pattern(causal=True).mask(queries, k.shape[2], q.device)
    shape = (batch, heads, queries, k.shape[2])
    bias = q.new_zeros(shape) if mask is None else _as_bias(mask, q.dtype).expand(shape)
    bias = torch.cat([bias, sink.to(q.dtype)[..., None].expand(batch, heads, queries, 1)], dim=-1)
    k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
    return F.scaled_dot_product_attention(q, k, v, bias, dropout, scale=scale, enable_gqa=heads != k.shape[1])
