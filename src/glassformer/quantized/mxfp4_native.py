"""The MXFP4 kernel for processors: compiled at its first use, kept, and never needed."""

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
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from glassformer.errors import InputError, first_line

SOURCE = Path(__file__).with_name("mxfp4_kernel.cpp")
SWITCH = "GLASSFORMER_NO_NATIVE"
"""The environment variable that leaves the kernel out, set to anything but an empty text or 0."""
LEVELS = ("plain C++", "AVX2", "AVX-512", "AVX-512 with bfloat16 products")
"""What a processor offers, by the kernel's numbers for it."""

_FLAGS = ("-O3", "-std=c++17", "-fPIC", "-shared")
# The ways to compile, best first. Without OpenMP the kernel runs on one thread; Apple's compiler has none.
_THREADING: tuple[tuple[str, ...], ...] = ((),) if sys.platform == "darwin" else (("-fopenmp",), ())
_COMPILERS = ("c++", "g++", "clang++")
_SECONDS_TO_COMPILE = 300
# Groups of 32 weights below which a second thread costs more than it brings.
_GROUPS_PER_THREAD = 2**13


@dataclass(frozen=True)
class Kernel:
    """The compiled functions, and the best of :data:`LEVELS` that this processor has."""

    expand: dict[torch.dtype, Callable[..., None]]
    multiply: dict[torch.dtype, Callable[..., None]]
    level: int


@dataclass(frozen=True)
class Found:
    """What a look for the kernel brought."""

    kernel: Kernel | None
    remark: str | None = None
    """Why there is none, or why it has to be built by each process; None where all is well."""
    fix: str = ""
    """How to mend that."""


def kernel() -> Kernel | None:
    """The kernel, built if it was never built here; None where it is switched off, or cannot be built or loaded.

    The library lies in ``$TORCH_EXTENSIONS_DIR``, otherwise in glassformer's folder of the user's cache, under a name
    made of its source, so that each version is built once. It is compiled for every level, of which each call chooses
    one, so a library also serves another processor of the same kind. A build takes about two seconds and needs a C++
    compiler: ``$CXX``, otherwise ``c++``, ``g++`` or ``clang++``.

    A library runs with all rights of its user. So it is loaded only where its size and SHA-256 are those written down
    beside it, and only from a folder that nobody else can write to. Where there is no such folder, the library is built
    in a temporary one, for this process alone.

    Warns once, where something is amiss, what it is and what mends it.
    """
    found = look()
    if found.remark is not None:
        _say_once(found.remark, found.fix)
    return found.kernel


def look() -> Found:
    """The same as :func:`kernel`, which returns what is amiss in place of a warning."""
    if os.environ.get(SWITCH, "0") not in ("", "0"):
        return Found(None, _slow(f"{SWITCH} is set"), f"Unset {SWITCH} for the faster path.")
    return _built()


@functools.cache
def _built() -> Found:
    otherwise = f"or set {SWITCH}=1 to go without."
    if os.name == "nt":
        return Found(None, _slow("its kernel is not for Windows"), f"Use Linux or macOS, {otherwise}")
    with ExitStack() as stack:
        unkept = None
        try:
            library = _folder() / f"{_name()}.so"
            _require_private(library.parent)
            whole = _is_whole(library)
            if not (whole or os.access(library.parent, os.W_OK | os.X_OK)):
                raise PermissionError(f"{library.parent} cannot be written to")
        except (OSError, RuntimeError) as error:  # of a user without a home: RuntimeError
            unkept, whole = first_line(error), False
        try:
            if unkept is not None:
                # What is loaded stays in memory when the folder goes.
                passing = tempfile.TemporaryDirectory(prefix="glassformer_", ignore_cleanup_errors=True)
                library = Path(stack.enter_context(passing)) / f"{_name()}.so"
            if not whole:
                _build(library)
        except Exception as error:  # whatever a compiler or its absence does, there is another way
            remark = _slow(f"its kernel could not be built ({first_line(error)})")
            return Found(None, remark, f"Install a C++ compiler, or name yours in CXX, {otherwise}")
        try:
            built = _functions(library)
        except Exception as error:
            # Built anew it would be the same, so that every process would build it in vain.
            remark = _slow(f"its kernel is built, but cannot be loaded ({first_line(error)})")
            fix = f"Name a folder in TORCH_EXTENSIONS_DIR from which programs may run, delete {library}, {otherwise}"
            return Found(None, remark, fix)
    if unkept is None:
        return Found(built)
    remark = f"The MXFP4 kernel cannot be kept, so each process builds it anew: {unkept}."
    return Found(built, remark, f"Name a folder that is yours alone in TORCH_EXTENSIONS_DIR, {otherwise}")


@functools.cache
def _say_once(remark: str, fix: str) -> None:
    package, level, frame = str(Path(__file__).parents[1]), 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(package):
        frame, level = frame.f_back, level + 1
    warnings.warn(f"{remark} {fix}", stacklevel=level)


def _slow(reason: str) -> str:
    return f"MXFP4 runs on torch's operators, which is many times slower: {reason}."


def _folder() -> Path:
    """Absolute, as a bare name would be looked for among the system's libraries."""
    given = os.environ.get("TORCH_EXTENSIONS_DIR")
    if given:
        return Path(given).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "glassformer"


def _name() -> str:
    """Another for each source, system and C library, as machines of several kinds may share a home."""
    system = (platform.machine(), sys.platform, *platform.libc_ver())
    told = "\n".join((SOURCE.read_text(encoding="utf-8"), *_FLAGS, *_THREADING[0], *system))
    return f"glassformer_mxfp4_{hashlib.sha256(told.encode()).hexdigest()[:16]}"


def _require_private(folder: Path) -> None:
    """Make the folder, or raise OSError where somebody else could put a library there."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_own(folder, stat.S_ISDIR):
        raise PermissionError(f"{folder} is a link, belongs to somebody else, or can be written to by others")


def _is_own(path: Path, is_kind: Callable[[int], bool]) -> bool:
    """Whether only this user and root can write to ``path``, which is no link."""
    found = path.lstat()
    return is_kind(found.st_mode) and found.st_uid in (os.geteuid(), 0) and not found.st_mode & 0o022


def _is_whole(library: Path) -> bool:
    """Whether the library is the one that was built; loading one that is cut short ends the process."""
    note = library.with_suffix(".sha256")
    try:
        if not (_is_own(library, stat.S_ISREG) and _is_own(note, stat.S_ISREG)):
            return False
        return note.read_bytes() == _note(library)
    except OSError:
        return False


def _note(library: Path) -> bytes:
    """The size and the SHA-256 of a library."""
    content = library.read_bytes()
    return f"{len(content)} {hashlib.sha256(content).hexdigest()}\n".encode()


def _build(library: Path) -> None:
    """Compile it beside its place and rename it, so that no process, and no loss of power, leaves half of it there."""
    before = tempfile.TemporaryDirectory(dir=library.parent, prefix=f"{library.stem}.", ignore_cleanup_errors=True)
    with before as folder:
        draft = Path(folder, library.name)
        _compile(draft)
        note = draft.with_suffix(".sha256")
        note.write_bytes(_note(draft))
        for path, mode in ((draft, 0o755), (note, 0o644)):
            path.chmod(mode)  # whatever the umask is
            _flush(path)
        os.replace(draft, library)
        os.replace(note, library.with_suffix(".sha256"))
    _flush(library.parent)


def _flush(path: Path) -> None:
    """Wait until the file or the directory listing is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _compile(library: Path) -> None:
    compiler = shlex.split(os.environ.get("CXX", "")) or [path for path in map(shutil.which, _COMPILERS) if path][:1]
    if not compiler:
        raise FileNotFoundError(f"there is none of {', '.join(_COMPILERS)}")
    said = ""
    for threading in _THREADING:
        command = [*compiler, *_FLAGS, *threading, "-o", str(library), str(SOURCE)]
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_SECONDS_TO_COMPILE,
            check=False,
        )
        if done.returncode == 0 and library.is_file():
            return
        lines = done.stdout.decode(errors="replace").strip().splitlines()
        said = next((line for line in lines if "error" in line), lines[-1] if lines else f"exit {done.returncode}")
    raise RuntimeError(f"{compiler[0]}: {said}")


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
