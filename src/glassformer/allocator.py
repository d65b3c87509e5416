"""What the C library does with freed memory."""

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
LARGEST_KEPT = 2**26
MOST_KEPT = 2**30
"""Bytes of the largest block that is kept for the next one, and of all kept ones at the end of the
heap.
"""


def keep_freed_memory() -> bool:
    """Let the C library keep freed blocks for the next ones; whether it could be told so (glibc
    only).

    By itself glibc gives large blocks back to the system, which clears their pages anew for every
    tensor. Larger blocks than :data:`LARGEST_KEPT`, as the weights of large models are, go back as
    before. For programs: importing glassformer does not call this.
    """
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version") or not hasattr(library, "mallopt"):
        return False
    return bool(
        library.mallopt(_MMAP_THRESHOLD, LARGEST_KEPT)
        and library.mallopt(_TRIM_THRESHOLD, MOST_KEPT)
    )
