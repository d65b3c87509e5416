from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer import kernels
from glassformer.kernels import experts as kernel
from glassformer.kernels.experts import Experts, mix_experts
from glassformer.kernels.options import Clamp


def make(
    experts: int = 6,
    hidden: int = 8,
    ff: int = 12,
    *,
    bias: bool = False,
    clamp: Clamp | None = None,
) -> Experts:
    biases = (torch.randn(experts, width) if bias else None for width in (ff, ff, hidden))
    matrices = (
        torch.randn(experts, *size) / 3 for size in ((ff, hidden), (ff, hidden), (hidden, ff))
    )
    return Experts(*matrices, *biases, clamp)


def choose(tokens: int, experts: int, top_k: int) -> tuple[Tensor, Tensor]:
    indices = torch.rand(tokens, experts).argsort(-1)[:, :top_k]
    weights = torch.randn(tokens, top_k)  # not the router's business here: any weights are summed
    return weights, indices


@pytest.mark.parametrize("clamp", [None, Clamp()])
def test_the_operator_for_compiled_graphs(
    clamp: Clamp | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    experts = make(bias=True, clamp=clamp)
    x, (weights, indices) = torch.randn(5, 8), choose(5, 6, 2)
    alpha, limit = (None, None) if clamp is None else (clamp.alpha, clamp.limit)
    arguments = (x, weights, indices, *experts[:6], alpha, limit)
    torch.library.opcheck(kernel._mix_op, arguments, test_utils=("test_schema", "test_faketensor"))
    expected = kernel.definition(experts, x, weights, indices)
    torch.testing.assert_close(kernel._mix_op(*arguments), expected, rtol=1e-5, atol=1e-5)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with torch.no_grad():
        torch.testing.assert_close(
            mix_experts(experts, x, weights, indices), expected, rtol=1e-5, atol=1e-5
        )


def gradients(
    experts: Experts, x: Tensor, weights: Tensor, indices: Tensor, frozen: int | None = None
) -> list[Tensor]:
    """The output and all gradients, of an expert's part None where it is ``frozen``."""
    leaves = [
        None if each is None else each.detach().clone() for each in (x, weights, *experts[:6])
    ]
    wanted = [
        each.requires_grad_() for i, each in enumerate(leaves) if each is not None and i != frozen
    ]
    out = mix_experts(Experts(*leaves[2:], experts.clamp), leaves[0], leaves[1], indices)
    direction = torch.linspace(-1, 1, out.numel()).view(out.shape).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, wanted, direction)]


@pytest.mark.parametrize("frozen", [None, 0, 2, 4])
@pytest.mark.parametrize("clamp", [None, Clamp(limit=0.5)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("tokens", "top_k"), [(1, 1), (2, 2), (40, 3)])
@pytest.mark.parametrize("onednn", [False, True])
def test_gradients(
    onednn: bool,
    tokens: int,
    top_k: int,
    bias: bool,
    clamp: Clamp | None,
    frozen: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also of experts that no token chose, and where some need none."""
    if onednn:
        monkeypatch.setattr(kernel, "LEAST_WORK", 0)
        monkeypatch.setattr(kernel, "slow_mkl", lambda: True)
    experts = make(bias=bias, clamp=clamp)
    x, (weights, indices) = torch.randn(tokens, 8), choose(tokens, 6, top_k)
    with kernels.plain():
        expected = gradients(experts, x, weights, indices, frozen)
    for got, wanted in zip(gradients(experts, x, weights, indices, frozen), expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("least", [0, 2**40])
@pytest.mark.parametrize("slow", [False, True])
def test_bfloat16_on_both_kinds_of_processor(
    slow: bool, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As near to float32 as the definition in bfloat16 is."""
    monkeypatch.setattr(kernel, "LEAST_WORK", least)
    monkeypatch.setattr(kernel, "slow_bfloat16", lambda: slow)
    experts, (weights, indices) = make(hidden=64, ff=96, bias=True), choose(100, 6, 2)
    x = torch.randn(100, 64)
    low = (
        Experts(*(part.bfloat16() for part in experts[:6])),
        x.bfloat16(),
        weights.bfloat16(),
        indices,
    )
    with kernels.plain():
        exact = gradients(
            Experts(*(part.double() for part in low[0][:6])),
            low[1].double(),
            low[2].double(),
            indices,
        )
        rounded = gradients(*low)
    for got, plain, wanted in zip(gradients(*low), rounded, exact, strict=True):
        assert got.dtype == torch.bfloat16
        limit = 1.5 * float((plain - wanted).square().mean().sqrt())
        assert float((got - wanted).square().mean().sqrt()) <= limit


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("hidden", "ff"), [(8, 12), (16, 16), (6, 12), (8, 10), (1, 1)])
def test_the_grouped_product_of_other_devices(hidden: int, ff: int, dtype: torch.dtype) -> None:
    """Of widths that the grouped kernel takes and of others, with the gradients of the definition."""
    experts, (weights, indices) = make(hidden=hidden, ff=ff, bias=True), choose(40, 6, 3)
    leaves = [
        each.to(dtype).requires_grad_() for each in (torch.randn(40, hidden), weights, *experts[:6])
    ]
    expert, order = indices.flatten().sort(stable=True)
    near = 1e-1 if dtype == torch.bfloat16 else 1e-5
    got, expected = (
        [out, *torch.autograd.grad(out.square().sum(), leaves)]
        for out in (
            kernel._mix_grouped(Experts(*leaves[2:]), *leaves[:2], expert, order, order.argsort()),
            kernel.definition(Experts(*leaves[2:]), *leaves[:2], indices),
        )
    )
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(
            one, other, rtol=near, atol=near * max(1.0, float(other.abs().max()))
        )


@pytest.mark.usefixtures("library")
def test_onednn_gets_multiples_of_64_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    by_onednn = Mock(wraps=F.linear)
    monkeypatch.setattr(kernel, "LEAST_WORK", 0)
    monkeypatch.setattr(kernel, "slow_mkl", lambda: True)
    monkeypatch.setattr(kernel, "by_onednn", by_onednn)
    experts, x, (weights, indices) = make(), torch.randn(300, 8), choose(300, 6, 2)
    expected = kernel.definition(experts, x, weights, indices)
    with torch.device("meta"):  # the default device is not the tensors'
        got = mix_experts(experts, x, weights, indices)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    asked = [call.args[0].shape for call in by_onednn.call_args_list]
    assert len(asked) == 6 * 3
    assert all(rows % 64 == 0 for rows, _ in asked)
    assert sum(rows for rows, width in asked if width == 12) < 600 + 6 * 64
