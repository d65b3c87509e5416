"""Memory for large weights in huge pages, which a processor reads faster: fewer addresses have to be looked up."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# The size on x86 and most ARM systems. Elsewhere the advice covers a little less of a tensor.
_PAGE = 2**21
_MADV_HUGEPAGE = 14


def empty_in_huge_pages(shape: Sequence[int], dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """An uninitialised tensor, for which Linux is asked for huge pages as far as they fit into it.

    Source: madvise(2), ``MADV_HUGEPAGE``.
    """
    tensor = torch.empty(tuple(shape), dtype=dtype, device=device)
    if tensor.device.type == "cpu" and tensor.nbytes >= 2 * _PAGE:
        start = -(-tensor.data_ptr() // _PAGE) * _PAGE
        length = (tensor.data_ptr() + tensor.nbytes - start) // _PAGE * _PAGE
        _advise()(start, length, _MADV_HUGEPAGE)  # a system without huge pages returns an error, which changes nothing
    return tensor


@functools.cache
def _advise() -> Callable[..., object]:
    if sys.platform != "linux":
        return lambda *_: None
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return advise
