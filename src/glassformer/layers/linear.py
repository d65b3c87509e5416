"""A linear map as a layer."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from glassformer.kernels.linear import linear


class Linear(nn.Linear):
    """:class:`torch.nn.Linear`, computed by the fastest form: see :func:`glassformer.kernels.linear.linear`."""

    def forward(self, x: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        """``x @ weight.T + bias``."""
        return linear(x, self.weight, self.bias)
