"""Measures of attention: against scipy's, in half precision, with positions of their own and
without weight.
"""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.spatial.distance import jensenshannon

from glassformer.observe.attention_measures import distances, divergence, entropy


def random_weights(
    seed: int, heads: int, queries: int, keys: int, causal: bool, sink: bool
) -> np.ndarray:
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
    seed=st.integers(0, 10_000), queries=st.integers(1, 6), causal=st.booleans(), sink=st.booleans()
)
def test_entropy_and_distance_of_weights_that_sum_to_1(
    seed: int, queries: int, causal: bool, sink: bool
) -> None:
    weights = random_weights(seed, 3, queries, queries, causal, sink)
    np.testing.assert_allclose(entropy(weights), stats.entropy(weights, axis=-1), rtol=0, atol=1e-9)
    apart = np.abs(np.arange(queries) - np.arange(queries)[:, None])
    means = np.average(np.broadcast_to(apart, weights.shape), axis=-1, weights=weights)
    np.testing.assert_allclose(distances(weights), means, rtol=0, atol=1e-9)


def test_axes_in_front_and_half_precision() -> None:
    weights = random_weights(0, 6, 5, 5, causal=True, sink=True).reshape(2, 3, 5, 5)
    for measure in (entropy, distances):
        exact = measure(weights)
        assert exact.shape == (2, 3, 5)
        np.testing.assert_allclose(exact, measure(weights.astype(np.float16)), atol=5e-3)
        np.testing.assert_array_equal(exact[1, 2], measure(weights[1, 2]))


def test_the_last_queries_of_a_text_have_their_own_positions() -> None:
    weights = random_weights(1, 2, 9, 9, causal=True, sink=False)
    apart = np.abs(np.arange(9) - np.arange(6, 9)[:, None])
    last = distances(weights[:, 6:], np.arange(6, 9))
    np.testing.assert_allclose(last, (weights[:, 6:] * apart).sum(-1))
    np.testing.assert_allclose(distances(weights)[:, 6:], last)


def test_rows_without_weight_do_not_count() -> None:
    weights = np.array([[[0.5, 0.5], [0.0, 0.0]]])
    np.testing.assert_allclose(entropy(weights), [[math.log(2), np.nan]])
    np.testing.assert_allclose(distances(weights), [[0.5, np.nan]])
    assert np.isnan(divergence(np.zeros((1, 2)), np.zeros((1, 2)))).all()


@given(seed=st.integers(0, 10_000), keys=st.integers(1, 7), sink=st.booleans())
def test_the_divergence_is_jensens_and_shannons(seed: int, keys: int, sink: bool) -> None:
    weights = random_weights(seed, 3, 4, keys, causal=False, sink=sink)
    pairs = np.repeat(weights, 3, axis=0), np.tile(weights, (3, 1, 1))
    found = divergence(*pairs)
    np.testing.assert_array_equal(found[[0, 4, 8]], 0)
    np.testing.assert_array_equal(found, divergence(*pairs[::-1]))
    # rounding may take the root of less than 0
    expected = np.nan_to_num(jensenshannon(*pairs, axis=-1)) ** 2
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)
