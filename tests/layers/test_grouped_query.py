from typing import Any

import pytest
import torch
from torch import Tensor, nn

from glassformer.layers.cache import LayerCache
from glassformer.layers.grouped_query import GroupedQueryAttention
from glassformer.layers.positions import RotaryEmbedding
from refusals import refused


def torchs(ours: GroupedQueryAttention) -> nn.MultiheadAttention:
    """PyTorch's multi-head attention with the same weights; shared key-value heads are written out
    once per head.
    """
    width = ours.query.in_features
    groups = ours.num_heads // ours.num_kv_heads
    theirs = nn.MultiheadAttention(
        width, ours.num_heads, bias=ours.query.bias is not None, batch_first=True
    )

    def per_head(rows: Tensor) -> Tensor:
        return (
            rows.unflatten(0, (ours.num_kv_heads, ours.head_dim))
            .repeat_interleave(groups, 0)
            .flatten(0, 1)
        )

    with torch.no_grad():
        maps = [ours.query, ours.key, ours.value]
        theirs.in_proj_weight.copy_(
            torch.cat([maps[0].weight, *(per_head(m.weight) for m in maps[1:])])
        )
        theirs.out_proj.weight.copy_(ours.output.weight)
        if ours.query.bias is not None:
            theirs.in_proj_bias.copy_(
                torch.cat([maps[0].bias, *(per_head(m.bias) for m in maps[1:])])
            )
            theirs.out_proj.bias.copy_(ours.output.bias)
    return theirs


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("num_kv_heads", [None, 1, 2])
def test_it_is_torchs_multi_head_attention(
    num_kv_heads: int | None, causal: bool, bias: bool, padded: bool
) -> None:
    ours = GroupedQueryAttention(24, 4, 6, num_kv_heads, causal=causal, bias=bias)
    x = torch.randn(3, 10, 24, requires_grad=True)
    real = torch.arange(10) < torch.tensor([[10], [7], [1]]) if padded else None
    hidden = torch.ones(10, 10, dtype=torch.bool).triu(1) if causal else None
    expected, _ = torchs(ours)(
        x, x, x, key_padding_mask=None if real is None else ~real, attn_mask=hidden
    )
    found = ours(x, key_padding=real)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    upstream = torch.randn_like(expected)
    grads = (torch.autograd.grad(out, x, upstream)[0] for out in (found, expected))
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-6)


def test_keys_and_values_of_a_source_serve_again_and_again() -> None:
    attention = GroupedQueryAttention(24, 4, 6, 2, causal=False, bias=True)
    source = torch.randn(3, 7, 24)
    real = torch.arange(7) < torch.tensor([[7], [1], [4]])
    read = attention.keys_and_values(source)
    assert [list(each.shape) for each in read] == [[3, 2, 7, 6]] * 2
    for length in (1, 5):
        x = torch.randn(3, length, 24)
        assert torch.equal(
            attention(x, read, key_padding=real), attention(x, source, key_padding=real)
        )


def test_heads_need_not_fill_the_width() -> None:
    attention = GroupedQueryAttention(10, 3, 8, 1)
    assert attention(torch.randn(2, 5, 10)).shape == (2, 5, 10)
    assert attention.query.weight.shape == (24, 10)
    assert attention.key.weight.shape == (8, 10)


def test_key_weights_and_sinks_start_neutral_and_are_learned() -> None:
    plain = GroupedQueryAttention(12, 2, 6)
    weighted = GroupedQueryAttention(12, 2, 6, key_weights=True)
    weighted.load_state_dict(plain.state_dict(), strict=False)
    x = torch.randn(2, 7, 12)
    torch.testing.assert_close(weighted(x), plain(x))
    with_sinks = GroupedQueryAttention(12, 2, 6, key_weights=True, sinks=True)
    with_sinks(x).square().sum().backward()
    for name in ("key_weights", "sinks"):
        grad = getattr(with_sinks, name).grad
        assert grad.shape == (2,)
        assert (grad != 0).all()
    assert torch.equal(with_sinks.sinks, torch.zeros(2))


def test_a_weight_of_zero_attends_evenly() -> None:
    attention = GroupedQueryAttention(12, 2, 6, key_weights=True)
    nn.init.zeros_(attention.key_weights)
    x = torch.randn(1, 7, 12)
    mean_so_far = attention.value(x).cumsum(1) / torch.arange(1, 8)[:, None]
    torch.testing.assert_close(attention(x), attention.output(mean_so_far), rtol=1e-5, atol=1e-6)


def test_dropout_acts_in_training_only() -> None:
    attention = GroupedQueryAttention(12, 2, 6, dropout=0.5)
    x = torch.randn(1, 7, 12)
    assert not torch.equal(attention(x), attention(x))
    attention.eval()
    assert torch.equal(attention(x), attention(x))


def test_the_layout_is_that_of_the_rotation() -> None:
    """The same layer in both layouts differs: the option reaches the rotation."""
    half, inter = (
        GroupedQueryAttention(16, 2, 8, layout=layout) for layout in ("half-split", "interleaved")
    )
    inter.load_state_dict(half.state_dict())
    x = torch.randn(1, 6, 16)
    rotation = RotaryEmbedding(8).rotation(6)
    torch.testing.assert_close(half(x), inter(x))
    assert (half(x, rotation=rotation) - inter(x, rotation=rotation)).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_kv_heads": 3}, "num_kv_heads = 3 with num_heads = 4"),
        ({"num_kv_heads": 0}, "num_kv_heads = 0"),
        ({"num_heads": 0}, "num_heads = 0"),
        ({"head_dim": -2}, "head_dim = -2"),
        ({"hidden_dim": 0}, "hidden_dim = 0"),
        ({"dropout": 1.5}, "dropout = 1.5"),
    ],
)
def test_impossible_sizes_are_refused(arguments: dict[str, Any], message: str) -> None:
    with refused(message):
        GroupedQueryAttention(**{"hidden_dim": 24, "num_heads": 4, "head_dim": 6} | arguments)


def test_a_source_takes_neither_rotation_nor_cache() -> None:
    attention = GroupedQueryAttention(24, 4, 6, causal=False)
    x = torch.randn(1, 3, 24)
    with refused("a source with a rotation or a cache"):
        attention(x, x, cache=LayerCache(1, 4, 6, 8))
    with refused("a source with a rotation or a cache"):
        attention(x, x, rotation=RotaryEmbedding(6).rotation(3))
