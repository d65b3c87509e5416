"""Positions: sinusoids added to embeddings, or rotations of queries and keys with two layouts and YaRN."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.errors import require, require_positive

Layout = Literal["half-split", "interleaved"]
Rotation = tuple[Float[Tensor, "*batch position pair"], Float[Tensor, "*batch position pair"]]
"""Cosines and sines of some positions, one of each for every pair of coordinates."""


def require_layout(layout: Layout) -> None:
    """Raise :class:`InputError` for a layout that does not exist."""
    require(
        layout in ("half-split", "interleaved"),
        f"layout = {layout!r}",
        "'half-split' or 'interleaved'",
        "Hugging Face, gpt-oss and Llama files are 'half-split'.",
    )


class SinusoidalPositions(nn.Module):
    r"""Adds to every position waves of its own, from one of 6.28 positions to one of nearly 62,832::

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


@dataclass(frozen=True)
class Yarn:
    """YaRN: a model trained on ``original_max_seq_len`` positions made to read ``factor`` times as many.

    Pairs that turn more than ``beta_fast`` times within the original length keep their frequency; those that turn
    less than ``beta_slow`` times are slowed down by ``factor``; between the two the change is linear. Cosines and
    sines grow by ``0.1 ln(factor) + 1``, which sharpens the attention.

    Args:
        factor: How many times longer, > 1.
        original_max_seq_len: The length the model was trained on, in tokens.
        beta_fast: Turns above which nothing changes.
        beta_slow: Turns below which everything changes.
        truncate: Round the two borders outwards to whole pairs (Hugging Face's default; gpt-oss does not).

    Source: Peng et al. 2023, arXiv 2309.00071, sections 3.2-3.4.
    """

    factor: float = 32.0
    original_max_seq_len: int = 4096
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = False

    def __post_init__(self) -> None:
        require(self.factor > 1, f"factor = {self.factor}", "more than 1", "Leave YaRN out to keep the length.")
        require_positive(original_max_seq_len=self.original_max_seq_len)
        require(
            self.beta_fast > self.beta_slow > 0,
            f"beta_fast = {self.beta_fast}, beta_slow = {self.beta_slow}",
            "beta_fast > beta_slow > 0",
            "The paper uses 32 and 1.",
        )

    @property
    def concentration(self) -> float:
        """What cosines and sines are multiplied by."""
        return 0.1 * math.log(self.factor) + 1.0

    def frequencies(self, plain: Float[Tensor, " pair"], base: float) -> Float[Tensor, " pair"]:
        """The stretched frequencies, in radians per position, from the plain ones."""
        pairs = len(plain)

        def pair_that_turns(times: float) -> float:
            return pairs * math.log(self.original_max_seq_len / (times * 2 * math.pi)) / math.log(base)

        low, high = pair_that_turns(self.beta_fast), pair_that_turns(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0.0), min(high, 2 * pairs - 1.0)
        ramp = (torch.arange(pairs, dtype=torch.float32, device=plain.device) - low) / max(high - low, 1e-3)
        # In the order of the released models' code: far away, the last bit of a frequency is many of an angle.
        kept = 1 - ramp.clamp(0, 1)
        return plain / self.factor * (1 - kept) + plain * kept


class RotaryEmbedding(nn.Module):
    r"""Turns each pair of coordinates of a query or key by an angle that grows with its position.

    Pair i of position p turns by ``p * base ** (-2 i / head_dim)`` radians::

        a' = a cos - b sin
        b' = b cos + a sin

    so that the product of a query at p and a key at r depends on p - r alone.

    Two layouts say which two coordinates are a pair. The paper, and the course text's prose, pair neighbours:
    (0, 1), (2, 3), ... (``"interleaved"``). GPT-NeoX, Llama, gpt-oss, Hugging Face, and the numbers of the course
    text's own test pair the first half with the second: (0, d/2), (1, d/2 + 1), ... (``"half-split"``, the default).
    They are the same up to the order of coordinates, which a projection is free to choose: :func:`convert_rows`
    rewrites trained weights from one to the other.

    Cosines and sines are computed once for ``max_seq_len`` positions, in float32, and doubled when a longer sequence
    comes. They are not part of the state dict. A module made on the meta device has them all the same, on the CPU, and
    keeps them through ``to_empty``.

    Args:
        head_dim: Even.
        max_seq_len: Positions to precompute.
        base: Slowest frequency is about 1 / base.
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
        self._precompute(max_seq_len)

    def _precompute(self, length: int, device: torch.device | None = None) -> None:
        device = torch.get_default_device() if device is None else device
        # Nobody could fill them in later: they are in no file.
        device = torch.device("cpu") if device.type == "meta" else device
        pairs = torch.arange(0, self.head_dim, 2, dtype=torch.float32, device="cpu")
        frequencies, size = 1.0 / self.base ** (pairs / self.head_dim), 1.0
        if self.yarn is not None:
            frequencies, size = self.yarn.frequencies(frequencies, self.base), self.yarn.concentration
        angles = torch.outer(torch.arange(length, dtype=torch.float32, device="cpu"), frequencies)
        self.register_buffer("cos", (angles.cos() * size).to(device), persistent=False)
        self.register_buffer("sin", (angles.sin() * size).to(device), persistent=False)

    def _apply(self, fn: Any, recurse: bool = True) -> RotaryEmbedding:
        """Move to other devices, but keep float32 and the numbers: half precision blurs far positions."""
        cos, sin = self.cos, self.sin
        super()._apply(fn, recurse)
        device = self.cos.device
        if cos.device.type == "meta" and device.type != "meta":
            self._precompute(len(cos), device)
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
        if start + length > len(self.cos):
            self._precompute(max(start + length, 2 * len(self.cos)), self.cos.device)
        return self.cos[start : start + length], self.sin[start : start + length]

    def rotation_at(self, positions: Int[Tensor, " position"]) -> Rotation:
        """Cosines and sines of the given positions, which must be below the precomputed length."""
        return self.cos[positions], self.sin[positions]

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


def rotate(
    x: Float[Tensor, "batch head position head_dim"], rotation: Rotation, layout: Layout = "half-split"
) -> Float[Tensor, "batch head position head_dim"]:
    """Turn every pair of coordinates of ``x`` by the angles of ``rotation``, in the dtype of ``x``."""
    cos, sin = (part.to(x.dtype) for part in rotation)
    interleaved = layout == "interleaved"
    return _Rotate.apply(x, cos, sin, interleaved) if torch.is_grad_enabled() else _turn(x, cos, sin, interleaved)


class _Rotate(torch.autograd.Function):
    """The rotation, whose gradient is the rotation back: nothing but the angles is kept, nothing is concatenated."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.interleaved = interleaved
        return _turn(x, cos, sin, interleaved)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return _turn(grads[0], cos, -sin, ctx.interleaved), None, None, None


def _pairs(x: Tensor, interleaved: bool) -> tuple[Tensor, Tensor]:
    if interleaved:
        return x[..., 0::2], x[..., 1::2]
    half = x.shape[-1] // 2
    return x[..., :half], x[..., half:]


def _turn(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    a, b = _pairs(x, interleaved)
    if torch.compiler.is_compiling():  # a compiler fuses this, and cannot see through writes into views
        turned = a * cos - b * sin, b * cos + a * sin
        return torch.stack(turned, dim=-1).flatten(-2) if interleaved else torch.cat(turned, dim=-1)
    out = torch.empty_like(x)
    out_a, out_b = _pairs(out, interleaved)
    torch.mul(a, cos, out=out_a).addcmul_(b, sin, value=-1)
    torch.mul(b, cos, out=out_b).addcmul_(a, sin)
    return out


def convert_rows(
    weight: Float[Tensor, "head_x_dim *in"], num_heads: int, to: Layout
) -> Float[Tensor, "head_x_dim *in"]:
    """Reorder a query or key projection (weight or bias) from one rotary layout to the other.

    A model with converted query *and* key projections computes the same scores in the other layout.

    Args:
        weight: Rows are the coordinates of all heads, head after head: ``[num_heads * head_dim, ...]``.
        num_heads: Heads in ``weight``: ``num_heads`` for a query, ``num_kv_heads`` for a key projection.
        to: The layout to convert to; the weight is in the other.

    Raises:
        InputError: Rows that do not divide into ``num_heads`` heads of even size, or an unknown layout.
    """
    rows = weight.shape[0]
    require(
        num_heads >= 1 and rows % (2 * num_heads) == 0,
        f"{rows} rows for {num_heads} heads",
        "num_heads * head_dim rows with an even head_dim",
        "Pass num_kv_heads for a key projection.",
    )
    require_layout(to)
    per_head = weight.unflatten(0, (num_heads, rows // num_heads))
    if to == "half-split":
        converted = torch.cat(_pairs(per_head.movedim(1, -1), True), dim=-1)
    else:
        converted = torch.stack(_pairs(per_head.movedim(1, -1), False), dim=-1).flatten(-2)
    return converted.movedim(-1, 1).flatten(0, 1)
