"""SwiGLU, plain and as gpt-oss clamps it.

Source: Shazeer 2020, arXiv 2002.05202; OpenAI 2025, gpt-oss reference implementation, ``swiglu``.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from glassformer.kernels.options import Clamp
from glassformer.kernels.rule import differentiate, use_definition


def definition(gate: Tensor, up: Tensor, clamp: Clamp | None = None) -> Tensor:
    """``silu(gate) * up`` with ``silu(x) = x * sigmoid(x)``; with a clamp see :class:`Clamp`."""
    if clamp is None:
        return F.silu(gate) * up
    gate, up = gate.clamp(max=clamp.limit), up.clamp(-clamp.limit, clamp.limit)
    return gate * torch.sigmoid(clamp.alpha * gate) * (up + 1)


def swiglu(
    gate: Float[Tensor, "*shape"], up: Float[Tensor, "*shape"], clamp: Clamp | None = None
) -> Float[Tensor, "*shape"]:
    """:func:`definition`, in place where no gradient is needed; otherwise it keeps its two inputs only."""
    if torch.compiler.is_compiling() or use_definition():
        return definition(gate, up, clamp)
    if not torch.is_grad_enabled():
        return _without_grad(gate, up, clamp)
    return _SwiGLU.apply(gate, up) if clamp is None else definition(gate, up, clamp)


def _without_grad(gate: Tensor, up: Tensor, clamp: Clamp | None) -> Tensor:
    if clamp is None:
        return F.silu(gate).mul_(up)
    gate, up = gate.clamp(max=clamp.limit), up.clamp(-clamp.limit, clamp.limit)
    return (clamp.alpha * gate).sigmoid_().mul_(gate).mul_(up.add_(1))


class _SwiGLU(torch.autograd.Function):
    """``silu(gate) * up``; ``silu(gate)`` is computed again in the backward pass instead of being kept."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return _without_grad(gate, up, None)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        gate, up = ctx.saved_tensors
        if torch.is_grad_enabled():
            return differentiate(definition, (gate, up), ctx.needs_input_grad, grads[0])
        return torch.ops.aten.silu_backward(grads[0] * up, gate), F.silu(gate).mul_(grads[0])
