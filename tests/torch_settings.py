"""Settings of torch's that last for a block."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def defaults(dtype: torch.dtype) -> Iterator[None]:
    """Another default dtype, and another device, on which the library cannot write."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):
            yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
