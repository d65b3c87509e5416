from __future__ import annotations

import mmap
import sys
from typing import Any

import pytest
import torch

from glassformer.kernels.huge_pages import empty_in_huge_pages

PAGE = 2**21


@pytest.mark.skipif(sys.platform != "linux", reason="no huge pages")
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (699_050,), (699_051,), (2**20, 3), (2**22 + 1,)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32], ids=str)
def test_pages_that_are_filled_by_a_third_are_huge(
    shape: tuple[int, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    advice: list[tuple[int, ...]] = []

    class Watched(mmap.mmap):
        def madvise(self, *arguments: int) -> None:
            advice.append(arguments)
            super().madvise(*arguments)

    monkeypatch.setattr(mmap, "mmap", Watched)
    tensor = empty_in_huge_pages(shape, dtype)
    assert (tensor.shape, tensor.dtype, tensor.device.type) == (shape, dtype, "cpu")
    assert tensor.untyped_storage().nbytes() == tensor.nbytes
    pages = tensor.nbytes // PAGE + (3 * (tensor.nbytes % PAGE) >= PAGE)
    assert [length for _, _, length in advice] == [pages * PAGE] * (pages > 0)
    assert pages == 0 or tensor.data_ptr() % PAGE == 0


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.int8], ids=str)
def test_it_can_be_written_and_read(dtype: torch.dtype) -> None:
    tensor = empty_in_huge_pages((3, 2**20), dtype)
    assert tensor.fill_(2).float().sum() == 6 * 2**20
    assert empty_in_huge_pages((2**24,), dtype, "meta").is_meta


@pytest.mark.skipif(sys.platform != "linux", reason="no huge pages")
def test_a_system_without_huge_pages_gets_another_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(mmap.mmap):
        def madvise(self, *arguments: Any) -> None:
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(mmap, "mmap", Refusing)
    assert empty_in_huge_pages((3, 2**20), torch.float32).fill_(2).sum() == 6 * 2**20
