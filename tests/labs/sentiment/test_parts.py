"""The course's layers against its formulas, number by number, and its LayerNorm beside torch's."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from glassformer.labs.sentiment.course import (
    FeedForward,
    LayerNorm,
    PositionalEncoding,
    TokenEmbedding,
    TransformerEmbeddings,
)
from refusals import refused


def test_token_embeddings_are_scaled_rows() -> None:
    layer, tokens = TokenEmbedding(10, 16), torch.tensor([[3, 0], [9, 3]])
    torch.testing.assert_close(layer(tokens), 4 * layer.embedding.weight[tokens])
    assert layer.d_model == 16


def test_positions_are_sines_and_cosines() -> None:
    layer = PositionalEncoding(d_model=6, max_length=40)
    assert layer.pe.shape == (40, 6)
    for position in (0, 1, 17, 39):
        for pair in range(3):
            angle = position / 10000 ** (2 * pair / 6)
            assert layer.pe[position, 2 * pair].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert layer.pe[position, 2 * pair + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)
    x = torch.randn(2, 5, 6)
    torch.testing.assert_close(layer(x), x + layer.pe[:5])
    assert not list(layer.parameters())


def test_embeddings_are_tokens_and_positions_and_dropped_in_training() -> None:
    layer, tokens = TransformerEmbeddings(10, 16, max_length=8, dropout=0.5), torch.randint(10, (2, 8))
    expected = layer.token_embedding(tokens) + layer.pos_encoding.pe
    in_training = layer(tokens)
    kept = in_training != 0
    assert 0.3 < float(kept.float().mean()) < 0.7
    torch.testing.assert_close(in_training[kept], 2 * expected[kept])
    torch.testing.assert_close(layer.eval()(tokens), expected)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=2, max_size=12))
def test_layer_norm_divides_by_the_unbiased_deviation(values: list[float]) -> None:
    layer = LayerNorm(len(values), eps=1e-3)
    mean, deviation = statistics.fmean(values), statistics.stdev(values)
    expected = [(value - mean) / (deviation + 1e-3) for value in values]
    found = layer(torch.tensor(values, dtype=torch.float64))
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(("features", "factor"), [(2, 0.7071), (64, 0.99216), (384, 0.99870)])
def test_layer_norm_is_torchs_times_a_constant_for_inputs_of_ordinary_size(features: int, factor: float) -> None:
    x = torch.randn(100, features) * 5 + 10
    x = x[x.std(-1) > 1]
    ours, theirs = LayerNorm(features)(x), nn.LayerNorm(features)(x)
    torch.testing.assert_close(ours, factor * theirs, atol=1e-4, rtol=1e-4)


def test_layer_norm_keeps_small_deviations_that_torchs_lets_fade() -> None:
    x = torch.randn(64, dtype=torch.float64)
    x = 1e-4 * (x - x.mean()) / x.std(correction=0)
    theirs, ours = (
        layer(x).std(correction=0).item() for layer in (nn.LayerNorm(64, dtype=torch.float64), LayerNorm(64))
    )
    assert theirs == pytest.approx(1e-4 / math.sqrt(1e-8 + 1e-5), rel=1e-6)
    unbiased = 1e-4 * math.sqrt(64 / 63)
    assert ours == pytest.approx(1e-4 / (unbiased + 1e-6), rel=1e-6)


def test_layer_norm_scales_and_shifts() -> None:
    layer, x = LayerNorm(5), torch.randn(3, 5)
    plain = layer(x)
    nn.init.constant_(layer.gamma, 3.0)
    nn.init.constant_(layer.beta, -1.0)
    torch.testing.assert_close(layer(x), 3 * plain - 1)


def test_feed_forward_is_two_layers_with_relu() -> None:
    layer, x = FeedForward(6, 10).eval(), torch.randn(2, 3, 6)
    inside = (x @ layer.linear1.weight.T + layer.linear1.bias).clamp(min=0)
    expected = inside @ layer.linear2.weight.T + layer.linear2.bias
    torch.testing.assert_close(layer(x), expected, atol=1e-6, rtol=1e-5)
    assert sum(weight.numel() for weight in layer.parameters()) == 6 * 10 + 10 + 10 * 6 + 6


@pytest.mark.usefixtures("without_type_checks")
def test_bad_arguments_are_refused() -> None:
    with refused("tokens from 2 to 10"):
        TokenEmbedding(10, 8)(torch.tensor([[2, 10]]))
    with refused("9 positions"):
        TransformerEmbeddings(10, 8, max_length=8)(torch.zeros(1, 9, dtype=torch.long))
    with refused("max_seq_len = 0"):
        PositionalEncoding(8, 0)
    with refused("features = 1"):
        LayerNorm(1)
    with refused("eps = 0"):
        LayerNorm(4, eps=0)
    with refused("ff_dim = 0"):
        FeedForward(4, 0)
