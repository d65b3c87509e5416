from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from glassformer.kernels import mxfp4_native
from glassformer.kernels.mxfp4 import expand_definition
from glassformer.kernels.mxfp4_native import LEVELS, Kernel
from glassformer.quantized import mxfp4
from refusals import refused

SOURCE_ROOT = Path(mxfp4_native.__file__).parents[2]


def random_rows(rows: int, groups: int) -> tuple[Tensor, Tensor]:
    blocks = torch.randint(256, (rows, groups, 16), dtype=torch.uint8)
    return blocks, torch.randint(110, 130, (rows, groups), dtype=torch.uint8)


# ---- what it computes -----------------------------------------------------------------------------------------------


@pytest.fixture(params=range(len(LEVELS)), ids=LEVELS)
def at_level(request: pytest.FixtureRequest, kernel: Kernel) -> Kernel:
    """The kernel with each instruction set that this processor has."""
    if request.param > kernel.level:
        pytest.skip(f"this processor has no {LEVELS[request.param]}")
    return replace(kernel, level=request.param)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_every_level_expands_to_the_same_bits(at_level: Kernel, dtype: torch.dtype) -> None:
    blocks = torch.arange(256, dtype=torch.uint8).view(1, 16, 16).repeat(255, 1, 1)
    scales = torch.arange(255, dtype=torch.uint8).view(255, 1).repeat(1, 16)
    got = torch.empty(255, 512, dtype=dtype)
    at_level.expand(blocks, scales, got)
    bits = {2: torch.int16, 4: torch.int32}[dtype.itemsize]
    torch.testing.assert_close(got.view(bits), expand_definition(blocks, scales).to(dtype).view(bits), rtol=0, atol=0)
    at_level.expand(blocks, torch.full_like(scales, 255), got)
    assert bool(got.isnan().all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 16, 17, 35])
@pytest.mark.parametrize(("rows", "groups"), [(1, 1), (3, 2), (4, 3), (37, 5)])
def test_every_level_multiplies(at_level: Kernel, dtype: torch.dtype, tokens: int, rows: int, groups: int) -> None:
    """Within the bound of adding n numbers in float32 in any order: n * 2^-24 times the sum of their magnitudes."""
    blocks, scales = random_rows(rows, groups)
    x = torch.randn(tokens, 32 * groups).to(dtype)
    out = torch.full((tokens, rows), float("nan"))
    at_level.multiply(x, blocks, scales, out)
    weights = expand_definition(blocks, scales)
    error = (out.double() - x.double() @ weights.T).abs()
    assert bool((error <= 32 * groups * 2.0**-24 * (x.double().abs() @ weights.abs().T)).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_a_token_is_independent_of_the_batch_and_of_threads(
    at_level: Kernel, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks, scales = random_rows(70, 6)
    x = torch.randn(40, 192).to(dtype)

    def product(x: Tensor, threads: int) -> Tensor:
        monkeypatch.setattr(mxfp4_native, "_threads", lambda _: threads)
        out = torch.empty(len(x), 70)
        at_level.multiply(x, blocks, scales, out)
        return out

    together = product(x, 1)
    torch.testing.assert_close(product(x, 3), together, rtol=0, atol=0)
    for some in (1, 2, 3, 4, 7, 16):
        torch.testing.assert_close(product(x[:some], 2), together[:some], rtol=0, atol=0)


def test_threads_are_used_where_there_is_work() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert [mxfp4_native._threads(groups) for groups in (1, 2**14, 2**20)] == [1, 2, 3]
    finally:
        torch.set_num_threads(before)


@pytest.mark.usefixtures("without_type_checks")
def test_unsupported_tensors_never_reach_the_kernel(kernel: Kernel) -> None:
    blocks, scales = random_rows(4, 2)
    x, out = torch.zeros(3, 64), torch.zeros(3, 4)
    wrong: list[Callable[[], None]] = [
        lambda: kernel.expand(blocks, scales, torch.zeros(4, 63)),
        lambda: kernel.expand(blocks, scales, torch.zeros(4, 64).double()),
        lambda: kernel.expand(blocks, scales, torch.zeros(64, 4).T),
        lambda: kernel.expand(blocks[:3], scales, torch.zeros(4, 64)),
        lambda: kernel.multiply(x.double(), blocks, scales, out),
        lambda: kernel.multiply(x[:, :63], blocks, scales, out),
        lambda: kernel.multiply(x, blocks, scales, out[:2]),
        lambda: kernel.multiply(x, blocks, scales, out.double()),
        lambda: kernel.multiply(x, blocks.transpose(1, 2), scales, out),
        lambda: kernel.multiply(x.to("meta"), blocks, scales, out),
    ]
    for call in wrong:
        with refused(expected="contiguous CPU tensors"):
            call()


# ---- how it is compiled and cached ----------------------------------------------------------------------------------


@pytest.fixture
def unbuilt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The folder of libraries, as in a fresh process that has compiled none."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.delenv(mxfp4_native.SWITCH, raising=False)
    mxfp4_native._built.cache_clear()
    mxfp4_native._warn_once.cache_clear()
    yield tmp_path / "glassformer"
    mxfp4_native._built.cache_clear()


@pytest.fixture(scope="module")
def ready(compiler: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compiler command that copies a library compiled once."""
    folder = tmp_path_factory.mktemp("ready")
    library = mxfp4_native._compile(folder, "ready")
    command = folder / "compiler"
    command.write_text(f'#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\nexec cp "{library}" "$2"\n')
    command.chmod(0o700)
    return command


@pytest.fixture
def quick(ready: Path, unbuilt: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same as ``unbuilt``, where compiling takes no time."""
    monkeypatch.setenv("CXX", shlex.quote(str(ready)))
    return unbuilt


def afresh() -> Kernel | None:
    """As in another process that finds the same folder."""
    mxfp4_native._built.cache_clear()
    return mxfp4_native.kernel()


def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/no-such-folder/no-such-compiler")


def warned(call: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    ours = [each for each in caught if "MXFP4" in str(each.message)]
    calling = warned.__code__.co_firstlineno + 3
    if not hasattr(mxfp4_native.look, "__wrapped__"):  # the check of annotations puts frames of its own between
        assert all((each.filename, each.lineno) == (__file__, calling) for each in ours), "it points at the caller"
    return [str(each.message) for each in ours]


def works(kernel: Kernel | None) -> bool:
    assert kernel is not None
    blocks, scales = random_rows(3, 2)
    got = torch.empty(3, 64)
    kernel.expand(blocks, scales, got)
    return torch.equal(got, expand_definition(blocks, scales).float())


def test_it_is_compiled_once_and_cached(kernel: Kernel, quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    umask = os.umask(0o000)
    try:
        assert warned(mxfp4_native.kernel) == []
    finally:
        os.umask(umask)
    (library,) = quick.iterdir()  # nothing else is left of the build
    assert library.suffix == ".so"
    assert quick.stat().st_mode & 0o777 == 0o700
    no_compiler(monkeypatch)  # a second build would fail
    second = afresh()
    assert second is not None
    assert second.level == kernel.level
    assert works(second)
    assert list(quick.iterdir()) == [library]


def test_it_needs_only_a_compiler(
    kernel: Kernel, unbuilt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither ninja nor torch's loader, and a compiler without OpenMP suffices."""
    (real,) = [path for path in map(shutil.which, mxfp4_native._COMPILERS) if path][:1]
    without = tmp_path / "without openmp"
    without.write_text(
        f'#!/bin/sh\ncase "$*" in *-fopenmp*) echo "error: no openmp"; exit 1;; esac\nexec {real} "$@"\n'
    )
    without.chmod(0o700)
    monkeypatch.setenv("CXX", shlex.join([str(without), "-Wno-unknown-pragmas"]))
    monkeypatch.setitem(sys.modules, "torch.utils.cpp_extension", None)
    assert works(mxfp4_native.kernel())


def test_without_a_compiler_it_warns_once(unbuilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_compiler(monkeypatch)
    (message,) = warned(mxfp4_native.kernel)
    assert "cannot be compiled" in message
    assert "no-such-compiler" in message
    assert "Install a C++ compiler" in message
    assert warned(mxfp4_native.kernel) == []
    assert mxfp4_native.look() == (None, message)
    assert list(unbuilt.iterdir()) == []
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(unbuilt))
    mxfp4_native._built.cache_clear()
    assert "c++" in mxfp4_native.look()[1]


def test_the_compilers_error_is_reported(unbuilt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = tmp_path / "failing"
    failing.write_text("#!/bin/sh\necho in file\necho error: too old\necho more\nexit 1\n")
    failing.chmod(0o700)
    monkeypatch.setenv("CXX", str(failing))
    (message,) = warned(mxfp4_native.kernel)
    assert "error: too old" in message


@pytest.mark.parametrize("how", ["a file", "a link", "writable by all", "writable by a group", "readable by all"])
def test_a_folder_that_is_not_private_is_not_used(how: str, quick: Path, tmp_path: Path) -> None:
    """Nothing in it runs, though its name and hash are right; the process compiles a library of its own."""
    if how == "a file":
        quick.write_text("in place of a folder")
    elif how == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        quick.symlink_to(tmp_path / "elsewhere")
    else:
        quick.mkdir()
        quick.chmod({"writable by all": 0o777, "writable by a group": 0o770, "readable by all": 0o755}[how])
    if quick.is_dir():
        planted = quick / "planted"
        planted.write_bytes(b"untrusted")
        planted = planted.rename(quick / mxfp4_native._hashed(mxfp4_native._stem(), planted))
        assert mxfp4_native._cached(quick, mxfp4_native._stem()) == planted
    (message,) = warned(mxfp4_native.kernel)
    assert "cannot be cached" in message
    assert str(quick) in message
    assert works(mxfp4_native.kernel())
    assert not quick.is_dir() or planted.read_bytes() == b"untrusted"


def test_another_users_folder_is_refused(unbuilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert mxfp4_native._private_folder() == unbuilt
    if os.geteuid() == 0:
        os.chown(unbuilt, 12345, 12345)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(PermissionError, match="belongs to another user"):
        mxfp4_native._private_folder()


def test_a_read_only_folder_serves_what_it_has(quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != quick)  # chmod would not stop root
    mxfp4_native._private_folder()
    (message,) = warned(mxfp4_native.kernel)
    assert "read-only" in message
    assert list(quick.iterdir()) == []
    mxfp4_native._compile(quick, mxfp4_native._stem())
    no_compiler(monkeypatch)
    assert works(afresh())


def cut_short(folder: Path, size: int) -> Path:
    """Leave ``size`` bytes of the library; where that is -1, change a byte of it."""
    mxfp4_native.kernel()
    (library,) = folder.glob("*.so")
    whole = library.read_bytes()
    library.unlink()  # this process has it open, and would fall with it
    library.write_bytes(whole[:size] if size >= 0 else whole[:-1] + bytes([whole[-1] ^ 1]))
    library.chmod(0o755)
    return library


@pytest.mark.parametrize("size", [0, 1_000, 39_552, -1])
def test_a_damaged_library_is_compiled_again(size: int, quick: Path) -> None:
    library = cut_short(quick, size)
    # Checked before it is loaded, as loading it would end this process.
    assert mxfp4_native._cached(quick, mxfp4_native._stem()) is None
    assert works(afresh())
    assert list(quick.iterdir()) == [mxfp4_native._cached(quick, mxfp4_native._stem())] == [library]


@pytest.mark.slow
def test_a_library_that_is_cut_short_ends_no_process(quick: Path) -> None:
    library = cut_short(quick, 20_000)
    code = "from glassformer.kernels import mxfp4_native; assert mxfp4_native.kernel().level >= 0"
    environment = os.environ | {"PYTHONPATH": str(SOURCE_ROOT)}
    subprocess.run([sys.executable, "-W", "error", "-c", code], env=environment, check=True, timeout=120)
    assert mxfp4_native._cached(quick, mxfp4_native._stem()) == library


def test_one_that_cannot_be_loaded_is_not_compiled_again(unbuilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a disk from which no program may run."""
    unbuilt.mkdir(mode=0o700)
    library = unbuilt / "library"
    library.write_bytes(b"for another machine")
    library = library.rename(unbuilt / mxfp4_native._hashed(mxfp4_native._stem(), library))
    no_compiler(monkeypatch)
    (message,) = warned(mxfp4_native.kernel)
    assert "cannot be loaded" in message
    assert str(library) in message
    assert warned(mxfp4_native.kernel) == []
    assert library.read_bytes() == b"for another machine"


@pytest.mark.usefixtures("quick")
def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("TORCH_EXTENSIONS_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    (message,) = warned(mxfp4_native.kernel)
    assert "Could not determine home directory" in message
    assert works(mxfp4_native.kernel())
    mxfp4_native._warn_once.cache_clear()
    mxfp4_native._built.cache_clear()
    no_compiler(monkeypatch)
    (message,) = warned(mxfp4_native.kernel)
    assert "cannot be compiled" in message


def test_the_warning_points_at_the_caller_of_the_library(unbuilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_compiler(monkeypatch)
    with pytest.warns(UserWarning, match="MXFP4") as caught:
        mxfp4.decode(*random_rows(64, 64))
    package = str(Path(mxfp4_native.__file__).parents[1])
    assert not any(each.filename.startswith(package) for each in caught)


@pytest.mark.parametrize(("value", "off"), [("1", True), ("yes", True), ("0", False), ("", False)])
def test_the_switch(value: str, off: bool, kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    mxfp4_native._warn_once.cache_clear()
    monkeypatch.setenv(mxfp4_native.SWITCH, value)
    if off:
        (message,) = warned(mxfp4_native.kernel)
        assert mxfp4_native.look() == (None, message)
        assert mxfp4_native.SWITCH in message
        assert warned(mxfp4_native.kernel) == []
    else:
        assert mxfp4_native.kernel() == kernel


def test_where_libraries_are_cached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert mxfp4_native._private_folder() == tmp_path / "cache" / "glassformer"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert mxfp4_native._private_folder() == tmp_path / ".cache" / "glassformer"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", ".")
    assert (
        mxfp4_native._private_folder() == tmp_path / "glassformer"
    )  # absolute: else the system's libraries are searched


@pytest.mark.slow
def test_processes_that_compile_at_the_same_time(kernel: Kernel, tmp_path: Path) -> None:
    """Each gets a whole library, nothing is printed, and one library is left."""
    code = "from glassformer.kernels import mxfp4_native; assert mxfp4_native.kernel().level >= 0"
    environment = os.environ | {"TORCH_EXTENSIONS_DIR": str(tmp_path), "PYTHONPATH": str(SOURCE_ROOT)}
    command = [sys.executable, "-W", "error", "-c", code]
    running = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for _ in range(3)
    ]
    assert [(each.communicate(timeout=120)[0], each.returncode) for each in running] == [(b"", 0)] * 3
    assert [path.suffix for path in (tmp_path / "glassformer").iterdir()] == [".so"]
