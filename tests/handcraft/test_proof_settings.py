"""Proofs under settings of the caller: the same verdicts, and the settings as they were."""

import decimal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from glassformer.handcraft.designs import design
from glassformer.handcraft.induction import build_induction, verify_induction
from glassformer.handcraft.proof_settings import proof_settings
from glassformer.handcraft.single_head import HeadWeights
from glassformer.handcraft.tasks import identity, unique
from glassformer.handcraft.verification import verify
from glassformer.layers.attention import editing
from glassformer.programs import compile_program, verify_program
from glassformer.programs import library as lib
from refusals import refused

HEAD = design(identity()).weights
NEAR = HeadWeights([[1], [0]], [[0.8], [0]], [[-7], [7 * float(np.exp(0.8))]])
HISTOGRAM = compile_program(lib.histogram(), "ab", 4)
NARROW = compile_program(lib.histogram(), "ab", 4, dtype=torch.float32)
INDUCTION = build_induction("AB", 4)


def certificates() -> list[str]:
    """Of heads in two dtypes, of programs and an induction circuit."""
    return [
        str(verify(HEAD, identity())),
        str(verify(HEAD, identity(), tolerance=1e-6, dtype=torch.float32)),
        str(verify(NEAR, unique("A", 1))),
        str(verify_program(HISTOGRAM)),
        str(verify_program(NARROW)),
        str(verify_induction(INDUCTION, "AB", limit=30)),
    ]


EXPECTED = certificates()


@contextmanager
def attribute(place: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(place, name)
    setattr(place, name, value)
    try:
        yield
    finally:
        setattr(place, name, before)


@contextmanager
def called(function: Callable[..., Any], value: Any, before: Any) -> Iterator[None]:
    function(value)
    try:
        yield
    finally:
        function(before)


@contextmanager
def narrow_decimals() -> Iterator[None]:
    context = decimal.Context(
        prec=1, rounding=decimal.ROUND_UP, traps=[decimal.Inexact, decimal.FloatOperation]
    )
    with decimal.localcontext(context):
        yield


@contextmanager
def matmul_precision(value: str) -> Iterator[None]:
    torch.set_float32_matmul_precision(value)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.backends.mkldnn.matmul.fp32_precision = "none"
        torch.backends.cuda.matmul.fp32_precision = "none"


BACKENDS = torch.backends
SETTINGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    **{
        f"{name}.fp32_precision = {value}": lambda place=place, value=value: attribute(
            place, "fp32_precision", value
        )
        for value in ("bf16", "tf32")
        for name, place in (
            ("backends", BACKENDS),
            ("mkldnn", BACKENDS.mkldnn),
            ("mkldnn.matmul", BACKENDS.mkldnn.matmul),
            ("mkldnn.conv", BACKENDS.mkldnn.conv),
            ("mkldnn.rnn", BACKENDS.mkldnn.rnn),
        )
    },
    "cuda.matmul.fp32_precision": lambda: attribute(BACKENDS.cuda.matmul, "fp32_precision", "tf32"),
    "medium": lambda: matmul_precision("medium"),
    "high": lambda: matmul_precision("high"),
    "default dtype": lambda: called(torch.set_default_dtype, torch.bfloat16, torch.float32),
    "default dtype float64": lambda: called(torch.set_default_dtype, torch.float64, torch.float32),
    "default device": lambda: called(torch.set_default_device, "meta", None),
    "device": lambda: torch.device("meta"),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast of a GPU": lambda: torch.autocast("cuda", torch.float16),
    "deterministic": lambda: called(torch.use_deterministic_algorithms, True, False),
    "inference mode": torch.inference_mode,
    "gradients": torch.enable_grad,
    "flushed": lambda: called(torch.set_flush_denormal, True, False),
    "one thread": lambda: called(torch.set_num_threads, 1, torch.get_num_threads()),
    "three threads": lambda: called(torch.set_num_threads, 3, torch.get_num_threads()),
    "anomalies": lambda: torch.autograd.set_detect_anomaly(True),
    "errors of NumPy": lambda: np.errstate(all="raise"),
    "decimal": narrow_decimals,
}


def state() -> list[Any]:
    """The settings of this thread and process."""
    places = (
        BACKENDS,
        BACKENDS.mkldnn,
        BACKENDS.mkldnn.matmul,
        BACKENDS.mkldnn.conv,
        BACKENDS.cuda.matmul,
    )
    return [
        *(place.fp32_precision for place in places),
        torch.get_default_dtype(),
        torch.get_default_device(),
        [torch.is_autocast_enabled(device) for device in ("cpu", "cuda")],
        torch.are_deterministic_algorithms_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_grad_enabled(),
        sys.float_info.min / 2,
        torch.get_num_threads(),
        torch.is_anomaly_enabled(),
        np.geterr(),
        repr(decimal.getcontext()),
    ]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SETTINGS)
def test_certificates_are_the_same_under_settings_of_the_caller(name: str) -> None:
    before = state()
    with SETTINGS[name]():
        inside = state()
        assert certificates() == EXPECTED
        assert state() == inside
        with refused("dtype = torch.int8"):
            verify(HEAD, identity(), dtype=torch.int8)
        assert state() == inside
    assert state() == before


def test_all_settings_at_once() -> None:
    names = [
        "mkldnn.fp32_precision = bf16",
        "default dtype",
        "default device",
        "autocast",
        "flushed",
        "errors of NumPy",
    ]
    before = state()
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(SETTINGS[name]())
        assert certificates() == EXPECTED
    assert state() == before


def test_warnings_that_are_errors_change_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert certificates() == EXPECTED


def test_a_more_special_precision_is_inherited_again_afterwards() -> None:
    """It was "none": after a proof it still shows what the more general one is set to."""
    with attribute(BACKENDS.mkldnn, "fp32_precision", "bf16"):
        verify(HEAD, identity())
        assert BACKENDS.mkldnn.matmul.fp32_precision == "bf16"
        BACKENDS.mkldnn.fp32_precision = "ieee"
        assert BACKENDS.mkldnn.matmul.fp32_precision == "ieee"


def test_products_in_a_proof_have_all_their_bits() -> None:
    x = torch.linspace(1, 2, 64 * 64).reshape(64, 64)
    exact = x @ x
    for name in ("backends.fp32_precision = bf16", "mkldnn.fp32_precision = bf16", "medium"):
        with SETTINGS[name](), proof_settings():
            assert torch.equal(x @ x, exact)


def test_a_precision_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mixed:
        @property
        def fp32_precision(self) -> str:
            raise RuntimeError("mix of the legacy and new APIs")

    module = sys.modules["glassformer.handcraft.proof_settings"]
    monkeypatch.setattr(module, "_PRECISIONS", (("torch.backends.fp32_precision", Mixed()),))
    with refused("torch.backends.fp32_precision"):
        verify(HEAD, identity())


def test_a_head_is_not_verified_within_edits() -> None:
    with editing(lambda call: call), refused("a head within edits"):
        verify(HEAD, identity())
