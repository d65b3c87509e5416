"""MXFP4: 32 numbers of four bits each that share one power of two, exactly expanded and exactly rounded."""

from __future__ import annotations

import functools

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from glassformer.errors import require
from glassformer.quantized import mxfp4_native

GROUP = 32
"""Numbers that share a scale."""
GROUP_BYTES = 16
"""Bytes of a group, of two codes each."""
NAN_SCALE = 255
"""The scale that makes its whole group NaN."""
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""What the lower three bits of a code mean (E2M1: two of exponent, one of mantissa); the fourth bit is the sign."""

_DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
# Smaller tensors are expanded by torch at once: they would not pay for loading the kernel.
_LEAST_GROUPS = 2**12
# Groups expanded at a time, so that what lies between two operators stays in a processor's cache.
_CHUNK = {"cpu": 2**14}
_CHUNK_ELSEWHERE = 2**21


def decode(
    blocks: UInt8[Tensor, "*batch groups 16"],
    scales: UInt8[Tensor, "*batch groups"],
    dtype: torch.dtype = torch.bfloat16,
    out: Float[Tensor, "*batch weights"] | None = None,
) -> Float[Tensor, "*batch weights"]:
    """The numbers of packed groups: ``2 ** (scale - 127) * value(code)``, 32 for each group, in order.

    A byte holds two codes, that of the earlier number in its lower half. Every value is exact in bfloat16, float32 and
    float64, except that the two greatest scales reach beyond the range of the first two, which gives infinity;
    float16 rounds. Scale 255 makes all 32 numbers NaN, as the format says; whoever loads weights refuses it before.

    On the CPU a compiled kernel does it where there is one, otherwise a table of what four codes mean and one product;
    the results are the same to the last bit (a NaN has several).

    Args:
        blocks: Two codes in each byte.
        scales: One for each group, biased by 127.
        dtype: Of the result.
        out: Where the result is written, if given: contiguous, of that dtype and shape.

    Returns:
        ``[..., 32 * groups]``.

    Raises:
        InputError: Tensors that are no bytes, do not fit one another, or lie on different devices; another dtype.

    Source: Open Compute Project 2023, "OCP Microscaling Formats (MX) Specification", version 1.0, sections 5.3 and 6.
    """
    _require_packed(blocks, scales)
    require(dtype in _DTYPES, f"dtype = {dtype}", f"one of {', '.join(map(str, _DTYPES))}", "Use torch.bfloat16.")
    shape = (*scales.shape[:-1], GROUP * scales.shape[-1])
    if out is None:
        out = torch.empty(shape, dtype=dtype, device=blocks.device)
    fits = out.shape == shape and out.dtype == dtype and out.device == blocks.device and out.is_contiguous()
    require(
        fits,
        f"out of shape {tuple(out.shape)}, {out.dtype}, on {out.device}",
        f"contiguous, of shape {shape}, {dtype}, on {blocks.device}",
        "Leave out away, and one is made.",
    )
    if out.is_meta or out.numel() == 0:
        return out
    if out.device.type == "cpu" and dtype in (torch.bfloat16, torch.float32) and scales.numel() >= _LEAST_GROUPS:
        kernel = mxfp4_native.kernel()
        if kernel is not None:
            mxfp4_native.expand(kernel, blocks.contiguous(), scales.contiguous(), out)
            return out
    _decode_by_table(blocks, scales, out)
    return out


def _decode_by_table(blocks: Tensor, scales: Tensor, out: Tensor) -> None:
    numbers, powers = _four_codes(out.device), _powers(out.device, out.dtype)
    chunk = _CHUNK.get(out.device.type, _CHUNK_ELSEWHERE)
    parts = zip(
        blocks.reshape(-1, GROUP_BYTES).split(chunk),
        scales.reshape(-1).split(chunk),
        out.view(-1, GROUP).split(chunk),
        strict=True,
    )
    for some, their_scales, to in parts:
        # A view as two bytes each needs an even place in memory, which a part of a file may lack.
        pairs = (some if some.storage_offset() % 2 == 0 and some.is_contiguous() else some.clone()).view(torch.int16)
        index = pairs.to(torch.int32).bitwise_and_(0xFFFF).view(-1)
        values = numbers.index_select(0, index).view(torch.bfloat16).view(-1, GROUP)
        torch.mul(values, powers.index_select(0, their_scales.int()).unsqueeze(1), out=to)


@functools.cache
def _four_codes(device: torch.device) -> Tensor:
    """For every two bytes, the four numbers they stand for, in bfloat16, as one integer of 64 bits."""
    with torch.inference_mode(False):
        values = torch.tensor([*MAGNITUDES, *(-each for each in MAGNITUDES)], dtype=torch.bfloat16, device="cpu")
        both = torch.arange(2**16, device="cpu")
        codes = torch.stack([both >> shift & 15 for shift in (0, 4, 8, 12)], dim=1)
        return values[codes].view(torch.int64).view(-1).to(device)


@functools.cache
def _powers(device: torch.device, dtype: torch.dtype) -> Tensor:
    """What every scale multiplies by; in float32 for float16, which cannot hold them."""
    with torch.inference_mode(False):
        powers = [2.0 ** (scale - 127) for scale in range(NAN_SCALE)] + [float("nan")]
        return torch.tensor(powers, dtype=torch.float32 if dtype == torch.float16 else dtype, device="cpu").to(device)


def encode(
    values: Float[Tensor, "*batch weights"],
) -> tuple[UInt8[Tensor, "*batch groups 16"], UInt8[Tensor, "*batch groups"]]:
    """The nearest packed groups: for each 32 numbers a power of two, and for each number the nearest code of it.

    The power is ``2 ** (floor(log2(max |v|)) - 2)``, kept in [2^-127, 2^127], so that the greatest number falls into
    [4, 8) of the codes' range. Each number divided by it is rounded to the nearest value, a tie to the even code (the
    one whose mantissa bit is 0); beyond 6 it becomes 6. So a number between 6 and 8 powers loses up to a quarter: this
    is the rule of the specification, where some encoders round the power up instead. Zero keeps its sign. What
    :func:`decode` gives, in a dtype that holds it, is given back unchanged.

    Args:
        values: Of any floating dtype; the last axis is a multiple of 32.

    Returns:
        blocks ``[..., groups, 16]`` and scales ``[..., groups]``.

    Raises:
        InputError: No floating dtype, another width, or a number that is infinite or NaN.

    Source: Open Compute Project 2023, "OCP Microscaling Formats (MX) Specification", version 1.0, section 6.3.
    """
    width = values.shape[-1] if values.dim() else 1
    require(
        values.dtype in _DTYPES and width % GROUP == 0,
        f"values of shape {tuple(values.shape)}, {values.dtype}",
        f"floating numbers whose last axis is a multiple of {GROUP}",
        "Convert them, or pad the last axis with zeros.",
    )
    leading = (*values.shape[:-1], width // GROUP)
    blocks = torch.empty(*leading, GROUP_BYTES, dtype=torch.uint8, device=values.device)
    scales = torch.empty(leading, dtype=torch.uint8, device=values.device)
    if values.is_meta:
        return blocks, scales
    chunk = _CHUNK.get(values.device.type, _CHUNK_ELSEWHERE)
    parts = zip(
        values.detach().reshape(-1, GROUP).split(chunk),
        blocks.view(-1, GROUP_BYTES).split(chunk),
        scales.view(-1).split(chunk),
        strict=True,
    )
    for some, to_blocks, to_scales in parts:
        _encode(some, to_blocks, to_scales)
    return blocks, scales


def _encode(values: Tensor, blocks: Tensor, scales: Tensor) -> None:
    # float64 for all: there every power of two and every quotient by one is exact, subnormal or not.
    wide = values.double()
    magnitude = wide.abs()
    greatest = magnitude.amax(dim=1)
    require(
        bool(greatest.isfinite().all()),
        "a number that is infinite or NaN",
        "finite numbers: the format has none of these",
        "Look for what made it; clamp or replace it.",
    )
    exponent = torch.frexp(greatest).exponent - 3  # frexp's mantissa lies in [1/2, 1)
    exponent = exponent.where(greatest > 0, -127).clamp_(-127, 127)
    scales.copy_(exponent + 127)
    magnitude.mul_(torch.ldexp(torch.ones_like(greatest), -exponent).unsqueeze(1))
    codes = torch.bucketize(magnitude, _boundaries(values.device), right=True, out_int32=True).to(torch.uint8)
    codes |= torch.signbit(wide).to(torch.uint8) << 3
    torch.bitwise_or(codes[:, 0::2], codes[:, 1::2] << 4, out=blocks)


@functools.cache
def _boundaries(device: torch.device) -> Tensor:
    """From where on each code is the nearest: the middle of two values, or just above it where the lower is even."""
    with torch.inference_mode(False):
        values = torch.tensor(MAGNITUDES, dtype=torch.float64, device="cpu")
        middle = (values[:-1] + values[1:]) / 2
        middle[0::2] = middle[0::2].nextafter(values[1::2])
        return middle.to(device)


def _require_packed(blocks: Tensor, scales: Tensor) -> None:
    fits = (
        blocks.dtype == scales.dtype == torch.uint8
        and blocks.dim() >= 2
        and blocks.shape[-1] == GROUP_BYTES
        and blocks.shape[:-1] == scales.shape
        and blocks.device == scales.device
    )
    told = (
        f"{name} {tuple(each.shape)} of {each.dtype} on {each.device}"
        for name, each in (("blocks", blocks), ("scales", scales))
    )
    require(
        fits,
        " and ".join(told),
        "bytes on one device, blocks [..., groups, 16] and scales [..., groups]",
        "Both stand in the checkpoint under the weight's name, with the endings blocks and scales.",
    )
