"""RMSNorm as a layer, the choice between it and LayerNorm, and a soft cap."""

from jaxtyping import Float
from torch import Tensor, nn

from glassformer.errors import require_above_zero, require_positive
from glassformer.kernels.attention import soft_capped
from glassformer.kernels.rms_norm import rms_norm
from glassformer.layers.options import NormKind


class RMSNorm(nn.RMSNorm):
    """Scales each position to a mean square of 1, then each coordinate by a learned weight::

        output = x / sqrt(mean(x ** 2) + eps) * weight

    The same as :class:`torch.nn.RMSNorm` over the last axis, computed in float32 or wider as there.

    Source: Zhang and Sennrich 2019, arXiv 1910.07467.
    """

    eps: float

    def __init__(self, hidden_dim: int, eps: float = 1e-5) -> None:
        require_positive(hidden_dim=hidden_dim)
        require_above_zero(eps=eps)
        super().__init__(hidden_dim, eps=eps)

    def forward(self, x: Float[Tensor, "*batch hidden_dim"]) -> Float[Tensor, "*batch hidden_dim"]:
        """Normalise every position on its own."""
        return rms_norm(x, self.weight, self.eps)


def make_norm(kind: NormKind, hidden_dim: int, eps: float) -> nn.Module:
    """Return an :class:`RMSNorm`, or LayerNorm with weight and bias.

    Source: Ba et al. 2016, arXiv 1607.06450 (LayerNorm).
    """
    if kind == "rms":
        return RMSNorm(hidden_dim, eps)
    return nn.LayerNorm(hidden_dim, eps=eps)


class SoftCap(nn.Module):
    """``cap * tanh(x / cap)``, which lies between ``-cap`` and ``cap``.

    Source: Gemma Team 2024, arXiv 2408.00118.
    """

    def __init__(self, cap: float) -> None:
        super().__init__()
        self.cap = cap

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Cap every number."""
        return soft_capped(x, self.cap)
