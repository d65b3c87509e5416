from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from glassformer.kernels.pattern import CAUSAL, FULL, Pattern
from refusals import refused


def sees(query: int, key: int, queries: int, keys: int, causal: bool, window: int | None) -> bool:
    """The definition, one pair at a time: queries are the last positions of the keys."""
    position = keys - queries + query
    return not (causal and key > position) and not (window is not None and position - key >= window)


@given(
    st.integers(1, 9),
    st.integers(0, 6),
    st.booleans(),
    st.none() | st.integers(1, 12),
    st.integers(0, 2**16),
)
def test_it_is_the_definition(
    queries: int, earlier: int, causal: bool, window: int | None, padding_bits: int
) -> None:
    keys = queries + earlier
    window = window if causal else None
    padding = torch.tensor([[bool(padding_bits >> key & 1) for key in range(keys)], [True] * keys])
    mask = Pattern(causal, window, padding).mask(queries, keys)
    assert mask.shape == (2, 1, queries, keys)
    for query in range(queries):
        for key in range(keys):
            expected = sees(query, key, queries, keys, causal, window)
            assert mask[1, 0, query, key] == expected
            assert mask[0, 0, query, key] == (expected and bool(padding[0, key]))
    assert torch.equal(Pattern(causal, window).mask(queries, keys), mask[1:])


@given(st.integers(1, 9), st.integers(0, 6), st.booleans(), st.none() | st.integers(1, 12))
def test_narrowing_does_not_change_the_mask(
    queries: int, earlier: int, causal: bool, window: int | None
) -> None:
    keys = queries + earlier
    pattern = Pattern(causal, window if causal else None)
    narrow = pattern.narrowed(queries, keys)
    assert torch.equal(narrow.mask(queries, keys), pattern.mask(queries, keys))
    assert narrow.window is None or narrow.window < keys
    assert narrow.causal <= pattern.causal


def test_narrowing_drops_what_has_no_effect() -> None:
    assert Pattern(causal=True, window=5).narrowed(3, 5).window is None
    assert Pattern(causal=True, window=4).narrowed(3, 5).window == 4
    assert not CAUSAL.narrowed(1, 5).causal
    assert CAUSAL.narrowed(2, 5).causal


def test_cross_attention_may_have_more_queries_than_keys() -> None:
    FULL.check(2, 7, 3)
    assert FULL.mask(7, 3).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"causal": True, "window": 0}, "window = 0"),
        ({"causal": True, "window": -3}, "window = -3"),
        ({"window": 4}, "without causal"),
        ({"key_padding": torch.ones(2, 3)}, "dtype torch.float32"),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_impossible_patterns_are_refused(arguments: dict[str, Any], message: str) -> None:
    with refused(message):
        Pattern(**arguments)


@pytest.mark.parametrize("shape", [(3, 5), (2, 4), (2, 6)])
def test_key_padding_must_fit_the_keys(shape: tuple[int, int]) -> None:
    with refused("key_padding of shape", expected=r"\[batch, key\] = \[2, 5\]"):
        Pattern(key_padding=torch.ones(shape, dtype=torch.bool)).check(2, 5, 5)
    Pattern(key_padding=torch.ones(1, 5, dtype=torch.bool)).check(2, 5, 5)
