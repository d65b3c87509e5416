"""How the C++ library is compiled, cached and loaded."""

import ctypes
import errno
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from glassformer.kernels import native
from glassformer.kernels.mxfp4 import expand_definition, expand_natively
from glassformer.kernels.native import Library
from glassformer.layers.norms import RMSNorm
from glassformer.layers.quantized import mxfp4
from processes import printed

SOURCE_ROOT = Path(native.__file__).parents[3]


@pytest.fixture
def unbuilt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The folder of libraries, as in a fresh process that has compiled none."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.delenv(native.SWITCH, raising=False)
    native.look.cache_clear()
    native._warn_once.cache_clear()
    yield tmp_path / "glassformer"
    native.look.cache_clear()


@pytest.fixture
def quick(library: Library, unbuilt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same as ``unbuilt``, where compiling takes no time: the compiler copies the library that
    there is.
    """
    command = tmp_path / "copying"
    command.write_text(
        f'#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\nexec cp "{library.code._name}" "$2"\n'
    )
    command.chmod(0o700)
    monkeypatch.setenv("CXX", shlex.quote(str(command)))
    return unbuilt


def afresh() -> Library | None:
    """As in another process that finds the same folder."""
    native.look.cache_clear()
    return native.library()


def test_a_broken_library_of_a_wheel_is_replaced(
    quick: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = list[Path]()
    load = ctypes.CDLL
    monkeypatch.setattr(
        ctypes, "CDLL", lambda path, *mode: loaded.append(Path(path)) or load(path, *mode)
    )
    monkeypatch.setattr(native, "PREBUILT", tmp_path / "prebuilt.so")
    native.PREBUILT.write_bytes(b"of another system")
    library = afresh()
    assert Path(library.code._name).parent == quick
    assert {*Path(torch.__file__).parent.glob("lib/libgomp*")} <= {
        *loaded[: loaded.index(native.PREBUILT)]
    }


def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/no-such-folder/no-such-compiler")


def warned(call: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    ours = [each for each in caught if "C++ library" in str(each.message)]
    calling = warned.__code__.co_firstlineno + 3
    if not hasattr(
        native.library, "__wrapped__"
    ):  # the check of annotations puts frames of its own between
        assert all((each.filename, each.lineno) == (__file__, calling) for each in ours), (
            "it points at the caller"
        )
    return [str(each.message) for each in ours]


def works(library: Library | None) -> bool:
    assert library is not None
    blocks = torch.randint(256, (3, 2, 16), dtype=torch.uint8)
    scales = torch.full((3, 2), 120, dtype=torch.uint8)
    got = torch.empty(3, 64)
    expand_natively(library, blocks, scales, got)
    return torch.equal(got, expand_definition(blocks, scales).float())


def test_it_is_compiled_once_and_cached(
    library: Library, quick: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    umask = os.umask(0o000)
    try:
        assert warned(native.library) == []
    finally:
        os.umask(umask)
    (file,) = quick.iterdir()  # nothing else is left of the build
    assert file.suffix == ".so"
    assert quick.stat().st_mode & 0o777 == 0o700
    no_compiler(monkeypatch)  # a second build would fail
    second = afresh()
    assert second.level == library.level
    assert works(second)
    assert list(quick.iterdir()) == [file]


@pytest.mark.slow
def test_a_compiler_is_enough(
    library: Library, unbuilt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither ninja nor torch's loader, and a compiler without OpenMP suffices."""
    (real,) = [path for path in map(shutil.which, native._COMPILERS) if path][:1]
    without = tmp_path / "without openmp"
    without.write_text(
        f'#!/bin/sh\ncase "$*" in *-fopenmp*) echo "error: no openmp"; exit 1;; esac\nexec {real} "$@" -O0\n'
    )
    without.chmod(0o700)
    monkeypatch.setattr(native, "COMPILED", (native.best_level(),))
    monkeypatch.setenv("CXX", shlex.join([str(without), "-Wno-unknown-pragmas"]))
    monkeypatch.setitem(sys.modules, "torch.utils.cpp_extension", None)
    assert works(native.library())


@pytest.mark.slow
def test_an_older_compiler_leaves_out_amx(
    unbuilt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    amx = native.LEVELS.index("AMX")
    if native.best_level() < amx:
        pytest.skip("this processor has no AMX")
    (real,) = [path for path in map(shutil.which, native._COMPILERS) if path][:1]
    older = tmp_path / "older"
    older.write_text(
        f'#!/bin/sh\ncase "$*" in *-mamx*) echo "error: -mamx-tile"; exit 1;; esac\nexec {real} "$@" -O0\n'
    )
    older.chmod(0o700)
    monkeypatch.setattr(native, "COMPILED", (amx,))
    monkeypatch.setenv("CXX", str(older))
    found = native.library()
    assert found is not None
    assert found.level == amx - 1
    assert works(found)


def test_without_a_compiler_it_warns_once(
    unbuilt: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    no_compiler(monkeypatch)
    (message,) = warned(native.library)
    assert "cannot be compiled" in message
    assert "no-such-compiler" in message
    assert "Install a C++ compiler" in message
    assert warned(native.library) == []
    assert native.look() == (None, message)
    assert list(unbuilt.iterdir()) == []
    assert capsys.readouterr().err == "", "it does not say that it compiles"
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(unbuilt))
    native.look.cache_clear()
    assert "c++" in native.look()[1]


def test_the_compilers_error_is_reported(
    unbuilt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = tmp_path / "failing"
    failing.write_text("#!/bin/sh\necho in file\necho error: too old\necho more\nexit 1\n")
    failing.chmod(0o700)
    monkeypatch.setenv("CXX", str(failing))
    (message,) = warned(native.library)
    assert "error: too old" in message


@pytest.mark.parametrize(
    "how", ["a file", "a link", "writable by all", "writable by a group", "readable by all"]
)
def test_a_folder_that_is_not_private_is_not_used(how: str, quick: Path, tmp_path: Path) -> None:
    """Nothing in it runs, though its name and hash are right; the process compiles a library of its
    own.
    """
    if how == "a file":
        quick.write_text("in place of a folder")
    elif how == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        quick.symlink_to(tmp_path / "elsewhere")
    else:
        quick.mkdir()
        quick.chmod(
            {"writable by all": 0o777, "writable by a group": 0o770, "readable by all": 0o755}[how]
        )
    if quick.is_dir():
        planted = quick / "planted"
        planted.write_bytes(b"untrusted")
        planted = planted.rename(quick / native._hashed(native._stem(), planted))
        assert native._cached(quick, native._stem()) == planted
    (message,) = warned(native.library)
    assert "cannot be cached" in message
    assert str(quick) in message
    assert works(native.library())
    assert not quick.is_dir() or planted.read_bytes() == b"untrusted"


def test_a_folder_that_cannot_be_removed_is_left(
    quick: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a network's disk, which keeps what a process has open."""
    quick.write_text("in place of a folder")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(
        os, "rmdir", Mock(side_effect=OSError(errno.ENOTEMPTY, "Directory not empty"))
    )
    (message,) = warned(native.library)
    assert "cannot be cached" in message
    assert works(native.library())


def test_another_users_folder_is_refused(unbuilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert native._private_folder() == unbuilt
    if os.geteuid() == 0:
        os.chown(unbuilt, 12345, 12345)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(PermissionError, match="belongs to another user"):
        native._private_folder()


def test_a_read_only_folder_serves_what_it_has(
    quick: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # chmod would not stop root
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != quick)
    native._private_folder()
    (message,) = warned(native.library)
    assert "read-only" in message
    assert list(quick.iterdir()) == []
    native._compile(quick, native._stem())
    no_compiler(monkeypatch)
    assert works(afresh())


def test_a_read_only_system_uses_what_is_cached(
    quick: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can be written anywhere: not in the cache, nor for a temporary folder."""
    nowhere = Mock(side_effect=FileNotFoundError("No usable temporary directory found in ['/tmp']"))
    native._private_folder()
    library = native._compile(quick, native._stem())
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    monkeypatch.setattr(tempfile, "mkdtemp", nowhere)
    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    no_compiler(monkeypatch)
    assert warned(native.library) == []
    assert works(native.library())
    library.unlink()
    native.look.cache_clear()
    (message,) = warned(native.library)
    assert "Running without the C++ library" in message
    assert "is read-only" in message
    assert warned(native.library) == []
    assert RMSNorm(8)(torch.ones(2, 8)).isfinite().all()


def test_compiling_says_so_in_one_line(quick: Path, capsys: pytest.CaptureFixture[str]) -> None:
    native.library()
    said = capsys.readouterr()
    assert re.fullmatch(
        r"glassformer: compiling its C\+\+ library, once .* \.\.\. \d+ s\n", said.err
    )
    assert said.out == ""
    afresh()
    assert capsys.readouterr().err == ""
    assert len(list(quick.iterdir())) == 1


def test_compiling_removes_what_former_versions_left(quick: Path) -> None:
    quick.mkdir(mode=0o700)
    (quick / "build-killed").mkdir()
    for name in ("native-1-2.so", "native-1-3.so", "mine.so", "build-killed/library.so"):
        (quick / name).write_bytes(b"")
    for name in ("native-1-2.so", "mine.so", "build-killed"):
        os.utime(quick / name, (0, 0))
    assert works(native.library())
    kept = {each.name for each in quick.iterdir()} - {native._cached(quick, native._stem()).name}
    assert kept == {"native-1-3.so", "mine.so"}


def cut_short(folder: Path, size: int) -> Path:
    """Leave ``size`` bytes of the library; where that is -1, change a byte of it."""
    native.library()
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
    assert native._cached(quick, native._stem()) is None
    assert works(afresh())
    assert list(quick.iterdir()) == [native._cached(quick, native._stem())] == [library]


@pytest.mark.slow
def test_a_library_that_is_cut_short_ends_no_process(quick: Path) -> None:
    library = cut_short(quick, 20_000)
    code = f"from glassformer.kernels import native; native.COMPILED = {native.COMPILED}; native.library().level"
    printed(code, "-W", "error", timeout=600)
    assert native._cached(quick, native._stem()) == library


def test_one_that_cannot_be_loaded_is_not_compiled_again(
    unbuilt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk from which no program may run."""
    unbuilt.mkdir(mode=0o700)
    library = unbuilt / "library"
    library.write_bytes(b"for another machine")
    library = library.rename(unbuilt / native._hashed(native._stem(), library))
    no_compiler(monkeypatch)
    (message,) = warned(native.library)
    assert "cannot be loaded" in message
    assert str(library) in message
    assert warned(native.library) == []
    assert library.read_bytes() == b"for another machine"


@pytest.mark.usefixtures("quick")
def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(
        Path, "home", Mock(side_effect=RuntimeError("Could not determine home directory."))
    )
    (message,) = warned(native.library)
    assert "Could not determine home directory" in message
    assert works(native.library())
    native._warn_once.cache_clear()
    native.look.cache_clear()
    no_compiler(monkeypatch)
    (message,) = warned(native.library)
    assert "cannot be compiled" in message


def test_the_warning_points_at_the_caller_of_the_library(
    unbuilt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_compiler(monkeypatch)
    for use in (
        lambda: mxfp4.decode(
            torch.zeros(64, 64, 16, dtype=torch.uint8), torch.zeros(64, 64, dtype=torch.uint8)
        ),
        lambda: nn.Sequential(RMSNorm(8))(torch.ones(2, 8)),
    ):
        native._warn_once.cache_clear()
        with pytest.warns(UserWarning, match=r"C\+\+ library") as caught:
            use()
        packages = str(SOURCE_ROOT / "glassformer"), str(Path(torch.__file__).parent)
        assert not any(each.filename.startswith(packages) for each in caught)


@pytest.mark.parametrize(("value", "off"), [("1", True), ("yes", True), ("0", False), ("", False)])
def test_the_switch(
    value: str, off: bool, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    native._warn_once.cache_clear()
    monkeypatch.setattr(native, "look", native.look.__wrapped__)
    monkeypatch.setenv(native.SWITCH, value)
    if off:
        (message,) = warned(native.library)
        assert native.look() == (None, message)
        assert native.SWITCH in message
        assert warned(native.library) == []
    else:
        assert works(native.library())


def test_where_libraries_are_cached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert native._private_folder() == tmp_path / "cache" / "glassformer"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert native._private_folder() == tmp_path / ".cache" / "glassformer"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", ".")
    # absolute: else the system's libraries are searched
    assert native._private_folder() == tmp_path / "glassformer"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("capability", "level"), [("default", 0), ("avx2", min(native.best_level(), 1))]
)
def test_torchs_limit_of_instructions(capability: str, level: int) -> None:
    """``ATEN_CPU_CAPABILITY`` limits our kernels as it limits torch's."""
    code = "from glassformer.kernels import linear, native; print(native.best_level(), linear.slow_mkl())"
    environment = os.environ | {"ATEN_CPU_CAPABILITY": capability}
    assert printed(code, "-W", "error", env=environment, timeout=600) == f"{level} False\n"


@pytest.mark.slow
def test_processes_that_compile_at_the_same_time(library: Library, tmp_path: Path) -> None:
    """Each gets a whole library, nothing but a line about it is printed, and one library is left."""
    code = "from glassformer.kernels import native; assert native.library().level >= 0"
    environment = os.environ | {
        "TORCH_EXTENSIONS_DIR": str(tmp_path),
        "PYTHONPATH": str(SOURCE_ROOT),
    }
    command = [sys.executable, "-W", "error", "-c", code]
    options = {"env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    running = [subprocess.Popen(command, **options) for _ in range(3)]
    said = [each.communicate(timeout=600)[0] for each in running]
    assert [each.returncode for each in running] == [0] * 3
    assert all(re.fullmatch(rb"(glassformer: compiling .* s\n)?", each) for each in said)
    assert [path.suffix for path in (tmp_path / "glassformer").iterdir()] == [".so"]
