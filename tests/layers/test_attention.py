from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from glassformer.errors import InputError
from glassformer.kernels.pattern import CAUSAL, FULL, Pattern
from glassformer.layers.attention import Attended, attend, matrices, watching
from glassformer.observe.cost import peak_bytes
from refusals import refused
from textbook_attention import textbook


@dataclass(frozen=True)
class Case:
    """Inputs of one attention."""

    q: Tensor
    k: Tensor
    v: Tensor
    pattern: Pattern
    options: dict[str, Any]

    def to(self, dtype: torch.dtype) -> "Case":
        options = {
            name: x.to(dtype) if isinstance(x, Tensor) else x for name, x in self.options.items()
        }
        return Case(self.q.to(dtype), self.k.to(dtype), self.v.to(dtype), self.pattern, options)

    def leaves(self) -> dict[str, Tensor]:
        tensors = {"q": self.q, "k": self.k, "v": self.v, **self.options}
        return {name: x.requires_grad_() for name, x in tensors.items() if isinstance(x, Tensor)}

    def attend(self) -> Tensor:
        return attend(self.q, self.k, self.v, self.pattern, **self.options)

    def reference(self) -> Tensor:
        scale = self.q.shape[3] ** -0.5 if self.options["scale"] is None else self.options["scale"]
        given = Attended(
            self.q, self.k, self.v, pattern=self.pattern, **{**self.options, "scale": scale}
        )
        return textbook(given)[1] @ self.v.double().repeat_interleave(given.group, 1)


def make_case(
    *,
    batch: int = 2,
    kv_heads: int = 2,
    groups: int = 2,
    queries: int = 16,
    earlier: int = 0,
    head_dim: int = 8,
    value_dim: int | None = None,
    causal: bool = True,
    window: int | None = None,
    padding: str = "none",
    sinks: bool = False,
    key_weights: bool = False,
    scale: float | None = None,
    seed: int = 0,
) -> Case:
    draw = torch.Generator().manual_seed(seed)
    heads = kv_heads * groups
    keys = queries + earlier

    def split_heads(positions: int, heads: int, width: int) -> Tensor:
        """As a projection leaves them: positions before heads in memory."""
        return torch.randn(
            batch, positions, heads, width, generator=draw, dtype=torch.float64
        ).transpose(1, 2)

    q = split_heads(queries, heads, head_dim)
    k = split_heads(keys, kv_heads, head_dim)
    v = split_heads(keys, kv_heads, value_dim or head_dim)
    real = None
    if padding == "left":
        # up to a row without any key
        first = torch.randint(0, keys + 1, (batch, 1), generator=draw)
        real = torch.arange(keys) >= first
    elif padding == "scattered":
        real = torch.rand(batch, keys, generator=draw) < 0.5
    elif padding == "shared":
        real = torch.rand(1, keys, generator=draw) < 0.7
    options = {
        "sinks": torch.randn(heads, generator=draw, dtype=torch.float64) if sinks else None,
        "key_weights": torch.randn(heads, generator=draw, dtype=torch.float64)
        if key_weights
        else None,
        "scale": scale,
    }
    return Case(q, k, v, Pattern(causal, window if causal else None, real), options)


def cases(scale: st.SearchStrategy[float | None]) -> st.SearchStrategy[Case]:
    """Blocks of a windowed layer are 32 queries or more: lengths around 100 and beyond reach the
    banded computation.
    """
    return st.builds(
        make_case,
        batch=st.integers(1, 3),
        kv_heads=st.integers(1, 3),
        groups=st.integers(1, 3),
        queries=st.integers(1, 12) | st.integers(60, 200),
        earlier=st.just(0) | st.integers(1, 90),
        head_dim=st.sampled_from([1, 5, 8, 16]),
        value_dim=st.none() | st.sampled_from([1, 3, 12]),
        causal=st.booleans(),
        window=st.none() | st.integers(1, 12) | st.integers(13, 150),
        padding=st.sampled_from(["none", "left", "scattered", "shared"]),
        sinks=st.booleans(),
        key_weights=st.booleans(),
        scale=scale,
        seed=st.integers(0, 1000),
    )


# which turn scores round
CASES = cases(st.none() | st.floats(0.05, 1.0) | st.sampled_from([0.0, -1.0]))
# Rounding moves a score by a part of its size, so the bounds below hold for the scores that the
# usual scale gives.
USUAL_CASES = cases(st.none())


@given(CASES)
@settings(max_examples=100, deadline=None)
def test_it_is_the_reference_in_float32(case: Case) -> None:
    case = case.to(torch.float32)
    out = case.attend()
    assert out.dtype == torch.float32
    assert (out - case.reference()).abs().max() <= 1e-5


@given(USUAL_CASES)
@settings(max_examples=40, deadline=None)
def test_it_is_the_reference_in_bfloat16(case: Case) -> None:
    """Against float64 on the same rounded inputs: what remains is rounding of 2 ** -9 in scores,
    weights and output.
    """
    case = case.to(torch.bfloat16)
    out = case.attend()
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), case.reference(), rtol=2e-2, atol=2e-2)


def gradients(out: Tensor, leaves: dict[str, Tensor], upstream: Tensor) -> dict[str, Tensor]:
    grads = torch.autograd.grad(out, list(leaves.values()), upstream.to(out.dtype))
    return dict(zip(leaves, grads, strict=True))


@given(CASES)
@settings(max_examples=40, deadline=None)
def test_its_gradients_are_the_references_in_float64(case: Case) -> None:
    leaves = case.leaves()
    out = case.attend()
    upstream = torch.randn(
        out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    ours = gradients(out, leaves, upstream)
    theirs = gradients(case.reference(), leaves, upstream)
    for name in leaves:
        torch.testing.assert_close(
            ours[name], theirs[name], rtol=1e-9, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}"
        )


@given(USUAL_CASES, st.sampled_from([torch.float32, torch.bfloat16]))
@settings(max_examples=40, deadline=None)
def test_its_gradients_are_the_references_in_lower_precision(
    case: Case, dtype: torch.dtype
) -> None:
    case = case.to(dtype)
    leaves = case.leaves()
    out = case.attend()
    upstream = torch.randn(
        out.shape, dtype=dtype, generator=torch.Generator().manual_seed(0)
    ).double()
    ours = gradients(out, leaves, upstream)
    theirs = gradients(case.reference(), leaves, upstream)
    tolerance = 1e-5 if dtype == torch.float32 else 6e-2
    for name in leaves:
        # One number per head sums over all its queries, and with it their rounding, which is
        # independent.
        terms = case.q.shape[0] * case.q.shape[2] if name in ("sinks", "key_weights") else 1
        allowed = tolerance * max(terms**0.5, theirs[name].abs().max().item())
        assert (ours[name].double() - theirs[name].double()).abs().max() <= allowed, name


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("window", [1, 255, 1024, 1500])
def test_long_windows_in_the_longest_blocks(window: int, sinks: bool) -> None:
    """Blocks of up to 512 queries; lengths that are no multiple of anything."""
    case = make_case(
        batch=1, kv_heads=1, groups=2, queries=3001, head_dim=4, window=window, sinks=sinks
    )
    case = case.to(torch.float32)
    assert (case.attend() - case.reference()).abs().max() <= 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("window", [None, 4])
def test_expanded_and_turned_tensors_are_read_as_they_are(
    dtype: torch.dtype, sinks: bool, window: int | None
) -> None:
    """The CPU's fused kernel takes the numbers of a head to stand side by side."""
    query = torch.randn(3, 4, 10, 8, dtype=dtype)
    value = torch.randn(3, 2, 10, 8, dtype=dtype)
    sink = torch.randn(4, dtype=dtype) if sinks else None
    one = torch.tensor(0.37, dtype=dtype).expand(3, 2, 10, 8)
    turned = value.mT.contiguous().mT
    for three in (
        (query, one, value),
        (query, value, one),
        (query, turned, turned),
        (one.repeat(1, 2, 1, 1), one, one),
    ):
        found, expected = (
            (attend(*leaves, Pattern(causal=True, window=window), sinks=sink), leaves)
            for leaves in (
                [each.detach().requires_grad_() for each in three],
                [
                    each.clone(memory_format=torch.contiguous_format).requires_grad_()
                    for each in three
                ],
            )
        )
        torch.testing.assert_close(found[0], expected[0])
        gradients = [torch.autograd.grad(out.sum(), leaves) for out, leaves in (found, expected)]
        torch.testing.assert_close(*gradients)
        with torch.no_grad():
            torch.testing.assert_close(
                attend(*three, Pattern(causal=True, window=window), sinks=sink), expected[0]
            )


def test_cross_attention_takes_more_queries_than_keys() -> None:
    case = make_case(queries=9, causal=False, sinks=True).to(torch.float32)
    case = Case(case.q, case.k[:, :, :4], case.v[:, :, :4], FULL, case.options)
    assert (case.attend() - case.reference()).abs().max() <= 1e-5


def test_a_far_lower_sink_is_no_sink_and_a_far_higher_one_takes_all() -> None:
    case = make_case(queries=20, sinks=True).to(torch.float32)
    plain = attend(case.q, case.k, case.v, CAUSAL)
    low, high = (
        attend(case.q, case.k, case.v, CAUSAL, sinks=torch.full((4,), s)) for s in (-80.0, 80.0)
    )
    torch.testing.assert_close(low, plain, rtol=0, atol=1e-6)
    assert high.abs().max() < 1e-20


@pytest.mark.parametrize(("window", "sinks"), [(None, False), (None, True), (3, False), (3, True)])
def test_dropout_keeps_the_mean(window: int | None, sinks: bool) -> None:
    draws = 8000
    case = make_case(batch=1, queries=5, head_dim=3, window=window, sinks=sinks).to(torch.float32)
    many = (x.expand(draws, -1, -1, -1) for x in (case.q, case.k, case.v))
    dropped = attend(*many, case.pattern, **case.options, dropout=0.4)
    error = dropped.std(0, correction=1) / draws**0.5
    distance = (dropped.mean(0) - case.attend()[0]).abs()
    assert (distance <= 5 * error + 1e-6).all()
    assert (dropped[0] != dropped[1]).any()


def test_dropout_drops_weights_and_scales_the_rest() -> None:
    """With one key its weight is 1: dropped it gives 0, kept it gives v / (1 - p)."""
    v = torch.randn(1, 1, 1, 4).expand(4000, -1, -1, -1)
    out = attend(torch.ones_like(v), torch.ones_like(v), v, dropout=0.25)
    kept = (out != 0).all(-1).flatten()
    torch.testing.assert_close(out[kept], v[kept] / 0.75)
    assert (out[~kept] == 0).all()
    assert abs(kept.float().mean().item() - 0.75) < 0.04  # 5.8 standard errors


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.usefixtures("fast_forms")
def test_memory_of_a_window_grows_linearly_forward_and_backward(sinks: bool) -> None:
    def run(length: int) -> None:
        q, k, v = (torch.randn(1, heads, length, 4, requires_grad=True) for heads in (2, 1, 1))
        sink = torch.zeros(2, requires_grad=True) if sinks else None
        attend(q, k, v, Pattern(causal=True, window=128), sinks=sink).sum().backward()

    short, long = (peak_bytes(partial(run, length)) for length in (8192, 16384))
    assert short > 4 * 8192 * 8  # the inputs' gradients at least: the count is no empty one
    assert long <= 2.2 * short
    assert long < 4 * 16384**2 / 50


@pytest.mark.parametrize(
    ("shapes", "options", "message"),
    [
        (([2, 4, 5, 8], [2, 3, 5, 8], [2, 3, 5, 8]), {}, "4 query heads and 3 key-value heads"),
        (([2, 4, 5, 8], [2, 4, 5, 6], [2, 4, 5, 6]), {}, r"k \[2, 4, 5, 6\]"),
        (([2, 4, 5, 8], [2, 4, 5, 8], [2, 4, 4, 8]), {}, r"v \[2, 4, 4, 8\]"),
        (([2, 4, 5, 8], [1, 4, 5, 8], [1, 4, 5, 8]), {}, r"k \[1, 4, 5, 8\]"),
        (([4, 5, 8], [4, 5, 8], [4, 5, 8]), {}, r"q \[4, 5, 8\]"),
        (([2, 4, 0, 8], [2, 4, 5, 8], [2, 4, 5, 8]), {}, r"q \[2, 4, 0, 8\]"),
        (([2, 4, 5, 8], [2, 4, 0, 8], [2, 4, 0, 8]), {}, r"k \[2, 4, 0, 8\]"),
        (([2, 4, 6, 8], [2, 4, 5, 8], [2, 4, 5, 8]), {"pattern": CAUSAL}, "6 queries and 5 keys"),
        (
            ([2, 4, 5, 8], [2, 2, 5, 8], [2, 2, 5, 8]),
            {"sinks": torch.zeros(2)},
            r"sinks of shape \[2\]",
        ),
        (
            ([2, 4, 5, 8], [2, 2, 5, 8], [2, 2, 5, 8]),
            {"key_weights": torch.ones(4, 1)},
            "key_weights of shape",
        ),
        (([2, 4, 5, 8], [2, 2, 5, 8], [2, 2, 5, 8]), {"dropout": 1.0}, "dropout = 1.0"),
        (([2, 4, 5, 8], [2, 2, 5, 8], [2, 2, 5, 8]), {"dropout": -0.1}, "dropout = -0.1"),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_bad_input_is_refused(
    shapes: tuple[list[int], ...], options: dict[str, Any], message: str
) -> None:
    with refused(message):
        attend(*(torch.zeros(shape) for shape in shapes), **options)


def test_watchers_hear_what_is_given_and_leave_the_output_alone() -> None:
    q = torch.randn(2, 4, 5, 8)
    k = torch.randn(2, 2, 5, 8)
    v = torch.randn(2, 2, 5, 8)
    options = {"key_weights": torch.rand(4), "sinks": torch.randn(4)}
    plain = attend(q, k, v, CAUSAL, **options)
    heard: list[list[Attended]] = [[], []]
    with watching(heard[0].append):
        assert torch.equal(attend(q, k, v, CAUSAL, **options), plain)
        with pytest.raises(InputError), watching(heard[1].append):
            attend(q[:, :3], k, v, CAUSAL)
        with watching(heard[1].append):
            attend(q, k, v, scale=3.0)
    attend(q, k, v)
    first, second = heard[0]
    assert first.q is q
    assert first.k is k
    assert first.v is v
    assert (first.pattern, first.scale) == (CAUSAL, 8**-0.5)
    assert (first.key_weights is options["key_weights"], first.sinks is options["sinks"]) == (
        True,
        True,
    )
    assert (second.scale, second.key_weights, second.sinks) == (3.0, None, None)
    assert len(heard[1]) == 1


@pytest.mark.parametrize("heads", [1, 4], ids=["for all heads", "for each head"])
@pytest.mark.parametrize("chosen", [(0, 1, 2, 3), (3, 1)])
def test_weights_beside_a_mask_of_numbers(heads: int, chosen: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v, mask = (
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in ((2, 4, 5, 3), (2, 2, 5, 3), (2, 2, 5, 3), (2, heads, 5, 5))
    )
    call = Attended(q, k, v, 0.7, CAUSAL, mask=mask)
    scores = 0.7 * q @ k.repeat_interleave(2, 1).mT + mask
    expected = scores.masked_fill(~CAUSAL.mask(5, 5), -torch.inf).softmax(-1)
    torch.testing.assert_close(
        matrices(call, chosen)[1], expected[:, list(chosen)], rtol=0, atol=1e-12
    )
