"""Setting of the C library: it keeps freed memory."""

import ctypes
import sys

# Parameters of mallopt(), from malloc.h.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
LARGEST_KEPT = 2**26
MOST_KEPT = 2**30
"""Bytes of the largest block that is kept, and of all kept blocks at the end of the heap."""


def keep_freed_memory() -> bool:
    """Let the C library keep freed blocks (glibc only); return whether that worked.

    By default glibc returns large blocks to the system, which clears their pages anew for every
    tensor. Blocks above :data:`LARGEST_KEPT`, such as the weights of large models, are still
    returned. Programs call this; importing glassformer does not.
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
