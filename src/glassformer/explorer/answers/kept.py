"""Things that are kept as long as there is room, such as what was read."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any


class Kept:
    """Things of some size by their names; those that were not asked for the longest go first. Safe for threads.

    Args:
        most: What all may take together; the newest stays, however large.
    """

    def __init__(self, most: int) -> None:
        self.most, self.total = most, 0
        self._things: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: Hashable) -> Any | None:
        """The thing of this name, which is then the newest; None where there is none."""
        with self._lock:
            if name not in self._things:
                return None
            self._things.move_to_end(name)
            return self._things[name][0]

    def put(self, name: Hashable, thing: Any, size: int) -> None:
        """Keep a thing, in the place of one of this name."""
        with self._lock:
            if name in self._things:
                self.total -= self._things.pop(name)[1]
            self._things[name] = thing, size
            self.total += size
            while self.total > self.most and len(self._things) > 1:
                self.total -= self._things.popitem(last=False)[1][1]
