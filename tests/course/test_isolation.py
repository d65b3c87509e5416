"""A check leaves the process as it was, whatever an answer sets, and the next one is not changed by
it.
"""

import builtins
import contextvars
import decimal
import gc
import locale
import logging
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.modules.module import register_module_forward_hook

from course.test_checking import DOUBLED, RIGHT, checked
from glassformer.course import checking
from glassformer.course.isolation import SETTINGS, unchanged

VARIABLE = contextvars.ContextVar("variable", default=0)


def patch(holder: Any, name: str, value: Any) -> Callable[[], None]:
    return lambda: setattr(holder, name, value)


def set_numpy_handler() -> None:
    np.seterrcall(lambda *_: None)
    np.seterr(all="call")


def set_float32() -> None:
    torch.set_float32_matmul_precision("medium")
    torch.backends.mkldnn.conv.fp32_precision = "bf16"


def set_figures() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.rcParams["image.origin"] = "lower"
    matplotlib.rcParams["text.usetex"] = True


def remove_directory() -> None:
    os.mkdir("gone")
    os.chdir("gone")
    os.rmdir(os.getcwd())


def set_locale() -> None:
    try:
        locale.setlocale(
            locale.LC_ALL, "C.UTF-8" if locale.setlocale(locale.LC_ALL) == "C" else "C"
        )
    except locale.Error:
        pytest.skip("one locale only")


def set_decimal() -> None:
    decimal.getcontext().prec = 3
    decimal.getcontext().traps[decimal.Inexact] = True


def block_signals() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])


# What an answer does, by the setting that it changes.
CHANGES: dict[str, Callable[[], Any]] = {
    "random": lambda: random.seed(7),
    "numpy random": lambda: np.random.seed(7),  # noqa: NPY002
    "torch random": lambda: torch.manual_seed(7),
    "gradients": lambda: torch.set_grad_enabled(False),
    "dtype": lambda: torch.set_default_dtype(torch.float64),
    "device": lambda: torch.set_default_device("meta"),
    "threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True, check_nan=False),
    "deterministic": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "fill": patch(torch.utils.deterministic, "fill_uninitialized_memory", False),
    "autocast": lambda: torch.set_autocast_enabled("cpu", True),
    "autocast dtype": lambda: torch.set_autocast_dtype("cpu", torch.float16),
    "subnormal": lambda: torch.set_flush_denormal(True),
    "float32": set_float32,
    "cudnn": patch(torch.backends.cudnn, "enabled", False),
    "mkldnn": patch(torch.backends.mkldnn, "deterministic", True),
    "flash": lambda: torch.backends.cuda.enable_flash_sdp(False),
    "plain attention": lambda: torch.backends.cuda.enable_math_sdp(False),
    "fast transformers": lambda: torch.backends.mha.set_fastpath_enabled(False),
    "warn always": lambda: torch.set_warn_always(True),
    "print torch": lambda: torch.set_printoptions(precision=1, sci_mode=True, linewidth=20),
    "module hook": lambda: register_module_forward_hook(lambda *_: None),
    "inference": lambda: torch.inference_mode().__enter__(),
    "numpy errors": lambda: np.seterr(all="raise"),
    "numpy handler": set_numpy_handler,
    "numpy buffer": lambda: np.setbufsize(16 * 1024),
    "print numpy": lambda: np.set_printoptions(precision=1, suppress=True),
    "figures": set_figures,
    "directory": lambda: os.chdir("/"),
    "removed directory": remove_directory,
    "environment": lambda: os.environ.update(GLASSFORMER_PLAIN="1", PATH=""),
    "environment removed": lambda: os.environ.pop("PATH"),
    "locale": set_locale,
    "path": lambda: sys.path.insert(0, "/nowhere"),
    "another path": patch(sys, "path", ["/nowhere"]),
    "finders": lambda: sys.meta_path.clear(),
    "arguments": lambda: sys.argv.append("x"),
    "modules": lambda: sys.modules.update(json=ModuleType("json")),
    "module removed": lambda: sys.modules.pop("random"),
    "output": patch(sys, "stdout", None),
    "excepthook": patch(sys, "excepthook", print),
    "thread hook": patch(threading, "excepthook", print),
    "trace": lambda: sys.settrace(lambda *_: None),
    "profile": lambda: sys.setprofile(lambda *_: None),
    "recursion": lambda: sys.setrecursionlimit(sys.getrecursionlimit() + 500),
    "switches": lambda: sys.setswitchinterval(0.1),
    "digits": lambda: sys.set_int_max_str_digits(1000),
    "decimal": set_decimal,
    "decimal context": lambda: decimal.setcontext(decimal.Context(prec=3)),
    "collector": gc.disable,
    "collector threshold": lambda: gc.set_threshold(5),
    "logging": lambda: logging.disable(),
    "log level": lambda: logging.getLogger().setLevel(1),
    "log handler": lambda: logging.getLogger().addHandler(logging.NullHandler()),
    "interrupts": lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    "profiling timer": lambda: signal.setitimer(signal.ITIMER_PROF, 600),
    "signals": block_signals,
    "context": lambda: VARIABLE.set(7),
    "warnings": lambda: warnings.simplefilter("error"),
    "one warning": lambda: warnings.filterwarnings("ignore", "never said"),
    "builtins": patch(builtins, "sum", max),
    "torch function": patch(torch, "allclose", lambda *_, **__: True),
    "functional": patch(torch.nn.functional, "softmax", None),
    "numpy function": patch(np, "array_equal", lambda *_, **__: True),
    "tensor method": patch(torch.Tensor, "detach", lambda tensor: tensor),
    "module method": patch(torch.nn.Module, "__call__", lambda *_: None),
    "linear method": patch(torch.nn.Linear, "__call__", lambda *_: None),
}


def state() -> dict[str, Any]:
    found = {setting.name: setting.read() for setting in SETTINGS}
    modules = found.pop("imported modules")
    return found | {
        "modules": {name: modules.get(name) for name in ("json", "random", "torch")},
        "inference": torch.is_inference_mode_enabled(),
        "warnings": [*warnings.filters],
        "variable": VARIABLE.get(),
    }


def assert_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    differing = []
    for name, value in before.items():
        current = after[name]
        if name.startswith("names of"):  # a module that is imported late adds names
            current = {key: current[key] for key in value}
        if name != "context variables" and value != current:
            differing.append(name)
    assert differing == []


ENDINGS = [
    *((case, "returns") for case in CHANGES),
    *((case, "raises") for case in ("device", "directory", "numpy errors", "torch function")),
    *(
        (case, "never ends")
        for case in ("device", "directory", "numpy errors", "torch function", "figures")
    ),
]


@pytest.mark.parametrize(("case", "ending"), ENDINGS)
def test_what_an_answer_sets_does_not_stay(
    case: str, ending: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checking, "SECONDS", 0.2)
    changes = [CHANGES[case]]
    if case == "figures":
        pytest.importorskip("matplotlib")
    with unchanged():  # what is imported late
        pass
    before = state()

    def untidy(x: torch.Tensor) -> torch.Tensor:
        result = x + x
        while changes:
            changes.pop()()
        if ending == "raises":
            raise KeyError
        while ending == "never ends":
            pass
        return result

    message = checked(monkeypatch, DOUBLED, untidy)
    assert_same(before, state())
    assert ("right" in message) == (ending == "returns"), message
    assert checked(monkeypatch, DOUBLED, lambda x: 2 * x) == RIGHT
    assert_same(before, state())


STANDARDS = [
    "device",
    "dtype",
    "numpy errors",
    "autocast",
    "anomaly",
    "deterministic",
    "float32",
    "warnings",
]


@pytest.mark.parametrize("case", [*STANDARDS, "gradients", "subnormal", "inference"])
def test_what_the_notebook_has_set_does_not_reach_a_check(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with unchanged():
        CHANGES[case]()
        before = state()
        assert checked(monkeypatch, DOUBLED, lambda x: 2 * x) == RIGHT
        assert_same(before, state())


def test_an_interrupted_check_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = state()

    def interrupted(x: torch.Tensor) -> None:
        torch.set_default_device("meta")
        np.seterr(all="raise")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        checked(monkeypatch, DOUBLED, interrupted)
    assert_same(before, state())


def test_a_setting_that_cannot_be_put_back_keeps_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    with unchanged():
        os.chdir("/")
        (tmp_path / "work").rmdir()
        sys.setrecursionlimit(sys.getrecursionlimit() + 500)
        limit = sys.getrecursionlimit()
    assert sys.getrecursionlimit() == limit - 500


def test_names_of_settings_are_different() -> None:
    names = [setting.name for setting in SETTINGS]
    assert len(names) == len(set(names))
