"""Rotary position embedding: rotations of queries and keys."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.errors import require, require_positive
from glassformer.kernels.options import Layout
from glassformer.kernels.rotation import Rotation, require_layout, rotate
from glassformer.layers.options import Yarn


class RotaryEmbedding(nn.Module):
    r"""Rotates each pair of coordinates of a query or key by an angle proportional to its position.

    Pair i of position p turns by ``p * base ** (-2 i / head_dim)`` radians::

        a' = a cos - b sin
        b' = b cos + a sin

    so that the product of a query at p and a key at r depends on p - r alone.

    Two layouts say which two coordinates are a pair. The paper pairs neighbours: (0, 1), (2, 3), ...
    (``"interleaved"``). GPT-NeoX, Llama, gpt-oss and Hugging Face pair the first half with the second: (0, d/2),
    (1, d/2 + 1), ... (``"half-split"``, the default). They are the same up to the order of coordinates, which a
    projection is free to choose: :func:`~glassformer.kernels.rotation.convert_rows` converts trained weights.

    Cosines and sines are float32 and not part of the state dict. Those of the first ``max_seq_len`` positions are kept;
    of later positions they are computed when needed. A module made on the meta device has them on the CPU, and keeps
    them through ``to_empty``.

    Args:
        head_dim: Even.
        max_seq_len: Positions to keep.
        base: The slowest frequency is about 1 / base.
        layout: ``"half-split"`` or ``"interleaved"``.
        yarn: Stretch to longer texts, see :class:`Yarn`.

    Raises:
        InputError: Odd head_dim, sizes below 1, base <= 1, or an unknown layout.

    Source: Su et al. 2021, "RoFormer", arXiv 2104.09864, section 3.2.
    """

    cos: Tensor
    sin: Tensor

    def __init__(
        self,
        head_dim: int,
        max_seq_len: int = 2048,
        base: float = 10000.0,
        *,
        layout: Layout = "half-split",
        yarn: Yarn | None = None,
    ) -> None:
        super().__init__()
        require_positive(head_dim=head_dim, max_seq_len=max_seq_len)
        require(head_dim % 2 == 0, f"head_dim = {head_dim}", "an even number", "Rotation works on pairs; use 2 n.")
        require(base > 1, f"base = {base}", "a number above 1", "The paper uses 10000.")
        require_layout(layout)
        self.head_dim, self.base, self.layout, self.yarn = head_dim, base, layout, yarn
        self._keep(max_seq_len, torch.get_default_device())

    def _keep(self, length: int, device: torch.device) -> None:
        # No file holds them, so a module on the meta device needs them on a real one.
        device = torch.device("cpu") if device == torch.device("meta") else device
        cos, sin = self.rotation_at(torch.arange(length, device="cpu"))
        self.register_buffer("cos", cos.to(device), persistent=False)
        self.register_buffer("sin", sin.to(device), persistent=False)

    def _apply(self, fn: Any, recurse: bool = True) -> RotaryEmbedding:
        """Move to other devices, but keep float32 and the values: half precision blurs late positions."""
        cos, sin = self.cos, self.sin
        super()._apply(fn, recurse)
        device = self.cos.device
        if cos.is_meta and not self.cos.is_meta:
            self._keep(len(cos), device)
        elif self.cos is not cos:  # what fn returned may be of another dtype, or empty
            self.cos, self.sin = cos.to(device), sin.to(device)
        return self

    def rotation(self, length: int, start: int = 0) -> Rotation:
        """Cosines and sines of positions ``start .. start + length - 1``, each ``[position, head_dim / 2]``.

        Raises:
            InputError: ``start < 0`` or ``length < 1``.
        """
        require(start >= 0, f"start = {start}", "0 or more", "Positions count from 0.")
        require_positive(length=length)
        stop = start + length
        if stop <= len(self.cos):
            return self.cos[start:stop], self.sin[start:stop]
        cos, sin = self.rotation_at(torch.arange(start, stop, device="cpu"))
        return cos.to(self.cos.device), sin.to(self.cos.device)

    def rotation_at(self, positions: Int[Tensor, " position"]) -> Rotation:
        """Cosines and sines of the given positions, computed anew on their device."""
        even = torch.arange(0, self.head_dim, 2, dtype=torch.float32, device=positions.device)
        frequencies, size = 1.0 / self.base ** (even / self.head_dim), 1.0
        if self.yarn is not None:
            frequencies, size = yarn_frequencies(frequencies, self.yarn, self.base), self.yarn.concentration
        angles = torch.outer(positions.to(torch.float32), frequencies)
        return angles.cos() * size, angles.sin() * size

    def forward(
        self, x: Float[Tensor, "batch head position head_dim"], start_pos: int = 0
    ) -> Float[Tensor, "batch head position head_dim"]:
        """Rotate queries or keys whose first position is ``start_pos``."""
        require(
            x.shape[-1] == self.head_dim,
            f"x with head_dim {x.shape[-1]}",
            f"head_dim = {self.head_dim}",
            "Build the rotary embedding with the head_dim of the heads.",
        )
        return rotate(x, self.rotation(x.shape[-2], start_pos), self.layout)


def yarn_frequencies(plain: Float[Tensor, " pair"], yarn: Yarn, base: float) -> Float[Tensor, " pair"]:
    """The frequencies stretched by YaRN, in radians per position, from the plain ones."""
    count = len(plain)

    def pair_that_turns(times: float) -> float:
        return count * math.log(yarn.original_max_seq_len / (times * 2 * math.pi)) / math.log(base)

    low, high = pair_that_turns(yarn.beta_fast), pair_that_turns(yarn.beta_slow)
    if yarn.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0.0), min(high, 2 * count - 1.0)
    ramp = (torch.arange(count, dtype=torch.float32, device=plain.device) - low) / max(high - low, 1e-3)
    # In the order of the released models' code: at late positions the last bit of a frequency is many of an angle.
    kept = 1 - ramp.clamp(0, 1)
    return plain / yarn.factor * (1 - kept) + plain * kept
