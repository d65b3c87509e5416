from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from glassformer.kernels import linear as module
from glassformer.kernels import native, plain
from glassformer.kernels.linear import FEW, FEW_NARROW, linear
from glassformer.layers.feedforward import Linear
from torch_settings import defaults


@pytest.fixture(params=["library", "torch"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every size by the C++ library, or without it; bfloat16 always in float32; weights widened in
    several parts.
    """
    monkeypatch.setattr(module, "_LEAST", 0)
    monkeypatch.setattr(module, "_WIDENED", 100)
    monkeypatch.setattr(module, "slow_bfloat16", lambda: True)
    if request.param == "library":
        request.getfixturevalue("library")
    else:
        monkeypatch.setattr(native, "look", lambda: (None, ""))
    return request.param


def tensors(
    batch: tuple[int, ...], rows: int, width: int, dtype: torch.dtype, bias: bool
) -> list[Tensor]:
    shapes = [(*batch, width), (rows, width), *([(rows,)] if bias else [])]
    return [torch.randn(shape).to(dtype) for shape in shapes]


def assert_same(got: Tensor, given: list[Tensor]) -> None:
    """Up to float32's rounding of sums, and to one rounding of the result in bfloat16."""
    exact = F.linear(*(each.double() for each in given))
    size = F.linear(*(each.double().abs() for each in given))
    bound = size * (given[0].shape[-1] + 1) * 2.0**-24
    if got.dtype == torch.bfloat16:
        bound += exact.abs() * 2.0**-8
    assert got.dtype == given[0].dtype
    assert got.shape == exact.shape
    assert bool(((got.double() - exact).abs() <= bound).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.usefixtures("path")
def test_values(dtype: torch.dtype, grad: bool) -> None:
    @given(
        st.lists(st.integers(0, 4), max_size=3).map(tuple),
        st.integers(1, 40),
        st.integers(1, 70),
        st.booleans(),
    )
    def check(batch: tuple[int, ...], rows: int, width: int, bias: bool) -> None:
        given = tensors(batch, rows, width, dtype, bias)
        with torch.set_grad_enabled(grad):
            assert_same(linear(*(each.requires_grad_(grad) for each in given)).detach(), given)

    check()


@pytest.mark.usefixtures("path")
def test_onednn_gets_no_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is slow where the processor has no products of it."""
    monkeypatch.setattr(module, "by_onednn", None)
    given = tensors((FEW_NARROW + 1,), 3, 5, torch.bfloat16, True)
    assert_same(linear(*given), given)


@pytest.mark.parametrize("needed", [(1, 1, 1), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, None)])
@pytest.mark.usefixtures("path")
def test_gradients(needed: tuple[int | None, ...]) -> None:
    given = tensors((3, 5), 7, 33, torch.bfloat16, needed[2] is not None)
    flow = torch.randn(3, 5, 7).bfloat16()
    for each, need in zip(given, needed, strict=False):
        each.requires_grad_(bool(need))
    linear(*given).backward(flow)
    wide = [each.detach().float().requires_grad_(each.requires_grad) for each in given]
    F.linear(*wide).backward(flow.float())
    for each, expected in zip(given, wide, strict=True):
        if expected.grad is None:
            assert each.grad is None
        else:
            assert each.grad.dtype == torch.bfloat16
            torch.testing.assert_close(each.grad.float(), expected.grad, rtol=2.0**-8, atol=1e-5)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("halves", [False, True])
def test_float32_by_onednn(halves: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values, gradients and second derivatives, also of inputs and gradients that are not
    contiguous.
    """
    if not torch.backends.mkldnn.is_available():
        pytest.skip("torch was built without oneDNN")
    monkeypatch.setattr(module, "LEAST_WORK_HALVES" if halves else "LEAST_WORK", 0)
    monkeypatch.setattr(module, "avx512_of_amd" if halves else "slow_mkl", lambda: True)
    sizes = st.integers(1, 40)

    @given(st.integers(FEW + 1, 60), sizes, sizes, st.booleans(), st.booleans())
    def check(tokens: int, rows: int, width: int, bias: bool, turned: bool) -> None:
        given = tensors((tokens,), rows, width, torch.float32, bias)
        if turned:
            given[0] = given[0].T.contiguous().T
        assert_same(linear(*given), given)
        leaves = [each.requires_grad_() for each in given]
        wide = [each.detach().double().requires_grad_() for each in given]
        flow = torch.randn(rows).expand(tokens, rows)
        got = torch.autograd.grad(linear(*leaves), leaves, flow)
        for each, expected in zip(
            got, torch.autograd.grad(F.linear(*wide), wide, flow.double()), strict=True
        ):
            torch.testing.assert_close(each.double(), expected, rtol=1e-4, atol=1e-4)

    check()
    first, second = (
        torch.autograd.grad(function(x, weight).square().sum(), x, create_graph=True)[0]
        .square()
        .sum()
        for x, weight in [
            [each.requires_grad_() for each in tensors((20,), 5, 16, torch.float32, False)]
        ]
        for function in (linear, F.linear)
    )
    torch.testing.assert_close(first, second)


@pytest.mark.usefixtures("path")
def test_second_derivatives() -> None:
    given = [each.requires_grad_() for each in tensors((6,), 5, 16, torch.bfloat16, True)]

    def second(function: object) -> list[Tensor]:
        (first,) = torch.autograd.grad(function(*given).square().sum(), given[0], create_graph=True)  # type: ignore[operator]
        return list(torch.autograd.grad(first.square().sum(), given[:2]))

    for got, expected in zip(second(linear), second(F.linear), strict=True):
        torch.testing.assert_close(
            got, expected, rtol=0.05, atol=0.05 * expected.abs().max().item()
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.usefixtures("library")
def test_few_tokens_have_the_same_bits_in_every_batch(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LEAST", 0)
    given = tensors((FEW,), 65, 100, dtype, True)
    together = linear(*given)
    for some in range(1, FEW):
        torch.testing.assert_close(
            linear(given[0][:some], *given[1:]), together[:some], rtol=0, atol=0
        )
    column = given[0].T.contiguous().T  # other strides
    torch.testing.assert_close(linear(column, *given[1:]), together, rtol=0, atol=0)


@pytest.mark.usefixtures("path")
def test_what_the_fast_forms_leave_to_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    definition = Mock(wraps=F.linear)
    monkeypatch.setattr(module, "definition", definition)
    x, weight = tensors((2,), 4, 8, torch.bfloat16, False)
    with plain():
        linear(x, weight)
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x.float(), weight.float()).dtype == torch.bfloat16
    torch.func.vmap(linear, (0, None))(x, weight)
    linear(torch.randn(9, 8), weight.float())
    linear(x.double(), weight.double())
    with torch.device("meta"):
        linear(torch.empty(9, 8), torch.empty(4, 8))
    assert definition.call_count == 6


@pytest.mark.usefixtures("path", "without_type_checks")
def test_widths_that_do_not_fit_never_reach_the_library() -> None:
    for x, weight in [((8, 40), (5, 5)), ((), (5, 5)), ((2, 3), (4, 30))]:
        for dtype in (torch.float32, torch.bfloat16):
            with pytest.raises(RuntimeError):
                linear(torch.randn(x).to(dtype), torch.randn(weight).to(dtype))
    empty = linear(torch.randn(3, 0).bfloat16(), torch.randn(5, 0).bfloat16())
    assert empty.tolist() == [[0.0] * 5] * 3


@pytest.mark.usefixtures("path")
def test_the_default_dtype_and_device_change_nothing() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        given = tensors((3,), 40, 33, dtype, True)
        expected = linear(*given)
        for other in (torch.float64, torch.bfloat16):
            with defaults(other):
                got = linear(*given)
                linear(*(each.requires_grad_() for each in given)).float().sum().backward()
            torch.testing.assert_close(got, expected, rtol=0, atol=0)
            given = [each.detach() for each in given]


@pytest.mark.usefixtures("path")
def test_bfloat16_under_autocast() -> None:
    given = [each.requires_grad_() for each in tensors((7,), 40, 33, torch.bfloat16, True)]
    with torch.autocast("cpu", torch.bfloat16):
        out = linear(*given)
        assert_same(out.detach(), [each.detach() for each in given])
        out.sum().backward()
    assert given[1].grad is not None


def test_the_layer() -> None:
    layer = Linear(8, 4)
    x = torch.randn(3, 8)
    torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias))


@pytest.mark.parametrize(
    ("name", "flags", "slow"),
    [
        ("Intel(R) Xeon(R)", {"avx_vnni"}, False),
        ("AMD EPYC", set(), False),  # Zen 4
        ("AMD EPYC", {"avx_vnni"}, True),
        ("AMD EPYC", {"avx512_vp2intersect"}, True),
    ],
)
def test_mkl_is_slow_after_zen_4(
    name: str, flags: set[str], slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"cpu_name": name} | dict.fromkeys(flags, True)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found, raising=False)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    for library in (torch.backends.mkl, torch.backends.mkldnn):
        monkeypatch.setattr(library, "is_available", lambda: True)
    module.avx512_of_amd.cache_clear()
    assert module.slow_mkl.__wrapped__() == slow
    assert module.avx512_of_amd() == name.startswith("AMD")
    module.avx512_of_amd.cache_clear()
