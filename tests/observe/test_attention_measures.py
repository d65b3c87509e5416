"""Measures of attention: against loops over queries and keys, at their extremes, and with what must be refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.observe.attention_measures import distances, divergence, entropy, head_measures
from refusals import refused


def random_weights(seed: int, heads: int, queries: int, keys: int, causal: bool, sink: bool) -> np.ndarray:
    """Softmax weights of random scores, where asked for without what lies ahead, or with a sink."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(0, 3, (heads, queries, keys + 1))
    if causal:
        scores[..., :keys][:, ~np.tri(queries, keys, dtype=bool)] = -np.inf
    if not sink:
        scores[..., keys] = -np.inf
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return (powers / powers.sum(-1, keepdims=True))[..., :keys]


@given(
    seed=st.integers(0, 10_000),
    heads=st.integers(1, 3),
    queries=st.integers(1, 6),
    causal=st.booleans(),
    sink=st.booleans(),
)
def test_every_measure_is_the_mean_of_a_loop(seed: int, heads: int, queries: int, causal: bool, sink: bool) -> None:
    weights = random_weights(seed, heads, queries, queries, causal, sink)
    visible = np.tri(queries, dtype=bool) if causal else np.ones((queries, queries), dtype=bool)
    found = head_measures(weights, visible=visible if causal else None)
    for head in range(heads):
        entropies, shares, reached, previous, sinks = [], [], [], [], []
        for query in range(queries):
            row = [float(weights[head, query, key]) for key in range(queries)]
            p = [weight / sum(row) for weight in row]
            entropies.append(-sum(each * math.log(each) for each in p if each > 0))
            if visible[query].sum() > 1:
                shares.append(entropies[-1] / math.log(visible[query].sum()))
            reached.append(sum(each * abs(key - query) for key, each in enumerate(p)))
            if query > 0:
                previous.append(row[query - 1])
            sinks.append(1 - sum(row))
        assert found.entropy[head] == pytest.approx(np.mean(entropies), abs=1e-9)
        assert found.distance[head] == pytest.approx(np.mean(reached), abs=1e-9)
        assert found.first[head] == pytest.approx(weights[head, :, 0].mean())
        assert found.itself[head] == pytest.approx(np.trace(weights[head]) / queries)
        assert found.sink[head] == pytest.approx(np.mean(sinks), abs=1e-9)
        for value, rows in ((found.entropy_share[head], shares), (found.previous[head], previous)):
            assert value == pytest.approx(np.mean(rows), abs=1e-9) if rows else np.isnan(value)


def test_heads_of_known_shape() -> None:
    size = 8
    same = np.full((size, size), 1 / size)
    diagonal = np.eye(size)
    before = np.eye(size, k=-1)
    before[0, 0] = 1
    causal = np.tri(size) / np.arange(1, size + 1)[:, None]
    found = head_measures(np.stack([same, diagonal, before]))
    assert found.entropy == pytest.approx([math.log(size), 0, 0], abs=1e-12)
    assert found.entropy_share == pytest.approx([1, 0, 0], abs=1e-12)
    assert found.distance == pytest.approx([(size**2 - 1) / (3 * size), 0, (size - 1) / size])
    assert found.itself == pytest.approx([1 / size, 1, 1 / size])
    assert found.previous == pytest.approx([1 / size, 0, 1])
    assert found.first == pytest.approx([1 / size, 1 / size, 2 / size])
    assert found.sink == pytest.approx([0, 0, 0], abs=1e-12)
    # A head that spreads over all it may see has the largest share there is.
    assert head_measures(causal[None], visible=np.tri(size, dtype=bool)).entropy_share == pytest.approx([1])


def test_axes_in_front_and_half_precision() -> None:
    weights = random_weights(0, 6, 5, 5, causal=True, sink=True).reshape(2, 3, 5, 5)
    whole, half = (head_measures(each) for each in (weights, weights.astype(np.float16)))
    for field in fields(whole):
        exact, rounded = getattr(whole, field.name), getattr(half, field.name)
        assert exact.shape == (2, 3)
        np.testing.assert_allclose(exact, rounded, atol=5e-3)
        assert exact[1, 2] == pytest.approx(getattr(head_measures(weights[1, 2]), field.name))


def test_the_last_queries_of_a_text_have_their_own_positions() -> None:
    weights = random_weights(1, 2, 9, 9, causal=True, sink=False)
    last = head_measures(weights[:, 6:], positions=np.arange(6, 9))
    by_hand = [[row[p] for p, row in zip(range(6, 9), head[6:], strict=True)] for head in weights]
    assert last.itself == pytest.approx(np.mean(by_hand, axis=1))
    apart = np.abs(np.arange(9) - np.arange(6, 9)[:, None])
    assert last.distance == pytest.approx((weights[:, 6:] * apart).sum(-1).mean(-1))
    np.testing.assert_allclose(distances(weights)[:, 6:], distances(weights[:, 6:], np.arange(6, 9)))


def test_rows_without_weight_do_not_count() -> None:
    weights = np.array([[[0.5, 0.5], [0.0, 0.0]]])
    found = head_measures(weights)
    assert found.entropy == pytest.approx([math.log(2)])
    assert found.distance == pytest.approx([0.5])
    assert found.sink == pytest.approx([0.5])
    assert np.isnan(entropy(np.zeros((2, 3)))).all()
    assert np.isnan(head_measures(np.zeros((1, 2, 2))).entropy).all()
    assert np.isnan(divergence(np.zeros((1, 2)), np.zeros((1, 2)))).all()


@given(seed=st.integers(0, 10_000), keys=st.integers(1, 7), sink=st.booleans())
def test_the_divergence_is_the_mean_of_two_from_the_mixture(seed: int, keys: int, sink: bool) -> None:
    weights = random_weights(seed, 3, 4, keys, causal=False, sink=sink)
    pairs = np.repeat(weights, 3, axis=0), np.tile(weights, (3, 1, 1))
    found = divergence(*pairs).mean(-1).reshape(3, 3)
    np.testing.assert_array_equal(found, found.T)
    np.testing.assert_array_equal(np.diag(found), 0)
    for one in range(3):
        for other in range(3):
            rows = []
            for query in range(4):
                p, q = (weights[head, query] / weights[head, query].sum() for head in (one, other))
                rows.append(
                    sum(x * math.log(2 * x / (a + b)) / 2 for a, b in zip(p, q, strict=True) for x in (a, b) if x > 0)
                )
            assert found[one, other] == pytest.approx(np.mean(rows), abs=1e-9)


def test_heads_without_a_common_key_are_ln_2_apart() -> None:
    apart = divergence(np.array([[0.5, 0.5, 0.0], [0.2, 0.2, 0.0]]), np.array([[0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]))
    assert apart == pytest.approx([math.log(2)] * 2)


@pytest.mark.usefixtures("without_type_checks")
def test_what_is_no_attention_is_refused() -> None:
    square = np.full((1, 2, 2), 0.5)
    attempts: list[tuple[Callable[[], object], str]] = [
        (lambda: head_measures(-square), "least weight of -0.5"),
        (lambda: head_measures(square * np.nan), "nan"),
        (lambda: head_measures(2 * square), "a row that sums to 2"),
        (lambda: head_measures(square[:, :1]), "1 queries and 2 keys without positions"),
        (lambda: head_measures(square[:, :1], positions=np.array([2])), r"positions = \[2\]"),
        (lambda: head_measures(square, positions=np.array([0])), r"positions = \[0\]"),
        (lambda: head_measures(square[:, :0]), r"weights of shape \[1, 0, 2\]"),
        (lambda: head_measures(square, visible=np.tri(2, dtype=bool)), "0.5 on a key that is not visible"),
    ]
    for attempt, message in attempts:
        with refused(message):
            attempt()
