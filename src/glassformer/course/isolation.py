"""The process state that an answer may change, as a table of settings that a check restores.

An answer runs in the process of the student who wrote it. A check restores each setting of the
table, even when the answer is interrupted. Threads, files and new names in modules are not in the
table and stay.
"""

import builtins
import contextvars
import decimal
import gc
import io
import locale
import logging
import math
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.modules import module as modules_of_torch

_UNSET: Any = object()
_ONE = 1.0


class Setting(NamedTuple):
    """A part of the process's state.

    Attributes:
        name: Name of the setting in tests.
        read: Returns the value; later changes of the state must not change the returned value.
        write: Sets a value that ``read`` has returned.
        start: Value at the start of each run of an answer. Without one, a check starts with the
            caller's value.
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], Any]
    start: Any = _UNSET

    def value(self) -> Any:
        """Return the value, or _UNSET if reading fails, as for a removed working directory."""
        try:
            return self.read()
        except Exception:
            return _UNSET

    def put(self, value: Any) -> None:
        """Set ``value`` unless it is set already: some writes are slow or have side effects."""
        try:
            is_set = bool(self.value() == value)
        except Exception:  # values that cannot be compared
            is_set = False
        if not is_set:
            self.write(value)


# ---- Python and the process


def _attribute(holder: Any, name: str, start: Any = _UNSET) -> Setting:
    holder_name = getattr(holder, "__name__", type(holder).__name__)
    return Setting(
        f"{holder_name}.{name}",
        partial(getattr, holder, name),
        partial(setattr, holder, name),
        start,
    )


def _list_of_sys(name: str) -> Setting:
    """Return the setting of a list, which an answer may change or replace."""

    def read() -> tuple[list[Any], list[Any]]:
        values: list[Any] = getattr(sys, name)
        return values, [*values]

    def write(value: tuple[list[Any], list[Any]]) -> None:
        holder, holder[:] = value
        setattr(sys, name, holder)

    return Setting(f"sys.{name}", read, write)


def _names(holder: ModuleType | type) -> Setting:
    """Return the setting of a module's or class's attributes, which an answer may replace.

    New names of a module stay: modules import some of their parts on first use.
    """

    def read() -> dict[str, Any]:
        return dict(vars(holder))

    def write(values: Mapping[str, Any]) -> None:
        current = read()
        for name, value in values.items():
            if current.get(name, _UNSET) is not value:
                setattr(holder, name, value)
        for name in current.keys() - values.keys():
            if isinstance(holder, type) and any(name in vars(base) for base in holder.__mro__[1:]):
                delattr(holder, name)  # it hides an inherited attribute

    return Setting(f"names of {holder.__name__}", read, write)


def _write_context(context: contextvars.Context) -> None:
    empty = contextvars.Context()
    for variable, value in contextvars.copy_context().items():
        if variable in context:
            value = context[variable]
        else:
            with suppress(LookupError):  # it has no default
                value = empty.run(variable.get)
        if variable.get() is not value:
            variable.set(value)


def _write_modules(modules: Mapping[str, ModuleType]) -> None:
    for name, module in modules.items():
        if sys.modules.get(name) is not module:
            sys.modules[name] = module


def _write_directory(directory: str) -> None:
    with suppress(OSError):  # the answer has removed it
        os.chdir(directory)


def _write_environment(variables: Mapping[str, str]) -> None:
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    for name, value in variables.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    if hasattr(time, "tzset"):
        time.tzset()


_DECIMAL_SIZES = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")


def _read_decimal() -> tuple[Any, ...]:
    context = decimal.getcontext()
    sizes = [getattr(context, name) for name in _DECIMAL_SIZES]
    return id(context), context, sizes, dict(context.traps), dict(context.flags)


def _write_decimal(values: tuple[Any, ...]) -> None:
    _, context, sizes, traps, flags = values
    for name, size in zip(_DECIMAL_SIZES, sizes, strict=True):
        setattr(context, name, size)
    context.traps.update(traps)
    context.flags.update(flags)
    decimal.setcontext(context)


def _read_collector() -> tuple[Any, ...]:
    return gc.isenabled(), gc.get_threshold(), gc.get_debug()


def _write_collector(values: tuple[Any, ...]) -> None:
    enabled, threshold, debug = values
    if enabled:
        gc.enable()
    else:
        gc.disable()
    gc.set_threshold(*threshold)
    gc.set_debug(debug)


def _read_logging() -> tuple[Any, ...]:
    return logging.root.level, [*logging.root.handlers], logging.root.manager.disable


def _write_logging(values: tuple[Any, ...]) -> None:
    level, logging.root.handlers[:], disabled = values
    logging.root.setLevel(level)
    logging.disable(disabled)


def _read_handlers() -> dict[str, Any]:
    return {name: signal.getsignal(getattr(signal, name)) for name in _SIGNALS}


def _write_handlers(handlers: Mapping[str, Any]) -> None:
    for name, handler in handlers.items():
        number = getattr(signal, name)
        if handler is not None and signal.getsignal(number) != handler:
            signal.signal(number, handler)


_SIGNALS = [
    name
    for name in (
        "SIGALRM",
        "SIGCHLD",
        "SIGHUP",
        "SIGINT",
        "SIGPIPE",
        "SIGPROF",
        "SIGTERM",
        "SIGUSR1",
        "SIGUSR2",
    )
    if hasattr(signal, name)
]


def _timer(kind: int) -> Setting:
    """Return the setting of whether a timer runs; the caller's timer goes on."""

    def read() -> bool:
        return signal.getitimer(kind) != (0.0, 0.0)

    def write(runs: bool) -> None:
        if not runs:
            signal.setitimer(kind, 0.0)

    return Setting(f"timer {kind}", read, write)


def _posix_settings() -> tuple[Setting, ...]:
    if not hasattr(signal, "pthread_sigmask"):
        return ()
    mask = partial(signal.pthread_sigmask, signal.SIG_BLOCK, ())
    return (
        _timer(signal.ITIMER_VIRTUAL),
        _timer(signal.ITIMER_PROF),
        Setting("signal mask", mask, partial(signal.pthread_sigmask, signal.SIG_SETMASK)),
    )


# ---- NumPy, torch and matplotlib


def _read_numpy_random() -> tuple[Any, ...]:
    state: Any = np.random.get_state()  # noqa: NPY002 - an answer may use it
    name, keys, *rest = state
    return name, keys.tobytes(), *rest


def _write_numpy_random(state: tuple[Any, ...]) -> None:
    name, keys, *rest = state
    np.random.set_state((name, np.frombuffer(keys, dtype=np.uint32), *rest))  # noqa: NPY002


def _read_torch_random() -> list[bytes]:
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():
        states += torch.cuda.get_rng_state_all()
    return [state.numpy().tobytes() for state in states]


def _write_torch_random(states: list[bytes]) -> None:
    first, *others = (torch.frombuffer(bytearray(state), dtype=torch.uint8) for state in states)
    torch.set_rng_state(first)
    for device, state in enumerate(others):
        torch.cuda.set_rng_state(state, device)


def _write_device(device: torch.device) -> None:
    # torch.get_default_device() returns the CPU also if no default is set, and calls are faster
    # without one.
    torch.set_default_device(None if device == torch.device("cpu") else device)


def _read_anomaly() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def _write_anomaly(values: tuple[bool, bool]) -> None:
    torch.set_anomaly_enabled(*values)


def _read_autocast() -> tuple[Any, ...]:
    return (
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_cache_enabled(),
    )


def _write_autocast(values: tuple[Any, ...]) -> None:
    enabled, dtype, caches = values
    torch.set_autocast_enabled("cpu", enabled)
    torch.set_autocast_dtype("cpu", dtype)
    torch.set_autocast_cache_enabled(caches)


def _flushes_denormal() -> bool:
    """Return whether subnormal numbers become 0 in this thread; torch can only set this."""
    return sys.float_info.min * (_ONE / 2) == 0.0


def _read_module_hooks() -> dict[str, dict[Any, Any]]:
    """Return torch's global module hooks, by the name of the dictionary that holds them."""
    names = [
        name
        for name in vars(modules_of_torch)
        if name.startswith("_global_") and name.endswith("_hooks")
    ]
    names += ["_global_forward_hooks_always_called", "_global_forward_hooks_with_kwargs"]
    return {name: dict(getattr(modules_of_torch, name)) for name in names}


def _write_module_hooks(hooks: Mapping[str, Mapping[Any, Any]]) -> None:
    for name, values in hooks.items():
        holder = getattr(modules_of_torch, name)
        holder.clear()
        holder.update(values)


def _read_print_options() -> dict[str, Any]:
    return dict(vars(torch._tensor_str.PRINT_OPTS))


def _read_figures() -> Any:
    """Return matplotlib's settings, or None if it is not imported."""
    matplotlib = sys.modules.get("matplotlib")
    if matplotlib is None:
        return None
    return dict(matplotlib.rcParams.copy())


def _write_figures(settings: Mapping[str, Any] | None) -> None:
    matplotlib: Any = sys.modules["matplotlib"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of deprecated names
        if settings is None:
            matplotlib.rc_file_defaults()
        else:
            # Not the backend: setting it would close figures.
            matplotlib.rcParams.update(
                {name: value for name, value in settings.items() if name != "backend"}
            )


def _precision(*names: str) -> Setting:
    """Return the setting of a backend's float32 precision; "none" inherits from its parent."""
    holder: Any = torch.backends
    for name in names:
        holder = getattr(holder, name)
    name = ".".join(("backends", *names, "fp32_precision"))
    return _attribute(holder, "fp32_precision")._replace(name=name)


_NUMPY_ERRORS = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}
_NAMESPACES: tuple[ModuleType | type, ...] = (
    builtins,
    math,
    random,
    time,
    np,
    np.random,
    np.linalg,
    torch,
    torch.nn,
    torch.nn.functional,
    torch.linalg,
    torch.Tensor,
    torch.nn.Module,
    torch.nn.Linear,
    torch.nn.Embedding,
    torch.nn.LayerNorm,
    torch.nn.Parameter,
)
"""Modules and classes whose functions an answer might replace."""

SETTINGS: tuple[Setting, ...] = (
    # First the settings that others may depend on.
    Setting("context variables", contextvars.copy_context, _write_context),
    *map(_names, _NAMESPACES),
    Setting("default device", torch.get_default_device, _write_device, torch.device("cpu")),
    Setting("default dtype", torch.get_default_dtype, torch.set_default_dtype, torch.float32),
    Setting("gradients", torch.is_grad_enabled, torch.set_grad_enabled, True),
    Setting("autocast", _read_autocast, _write_autocast, (False, torch.bfloat16, True)),
    Setting("anomaly detection", _read_anomaly, _write_anomaly, (False, True)),
    # Cases are small: a second thread costs more than it gains.
    Setting("threads", torch.get_num_threads, torch.set_num_threads, 1),
    Setting(
        "deterministic algorithms",
        torch.get_deterministic_debug_mode,
        torch.set_deterministic_debug_mode,
        0,
    ),
    _attribute(torch.utils.deterministic, "fill_uninitialized_memory"),
    Setting("subnormal numbers", _flushes_denormal, torch.set_flush_denormal, False),
    # This also sets the precision of two of the backends below.
    Setting(
        "precision of products",
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
        "highest",
    ),
    _precision(),
    _precision("mkldnn"),
    _precision("mkldnn", "matmul"),
    _precision("mkldnn", "conv"),
    _precision("mkldnn", "rnn"),
    _precision("cuda", "matmul"),
    _precision("cudnn"),
    _precision("cudnn", "conv"),
    _precision("cudnn", "rnn"),
    *(_attribute(torch.backends.cudnn, name) for name in ("enabled", "benchmark", "deterministic")),
    *(_attribute(torch.backends.mkldnn, name) for name in ("enabled", "deterministic")),
    _attribute(torch.backends.opt_einsum, "enabled"),
    _attribute(torch.backends.opt_einsum, "strategy"),
    Setting(
        "flash attention",
        torch.backends.cuda.flash_sdp_enabled,
        torch.backends.cuda.enable_flash_sdp,
    ),
    Setting(
        "plain attention", torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp
    ),
    Setting(
        "fast transformers",
        torch.backends.mha.get_fastpath_enabled,
        torch.backends.mha.set_fastpath_enabled,
    ),
    Setting("warnings of torch", torch.is_warn_always_enabled, torch.set_warn_always),
    Setting(
        "print options of torch",
        _read_print_options,
        lambda options: torch.set_printoptions(**options),
    ),
    Setting("hooks of all modules", _read_module_hooks, _write_module_hooks),
    Setting("random numbers of torch", _read_torch_random, _write_torch_random),
    Setting("random numbers", random.getstate, random.setstate),
    Setting("random numbers of NumPy", _read_numpy_random, _write_numpy_random),
    Setting("errors of NumPy", np.geterr, lambda errors: np.seterr(**errors), _NUMPY_ERRORS),
    Setting("error handler of NumPy", np.geterrcall, np.seterrcall),
    Setting("buffer of NumPy", np.getbufsize, np.setbufsize),
    Setting(
        "print options of NumPy",
        np.get_printoptions,
        lambda options: np.set_printoptions(**options),
    ),
    Setting("matplotlib", _read_figures, _write_figures),
    Setting("working directory", os.getcwd, _write_directory),
    Setting("environment", lambda: dict(os.environ), _write_environment),
    Setting(
        "locale", partial(locale.setlocale, locale.LC_ALL), partial(locale.setlocale, locale.LC_ALL)
    ),
    *map(_list_of_sys, ("path", "meta_path", "path_hooks", "argv")),
    Setting("imported modules", sys.modules.copy, _write_modules),
    *(_attribute(sys, name) for name in ("stdin", "stdout", "stderr")),
    *(
        _attribute(sys, name)
        for name in ("excepthook", "displayhook", "unraisablehook", "breakpointhook")
    ),
    _attribute(threading, "excepthook"),
    Setting("trace function", sys.gettrace, sys.settrace),
    Setting("profile function", sys.getprofile, sys.setprofile),
    Setting("recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
    Setting("switch interval", sys.getswitchinterval, sys.setswitchinterval),
    Setting("digits of whole numbers", sys.get_int_max_str_digits, sys.set_int_max_str_digits),
    Setting("decimal numbers", _read_decimal, _write_decimal),
    Setting("garbage collection", _read_collector, _write_collector),
    Setting("logging", _read_logging, _write_logging),
    Setting("signal handlers", _read_handlers, _write_handlers),
    *_posix_settings(),
)
"""The state that a check restores."""


def start_run() -> None:
    """Set the state with which each run of an answer starts."""
    for setting in SETTINGS:
        if setting.start is not _UNSET:
            setting.put(setting.start)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    # torch.manual_seed would also seed every other kind of device, and takes longer.
    torch.default_generator.manual_seed(0)


@contextmanager
def unchanged() -> Iterator[None]:
    """Restore all :data:`SETTINGS` after the block, and discard its output and warnings."""
    with ExitStack() as stack:
        stack.enter_context(redirect_stdout(io.StringIO()))
        stack.enter_context(redirect_stderr(io.StringIO()))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(torch.inference_mode(False))
        for setting in reversed(SETTINGS):  # the callbacks run in the order of SETTINGS
            value = setting.value()
            if value is not _UNSET:
                stack.callback(setting.put, value)  # after a failure, the others still run
        start_run()
        yield
