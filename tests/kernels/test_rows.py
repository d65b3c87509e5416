"""Products of a few tokens with rows of weights in every format, at every level, against float64."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from glassformer.kernels.mxfp4 import GROUP, expand_definition
from glassformer.kernels.native import Library

FORMATS = ("float32", "bfloat16", "mxfp4")
MULTIPLES = {"mxfp4": GROUP}


def weights(kind: str, rows: int, width: int) -> tuple[tuple[Tensor, ...], Tensor]:
    """The arguments of a product, and the same weights in float64."""
    if kind == "mxfp4":
        blocks = torch.randint(256, (rows, width // 32, 16), dtype=torch.uint8)
        codes = torch.randint(100, 150, (rows, width // 32), dtype=torch.uint8)
        return (blocks, codes), expand_definition(blocks, codes)
    dense = torch.randn(rows, width, dtype=getattr(torch, kind))
    return (dense,), dense.double()


def product(
    library: Library, kind: str, packed: tuple[Tensor, ...], x: Tensor, rows: int, threads: int = 1
) -> Tensor:
    out = torch.full((len(x), rows), float("nan"))
    library.call(f"rows_{kind}", *packed, x.contiguous(), out, rows, x.shape[1], len(x), threads)
    return out


def error_bound(kind: str, x: Tensor, exact: Tensor) -> Tensor:
    """Of adding n numbers in float32 in any order; in fixed point a token is off by 2^-16 of its
    block's greatest.
    """
    bound = x.shape[1] * 2.0**-24 * (x.double().abs() @ exact.abs().T)
    if kind == "mxfp4":
        greatest = x.double().abs().unflatten(1, (-1, 32)).amax(2)
        bound += 2.0**-16 * greatest @ exact.abs().unflatten(1, (-1, 32)).sum(2).T
    return bound


@pytest.mark.parametrize("kind", FORMATS)
def test_products_at_every_level(at_level: Library, kind: str) -> None:
    # wide rows have another order of additions
    widths = st.integers(1, 700) | st.integers(1024, 1100)

    @given(st.integers(1, 13), widths, st.integers(1, 9), st.integers(-40, 40))
    def check(rows: int, width: int, tokens: int, exponent: int) -> None:
        multiple = MULTIPLES.get(kind, 1)
        width = -(-width // multiple) * multiple
        packed, exact = weights(kind, rows, width)
        x = torch.randn(tokens, width) * 2.0**exponent
        got = product(at_level, kind, packed, x, rows)
        assert bool(
            ((got.double() - x.double() @ exact.T).abs() <= error_bound(kind, x, exact)).all()
        )

    check()


@pytest.mark.parametrize("kind", FORMATS)
def test_a_token_has_the_same_bits_in_every_batch_and_on_every_number_of_threads(
    at_level: Library, kind: str
) -> None:
    for width in (64, 512, 1056):
        packed, _ = weights(kind, 21, width)
        x = torch.randn(9, width)
        together = product(at_level, kind, packed, x, 21)
        for some in range(1, 9):
            torch.testing.assert_close(
                product(at_level, kind, packed, x[:some], 21), together[:some], rtol=0, atol=0
            )
        for threads in (2, 3, 8):
            torch.testing.assert_close(
                product(at_level, kind, packed, x, 21, threads), together, rtol=0, atol=0
            )


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("special", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_not_finite_stay_so(at_level: Library, kind: str, special: float) -> None:
    packed, _ = weights(kind, 5, 96)
    x = torch.randn(3, 96)
    x[1, 40] = special
    got = product(at_level, kind, packed, x, 5)
    assert got.isfinite().all(1).tolist() == [True, False, True]
    assert not bool(got[1].isfinite().any())  # not even where the weight is 0
    torch.testing.assert_close(
        got[0::2], product(at_level, kind, packed, x[0::2], 5), rtol=0, atol=0
    )


def test_special_scales(at_level: Library) -> None:
    """The smallest is 2^-127, which float32 holds as a subnormal number; 255 is NaN."""
    blocks = torch.full((1, 3, 16), 0x22, dtype=torch.uint8)  # 1
    x = torch.zeros(1, 96)
    x[0, :32] = 2.0**40
    for scale, each in [(0, 32 * 2.0**-87), (1, 32 * 2.0**-86), (254, float("inf"))]:
        got = product(
            at_level, "mxfp4", (blocks, torch.full((1, 3), scale, dtype=torch.uint8)), x, 1
        )
        torch.testing.assert_close(got.item(), each, rtol=2**-15, atol=0)
    scales = torch.tensor([[120, 255, 120]], dtype=torch.uint8)
    assert bool(product(at_level, "mxfp4", (blocks, scales), x, 1).isnan())


def test_tokens_of_zeros_and_of_the_smallest_numbers(at_level: Library) -> None:
    packed, _ = weights("mxfp4", 4, 64)
    for x in (torch.zeros(2, 64), torch.full((2, 64), 1e-42)):
        got = product(at_level, "mxfp4", packed, x, 4)
        assert bool((got.abs() <= 1e-25).all())
