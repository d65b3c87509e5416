"""Linear maps whose weights are 8-bit integers with a scale for each 32 of a row."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int8
from torch import Tensor

from glassformer.kernels.dispatch import native_library, slow_bfloat16, use_definition
from glassformer.kernels.linear import FEW, few_tokens, parts
from glassformer.kernels.native import declare

BLOCK = 32
"""Weights that share a scale."""


def expanded(
    integers: Int8[Tensor, "out in"], scales: Float[Tensor, "out blocks"], dtype: torch.dtype = torch.bfloat16
) -> Float[Tensor, "out in"]:
    """``scale * integer``: exact in float32, rounded in bfloat16."""
    wide = torch.promote_types(dtype, torch.float32)
    return (integers.unflatten(-1, (-1, BLOCK)) * scales.to(wide).unsqueeze(-1)).flatten(-2).to(dtype)


def definition(x: Tensor, integers: Tensor, scales: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weights.T + bias`` in float32 at least, rounded to ``x``'s dtype."""
    wide = torch.promote_types(x.dtype, torch.float32)
    weights = expanded(integers, scales, wide)
    return F.linear(x.to(wide), weights, None if bias is None else bias.to(wide)).to(x.dtype)


declare(
    "rows_int8",
    "chff",
    lambda rows, width, tokens, _: (rows * width, rows * width // BLOCK, tokens * width, tokens * rows),
)


def int8_linear(
    x: Float[Tensor, "*batch in"],
    integers: Int8[Tensor, "out in"],
    scales: Float[Tensor, "out blocks"],
    bias: Float[Tensor, " out"] | None = None,
) -> Float[Tensor, "*batch out"]:
    """:func:`definition`; on the CPU without gradients in fixed point, a block of ``x`` exact to 2^-16 of its greatest.

    Where the processor has products of bfloat16, more than a few tokens of bfloat16 are multiplied by weights rounded
    to it, some rows at a time.
    """
    grad = torch.is_grad_enabled() and (x.requires_grad or (bias is not None and bias.requires_grad))
    fits = integers.dim() == 2 and x.shape[-1:] == integers.shape[1:] and scales.numel() * BLOCK == integers.numel()
    if (
        not fits
        or grad
        or x.device.type != "cpu"
        or torch.compiler.is_compiling()
        or use_definition()
        or x.numel() == 0
    ):
        return definition(x, integers, scales, bias)
    tokens = x.reshape(-1, x.shape[-1])
    narrow = x.dtype == torch.bfloat16 and not slow_bfloat16() and len(tokens) > FEW
    library = None if narrow or not integers.is_cpu else native_library(x)
    if library is not None:
        return few_tokens(library, "rows_int8", (integers.contiguous(), scales.bfloat16().contiguous()), x, bias)
    dtype = x.dtype if narrow else torch.promote_types(x.dtype, torch.float32)
    out, tokens = x.new_empty(len(tokens), len(integers)), tokens.to(dtype)
    for rows in parts(integers):
        weights = expanded(integers[rows], scales[rows], dtype)
        out[:, rows] = F.linear(tokens, weights, None if bias is None else bias[rows].to(dtype))
    return out.view(*x.shape[:-1], len(integers))
