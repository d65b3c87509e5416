"""Attention: full, causal and windowed, with grouped heads, padding and sinks.

:func:`attention` computes :func:`definition` by the fastest exact form.
It takes the first of these:

=======================  =====================================================================
form                     where
=======================  =====================================================================
definition               :func:`glassformer.kernels.plain`, transforms of ``torch.func``, no
                         queries or keys
definition, in parts     scores with a cap
C++                      the CPU, from 32 queries on, without a mask, padding or dropout
PyTorch, its gradients   the CPU with gradients, fewer than 16 queries and no sinks
PyTorch, our gradients   the CPU with gradients
PyTorch, no gradients    the CPU with sinks
PyTorch's own choice     accelerators, dropout, values of another width, compiled graphs, and
                         all else
=======================  =====================================================================

The forms of PyTorch (``attention_torch``) compute a window in blocks of queries (``windows``); C++
(``attention_native``) takes it as it is.

Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.2.1; OpenAI 2025, gpt-oss model card
(sinks).
"""

from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.kernels import attention_native, attention_torch, windows
from glassformer.kernels.attention_native import in_rows
from glassformer.kernels.dispatch import Fast, Operation, use_definition
from glassformer.kernels.pattern import Pattern

_CAPPED_QUERIES = 128
"""Queries whose capped scores are in memory at a time."""


def weights_of_scores(
    scores: Float[Tensor, "*batch query key"],
    allowed: Bool[Tensor, "*shape key"],
    sink: Float[Tensor, "1 head #query"] | None = None,
) -> Float[Tensor, "*batch query key"]:
    """Return ``exp(scores) / (exp(sink) + sum over keys of exp(scores))`` over the allowed keys.

    Other keys have weight 0, and so have all keys of a query without an allowed one. A sink is one
    more logit of each query; without it this is the softmax.
    """
    logits = scores.masked_fill(~allowed, -torch.inf)
    empty = ~allowed.any(-1, keepdim=True)
    if sink is None:
        return logits.softmax(-1).masked_fill(empty, 0.0)
    logit = sink.to(scores.dtype)[..., None].expand(*scores.shape[:3], 1)
    empty = empty & (logit == -torch.inf)
    # The softmax of -inf alone is NaN, and so is its gradient by the sink.
    logits = torch.cat([logits, logit], dim=-1).masked_fill(empty, 0.0)
    return logits.softmax(-1)[..., :-1].masked_fill(empty, 0.0)


def scores(
    q: Float[Tensor, "batch head query head_dim"],
    k: Float[Tensor, "batch kv_head key head_dim"],
    scale: float,
    cap: float | None = None,
) -> Float[Tensor, "batch head query key"]:
    """Return ``scale * q . k`` in float32 or wider, with a cap :func:`soft_capped`.

    Query head h reads key-value head ``h // (num_heads / num_kv_heads)``.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    products = (q.to(wide) @ k.to(wide).mT) * scale
    if cap is None:
        return products
    return soft_capped(products, cap)


def soft_capped(x: Float[Tensor, "*shape"], cap: float) -> Float[Tensor, "*shape"]:
    """Return ``cap * tanh(x / cap)``: near ``x`` for small ``x``, always in [-cap, cap]."""
    return cap * torch.tanh(x / cap)


def weights(
    q: Float[Tensor, "batch head query head_dim"],
    k: Float[Tensor, "batch kv_head key head_dim"],
    allowed: Bool[Tensor, "#batch #head #query key"],
    scale: float,
    sink: Float[Tensor, "1 head #query"] | None = None,
    cap: float | None = None,
) -> Float[Tensor, "batch head query key"]:
    """Return :func:`weights_of_scores` of :func:`scores`."""
    return weights_of_scores(scores(q, k, scale, cap), allowed, sink)


def definition(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sink: Tensor | None,
    allowed: Tensor,
    scale: float,
    dropout: float = 0.0,
    cap: float | None = None,
) -> Tensor:
    """Return the values averaged with :func:`weights`; the whole matrix of weights is in memory."""
    mixed = F.dropout(weights(q, k, allowed, scale, sink, cap), dropout)
    v = v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)
    return (mixed @ v.to(mixed.dtype)).to(q.dtype)


def attention(
    q: Float[Tensor, "batch head query head_dim"],
    k: Float[Tensor, "batch kv_head key head_dim"],
    v: Float[Tensor, "batch kv_head key value_dim"],
    pattern: Pattern,
    scale: float,
    sinks: Float[Tensor, " head"] | None = None,
    dropout: float = 0.0,
    mask: Bool[Tensor, "#batch #head #query key"] | None = None,
    cap: float | None = None,
) -> Float[Tensor, "batch head query value_dim"]:
    """Compute :func:`definition` by the fastest exact form.

    A key may be seen if ``pattern`` allows it, and ``mask`` if there is one.
    """
    sink = None if sinks is None else sinks.view(1, -1, 1)
    queries = q.shape[2]
    keys = k.shape[2]
    if mask is not None:
        mask = mask & pattern.mask(queries, keys, q.device)

    # No fused kernel supports a transform of torch.func. Without queries or keys fused kernels end
    # the process, and they read past the keys of fewer texts.
    compiling = torch.compiler.is_compiling()
    if not compiling and (
        use_definition() or 0 in (queries, keys) or not len(q) == len(k) == len(v)
    ):
        if mask is None:
            allowed = pattern.mask(queries, keys, q.device)
        else:
            allowed = mask
        return definition(q, k, v, sink, allowed, scale, dropout, cap)

    # No fused kernel caps scores.
    if cap is not None:
        return _some_queries_at_a_time(q, k, v, pattern, mask, scale, sink, dropout, cap)

    # C++ visits only tiles of keys that some query sees.
    if mask is None:
        # A window that reaches past the first key, or a causal rule for the last position alone,
        # forbids nothing.
        pattern = pattern.narrowed(queries, keys)
        if attention_native.takes(q, k, v, sink, pattern, dropout):
            return Fast.apply(_NATIVE, (pattern, None, scale), q, k, v, sink)

    # One of PyTorch's kernels, which compute products with a causal rule or a mask.
    product: windows.Product
    on_cpu = q.device.type == "cpu" and dropout == 0.0 and v.shape[3] == q.shape[3]
    needs_gradients = _needs_gradients(q, k, v, sink)
    if on_cpu and needs_gradients and not compiling:
        # PyTorch's backward pass lacks sinks, speed in bfloat16, and a second derivative. With few
        # queries ours, called from Python, would take most of the time.
        few = sink is None and 2 * queries < attention_native.FEW_QUERIES and q.dtype.itemsize >= 4
        if few and not attention_torch.are_hooked():
            product = _PYTORCH_GRADIENTS
        else:
            product = _our_gradients
    elif on_cpu and sink is not None and not needs_gradients:
        product = attention_torch.flash_without_gradients
    else:
        product = partial(attention_torch.scaled_dot_product, dropout=dropout)

    q = in_rows(q)
    k = in_rows(k)
    v = in_rows(v)
    # A mask of any shape says nothing about which keys could be left out.
    if mask is not None:
        return product(q, k, v, False, mask, scale, sink)
    # Blocks of queries with just their keys keep the cost of a window linear in the length.
    if pattern.window is not None:
        return windows.in_blocks(product, q, k, v, pattern, scale, sink)
    return windows.in_one_piece(product, q, k, v, pattern, scale, sink)


def _needs_gradients(q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None) -> bool:
    if not torch.is_grad_enabled():
        return False
    return (
        q.requires_grad
        or k.requires_grad
        or v.requires_grad
        or (sink is not None and sink.requires_grad)
    )


def _some_queries_at_a_time(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: Pattern,
    mask: Tensor | None,
    scale: float,
    sink: Tensor | None,
    dropout: float,
    cap: float,
) -> Tensor:
    """Compute :func:`definition` of a few queries and their keys at a time, for a small matrix."""
    parts = []
    queries = q.shape[2]
    keys = k.shape[2]
    for start in range(0, queries, _CAPPED_QUERIES):
        stop = min(start + _CAPPED_QUERIES, queries)
        first = 0
        last = keys
        if pattern.causal:
            last = keys - queries + stop
        if pattern.window is not None:
            first = max(0, keys - queries + start - pattern.window + 1)
        if mask is None:
            if pattern.key_padding is None:
                padding = None
            else:
                padding = pattern.key_padding[:, first:last]
            part = Pattern(pattern.causal, pattern.window, padding)
            allowed = part.mask(stop - start, last - first, q.device)
        else:
            if mask.shape[2] == 1:
                rows = mask
            else:
                rows = mask[:, :, start:stop]
            allowed = rows[..., first:last]
        seen_k = k[:, :, first:last]
        seen_v = v[:, :, first:last]
        parts.append(
            definition(q[:, :, start:stop], seen_k, seen_v, sink, allowed, scale, dropout, cap)
        )
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def _our_gradients(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    mask: Tensor | None,
    scale: float,
    sink: Tensor | None,
) -> Tensor:
    """Compute PyTorch's kernel on the CPU, with a backward pass of ours.

    It takes sinks, and can be differentiated.
    """
    options = attention_torch.pattern_of(causal), attention_torch.bias_of(mask, q.dtype), scale
    return Fast.apply(_FLASH, options, q, k, v, sink)


def _by_formula(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sink: Tensor | None,
    pattern: Pattern,
    bias: Tensor | None,
    scale: float,
) -> Tensor:
    """Compute :func:`definition` from the arguments of a fused kernel.

    They are a pattern, or a bias that is 0 where a key may be seen.
    """
    if bias is None:
        allowed = pattern.mask(q.shape[2], k.shape[2], q.device)
    else:
        allowed = bias == 0
    return definition(q, k, v, sink, allowed, scale)


_NATIVE = Operation(_by_formula, attention_native.forward, attention_native.backward)
_FLASH = Operation(_by_formula, attention_torch.forward, attention_torch.backward)
_PYTORCH_GRADIENTS = partial(attention_torch.flash_of_few_queries, _by_formula)
