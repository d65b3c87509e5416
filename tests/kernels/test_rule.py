"""Which tensors and settings the fast forms leave to their definitions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from glassformer import kernels
from glassformer.kernels.attention import attention
from glassformer.kernels.linear import linear
from glassformer.kernels.pattern import Pattern
from glassformer.kernels.rms_norm import rms_norm
from glassformer.kernels.rotation import rotate
from glassformer.kernels.swiglu import swiglu

pytestmark = pytest.mark.usefixtures("library")
ANGLES = torch.arange(64.0).outer(torch.arange(32.0))
OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: linear(x.flatten(0, 2)[:2], torch.ones(2**13, 64)),
    "rms_norm": lambda x: rms_norm(x, torch.ones(64), 1e-5),
    "swiglu": lambda x: swiglu(x, x),
    "rotate": lambda x: rotate(x, (ANGLES.cos(), ANGLES.sin())),
    "attention": lambda x: attention(x, x, x, Pattern(causal=True), 0.125),
}
every_operation = pytest.mark.parametrize("name", OPERATIONS)


def by_definition(name: str, x: Tensor) -> Tensor:
    with kernels.plain():
        return OPERATIONS[name](x)


@every_operation
def test_negative_views(name: str) -> None:
    x = torch._neg_view(torch.randn(2, 2, 64, 64))
    torch.testing.assert_close(OPERATIONS[name](x), by_definition(name, x), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name != "attention"])
@pytest.mark.filterwarnings("ignore:Converting a tensor", "ignore:`torch.jit.trace` is deprecated", "ignore:Iterating")
def test_traces(name: str) -> None:
    example, x = torch.randn(2, 2, 2, 64, 64)
    traced = torch.jit.trace(OPERATIONS[name], example, check_trace=False)
    torch.testing.assert_close(traced(x), by_definition(name, x), rtol=1e-5, atol=1e-4)
