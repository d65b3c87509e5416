"""bfloat16 weights of 12 bits each, without loss: encoding, decoding, and a linear layer that holds them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import BFloat16, Float, Int32, UInt8
from torch import Tensor, nn

from glassformer.errors import require
from glassformer.kernels.huge_pages import empty_in_huge_pages
from glassformer.kernels.linear import parts
from glassformer.kernels.lossless import CODED, GROUP, GROUP_BYTES, expand, lossless_linear

_MULTIPLE = 16


def encode(
    values: BFloat16[Tensor, "out in"],
) -> tuple[UInt8[Tensor, "out groups 96"], Int32[Tensor, "entries 2"]]:
    """``packed`` and ``index`` as :mod:`glassformer.kernels.lossless` describes them.

    Any numbers can be encoded. Trained and random weights have about one exception of 8 bytes in 2,000; numbers of very
    different size within a row have more, and may take more memory than they did.

    Args:
        values: The width is a multiple of 16.

    Raises:
        InputError: Another width or dtype.
    """
    require(
        values.dim() == 2 and values.dtype == torch.bfloat16 and values.shape[1] % _MULTIPLE == 0 < values.shape[1],
        f"values of shape {tuple(values.shape)}, {values.dtype}",
        f"a matrix of bfloat16 numbers whose width is a multiple of {_MULTIPLE}",
        "Keep these weights as they are.",
    )
    (out, width), device = values.shape, values.device
    groups = -(-width // GROUP)
    packed = empty_in_huge_pages((out, groups, GROUP_BYTES), torch.uint8, device)
    index = torch.zeros(out + 1, 2, dtype=torch.int32, device=device)
    tops, firsts = index[:-1, 0], index[1:, 1]
    found = [index]
    order = torch.arange(GROUP, device=device).view(2, 2, 4, 4).permute(2, 0, 3, 1).flatten()
    for rows in [] if values.is_meta else parts(values, 2**18):  # what is computed with stays in caches
        padded = F.pad(values[rows].detach(), (0, groups * GROUP - width)).view(torch.int16)
        bits = padded.view(-1, groups, 2, 2, 4, 4).permute(0, 1, 4, 2, 5, 3).reshape(-1, groups, GROUP)
        lower, upper = bits.to(torch.uint8), (bits >> 8).to(torch.uint8)
        exponents = upper & 127
        top = exponents.amax((1, 2))
        below = top[:, None, None] - exponents
        exceptional = (below >= CODED) & (exponents > 0)
        codes = below.clamp_(max=CODED) | upper >> 7 << 3
        first, second = codes.split(GROUP // 2, 2)
        packed[rows] = torch.cat([lower.masked_fill_(exceptional, 0), first | second << 4], 2)
        row, group, byte = exceptional.nonzero().unbind(1)
        column = group * GROUP + order[byte]
        found.append(torch.stack([column, bits[row, group, byte]], 1).to(torch.int32))
        tops[rows], firsts[rows] = top.int(), row.bincount(minlength=len(top)).int()
    index[:, 1] = index[:, 1].cumsum(0) + out + 1
    return packed, torch.cat(found)


def decode(
    packed: UInt8[Tensor, "out groups 96"], index: Int32[Tensor, "entries 2"], width: int
) -> BFloat16[Tensor, "out width"]:
    """The numbers that were encoded, all bits of them."""
    return expand(packed, index, width)


class LosslessLinear(nn.Linear):
    """A linear layer of three quarters of bfloat16's size, for inference: the same weights, encoded by :func:`encode`.

    They are buffers without a gradient. ``weight`` is the decoded matrix in bfloat16, made anew at each use.

    Args:
        in_features: Width of the input, a multiple of 16.
        out_features: Width of the output.
        bias: Whether there is a bias, which has no gradient either.

    Shape: ``[..., in_features]`` to ``[..., out_features]``.

    Raises:
        InputError: ``in_features`` is no multiple of 16.
    """

    packed: Tensor
    index: Tensor

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = in_features, out_features
        packed, index = encode(torch.zeros(out_features, in_features, dtype=torch.bfloat16))
        self.register_buffer("packed", packed)
        self.register_buffer("index", index)
        self.register_parameter("bias", nn.Parameter(torch.zeros(out_features), requires_grad=False) if bias else None)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *others: Any) -> None:
        if f"{prefix}index" in state_dict:  # whose number of exceptions depends on the weights
            self.index = self.index.new_empty(state_dict[f"{prefix}index"].shape)
        super()._load_from_state_dict(state_dict, prefix, *others)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The weights."""
        return decode(self.packed, self.index, self.in_features)

    def forward(self, x: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        """``x @ weight.T + bias``."""
        return lossless_linear(x, self.packed, self.index, self.in_features, self.bias)
