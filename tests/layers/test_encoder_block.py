from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from glassformer.layers.blocks import CrossBlock, EncoderBlock
from glassformer.layers.feedforward import MLP
from glassformer.layers.grouped_query import GroupedQueryAttention
from refusals import refused


def block(
    hidden: int, heads: int, ff: int, activation: Any = "relu", eps: float = 1e-5, **options: Any
) -> EncoderBlock:
    attention = GroupedQueryAttention(hidden, heads, hidden // heads, causal=False, bias=True)
    return EncoderBlock(attention, MLP(hidden, ff, activation), hidden, eps, **options)


def copy_attention(ours: GroupedQueryAttention, theirs: nn.MultiheadAttention) -> None:
    with torch.no_grad():
        for third, mine in enumerate((ours.query, ours.key, ours.value)):
            mine.weight.copy_(theirs.in_proj_weight.chunk(3)[third])
            mine.bias.copy_(theirs.in_proj_bias.chunk(3)[third])
    ours.output.load_state_dict(theirs.out_proj.state_dict())


def copy_block(ours: EncoderBlock, theirs: nn.TransformerEncoderLayer) -> None:
    copy_attention(ours.attention, theirs.self_attn)
    pairs = ((ours.ffn.up, theirs.linear1), (ours.ffn.down, theirs.linear2))
    for mine, other in (*pairs, (ours.attention_norm, theirs.norm1), (ours.ffn_norm, theirs.norm2)):
        mine.load_state_dict(other.state_dict())


def not_neutral(module: nn.Module) -> None:
    """Norms and biases other than the ones they start with."""
    with torch.no_grad():
        for weight in module.parameters():
            if weight.dim() == 1:
                weight.add_(torch.randn_like(weight) / 4)


@pytest.mark.parametrize("padded", [False, True])
def test_its_attention_is_torchs(padded: bool) -> None:
    theirs = nn.MultiheadAttention(24, 4, batch_first=True)
    not_neutral(theirs)
    ours = GroupedQueryAttention(24, 4, 6, causal=False, bias=True)
    copy_attention(ours, theirs)
    x = torch.randn(3, 7, 24)
    real = torch.arange(7) < torch.tensor([7, 4, 1])[:, None] if padded else None
    expected, _ = theirs(x, x, x, key_padding_mask=None if real is None else ~real)
    assert (ours(x, key_padding=real) - expected).abs().max() <= 1e-6


def test_its_norm_is_torchs_and_its_formula() -> None:
    made = block(12, 2, 20, eps=1e-3)
    x = 3 * torch.randn(5, 12) + 1
    not_neutral(made)
    for norm in (made.attention_norm, made.ffn_norm):
        deviation = x - x.mean(-1, keepdim=True)
        by_hand = deviation / (deviation.square().mean(-1, keepdim=True) + 1e-3).sqrt() * norm.weight + norm.bias
        assert (norm(x) - by_hand).abs().max() <= 1e-6
        assert (norm(x) - nn.functional.layer_norm(x, (12,), norm.weight, norm.bias, 1e-3)).abs().max() <= 1e-6


@pytest.mark.parametrize("training", [False, True], ids=["torch's fused path", "torch's plain path"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_it_is_torchs_layer(norm_first: bool, activation: str, padded: bool, training: bool) -> None:
    theirs = nn.TransformerEncoderLayer(
        24, 4, 40, dropout=0.0, activation=activation, batch_first=True, norm_first=norm_first, layer_norm_eps=1e-4
    ).train(training)
    not_neutral(theirs)
    ours = block(24, 4, 40, activation, 1e-4, norm_first=norm_first)
    copy_block(ours, theirs)
    x = torch.randn(3, 9, 24)
    real = torch.arange(9) < torch.tensor([9, 5, 1])[:, None] if padded else torch.ones(3, 9, dtype=torch.bool)
    with torch.set_grad_enabled(training):
        expected = theirs(x, src_key_padding_mask=~real if padded else None)
        difference = ours(x, key_padding=real if padded else None) - expected
    assert difference[real].abs().max() <= 1e-6


@given(
    st.booleans(),
    st.sampled_from(["relu", "gelu"]),
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(1, 12),
    st.data(),
)
@settings(max_examples=25, deadline=None)
def test_it_is_torchs_layer_with_its_gradients(
    norm_first: bool, activation: str, heads: int, head_dim: int, length: int, data: st.DataObject
) -> None:
    """In float64, where a difference would be one of substance."""
    hidden = heads * head_dim
    theirs = nn.TransformerEncoderLayer(
        hidden, heads, 7, dropout=0.0, activation=activation, batch_first=True, norm_first=norm_first
    ).double()
    not_neutral(theirs)
    ours = block(hidden, heads, 7, activation, norm_first=norm_first).double()
    copy_block(ours, theirs)
    lengths = data.draw(st.lists(st.integers(1, length), min_size=2, max_size=2))
    real = torch.arange(length) < torch.tensor(lengths)[:, None]
    results: list[tuple[Tensor, Tensor]] = []
    x = torch.randn(2, length, hidden, dtype=torch.float64)
    for call in (lambda x: ours(x, key_padding=real), lambda x: theirs(x, src_key_padding_mask=~real)):
        given = x.clone().requires_grad_()
        out = call(given)[real]
        (grad,) = torch.autograd.grad((out * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum(), given)
        results.append((out.detach(), grad))
    for mine, other in zip(*results, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-8, atol=1e-8)


def test_norms_stand_after_the_parts_by_default() -> None:
    attention = GroupedQueryAttention(8, 2, 4, causal=False)
    assert not EncoderBlock(attention, MLP(8, 8), 8).norm_first
    assert not CrossBlock(GroupedQueryAttention(8, 2, 4), attention, MLP(8, 8), 8).norm_first


def test_dropout_takes_from_what_is_added() -> None:
    made = block(12, 2, 20, norm_first=True, dropout=0.5).train()
    nn.init.ones_(made.ffn.down.bias)
    nn.init.zeros_(made.ffn.down.weight)
    nn.init.zeros_(made.attention.output.weight)
    nn.init.zeros_(made.attention.output.bias)
    x = torch.randn(40, 10, 12)
    added = made(x) - x
    assert 0.45 < (added.abs() < 1e-5).float().mean() < 0.55
    torch.testing.assert_close(added[added > 0.5], torch.full_like(added[added > 0.5], 2.0), rtol=0, atol=1e-5)
    torch.testing.assert_close(made.eval()(x), x + 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm_eps": 0.0}, r"norm_eps = 0\.0"),
        ({"dropout": 1.0}, r"dropout = 1\.0"),
        ({"hidden_dim": 0}, "hidden_dim = 0"),
    ],
)
def test_impossible_blocks_are_refused(options: dict[str, Any], message: str) -> None:
    attention = GroupedQueryAttention(12, 2, 6, causal=False)
    with refused(message):
        EncoderBlock(**{"attention": attention, "ffn": MLP(12, 20), "hidden_dim": 12, **options})
