"""Attention in C++ (attention.cpp): tiles of queries and keys.

It visits only the tiles of keys that some query sees. It takes windows and sinks, and holds no
weights: the backward pass rebuilds them from the log-sum-exp. All is computed in float32.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from glassformer.kernels import native
from glassformer.kernels.dispatch import native_library
from glassformer.kernels.native import declare
from glassformer.kernels.pattern import Pattern

FEW_QUERIES = 32
"""Queries below which PyTorch's kernel is at least as fast."""


def takes(
    q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, pattern: Pattern, dropout: float
) -> bool:
    """Return whether :func:`forward` supports an attention and is faster than PyTorch."""
    # The library knows no padding, and dropout needs the weights themselves.
    if q.shape[2] < FEW_QUERIES or dropout > 0 or pattern.key_padding is not None:
        return False
    fits = (
        k.shape == v.shape == (q.shape[0], k.shape[1], k.shape[2], q.shape[3])
        and q.shape[1] % k.shape[1] == 0
    )
    if not fits or (sink is not None and (sink.shape[1] != q.shape[1] or sink.device != q.device)):
        return False
    # A compiled graph cannot hold its addresses; matrix registers (AMX) multiply bfloat16 faster
    # than it does float32.
    if torch.compiler.is_compiling() or (
        q.dtype == torch.bfloat16 and torch.cpu._is_amx_tile_supported()
    ):
        return False
    return _library(q, k, v) is not None


def takes_gradients(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Return whether :func:`gradients` is faster than PyTorch.

    It also takes what another kernel has computed without a mask.
    """
    return 2 * q.shape[2] >= FEW_QUERIES and _library(q, k, v) is not None


def _library(*tensors: Tensor) -> native.Library | None:
    """Return the C++ library, unless its vectors are too short to be faster."""
    library = native_library(*tensors)
    if library is not None and library.level > 0:
        return library
    return None


def forward(
    q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, pattern: Pattern, bias: None, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output, once more for the backward pass, and the log-sum-exp of each query."""
    batch, heads, queries, width = q.shape
    wide = [in_rows(tensor.float()) for tensor in (q, k, v)]
    # Position before head, so that merging the heads copies nothing.
    out = wide[0].new_empty(batch, queries, heads, width).transpose(1, 2)
    lse = out.new_empty(batch, heads, queries)
    if sink is None:
        logits = out.new_empty(0)
    else:
        logits = sink.detach().float().contiguous()
    _call("attention", [*wide, out, lse, logits], k, pattern, scale, logits.numel())
    out = out.to(q.dtype)
    return out, out, lse


def backward(needed: Sequence[bool], grad: Tensor, *saved: Any) -> tuple[Tensor | None, ...]:
    """Return the gradients of queries, keys, values and sink."""
    q, k, v, sink, out, lse, pattern, _bias, scale = saved
    input_gradients = gradients(grad, q, k, v, out, lse, pattern, scale)
    if sink is None or not needed[3]:
        return *input_gradients, None
    return *input_gradients, sink_gradient(grad, sink, out, lse)


def gradients(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    pattern: Pattern,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values, from the weights ``exp(scores - lse)``."""
    batch, heads, _, width = q.shape
    wide = [in_rows(tensor.float()) for tensor in (grad, q, k, v, out)]
    grad_q = torch.empty_like(wide[1])
    grad_k, grad_v = (grad_q.new_empty(batch, heads, k.shape[2], width) for _ in range(2))
    _call(
        "attention_backward",
        [*wide, grad_q, lse.contiguous(), grad_k, grad_v],
        k,
        pattern,
        scale,
        0,
    )
    if k.shape[1] != heads:
        grad_k = grad_k.unflatten(1, (k.shape[1], -1)).sum(2)
        grad_v = grad_v.unflatten(1, (k.shape[1], -1)).sum(2)
    return grad_q.to(q.dtype), grad_k.to(k.dtype), grad_v.to(v.dtype)


def sink_gradient(grad: Tensor, sink: Tensor, out: Tensor, lse: Tensor) -> Tensor:
    """Return the gradient of a sink s, ``-sum_i exp(s - lse_i) (grad_i . output_i)``."""
    share = torch.exp(sink.to(lse.dtype) - lse).masked_fill(sink == -torch.inf, 0.0)
    flow = -share * (grad.to(lse.dtype) * out.to(lse.dtype)).sum(-1)
    return flow.sum_to_size(sink.shape).to(sink.dtype)


def in_rows(x: Tensor) -> Tensor:
    """Return ``x`` with the numbers of a head side by side, as kernels read them.

    Those of an expanded tensor may not be.
    """
    return x if x.stride(3) == 1 else x.contiguous()


def _sizes(
    batch: int, heads: int, kv_heads: int, queries: int, keys: int, width: int, *others: Any
) -> tuple[Any, ...]:
    q = (batch, heads, queries, width)
    k = (batch, kv_heads, keys, width)
    return q, k, k, q, batch * heads * queries, others[3]


def _backward_sizes(batch: int, heads: int, *others: Any) -> tuple[Any, ...]:
    q, k, v, out, lse, _sinks = _sizes(batch, heads, *others)
    of_heads = batch * heads * math.prod(k[2:])
    return q, q, k, v, out, q, lse, of_heads, of_heads


declare("attention", "ffffff", _sizes)
declare("attention_backward", "fffffffff", _backward_sizes)


def _call(
    name: str, tensors: list[Tensor], k: Tensor, pattern: Pattern, scale: float, sinks: int
) -> None:
    """Call a function of attention.cpp; the first of the tensors has the shape of the queries."""
    library = native.library()
    assert library is not None
    batch, heads, queries, width = tensors[0].shape
    keys = k.shape[2]
    sizes = (batch, heads, k.shape[1], queries, keys, width, pattern.causal, pattern.window or keys)
    library.call(name, *tensors, *sizes, float(scale), sinks, torch.get_num_threads())
