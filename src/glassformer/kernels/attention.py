"""Attention: full, causal and windowed, with grouped heads, padding and sinks.

Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.2.1; Beltagy et al. 2020, arXiv 2004.05150 (windows); OpenAI
2025, gpt-oss model card (sinks).
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.kernels import native
from glassformer.kernels.dispatch import Fast, Operation, differentiate, native_library, use_definition
from glassformer.kernels.native import declare
from glassformer.kernels.pattern import Pattern

_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
_SHORTEST_BLOCK, _LONGEST_BLOCK = 32, 512
_FEW_QUERIES = 32  # below it PyTorch's kernel is at least as fast as the library's
_CAPPED_QUERIES = 128  # whose scores are in memory at a time


def weights_of_scores(
    scores: Float[Tensor, "*batch query key"],
    allowed: Bool[Tensor, "*shape key"],
    sink: Float[Tensor, "1 head #query"] | None = None,
) -> Float[Tensor, "*batch query key"]:
    """``exp(scores) / (exp(sink) + sum over keys of exp(scores))`` over allowed keys; 0 for other keys.

    A row without an allowed key is 0. Without a sink, one more logit of each query, this is the softmax.
    """
    logits, empty = scores.masked_fill(~allowed, -torch.inf), ~allowed.any(-1, keepdim=True)
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
    """``scale * q . k`` in float32 or wider; query head h reads key-value head ``h // (num_heads / num_kv_heads)``.

    With a cap they are :func:`soft_capped`.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    found = (q.to(wide) @ k.to(wide).mT) * scale
    return found if cap is None else soft_capped(found, cap)


def soft_capped(x: Float[Tensor, "*shape"], cap: float) -> Float[Tensor, "*shape"]:
    """``cap * tanh(x / cap)``: about ``x`` where that is small, and always between ``-cap`` and ``cap``."""
    return cap * torch.tanh(x / cap)


def weights(
    q: Float[Tensor, "batch head query head_dim"],
    k: Float[Tensor, "batch kv_head key head_dim"],
    allowed: Bool[Tensor, "#batch #head #query key"],
    scale: float,
    sink: Float[Tensor, "1 head #query"] | None = None,
    cap: float | None = None,
) -> Float[Tensor, "batch head query key"]:
    """:func:`weights_of_scores` of :func:`scores`."""
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
    """The values averaged with :func:`weights`; the whole matrix of weights is in memory."""
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
    """The fastest exact path to :func:`definition` under the mask of ``pattern``, and ``mask`` if there is one."""
    sink = None if sinks is None else sinks.view(1, -1, 1)
    queries, keys = q.shape[2], k.shape[2]
    if mask is not None:
        mask = mask & pattern.mask(queries, keys, q.device)
    # Asked for, or a transform of torch.func that no fused kernel supports.
    compiling = torch.compiler.is_compiling()
    # Fused kernels end the process without queries or keys, and read past keys of fewer texts.
    if not compiling and (use_definition() or 0 in (queries, keys) or not len(q) == len(k) == len(v)):
        allowed = pattern.mask(queries, keys, q.device) if mask is None else mask
        return definition(q, k, v, sink, allowed, scale, dropout, cap)
    # No fused kernel caps scores: the definition, for as many queries at a time as keep the matrix small.
    if cap is not None:
        return _capped(q, k, v, pattern, mask, scale, sink, dropout, cap)
    # A mask of any shape says nothing about which keys could be left out: the fused kernel sees all of them.
    if mask is not None:
        return _kernel(q, k, v, False, mask, scale, sink, dropout)
    # A window that reaches past the first key, or a causal rule for the last position alone, forbids nothing.
    pattern = pattern.narrowed(queries, keys)
    # C++ visits only tiles of keys that some query sees, windows and sinks included, and holds no weights.
    if _native_takes(q, k, v, sink, pattern, dropout):
        return Fast.apply(_OPERATION, (_Form(pattern.causal, pattern.window or keys, None, scale),), q, k, v, sink)
    # PyTorch's kernel knows no window: blocks of queries with just their keys keep its cost linear in the length.
    compute = _dense if pattern.window is None else _windowed
    return compute(q, k, v, pattern, scale, sink, dropout)


def _capped(
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
    """:func:`definition` with a cap, for a few queries at a time and the keys that they can see."""
    parts, queries, keys = [], q.shape[2], k.shape[2]
    for start in range(0, queries, _CAPPED_QUERIES):
        stop = min(start + _CAPPED_QUERIES, queries)
        last = keys - queries + stop if pattern.causal else keys
        first = 0 if pattern.window is None else max(0, keys - queries + start - pattern.window + 1)
        if mask is None:
            padding = None if pattern.key_padding is None else pattern.key_padding[:, first:last]
            allowed = Pattern(pattern.causal, pattern.window, padding).mask(stop - start, last - first, q.device)
        else:
            allowed = (mask if mask.shape[2] == 1 else mask[:, :, start:stop])[..., first:last]
        seen_k, seen_v = k[:, :, first:last], v[:, :, first:last]
        parts.append(definition(q[:, :, start:stop], seen_k, seen_v, sink, allowed, scale, dropout, cap))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def _native_takes(q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, pattern: Pattern, dropout: float) -> bool:
    # The library knows no padding, and dropout needs the weights themselves.
    if q.shape[2] < _FEW_QUERIES or dropout > 0 or pattern.key_padding is not None:
        return False
    fits = k.shape == v.shape == (q.shape[0], k.shape[1], k.shape[2], q.shape[3]) and q.shape[1] % k.shape[1] == 0
    if not fits or (sink is not None and (sink.shape[1] != q.shape[1] or sink.device != q.device)):
        return False
    # A compiled graph cannot hold its addresses; matrix registers (AMX) multiply bfloat16 faster than it does float32.
    if torch.compiler.is_compiling() or (q.dtype == torch.bfloat16 and torch.cpu._is_amx_tile_supported()):
        return False
    return _library(q, k, v) is not None


def _library(*tensors: Tensor) -> native.Library | None:
    """The C++ library, where it has vectors that pay."""
    library = native_library(*tensors)
    return library if library is not None and library.level > 0 else None


class _Form(NamedTuple):
    """What a fused kernel computes: which keys are seen, and the factor on scores."""

    causal: bool
    window: int | None
    """In C++, of any length; None: by PyTorch's kernel."""
    bias: Tensor | None
    """0 where a key may be seen, -inf elsewhere."""
    scale: float


def _forward(q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, form: _Form) -> tuple[Tensor, Tensor, Tensor]:
    """The output, twice, and the log-sum-exp."""
    if form.window is None:
        out, lse = _cpu_attention(q, k, v, sink, form)
        return out, out, lse
    batch, heads, queries, width = q.shape
    wide = [_in_rows(each.float()) for each in (q, k, v)]
    out = wide[0].new_empty(batch, queries, heads, width).transpose(1, 2)  # merging the heads copies nothing
    lse = out.new_empty(batch, heads, queries)
    logits = out.new_empty(0) if sink is None else sink.detach().float().contiguous()
    _call_native("attention", [*wide, out, lse, logits], k, form, logits.numel())
    out = out.to(q.dtype)
    return out, out, lse


def _by_formula(q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, form: _Form) -> Tensor:
    pattern = Pattern(form.causal, form.window if form.causal else None)
    allowed = pattern.mask(q.shape[2], k.shape[2], q.device) if form.bias is None else form.bias == 0
    return definition(q, k, v, sink, allowed, form.scale)


def _backward(needed: Sequence[bool], grad: Tensor, *saved: Any) -> tuple[Tensor | None, ...]:
    """Of PyTorch's kernel in float32 at least: in bfloat16 it takes about twice the time.

    It rebuilds the weights ``exp(scores - lse)`` from the log-sum-exp. With one that the sink ``s`` is part of these
    are the right ones, and the gradient of ``s`` is ``-sum_i exp(s - lse_i) (grad_i . output_i)``.
    """
    q, k, v, sink, out, lse, form = saved
    in_cpp = form.bias is None and 2 * q.shape[2] >= _FEW_QUERIES and _library(q, k, v) is not None
    if form.window is not None or in_cpp:
        of_inputs = _native_backward(grad, q, k, v, out, lse.contiguous(), form)
    else:
        wide = torch.promote_types(q.dtype, torch.float32)
        inputs = [
            each if each is None or q.dtype == wide else each.to(wide) for each in (grad, q, k, v, out, form.bias)
        ]
        of_inputs = _FLASH_BACKWARD(*inputs[:5], lse, 0.0, form.causal, attn_mask=inputs[5], scale=form.scale)
    if sink is None or not needed[3]:
        return *of_inputs, None
    share = torch.exp(sink.to(lse.dtype) - lse).masked_fill(sink == -torch.inf, 0.0)
    flow = -share * (grad.to(lse.dtype) * out.to(lse.dtype)).sum(-1)
    return *of_inputs, flow.sum_to_size(sink.shape).to(sink.dtype)


_OPERATION = Operation(_by_formula, _forward, _backward)


def _native_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, form: _Form
) -> tuple[Tensor, Tensor, Tensor]:
    batch, heads, _, width = q.shape
    wide = [_in_rows(each.float()) for each in (grad, q, k, v, out)]
    grad_q = torch.empty_like(wide[1])
    of_heads = [grad_q.new_empty(batch, heads, k.shape[2], width) for _ in range(2)]
    _call_native("attention_backward", [*wide, grad_q, lse, *of_heads], k, form, 0)
    if k.shape[1] != heads:
        of_heads = [each.unflatten(1, (k.shape[1], -1)).sum(2) for each in of_heads]
    return grad_q.to(q.dtype), of_heads[0].to(k.dtype), of_heads[1].to(v.dtype)


def _sizes(batch: int, heads: int, kv_heads: int, queries: int, keys: int, width: int, *others: Any) -> tuple[Any, ...]:
    q, k = (batch, heads, queries, width), (batch, kv_heads, keys, width)
    return q, k, k, q, batch * heads * queries, others[3]


def _backward_sizes(batch: int, heads: int, *others: Any) -> tuple[Any, ...]:
    q, k, v, out, lse, _sinks = _sizes(batch, heads, *others)
    of_heads = batch * heads * math.prod(k[2:])
    return q, q, k, v, out, q, lse, of_heads, of_heads


declare("attention", "ffffff", _sizes)
declare("attention_backward", "fffffffff", _backward_sizes)


def _call_native(name: str, tensors: list[Tensor], k: Tensor, form: _Form, sinks: int) -> None:
    """Call a function of attention.cpp; the first of the tensors has the shape of the queries."""
    library = native.library()
    assert library is not None
    batch, heads, queries, width = tensors[0].shape
    sizes = (batch, heads, k.shape[1], queries, k.shape[2], width, form.causal, form.window or k.shape[2])
    library.call(name, *tensors, *sizes, float(form.scale), sinks, torch.get_num_threads())


def _in_rows(x: Tensor) -> Tensor:
    return x if x.stride(3) == 1 else x.contiguous()


def _dense(
    q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, scale: float, sink: Tensor | None, dropout: float
) -> Tensor:
    """Attention in one piece: no mask at all where the kernel knows the pattern by itself."""
    batch, heads, queries, head_dim = q.shape
    keys, groups = k.shape[2], heads // k.shape[1]
    padding = None if pattern.key_padding is None else pattern.key_padding[:, None, None, :]
    if queries == 1 and groups > 1:
        # One query per head: heads that share keys become the queries of one head, so that no key is read twice.
        folded = q.view(batch, k.shape[1], groups, head_dim)
        sink = None if sink is None else sink.view(1, k.shape[1], groups)
        return _kernel(folded, k, v, False, padding, scale, sink, dropout).reshape(batch, heads, 1, -1)
    if not pattern.causal:
        return _kernel(q, k, v, False, padding, scale, sink, dropout)
    # The kernel's causal rule aligns the first query with the first key, which is ours only if there are as many; it
    # scales what it has masked.
    square = queries == keys and pattern.window is None and pattern.key_padding is None and scale > 0
    mask = None if square else pattern.mask(queries, keys, q.device)
    return _kernel(q, k, v, square, mask, scale, sink, dropout)


def _windowed(
    q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, scale: float, sink: Tensor | None, dropout: float
) -> Tensor:
    """Attention in a causal window: blocks of queries, each with just the keys that its queries can see.

    The first queries, up to one that sees a full window, and more if they fill no block, are an attention of their own.
    """
    window = pattern.window
    assert window is not None  # narrowed() keeps causal with it
    queries, keys = q.shape[2], min(k.shape[2], q.shape[2] + window - 1)
    k, v = k[:, :, -keys:], v[:, :, -keys:]
    padding = None if pattern.key_padding is None else pattern.key_padding[:, -keys:]
    block = min(max(window // 2, _SHORTEST_BLOCK), _LONGEST_BLOCK)
    first = min(queries, window + queries - keys)
    first += (queries - first) % block
    last = keys - queries + first
    # One split, whose gradient is one join; a slice each would make a whole gradient of zeros for each.
    q_first, q_others = q.split((first, queries - first), dim=2)
    small = Pattern(True, window, None if padding is None else padding[:, :last]).narrowed(first, last)
    out = _dense(q_first, k[:, :, :last], v[:, :, :last], small, scale, sink, dropout)
    if first == queries:
        return out
    seen = slice(last - window + 1, keys)
    padding = None if padding is None else padding[:, seen]
    others = _banded(q_others, k[:, :, seen], v[:, :, seen], window, block, padding, scale, sink, dropout)
    # Joined in the kernel's memory order, position before head, so that merging the heads copies nothing.
    return torch.cat([each.transpose(1, 2) for each in (out, others)], dim=1).transpose(1, 2)


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
    # The CPU's kernel reads as if the numbers of a head stood side by side; an expanded tensor's do not.
    q, k, v = _in_rows(q), _in_rows(k), _in_rows(v)
    trained = q.requires_grad or k.requires_grad or v.requires_grad or (sink is not None and sink.requires_grad)
    needs_grad = trained and torch.is_grad_enabled()
    if q.device.type == "cpu" and dropout == 0.0 and v.shape[3] == q.shape[3]:
        # What the kernel's own backward pass lacks: sinks, speed in bfloat16, and a second derivative.
        if needs_grad and not torch.compiler.is_compiling():
            form = _Form(causal, None, _as_bias(mask, q.dtype), scale)
            return _by_torch(q, k, v, form) if _are_few(q, sink) else Fast.apply(_OPERATION, (form,), q, k, v, sink)
        # The kernel's log-sum-exp is all that a sink changes: cheaper than one more key, which copies keys and values.
        if sink is not None and not needs_grad:
            return _cpu_attention(q, k, v, sink, _Form(causal, None, _as_bias(mask, q.dtype), scale))[0]
    # Elsewhere the kernel gives no log-sum-exp: a key of zeros stands for the sink.
    if sink is not None:
        return _with_zero_key(q, k, v, causal, mask, scale, sink, dropout)
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, mask, dropout, causal, scale=scale, enable_gqa=grouped)


def _are_few(q: Tensor, sink: Tensor | None) -> bool:
    """Whether calls from Python, and not the kernel, would take most of the time of :class:`Fast`."""
    # Hooks on saved tensors, such as activation checkpointing's, do not see what _by_torch() keeps.
    hooked = torch._C._autograd._top_saved_tensors_default_hooks(False) is not None
    return sink is None and 2 * q.shape[2] < _FEW_QUERIES and q.dtype.itemsize >= 4 and not hooked


def _by_torch(q: Tensor, k: Tensor, v: Tensor, form: _Form) -> Tensor:
    """PyTorch's kernel with its own backward pass, which the definition's replaces where that is differentiated."""
    # The name without "ops", whose calls are resolved in C++.
    out, _lse = torch._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, form.causal, attn_mask=form.bias, scale=form.scale
    )

    def by_definition(
        found: tuple[Tensor | None, ...], grads: tuple[Tensor | None, ...]
    ) -> tuple[Tensor | None, ...] | None:
        if not torch.is_grad_enabled() or grads[0] is None:
            return None
        needed = [grad is not None for grad in found[:3]]
        again = differentiate(lambda q, k, v: _by_formula(q, k, v, None, form), (q, k, v), needed, grads[0])
        return *again, *found[3:]

    assert out.grad_fn is not None
    out.grad_fn.register_hook(by_definition)
    return out


def _as_bias(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if mask is None else torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, float("-inf"))


def _cpu_attention(q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, form: _Form) -> tuple[Tensor, Tensor]:
    """The output and the log-sum-exp of the CPU's fused kernel, both corrected for the sink."""
    out, lse = _FLASH(q, k, v, 0.0, form.causal, attn_mask=form.bias, scale=form.scale)
    if sink is None:
        return out, lse
    # A query that sees no key has lse = -inf or nan; its output is zero already. With a sink of -inf lse stays so.
    sink = sink.to(q.dtype).to(lse.dtype)
    sees = lse.isfinite()
    with_sink = torch.where(sees, torch.logaddexp(lse, sink), torch.where(sink > -torch.inf, sink, lse))
    return out * torch.where(sees, torch.exp(lse - with_sink), 0.0).unsqueeze(-1).to(out.dtype), with_sink


def _with_zero_key(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Tensor | None, scale: float, sink: Tensor, dropout: float
) -> Tensor:
    """A sink on any device: one more key of zeros, whose score comes from an additive mask, and a value of zeros."""
    batch, heads, queries, _ = q.shape
    if causal:
        mask = Pattern(causal=True).mask(queries, k.shape[2], q.device)
    shape = (batch, heads, queries, k.shape[2])
    bias = _as_bias(mask, q.dtype)
    bias = q.new_zeros(shape) if bias is None else bias.expand(shape)
    bias = torch.cat([bias, sink.to(q.dtype)[..., None].expand(batch, heads, queries, 1)], dim=-1)
    k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
    return F.scaled_dot_product_attention(q, k, v, bias, dropout, scale=scale, enable_gqa=heads != k.shape[1])
