"""The course's layers under their own names, against the formulas written out."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from glassformer.labs import gpt_oss as lab
from glassformer.layers.positions import RotaryEmbedding
from refusals import refused

CPU = torch.device("cpu")


def rotated(x: Tensor, base: float = 10000.0) -> Tensor:
    """Rotary embedding as multiplication of complex numbers, half-split."""
    half = x.shape[-1] // 2
    angles = torch.outer(torch.arange(x.shape[-2]), base ** (-torch.arange(half) / half))
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], dim=-1)


def by_hand(q: Tensor, k: Tensor, v: Tensor, key_weights: Tensor, scale: float, mask: Tensor) -> Tensor:
    """The course's seven steps, head by head."""
    output = torch.empty_like(q)
    q, k = rotated(q), rotated(k)
    for head in range(q.shape[1]):
        group = head // (q.shape[1] // k.shape[1])
        scores = scale * q[:, head] @ (key_weights[head] * k[:, group]).mT
        output[:, head] = scores.masked_fill(~mask, -math.inf).softmax(-1) @ v[:, group]
    return output


def band(length: int, window_size: int | None = None) -> Tensor:
    distance = torch.arange(length)[:, None] - torch.arange(length)
    return (distance >= 0) & (distance <= (length if window_size is None else window_size))


def inputs(length: int, heads: int = 4, kv_heads: int = 2, head_dim: int = 8) -> tuple[Tensor, ...]:
    make = [torch.randn(2, count, length, head_dim) for count in (heads, kv_heads, kv_heads)]
    return (*make, torch.randn(heads))


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_attention_is_the_courses_formula(kv_heads: int) -> None:
    q, k, v, weights = inputs(7, kv_heads=kv_heads)
    found = lab.calculate_attention(q, k, v, weights, lab.RotaryPositionalEmbedding(8), 0.3, CPU)
    torch.testing.assert_close(found, by_hand(q, k, v, weights, 0.3, band(7)), atol=1e-5, rtol=1e-5)


@settings(max_examples=25, deadline=None)
@given(length=st.integers(1, 9), seed=st.integers(0, 99), additive=st.booleans())
def test_any_mask_is_honoured(length: int, seed: int, additive: bool) -> None:
    torch.manual_seed(seed)
    q, k, v, weights = inputs(length)
    mask = (torch.rand(length, length) < 0.5) | torch.eye(length, dtype=torch.bool)
    given = torch.zeros(length, length).masked_fill(~mask, -math.inf) if additive else mask
    found = lab.calculate_attention(q, k, v, weights, lab.RotaryPositionalEmbedding(8), 0.3, CPU, given)
    torch.testing.assert_close(found, by_hand(q, k, v, weights, 0.3, mask), atol=1e-5, rtol=1e-5)


@settings(max_examples=25, deadline=None)
@given(length=st.integers(1, 12), window_size=st.integers(0, 14))
def test_a_window_sees_the_token_and_as_many_before_it(length: int, window_size: int) -> None:
    q, k, v, weights = inputs(length)
    rope = lab.RotaryPositionalEmbedding(8)
    found = lab.calculate_sliding_attention(q, k, v, weights, rope, 0.3, CPU, window_size)
    torch.testing.assert_close(found, by_hand(q, k, v, weights, 0.3, band(length, window_size)), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("window_size", [None, 2])
def test_attention_layers_project_attend_and_project(window_size: int | None) -> None:
    layer = lab.GroupedQueryAttention(12, 4, 8, 2) if window_size is None else lab.SWAttention(12, 4, 8, window_size)
    torch.nn.init.normal_(layer.key_weights)
    x = torch.randn(2, 6, 12)
    q, k, v = (part(x).unflatten(-1, (-1, 8)).transpose(1, 2) for part in (layer.query, layer.key, layer.value))
    heads = by_hand(q, k, v, layer.key_weights, 8**-0.5, band(6, window_size))
    torch.testing.assert_close(layer(x), layer.output(heads.transpose(1, 2).flatten(2)), atol=1e-5, rtol=1e-5)


def test_key_weights_are_always_learned() -> None:
    layer = lab.GroupedQueryAttention(8, 2, 4)
    layer(torch.randn(1, 5, 8)).square().sum().backward()
    assert layer.key_weights.shape == (2,)
    assert layer.key_weights.grad.abs().min() > 0


def test_feed_forward_is_the_courses_formula() -> None:
    layer, x = lab.SwiGLUFeedForward(6, 10), torch.randn(2, 3, 6)
    first = x @ layer.gate.weight.T
    expected = (first * torch.sigmoid(first) * (x @ layer.up.weight.T)) @ layer.down.weight.T
    torch.testing.assert_close(layer(x), expected)


def test_experts_are_feed_forward_networks_weighted_by_the_router() -> None:
    layer, x = lab.MixtureOfExperts(6, 10, num_experts=5, top_k=2), torch.randn(2, 3, 6)
    weights, chosen = layer.router(x)
    expected = torch.zeros_like(x)
    for place in torch.cartesian_prod(torch.arange(2), torch.arange(3), torch.arange(2)).tolist():
        batch, position, choice = place
        expert = int(chosen[batch, position, choice])
        single = lab.SwiGLUFeedForward(6, 10)
        for name in ("gate", "up", "down"):
            getattr(single, name).weight.data = getattr(layer, name)[expert].data
        expected[batch, position] += weights[batch, position, choice] * single(x)[batch, position]
    torch.testing.assert_close(layer(x), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("part", "arguments"),
    [
        (lab.SwiGLUFeedForward, ["hidden_dim", "inner_dim"]),
        (lab.RotaryPositionalEmbedding, ["head_dim", "max_seq_len", "base"]),
        (lab.GroupedQueryAttention, ["hidden_dim", "num_heads", "head_dim", "num_kv_heads"]),
        (lab.SWAttention, ["hidden_dim", "num_heads", "head_dim", "window_size"]),
        (lab.Router, ["hidden_dim", "num_experts", "top_k"]),
        (lab.MixtureOfExperts, ["hidden_dim", "inner_dim", "num_experts", "top_k"]),
    ],
)
def test_signatures_begin_as_the_courses(part: type, arguments: list[str]) -> None:
    assert list(inspect.signature(part).parameters)[: len(arguments)] == arguments


def test_rotary_tables_are_computed_in_advance_and_change_nothing() -> None:
    short, x = lab.RotaryPositionalEmbedding(8, 4), torch.randn(1, 2, 6, 8)
    assert short.cos.shape == short.sin.shape == (4, 4)
    assert torch.equal(short(x), RotaryEmbedding(8)(x))
    assert torch.equal(short(x[:, :, :2], 2), RotaryEmbedding(8)(x[:, :, :2], 2))
    assert short.state_dict() == {}


def test_bad_arguments_are_refused() -> None:
    q, k, v, weights = inputs(3)
    rope = lab.RotaryPositionalEmbedding(8)
    with refused("window_size = -1"):
        lab.SWAttention(8, 2, 4, -1)
    with refused("window_size = -2"):
        lab.calculate_sliding_attention(q, k, v, weights, rope, 0.3, CPU, -2)
    with refused("device = meta"):
        lab.calculate_attention(q, k, v, weights, rope, 0.3, torch.device("meta"))
    with refused(r"mask of shape \[2, 2\]"):
        lab.calculate_attention(q, k, v, weights, rope, 0.3, CPU, torch.ones(2, 2, dtype=torch.bool))
    with refused(anywhere=r"mask\.bool"):
        lab.calculate_attention(q, k, v, weights, rope, 0.3, CPU, torch.ones(3, 3))
    with refused("num_kv_heads = 3"):
        lab.GroupedQueryAttention(8, 4, 4, 3)
