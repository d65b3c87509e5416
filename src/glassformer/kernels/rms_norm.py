"""RMSNorm.

Source: Zhang and Sennrich 2019, arXiv 1910.07467.
"""

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


def definition(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return ``x / sqrt(mean(x ** 2) + eps) * weight`` over the last axis, in float32 or wider."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt() * weight).to(x.dtype)


def rms_norm(
    x: Float[Tensor, "*batch hidden_dim"], weight: Float[Tensor, " hidden_dim"], eps: float
) -> Float[Tensor, "*batch hidden_dim"]:
    """Compute :func:`definition`, on the CPU in fewer passes over memory.

    Other devices have torch's kernel. The backward pass of the CPU's forms needs ``x`` and one
    number per position.
    """
    # A compiler fuses the definition, and torch.func transforms it.
    if torch.compiler.is_compiling() or use_definition():
        return definition(x, weight, eps)
    # An accelerator has a kernel of torch's.
    if x.device.type != "cpu":
        return F.rms_norm(x, weight.shape, weight, eps)
    # C++ in one pass over memory, or torch in a few.
    fits = weight.shape == x.shape[-1:] and native_library(x) is not None
    form = _IN_CPP if fits else _IN_TORCH
    if torch.is_grad_enabled():
        return Fast.apply(form, (eps,), x, weight)
    return form.forward(x, weight, eps)[0]


declare("rms_norm", "TfTf", lambda rows, size, *_: (rows * size, size, rows * size, rows))
declare(
    "rms_norm_backward",
    "TTffTf",
    lambda rows, size, parts, _: (rows * size, rows * size, size, rows, rows * size, parts * size),
)
_PARTS = 64  # parts of the rows, each of which sums its gradient of the weight


def _in_cpp(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the result, and ``1 / rms`` of every position in float32."""
    library = native.library()
    assert library is not None
    x = x.contiguous()
    size = x.shape[-1]
    out = torch.empty_like(x)
    inverse = x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)
    name = f"rms_norm_{NATIVE_NAMES[x.dtype]}"
    sizes = (inverse.numel(), size, float(eps), torch.get_num_threads())
    library.call(name, x, _in_float32(weight), out, inverse, *sizes)
    return out, inverse


def _in_torch(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the result, and ``1 / rms`` of every position in float32 or wider."""
    wide = torch.promote_types(x.dtype, torch.float32)
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=wide)
    inverse = length.square().div_(x.shape[-1]).add_(eps).rsqrt_()
    return (x * inverse).mul_(weight).to(x.dtype), inverse


def _in_float32(weight: Tensor) -> Tensor:
    # The condition takes less time than a conversion that changes nothing.
    if weight.dtype == torch.float32 and weight.is_contiguous():
        return weight
    return weight.to(torch.float32).contiguous()


def _backward(
    needed: Any, grad: Tensor, x: Tensor, weight: Tensor, inverse: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Return ``d x = (g w - n mean(g w n)) / rms`` and ``d w = sum of g n``, with n = x / rms."""
    library = None
    if weight.shape == x.shape[-1:]:
        library = native_library(x, grad)
    if library is None:
        return _backward_in_torch(grad, x, weight, inverse)
    rows = inverse.numel()
    size = x.shape[-1]
    grad_x = x.new_empty(x.shape)
    sums = inverse.new_empty(min(_PARTS, rows), size)
    tensors = (
        grad.contiguous(),
        x.contiguous(),
        _in_float32(weight),
        inverse.contiguous(),
        grad_x,
        sums,
    )
    name = f"rms_norm_backward_{NATIVE_NAMES[x.dtype]}"
    library.call(name, *tensors, rows, size, len(sums), torch.get_num_threads())
    return grad_x, sums.sum(0).to(weight.dtype)


def _backward_in_torch(
    grad: Tensor, x: Tensor, weight: Tensor, inverse: Tensor
) -> tuple[Tensor, Tensor]:
    wide = inverse.dtype
    grad = grad.to(wide)
    weight_wide = weight.to(wide)
    normed = x * inverse
    flow = (grad * normed).reshape(-1, x.shape[-1])
    mean = flow.mv(weight_wide).view(inverse.shape).div_(x.shape[-1])
    grad_x = (grad * weight_wide).addcmul_(normed, mean, value=-1).mul_(inverse)
    return grad_x.to(x.dtype), flow.sum(0).to(weight.dtype)


_IN_CPP = Operation(definition, _in_cpp, _backward)
_IN_TORCH = Operation(definition, _in_torch, _backward)
