import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from glassformer.kernels import mxfp4 as kernel
from glassformer.layers.quantized import mxfp4
from refusals import refused

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]


def meaning(code: int) -> Fraction:
    """E2M1 by its definition: one bit of sign, two of exponent (bias 1, 0 is subnormal), one of
    mantissa.
    """
    sign = code >> 3
    exponent = code >> 1 & 3
    mantissa = code & 1
    size = (
        Fraction(mantissa, 2)
        if exponent == 0
        else Fraction(2) ** (exponent - 1) * (1 + Fraction(mantissa, 2))
    )
    return -size if sign else size


def bits(x: Tensor) -> Tensor:
    return x.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.itemsize])


def random_groups(
    *shape: int, scales: tuple[int, int] = (0, 255), seed: int = 0
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    blocks = torch.randint(256, (*shape, 16), dtype=torch.uint8, generator=generator)
    return blocks, torch.randint(*scales, shape, dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_byte_at_every_exponent(path: str, dtype: torch.dtype) -> None:
    """All 256 bytes with all 256 scales: the exact values, bit by bit."""
    blocks = torch.arange(256, dtype=torch.uint8).view(1, 16, 16).expand(256, 16, 16)
    scales = torch.arange(256, dtype=torch.uint8).view(256, 1).expand(256, 16)
    got = mxfp4.decode(blocks, scales, dtype)
    assert got.shape == (256, 512)
    assert got.dtype == dtype
    assert bool(got[255].isnan().all())
    codes = [code for byte in range(256) for code in (byte & 15, byte >> 4)]
    # A float64 holds each of them; its conversion rounds to the nearest, and beyond the range to
    # infinity.
    values = [float(meaning(code)) for code in codes]
    exact = [[math.ldexp(value, scale - 127) for value in values] for scale in range(255)]
    expected = torch.tensor(exact, dtype=torch.float64)
    expected = expected.copysign(
        torch.tensor([-1.0 if code >> 3 else 1.0 for code in codes], dtype=torch.float64)
    )
    torch.testing.assert_close(bits(got[:255]), bits(expected.to(dtype)), rtol=0, atol=0)
    if dtype in (torch.float32, torch.bfloat16):
        finite = got[:253].double()
        # so nothing was rounded at all
        torch.testing.assert_close(finite, expected[:253], rtol=0, atol=0)


def test_parts_of_larger_tensors(path: str) -> None:
    """A transposed view, one at an odd address and one with an offset give what a copy gives."""
    blocks, scales = random_groups(12, 34)
    turned = blocks.transpose(0, 1), scales.transpose(0, 1)
    expected = mxfp4.decode(turned[0].contiguous(), turned[1].contiguous())
    torch.testing.assert_close(mxfp4.decode(*turned), expected, rtol=0, atol=0)
    odd = torch.cat([torch.zeros(3, dtype=torch.uint8), blocks.flatten()])[3:].view(blocks.shape)
    assert odd.storage_offset() == 3
    torch.testing.assert_close(
        mxfp4.decode(odd, scales), mxfp4.decode(blocks, scales), rtol=0, atol=0
    )
    part = mxfp4.decode(blocks[4:], scales[4:], torch.float32)
    torch.testing.assert_close(
        part, mxfp4.decode(blocks, scales, torch.float32)[4:], rtol=0, atol=0
    )


def test_more_groups_than_fit_one_piece(path: str) -> None:
    blocks, scales = random_groups(3, 2**14 // 2 + 5, scales=(100, 140))
    whole = mxfp4.decode(blocks, scales, torch.float32)
    for row in range(3):
        torch.testing.assert_close(
            whole[row], mxfp4.decode(blocks[row], scales[row], torch.float32), rtol=0, atol=0
        )


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3)])
def test_nothing_is_expanded_to_nothing(path: str, shape: tuple[int, ...]) -> None:
    blocks, scales = random_groups(*shape)
    out = mxfp4.decode(blocks, scales)
    assert out.shape == (*shape[:-1], 32 * shape[-1])
    again = mxfp4.encode(out)
    assert again[0].shape == blocks.shape
    assert again[1].shape == scales.shape


def test_shapes_alone() -> None:
    blocks, scales = mxfp4.encode(torch.empty(5, 96, device="meta"))
    assert (blocks.shape, scales.shape) == ((5, 3, 16), (5, 3))
    assert mxfp4.decode(blocks, scales).shape == (5, 96)


def test_tables_are_made_on_the_processor_wherever_tensors_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for table in (kernel._four_codes, kernel._powers, mxfp4._boundaries):
        table.cache_clear()
    blocks, scales = random_groups(2, 2)
    with torch.device("meta"), torch.inference_mode():
        first = mxfp4.decode(blocks, scales)
        mxfp4.encode(first)
    assert not any(
        table.is_inference()
        for table in (kernel._four_codes(first.device), mxfp4._boundaries(first.device))
    )
    torch.testing.assert_close(first.clone(), mxfp4.decode(blocks, scales), rtol=0, atol=0)


def nearest(values: list[float]) -> tuple[int, list[int]]:
    """The specification in exact fractions: the scale, and for each number the code by trying all
    eight.
    """
    sizes = [abs(Fraction(value)) for value in values]
    shared = -127
    if max(sizes) > 0:
        power = math.frexp(float(max(sizes)))[1] - 1
        assert Fraction(2) ** power <= max(sizes) < Fraction(2) ** (power + 1)
        shared = min(max(power - 2, -127), 127)
    codes = []
    for value, size in zip(values, sizes, strict=True):
        target = size / Fraction(2) ** shared
        # Nearest; among two equally near the even code.
        code = min(range(8), key=lambda code: (abs(meaning(code) - target), code & 1))
        codes.append(code | (8 if math.copysign(1.0, value) < 0 else 0))
    return shared + 127, codes


def unpacked(blocks: Tensor) -> list[int]:
    return [code for byte in blocks.tolist() for code in (byte & 15, byte >> 4)]


def numbers(width: int) -> st.SearchStrategy[list[float]]:
    """Groups of similar magnitude, of any magnitude, and with many ties."""
    anywhere = st.floats(allow_nan=False, allow_infinity=False, width=width)
    near = st.floats(-8, 8, width=width)
    ties = st.tuples(st.integers(-32, 32), st.integers(-20, 20)).map(
        lambda pair: pair[0] / 4 * 2.0 ** pair[1]
    )
    return st.one_of(*(st.lists(each, min_size=32, max_size=32) for each in (anywhere, near, ties)))


@given(numbers(32))
@example([0.0, -0.0] * 16)
@example([2.0**-149] + [0.0] * 31)
@example([float(np.finfo(np.float32).max), -float(np.finfo(np.float32).max)] + [1.0] * 30)
@example(
    [4.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, 6.5, 7.0, 7.99, -0.25, -5.0, -0.2501, 0.2499]
    * 2
)
@settings(max_examples=100, deadline=None)
def test_each_number_becomes_the_nearest_code(values: list[float]) -> None:
    blocks, scales = mxfp4.encode(torch.tensor(values, dtype=torch.float32))
    assert (scales.tolist(), unpacked(blocks[0])) == ([nearest(values)[0]], nearest(values)[1])


@given(numbers(64))
@example([2.0**1000, 1.0] + [0.0] * 30)
@example([6.0 * 2.0**127, 7.9 * 2.0**127, 8.0 * 2.0**127, 2.0**126] * 8)
@example([2.0**-1074, -(2.0**-128), 2.0**-127, 0.0] * 8)
@settings(max_examples=60, deadline=None)
def test_float64_beyond_the_range_of_scales(values: list[float]) -> None:
    blocks, scales = mxfp4.encode(torch.tensor(values, dtype=torch.float64))
    assert (scales.tolist(), unpacked(blocks[0])) == ([nearest(values)[0]], nearest(values)[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_what_was_packed_once_is_packed_the_same(dtype: torch.dtype) -> None:
    """Every code at every scale in range comes back as the same number, in any company."""
    blocks, scales = random_groups(500, 4, scales=(0, 253))
    values = mxfp4.decode(blocks, scales, dtype)
    again = mxfp4.encode(values)
    torch.testing.assert_close(bits(mxfp4.decode(*again, dtype)), bits(values), rtol=0, atol=0)
    # A group whose greatest number is at least 4 has but one scale.
    full = (
        mxfp4.decode(blocks, torch.full_like(scales, 127)).view(500, 4, 32).abs().amax(-1) >= 4
    ) & (scales > 0)
    assert full.sum() > 1900
    torch.testing.assert_close(again[1][full], scales[full], rtol=0, atol=0)
    torch.testing.assert_close(again[0][full], blocks[full], rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_narrow_numbers_are_packed_as_wide_ones(dtype: torch.dtype) -> None:
    values = torch.randn(3, 64).to(dtype)
    for got, expected in zip(mxfp4.encode(values), mxfp4.encode(values.double()), strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_a_tensor_in_training_can_be_packed() -> None:
    weight = torch.nn.Parameter(torch.randn(2, 32))
    assert mxfp4.encode(weight)[0].shape == (2, 1, 16)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_cannot_be_packed(bad: float) -> None:
    values = torch.zeros(2, 32)
    values[1, 7] = bad
    with refused(expected="finite numbers"):
        mxfp4.encode(values)


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    "values",
    [torch.zeros(33), torch.zeros(()), torch.zeros(32, dtype=torch.int64)],
    ids=["width", "scalar", "integers"],
)
def test_what_cannot_be_packed_is_refused(values: Tensor) -> None:
    with refused(expected="multiple of 32"):
        mxfp4.encode(values)


@pytest.mark.usefixtures("without_type_checks")
def test_what_does_not_fit_is_refused() -> None:
    blocks, scales = random_groups(2, 3)
    for bad in (blocks.int(), blocks[..., :15], blocks[:1], blocks[0, 0], blocks.to("meta")):
        with refused("blocks", expected="bytes on one device"):
            mxfp4.decode(bad, scales)
    with refused("blocks", expected="bytes on one device"):
        mxfp4.decode(blocks, scales.int())
    with refused(r"torch\.int8"):
        mxfp4.decode(blocks, scales, torch.int8)
