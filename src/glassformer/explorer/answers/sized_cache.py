"""A cache bounded by the memory that its values take."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Any

from cachetools import LRUCache


class SizedCache:
    """A thread-safe LRU cache bounded by the sum of its values' sizes; the newest value stays, however large.

    Args:
        most: Largest sum of sizes.
    """

    def __init__(self, most: int) -> None:
        # A value larger than the bound counts as much as the bound, so that it displaces all others.
        self._entries: LRUCache[Hashable, tuple[Any, int]] = LRUCache(most, lambda entry: min(entry[1], most))
        self._lock = threading.Lock()

    def get(self, name: Hashable) -> Any | None:
        """The value of this name, which becomes the most recently used; None if it is not in the cache."""
        with self._lock:
            entry = self._entries.get(name)
            return None if entry is None else entry[0]

    def put(self, name: Hashable, value: Any, size: int) -> None:
        """Add a value, or replace the one of this name."""
        with self._lock:
            self._entries.pop(name, None)  # otherwise its old size counts too when room is made
            self._entries[name] = value, size
