"""Position embeddings: rotary, for queries and keys, and sinusoidal, which is added to tokens."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.errors import InputError, require_positive
from glassformer.kernels.options import Layout
from glassformer.kernels.rotation import Rotation, require_layout, rotate
from glassformer.layers.options import Llama3, LongRope, RopeScaling, Yarn


class RotaryEmbedding(nn.Module):
    r"""Rotates each pair of coordinates of a query or key by an angle proportional to its position.

    Pair i of position p turns by ``p * base ** (-2 i / head_dim)`` radians::

        a' = a cos - b sin
        b' = b cos + a sin

    so that the product of a query at p and a key at r depends on p - r alone.

    Two layouts say which two coordinates are a pair. The paper pairs neighbours: (0, 1), (2, 3),
    ... (``"interleaved"``). GPT-NeoX, Llama, gpt-oss and Hugging Face pair the first half with the
    second: (0, d/2), (1, d/2 + 1), ... (``"half-split"``, the default). They are the same up to the
    order of coordinates, which a projection is free to choose:
    :func:`~glassformer.kernels.rotation.convert_rows` converts trained weights.

    A decoder calls :meth:`rotation` once for all its layers and does not call the module, so that
    forward hooks of the module do not run there. A replaced :meth:`rotation` takes effect. The
    sites ``q`` and ``k`` of :func:`~glassformer.observe.intervene.intervene` are the rotated
    queries and keys.

    Args:
        head_dim: Even.
        base: The slowest frequency is about 1 / base.
        layout: ``"half-split"`` or ``"interleaved"``.
        scaling: Stretch to longer texts: :data:`~glassformer.layers.options.RopeScaling`.

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
        if head_dim % 2 != 0:
            raise InputError(
                got=f"head_dim = {head_dim}",
                expected="an even number",
                fix="Use an even head_dim: rotation works on pairs.",
            )
        if not base > 1:
            raise InputError(
                got=f"base = {base}",
                expected="a number above 1",
                fix="Use 10000, as the paper does.",
            )
        require_layout(layout)
        self.head_dim = head_dim
        self.base = base
        self.layout = layout
        self.scaling = scaling
        # Not a buffer: buffers of a model on the meta device are empty, and half precision would
        # blur late positions.
        even = torch.arange(0, head_dim, 2, dtype=torch.float32, device="cpu")
        powers = base ** (even / head_dim)
        self._frequencies = frequencies(powers, scaling, base)
        self._long_frequencies = frequencies(powers, scaling, base, long=True)

    def rotation(self, length: int, start: int = 0, device: torch.device | None = None) -> Rotation:
        """Return cosines and sines of positions ``start .. start + length - 1``.

        Both are ``[position, head_dim / 2]``. With :class:`LongRope`, positions with long factors
        cannot continue a text that began with short ones.
        """
        if start < 0:
            raise InputError(
                got=f"start = {start}",
                expected="0 or more",
                fix="Count positions from 0.",
            )
        require_positive(length=length)
        long = False
        if isinstance(self.scaling, LongRope):
            border = self.scaling.original_max_seq_len
            long = start + length > border
            if long and 0 < start <= border:
                raise InputError(
                    got=f"positions up to {start + length} after {start} cached ones",
                    expected=f"no cache across position {border} (LongRoPE)",
                    fix="Read the text again, uncached.",
                )
        return self.rotation_at(torch.arange(start, start + length, device=device), long=long)

    def rotation_at(self, positions: Int[Tensor, " position"], *, long: bool = False) -> Rotation:
        """Return cosines and sines of the given positions, in float32 on their device.

        ``long`` selects the long factors of :class:`LongRope`.
        """
        of_pairs = self._long_frequencies if long else self._frequencies
        angles = torch.outer(positions.to(torch.float32), of_pairs.to(positions.device))
        if self.scaling is None or self.scaling.concentration == 1:
            return angles.cos(), angles.sin()
        return angles.cos() * self.scaling.concentration, angles.sin() * self.scaling.concentration

    def forward(
        self, x: Float[Tensor, "batch head position head_dim"], start_pos: int = 0
    ) -> Float[Tensor, "batch head position head_dim"]:
        """Rotate queries or keys whose first position is ``start_pos``."""
        if x.shape[-1] != self.head_dim:
            raise InputError(
                got=f"x with head_dim {x.shape[-1]}",
                expected=f"head_dim = {self.head_dim}",
                fix="Build the rotary embedding with the head_dim of the heads.",
            )
        return rotate(x, self.rotation(x.shape[-2], start_pos, x.device), self.layout)


def frequencies(
    powers: Float[Tensor, " pair"], scaling: RopeScaling | None, base: float, *, long: bool = False
) -> Float[Tensor, " pair"]:
    """Return the frequency of each pair in radians per position: ``1 / powers``, stretched."""
    # Operations are in the order of the released models' code: at late positions the last bit of a
    # frequency is many bits of an angle.
    if isinstance(scaling, LongRope):
        factors = scaling.long if long else scaling.short
        return 1.0 / (torch.tensor(factors, device=powers.device) * powers)
    plain = 1.0 / powers
    if scaling is None:
        return plain
    if isinstance(scaling, Yarn):
        return yarn_frequencies(plain, scaling, base)
    if isinstance(scaling, Llama3):
        turns = scaling.original_max_seq_len / (2 * math.pi / plain)
        share = ((turns - scaling.low_turns) / (scaling.high_turns - scaling.low_turns)).clamp(0, 1)
        return (1 - share) * plain / scaling.factor + share * plain
    return plain / scaling.factor


def yarn_frequencies(
    plain: Float[Tensor, " pair"], yarn: Yarn, base: float
) -> Float[Tensor, " pair"]:
    """Return the frequencies stretched by YaRN, in radians per position, from the plain ones."""
    count = len(plain)

    def pair_that_turns(times: float) -> float:
        return count * math.log(yarn.original_max_seq_len / (times * 2 * math.pi)) / math.log(base)

    low = pair_that_turns(yarn.beta_fast)
    high = pair_that_turns(yarn.beta_slow)
    if yarn.truncate:
        low = math.floor(low)
        high = math.ceil(high)
    low = max(low, 0.0)
    high = min(high, 2 * count - 1.0)
    pairs = torch.arange(count, dtype=torch.float32, device=plain.device)
    ramp = (pairs - low) / max(high - low, 1e-3)
    # In the order of the released models' code, as in frequencies().
    share = 1 - ramp.clamp(0, 1)
    return plain / yarn.factor * (1 - share) + plain * share


class SinusoidalPositions(nn.Module):
    r"""Sinusoidal position embeddings, with wavelengths from 2 pi to 10000 * 2 pi positions::

        table[p, 2 i]     = sin(p / 10000 ** (2 i / hidden_dim))
        table[p, 2 i + 1] = cos(p / 10000 ** (2 i / hidden_dim))
        output[b, p]      = x[b, p] + table[p]

    The table is computed in float64 and stored in float32. It is not part of the state dict.

    Args:
        hidden_dim: Width of a position; an odd one ends with a sine.
        max_seq_len: Positions to compute.

    Shape: ``[batch, position, hidden_dim]`` to the same.

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.5.
    """

    def __init__(self, hidden_dim: int, max_seq_len: int) -> None:
        super().__init__()
        require_positive(hidden_dim=hidden_dim, max_seq_len=max_seq_len)
        self.hidden_dim = hidden_dim
        self.max_seq_len = max_seq_len
        even = torch.arange(0, hidden_dim, 2, dtype=torch.float64, device="cpu")
        positions = torch.arange(max_seq_len, dtype=torch.float64, device="cpu")
        angles = torch.outer(positions, 10000.0 ** (-even / hidden_dim))
        waves = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
        # Not a buffer, like the frequencies of rotary embeddings.
        self.table = waves[:, :hidden_dim].float()

    def forward(
        self, x: Float[Tensor, "batch position hidden_dim"], start: int = 0
    ) -> Float[Tensor, "batch position hidden_dim"]:
        """Add the positions ``start``, ``start + 1``, ... to ``x``, in its dtype."""
        stop = start + x.shape[-2]
        width = x.shape[-1]
        if width != self.hidden_dim or stop > self.max_seq_len:
            raise InputError(
                got=f"{stop} positions of width {width}",
                expected=(
                    f"at most max_seq_len = {self.max_seq_len} positions of width hidden_dim = "
                    f"{self.hidden_dim}"
                ),
                fix="Build the positions with the width and the greatest length of their input.",
            )
        return x + self.table[start:stop].to(x)
