"""Sinusoidal position embeddings."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.errors import require, require_positive


class SinusoidalPositions(nn.Module):
    r"""Sinusoidal position embeddings, with wavelengths from 2 pi to 10000 * 2 pi positions::

        table[p, 2 i]     = sin(p / 10000 ** (2 i / hidden_dim))
        table[p, 2 i + 1] = cos(p / 10000 ** (2 i / hidden_dim))
        output[b, p]      = x[b, p] + table[p]

    The table is computed in float64 and kept in float32. It is not part of the state dict.

    Args:
        hidden_dim: Width of a position; an odd one ends with a sine.
        max_seq_len: Positions to compute.

    Shape: ``[batch, position, hidden_dim]`` to the same.

    Raises:
        InputError: A size below 1; an input of another width, or longer than ``max_seq_len``.

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.5.
    """

    table: Tensor

    def __init__(self, hidden_dim: int, max_seq_len: int) -> None:
        super().__init__()
        require_positive(hidden_dim=hidden_dim, max_seq_len=max_seq_len)
        self.hidden_dim, self.max_seq_len = hidden_dim, max_seq_len
        even = torch.arange(0, hidden_dim, 2, dtype=torch.float64)
        angles = torch.outer(torch.arange(max_seq_len, dtype=torch.float64), 10000.0 ** (-even / hidden_dim))
        waves = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
        self.register_buffer("table", waves[:, :hidden_dim].float(), persistent=False)

    def forward(self, x: Float[Tensor, "batch position hidden_dim"]) -> Float[Tensor, "batch position hidden_dim"]:
        """Add the positions 0, 1, ... to ``x``, in its dtype."""
        length, width = x.shape[-2:]
        require(
            width == self.hidden_dim and length <= self.max_seq_len,
            f"{length} positions of width {width}",
            f"at most max_seq_len = {self.max_seq_len} positions of width hidden_dim = {self.hidden_dim}",
            "Build the positions with the width and the greatest length of their input.",
        )
        return x + self.table[:length].to(x.dtype)
