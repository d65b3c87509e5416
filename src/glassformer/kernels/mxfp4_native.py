"""Compile, cache and load the C++ form of the packed MXFP4 operations.

Not by torch.utils.cpp_extension: it needs ninja, loads from a folder that other users may write to, and after a build
that was killed waits for its lock forever.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from glassformer.errors import InputError, first_line

SOURCE = Path(__file__).with_suffix(".cpp")
SWITCH = "GLASSFORMER_NO_NATIVE"
"""The environment variable that disables the kernel, unless it is empty or 0."""
LEVELS = ("plain C++", "AVX2", "AVX-512", "AVX-512 with bfloat16 products")
"""Instruction sets, by the kernel's numbers for them. A processor runs its best one and those before it."""

_FLAGS = ("-O3", "-std=c++17", "-fPIC", "-shared")
# Compiler flags to try, best first. Without OpenMP the kernel runs on one thread; Apple's compiler has none.
_THREADING: tuple[tuple[str, ...], ...] = ((),) if sys.platform == "darwin" else (("-fopenmp",), ())
_COMPILERS = ("c++", "g++", "clang++")
_NAMES = {torch.bfloat16: "bfloat16", torch.float32: "float32"}
# Groups of 32 weights per thread, below which another thread does not pay.
_GROUPS_PER_THREAD = 2**13


@dataclass(frozen=True)
class Kernel:
    """The compiled functions, for contiguous tensors on the CPU, and which of :data:`LEVELS` they use."""

    library: ctypes.CDLL
    level: int

    def expand(self, blocks: Tensor, scales: Tensor, out: Tensor) -> None:
        """Write the weights of packed groups to ``out``, bfloat16 or float32, 32 for each group."""
        groups = scales.numel()
        fits = blocks.numel() == 16 * groups and out.numel() == 32 * groups and out.dtype in _NAMES
        self._run(fits, "expand", out.dtype, (blocks, scales, out), groups)

    def multiply(self, x: Tensor, blocks: Tensor, scales: Tensor, out: Tensor) -> None:
        """Write ``x @ weights.T`` to ``out``, for packed weights; ``x`` is bfloat16 or float32, ``out`` is float32.

        Each weight is read once and never stored expanded. Products are summed in float32, in an order that depends on
        the level alone: a token's result has the same bits in every batch and with every number of threads.
        """
        (rows, groups), tokens = scales.shape, len(x)
        if x.dtype == torch.bfloat16 and self.level < LEVELS.index("AVX-512 with bfloat16 products"):
            x = x.float()
        fits = blocks.shape == (rows, groups, 16) and x.shape == (tokens, 32 * groups) and x.dtype in _NAMES
        fits = fits and out.shape == (tokens, rows) and out.dtype == torch.float32
        self._run(fits, "multiply", x.dtype, (blocks, scales, x, out), rows, groups, tokens)

    def _run(self, fits: bool, name: str, dtype: torch.dtype, tensors: tuple[Tensor, ...], *sizes: int) -> None:
        # C++ receives addresses only, so this is the last place that knows shapes and devices.
        if not (fits and all(each.is_contiguous() and each.device.type == "cpu" for each in tensors)):
            got = ", ".join(f"{tuple(each.shape)} of {each.dtype} on {each.device}" for each in tensors)
            expected = "contiguous CPU tensors whose shapes and dtypes match"
            raise InputError(
                got, expected, "Pass blocks [..., groups, 16], scales [..., groups] and 32 * groups numbers."
            )
        function = getattr(self.library, f"glassformer_mxfp4_{name}_{_NAMES[dtype]}")
        pointers = (ctypes.c_void_p(each.data_ptr()) for each in tensors)
        function(*pointers, *map(ctypes.c_int64, sizes), self.level, _threads(tensors[1].numel()))


def _threads(groups: int) -> int:
    return max(1, min(torch.get_num_threads(), groups // _GROUPS_PER_THREAD))


def kernel() -> Kernel | None:
    """The kernel, compiled on first use; None if it is disabled, or cannot be compiled or loaded. Warns once why.

    The library is cached in the folder ``glassformer`` of ``$TORCH_EXTENSIONS_DIR``, otherwise of the user's cache.
    Compiling takes about two seconds and needs a C++ compiler: ``$CXX``, otherwise ``c++``, ``g++`` or ``clang++``. All
    instruction sets are compiled, and each call chooses one, so that a library serves other processors too.

    A library runs with the rights of its user. Therefore it is loaded only from a folder that belongs to this user and
    is closed to others, and only if the hash in its name is that of its content. If there is no such folder, each
    process compiles a library of its own.
    """
    found, problem = look()
    if problem:
        _warn_once(problem)
    return found


def look() -> tuple[Kernel | None, str]:
    """The same kernel, and in place of the warning its text: what is wrong and what to change, or an empty string."""
    if os.environ.get(SWITCH, "0") not in ("", "0"):
        return None, _slow(f"{SWITCH} is set", f"Unset {SWITCH} to use the kernel.")
    return _built()


@functools.cache
def _built() -> tuple[Kernel | None, str]:
    if os.name == "nt":
        return None, _slow("there is no kernel for Windows", "Use Linux or macOS.")
    with tempfile.TemporaryDirectory(prefix="glassformer_", ignore_cleanup_errors=True) as temporary:
        problem, stem = "", _stem()
        try:
            folder = _private_folder()
            library = _cached(folder, stem)
            if library is None and not os.access(folder, os.W_OK):
                raise PermissionError(f"{folder} is read-only")
        except (OSError, RuntimeError) as error:  # RuntimeError: a user without a home
            problem = f"The MXFP4 kernel cannot be cached, so each process compiles it: {first_line(error)}. "
            problem += "Set TORCH_EXTENSIONS_DIR to a folder of yours."
            # A loaded library stays in memory when its folder is removed.
            folder, library = Path(temporary), None
        try:
            library = library or _compile(folder, stem)
        except Exception as error:
            fix = "Install a C++ compiler, or set CXX to yours."
            return None, _slow(f"the kernel cannot be compiled ({first_line(error)})", fix)
        try:
            return _load(library), problem
        except Exception as error:
            fix = f"Set TORCH_EXTENSIONS_DIR to a folder from which programs may run, or delete {library}."
            return None, _slow(f"the kernel cannot be loaded ({first_line(error)})", fix)


def _slow(reason: str, fix: str) -> str:
    return f"MXFP4 runs on PyTorch's operators, many times slower: {reason}. {fix}"


@functools.cache
def _warn_once(problem: str) -> None:
    package, level, frame = str(Path(__file__).parents[1]), 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(package):
        frame, level = frame.f_back, level + 1
    warnings.warn(problem, stacklevel=level)


def _private_folder() -> Path:
    """The folder of libraries, made if it is missing; OSError if other users could put a library there."""
    base = os.environ.get("TORCH_EXTENSIONS_DIR") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base).absolute() / "glassformer"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} is a link, belongs to another user or is open to others")
    return folder


def _stem() -> str:
    """Different for each source, system and C library: different machines may share a home."""
    parts = (SOURCE.read_text(encoding="utf-8"), *_FLAGS, platform.machine(), sys.platform, *platform.libc_ver())
    return f"mxfp4-{hashlib.sha256(chr(10).join(parts).encode()).hexdigest()[:16]}"


def _hashed(stem: str, library: Path) -> str:
    return f"{stem}-{hashlib.sha256(library.read_bytes()).hexdigest()}.so"


def _cached(folder: Path, stem: str) -> Path | None:
    """A complete library; loading a truncated one would end the process."""
    return next((each for each in folder.glob(f"{stem}-*.so") if each.name == _hashed(stem, each)), None)


def _compile(folder: Path, stem: str) -> Path:
    """Compile in a folder of its own and rename, so that no process sees half a library."""
    compiler = shlex.split(os.environ.get("CXX", "")) or [next(filter(shutil.which, _COMPILERS), _COMPILERS[0])]
    with tempfile.TemporaryDirectory(dir=folder, prefix="build-", ignore_cleanup_errors=True) as build:
        draft = Path(build, "library.so")
        for threading in _THREADING:
            command = [*compiler, *_FLAGS, *threading, "-o", str(draft), str(SOURCE)]
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=300
            )
            if done.returncode == 0:
                library = folder / _hashed(stem, draft)
                os.replace(draft, library)
                return library
    lines = [*(done.stdout + done.stderr).strip().splitlines(), f"exit code {done.returncode}"]
    raise RuntimeError(f"{compiler[0]}: {next((line for line in lines if 'error' in line), lines[0])}")


def _load(library: Path) -> Kernel:
    code = ctypes.CDLL(str(library))
    return Kernel(code, code.glassformer_mxfp4_level())
