"""Attention of the C++ library against its definition."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from glassformer import kernels
from glassformer.kernels import attention as kernel
from glassformer.kernels import attention_native, native
from glassformer.kernels.native import Library
from glassformer.kernels.pattern import Pattern
from torch_settings import threads

random_sizes = settings(
    max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
lengths = st.one_of(st.integers(1, 20), st.sampled_from((47, 48, 49, 96, 97, 150, 300)))
DTYPES = (torch.float32, torch.bfloat16)


@pytest.fixture(autouse=True)
def library_for_short_texts(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    if library.level == 0:
        pytest.skip("without vector instructions PyTorch's kernel runs")
    monkeypatch.setattr(native, "library", lambda: library)
    monkeypatch.setattr(attention_native, "FEW_QUERIES", 1)


def results(
    inputs: list[Tensor], pattern: Pattern, scale: float, sinks: Tensor | None
) -> list[Tensor]:
    leaves = [
        each.clone().requires_grad_() for each in (*inputs, *([] if sinks is None else [sinks]))
    ]
    out = kernel.attention(*leaves[:3], pattern, scale, None if sinks is None else leaves[3])
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(0)).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, leaves, direction)]


def check(inputs: list[Tensor], pattern: Pattern, scale: float, sinks: Tensor | None) -> None:
    with kernels.plain():
        wide = None if sinks is None else sinks.double()
        expected = results([each.double() for each in inputs], pattern, scale, wide)
    queries, width = inputs[0].shape[2:]
    for got, wanted in zip(results(inputs, pattern, scale, sinks), expected, strict=True):
        assert got.shape == wanted.shape
        near = 300 * 2**-24  # 300 roundings of numbers of size 1, for as many terms
        if inputs[0].dtype == torch.bfloat16:
            # Gradients contain the product of the output's gradient and the output, which is
            # rounded: 4 standard deviations of a sum of `width` roundings times a key of at most 4;
            # of a sink, summed over all queries.
            near = 16 * 2**-9 if got.ndim > 1 else 4 * (queries * width) ** 0.5 * 2**-9
        atol = near * max(1.0, float(wanted.abs().max()))
        torch.testing.assert_close(got.double(), wanted, rtol=near, atol=atol)


def draw(batch: int, heads: int, length: int, width: int, split: bool) -> Tensor:
    """As a projection leaves it, position before head, or the other way round."""
    if split:
        return torch.randn(batch, length, heads, width).transpose(1, 2)
    return torch.randn(batch, heads, length, width)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["full", "causal", "window"])
@random_sizes
@given(
    batch=st.integers(1, 2),
    kv_heads=st.integers(1, 2),
    group=st.integers(1, 3),
    queries=lengths,
    earlier=lengths,
    width=st.sampled_from((1, 4, 8, 20, 32, 33, 64)),
    window=st.sampled_from((1, 2, 5, 50, 130)),
    sunk=st.booleans(),
    split=st.booleans(),
)
def test_value_and_gradients(
    kind: str,
    dtype: torch.dtype,
    batch: int,
    kv_heads: int,
    group: int,
    queries: int,
    earlier: int,
    width: int,
    window: int,
    sunk: bool,
    split: bool,
) -> None:
    keys = earlier if kind == "full" else queries + earlier - 1
    inputs = [draw(batch, kv_heads * group, queries, width, split)]
    inputs += [draw(batch, kv_heads, keys, width, split) for _ in range(2)]
    pattern = Pattern(kind != "full", window if kind == "window" else None)
    sinks = torch.randn(kv_heads * group) if sunk else None
    check([each.to(dtype) for each in inputs], pattern, width**-0.5, sinks)


def test_scores_far_apart() -> None:
    """Weights that vanish, and a sink above and below all scores."""
    # whose scores are exact
    inputs = [torch.randint(-6, 7, (1, 2, 60, 8)).float() for _ in range(3)]
    check(inputs, Pattern(True), 1.0, torch.tensor([-1e4, 1e4]))


def test_bfloat16_where_pytorch_multiplies_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's kernel forward, the library's backward."""
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    inputs = [draw(2, heads, 70, 16, True).bfloat16() for heads in (4, 2, 2)]
    check(inputs, Pattern(True), 0.25, torch.randn(4))


def test_the_number_of_threads_changes_no_bit() -> None:
    inputs = [draw(2, heads, 200, 16, True) for heads in (4, 2, 2)]
    found = []
    for number in (1, 3):
        with threads(number):
            found.append(results(inputs, Pattern(True, 70), 0.25, torch.full((4,), 0.5)))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
