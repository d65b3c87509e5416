from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from glassformer.errors import InputError
from glassformer.layers import mxfp4, mxfp4_native
from glassformer.layers.mxfp4_native import LEVELS, Kernel

SOURCE_ROOT = Path(mxfp4_native.__file__).parents[2]


@pytest.fixture
def kernel() -> Kernel:
    built = mxfp4_native.kernel()
    if built is None:
        pytest.skip("no compiler")
    return built


@pytest.fixture
def unbuilt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """As in a fresh process whose folder of libraries is empty."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "libraries"))
    monkeypatch.delenv(mxfp4_native.SWITCH, raising=False)
    mxfp4_native._built.cache_clear()
    mxfp4_native._say_once.cache_clear()
    yield tmp_path / "libraries"
    mxfp4_native._built.cache_clear()


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
        with pytest.raises(InputError, match="contiguous tensors on the CPU"):
            call()


def test_it_is_built_once_and_kept(kernel: Kernel, unbuilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = mxfp4_native.kernel()
    assert first is not None
    (library,) = unbuilt.iterdir()  # and nothing beside it is left of the build
    mxfp4_native._built.cache_clear()
    monkeypatch.setitem(sys.modules, "torch.utils.cpp_extension", None)  # a second build would fail
    second = mxfp4_native.kernel()
    assert second is not None
    assert second.level == first.level == kernel.level
    assert list(unbuilt.iterdir()) == [library]


def tell(call: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert call() is None
    return [str(each.message) for each in caught if "MXFP4" in str(each.message)]


def test_without_a_compiler_it_says_so_once(unbuilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(unbuilt / "no-such-compiler"))
    (said,) = tell(mxfp4_native.kernel)
    assert "could not be built" in said
    assert "Install a C++ compiler" in said
    assert tell(mxfp4_native.kernel) == []
    assert [each.name for each in unbuilt.iterdir()] == []


def test_without_a_folder_to_write_to_it_says_which(unbuilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unbuilt.write_text("a file, where a folder is wanted")
    (said,) = tell(mxfp4_native.kernel)
    assert str(unbuilt) in said


def test_a_damaged_library_is_built_anew(kernel: Kernel, unbuilt: Path) -> None:
    library = mxfp4_native._library()
    library.unlink()
    library.write_bytes(b"no library")
    again = mxfp4_native.kernel()
    assert again is not None
    assert again.level == kernel.level
    assert list(unbuilt.iterdir()) == [library]


@pytest.mark.parametrize(("value", "off"), [("1", True), ("yes", True), ("0", False), ("", False)])
def test_the_switch(value: str, off: bool, kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    mxfp4_native._say_once.cache_clear()
    monkeypatch.setenv(mxfp4_native.SWITCH, value)
    if off:
        (said,) = tell(mxfp4_native.kernel)
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


@pytest.mark.slow
def test_processes_that_build_at_the_same_time(kernel: Kernel, tmp_path: Path) -> None:
    """Each gets a whole library, nothing is printed, and one file is left."""
    code = "from glassformer.layers import mxfp4_native; assert mxfp4_native.kernel().level >= 0"
    environment = os.environ | {"TORCH_EXTENSIONS_DIR": str(tmp_path), "PYTHONPATH": str(SOURCE_ROOT)}
    command = [sys.executable, "-W", "error", "-c", code]
    running = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for _ in range(3)
    ]
    assert [(each.communicate(timeout=120)[0], each.returncode) for each in running] == [(b"", 0)] * 3
    assert [path.suffix for path in tmp_path.iterdir()] == [".so"]
