"""The matrix product of a layer, by whichever of torch's two libraries for the CPU is faster at it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.flop_counter import register_flop_formula

_PLAIN = (Tensor, nn.Parameter)
# Products (rows * in * out) below which the call of oneDNN costs more than it saves, on the machine named below.
_LEAST_WORK = 2**22
_ONEDNN = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None


class Linear(nn.Linear):
    """``output = x @ weight.T + bias``: :class:`torch.nn.Linear`, computed by :func:`linear`.

    Weights have the same names, shapes and first values.
    """

    def forward(self, x: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        """Map every position on its own."""
        return linear(x, self.weight, self.bias)


def linear(
    x: Float[Tensor, "*batch in"], weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None = None
) -> Float[Tensor, "*batch out"]:
    """``x @ weight.T + bias``, in float32 on the CPU by oneDNN, forward and backward; elsewhere as torch does it.

    For float32 torch asks MKL, which on an AMD EPYC with AVX-512 took twice as long as oneDNN (widths of 384 and 1,536,
    800 to 4,096 rows, one thread). A small product (160 rows, widths of 64) is left to torch: with its gradients it
    takes 0.07 ms there, and 0.12 ms by oneDNN, each call of which costs 10 to 20 microseconds more. Both compute in
    float32 and add in another order.
    """
    if _fits_onednn(x, weight, bias):
        needs_grad = torch.is_grad_enabled() and any(
            tensor is not None and tensor.requires_grad for tensor in (x, weight, bias)
        )
        return _Linear.apply(x, weight, bias) if needs_grad else _onednn(x, weight, bias)
    return F.linear(x, weight, bias)


def autocast_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which products of ``x`` are computed: autocast's where that is on, otherwise its own.

    On the device ``"meta"``, of which torch knows no autocast, it is its own.
    """
    kind = x.device.type
    return x.dtype if x.is_meta or not torch.is_autocast_enabled(kind) else torch.get_autocast_dtype(kind)


def _fits_onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    return (
        _ONEDNN is not None
        and not torch.compiler.is_compiling()  # which chooses a library by itself
        and x.numel() * weight.shape[0] >= _LEAST_WORK
        and all(type(each) in _PLAIN and each.dtype == torch.float32 for each in (x, weight))
        # A bias is read as if its numbers lay one behind the other.
        and (bias is None or (type(bias) in _PLAIN and bias.dtype == torch.float32 and bias.is_contiguous()))
        and x.device.type == weight.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
    )


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    assert _ONEDNN is not None  # as _fits_onednn found
    return _ONEDNN(x, weight, bias, "none", [], "none")


class _Linear(torch.autograd.Function):
    """With y = x W^T + b: ``d x = d y W``, ``d W = (d y)^T x``, ``d b`` the sum of d y over positions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _onednn(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad = grads[0]
        rows = grad.reshape(-1, grad.shape[-1])
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        grad_x = _onednn(grad, weight.t(), None) if needs_x else None
        grad_weight = _onednn(rows.t().contiguous(), x.reshape(-1, x.shape[-1]).t(), None) if needs_weight else None
        return grad_x, grad_weight, rows.sum(0) if needs_bias else None


if _ONEDNN is not None:

    @register_flop_formula(_ONEDNN)  # so that torch's FlopCounterMode sees it too
    def _operations(x_shape: Sequence[int], weight_shape: Sequence[int], *_: Any, **__: Any) -> int:
        rows = 1
        for size in x_shape[:-1]:
            rows *= size
        return 2 * rows * weight_shape[0] * weight_shape[1]
