"""Express a norm as its formula: centre, scale, weight and bias."""

from itertools import product
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.errors import InputError


class NormMap(NamedTuple):
    """The formula of a norm::

        norm(x)  = scale(x) * (x - mean(x)) * weight + bias
        scale(x) = 1 / sqrt(mean((x - mean(x)) ** 2) + eps)

    Only a LayerNorm subtracts the mean.
    """

    centred: bool
    eps: float
    weight: Float[Tensor, " dim"]
    bias: Float[Tensor, " dim"] | None

    def centre(self, values: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        """Return the values without their mean, if the norm subtracts it."""
        if self.centred:
            return values - values.mean(-1, keepdim=True)
        return values

    def scale(self, stream: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch 1"]:
        """Return the factor on all numbers of a position."""
        variance = self.centre(stream.double()).square().mean(-1, keepdim=True)
        return (variance + self.eps).rsqrt().to(stream.dtype)

    def __call__(self, stream: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        """Return the output of the norm."""
        normed = self.centre(stream) * self.scale(stream) * self.weight
        return normed if self.bias is None else normed + self.bias


@torch.no_grad()
def norm_map(norm: Any, stream: Float[Tensor, "*batch dim"]) -> NormMap:
    """Return the formula of a norm, in float32 or wider.

    The class of the norm does not matter. Its weight, bias and eps allow several formulas; the
    result is the one that agrees with the module on random vectors and on ``stream``.

    Args:
        norm: An RMSNorm or a LayerNorm of torch, glassformer or ``transformers``; some multiply by
            ``1 + weight``.
        stream: A residual stream in the dtype in which the norm reads it.

    Raises:
        InputError: A norm with another formula, such as one with hooks.
    """
    wide = torch.promote_types(stream.dtype, torch.float32)
    tolerance = _TOLERANCE.get(stream.dtype, 0.03)
    generator = torch.Generator().manual_seed(0)
    random = (2 * torch.randn(8, 1, stream.shape[-1], generator=generator) + 1).to(stream)
    for candidate in _candidates(norm, stream, wide):
        if all(
            _agree(candidate(values.to(wide)), norm(values), tolerance)
            for values in (random, stream)
        ):
            return candidate
    raise InputError(
        got=(
            f"a final norm, {type(norm).__name__}, that is neither an RMSNorm nor a LayerNorm, or "
            "has hooks"
        ),
        expected="a norm that does what its weight and bias say",
        fix="Use logit_lens() (on the command line: --what lens), or patch_sweep().",
    )


_TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-4}
"""Largest error by rounding, in units of the largest number.

transformers computes norms in float32, also of models in float64.
"""


def _candidates(norm: Any, stream: Tensor, wide: torch.dtype) -> list[NormMap]:
    """Return the formulas that a norm's weight, bias and eps allow, the likely ones first."""
    weight = getattr(norm, "weight", None)
    if weight is None:
        weights = [torch.ones(stream.shape[-1], dtype=wide, device=stream.device)]
    else:
        weights = [weight.detach().to(wide), 1 + weight.detach().to(wide)]
    bias = getattr(norm, "bias", None)
    bias = bias.detach().to(wide) if isinstance(bias, Tensor) else None
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", 1e-5))
    eps = torch.finfo(stream.dtype).eps if eps is None else float(eps)
    likely = isinstance(norm, nn.LayerNorm) or "LayerNorm" in type(norm).__name__
    return [
        NormMap(centred, eps, weight, bias)
        for centred, weight in product((likely, not likely), weights)
    ]


def _agree(computed: Tensor, expected: Tensor, tolerance: float) -> bool:
    error = (computed - expected.to(computed.dtype)).abs().max()
    return bool(error <= tolerance * expected.abs().max())
