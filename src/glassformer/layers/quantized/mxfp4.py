"""MXFP4, groups of 32 four-bit numbers that share a power of two: exact decoding, and encoding.

Encoding is correctly rounded.
"""

import functools

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from glassformer.errors import InputError
from glassformer.kernels.mxfp4 import GROUP, GROUP_BYTES, MAGNITUDES, NAN_SCALE, expanded

__all__ = ["GROUP", "GROUP_BYTES", "MAGNITUDES", "NAN_SCALE", "decode", "encode"]

_DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
# Groups encoded at a time, so that intermediate results stay in a processor's cache.
_CHUNK = 2**14


def decode(
    blocks: UInt8[Tensor, "*batch groups 16"],
    scales: UInt8[Tensor, "*batch groups"],
    dtype: torch.dtype = torch.bfloat16,
) -> Float[Tensor, "*batch weights"]:
    """Return the weights of packed groups, ``2 ** (scale - 127) * value(code)``, 32 for each group.

    A byte holds two codes, the earlier weight in its lower half. Every value is exact in bfloat16,
    float32 and float64, except that the two greatest scales exceed the range of the first two,
    which gives infinity; float16 rounds. Scale 255 makes all 32 weights NaN; the checkpoint readers
    refuse it.

    Source: Open Compute Project 2023, "OCP Microscaling Formats (MX) Specification", version 1.0,
    sections 5.3 and 6.
    """
    if not (
        blocks.dtype == scales.dtype == torch.uint8
        and scales.dim() >= 1
        and blocks.shape == (*scales.shape, GROUP_BYTES)
        and blocks.device == scales.device
    ):
        raise InputError(
            got=(
                f"blocks {tuple(blocks.shape)} of {blocks.dtype} on {blocks.device} and "
                f"scales {tuple(scales.shape)} of {scales.dtype} on {scales.device}"
            ),
            expected="bytes on one device, blocks [..., groups, 16] and scales [..., groups]",
            fix="Pass the checkpoint's tensors with the endings blocks and scales.",
        )
    if dtype not in _DTYPES:
        raise InputError(
            got=f"dtype = {dtype}",
            expected=f"one of {', '.join(map(str, _DTYPES))}",
            fix="Use torch.bfloat16.",
        )
    return expanded(blocks, scales, dtype)


def encode(
    values: Float[Tensor, "*batch weights"],
) -> tuple[UInt8[Tensor, "*batch groups 16"], UInt8[Tensor, "*batch groups"]]:
    """Return the nearest packed groups: codes, and for each 32 numbers a power of two.

    The power is ``2 ** (floor(log2(max |v|)) - 2)``, within [2^-127, 2^127], so that the greatest
    number falls into [4, 8) of the codes' range. Each number divided by it is rounded to the
    nearest value, ties to the even code (whose mantissa bit is 0); beyond 6 it becomes 6. So a
    number between 6 and 8 powers loses up to a quarter. This is the specification's rule, where
    some encoders round the power up instead. Zero keeps its sign. Results of :func:`decode`, in a
    dtype that holds them, are encoded without a change. The last axis is a multiple of 32.

    Source: Open Compute Project 2023, "OCP Microscaling Formats (MX) Specification", version 1.0,
    section 6.3.
    """
    if values.dtype not in _DTYPES or values.dim() < 1 or values.shape[-1] % GROUP != 0:
        raise InputError(
            got=f"values of shape {tuple(values.shape)}, {values.dtype}",
            expected=f"floating-point numbers whose last axis is a multiple of {GROUP}",
            fix="Convert them, or pad the last axis with zeros.",
        )
    leading = (*values.shape[:-1], values.shape[-1] // GROUP)
    blocks = torch.empty(*leading, GROUP_BYTES, dtype=torch.uint8, device=values.device)
    scales = torch.empty(leading, dtype=torch.uint8, device=values.device)
    if not values.is_meta:
        parts = zip(
            values.detach().reshape(-1, GROUP).split(_CHUNK),
            blocks.view(-1, GROUP_BYTES).split(_CHUNK),
            scales.view(-1).split(_CHUNK),
            strict=True,
        )
        for part in parts:
            _encode(*part)
    return blocks, scales


def _encode(values: Tensor, blocks: Tensor, scales: Tensor) -> None:
    # In float64 every power of two is exact, and every quotient by a power, subnormal or not.
    wide = values.double()
    magnitude = wide.abs()
    greatest = magnitude.amax(dim=1)
    if not bool(greatest.isfinite().all()):
        raise InputError(
            got="values with an infinite number or NaN",
            expected="finite numbers: the format has no others",
            fix="Clamp or replace them.",
        )
    exponent = torch.frexp(greatest).exponent - 3  # frexp's mantissa lies in [1/2, 1)
    exponent = exponent.where(greatest > 0, -127).clamp_(-127, 127)
    scales.copy_(exponent + 127)
    magnitude.mul_(torch.ldexp(torch.ones_like(greatest), -exponent).unsqueeze(1))
    boundaries = _boundaries(values.device)
    codes = torch.bucketize(magnitude, boundaries, right=True, out_int32=True).to(torch.uint8)
    codes |= torch.signbit(wide).to(torch.uint8) << 3
    torch.bitwise_or(codes[:, 0::2], codes[:, 1::2] << 4, out=blocks)


@functools.cache
def _boundaries(device: torch.device) -> Tensor:
    """Return the least magnitude of each code, except code 0.

    It is the midpoint of two values, or just above it where the lower code is even.
    """
    with torch.inference_mode(False):
        values = torch.tensor(MAGNITUDES, dtype=torch.float64, device="cpu")
        middle = (values[:-1] + values[1:]) / 2
        middle[0::2] = middle[0::2].nextafter(values[1::2])
        return middle.to(device)
