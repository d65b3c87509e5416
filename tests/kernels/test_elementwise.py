"""The library's SwiGLU, RMSNorm, rotation and cross entropy against their definitions."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from glassformer import kernels
from glassformer.kernels import cross_entropy as entropy
from glassformer.kernels import native, swiglu
from glassformer.kernels.cross_entropy import cross_entropy
from glassformer.kernels.native import LEVELS, Library
from glassformer.kernels.options import Clamp
from glassformer.kernels.rms_norm import rms_norm
from glassformer.kernels.rotation import rotate
from refusals import refused
from torch_settings import threads

# One float32 rounding of a sum of a few hundred numbers, and one rounding to bfloat16.
TOLERANCES = {torch.float32: 2e-6, torch.bfloat16: 2**-7}
Case = tuple[Callable[..., Tensor], tuple[Tensor, ...]]

pytestmark = pytest.mark.usefixtures("every_level")
random_sizes = settings(
    max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
sizes = st.sampled_from((1, 2, 7, 8, 9, 16, 31, 64, 257))


@pytest.fixture(params=range(len(LEVELS)), ids=LEVELS)
def every_level(
    request: pytest.FixtureRequest, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each instruction set of this processor, also for tensors that are too small to pay."""
    if request.param > library.level:
        pytest.skip("not on this processor")
    monkeypatch.setattr(native, "library", lambda: Library(library.code, request.param))
    monkeypatch.setattr(entropy, "_FEW_LOGITS", 0)


def check(
    function: Callable[..., Tensor], inputs: tuple[Tensor, ...], cancels: float = 1.0
) -> None:
    """Value and gradients are those that the definition gives in float64; ``cancels`` in the first
    input's gradient.
    """

    def run(inputs: tuple[Tensor, ...]) -> list[Tensor]:
        leaves = [each.clone().requires_grad_() for each in inputs]
        out = function(*leaves)
        return [
            out.detach(),
            *torch.autograd.grad(out, leaves, direction.to(out.dtype).expand(out.shape)),
        ]

    torch.manual_seed(0)
    direction = torch.randn(function(*inputs).shape).to(inputs[0].dtype)
    near = TOLERANCES[inputs[0].dtype]
    with kernels.plain():
        expected = run(tuple(each.double() for each in inputs))
    found = run(inputs)
    for place, (got, wanted) in enumerate(zip(found, expected, strict=True)):
        # What cancels is of order 1.
        atol = near * max(1.0, float(wanted.abs().max()), cancels if place == 1 else 0.0)
        torch.testing.assert_close(got.double(), wanted, rtol=near, atol=atol, equal_nan=True)
    with torch.no_grad():
        assert torch.equal(function(*inputs), found[0])


def draw(*shape: int, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    return (scale * torch.randn(shape)).to(dtype)


@pytest.mark.parametrize("dtype", TOLERANCES)
@random_sizes
@given(rows=sizes, width=sizes, scale=st.sampled_from((1e-3, 1.0, 10.0)), clamped=st.booleans())
def test_swiglu(rows: int, width: int, scale: float, clamped: bool, dtype: torch.dtype) -> None:
    clamp = Clamp(limit=1.5) if clamped else None
    inputs = (
        draw(rows, width, dtype=dtype, scale=scale),
        draw(rows, width, dtype=dtype, scale=scale),
    )
    check(lambda gate, up: swiglu.swiglu(gate, up, clamp), inputs)


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_swiglu_at_the_limit_of_its_clamp(dtype: torch.dtype) -> None:
    values = torch.tensor([-2.0, -1.5, 0.5, 1.5, 2.0], dtype=dtype)
    check(
        lambda gate, up: swiglu.swiglu(gate, up, Clamp(limit=1.5)),
        tuple(torch.cartesian_prod(values, values).T),
    )


@pytest.mark.parametrize("dtype", TOLERANCES)
@random_sizes
@given(rows=sizes, width=sizes, scale=st.sampled_from((1e-3, 1.0, 1e3)))
def test_rms_norm(rows: int, width: int, scale: float, dtype: torch.dtype) -> None:
    x = draw(rows, width, dtype=dtype, scale=scale)
    weight = draw(width, dtype=dtype)
    root = (
        x.double().square().mean(1) + 1e-5
    ).sqrt()  # of a row; the gradient has differences of weight / root
    check(partial(rms_norm, eps=1e-5), (x, weight), cancels=float(weight.abs().max() / root.min()))


def test_rms_norm_with_a_weight_of_another_dtype() -> None:
    x = draw(5, 9, dtype=torch.bfloat16)
    weight = draw(9, dtype=torch.float32)
    check(lambda x: rms_norm(x, weight, 1e-5), (x,))


@pytest.mark.parametrize("dtype", TOLERANCES)
@random_sizes
@given(
    batch=st.integers(1, 3), heads=st.integers(1, 3), length=sizes, half=sizes, split=st.booleans()
)
def test_rotation(
    batch: int, heads: int, length: int, half: int, split: bool, dtype: torch.dtype
) -> None:
    angles = torch.randn(length, half)
    rotation = angles.cos().to(dtype), angles.sin().to(dtype)
    x = draw(batch, length, heads, 2 * half, dtype=dtype)
    x = x.transpose(1, 2) if split else x.transpose(1, 2).contiguous()
    check(lambda x: rotate(x, rotation), (x,))


def test_rotation_of_more_pairs_than_there_are() -> None:
    with refused("angles of 4 pairs for a head_dim of 2"):
        rotate(torch.randn(1, 2, 3, 2), (torch.ones(3, 4), torch.zeros(3, 4)))


@pytest.mark.parametrize("dtype", TOLERANCES)
@random_sizes
@given(
    rows=sizes,
    width=sizes,
    scale=st.sampled_from((1e-2, 1.0, 30.0)),
    ignored=st.sampled_from((0, -100)),
)
def test_cross_entropy(
    rows: int, width: int, scale: float, ignored: int, dtype: torch.dtype
) -> None:
    targets = torch.randint(width, (rows,))
    if bool((targets != ignored).any()):
        check(
            lambda logits: cross_entropy(logits, targets, ignored),
            (draw(rows, width, dtype=dtype, scale=scale),),
        )


def test_cross_entropy_of_targets_that_change_before_the_backward_pass() -> None:
    targets = torch.ones(4, dtype=torch.int64)
    loss = cross_entropy(torch.randn(4, 5, requires_grad=True), targets)
    targets.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_cross_entropy_of_targets_that_are_none_or_unknown() -> None:
    logits = torch.randn(4, 5, requires_grad=True)
    assert cross_entropy(logits, torch.tensor([1, 1, 1, 1]), 1).isnan()
    with pytest.raises(IndexError):
        cross_entropy(logits, torch.tensor([0, 1, 5, 2]))


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_numbers_at_the_ends(dtype: torch.dtype) -> None:
    ends = torch.tensor(
        [0.0, 1e-30, -1e-30, 87.0, -87.0, 89.0, -89.0, -104.0, -300.0, 3e4, -3e4], dtype=dtype
    )
    expected = F.silu(ends.double())
    got = swiglu.swiglu(ends, torch.ones_like(ends)).double()
    torch.testing.assert_close(got, expected, rtol=TOLERANCES[dtype], atol=1e-36)
    odd = torch.tensor([torch.inf, torch.nan], dtype=dtype)
    torch.testing.assert_close(swiglu.swiglu(odd, torch.ones_like(odd)), odd, equal_nan=True)
    assert (
        rms_norm(torch.tensor([[1.0, torch.nan]], dtype=dtype), torch.ones(2, dtype=dtype), 1e-5)
        .isnan()
        .all()
    )
    logits = torch.tensor([[0.0, -torch.inf, 100.0]], dtype=dtype)
    assert float(cross_entropy(logits, torch.tensor([2]))) == 0.0
    assert float(cross_entropy(logits, torch.tensor([0]))) == 100.0
    assert float(cross_entropy(logits, torch.tensor([1]))) == torch.inf
    gate, up = torch.full((2, 3), torch.nan, dtype=dtype).unbind()
    for clamp in (None, Clamp(1.7, 2.0)):
        found = swiglu.swiglu_backward(torch.ones_like(gate), gate, up, clamp)
        assert all(each.isnan().all() for each in found)


@pytest.mark.parametrize("number", [2, 3])
def test_the_number_of_threads_changes_no_bit(number: int) -> None:
    def run() -> list[Tensor]:
        torch.manual_seed(0)
        x, weight = (torch.randn(size).requires_grad_() for size in ((700, 257), (257,)))
        out = rms_norm(swiglu.swiglu(x, x), weight, 1e-5)
        loss = cross_entropy(out, torch.arange(700) % 257)
        return [loss.detach(), *torch.autograd.grad(loss, (x, weight))]

    with threads(1):
        expected = run()
    with threads(number):
        found = run()
    for got, wanted in zip(found, expected, strict=True):
        assert torch.equal(got, wanted)
