"""8-bit integers with a scale for each 32 weights of a row: encoding, decoding, and a linear layer that holds them."""

import torch
from jaxtyping import Float, Int8
from torch import Tensor, nn

from glassformer.errors import require
from glassformer.kernels.huge_pages import empty_in_huge_pages
from glassformer.kernels.int8 import BLOCK, int8_linear
from glassformer.kernels.int8 import expanded as decode
from glassformer.kernels.linear import parts

_LARGEST = 127


def encode(values: Float[Tensor, "out in"]) -> tuple[Int8[Tensor, "out in"], Float[Tensor, "out blocks"]]:
    """The nearest ``scale * integer``, with the least scale for each 32 numbers of a row for which 127 suffices::

        scale = max |v| / 127, rounded up to bfloat16;    integer = v / scale, rounded to the nearest

    A number is off by at most half a scale, which is 1 / 252 of the greatest of its 32. The width is a multiple of 32.
    """
    require(
        values.dim() == 2 and values.is_floating_point() and values.shape[1] % BLOCK == 0,
        f"values of shape {tuple(values.shape)}, {values.dtype}",
        f"a matrix of floating numbers whose width is a multiple of {BLOCK}",
        "Keep these weights as they are.",
    )
    out, width = values.shape
    integers = empty_in_huge_pages((out, width), torch.int8, values.device)
    scales = empty_in_huge_pages((out, width // BLOCK), torch.bfloat16, values.device)
    for rows in [] if values.is_meta else parts(values, 2**18):  # what is computed with stays in caches
        wide = values[rows].detach().float().unflatten(1, (-1, BLOCK))
        least = wide.abs().amax(2) / _LARGEST
        require(
            bool(least.isfinite().all()),
            "values with an infinite number or NaN",
            "finite numbers: integers have no others",
            "Clamp or replace them.",
        )
        # bfloat16 is the upper half of a float32: what the lower half holds counts as one more.
        scales[rows] = (least.view(torch.int32) + 0xFFFF & ~0xFFFF).view(torch.float32).bfloat16()
        steps = scales[rows].float().unsqueeze(2)
        integers[rows] = torch.where(steps > 0, wide / steps, 0).round().flatten(1).to(torch.int8)
    return integers, scales


class Int8Linear(nn.Linear):
    """A linear layer of half bfloat16's size, for inference: its weights are what :func:`encode` makes of them.

    They are buffers without a gradient. Products are added in float32 and rounded once. ``weight`` is the decoded
    matrix in the bias's or bfloat16's dtype, made anew at each use. ``in_features`` is a multiple of 32; a bias has no
    gradient either.

    Shape: ``[..., in_features]`` to ``[..., out_features]``.
    """

    integers: Tensor
    scales: Tensor

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        nn.Module.__init__(self)
        multiple = f"a multiple of {BLOCK}"
        require(in_features % BLOCK == 0, f"in_features = {in_features}", multiple, "Keep the layer as it is.")
        self.in_features, self.out_features = in_features, out_features
        self.register_buffer("integers", torch.zeros(out_features, in_features, dtype=torch.int8))
        self.register_buffer("scales", torch.zeros(out_features, in_features // BLOCK, dtype=torch.bfloat16))
        self.register_parameter("bias", nn.Parameter(torch.zeros(out_features), requires_grad=False) if bias else None)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The decoded weights."""
        return decode(self.integers, self.scales, torch.bfloat16 if self.bias is None else self.bias.dtype)

    def forward(self, x: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        """``x @ weight.T + bias``."""
        return int8_linear(x, self.integers, self.scales, self.bias)
