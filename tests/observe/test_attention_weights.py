"""Attention weights against a loop over heads, queries and keys, and against the output they must explain."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from glassformer.kernels.attention import weights_of_scores
from glassformer.kernels.pattern import CAUSAL, Pattern
from glassformer.layers.attention import attend
from glassformer.observe.exact_attention import attention_weights
from refusals import refused


def by_loop(q: Tensor, k: Tensor, allowed: Tensor, scale: float) -> Tensor:
    weights = torch.zeros(*q.shape[:3], k.shape[2])
    groups = q.shape[1] // k.shape[1]
    for b, h, i in torch.cartesian_prod(*(torch.arange(size) for size in q.shape[:3])).tolist():
        seen = [j for j in range(k.shape[2]) if allowed[b, i, j]]
        terms = [math.exp(scale * float(q[b, h, i].dot(k[b, h // groups, j]))) for j in seen]
        for j, term in zip(seen, terms, strict=True):
            weights[b, h, i, j] = term / sum(terms)
    return weights


@settings(max_examples=30, deadline=None)
@given(
    length=st.integers(1, 6),
    groups=st.integers(1, 3),
    causal=st.booleans(),
    window=st.integers(0, 4),
    padded=st.booleans(),
    seed=st.integers(0, 99),
)
def test_weights_are_the_softmax_over_what_the_pattern_allows(
    length: int, groups: int, causal: bool, window: int, padded: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    q, k = torch.randn(2, 2 * groups, length, 4), torch.randn(2, 2, length, 4)
    padding = torch.rand(2, length) < 0.6 if padded else None
    used = window if causal and window else None
    allowed = torch.ones(2, length, length, dtype=torch.bool)
    for b, i, j in torch.cartesian_prod(torch.arange(2), torch.arange(length), torch.arange(length)).tolist():
        hidden = (causal and j > i) or (used is not None and j <= i - used)
        allowed[b, i, j] = not hidden and (padding is None or bool(padding[b, j]))
    found = attention_weights(q, k, Pattern(causal, used, padding), scale=0.7)
    torch.testing.assert_close(found, by_loop(q, k, allowed, 0.7), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("pattern", [Pattern(), CAUSAL, Pattern(causal=True, window=3)])
def test_they_mix_the_values_as_the_attention_does(pattern: Pattern) -> None:
    q, k, v = torch.randn(2, 6, 9, 8), torch.randn(2, 3, 9, 8), torch.randn(2, 3, 9, 8)
    mixed = attention_weights(q, k, pattern) @ v.repeat_interleave(2, dim=1)
    torch.testing.assert_close(mixed, attend(q, k, v, pattern), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("pattern", [Pattern(), CAUSAL, Pattern(causal=True, window=3)])
@pytest.mark.parametrize("sunk", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_key_weights_and_sinks_are_those_of_the_attention(weighted: bool, sunk: bool, pattern: Pattern) -> None:
    q, k, v = torch.randn(2, 6, 9, 8), torch.randn(2, 3, 9, 8), torch.randn(2, 3, 9, 8)
    padded = Pattern(pattern.causal, pattern.window, torch.arange(9) >= torch.tensor([[2], [0]]))
    options = {"key_weights": torch.randn(6) if weighted else None, "sinks": torch.randn(6) if sunk else None}
    for each in (pattern, padded):
        weights = attention_weights(q, k, each, scale=0.5, **options)
        mixed = weights @ v.repeat_interleave(2, dim=1)
        torch.testing.assert_close(mixed, attend(q, k, v, each, scale=0.5, **options), atol=1e-6, rtol=1e-5)
        assert sunk or ((weights.sum(-1) - 1).abs() < 1e-5).logical_or(weights.sum(-1) == 0).all()


def test_a_sink_by_hand() -> None:
    q, k = torch.tensor([[[[2.0]]]]), torch.tensor([[[[1.0], [3.0]]]])
    found = attention_weights(q, k, scale=0.5, key_weights=torch.tensor([2.0]), sinks=torch.tensor([1.0]))
    terms = [math.exp(2.0), math.exp(6.0)]
    expected = torch.tensor([term / (math.exp(1.0) + sum(terms)) for term in terms])
    torch.testing.assert_close(found[0, 0, 0], expected)


def test_a_query_that_sees_nothing_has_zeros_and_a_gradient_without_nan() -> None:
    q, k = torch.randn(2, 1, 3, 4, requires_grad=True), torch.randn(2, 1, 3, 4)
    real = torch.tensor([[False, False, False], [True, False, True]])
    weights = attention_weights(q, k, Pattern(key_padding=real))
    assert weights[0].abs().max() == 0
    torch.testing.assert_close(weights[1].sum(-1), torch.ones(1, 3))
    weights.square().sum().backward()
    assert q.grad is not None
    assert bool(q.grad.isfinite().all())
    assert q.grad[1].abs().max() > 0


def test_half_precision_is_widened() -> None:
    q, k = torch.randn(1, 1, 3, 4).bfloat16(), torch.randn(1, 1, 3, 4).bfloat16()
    found = attention_weights(q, k)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, attention_weights(q.float(), k.float()))


@pytest.mark.usefixtures("without_type_checks")
def test_sizes_that_do_not_fit_are_refused() -> None:
    q = torch.randn(1, 4, 3, 8)
    with refused(expected="head_dim"):
        attention_weights(q, torch.randn(1, 4, 3, 6))
    with refused(fix="Split heads"):
        attention_weights(q[0], q[0])
    with refused(expected="divide the query heads"):
        attention_weights(q, torch.randn(1, 3, 3, 8))
    for name in ("key_weights", "sinks"):
        with refused(rf"{name} of shape \[3\]", expected=r"one number per query head, \[4\]"):
            attention_weights(q, q, **{name: torch.ones(3)})
    with refused("key_padding of shape"):
        attention_weights(q, q, Pattern(key_padding=torch.ones(1, 5, dtype=torch.bool)))


def test_the_softmax_of_scores_is_over_what_is_allowed() -> None:
    scores = torch.tensor([[0.0, 1.0, 5.0], [2.0, 2.0, 2.0]], dtype=torch.float64)
    allowed = torch.tensor([[True, True, False], [False, False, False]])
    share = 1 / (1 + math.e)
    expected = torch.tensor([[share, 1 - share, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(weights_of_scores(scores, allowed), expected, atol=1e-15, rtol=0)
