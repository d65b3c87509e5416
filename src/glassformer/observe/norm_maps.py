"""What a norm does to a vector, as its formula: centre, scale, weight and bias."""

from itertools import product
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.errors import InputError


class NormMap(NamedTuple):
    """``scale(x) * (x - mean(x)) * weight + bias``, of which only a LayerNorm subtracts the mean::

    scale(x) = 1 / sqrt(mean((x - mean(x)) ** 2) + eps)
    """

    centred: bool
    eps: float
    weight: Float[Tensor, " dim"]
    bias: Float[Tensor, " dim"] | None

    def centre(self, values: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        """The values without their mean, if the norm subtracts it."""
        if self.centred:
            return values - values.mean(-1, keepdim=True)
        return values

    def scale(self, stream: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch 1"]:
        """The factor on all numbers of a position."""
        return (
            (self.centre(stream.double()).square().mean(-1, keepdim=True) + self.eps)
            .rsqrt()
            .to(stream.dtype)
        )

    def __call__(self, stream: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        """The output of the norm."""
        normed = self.centre(stream) * self.scale(stream) * self.weight
        return normed if self.bias is None else normed + self.bias


@torch.no_grad()
def norm_map(norm: Any, stream: Float[Tensor, "*batch dim"]) -> NormMap:
    """The formula of a norm, in float32 or wider.

    Its class is not asked: of the formulas that its weight, bias and eps allow, the one is taken
    that gives what the module gives for random vectors; and it must do so for ``stream``.

    Args:
        norm: An RMSNorm or a LayerNorm of torch, glassformer or ``transformers``, of which some
            multiply by ``1 + weight``.
        stream: In the type in which the norm reads it.

    Raises:
        InputError: A norm that does something else, as one with hooks may.
    """
    wide = torch.promote_types(stream.dtype, torch.float32)
    near = _NEAR.get(stream.dtype, 0.03)
    generator = torch.Generator().manual_seed(0)
    drawn = (2 * torch.randn(8, 1, stream.shape[-1], generator=generator) + 1).to(stream)
    for candidate in _candidates(norm, stream, wide):
        if _agree(candidate(drawn.to(wide)), norm(drawn), near) and _agree(
            candidate(stream.to(wide)), norm(stream), near
        ):
            return candidate
    raise InputError(
        f"a final norm, {type(norm).__name__}, that is neither an RMSNorm nor a LayerNorm, or has "
        "hooks",
        "a norm that does what its weight and bias say",
        "Use logit_lens() (on the command line: --what lens), or patch_sweep().",
    )


_NEAR = {torch.float64: 1e-5, torch.float32: 1e-4}
"""Of the largest number. transformers computes norms of models in float64 in float32."""


def _candidates(norm: Any, stream: Tensor, wide: torch.dtype) -> list[NormMap]:
    given = getattr(norm, "weight", None)
    ones = torch.ones(stream.shape[-1], dtype=wide, device=stream.device)
    if given is None:
        weights = [ones]
    else:
        weights = [given.detach().to(wide), 1 + given.detach().to(wide)]
    bias = getattr(norm, "bias", None)
    bias = bias.detach().to(wide) if isinstance(bias, Tensor) else None
    eps = next(
        (getattr(norm, name) for name in ("variance_epsilon", "eps") if hasattr(norm, name)), 1e-5
    )
    eps = torch.finfo(stream.dtype).eps if eps is None else float(eps)
    likely = isinstance(norm, nn.LayerNorm) or "LayerNorm" in type(norm).__name__
    return [
        NormMap(centred, eps, weight, bias)
        for centred, weight in product((likely, not likely), weights)
    ]


def _agree(found: Tensor, expected: Tensor, near: float) -> bool:
    error = (found - expected.to(found.dtype)).abs().max()
    return bool(error <= near * expected.abs().max())
