"""RMSNorm: torch's, with a backward pass in fewer steps over memory."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.errors import require, require_positive


class RMSNorm(nn.RMSNorm):
    """Scales each position to a mean square of 1, then each coordinate by a learned weight::

        output = x / sqrt(mean(x ** 2) + eps) * weight

    The same as :class:`torch.nn.RMSNorm` over the last axis, and computed in float32 as there; on the CPU in fewer
    passes over memory. For the backward pass it keeps just ``x`` and one number per position.

    Args:
        hidden_dim: Width of a position.
        eps: Added to the mean square, above 0.

    Raises:
        InputError: ``hidden_dim < 1`` or ``eps <= 0``.

    Source: Zhang and Sennrich 2019, arXiv 1910.07467.
    """

    eps: float

    def __init__(self, hidden_dim: int, eps: float = 1e-5) -> None:
        require_positive(hidden_dim=hidden_dim)
        require(eps > 0, f"eps = {eps}", "a number above 0", "Mixtral and gpt-oss use 1e-5.")
        super().__init__(hidden_dim, eps=eps)

    def forward(self, x: Float[Tensor, "*batch hidden_dim"]) -> Float[Tensor, "*batch hidden_dim"]:
        """Normalise every position on its own."""
        if x.device.type != "cpu":
            return super().forward(x)
        if torch.is_grad_enabled():
            return _RMSNorm.apply(x, self.weight, self.eps)
        return _normalise(x, self.weight, self.eps)[0]


def _normalise(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The result and ``1 / rms`` of every position, in float32 or wider."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.promote_types(x.dtype, torch.float32))
    inverse = length.square().div_(x.shape[-1]).add_(eps).rsqrt_()
    return (x * inverse).mul_(weight).to(x.dtype), inverse


class _RMSNorm(torch.autograd.Function):
    """With n = x / rms: ``d x = (g w - n mean(g w n)) / rms`` and ``d w = sum over positions of g n``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        out, inverse = _normalise(x, weight, eps)
        ctx.save_for_backward(x, weight, inverse)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, inverse = ctx.saved_tensors
        wide = inverse.dtype
        grad, weight_wide = grads[0].to(wide), weight.to(wide)
        normed = x * inverse
        flow = (grad * normed).reshape(-1, x.shape[-1])
        mean = flow.mv(weight_wide).view(inverse.shape).div_(x.shape[-1])
        grad_x = (grad * weight_wide).addcmul_(normed, mean, value=-1).mul_(inverse)
        return grad_x.to(x.dtype), flow.sum(0).to(weight.dtype), None
