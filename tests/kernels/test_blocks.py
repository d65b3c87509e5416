"""GGUF's blocks: the bits of the package gguf's dequantize, and products with them."""

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from glassformer.kernels import plain
from glassformer.kernels.blocks import KINDS, block_linear, definition, expanded, finite, number, values
from glassformer.kernels.native import Library


def random_blocks(kind: str, rows: int, blocks: int, seed: int = 0, *, usual: bool = False) -> torch.Tensor:
    """Any bits, but for finite scales; with ``usual``, scales about 1 / 32."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(256, (rows, blocks, KINDS[kind].nbytes), dtype=torch.uint8, generator=generator)
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
    blocks, generator = random_blocks(kind, 33, 2, usual=True), torch.Generator().manual_seed(1)
    x = torch.randn(2, tokens, 2 * KINDS[kind].block, generator=generator)
    bias = torch.randn(33, generator=generator)
    expected = x.double() @ values(kind, blocks).double().T + bias
    scale = float(expected.abs().max())
    assert float((block_linear(x, blocks, kind, bias) - expected).abs().max()) < 2e-6 * scale
    assert float((block_linear(x.double(), blocks, kind, bias) - expected).abs().max()) < 1e-14 * scale
    assert float((block_linear(x.bfloat16(), blocks, kind, bias).float() - expected).abs().max()) < 2e-2 * scale
    with plain():
        assert torch.equal(block_linear(x, blocks, kind, bias), definition(x, blocks, kind, bias))


@pytest.mark.parametrize("kind", KINDS)
def test_every_instruction_set_has_the_same_values_and_products(kind: str, at_level: Library) -> None:
    rows, width = 7, 3 * KINDS[kind].block
    blocks, generator = random_blocks(kind, rows, 3), torch.Generator().manual_seed(2)
    found = torch.full((rows, width), torch.nan)
    at_level.call("expand_blocks", blocks, found, number(kind), rows, width, 0, rows, 2)
    assert torch.equal(found, expanded(kind, blocks))
    at_level.call("expand_blocks", blocks, found[:2], number(kind), rows, width, 2, 4, 1)
    assert torch.equal(found[:2], expanded(kind, blocks)[2:4])

    blocks, x = random_blocks(kind, rows, 3, usual=True), torch.randn(9, width, generator=generator)

    def products(x: torch.Tensor, threads: int) -> torch.Tensor:
        out = torch.full((len(x), rows), torch.nan)
        at_level.call("rows_blocks", blocks, x, out, number(kind), rows, width, len(x), threads)
        return out

    all_tokens, exact = products(x, 1), x.double() @ expanded(kind, blocks).double().T
    bound = width * 2.0**-24 * (x.double().abs() @ expanded(kind, blocks).double().abs().T)
    assert ((all_tokens - exact).abs() <= bound).all()
    for some in (1, 2, 7):  # the bits of a token are the same in every batch, with any number of threads
        assert torch.equal(products(x[:some].contiguous(), 3), all_tokens[:some])


def test_the_input_has_gradients_of_any_order() -> None:
    blocks = random_blocks("Q4_K", 9, 1, usual=True)
    x = torch.randn(3, 256, dtype=torch.float64, requires_grad=True)

    def cubed(x: torch.Tensor) -> torch.Tensor:
        return block_linear(x, blocks, "Q4_K") ** 3

    assert torch.autograd.gradcheck(cubed, x)
    assert torch.autograd.gradgradcheck(cubed, x)
    jacobian = torch.func.jacrev(lambda x: block_linear(x, blocks, "Q4_K"))(x[0].detach())
    assert torch.equal(jacobian, values("Q4_K", blocks).double())


@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_are_no_numbers_are_found(kind: str) -> None:
    blocks = random_blocks(kind, 3, 2)
    assert finite(kind, blocks)
    assert values(kind, blocks).isfinite().all() or kind == "MXFP4"  # 2 ** 126 times 12
    for at in KINDS[kind].halves or (0,):
        damaged = blocks.clone().view(3, 2, -1)
        damaged[1, 1, at : at + 2] = torch.tensor([torch.nan], dtype=torch.float16).view(torch.uint8)
        if kind == "MXFP4":
            damaged[1, 1, 0] = 255
        assert not finite(kind, damaged.flatten(1))
