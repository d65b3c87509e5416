"""Rotary position embedding: rotations of queries and keys."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.errors import require, require_positive
from glassformer.kernels.options import Layout
from glassformer.kernels.rotation import Rotation, require_layout, rotate
from glassformer.layers.options import Factors, Linear, Llama3, LongRope, RopeScaling, Yarn


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

    Args:
        head_dim: Even.
        base: The slowest frequency is about 1 / base.
        layout: ``"half-split"`` or ``"interleaved"``.
        scaling: Stretch to longer texts, see :mod:`glassformer.layers.options`.

    Raises:
        InputError: An odd head_dim or one below 1, base <= 1, an unknown layout, or too many or few factors.

    Source: Su et al. 2021, "RoFormer", arXiv 2104.09864, section 3.2.
    """

    def __init__(
        self,
        head_dim: int,
        base: float = 10000.0,
        *,
        layout: Layout = "half-split",
        scaling: RopeScaling | None = None,
    ) -> None:
        super().__init__()
        require_positive(head_dim=head_dim)
        require(head_dim % 2 == 0, f"head_dim = {head_dim}", "an even number", "Rotation works on pairs; use 2 n.")
        require(base > 1, f"base = {base}", "a number above 1", "The paper uses 10000.")
        require_layout(layout)
        self.head_dim, self.base, self.layout, self.scaling = head_dim, base, layout, scaling
        # Not a buffer: those of a model on the meta device are empty, and half precision would blur late positions.
        even = torch.arange(0, head_dim, 2, dtype=torch.float32, device="cpu")
        self._frequencies = 1.0 / base ** (even / head_dim)
        self._long_frequencies = self._frequencies
        if isinstance(scaling, Yarn):
            self._frequencies = yarn_frequencies(self._frequencies, scaling, base)
        elif isinstance(scaling, Llama3):
            self._frequencies = llama3_frequencies(self._frequencies, scaling)
        elif isinstance(scaling, Linear):
            self._frequencies = self._frequencies / scaling.divisor
        elif isinstance(scaling, Factors):
            self._frequencies = self._frequencies / _for_pairs(scaling.divisors, self._frequencies)
        elif isinstance(scaling, LongRope):
            powers = base ** (even / head_dim)
            self._frequencies = 1.0 / (_for_pairs(scaling.short, powers) * powers)
            self._long_frequencies = 1.0 / (_for_pairs(scaling.long, powers) * powers)

    @property
    def concentration(self) -> float:
        """The factor on cosines and sines."""
        return self.scaling.concentration if isinstance(self.scaling, Yarn | LongRope) else 1.0

    def rotation(self, length: int, start: int = 0, device: torch.device | None = None) -> Rotation:
        """Cosines and sines of positions ``start .. start + length - 1``, each ``[position, head_dim / 2]``.

        Raises:
            InputError: ``start < 0`` or ``length < 1``.
        """
        require(start >= 0, f"start = {start}", "0 or more", "Positions count from 0.")
        require_positive(length=length)
        return self.rotation_at(torch.arange(start, start + length, device=device))

    def rotation_at(self, positions: Int[Tensor, " position"]) -> Rotation:
        """Cosines and sines of the given positions, in float32 on their device; the last one is the text's."""
        frequencies = self._frequencies.to(positions.device)
        if isinstance(self.scaling, LongRope):
            is_long = positions[-1] >= self.scaling.original_max_seq_len
            frequencies = torch.where(is_long, self._long_frequencies.to(positions.device), frequencies)
        angles = torch.outer(positions.to(torch.float32), frequencies)
        if self.concentration == 1.0:
            return angles.cos(), angles.sin()
        return angles.cos() * self.concentration, angles.sin() * self.concentration

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
        return rotate(x, self.rotation(x.shape[-2], start_pos, x.device), self.layout)


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


def llama3_frequencies(plain: Float[Tensor, " pair"], scaling: Llama3) -> Float[Tensor, " pair"]:
    """The frequencies stretched as in Llama 3.1, in radians per position, from the plain ones."""
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    # In the order of the released models' code, as for YaRN.
    wavelengths = 2 * math.pi / plain
    smooth = ((scaling.original_max_seq_len / wavelengths - low) / (high - low)).clamp(0, 1)
    between = (1 - smooth) * (plain / scaling.factor) + smooth * plain
    divided = torch.where(wavelengths > scaling.original_max_seq_len / low, plain / scaling.factor, plain)
    is_between = (wavelengths <= scaling.original_max_seq_len / low) & (
        wavelengths >= scaling.original_max_seq_len / high
    )
    return torch.where(is_between, between, divided)


def _for_pairs(factors: tuple[float, ...], like: Float[Tensor, " pair"]) -> Float[Tensor, " pair"]:
    got = f"{len(factors)} rotary factors for {len(like)} pairs"
    require(len(factors) == len(like), got, "one for each pair", "Take factors and sizes from one file.")
    return torch.tensor(factors, dtype=torch.float32, device="cpu")
