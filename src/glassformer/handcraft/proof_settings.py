"""Settings under which proofs compute, whatever the caller has set for the process or the thread.

Proofs run a model in the dtype of its weights and compute bounds in float64. Several settings of
PyTorch, NumPy and Python change such arithmetic, its errors, or where tensors are made. Inside
:func:`proof_settings` they have their defaults; afterwards, also after an error, they have their
former values.
"""

import decimal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch

from glassformer.errors import InputError

_PRECISIONS: tuple[tuple[str, Any], ...] = (
    ("torch.backends.fp32_precision", torch.backends),
    ("torch.backends.mkldnn.fp32_precision", torch.backends.mkldnn),
    ("torch.backends.mkldnn.matmul.fp32_precision", torch.backends.mkldnn.matmul),  # type: ignore[attr-defined]
)
"""Settings for the rounding of float32 products on a CPU.

A setting that is "none" has the value of the one before it.
"""

_WHOLE = ("none", "ieee")
"""Values of these settings for which products keep all bits."""


@contextmanager
def proof_settings() -> Iterator[None]:
    """Compute within the block on the CPU, with all bits of float32 and float64, without raising.

    These settings have their defaults: autocast, the precisions of float32 products (also where
    ``torch.set_float32_matmul_precision`` has lowered them), the default dtype and device, flushing
    of numbers below the normal ones, anomaly detection, deterministic algorithms, NumPy's error
    state and the context of ``decimal``. A setting that has its default already is not touched, so
    that the block costs microseconds.

    Raises:
        InputError: A precision that PyTorch cannot read back. It is named.
    """
    with ExitStack() as stack:
        stack.enter_context(np.errstate(all="ignore"))
        stack.enter_context(decimal.localcontext(decimal.Context()))
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        if torch.get_default_dtype() != torch.float32:
            stack.callback(torch.set_default_dtype, torch.get_default_dtype())
            torch.set_default_dtype(torch.float32)
        if _flushes_denormals():
            stack.callback(torch.set_flush_denormal, True)
            torch.set_flush_denormal(False)
        if torch.is_anomaly_enabled():
            stack.enter_context(torch.autograd.set_detect_anomaly(False))
        if torch.are_deterministic_algorithms_enabled():
            warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
            stack.callback(torch.use_deterministic_algorithms, True, warn_only=warn_only)
            torch.use_deterministic_algorithms(False)
        if _precision(*_PRECISIONS[-1]) not in _WHOLE:
            _keep_all_bits(stack)
        yield


def _keep_all_bits(stack: ExitStack) -> None:
    """Set all precisions to their default, the most general one first.

    Otherwise the others would show its value.
    """
    for name, place in _PRECISIONS:
        before = _precision(name, place)
        stack.callback(setattr, place, "fp32_precision", before)
        place.fp32_precision = "none"


def _precision(name: str, place: Any) -> str:
    try:
        return str(place.fp32_precision)
    except RuntimeError as error:
        raise InputError(
            got=f"{name}, which PyTorch cannot read back",
            expected="a precision",
            fix="Set it again, by one of PyTorch's two ways of setting precisions.",
        ) from error


def _flushes_denormals() -> bool:
    """Return whether this thread takes results below the normal numbers as 0.

    PyTorch has no function for it.
    """
    return sys.float_info.min / 2 == 0.0
