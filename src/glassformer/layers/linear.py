"""A linear map as a layer."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from glassformer.kernels.attention import soft_cap
from glassformer.kernels.linear import linear


class Linear(nn.Linear):
    """:class:`torch.nn.Linear`, computed by the fastest form: see :func:`glassformer.kernels.linear.linear`."""

    cap: float | None = None
    """Soft cap on the output, as on the logits of Gemma 2."""

    def forward(self, x: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        """``x @ weight.T + bias``; with a cap, ``cap * tanh`` of that ``/ cap``."""
        out = linear(x, self.weight, self.bias)
        return out if self.cap is None else soft_cap(out, self.cap)
