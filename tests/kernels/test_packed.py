"""Packed kinds: the bits of the package gguf's dequantize, and products with them."""

import re

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from glassformer.kernels import native, plain
from glassformer.kernels.native import LEVELS, Library
from glassformer.kernels.packed import (
    KINDS,
    definition,
    encode,
    expanded,
    finite,
    packed_linear,
    values,
)
from refusals import refused


def random_blocks(
    kind: str, rows: int, blocks: int, seed: int = 0, *, usual: bool = False
) -> torch.Tensor:
    """Any bits, but for finite scales; with ``usual``, scales about 1 / 32."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(
        256, (rows, blocks, KINDS[kind].nbytes), dtype=torch.uint8, generator=generator
    )
    for at in KINDS[kind].halves:
        half = drawn[..., at : at + 2].contiguous().view(torch.int16)
        infinite = (half >> 10 & 31) == 31
        half = torch.where(infinite, half & 0x3FFF, half)
        if usual:
            half = torch.full_like(half, 0.03, dtype=torch.float16).view(torch.int16)
        drawn[..., at : at + 2] = half.view(torch.uint8)
    if kind == "MXFP4":
        drawn[..., 0] = 122 if usual else drawn[..., 0].clamp(max=254)
    return drawn.flatten(1)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_have_the_bits_of_llama_cpp(kind: str) -> None:
    blocks = random_blocks(kind, 64, 8)
    expected = dequantize(blocks.numpy(), GGMLQuantizationType[kind])
    found = values(kind, blocks)
    assert np.array_equal(expanded(kind, blocks).numpy(), expected)
    assert found.shape == (64, 8 * KINDS[kind].block)
    assert np.array_equal(found.numpy(), expected)
    assert torch.equal(values(kind, blocks.view(8, 8, -1)).view(64, -1), found)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [1, 3, 70])
def test_products_are_those_of_the_expanded_matrix(kind: str, tokens: int) -> None:
    blocks = random_blocks(kind, 33, 2, usual=True)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, tokens, 2 * KINDS[kind].block, generator=generator)
    bias = torch.randn(33, generator=generator)
    expected = x.double() @ values(kind, blocks).double().T + bias
    scale = float(expected.abs().max())
    assert float((packed_linear(x, blocks, kind, bias) - expected).abs().max()) < 2e-6 * scale
    assert (
        float((packed_linear(x.double(), blocks, kind, bias) - expected).abs().max())
        < 1e-14 * scale
    )
    assert (
        float((packed_linear(x.bfloat16(), blocks, kind, bias).float() - expected).abs().max())
        < 2e-2 * scale
    )
    with plain():
        assert torch.equal(packed_linear(x, blocks, kind, bias), definition(x, blocks, kind, bias))


@pytest.mark.parametrize("kind", KINDS)
def test_every_instruction_set_has_the_same_values_and_products(
    kind: str, at_level: Library
) -> None:
    rows = 7
    width = 3 * KINDS[kind].block
    blocks = random_blocks(kind, rows, 3)
    generator = torch.Generator().manual_seed(2)
    found = torch.full((rows, width), torch.nan)
    at_level.call("expand_blocks", blocks, found, KINDS[kind].number, rows, width, 0, rows, 2)
    assert torch.equal(found, expanded(kind, blocks))
    at_level.call("expand_blocks", blocks, found[:2], KINDS[kind].number, rows, width, 2, 4, 1)
    assert torch.equal(found[:2], expanded(kind, blocks)[2:4])

    blocks = random_blocks(kind, rows, 3, usual=True)
    x = torch.randn(9, width, generator=generator)

    def products(x: torch.Tensor, threads: int) -> torch.Tensor:
        out = torch.full((len(x), rows), torch.nan)
        at_level.call(
            "rows_blocks", blocks, x, out, KINDS[kind].number, rows, width, len(x), threads
        )
        return out

    all_tokens = products(x, 1)
    exact = x.double() @ expanded(kind, blocks).double().T
    bound = width * 2.0**-24 * (x.double().abs() @ expanded(kind, blocks).double().abs().T)
    assert ((all_tokens - exact).abs() <= bound).all()
    for some in (
        1,
        2,
        7,
    ):  # the bits of a token are the same in every batch, with any number of threads
        assert torch.equal(products(x[:some].contiguous(), 3), all_tokens[:some])


@pytest.fixture
def matrix_registers(library: Library) -> Library:
    if library.level < LEVELS.index("AMX"):
        pytest.skip("this processor has no AMX")
    return library


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("tokens", "rows", "count"), [(17, 1, 1), (33, 37, 3), (530, 65, 2)])
def test_matrix_registers_round_no_activations(
    kind: str, tokens: int, rows: int, count: int, matrix_registers: Library
) -> None:
    width = count * KINDS[kind].block
    generator = torch.Generator().manual_seed(3)
    blocks = random_blocks(kind, rows, count, usual=True)
    x = torch.randn(tokens, width, generator=generator)
    x[:, ::3] *= 1e-4  # what bfloat16 would lose of the others is more

    def products(x: torch.Tensor, threads: int) -> torch.Tensor:
        out = torch.full((len(x), rows), torch.nan)
        matrix_registers.call(
            "matrix_blocks", blocks, x, out, KINDS[kind].number, rows, width, len(x), threads
        )
        return out

    codes, scales, offsets = KINDS[kind].unpacked(blocks.unflatten(-1, (-1, KINDS[kind].nbytes)))
    all_tokens = products(x, 2)
    weights = expanded(kind, blocks).double()
    parts = (scales.unsqueeze(-1) * codes.unflatten(-1, (scales.shape[-1], -1))).abs().double()
    parts = (parts if offsets is None else parts + offsets.abs().unsqueeze(-1)).flatten(1)
    bound = 2.0**-22 * (x.double().abs() @ parts.T)
    assert ((all_tokens - x.double() @ weights.T).abs() <= bound).all()
    # the bits of a token are the same beside all others, and with any threads
    some = torch.arange(tokens - 1, -1, -3)
    assert torch.equal(products(x[some].contiguous(), 1), all_tokens[some])


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0"])
def test_infinite_activations_stay_in_their_token(kind: str, matrix_registers: Library) -> None:
    blocks = random_blocks(kind, 9, 2, usual=True)
    x = torch.randn(20, 2 * KINDS[kind].block)
    usual = packed_linear(x, blocks, kind)
    nan_by_its_lowest_bit = torch.tensor(0x7F800001, dtype=torch.int32).view(torch.float32)
    for token, value in enumerate([torch.inf, -torch.inf, torch.nan, nan_by_its_lowest_bit]):
        x[token, 5] = value
    found = packed_linear(x, blocks, kind)
    assert torch.equal(found[4:], usual[4:])
    assert not found[:4].isfinite().any()
    assert found[2:4].isnan().all()
    nonzero = values(kind, blocks)[:, 5] != 0
    if kind == "Q8_0":  # without offsets the sign is that of the weight
        assert torch.equal(found[0, nonzero], torch.inf * values(kind, blocks)[nonzero, 5])


def test_the_input_has_gradients_of_any_order() -> None:
    blocks = random_blocks("Q4_K", 9, 1, usual=True)
    x = torch.randn(3, 256, dtype=torch.float64, requires_grad=True)

    def cubed(x: torch.Tensor) -> torch.Tensor:
        return packed_linear(x, blocks, "Q4_K") ** 3

    assert torch.autograd.gradcheck(cubed, x)
    assert torch.autograd.gradgradcheck(cubed, x)
    jacobian = torch.func.jacrev(lambda x: packed_linear(x, blocks, "Q4_K"))(x[0].detach())
    assert torch.equal(jacobian, values("Q4_K", blocks).double())


@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_are_no_numbers_are_found(kind: str) -> None:
    blocks = random_blocks(kind, 3, 2)
    assert finite(kind, blocks)
    assert values(kind, blocks).isfinite().all() or kind == "MXFP4"  # 2 ** 126 times 12
    for at in KINDS[kind].halves or (0,):
        damaged = blocks.clone().view(3, 2, -1)
        damaged[1, 1, at : at + 2] = torch.tensor([torch.nan], dtype=torch.float16).view(
            torch.uint8
        )
        if kind == "MXFP4":
            damaged[1, 1, 0] = 255
        assert not finite(kind, damaged.flatten(1))


def test_weights_become_the_nearest_codes_of_q8_0() -> None:
    """A number is off by half a scale at most, and the scale is that of the greatest of its 32,
    rounded to float16.
    """
    weights = torch.randn(9, 64, dtype=torch.float64) * torch.logspace(
        -1, 3, 9, dtype=torch.float64
    ).unsqueeze(1)
    for given in (weights, weights.float(), weights.bfloat16()):
        blocks = encode("Q8_0", given)
        wide = given.double().unflatten(1, (2, 32))
        scales = wide.abs().amax(2, keepdim=True) / 127
        off = (values("Q8_0", blocks).double().unflatten(1, (2, 32)) - wide).abs()
        assert bool((off <= scales * (0.5 + 127 * 2.0**-11)).all())
        assert torch.equal(encode("Q8_0", given.view(3, 3, 64)).view(9, -1), blocks)
    whole = torch.arange(-127, 129).clamp(max=127).float().view(4, 64) * 0.5
    whole[:, ::32] = 63.5  # the greatest of each block
    assert torch.equal(values("Q8_0", encode("Q8_0", whole)), whole)
    assert not encode("Q8_0", torch.zeros(2, 32)).any()
    assert encode("Q8_0", torch.zeros(3, 0)).shape == (3, 0)
    assert encode("Q8_0", torch.empty(3, 64, device="meta")).shape == (3, 68)


def test_large_matrices_are_encoded_in_parts() -> None:
    weights = torch.randn(5, 2**17)
    assert torch.equal(encode("Q8_0", weights)[4:], encode("Q8_0", weights[4:]))


def test_what_cannot_be_encoded() -> None:
    with refused("a width of 33", expected="a multiple of 32"):
        encode("Q8_0", torch.zeros(2, 33))
    with refused("Q4_K, which is only read", expected="one of Q8_0"):
        encode("Q4_K", torch.zeros(2, 256))
    for special in (torch.nan, torch.inf, 1e30):
        assert not finite("Q8_0", encode("Q8_0", torch.full((1, 32), special)))


def test_numbers_of_kinds_are_those_of_the_header() -> None:
    header = (native.FOLDER / "formats.h").read_text(encoding="utf-8")
    names = re.search(r"enum Stored : int64_t \{(.*?)\};", header, re.DOTALL)[1]
    numbers = re.findall(r"^  (\w+),", names, re.MULTILINE)
    assert {f"{name}_BLOCKS": kind.number for name, kind in KINDS.items()} == {
        name: number for number, name in enumerate(numbers) if name.endswith("_BLOCKS")
    }
