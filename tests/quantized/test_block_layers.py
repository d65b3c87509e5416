from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn

from glassformer.kernels.blocks import KINDS
from glassformer.quantized.block_layers import BlockEmbedding, BlockLinear
from refusals import refused


def filled(layer: nn.Module, seed: int = 0) -> nn.Module:
    """With random Q8_0 blocks of small scales."""
    generator = torch.Generator().manual_seed(seed)
    layer.blocks.random_(256, generator=generator)
    layer.blocks.unflatten(1, (-1, 34))[..., :2] = torch.tensor([0.01], dtype=torch.float16).view(torch.uint8)
    return layer


def test_a_layer_computes_with_its_expanded_weights() -> None:
    layer, x = filled(BlockLinear(64, 5, "Q8_0", bias=True)), torch.randn(2, 3, 64)
    torch.testing.assert_close(layer(x), nn.functional.linear(x, layer.weight, layer.bias))
    table, numbers = filled(BlockEmbedding(7, 64, "Q8_0")), torch.tensor([[6, 0], [3, 3]])
    assert torch.equal(table(numbers), table.weight[numbers])
    with pytest.raises(IndexError):
        table(torch.tensor([7]))


def test_blocks_survive_what_users_do_with_layers() -> None:
    layer = filled(BlockLinear(64, 5, "Q8_0"))
    expected = layer.weight
    for changed in (copy.deepcopy(layer), copy.deepcopy(layer).bfloat16(), copy.deepcopy(layer).double().eval()):
        assert torch.equal(changed.weight, expected)
    other = BlockLinear(64, 5, "Q8_0")
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.weight, expected)
    stored = io.BytesIO()
    torch.save(layer.state_dict(), stored)
    assert list(layer.state_dict()) == ["blocks"]
    assert not list(layer.parameters())
    assert "kind=Q8_0" in repr(layer)


def test_widths_that_blocks_do_not_fill_are_refused() -> None:
    with refused("a width of 100", expected="256"):
        BlockLinear(100, 5, "Q4_K")
    with refused("IQ2_XS", expected=", ".join(KINDS)):
        BlockEmbedding(5, 64, "IQ2_XS")
