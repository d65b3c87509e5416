"""Patches of process-wide state: the first block that needs one applies it, the last undoes it."""

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(eq=False)
class _Patch:
    undo: Callable[[], object]
    blocks: int = 0


_lock = threading.RLock()
_patches: dict[Hashable, _Patch] = {}


@contextmanager
def patched(key: Hashable, apply: Callable[[], Callable[[], object]]) -> Iterator[None]:
    """Apply a patch within the block, in all threads.

    Args:
        key: Name of the patch.
        apply: Applies the patch, and returns the function that undoes it.
    """
    with _lock:
        if key not in _patches:
            _patches[key] = _Patch(apply())
        patch = _patches[key]
        patch.blocks += 1
    try:
        yield
    finally:
        with _lock:
            patch.blocks -= 1
            if not patch.blocks:
                del _patches[key]
                patch.undo()
