"""SwiGLU, plain and as gpt-oss clamps it.

Source: Shazeer 2020, arXiv 2002.05202; OpenAI 2025, gpt-oss reference implementation, ``swiglu``.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from glassformer.kernels.dispatch import NATIVE_NAMES, Fast, Operation, native_library, use_definition
from glassformer.kernels.native import declare
from glassformer.kernels.options import Clamp


def definition(gate: Tensor, up: Tensor, clamp: Clamp | None = None) -> Tensor:
    """``silu(gate) * up`` with ``silu(x) = x * sigmoid(x)``; with a clamp see :class:`Clamp`."""
    if clamp is None:
        return F.silu(gate) * up
    # Not by clamp(), whose derivative at the limit is 1 up to torch 2.13 and 0 from 2.14 on.
    gate = torch.where(gate > clamp.limit, clamp.limit, gate)
    up = torch.where(up.abs() > clamp.limit, up.sign() * clamp.limit, up)
    return gate * torch.sigmoid(clamp.alpha * gate) * (up + 1)


def swiglu(
    gate: Float[Tensor, "*shape"], up: Float[Tensor, "*shape"], clamp: Clamp | None = None
) -> Float[Tensor, "*shape"]:
    """:func:`definition`, which keeps its two inputs only; on the CPU in one pass over memory, rounded once."""
    if torch.compiler.is_compiling() or use_definition() or gate.dtype != up.dtype:
        return definition(gate, up, clamp)
    if not torch.is_grad_enabled():
        return _forward(gate, up, clamp)
    return Fast.apply(_OPERATION, (clamp,), gate, up)


declare("swiglu", "TTT", lambda size, *_: (size, size, size))
declare("swiglu_backward", "TTTTT", lambda size, *_: (size, size, size, size, size))


def _forward(gate: Tensor, up: Tensor, clamp: Clamp | None) -> Tensor:
    library = native_library(gate, up) if gate.shape == up.shape else None
    if library is not None:
        gate, up = gate.contiguous(), up.contiguous()
        out = torch.empty_like(gate)
        name = f"swiglu_{NATIVE_NAMES[gate.dtype]}"
        library.call(name, gate, up, out, out.numel(), *_constants(clamp), torch.get_num_threads())
        return out
    if clamp is None:
        return F.silu(gate).mul_(up)
    gate, up = gate.clamp(max=clamp.limit), up.clamp(-clamp.limit, clamp.limit)
    return (clamp.alpha * gate).sigmoid_().mul_(gate).mul_(up.add_(1))


def swiglu_backward(grad: Tensor, gate: Tensor, up: Tensor, clamp: Clamp | None) -> tuple[Tensor, Tensor]:
    """The gradients of ``gate`` and ``up``, which cannot be differentiated again."""
    library = native_library(grad, gate, up) if gate.shape == up.shape else None
    if library is not None:
        grad, gate, up = grad.contiguous(), gate.contiguous(), up.contiguous()
        found = torch.empty_like(gate), torch.empty_like(up)
        name = f"swiglu_backward_{NATIVE_NAMES[gate.dtype]}"
        library.call(name, grad, gate, up, *found, grad.numel(), *_constants(clamp), torch.get_num_threads())
        return found
    if clamp is None:
        return torch.ops.aten.silu_backward(grad * up, gate), F.silu(gate).mul_(grad)
    g, u = gate.clamp(max=clamp.limit), up.clamp(-clamp.limit, clamp.limit)
    s = torch.sigmoid(clamp.alpha * g)
    to_gate = grad * (u + 1) * s * (1 + clamp.alpha * g * (1 - s))
    return to_gate.masked_fill_(gate > clamp.limit, 0), (grad * g * s).masked_fill_(up.abs() > clamp.limit, 0)


def _constants(clamp: Clamp | None) -> tuple[float, float, float]:
    """alpha, limit and shift, with which ``g sigmoid(alpha g) (u + shift)`` is either form."""
    return (1.0, math.inf, 0.0) if clamp is None else (clamp.alpha, clamp.limit, 1.0)


_OPERATION = Operation(
    definition,
    lambda gate, up, clamp: (_forward(gate, up, clamp),),
    lambda _needed, grad, gate, up, clamp: swiglu_backward(grad, gate, up, clamp),
)
