from __future__ import annotations

import torch
from torch import nn

from glassformer.layers.blocks import Block
from glassformer.layers.feedforward import SwiGLU
from glassformer.layers.grouped_query import GroupedQueryAttention
from glassformer.layers.positions import RotaryEmbedding


def test_it_is_its_formula() -> None:
    block = Block(12, GroupedQueryAttention(12, 2, 6), SwiGLU(12, 20), norm_eps=1e-3)
    for norm in (block.attention_norm, block.ffn_norm):
        nn.init.normal_(norm.weight)
    x, rotation = torch.randn(2, 5, 12), RotaryEmbedding(6).rotation(5)

    def normed(x: torch.Tensor, norm: nn.Module) -> torch.Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt() * norm.weight

    hidden = x + block.attention(normed(x, block.attention_norm), rotation=rotation)
    expected = hidden + block.ffn(normed(hidden, block.ffn_norm))
    torch.testing.assert_close(block(x, rotation=rotation), expected, rtol=1e-5, atol=1e-6)


def test_blocks_that_write_nothing_pass_the_stream_through() -> None:
    block = Block(12, GroupedQueryAttention(12, 2, 6), SwiGLU(12, 20), norm_eps=1e-5)
    nn.init.zeros_(block.attention.output.weight)
    nn.init.zeros_(block.ffn.down.weight)
    x = torch.randn(2, 5, 12)
    assert torch.equal(block(x), x)
