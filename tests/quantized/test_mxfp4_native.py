from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from glassformer.quantized import mxfp4, mxfp4_native
from glassformer.quantized.mxfp4_native import LEVELS, Kernel
from refusals import refused

SOURCE_ROOT = Path(mxfp4_native.__file__).parents[2]


@pytest.fixture
def unbuilt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """As in a fresh process whose folder of libraries is empty."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "libraries"))
    monkeypatch.delenv(mxfp4_native.SWITCH, raising=False)
    mxfp4_native._built.cache_clear()
    mxfp4_native._say_once.cache_clear()
    yield tmp_path / "libraries"
    mxfp4_native._built.cache_clear()


@pytest.fixture(scope="module")
def ready(compiler: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A command that has the library ready, in place of a compiler that makes it."""
    folder = tmp_path_factory.mktemp("ready")
    mxfp4_native._compile(folder / "library")
    command = folder / "compiler"
    command.write_text(f'#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\nexec cp "{folder}/library" "$2"\n')
    command.chmod(0o700)
    return command


@pytest.fixture
def quick(ready: Path, unbuilt: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same as ``unbuilt``, where building takes no time."""
    monkeypatch.setenv("CXX", shlex.quote(str(ready)))
    return unbuilt


def random_rows(rows: int, groups: int) -> tuple[Tensor, Tensor]:
    blocks = torch.randint(256, (rows, groups, 16), dtype=torch.uint8)
    return blocks, torch.randint(110, 130, (rows, groups), dtype=torch.uint8)


@pytest.mark.parametrize("level", range(len(LEVELS)), ids=LEVELS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_every_level_expands_to_the_same_bits(kernel: Kernel, level: int, dtype: torch.dtype) -> None:
    blocks = torch.arange(256, dtype=torch.uint8).view(1, 16, 16).repeat(255, 1, 1)
    scales = torch.arange(255, dtype=torch.uint8).view(255, 1).repeat(1, 16)
    got, expected = torch.empty(255, 512, dtype=dtype), torch.empty(255, 512, dtype=dtype)
    mxfp4_native.expand(kernel, blocks, scales, got, level)
    mxfp4._decode_by_table(blocks, scales, expected)
    whole = {2: torch.int16, 4: torch.int32}[dtype.itemsize]
    torch.testing.assert_close(got.view(whole), expected.view(whole), rtol=0, atol=0)
    mxfp4_native.expand(kernel, blocks, torch.full_like(scales, 255), got, level)
    assert bool(got.isnan().all())


@pytest.mark.parametrize("level", range(len(LEVELS)), ids=LEVELS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 16, 17, 35])
@pytest.mark.parametrize(("rows", "groups"), [(1, 1), (3, 2), (4, 3), (37, 5)])
def test_every_level_multiplies(
    kernel: Kernel, level: int, dtype: torch.dtype, tokens: int, rows: int, groups: int
) -> None:
    """Within the bound of adding n numbers in float32, in whatever order: n * 2^-24 times the sum of their sizes."""
    blocks, scales = random_rows(rows, groups)
    x = torch.randn(tokens, 32 * groups).to(dtype)
    out = torch.full((tokens, rows), float("nan"))
    mxfp4_native.multiply(kernel, x, blocks, scales, out, level)
    weights = torch.empty(rows, 32 * groups, dtype=torch.float64)
    mxfp4._decode_by_table(blocks, scales, weights)
    error = (out.double() - x.double() @ weights.T).abs()
    assert bool((error <= 32 * groups * 2.0**-24 * (x.double().abs() @ weights.abs().T)).all())


@pytest.mark.parametrize("level", range(len(LEVELS)), ids=LEVELS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_a_token_does_not_mind_company_or_threads(
    kernel: Kernel, level: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks, scales = random_rows(70, 6)
    x = torch.randn(40, 192).to(dtype)

    def product(x: Tensor, threads: int) -> Tensor:
        monkeypatch.setattr(mxfp4_native, "_threads", lambda _: threads)
        out = torch.empty(len(x), 70)
        mxfp4_native.multiply(kernel, x, blocks, scales, out, level)
        return out

    together = product(x, 1)
    torch.testing.assert_close(product(x, 3), together, rtol=0, atol=0)
    for some in (1, 2, 3, 4, 7, 16):
        torch.testing.assert_close(product(x[:some], 2), together[:some], rtol=0, atol=0)


def test_a_level_that_the_processor_lacks_is_lowered(kernel: Kernel) -> None:
    lesser = Kernel(kernel.expand, kernel.multiply, 0)
    blocks, scales = random_rows(5, 2)
    x = torch.randn(3, 64)
    got, expected = torch.empty(3, 5), torch.empty(3, 5)
    mxfp4_native.multiply(lesser, x, blocks, scales, got, 3)
    mxfp4_native.multiply(kernel, x, blocks, scales, expected, 0)
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_threads_are_used_where_there_is_work() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert [mxfp4_native._threads(groups) for groups in (1, 2**14, 2**20)] == [1, 2, 3]
    finally:
        torch.set_num_threads(before)


@pytest.mark.usefixtures("without_type_checks")
def test_what_the_kernel_cannot_take_never_reaches_it(kernel: Kernel) -> None:
    blocks, scales = random_rows(4, 2)
    x, out = torch.zeros(3, 64), torch.zeros(3, 4)
    wrong: list[Callable[[], None]] = [
        lambda: mxfp4_native.expand(kernel, blocks, scales, torch.zeros(4, 63)),
        lambda: mxfp4_native.expand(kernel, blocks, scales, torch.zeros(4, 64).double()),
        lambda: mxfp4_native.expand(kernel, blocks, scales, torch.zeros(64, 4).T),
        lambda: mxfp4_native.expand(kernel, blocks[:3], scales, torch.zeros(4, 64)),
        lambda: mxfp4_native.multiply(kernel, x.double(), blocks, scales, out),
        lambda: mxfp4_native.multiply(kernel, x[:, :63], blocks, scales, out),
        lambda: mxfp4_native.multiply(kernel, x, blocks, scales, out[:2]),
        lambda: mxfp4_native.multiply(kernel, x, blocks, scales, out.double()),
        lambda: mxfp4_native.multiply(kernel, x, blocks.transpose(1, 2), scales, out),
        lambda: mxfp4_native.multiply(kernel, x.to("meta"), blocks, scales, out),
    ]
    for call in wrong:
        with refused(expected="contiguous tensors on the CPU"):
            call()


def afresh() -> Kernel | None:
    """As in another process that finds the same folder."""
    mxfp4_native._built.cache_clear()
    return mxfp4_native.kernel()


def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/no-such-folder/no-such-compiler")


def tell(call: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(each.message) for each in caught if "MXFP4" in str(each.message)]


def works(kernel: Kernel | None) -> bool:
    assert kernel is not None
    blocks, scales = random_rows(3, 2)
    got, expected = torch.empty(3, 64), torch.empty(3, 64)
    mxfp4_native.expand(kernel, blocks, scales, got)
    mxfp4._decode_by_table(blocks, scales, expected)
    return torch.equal(got, expected)


def test_it_is_built_once_and_kept(kernel: Kernel, quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    umask = os.umask(0o000)
    try:
        assert tell(mxfp4_native.kernel) == []
    finally:
        os.umask(umask)
    kept = sorted(quick.iterdir())  # and nothing beside them is left of the build
    assert [path.suffix for path in kept] == [".sha256", ".so"]
    assert [path.stat().st_mode & 0o777 for path in (quick, *kept)] == [0o700, 0o644, 0o755]
    no_compiler(monkeypatch)  # a second build would fail
    second = afresh()
    assert second is not None
    assert second.level == kernel.level
    assert works(second)
    assert sorted(quick.iterdir()) == kept


def test_it_needs_nothing_but_a_compiler(
    kernel: Kernel, unbuilt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither ninja nor torch's loader, and a compiler that lacks OpenMP will do."""
    (real,) = [path for path in map(shutil.which, mxfp4_native._COMPILERS) if path][:1]
    without = tmp_path / "without openmp"
    without.write_text(
        f'#!/bin/sh\ncase "$*" in *-fopenmp*) echo "error: no openmp"; exit 1;; esac\nexec {real} "$@"\n'
    )
    without.chmod(0o700)
    monkeypatch.setenv("CXX", shlex.join([str(without), "-Wno-unknown-pragmas"]))
    monkeypatch.setitem(sys.modules, "torch.utils.cpp_extension", None)
    assert works(mxfp4_native.kernel())


def test_without_a_compiler_it_says_so_once(unbuilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_compiler(monkeypatch)
    (said,) = tell(mxfp4_native.kernel)
    assert "could not be built" in said
    assert "no-such-compiler" in said
    assert "Install a C++ compiler" in said
    assert tell(mxfp4_native.kernel) == []
    assert mxfp4_native.look().kernel is None
    assert (mxfp4_native.look().remark or "missing") in said
    assert [each.name for each in unbuilt.iterdir()] == []
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(unbuilt))
    mxfp4_native._built.cache_clear()
    assert "there is none of c++, g++, clang++" in (mxfp4_native.look().remark or "")


def test_what_a_compiler_says_is_told(unbuilt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = tmp_path / "failing"
    failing.write_text("#!/bin/sh\necho in file\necho error: too old\necho more\nexit 1\n")
    failing.chmod(0o700)
    monkeypatch.setenv("CXX", str(failing))
    (said,) = tell(mxfp4_native.kernel)
    assert "error: too old" in said


@pytest.mark.parametrize("how", ["a file", "a link", "for all", "for a group"])
def test_a_folder_that_is_not_private_is_left_alone(how: str, quick: Path, tmp_path: Path) -> None:
    """Nothing in it runs, though its name and note are right; this process has a library of its own."""
    if how == "a file":
        quick.write_text("where a folder is wanted")
    elif how == "a link":
        (tmp_path / "elsewhere").mkdir()
        quick.symlink_to(tmp_path / "elsewhere")
    else:
        quick.mkdir()
        quick.chmod({"for all": 0o777, "for a group": 0o770}[how])
    if quick.is_dir():
        planted = quick / f"{mxfp4_native._name()}.so"
        planted.write_bytes(b"a stranger's")
        planted.with_suffix(".sha256").write_bytes(mxfp4_native._note(planted))
    (said,) = tell(mxfp4_native.kernel)
    assert "cannot be kept" in said
    assert str(quick) in said
    assert works(mxfp4_native.kernel())
    assert not quick.is_dir() or planted.read_bytes() == b"a stranger's"


@pytest.mark.parametrize("what", [".so", ".sha256"])
@pytest.mark.parametrize("how", ["a link", "for all", "another's"])
def test_a_file_that_is_not_private_is_replaced(what: str, how: str, quick: Path, tmp_path: Path) -> None:
    mxfp4_native.kernel()
    library = quick / f"{mxfp4_native._name()}.so"
    file = library.with_suffix(what)
    if how == "a link":
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    elif how == "for all":
        file.chmod(0o777)
    elif os.geteuid() == 0:
        os.chown(file, 12345, 12345)
    else:
        pytest.skip("only root gives files away")
    assert not mxfp4_native._is_whole(library)
    assert works(afresh())
    assert mxfp4_native._is_whole(library)


def test_another_users_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mxfp4_native._require_private(tmp_path / "own")
    if os.geteuid() == 0:
        os.chown(tmp_path / "own", 12345, 12345)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(PermissionError, match="belongs to somebody else"):
        mxfp4_native._require_private(tmp_path / "own")


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
def test_a_damaged_library_is_built_anew(size: int, quick: Path) -> None:
    library = cut_short(quick, size)
    assert not mxfp4_native._is_whole(library)  # asked first, as loading it would end this process
    assert works(afresh())
    assert mxfp4_native._is_whole(library)
    assert len(list(quick.iterdir())) == 2


@pytest.mark.slow
def test_a_library_that_is_cut_short_ends_no_process(quick: Path) -> None:
    library = cut_short(quick, 20_000)
    code = "from glassformer.quantized import mxfp4_native; assert mxfp4_native.kernel().level >= 0"
    environment = os.environ | {"PYTHONPATH": str(SOURCE_ROOT)}
    subprocess.run([sys.executable, "-W", "error", "-c", code], env=environment, check=True, timeout=120)
    assert mxfp4_native._is_whole(library)


def test_one_that_cannot_be_loaded_is_not_built_again(unbuilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a disk from which nothing may run."""
    unbuilt.mkdir(mode=0o700)
    library = unbuilt / f"{mxfp4_native._name()}.so"
    library.write_bytes(b"for another machine")
    library.with_suffix(".sha256").write_bytes(mxfp4_native._note(library))
    for path in unbuilt.iterdir():
        path.chmod(0o600)
    no_compiler(monkeypatch)
    (said,) = tell(mxfp4_native.kernel)
    assert "cannot be loaded" in said
    assert str(library) in said
    assert tell(mxfp4_native.kernel) == []
    assert library.read_bytes() == b"for another machine"


@pytest.mark.usefixtures("quick")
def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("TORCH_EXTENSIONS_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    (said,) = tell(mxfp4_native.kernel)
    assert "Could not determine home directory" in said
    assert works(mxfp4_native.kernel())
    mxfp4_native._say_once.cache_clear()
    mxfp4_native._built.cache_clear()
    no_compiler(monkeypatch)
    (said,) = tell(mxfp4_native.kernel)
    assert "could not be built" in said


def test_the_warning_points_at_who_called_the_library(unbuilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_compiler(monkeypatch)
    with pytest.warns(UserWarning, match="MXFP4") as caught:
        mxfp4.decode(*random_rows(64, 64))
    package = str(Path(mxfp4_native.__file__).parents[1])
    assert not any(each.filename.startswith(package) for each in caught)


@pytest.mark.parametrize(("value", "off"), [("1", True), ("yes", True), ("0", False), ("", False)])
def test_the_switch(value: str, off: bool, kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    mxfp4_native._say_once.cache_clear()
    monkeypatch.setenv(mxfp4_native.SWITCH, value)
    if off:
        (said,) = tell(mxfp4_native.kernel)
        assert mxfp4_native.look().kernel is None
        assert mxfp4_native.SWITCH in said
        assert tell(mxfp4_native.kernel) == []
    else:
        assert mxfp4_native.kernel() == kernel


def test_where_libraries_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert mxfp4_native._folder() == tmp_path / "glassformer"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert mxfp4_native._folder() == Path.home() / ".cache" / "glassformer"
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", ".")
    assert mxfp4_native._folder() == Path.cwd()


@pytest.mark.slow
def test_processes_that_build_at_the_same_time(kernel: Kernel, tmp_path: Path) -> None:
    """Each gets a whole library, nothing is printed, and one library is left."""
    code = "from glassformer.quantized import mxfp4_native; assert mxfp4_native.kernel().level >= 0"
    environment = os.environ | {"TORCH_EXTENSIONS_DIR": str(tmp_path), "PYTHONPATH": str(SOURCE_ROOT)}
    command = [sys.executable, "-W", "error", "-c", code]
    running = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for _ in range(3)
    ]
    assert [(each.communicate(timeout=120)[0], each.returncode) for each in running] == [(b"", 0)] * 3
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".sha256", ".so"]
