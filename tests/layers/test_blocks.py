from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from glassformer.layers.blocks import Block, CrossBlock, EncoderBlock
from glassformer.layers.cache import LayerCache
from glassformer.layers.feedforward import MLP, SwiGLU
from glassformer.layers.grouped_query import GroupedQueryAttention
from glassformer.layers.positions import RotaryEmbedding
from refusals import refused


def encoder_block(
    hidden: int, heads: int, ff: int, activation: Any = "relu", eps: float = 1e-5, **options: Any
) -> EncoderBlock:
    attention = GroupedQueryAttention(hidden, heads, hidden // heads, causal=False, bias=True)
    return EncoderBlock(attention, MLP(hidden, ff, activation), hidden, eps, **options)


def cross_block(activation: Any = "relu", eps: float = 1e-5, **options: Any) -> CrossBlock:
    attentions = [GroupedQueryAttention(24, 4, 6, causal=causal, bias=True) for causal in (True, False)]
    return CrossBlock(*attentions, MLP(24, 40, activation), 24, eps, **options)


def copy_attention(ours: GroupedQueryAttention, theirs: nn.MultiheadAttention) -> None:
    with torch.no_grad():
        for third, mine in enumerate((ours.query, ours.key, ours.value)):
            mine.weight.copy_(theirs.in_proj_weight.chunk(3)[third])
            mine.bias.copy_(theirs.in_proj_bias.chunk(3)[third])
    ours.output.load_state_dict(theirs.out_proj.state_dict())


def copy_block(
    ours: EncoderBlock | CrossBlock, theirs: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer
) -> None:
    pairs = [(ours.ffn.up, theirs.linear1), (ours.ffn.down, theirs.linear2)]
    if isinstance(ours, EncoderBlock):
        copy_attention(ours.attention, theirs.self_attn)
        pairs += [(ours.attention_norm, theirs.norm1), (ours.ffn_norm, theirs.norm2)]
    else:
        copy_attention(ours.self_attention, theirs.self_attn)
        copy_attention(ours.cross_attention, theirs.multihead_attn)
        pairs += [(ours.self_attention_norm, theirs.norm1), (ours.cross_attention_norm, theirs.norm2)]
        pairs += [(ours.ffn_norm, theirs.norm3)]
    for mine, other in pairs:
        mine.load_state_dict(other.state_dict())


def not_neutral(module: nn.Module) -> None:
    """Norms and biases other than the ones they start with."""
    with torch.no_grad():
        for weight in module.parameters():
            if weight.dim() == 1:
                weight.add_(torch.randn_like(weight) / 4)


def test_a_decoder_block_is_its_formula() -> None:
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


# Of encoders


@pytest.mark.parametrize("training", [False, True], ids=["torch's fused path", "torch's plain path"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_an_encoder_block_is_torchs_layer(norm_first: bool, activation: str, padded: bool, training: bool) -> None:
    theirs = nn.TransformerEncoderLayer(
        24, 4, 40, dropout=0.0, activation=activation, batch_first=True, norm_first=norm_first, layer_norm_eps=1e-4
    ).train(training)
    not_neutral(theirs)
    ours = encoder_block(24, 4, 40, activation, 1e-4, norm_first=norm_first)
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
def test_an_encoder_block_is_torchs_layer_with_its_gradients(
    norm_first: bool, activation: str, heads: int, head_dim: int, length: int, data: st.DataObject
) -> None:
    """In float64, where a difference would be one of substance."""
    hidden = heads * head_dim
    theirs = nn.TransformerEncoderLayer(
        hidden, heads, 7, dropout=0.0, activation=activation, batch_first=True, norm_first=norm_first
    ).double()
    not_neutral(theirs)
    ours = encoder_block(hidden, heads, 7, activation, norm_first=norm_first).double()
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
    made = encoder_block(12, 2, 20, norm_first=True, dropout=0.5).train()
    nn.init.ones_(made.ffn.down.bias)
    nn.init.zeros_(made.ffn.down.weight)
    nn.init.zeros_(made.attention.output.weight)
    nn.init.zeros_(made.attention.output.bias)
    x = torch.randn(40, 10, 12)
    added = made(x) - x
    assert 0.45 < (added.abs() < 1e-5).float().mean() < 0.55
    torch.testing.assert_close(added[added > 0.5], torch.full_like(added[added > 0.5], 2.0), rtol=0, atol=1e-5)
    torch.testing.assert_close(made.eval()(x), x + 1)


# Of decoders that read a memory


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_a_cross_block_is_torchs_layer(norm_first: bool, activation: str, padded: bool) -> None:
    theirs = nn.TransformerDecoderLayer(
        24, 4, 40, dropout=0.0, activation=activation, batch_first=True, norm_first=norm_first, layer_norm_eps=1e-4
    )
    not_neutral(theirs)
    ours = cross_block(activation, 1e-4, norm_first=norm_first)
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
    made = cross_block(norm_first=norm_first)
    not_neutral(made)
    x, memory = torch.randn(2, 9, 24), torch.randn(2, 5, 24)
    source_real = torch.arange(5) < torch.tensor([[5], [2]])
    whole = made(x, memory, memory_padding=source_real)
    read, cache = made.cross_attention.keys_and_values(memory), LayerCache(2, 4, 6, 9)
    chunks = [made(part, read, memory_padding=source_real, cache=cache) for part in x.split([4, 1, 1, 3], dim=1)]
    torch.testing.assert_close(torch.cat(chunks, 1), whole, rtol=0, atol=2e-6)


@torch.no_grad()
def test_it_sees_no_future_all_of_the_memory_and_no_padding() -> None:
    made = cross_block()
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
    made = cross_block(dropout=0.999)
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
        if options:
            with refused(message):
                EncoderBlock(full, MLP(24, 40), **{"hidden_dim": 24} | options)
