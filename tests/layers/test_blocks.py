from typing import Any

import pytest
import torch
from torch import Tensor, nn

from glassformer.layers.blocks import Block
from glassformer.layers.feedforward import MLP, SwiGLU
from glassformer.layers.grouped_query import GroupedQueryAttention
from glassformer.layers.positions import RotaryEmbedding
from refusals import refused


def test_a_decoder_block_is_its_formula() -> None:
    block = Block(12, GroupedQueryAttention(12, 2, 6), SwiGLU(12, 20), norm_eps=1e-3)
    for norm in (block.attention_norm, block.ffn_norm):
        nn.init.normal_(norm.weight)
    x = torch.randn(2, 5, 12)
    rotation = RotaryEmbedding(6).rotation(5)

    def normed(x: torch.Tensor, norm: nn.Module) -> torch.Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt() * norm.weight

    hidden = x + block.attention(normed(x, block.attention_norm), rotation=rotation)
    expected = hidden + block.ffn(normed(hidden, block.ffn_norm))
    torch.testing.assert_close(block(x, rotation=rotation), expected, rtol=1e-5, atol=1e-6)


def encoder_block(**options: Any) -> Block:
    attention = GroupedQueryAttention(12, 2, 6, causal=False, bias=True)
    return Block(12, attention, MLP(12, 20), 1e-5, norm="layer", **options)


def cross_block(attention: bool = True, cross: bool = False, **options: Any) -> Block:
    """A block with cross-attention; the first two arguments are whether its attentions are causal."""
    attentions = [
        GroupedQueryAttention(24, 4, 6, causal=causal, bias=True) for causal in (attention, cross)
    ]
    given: dict[str, Any] = {
        "hidden_dim": 24,
        "norm_eps": 1e-5,
        "norm": "layer",
        "norm_place": "sum",
    }
    return Block(attention=attentions[0], ffn=MLP(24, 40), cross=attentions[1], **given | options)


@pytest.mark.parametrize("place", ["before", "after", "both", "sum"])
@pytest.mark.parametrize("crosses", [False, True])
def test_norms_stand_where_the_place_says(place: str, crosses: bool) -> None:
    block = cross_block(norm_place=place) if crosses else encoder_block(norm_place=place)
    width = 24 if crosses else 12
    for name, weight in block.named_parameters():
        if "norm" in name:
            nn.init.normal_(weight)
    x = torch.randn(2, 5, width)
    memory = torch.randn(2, 3, width)
    parts: dict[str, Any] = {"attention": block.attention} if not crosses else {}
    if crosses:
        parts["self_attention"] = block.self_attention
        parts["cross_attention"] = lambda x: block.cross_attention(x, memory)
    parts["ffn"] = block.ffn
    expected: Tensor = x
    for name, part in parts.items():
        norm, post_norm = (getattr(block, f"{name}_{which}") for which in ("norm", "post_norm"))
        match place:
            case "before":
                expected = expected + part(norm(expected))
            case "after":
                expected = expected + post_norm(part(expected))
            case "both":
                expected = expected + post_norm(part(norm(expected)))
            case "sum":
                expected = norm(expected + part(expected))
    found = block(x, memory) if crosses else block(x)
    assert torch.equal(found, expected)


def test_a_memory_is_for_blocks_that_attend_to_one() -> None:
    x = torch.randn(2, 5, 12)
    with refused("a memory for a block without cross-attention"):
        encoder_block()(x, x)
    with refused("no memory"):
        cross_block()(torch.randn(2, 5, 24))


def test_dropout_takes_from_what_is_added() -> None:
    made = encoder_block(dropout=0.5).train()
    nn.init.ones_(made.ffn.down.bias)
    nn.init.zeros_(made.ffn.down.weight)
    nn.init.zeros_(made.attention.output.weight)
    nn.init.zeros_(made.attention.output.bias)
    x = torch.randn(40, 10, 12)
    added = made(x) - x
    assert 0.45 < (added.abs() < 1e-5).float().mean() < 0.55
    torch.testing.assert_close(
        added[added > 0.5], torch.full_like(added[added > 0.5], 2.0), rtol=0, atol=1e-5
    )
    torch.testing.assert_close(made.eval()(x), x + 1)


def test_dropout_is_for_training_on_all_three_sums() -> None:
    made = cross_block(dropout=0.999)
    x = torch.randn(2, 50, 24)
    memory = torch.randn(2, 5, 24)
    norms = (made.self_attention_norm, made.cross_attention_norm, made.ffn_norm)
    expected = x
    for norm in norms:
        expected = norm(expected)
    near = (made(x, memory) - expected).abs() < 1e-3
    assert near.float().mean() > 0.9  # almost nothing is added
    made.eval()
    assert torch.equal(made(x, memory), made(x, memory))
    assert ((made(x, memory) - expected).abs() < 1e-3).float().mean() < 0.1


@pytest.mark.parametrize(
    ("options", "got"),
    [
        (
            {"attention": False},
            "self-attention with causal = False and cross-attention with causal = False",
        ),
        ({"cross": True}, "cross-attention with causal = True"),
        ({"hidden_dim": 0}, "hidden_dim = 0"),
        ({"norm_eps": 0.0}, "norm_eps = 0.0"),
        ({"dropout": 1.0}, r"dropout = 1.0"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], got: str) -> None:
    with refused(got):
        cross_block(**options)
