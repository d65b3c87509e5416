"""The MXFP4 kernel for processors: built by torch's extension loader at its first use, kept, and never needed."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from glassformer.errors import InputError

SOURCE = Path(__file__).with_name("mxfp4_kernel.cpp")
SWITCH = "GLASSFORMER_NO_NATIVE"
"""The environment variable that leaves the kernel out, set to anything but an empty text or 0."""
LEVELS = ("plain C++", "AVX2", "AVX-512", "AVX-512 with bfloat16 products")
"""What a processor offers, by the kernel's numbers for it."""

_FLAGS = ("-O3", "-std=c++17", *(() if sys.platform == "darwin" else ("-fopenmp",)))
# Groups of 32 weights below which a second thread costs more than it brings.
_GROUPS_PER_THREAD = 2**13


@dataclass(frozen=True)
class Kernel:
    """The compiled functions, and the best of :data:`LEVELS` that this processor has."""

    expand: dict[torch.dtype, Callable[..., None]]
    multiply: dict[torch.dtype, Callable[..., None]]
    level: int


def kernel() -> Kernel | None:
    """The kernel, built if it was never built here; None where it is switched off or cannot be built.

    The library lies in ``$TORCH_EXTENSIONS_DIR``, otherwise in glassformer's folder of the user's cache, under a name
    made of its source, so that each version is built once. It is compiled for every level, of which each call chooses
    one, so a library also serves another processor of the same kind. A build takes about two seconds.

    Warns once, where there is none, why and what it costs.
    """
    if os.environ.get(SWITCH, "0") not in ("", "0"):
        _say_once(f"{SWITCH} is set", f"Unset {SWITCH} for the faster path.")
        return None
    return _built()


@functools.cache
def _built() -> Kernel | None:
    try:
        try:
            return _functions(_library())
        except OSError:  # of a file that is there, but damaged
            return _functions(_library(anew=True))
    except Exception as error:  # whatever a compiler or its absence does, there is another way
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        _say_once(
            f"its kernel could not be built ({reason})",
            f"Install a C++ compiler and ninja, make {_folder()} writable, or set {SWITCH}=1 to go without.",
        )
        return None


@functools.cache
def _say_once(reason: str, fix: str) -> None:
    warnings.warn(f"MXFP4 runs on torch's operators, which is many times slower: {reason}. {fix}", stacklevel=2)


def _folder() -> Path:
    given = os.environ.get("TORCH_EXTENSIONS_DIR")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "glassformer"


def _library(anew: bool = False) -> Path:
    """Where the compiled library lies; it is built beside its place and renamed, so that no process sees half of it."""
    if os.name == "nt":
        raise OSError("there is none for Windows")
    told = "\n".join((SOURCE.read_text(encoding="utf-8"), *_FLAGS, platform.machine(), sys.platform))
    name = f"glassformer_mxfp4_{hashlib.sha256(told.encode()).hexdigest()[:16]}"
    library = _folder() / f"{name}.so"
    if library.is_file() and not anew:
        return library
    from torch.utils.cpp_extension import load  # takes long to import, and is needed once

    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent, prefix=f"{name}.", ignore_cleanup_errors=True) as folder:
        load(
            name,
            [str(SOURCE)],
            extra_cflags=list(_FLAGS),
            extra_ldflags=[flag for flag in _FLAGS if flag == "-fopenmp"],
            build_directory=folder,
            is_python_module=False,
        )
        (built,) = Path(folder).glob("*.so")  # the loader adds a number to a name that it has seen
        os.replace(built, library)
    return library


def _functions(library: Path) -> Kernel:
    code = ctypes.CDLL(str(library))
    names = {torch.bfloat16: "bfloat16", torch.float32: "float32"}
    pointers, sizes, choices = [ctypes.c_void_p], [ctypes.c_int64], [ctypes.c_int] * 2
    expand = {dtype: getattr(code, f"glassformer_mxfp4_expand_{name}") for dtype, name in names.items()}
    multiply = {dtype: getattr(code, f"glassformer_mxfp4_multiply_{name}") for dtype, name in names.items()}
    for function in expand.values():
        function.argtypes, function.restype = [*pointers * 3, *sizes, *choices], None
    for function in multiply.values():
        function.argtypes, function.restype = [*pointers * 4, *sizes * 3, *choices], None
    code.glassformer_mxfp4_level.restype = ctypes.c_int
    return Kernel(expand, multiply, int(code.glassformer_mxfp4_level()))


def expand(
    kernel: Kernel,
    blocks: UInt8[Tensor, "*batch groups 16"],
    scales: UInt8[Tensor, "*batch groups"],
    out: Float[Tensor, "..."],
    level: int | None = None,
) -> None:
    """Write the weights of packed groups to ``out``, which is bfloat16 or float32 with 32 numbers for each group.

    All three are contiguous and on the CPU.

    Args:
        kernel: From :func:`kernel`.
        blocks: Two codes in each byte.
        scales: One for each group.
        out: What is written.
        level: Another of :data:`LEVELS` than the best; one that the processor lacks is lowered.
    """
    groups = scales.numel()
    _require_plain(blocks, scales, out)
    if blocks.numel() != 16 * groups or out.numel() != 32 * groups or out.dtype not in kernel.expand:
        raise _misfit(blocks, scales, out)
    best = kernel.level if level is None else min(level, kernel.level)
    kernel.expand[out.dtype](blocks.data_ptr(), scales.data_ptr(), out.data_ptr(), groups, best, _threads(groups))


def multiply(
    kernel: Kernel,
    x: Float[Tensor, "token in"],
    blocks: UInt8[Tensor, "out groups 16"],
    scales: UInt8[Tensor, "out groups"],
    out: Float[Tensor, "token out"],
    level: int | None = None,
) -> None:
    """Write ``x @ weights.T`` to ``out``, for packed weights, which are read once and never lie expanded in memory.

    ``x`` is bfloat16 or float32, ``out`` is float32. The products of the numbers as they are add up in float32, in an
    order that depends on the level alone; so a token's result is the same to the last bit beside any others, by any
    number of threads. All four are contiguous and on the CPU.

    Args:
        kernel: From :func:`kernel`.
        x: One row for each token, ``32 * groups`` wide.
        blocks: Two codes in each byte.
        scales: One for each group.
        out: What is written.
        level: Another of :data:`LEVELS` than the best; one that the processor lacks is lowered.
    """
    (rows, groups), tokens = scales.shape, len(x)
    best = kernel.level if level is None else min(level, kernel.level)
    if x.dtype == torch.bfloat16 and best < LEVELS.index("AVX-512 with bfloat16 products"):
        x = x.float()
    _require_plain(x, blocks, scales, out)
    fits = blocks.shape == (rows, groups, 16) and x.shape == (tokens, 32 * groups) and out.shape == (tokens, rows)
    if not fits or x.dtype not in kernel.multiply or out.dtype != torch.float32:
        raise _misfit(x, blocks, scales, out)
    pointers = (each.data_ptr() for each in (blocks, scales, x, out))
    kernel.multiply[x.dtype](*pointers, rows, groups, tokens, best, _threads(rows * groups))


def _require_plain(*tensors: Tensor) -> None:
    """The kernel sees addresses alone, so what they lead to is looked at here."""
    if not all(tensor.is_contiguous() and tensor.device.type == "cpu" for tensor in tensors):
        raise _misfit(*tensors)


def _misfit(*tensors: Tensor) -> InputError:
    told = ", ".join(f"{tuple(each.shape)} of {each.dtype} on {each.device}" for each in tensors)
    return InputError(told, "contiguous tensors on the CPU that fit one another", "See the shapes and dtypes above.")


def _threads(groups: int) -> int:
    return max(1, min(torch.get_num_threads(), groups // _GROUPS_PER_THREAD))
