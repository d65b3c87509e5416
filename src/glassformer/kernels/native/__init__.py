"""Compile, cache and load the C++ forms of operations: the sources of this folder, as one library.

Each source is compiled for the best instruction set of this processor, with ``LEVEL`` as its number
in :data:`LEVELS`; the compiler's own macros (``__AVX2__``) say which instructions it may use.
``EXPORT`` of ``native.h`` gives functions a name for each level, so that tests compile several into
one library. Sources use no template of the standard library and no inline function with external
linkage: the linker would keep one copy for all levels.

torch.utils.cpp_extension is not used: it needs ninja, loads from a folder that other users may
write to, and waits forever for the lock of a build that was killed.
"""

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
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from glassformer.errors import InputError, first_line

FOLDER = Path(__file__).parent
SWITCH = "GLASSFORMER_NO_NATIVE"
"""The environment variable that disables the library, unless it is empty or 0; it is read once."""
LEVELS = ("plain C++", "AVX2", "AVX-512", "AVX-512 with bfloat16 products", "AMX")
"""Instruction sets, by their number. A processor runs its best one and those before it."""

_FLAGS = ("-O3", "-std=c++17", "-ffp-contract=fast", "-fPIC", f"-I{FOLDER}")
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq")
_X86 = platform.machine() in ("x86_64", "AMD64")
_NEWEST = (*_AVX512, "-mavx512bf16", "-mavx512vnni")
_AMX = (*_NEWEST, "-mamx-tile", "-mamx-bf16")
_LEVEL_FLAGS: tuple[tuple[str, ...], ...] = ((), _AVX2, _AVX512, _NEWEST, _AMX) if _X86 else ((),)
# Compiler flags to try, best first. Without OpenMP functions run on one thread; Apple's compiler
# has none.
_THREADING: tuple[tuple[str, ...], ...] = ((),) if sys.platform == "darwin" else (("-fopenmp",), ())
_COMPILERS = ("c++", "g++", "clang++")


def best_level() -> int:
    """Return the number in :data:`LEVELS` of this processor's best instruction set that torch uses.

    ``ATEN_CPU_CAPABILITY``, torch's variable for it, may lower it: ``avx2`` or ``default``.
    """
    capability = torch.backends.cpu.get_cpu_capability()
    if not _X86 or capability not in ("AVX2", "AVX512"):
        return 0
    if capability == "AVX2":
        return 1
    if not (torch.cpu._is_avx512_bf16_supported() and torch.cpu._is_vnni_supported()):
        return 2
    # _init_amx asks the system for the registers.
    has_amx = torch.cpu._is_amx_tile_supported() and torch.cpu._init_amx()
    return 4 if has_amx else 3


COMPILED: tuple[int, ...] = (best_level(),)
"""The levels that are compiled."""
PREBUILT = FOLDER / "prebuilt.so"
"""The library in a wheel, with every level of its platform: see :func:`prebuild`."""


class Function(NamedTuple):
    """The arguments of a function of the library: tensors, then numbers, then strides."""

    dtypes: tuple[torch.dtype, ...]
    """Dtypes of the tensors."""
    sizes: Callable[..., Sequence[int | tuple[int, ...]]]
    """``sizes(*numbers)`` returns the size of each tensor.

    The size of a contiguous tensor is how many numbers it holds. If only its last axis has to be
    contiguous, the size is its shape.
    """


FUNCTIONS: dict[str, Function] = {}
"""The library's functions that Python calls, by the name that C++ gives them."""
_DTYPES = {"f": torch.float32, "h": torch.bfloat16, "l": torch.int64}
_DTYPES |= {"b": torch.uint8, "?": torch.bool}
_OUT_OF_MEMORY = 1  # a result in native.h
_KEPT = 90 * 86400  # seconds after which libraries of former versions are deleted


def declare(name: str, letters: str, sizes: Callable[..., Sequence[int | tuple[int, ...]]]) -> None:
    """Declare the arguments of ``EXPORT(name)``, next to where it is called.

    Args:
        name: Its name; with a ``T`` in ``letters`` there are two functions, ``name_float32`` and
            ``name_bfloat16``.
        letters: The tensors' dtypes: ``f`` float32, ``h`` bfloat16, ``T`` either, ``l`` int64,
            ``b`` uint8, ``?`` bool.
        sizes: :attr:`Function.sizes`; a size of -1 refuses every tensor.
    """
    variants = {name: letters}
    if "T" in letters:
        variants = {
            f"{name}_float32": letters.replace("T", "f"),
            f"{name}_bfloat16": letters.replace("T", "h"),
        }
    for full_name, dtypes in variants.items():
        FUNCTIONS[full_name] = Function(tuple(_DTYPES[letter] for letter in dtypes), sizes)


def address(tensor: Tensor, dtype: torch.dtype, size: int | tuple[int, ...]) -> int:
    """Return the address of a tensor's numbers, after checking dtype, device and size.

    C++ gets every address from here, or from :meth:`Library.call`, which checks the same.

    Args:
        tensor: The tensor, which must stay alive.
        dtype: The dtype it must have.
        size: The size it must have, as in :attr:`Function.sizes`.
    """
    if type(size) is int:
        fits = tensor.numel() == size and tensor.is_contiguous()
    else:
        fits = tensor.shape == size and tensor.stride(-1) == 1
    if not (fits and tensor.dtype is dtype and tensor.is_cpu):
        shape = tuple(tensor.shape)
        if type(size) is int:
            expected = f"{size} numbers, contiguous"
        else:
            expected = f"shape {size}"
        raise InputError(
            got=(
                f"a tensor of shape {shape}, {tensor.dtype} on {tensor.device}, strides "
                f"{tensor.stride()}"
            ),
            expected=f"{expected}, of {dtype} on the CPU",
            fix=(
                "Move the module and its input to one device, and give its weights the shapes that "
                "it was built with."
            ),
        )
    return tensor.data_ptr()


def addresses(tensors: Iterable[Tensor]) -> list[int]:
    """Return the present addresses of tensors that :func:`address` has checked."""
    return [*map(Tensor.data_ptr, tensors)]


@dataclass(frozen=True)
class Library:
    """The compiled functions, and the number of :data:`LEVELS` that a call uses."""

    code: ctypes.CDLL
    level: int
    functions: dict[tuple[int, str], Any] = field(default_factory=dict, compare=False, repr=False)

    def call(self, name: str, *arguments: Any) -> int:
        """Call a declared function. All calls from Python to C++ pass through this method.

        The function gets the addresses of its tensors, integers of 64 bits, floats as ``double``,
        and last the strides of tensors whose size is a shape, without the last stride. The result
        is what the function returns: 0 if it succeeded.

        Args:
            name: A name in :data:`FUNCTIONS`.
            arguments: Its tensors, each checked as by :func:`address`, then its numbers.
        """
        declared = self.functions.get((self.level, name))
        if declared is None:
            declared = self._declared(name, arguments)
        count, dtypes, sizes, function = declared
        numbers = arguments[count:]
        pointers: list[int] = []
        strides: tuple[int, ...] = ()
        for tensor, dtype, size in zip(arguments, dtypes, sizes(*numbers), strict=False):
            # The checks of address(), which is called only where one fails, to raise the error.
            if tensor.dtype is not dtype or not tensor.is_cpu:
                address(tensor, dtype, size)
            if not (tensor.numel() == size and tensor.is_contiguous()):
                if tensor.shape != size or tensor.stride(-1) != 1:
                    address(tensor, dtype, size)
                strides += tensor.stride()[:-1]
            pointers.append(tensor.data_ptr())
        result: int = function(*pointers, *numbers, *strides)
        if result == _OUT_OF_MEMORY:
            raise MemoryError(f"not enough memory to work in: {name}{numbers}")
        return result

    def _declared(self, name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Look up what a call needs of a function: number of tensors, dtypes, sizes, the function.

        Declared types make the conversion of arguments three times as fast.
        """
        dtypes, sizes = FUNCTIONS[name]
        numbers = arguments[len(dtypes) :]
        count = len(dtypes)
        strides = sum(len(size) - 1 for size in sizes(*numbers) if isinstance(size, tuple))
        function = getattr(self.code, f"glassformer_{name}_{self.level}")
        types = [
            ctypes.c_double if isinstance(number, float) else ctypes.c_int64 for number in numbers
        ]
        function.argtypes = [ctypes.c_void_p] * count + types + [ctypes.c_int64] * strides
        declared = (count, dtypes, sizes, function)
        self.functions[self.level, name] = declared
        return declared


def library() -> Library | None:
    """Return the library, compiled on first use.

    The result is None if the library is disabled, or cannot be compiled or loaded; a warning says
    once why.

    A wheel of this platform contains it. Otherwise it is compiled, and cached in the folder
    ``glassformer`` of ``$TORCH_EXTENSIONS_DIR`` or of the user's cache. Compiling takes some
    seconds and needs a C++ compiler: ``$CXX``, otherwise ``c++``, ``g++`` or ``clang++``. Machines
    with other instruction sets may share the folder, and compile libraries of their own.

    A library runs with the rights of its user. Therefore it is loaded only from a folder that
    belongs to this user and is closed to others, and only if the hash in its name is that of its
    content. If there is no such folder, each process compiles a library of its own.
    """
    loaded, problem = look()
    if problem:
        _warn_once(problem)
    return loaded


@functools.cache
def look() -> tuple[Library | None, str]:
    """Return what :func:`library` returns, and the text of its warning, or an empty string.

    The text says what is wrong and what to change.
    """
    if os.environ.get(SWITCH, "0") not in ("", "0"):
        return None, _slow(f"{SWITCH} is set", f"Unset {SWITCH} before the first use to have it.")
    if os.name == "nt":
        return None, _slow("there is none for Windows", "Use Linux or macOS.")
    if PREBUILT.exists():
        # With a C library that is too old, or a torch without this OpenMP, one is compiled here.
        with suppress(OSError):
            return _load_prebuilt(), ""
    return _cached_or_compiled()


def _load_prebuilt() -> Library:
    """Load the library of a wheel, with torch's OpenMP, so that the process has one OpenMP."""
    folder = Path(torch.__file__).parent
    for openmp in (*folder.glob("lib/libgomp*"), *folder.parent.glob("torch.libs/libgomp*")):
        ctypes.CDLL(str(openmp), ctypes.RTLD_GLOBAL)
    return _load(PREBUILT)


def _cached_or_compiled() -> tuple[Library | None, str]:
    """Return the library from the cache, or a newly compiled one, as :func:`look` does."""
    stem = _stem()
    try:
        folder = _private_folder()
        library = _cached(folder, stem)
        if library is None and not os.access(folder, os.W_OK):
            raise PermissionError(f"{folder} is read-only")
    except (OSError, RuntimeError) as error:  # RuntimeError: a user without a home
        return _compiled_without_cache(stem, first_line(error))
    return _compiled_and_loaded(folder, stem, library)


def _compiled_without_cache(stem: str, reason: str) -> tuple[Library | None, str]:
    """Compile the library for this process alone, because of ``reason``."""
    fix = "Set TORCH_EXTENSIONS_DIR to a folder of yours."
    try:
        temporary = tempfile.TemporaryDirectory(prefix="glassformer_", ignore_cleanup_errors=True)
    except OSError:
        return None, _slow(f"no folder can hold it ({reason})", fix)
    with temporary as folder:  # a loaded library stays in memory when its folder is removed
        library, problem = _compiled_and_loaded(Path(folder), stem, None)
    if library is not None:
        problem = f"The C++ library cannot be cached, so each process compiles it: {reason}. {fix}"
    return library, problem


def _compiled_and_loaded(
    folder: Path, stem: str, library: Path | None
) -> tuple[Library | None, str]:
    """Load ``library``, or compile it in ``folder`` if it is None."""
    try:
        library = library or _compile(folder, stem)
    except Exception as error:
        fix = "Install a C++ compiler, set CXX to yours, or make room on the disk."
        return None, _slow(f"it cannot be compiled ({first_line(error)})", fix)
    try:
        return _load(library), ""
    except Exception as error:
        fix = (
            "Set TORCH_EXTENSIONS_DIR to a folder from which programs may run, or delete "
            f"{library}."
        )
        return None, _slow(f"it cannot be loaded ({first_line(error)})", fix)


def _slow(reason: str, fix: str) -> str:
    return (
        "Running without the C++ library, which is slower (many times with packed experts): "
        f"{reason}. {fix}"
    )


@functools.cache
def _warn_once(problem: str) -> None:
    # The caller's line: modules are called through torch.
    packages = str(Path(__file__).parents[2]), str(Path(torch.__file__).parent)
    level = 1
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(packages):
        frame = frame.f_back
        level = level + 1
    warnings.warn(problem, stacklevel=level)


def _private_folder() -> Path:
    """Return the folder of libraries, and create it if it is missing.

    Raises:
        OSError: Other users could put a library there.
    """
    base = (
        os.environ.get("TORCH_EXTENSIONS_DIR")
        or os.environ.get("XDG_CACHE_HOME")
        or Path.home() / ".cache"
    )
    folder = Path(base).absolute() / "glassformer"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(f"{folder} is a link, belongs to another user or is open to others")
    return folder


def _stem() -> str:
    """Return the beginning of a library's name, which depends on sources, system and C library.

    Different machines may share a home.
    """
    sources = (source.read_text(encoding="utf-8") for source in sorted(FOLDER.glob("*.[ch]*")))
    parts = (
        *sources,
        str(COMPILED),
        *map(str, _LEVEL_FLAGS),
        platform.machine(),
        sys.platform,
        *platform.libc_ver(),
    )
    return f"native-{hashlib.sha256(chr(10).join(parts).encode()).hexdigest()[:16]}"


def _hashed(stem: str, library: Path) -> str:
    return f"{stem}-{hashlib.sha256(library.read_bytes()).hexdigest()}.so"


def _cached(folder: Path, stem: str) -> Path | None:
    """Return a library that is complete; to load a truncated one would end the process."""
    for library in folder.glob(f"{stem}-*.so"):
        if library.name == _hashed(stem, library):
            return library
    return None


def _compile(folder: Path, stem: str) -> Path:
    """Compile in a new folder and rename the library, so that no process sees half of it.

    A line on standard error says so.
    """
    _delete_old(folder)
    begun = time.monotonic()
    compiler = _compiler()
    message = (
        "glassformer: compiling its C++ library, once for this user; this takes up to a minute ..."
    )
    print(message, end="", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(
        dir=folder, prefix="build-", ignore_cleanup_errors=True
    ) as build:
        draft = Path(build, "library.so")
        try:
            for threading in _THREADING:
                try:
                    _run_compiler(compiler, draft, COMPILED, threading, threading)
                    break
                except RuntimeError:
                    if threading == _THREADING[-1]:
                        raise
            return draft.rename(folder / _hashed(stem, draft))
        finally:
            print(f" {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)


def _delete_old(folder: Path) -> None:
    """Delete libraries of former versions, and folders of builds that were killed."""
    for old in (*folder.glob("native-*.so"), *folder.glob("build-*")):
        with suppress(OSError):
            if time.time() - old.lstat().st_mtime <= _KEPT:
                continue
            if old.is_dir():
                shutil.rmtree(old)
            else:
                old.unlink()


def prebuild(library: Path) -> None:
    """Compile the library of a wheel: every level of this platform, with OpenMP left to torch."""
    _run_compiler(_compiler(), library, range(len(_LEVEL_FLAGS)), _THREADING[0], ())


def _compiler() -> list[str]:
    command = shlex.split(os.environ.get("CXX", "")) or [
        next(filter(shutil.which, _COMPILERS), _COMPILERS[0])
    ]
    if shutil.which(command[0]) is None:
        raise FileNotFoundError(f"there is no command {command[0]}")
    return command


def _run_compiler(
    compiler: Sequence[str],
    library: Path,
    levels: Iterable[int],
    threading: Sequence[str],
    linking: Sequence[str],
) -> None:
    """Compile every source at every level, and link the library.

    As many sources are compiled at a time as there are processors. A compiler without AMX, as
    before GCC 11 and clang 12, compiles the level before it.
    """
    amx = LEVELS.index("AMX")
    remaining = {*levels}
    while True:
        commands = []
        for source in sorted(FOLDER.glob("*.cpp")):
            for level in sorted(remaining):
                output = ["-c", str(source), "-o", f"{library}-{source.stem}-{level}.o"]
                flags = (*threading, *_FLAGS, *_LEVEL_FLAGS[level], f"-DLEVEL={level}")
                commands.append([*compiler, *flags, *output])
        try:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                list(pool.map(_run, commands))
            break
        except RuntimeError:
            if amx not in remaining:
                raise
            remaining = remaining - {amx} | {amx - 1}
    objects = [command[-1] for command in commands]
    _run([*compiler, *linking, "-shared", *objects, "-o", str(library)])


def _run(command: list[str]) -> None:
    process = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
    )
    if process.returncode != 0:
        lines = (process.stdout + process.stderr).strip().splitlines()
        lines.append(f"exit code {process.returncode}")
        message = next((line for line in lines if "error" in line), lines[0])
        raise RuntimeError(f"{command[0]}: {message}")


def _load(library: Path) -> Library:
    code = ctypes.CDLL(str(library))
    best = 0
    for level in range(1, max(COMPILED) + 1):
        if hasattr(code, f"glassformer_some_rows_{level}"):
            best = level
    return Library(code, best)
