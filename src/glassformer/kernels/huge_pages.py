"""Memory for large weights in huge pages, whose addresses a processor looks up less often."""

import math
import mmap
import sys
from collections.abc import Sequence
from threading import Lock

import torch
from torch import Tensor

# The size on x86 and most ARM systems. Elsewhere less of a tensor is in huge pages.
_PAGE = 2**21
_SHARED = 2**25  # bytes of huge pages that small tensors share
_ALIGNMENT = 64


def empty_in_huge_pages(
    shape: Sequence[int], dtype: torch.dtype, device: torch.device | str = "cpu"
) -> Tensor:
    """Return an uninitialised tensor, for which Linux is asked for huge pages.

    It begins where a huge page begins. Its end, after whole pages, gets another page if it fills at
    least a third of that, so that memory is not wasted.

    Source: madvise(2), ``MADV_HUGEPAGE``.
    """
    size = math.prod(shape) * dtype.itemsize
    pages = (size + _PAGE * 2 // 3) // _PAGE
    if sys.platform != "linux" or torch.device(device).type != "cpu" or pages == 0:
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    try:
        memory = mmap.mmap(-1, size + 2 * _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        start = -torch.frombuffer(memory, dtype=torch.uint8).data_ptr() % _PAGE
        memory.madvise(mmap.MADV_HUGEPAGE, start, pages * _PAGE)
    except OSError:  # no huge pages, or too little memory, which torch.empty reports
        return torch.empty(tuple(shape), dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=math.prod(shape), offset=start).view(*shape)


class SharedPages:
    """Huge pages that small tensors share, one after another.

    The pages are freed in parts of 32 MiB, each when all its tensors are gone. Several threads may
    take tensors at once.
    """

    def __init__(self) -> None:
        self._free = torch.empty(0, dtype=torch.uint8)
        self._lock = Lock()

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return an uninitialised tensor on the CPU, with a storage of its own."""
        size = math.prod(shape) * dtype.itemsize
        if size >= _SHARED:
            return empty_in_huge_pages(shape, dtype)
        if size == 0:
            return torch.empty(tuple(shape), dtype=dtype)
        with self._lock:
            if size > len(self._free):
                self._free = empty_in_huge_pages([_SHARED], torch.uint8)
            tensor = torch.frombuffer(self._free.numpy(), dtype=dtype, count=math.prod(shape))
            self._free = self._free[-(-size // _ALIGNMENT) * _ALIGNMENT :]
        return tensor.view(tuple(shape))
