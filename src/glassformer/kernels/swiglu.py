"""SwiGLU, plain and with gpt-oss's clamp.

Source: Shazeer 2020, arXiv 2002.05202; OpenAI 2025, gpt-oss reference implementation, ``swiglu``.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from glassformer.kernels import native
from glassformer.kernels.dispatch import (
    NATIVE_NAMES,
    Fast,
    Operation,
    native_library,
    use_definition,
)
from glassformer.kernels.native import declare
from glassformer.kernels.options import Clamp


def definition(gate: Tensor, up: Tensor, clamp: Clamp | None = None) -> Tensor:
    """Return ``silu(gate) * up`` with ``silu(x) = x * sigmoid(x)``, or as :class:`Clamp` says."""
    if clamp is None:
        return F.silu(gate) * up
    # Not by clamp(), whose derivative at the limit is 1 up to torch 2.13 and 0 from 2.14 on.
    gate = torch.where(gate > clamp.limit, clamp.limit, gate)
    up = torch.where(up.abs() > clamp.limit, up.sign() * clamp.limit, up)
    return gate * torch.sigmoid(clamp.alpha * gate) * (up + 1)


def swiglu(
    gate: Float[Tensor, "*shape"], up: Float[Tensor, "*shape"], clamp: Clamp | None = None
) -> Float[Tensor, "*shape"]:
    """Compute :func:`definition`, on the CPU in one pass over memory, rounded once.

    The backward pass needs the two inputs only.
    """
    # A compiler fuses the definition, torch.func transforms it, and it promotes dtypes.
    if torch.compiler.is_compiling() or use_definition() or gate.dtype != up.dtype:
        return definition(gate, up, clamp)
    # C++ in one pass over memory, or torch in a few.
    fits = gate.shape == up.shape and native_library(gate, up) is not None
    form = _IN_CPP if fits else _IN_TORCH
    if torch.is_grad_enabled():
        return Fast.apply(form, (clamp,), gate, up)
    return form.forward(gate, up, clamp)[0]


def swiglu_backward(
    grad: Tensor, gate: Tensor, up: Tensor, clamp: Clamp | None
) -> tuple[Tensor, Tensor]:
    """Return the gradients of ``gate`` and ``up``, which cannot be differentiated again."""
    library = None
    if gate.shape == up.shape:
        library = native_library(grad, gate, up)
    if library is None:
        return _backward_in_torch(grad, gate, up, clamp)
    gate = gate.contiguous()
    up = up.contiguous()
    grad_gate = torch.empty_like(gate)
    grad_up = torch.empty_like(up)
    name = f"swiglu_backward_{NATIVE_NAMES[gate.dtype]}"
    tensors = (grad.contiguous(), gate, up, grad_gate, grad_up)
    library.call(name, *tensors, grad.numel(), *_constants(clamp), torch.get_num_threads())
    return grad_gate, grad_up


declare("swiglu", "TTT", lambda size, *_: (size, size, size))
declare("swiglu_backward", "TTTTT", lambda size, *_: (size, size, size, size, size))


def _in_cpp(gate: Tensor, up: Tensor, clamp: Clamp | None) -> tuple[Tensor]:
    library = native.library()
    assert library is not None
    gate = gate.contiguous()
    out = torch.empty_like(gate)
    name = f"swiglu_{NATIVE_NAMES[gate.dtype]}"
    library.call(
        name, gate, up.contiguous(), out, out.numel(), *_constants(clamp), torch.get_num_threads()
    )
    return (out,)


def _constants(clamp: Clamp | None) -> tuple[float, float, float]:
    """Return alpha, limit and shift, for which ``g sigmoid(alpha g) (u + shift)`` is SwiGLU."""
    if clamp is None:
        return (1.0, math.inf, 0.0)
    return (clamp.alpha, clamp.limit, 1.0)


def _in_torch(gate: Tensor, up: Tensor, clamp: Clamp | None) -> tuple[Tensor]:
    if clamp is None:
        return (F.silu(gate).mul_(up),)
    gate = gate.clamp(max=clamp.limit)
    up = up.clamp(-clamp.limit, clamp.limit)
    return ((clamp.alpha * gate).sigmoid_().mul_(gate).mul_(up.add_(1)),)


def _backward_in_torch(
    grad: Tensor, gate: Tensor, up: Tensor, clamp: Clamp | None
) -> tuple[Tensor, Tensor]:
    if clamp is None:
        return torch.ops.aten.silu_backward(grad * up, gate), F.silu(gate).mul_(grad)
    g = gate.clamp(max=clamp.limit)
    u = up.clamp(-clamp.limit, clamp.limit)
    s = torch.sigmoid(clamp.alpha * g)
    grad_gate = grad * (u + 1) * s * (1 + clamp.alpha * g * (1 - s))
    grad_gate.masked_fill_(gate > clamp.limit, 0)
    grad_up = grad * g * s
    grad_up.masked_fill_(up.abs() > clamp.limit, 0)
    return grad_gate, grad_up


def _backward(
    needed: Any, grad: Tensor, gate: Tensor, up: Tensor, clamp: Clamp | None
) -> tuple[Tensor, Tensor]:
    return swiglu_backward(grad, gate, up, clamp)


_IN_CPP = Operation(definition, _in_cpp, _backward)
_IN_TORCH = Operation(definition, _in_torch, _backward)
