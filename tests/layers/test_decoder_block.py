from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from glassformer.layers.blocks import CrossBlock
from glassformer.layers.cache import LayerCache
from glassformer.layers.feedforward import MLP
from glassformer.layers.grouped_query import GroupedQueryAttention
from refusals import refused


def block(activation: Any = "relu", eps: float = 1e-5, **options: Any) -> CrossBlock:
    attentions = [GroupedQueryAttention(24, 4, 6, causal=causal, bias=True) for causal in (True, False)]
    return CrossBlock(*attentions, MLP(24, 40, activation), 24, eps, **options)


def copy_attention(ours: GroupedQueryAttention, theirs: nn.MultiheadAttention) -> None:
    with torch.no_grad():
        for third, mine in enumerate((ours.query, ours.key, ours.value)):
            mine.weight.copy_(theirs.in_proj_weight.chunk(3)[third])
            mine.bias.copy_(theirs.in_proj_bias.chunk(3)[third])
    ours.output.load_state_dict(theirs.out_proj.state_dict())


def copy_block(ours: CrossBlock, theirs: nn.TransformerDecoderLayer) -> None:
    copy_attention(ours.self_attention, theirs.self_attn)
    copy_attention(ours.cross_attention, theirs.multihead_attn)
    for mine, other in (
        (ours.ffn.up, theirs.linear1),
        (ours.ffn.down, theirs.linear2),
        (ours.self_attention_norm, theirs.norm1),
        (ours.cross_attention_norm, theirs.norm2),
        (ours.ffn_norm, theirs.norm3),
    ):
        mine.load_state_dict(other.state_dict())


def not_neutral(module: nn.Module) -> None:
    """Norms and biases other than the ones they start with."""
    with torch.no_grad():
        for weight in module.parameters():
            if weight.dim() == 1:
                weight.add_(torch.randn_like(weight) / 4)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_it_is_torchs_layer(norm_first: bool, activation: str, padded: bool) -> None:
    theirs = nn.TransformerDecoderLayer(
        24, 4, 40, dropout=0.0, activation=activation, batch_first=True, norm_first=norm_first, layer_norm_eps=1e-4
    )
    not_neutral(theirs)
    ours = block(activation, 1e-4, norm_first=norm_first)
    copy_block(ours, theirs)
    x, memory = torch.randn(3, 7, 24, requires_grad=True), torch.randn(3, 5, 24, requires_grad=True)
    real = torch.arange(7) < torch.tensor([[7], [4], [1]]) if padded else None
    source_real = torch.arange(5) < torch.tensor([[2], [5], [1]]) if padded else None
    expected = theirs(
        x,
        memory,
        tgt_mask=torch.ones(7, 7, dtype=torch.bool).triu(1),
        tgt_key_padding_mask=None if real is None else ~real,
        memory_key_padding_mask=None if source_real is None else ~source_real,
    )
    found = ours(x, memory, key_padding=real, memory_padding=source_real)
    assert (found - expected).abs().max() <= 1e-6
    upstream = torch.randn_like(expected)
    for mine, other in zip(
        *(torch.autograd.grad(out, (x, memory), upstream) for out in (found, expected)), strict=True
    ):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("norm_first", [False, True])
@torch.no_grad()
def test_step_by_step_with_a_cache_and_a_memory_projected_once(norm_first: bool) -> None:
    made = block(norm_first=norm_first)
    not_neutral(made)
    x, memory = torch.randn(2, 9, 24), torch.randn(2, 5, 24)
    source_real = torch.arange(5) < torch.tensor([[5], [2]])
    whole = made(x, memory, memory_padding=source_real)
    read, cache = made.cross_attention.keys_and_values(memory), LayerCache(2, 4, 6, 9)
    chunks = [made(part, read, memory_padding=source_real, cache=cache) for part in x.split([4, 1, 1, 3], dim=1)]
    torch.testing.assert_close(torch.cat(chunks, 1), whole, rtol=0, atol=2e-6)


@torch.no_grad()
def test_it_sees_no_future_all_of_the_memory_and_no_padding() -> None:
    made = block()
    x, memory = torch.randn(1, 6, 24), torch.randn(1, 4, 24)
    out = made(x, memory)
    later = x.clone()
    later[:, 3:] += 1
    changed = (made(later, memory) - out).abs().amax(-1)[0] > 1e-4
    assert changed.tolist() == [False] * 3 + [True] * 3
    for place in range(4):
        other = memory.clone()
        other[:, place] += 1
        assert ((made(x, other) - out).abs().amax(-1) > 1e-4).all()
        real = torch.arange(4)[None] != place
        assert torch.equal(made(x, other, memory_padding=real), made(x, memory, memory_padding=real))


def test_dropout_is_for_training_on_all_three_sums() -> None:
    made = block(dropout=0.999)
    x, memory = torch.randn(2, 50, 24), torch.randn(2, 5, 24)
    norms = (made.self_attention_norm, made.cross_attention_norm, made.ffn_norm)
    expected = x
    for norm in norms:
        expected = norm(expected)
    near = (made(x, memory) - expected).abs() < 1e-3
    assert near.float().mean() > 0.9  # almost nothing is added
    made.eval()
    assert torch.equal(made(x, memory), made(x, memory))
    assert ((made(x, memory) - expected).abs() < 1e-3).float().mean() < 0.1


@pytest.mark.usefixtures("without_type_checks")
def test_impossible_options_are_refused() -> None:
    causal, full = (GroupedQueryAttention(24, 4, 6, causal=each) for each in (True, False))
    for attentions, options, message in [
        ((full, full), {}, "self-attention with causal = False and cross-attention with causal = False"),
        ((causal, causal), {}, "cross-attention with causal = True"),
        ((causal, full), {"hidden_dim": 0}, "hidden_dim = 0"),
        ((causal, full), {"norm_eps": 0.0}, "norm_eps = 0.0"),
        ((causal, full), {"dropout": 1.0}, r"dropout = 1.0"),
    ]:
        with refused(message):
            CrossBlock(*attentions, MLP(24, 40), **{"hidden_dim": 24} | options)
