import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from glassformer.kernels.pattern import Pattern
from glassformer.layers.attention import Attended, attend
from glassformer.observe import exact_attention
from glassformer.observe.cost import peak_bytes
from glassformer.observe.exact_attention import attention_weights, exact_rows, seen_keys
from refusals import refused
from textbook_attention import textbook


@st.composite
def attentions(draw: st.DrawFn) -> Attended:
    """Self- and cross-attention with groups, windows, padding, masks, sinks, and sizes that do not
    divide.
    """
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    batch = draw(st.integers(1, 2))
    kv_heads = draw(st.integers(1, 2))
    group = draw(st.integers(1, 3))
    queries = draw(st.integers(1, 9))
    keys = draw(st.integers(1, 9))
    heads = kv_heads * group
    causal = draw(st.booleans())
    keys = max(keys, queries) if causal else keys
    window = draw(st.none() | st.integers(1, 10)) if causal else None
    padding = torch.rand(batch, keys, generator=generator) < 0.7 if draw(st.booleans()) else None
    mask = None
    kind = draw(st.sampled_from(["none", "boolean", "added"]))
    if kind != "none":
        shape = (
            draw(st.sampled_from([1, batch])),
            draw(st.sampled_from([1, heads])),
            queries,
            keys,
        )
        mask = normal(*shape) if kind == "added" else normal(*shape) < 0.5
    return Attended(
        normal(batch, heads, queries, 4),
        normal(batch, kv_heads, keys, 4),
        normal(batch, kv_heads, keys, 3),
        draw(st.floats(0.1, 2)),
        Pattern(causal, window, padding),
        normal(heads) if draw(st.booleans()) else None,
        normal(heads) if draw(st.booleans()) else None,
        mask,
    )


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_rows_are_those_of_the_textbook(data: st.DataObject) -> None:
    case = data.draw(attentions())
    _, heads, queries, _ = case.q.shape
    some_heads = sorted(data.draw(st.sets(st.integers(0, heads - 1), min_size=1)))
    some_queries = sorted(data.draw(st.sets(st.integers(0, queries - 1), min_size=1)))
    rows = exact_rows(case, some_heads, some_queries, ("weights", "scores", "sinks"))
    first, last = seen_keys(case, some_queries)
    assert rows.first == first
    whole = textbook(case)
    scores, weights, sinks = (each[:, some_heads][:, :, some_queries] for each in whole)
    assert not weights[..., :first].any()
    assert not weights[..., last:].any()
    torch.testing.assert_close(rows.scores.double(), scores[..., first:last], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(rows.weights.double(), weights[..., first:last], rtol=0, atol=1e-6)
    if case.sinks is not None:
        torch.testing.assert_close(rows.sinks.double(), sinks, rtol=0, atol=1e-6)
    if case.mask is None:
        options = {"scale": case.scale, "key_weights": case.key_weights, "sinks": case.sinks}
        found = attention_weights(case.q, case.k, case.pattern, **options)
        torch.testing.assert_close(found.double(), whole[1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("window", [None, 3, 40])
def test_blocks_make_no_difference(window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    q = torch.randn(2, 4, 70, 8)
    k = torch.randn(2, 2, 70, 8)
    v = torch.randn(2, 2, 70, 8)
    given = Attended(q, k, v, 0.3, Pattern(True, window), sinks=torch.randn(4))
    whole = exact_rows(given, range(4), range(70), ("weights",)).weights
    monkeypatch.setattr(exact_attention, "BLOCK_BYTES", 4000)
    parts = exact_rows(given, range(4), range(70), ("weights",)).weights
    torch.testing.assert_close(whole, parts, rtol=0, atol=1e-6)
    out = attend(q, k, v, given.pattern, scale=0.3, sinks=given.sinks)
    torch.testing.assert_close(parts @ v.repeat_interleave(2, 1), out, rtol=1e-5, atol=1e-6)


def test_a_window_holds_only_the_keys_that_are_seen() -> None:
    q = torch.randn(1, 1, 1000, 4)
    given = Attended(q, q, q, 0.5, Pattern(True, 16))
    rows = exact_rows(given, (0,), (500, 501), ("weights",))
    assert (rows.first, rows.weights.shape[3]) == (485, 17)


def test_memory_beside_the_result_is_bounded() -> None:
    q = torch.randn(1, 4, 1024, 16)
    k = torch.randn(1, 2, 1024, 16)
    for pattern in (Pattern(True), Pattern(), Pattern(True, 100, torch.rand(1, 1024) < 0.9)):
        given = Attended(q, k, k, 0.25, pattern)
        for heads, queries in (
            (range(4), range(1024)),
            ((1,), range(1008, 1024)),
            ((0, 3), range(0, 1024, 7)),
        ):
            result = exact_rows(given, heads, queries, ("weights",)).weights
            extra = (
                peak_bytes(lambda: exact_rows(given, heads, queries, ("weights",))) - result.nbytes
            )
            assert extra <= 4 * exact_attention.BLOCK_BYTES


def test_narrow_numbers_are_taken_as_they_are() -> None:
    """Half precision stays what it is until the product, also where autocast would round it again."""
    q = torch.randn(1, 2, 5, 8, dtype=torch.bfloat16)
    given = Attended(q, q, q, 0.3)
    expected = (q.float() @ q.float().mT * 0.3).softmax(-1)
    with torch.autocast("cpu", torch.bfloat16):
        weights = exact_rows(given, (0, 1), range(5), ("weights",)).weights
    assert weights.dtype == torch.float32
    assert (weights - expected).abs().max() <= 1e-6


def test_a_query_that_sees_nothing_has_zeros_and_a_gradient_without_nan() -> None:
    q = torch.randn(2, 1, 3, 4, requires_grad=True)
    k = torch.randn(2, 1, 3, 4)
    real = torch.tensor([[False, False, False], [True, False, True]])
    weights = attention_weights(q, k, Pattern(key_padding=real))
    assert weights[0].abs().max() == 0
    torch.testing.assert_close(weights[1].sum(-1), torch.ones(1, 3))
    weights.square().sum().backward()
    assert bool(q.grad.isfinite().all())
    assert q.grad[1].abs().max() > 0


def test_half_precision_is_widened() -> None:
    q = torch.randn(1, 1, 3, 4).bfloat16()
    k = torch.randn(1, 1, 3, 4).bfloat16()
    found = attention_weights(q, k)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, attention_weights(q.float(), k.float()))


@pytest.mark.usefixtures("without_type_checks")
def test_sizes_that_do_not_fit_are_refused_as_by_the_attention() -> None:
    q = torch.randn(1, 4, 3, 8)
    with refused(expected="head_dim"):
        attention_weights(q, torch.randn(1, 4, 3, 6))
    for name in ("key_weights", "sinks"):
        with refused(rf"{name} of shape \[3\]", expected=r"one number per query head, \[4\]"):
            attention_weights(q, q, **{name: torch.ones(3)})
