"""Which tensors and settings the fast forms leave to their definitions."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from glassformer import kernels
from glassformer.kernels.attention import attention
from glassformer.kernels.cross_entropy import cross_entropy
from glassformer.kernels.linear import linear
from glassformer.kernels.native import Library
from glassformer.kernels.pattern import Pattern
from glassformer.kernels.rms_norm import rms_norm
from glassformer.kernels.rotation import rotate
from glassformer.kernels.swiglu import swiglu
from torch_settings import defaults

pytestmark = pytest.mark.usefixtures("library")
GAIN = torch.ones(64)
WEIGHT = torch.ones(2**13, 64)
ANGLES = torch.arange(64.0).outer(torch.arange(32.0))
TURN = ANGLES.cos(), ANGLES.sin()
OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: linear(x.flatten(0, 2)[:2], WEIGHT),
    "rms_norm": lambda x: rms_norm(x, GAIN, 1e-5),
    "swiglu": lambda x: swiglu(x, x),
    "rotate": lambda x: rotate(x, TURN),
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
@pytest.mark.filterwarnings(
    "ignore:Converting a tensor", "ignore:`torch.jit.trace` is deprecated", "ignore:Iterating"
)
def test_traces(name: str) -> None:
    example, x = torch.randn(2, 2, 2, 64, 64)
    traced = torch.jit.trace(OPERATIONS[name], example, check_trace=False)
    torch.testing.assert_close(traced(x), by_definition(name, x), rtol=1e-5, atol=1e-4)


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_weights() -> None:
    x = torch.randn(2, 600)
    torch.testing.assert_close(linear(x, torch.eye(600).to_sparse_csr()), x)


@every_operation
@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
def test_default_dtype_and_device(name: str, default: torch.dtype) -> None:
    x = torch.randn(2, 2, 64, 64, requires_grad=True)
    expected = OPERATIONS[name](x)
    gradient = torch.autograd.grad(expected.sum(), x)[0]
    with defaults(default):
        found = OPERATIONS[name](x)
        assert torch.equal(torch.autograd.grad(found.sum(), x)[0], gradient)
    assert torch.equal(found, expected)


def test_default_dtype_and_device_of_the_cross_entropy() -> None:
    logits = torch.randn(300, 300, requires_grad=True)
    targets = torch.arange(300)
    expected = cross_entropy(logits, targets)
    with defaults(torch.bfloat16):
        found = cross_entropy(logits, targets)
        found.backward()
    assert torch.equal(found, expected)


@pytest.mark.usefixtures("without_type_checks")
def test_whole_numbers_as_settings(library: Library) -> None:
    x = torch.randn(2, 2, 64, 64)
    for own in (lambda: rms_norm(x, GAIN, 1), lambda: attention(x, x, x, Pattern(causal=True), 1)):
        library.functions.clear()  # the first call declares the types
        found = own()
        with kernels.plain():
            torch.testing.assert_close(found, own(), rtol=1e-5, atol=1e-4)


@pytest.mark.usefixtures("without_type_checks")
def test_shapes_that_the_definition_broadcasts() -> None:
    x = torch.randn(2, 2, 64, 64)
    cases: list[Callable[[], Tensor]] = [
        lambda: swiglu(x, x[:1]),
        lambda: rms_norm(x, torch.full((1,), 2.0), 1e-5),
        lambda: rotate(x, (TURN[0][1:2], TURN[1][1:2])),
        lambda: rotate(x[:1, :, :1], (TURN[0], TURN[1])),
        lambda: rotate(x[:1], (TURN[0].expand(3, 1, -1, -1), TURN[1])),
        lambda: attention(x, x[:1], x[:1], Pattern(causal=True), 0.125),
    ]
    for case in cases:
        found = case()
        with kernels.plain():
            torch.testing.assert_close(found, case(), rtol=1e-5, atol=1e-4)


@pytest.mark.usefixtures("without_type_checks")
def test_shapes_and_dtypes_that_the_definition_refuses() -> None:
    x = torch.randn(2, 2, 64, 64)
    logits = torch.randn(300, 300)
    refused: list[Callable[[], Tensor]] = [
        lambda: swiglu(x, x[..., :32]),
        lambda: rms_norm(x, torch.ones(32), 1e-5),
        lambda: rms_norm(x, torch.ones(128), 1e-5),
        lambda: rotate(x, (TURN[0][:32], TURN[1][:32])),
        lambda: attention(x, x, x, Pattern(causal=True), 0.125, sinks=torch.ones(3)),
        lambda: cross_entropy(logits, torch.arange(200)),
        lambda: cross_entropy(logits, torch.arange(300, dtype=torch.int32)),
    ]
    for case in refused:
        with pytest.raises((RuntimeError, ValueError)):
            case()


@every_operation
def test_gradients_of_several_outputs_at_once(name: str) -> None:
    x = torch.randn(2, 2, 64, 64, requires_grad=True)
    out = OPERATIONS[name](x)
    directions = torch.randn(3, *out.shape)
    found = torch.autograd.grad(out, x, directions, is_grads_batched=True, retain_graph=True)[0]
    for got, direction in zip(found, directions, strict=True):
        expected = torch.autograd.grad(out, x, direction, retain_graph=True)[0]
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
