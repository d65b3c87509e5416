"""Attention by PyTorch's fused kernels, with sinks, fast gradients and second derivatives added.

A query that sees no key gives zeros. PyTorch's gradients are slow in bfloat16.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.kernels import attention_native
from glassformer.kernels.dispatch import differentiate
from glassformer.kernels.pattern import CAUSAL, FULL, Pattern

_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def scaled_dot_product(
    q: Float[Tensor, "batch head query head_dim"],
    k: Float[Tensor, "batch kv_head key head_dim"],
    v: Float[Tensor, "batch kv_head key value_dim"],
    causal: bool,
    mask: Bool[Tensor, "#batch #head #query key"] | None,
    scale: float,
    sink: Float[Tensor, "1 head #query"] | None,
    *,
    dropout: float,
) -> Float[Tensor, "batch head query value_dim"]:
    """Compute attention by PyTorch's own choice of kernel, on any device, for any width of values.

    The kernel gives no log-sum-exp, so a key of zeros stands for the sink: its score comes from an
    additive mask, and its value is 0.
    """
    grouped = q.shape[1] != k.shape[1]
    if sink is None:
        return F.scaled_dot_product_attention(
            q, k, v, mask, dropout, causal, scale=scale, enable_gqa=grouped
        )
    batch, heads, queries, _ = q.shape
    if causal:
        mask = CAUSAL.mask(queries, k.shape[2], q.device)
    shape = (batch, heads, queries, k.shape[2])
    bias = bias_of(mask, q.dtype)
    if bias is None:
        bias = q.new_zeros(shape)
    else:
        bias = bias.expand(shape)
    bias = torch.cat([bias, sink.to(q.dtype)[..., None].expand(batch, heads, queries, 1)], dim=-1)
    k = F.pad(k, (0, 0, 0, 1))
    v = F.pad(v, (0, 0, 0, 1))
    return F.scaled_dot_product_attention(q, k, v, bias, dropout, scale=scale, enable_gqa=grouped)


def flash_without_gradients(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    mask: Tensor | None,
    scale: float,
    sink: Tensor | None,
) -> Tensor:
    """Compute attention by the CPU's kernel, corrected for the sink.

    This is cheaper than one more key, for which keys and values are copied.
    """
    return _flash(q, k, v, sink, causal, bias_of(mask, q.dtype), scale)[0]


def flash_of_few_queries(
    by_formula: Callable[..., Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    mask: Tensor | None,
    scale: float,
    sink: Tensor | None,
) -> Tensor:
    """Compute attention by the CPU's kernel with its own backward pass.

    Where the backward pass is differentiated, that of ``by_formula`` replaces it. There is no sink.
    Hooks on saved tensors, such as activation checkpointing's, do not see what the kernel saves.
    """
    assert sink is None
    bias = bias_of(mask, q.dtype)
    # The name without "ops", whose calls are resolved in C++.
    out, _lse = torch._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, causal, attn_mask=bias, scale=scale
    )

    def differentiable(
        gradients: tuple[Tensor | None, ...], grads: tuple[Tensor | None, ...]
    ) -> tuple[Tensor | None, ...] | None:
        if not torch.is_grad_enabled() or grads[0] is None:
            return None
        needed = [gradient is not None for gradient in gradients[:3]]
        options = (None, pattern_of(causal), bias, scale)
        input_gradients = differentiate(
            lambda q, k, v: by_formula(q, k, v, *options), (q, k, v), needed, grads[0]
        )
        return *input_gradients, *gradients[3:]

    assert out.grad_fn is not None
    out.grad_fn.register_hook(differentiable)
    return out


def are_hooked() -> bool:
    """Return whether tensors that are saved for a backward pass go through hooks."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sink: Tensor | None,
    pattern: Pattern,
    bias: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output, once more for the backward pass, and the log-sum-exp of each query."""
    out, lse = _flash(q, k, v, sink, pattern.causal, bias, scale)
    return out, out, lse


def backward(needed: Sequence[bool], grad: Tensor, *saved: Any) -> tuple[Tensor | None, ...]:
    """Return the gradients of queries, keys, values and sink.

    The weights are ``exp(scores - lse)``, which is right if a sink is part of the log-sum-exp.
    """
    q, k, v, sink, out, lse, pattern, bias, scale = saved
    if bias is None and attention_native.takes_gradients(q, k, v):
        input_gradients = attention_native.gradients(grad, q, k, v, out, lse, pattern, scale)
    else:
        # In float32 at least: in bfloat16 PyTorch's kernel takes about twice the time.
        wide = torch.promote_types(q.dtype, torch.float32)
        inputs = [tensor.to(wide) for tensor in (grad, q, k, v, out)]
        bias = None if bias is None else bias.to(wide)
        input_gradients = _FLASH_BACKWARD(
            *inputs, lse, 0.0, pattern.causal, attn_mask=bias, scale=scale
        )
    if sink is None or not needed[3]:
        return *input_gradients, None
    return *input_gradients, attention_native.sink_gradient(grad, sink, out, lse)


def _flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sink: Tensor | None,
    causal: bool,
    bias: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Return the output and the log-sum-exp of the CPU's kernel, corrected for the sink."""
    out, lse = _FLASH(q, k, v, 0.0, causal, attn_mask=bias, scale=scale)
    if sink is None:
        return out, lse
    # A query that sees no key has lse = -inf or nan; its output is zero already. With a sink of
    # -inf lse stays so.
    sink = sink.to(q.dtype).to(lse.dtype)
    sees = lse.isfinite()
    with_sink = torch.where(
        sees, torch.logaddexp(lse, sink), torch.where(sink > -torch.inf, sink, lse)
    )
    factor = torch.where(sees, torch.exp(lse - with_sink), 0.0)
    return out * factor.unsqueeze(-1).to(out.dtype), with_sink


def pattern_of(causal: bool) -> Pattern:
    """Return the pattern of a product without a mask."""
    return CAUSAL if causal else FULL


def bias_of(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return the numbers that a mask adds to scores: 0 where a key may be seen, -inf elsewhere."""
    if mask is None:
        return None
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, float("-inf"))
