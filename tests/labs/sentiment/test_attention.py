"""The course's attention against the library's, against torch's, and against the formula with the course's mask."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from glassformer.kernels.pattern import FULL, Pattern
from glassformer.labs.sentiment.course import MultiHeadAttention, scaled_dot_product_attention
from glassformer.layers.attention import attend
from glassformer.observe.exact_attention import attention_weights
from refusals import refused


def by_formula(Q: Tensor, K: Tensor, V: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """As the course's hints have it."""
    weights = (Q @ K.transpose(-2, -1) / Q.shape[-1] ** 0.5).masked_fill(mask == 0, -1e9).softmax(-1)
    return weights @ V, weights


@pytest.mark.parametrize("padded", [False, True])
def test_it_is_the_librarys_attention(padded: bool) -> None:
    Q, K, V = torch.randn(3, 2, 4, 6, 8, dtype=torch.float64)
    real = torch.arange(6) < torch.tensor([[6], [4]])
    pattern = Pattern(key_padding=real) if padded else FULL
    output, weights = scaled_dot_product_attention(Q, K, V, real[:, None, None, :] if padded else None)
    torch.testing.assert_close(output, attend(Q, K, V, pattern), atol=1e-12, rtol=0)
    torch.testing.assert_close(weights, attention_weights(Q, K, pattern), atol=1e-12, rtol=0)


@settings(max_examples=50, deadline=None)
@given(
    heads=st.sampled_from([None, 1, 3]),
    queries=st.integers(1, 5),
    keys=st.integers(1, 6),
    mask_axes=st.sets(st.integers(0, 3)),
    leading=st.integers(0, 4),
    as_numbers=st.booleans(),
    seed=st.integers(0, 99),
)
def test_it_is_the_courses_formula_with_any_mask(
    heads: int | None,
    queries: int,
    keys: int,
    mask_axes: set[int],
    leading: int,
    as_numbers: bool,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    lead = (2,) if heads is None else (2, heads)
    Q, K, V = torch.randn(*lead, queries, 4), torch.randn(*lead, keys, 4), torch.randn(*lead, keys, 5)
    shape = (*lead, queries, keys)
    # 1 along some axes, and without some of the leading ones.
    mask_shape = [size if axis in mask_axes else 1 for axis, size in enumerate(shape)][min(leading, len(shape) - 1) :]
    mask = torch.rand(mask_shape) < 0.6
    mask[..., 0] = True  # so that every query sees a key
    output, weights = scaled_dot_product_attention(Q, K, V, mask.int() if as_numbers else mask)
    expected_output, expected_weights = by_formula(Q, K, V, mask)
    torch.testing.assert_close(weights, expected_weights, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(output, expected_output, atol=1e-6, rtol=1e-5)


def test_a_query_that_sees_nothing_gets_zeros() -> None:
    x = torch.randn(1, 3, 4)
    mask = torch.tensor([[1, 1, 1], [0, 0, 0], [1, 0, 0]])
    output, weights = scaled_dot_product_attention(x, x, x, mask)
    assert output[0, 1].abs().max() == weights[0, 1].abs().max() == 0
    torch.testing.assert_close(output[0, 2], x[0, 0])


def test_dropout_drops_weights_in_training_only() -> None:
    x, dropout = torch.randn(1, 6, 4), nn.Dropout(0.5)
    plain, weights = scaled_dot_product_attention(x, x, x)
    many = x.expand(2000, -1, -1)
    dropped = scaled_dot_product_attention(many, many, many, dropout=dropout)[0]
    assert (dropped[0] - plain).abs().max() > 0.01
    torch.testing.assert_close(dropped.mean(0, keepdim=True), plain, atol=0.1, rtol=0)
    torch.testing.assert_close(scaled_dot_product_attention(x, x, x, dropout=dropout)[1], weights)
    torch.testing.assert_close(scaled_dot_product_attention(x, x, x, dropout=dropout.eval())[0], plain)


def copied(layer: MultiHeadAttention) -> nn.MultiheadAttention:
    """Torch's, with the weights of ``layer``."""
    theirs = nn.MultiheadAttention(layer.d_model, layer.num_heads, batch_first=True).eval()
    maps = (layer.W_q, layer.W_k, layer.W_v)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([part.weight for part in maps]))
        theirs.in_proj_bias.copy_(torch.cat([part.bias for part in maps]))
        theirs.out_proj.weight.copy_(layer.W_o.weight)
        theirs.out_proj.bias.copy_(layer.W_o.bias)
    return theirs


@pytest.mark.parametrize("masked", ["nothing", "padding", "future"])
def test_heads_are_torchs_with_the_same_weights(masked: str) -> None:
    layer, x = MultiHeadAttention(24, 4).eval(), torch.randn(3, 7, 24)
    real = torch.arange(7) < torch.tensor([[7], [4], [1]])
    future = torch.ones(7, 7, dtype=torch.bool).tril()
    mask = {"nothing": None, "padding": real[:, None, None, :], "future": future}[masked]
    output, weights = layer(x, mask)
    expected, expected_weights = copied(layer)(
        x,
        x,
        x,
        key_padding_mask=~real if masked == "padding" else None,
        attn_mask=~future if masked == "future" else None,
        average_attn_weights=False,
    )
    torch.testing.assert_close(output, expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(weights, expected_weights, atol=1e-6, rtol=0)


def test_weights_carry_a_gradient() -> None:
    attention = MultiHeadAttention(8, 2)
    attention(torch.randn(1, 5, 8))[1].square().sum().backward()
    assert attention.W_q.weight.grad is not None
    assert attention.W_q.weight.grad.abs().max() > 0


@pytest.mark.usefixtures("without_type_checks")
def test_bad_arguments_are_refused() -> None:
    with refused("d_model = 10 with num_heads = 4"):
        MultiHeadAttention(10, 4)
    with refused("num_heads = 0"):
        MultiHeadAttention(8, 0)
    with refused("numbers other than 0 and 1"):
        scaled_dot_product_attention(*torch.randn(3, 2, 3, 4), torch.zeros(3, 3).fill_diagonal_(-torch.inf))
    with pytest.raises(RuntimeError, match="size of tensor"):
        scaled_dot_product_attention(*torch.randn(3, 2, 3, 4), torch.ones(2, 3))
