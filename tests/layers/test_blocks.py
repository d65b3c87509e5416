import torch
from torch import nn

from glassformer.layers.blocks import Block, CrossBlock, EncoderBlock
from glassformer.layers.feedforward import MLP, SwiGLU
from glassformer.layers.grouped_query import GroupedQueryAttention
from glassformer.layers.positions import RotaryEmbedding
from refusals import refused


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


def test_norms_stand_after_the_parts_by_default() -> None:
    attention = GroupedQueryAttention(8, 2, 4, causal=False)
    assert not EncoderBlock(attention, MLP(8, 8), 8).norm_first
    assert not CrossBlock(GroupedQueryAttention(8, 2, 4), attention, MLP(8, 8), 8).norm_first


def test_dropout_takes_from_what_is_added() -> None:
    attention = GroupedQueryAttention(12, 2, 6, causal=False, bias=True)
    made = EncoderBlock(attention, MLP(12, 20), 12, norm_first=True, dropout=0.5).train()
    nn.init.ones_(made.ffn.down.bias)
    nn.init.zeros_(made.ffn.down.weight)
    nn.init.zeros_(made.attention.output.weight)
    nn.init.zeros_(made.attention.output.bias)
    x = torch.randn(40, 10, 12)
    added = made(x) - x
    assert 0.45 < (added.abs() < 1e-5).float().mean() < 0.55
    torch.testing.assert_close(added[added > 0.5], torch.full_like(added[added > 0.5], 2.0), rtol=0, atol=1e-5)
    torch.testing.assert_close(made.eval()(x), x + 1)


def test_dropout_is_for_training_on_all_three_sums() -> None:
    attentions = [GroupedQueryAttention(24, 4, 6, causal=causal, bias=True) for causal in (True, False)]
    made = CrossBlock(*attentions, MLP(24, 40), 24, dropout=0.999)
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
