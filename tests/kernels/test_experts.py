from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.kernels import experts as kernel
from glassformer.kernels.experts import Experts, mix_experts
from glassformer.kernels.options import Clamp


def make(experts: int = 6, hidden: int = 8, ff: int = 12, *, bias: bool = False, clamp: Clamp | None = None) -> Experts:
    biases = (torch.randn(experts, width) if bias else None for width in (ff, ff, hidden))
    matrices = (torch.randn(experts, *size) / 3 for size in ((ff, hidden), (ff, hidden), (hidden, ff)))
    return Experts(*matrices, *biases, clamp)


def choose(tokens: int, experts: int, top_k: int) -> tuple[Tensor, Tensor]:
    indices = torch.rand(tokens, experts).argsort(-1)[:, :top_k]
    weights = torch.randn(tokens, top_k)  # not the router's business here: any weights are summed
    return weights, indices


def definition(experts: Experts, x: Tensor, weights: Tensor, indices: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for token in range(len(x)):
        for weight, e in zip(weights[token], indices[token].tolist(), strict=True):
            gate, up, down, *biases = (None if part is None else part[e] for part in experts[:6])
            a, b = F.linear(x[token], gate, biases[0]), F.linear(x[token], up, biases[1])
            if experts.clamp is None:
                inside = F.silu(a) * b
            else:
                alpha, limit = experts.clamp.alpha, experts.clamp.limit
                a, b = a.clamp(max=limit), b.clamp(-limit, limit)
                inside = a * torch.sigmoid(alpha * a) * (b + 1)
            out[token] += weight * F.linear(inside, down, biases[2])
    return out


@pytest.mark.parametrize("clamp", [None, Clamp(limit=0.5)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("tokens", "top_k"), [(1, 1), (1, 6), (2, 2), (3, 2), (40, 3)])
def test_few_tokens_and_many_are_mixed_alike(tokens: int, top_k: int, bias: bool, clamp: Clamp | None) -> None:
    """Without gradients a single token visits its experts one by one; otherwise all run in a grouped product."""
    experts = make(bias=bias, clamp=clamp)
    x, (weights, indices) = torch.randn(tokens, 8), choose(tokens, 6, top_k)
    expected = definition(experts, x, weights, indices)
    torch.testing.assert_close(mix_experts(experts, x, weights, indices), expected, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(mix_experts(experts, x, weights, indices), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("hidden", "ff"), [(6, 12), (8, 10), (1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_widths_that_the_grouped_kernel_does_not_take(hidden: int, ff: int, dtype: torch.dtype) -> None:
    experts = make(hidden=hidden, ff=ff)
    x, (weights, indices) = torch.randn(20, hidden), choose(20, 6, 2)
    low = Experts(*(part.to(dtype) for part in experts[:3]))
    out = mix_experts(low, x.to(dtype), weights.to(dtype), indices)
    tolerance = 1e-1 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(out.float(), definition(experts, x, weights, indices), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("clamp", [None, Clamp()])
def test_what_a_compiler_sees_is_the_same(clamp: Clamp | None, monkeypatch: pytest.MonkeyPatch) -> None:
    experts = make(bias=True, clamp=clamp)
    x, (weights, indices) = torch.randn(5, 8), choose(5, 6, 2)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with torch.no_grad():
        out = mix_experts(experts, x, weights, indices)
    torch.testing.assert_close(out, definition(experts, x, weights, indices), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("clamp", [None, Clamp()])
def test_the_operator_for_compiled_graphs(clamp: Clamp | None) -> None:
    experts = make(bias=True, clamp=clamp)
    x, (weights, indices) = torch.randn(5, 8), choose(5, 6, 2)
    alpha, limit = (None, None) if clamp is None else (clamp.alpha, clamp.limit)
    arguments = (x, weights, indices, *experts[:6], alpha, limit)
    torch.library.opcheck(kernel._mix_op, arguments, test_utils=("test_schema", "test_faketensor"))
    expected = definition(experts, x, weights, indices)
    torch.testing.assert_close(kernel._mix_op(*arguments), expected, rtol=1e-5, atol=1e-5)
