from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from glassformer.layers import linear as module
from glassformer.layers.linear import Linear, autocast_dtype, linear


@pytest.fixture(autouse=True)
def _small_products_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tested here is oneDNN's path; small products are enough for that."""
    monkeypatch.setattr(module, "_LEAST_WORK", 1)


def both(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[list[Tensor], list[Tensor]]:
    """Output and gradients of ours in float32, and of torch's in float64."""
    results = []
    for function, dtype in ((linear, torch.float32), (F.linear, torch.float64)):
        given = [None if each is None else each.detach().to(dtype).requires_grad_() for each in (x, weight, bias)]
        out = function(*given)
        flow = torch.linspace(-1, 1, out.numel(), dtype=dtype).view(out.shape)
        grads = torch.autograd.grad((out * flow).sum(), [each for each in given if each is not None])
        results.append([out.detach(), *grads])
    return results[0], results[1]


@given(
    st.lists(st.integers(1, 5), max_size=3), st.integers(1, 40), st.integers(1, 40), st.booleans(), st.integers(0, 99)
)
@settings(max_examples=40, deadline=None)
def test_it_is_torchs_forward_and_backward(shape: list[int], width: int, out: int, biased: bool, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    x, weight = torch.randn(*shape, width, generator=draw), torch.randn(out, width, generator=draw)
    bias = torch.randn(out, generator=draw) if biased else None
    ours, exact = both(x, weight, bias)
    for mine, theirs in zip(ours, exact, strict=True):
        assert mine.shape == theirs.shape
        assert (mine - theirs).abs().max() <= 1e-5 * max(1.0, float(theirs.abs().max()))
    with torch.no_grad():
        assert torch.equal(linear(x, weight, bias), ours[0])


def test_tensors_that_do_not_lie_in_order() -> None:
    x, weight = torch.randn(5, 7, 6).transpose(1, 2), torch.randn(7, 9).t()
    ours, exact = both(x, weight, torch.randn(18)[::2])
    for mine, theirs in zip(ours, exact, strict=True):
        torch.testing.assert_close(mine, theirs.float(), rtol=1e-5, atol=1e-5)
    weight = torch.randn(9, 7, requires_grad=True)
    linear(x, weight).sum().backward()  # a gradient of ones that all lie at one place
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, x.sum((0, 1)).expand(9, 7), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("frozen", ["x", "weight", "bias"])
def test_what_needs_no_gradient_gets_none(frozen: str) -> None:
    given = {"x": torch.randn(3, 4), "weight": torch.randn(5, 4), "bias": torch.randn(5)}
    for name, tensor in given.items():
        tensor.requires_grad_(name != frozen)
    linear(**given).square().sum().backward()
    assert [name for name, tensor in given.items() if tensor.grad is None] == [frozen]


def test_small_products_are_torchs_and_large_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    calls: list[int] = []
    onednn = module._onednn
    monkeypatch.setattr(module, "_onednn", lambda x, *rest: calls.append(x.numel()) or onednn(x, *rest))
    for rows, width, out in ((160, 64, 64), (2, 32, 64), (1, 2047, 2048), (1, 2048, 2048), (4096, 32, 32)):
        x, weight = torch.randn(rows, width), torch.randn(out, width)
        torch.testing.assert_close(linear(x, weight), x @ weight.T, rtol=1e-4, atol=1e-3)
        if rows * width * out < 2**22:
            assert torch.equal(linear(x, weight), F.linear(x, weight))
    assert calls == [2048, 4096 * 32]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_are_torchs(dtype: torch.dtype) -> None:
    x, weight = torch.randn(3, 4, dtype=dtype), torch.randn(5, 4, dtype=dtype)
    assert torch.equal(linear(x, weight), F.linear(x, weight))


def test_no_rows_under_autocast_and_without_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = torch.randn(3, 4), torch.randn(5, 4)
    assert linear(x[:0], weight).shape == (0, 5)
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x, weight).dtype == torch.bfloat16
    monkeypatch.setattr(module, "_ONEDNN", None)
    assert torch.equal(linear(x, weight), F.linear(x, weight))


def test_the_layer_is_torchs_with_the_same_weights() -> None:
    torch.manual_seed(0)
    ours = Linear(6, 9)
    torch.manual_seed(0)
    theirs = nn.Linear(6, 9)
    assert all(torch.equal(tensor, theirs.state_dict()[name]) for name, tensor in ours.state_dict().items())
    x = torch.randn(2, 3, 6)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("grad", [False, True])
def test_torch_counts_its_operations(grad: bool) -> None:
    counts = []
    for layer in (Linear(6, 9), nn.Linear(6, 9)):
        x = torch.randn(2, 5, 6, requires_grad=grad)
        with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(grad):
            out = layer(x)
            if grad:
                out.sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] == 2 * 10 * 6 * 9 * (3 if grad else 1)


def test_the_dtype_of_products_is_autocasts_where_that_is_on() -> None:
    x = torch.ones(2, dtype=torch.float64)
    assert autocast_dtype(x) == torch.float64
    with torch.autocast("cpu", torch.bfloat16):
        assert autocast_dtype(x) == torch.mm(torch.ones(1, 1), torch.ones(1, 1)).dtype == torch.bfloat16
        assert autocast_dtype(x.to("meta")) == torch.float64
