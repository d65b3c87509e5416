import mmap
import sys
from typing import Any

import pytest
import torch

from glassformer.kernels.huge_pages import SharedPages, empty_in_huge_pages

PAGE = 2**21


@pytest.mark.skipif(sys.platform != "linux", reason="no huge pages")
@pytest.mark.parametrize(
    "shape", [(), (0, 3), (5,), (699_050,), (699_051,), (2**20, 3), (2**22 + 1,)]
)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32], ids=str)
def test_which_pages_are_huge(
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


def test_tensors_that_share_pages_have_storages_of_their_own() -> None:
    pages = SharedPages()
    dtypes = (torch.uint8, torch.bfloat16, torch.float32)
    shapes = [(3, 1001), (), (0, 5), (2**24 + 3,), (7,), (2**24,), (2**25 + 1,), (2, 2)]
    found = [
        pages.empty(shape, dtype).fill_(n) for n, shape in enumerate(shapes) for dtype in dtypes
    ]
    for n, tensor in enumerate(found):
        assert (tensor.shape, tensor.dtype) == (shapes[n // 3], dtypes[n % 3])
        assert (tensor == n // 3).all()
        assert tensor.untyped_storage().nbytes() == tensor.nbytes
        assert tensor.numel() == 0 or tensor.data_ptr() % 64 == 0


@pytest.mark.skipif(sys.platform != "linux", reason="no huge pages")
def test_shared_pages_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[int] = []

    class Watched(mmap.mmap):
        def __new__(cls, *arguments: Any, **more: Any) -> mmap.mmap:
            alive.append(1)
            return super().__new__(cls, *arguments, **more)

        def __del__(self) -> None:
            alive.pop()

    monkeypatch.setattr(mmap, "mmap", Watched)
    pages = SharedPages()
    for _ in range(40):
        pages.empty((2**22,), torch.uint8)
        assert len(alive) == 1
    kept = [pages.empty((2**22,), torch.uint8) for _ in range(16)]
    assert len(alive) == 2
    del kept, pages
    assert not alive
