"""Runs that were asked for: kept within bounds, and computed anew where they had to go."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, cast

from glassformer.explorer import messages as m
from glassformer.explorer.exhibit import Exhibit
from glassformer.explorer.reading import KeptRun, read, run_name
from glassformer.explorer.unknown import UnknownName

KEPT_BYTES = 512 * 2**20
"""What all kept runs take together."""
KEPT_ASKS = 16 * 2**20
"""Characters of the questions that are remembered, so that a run that had to go can be had again."""


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


class Runs:
    """Every run that was asked for. Safe for threads; one model reads one text at a time.

    Args:
        exhibit: The model of a name.
        most_bytes: What kept runs may take together. One that had to go is computed anew when it is asked for.
    """

    def __init__(self, exhibit: Callable[[str], Exhibit], most_bytes: int = KEPT_BYTES) -> None:
        self._exhibit = exhibit
        self._runs, self._asks = Kept(most_bytes), Kept(KEPT_ASKS)
        self.derived = Kept(most_bytes // 2)
        """What was computed from runs, for whoever computes it."""

    def run(self, ask: m.Ask) -> KeptRun:
        """The run of a question; asked again it is the same, with the same name.

        Raises:
            UnknownName: There is no such model.
            InputError: A text that the model cannot read.
        """
        exhibit = self._exhibit(ask.model)
        name = run_name(ask)
        found = self._runs.get(name)
        if found is None:
            with exhibit.lock:
                found = self._runs.get(name)  # another thread may have asked the same
                if found is None:
                    found = read(exhibit, ask)
                    self._runs.put(name, found, found.size)
        self._asks.put(name, ask, len(ask.text) + sum(map(len, ask.source or ())) + 100)
        return cast(KeptRun, found)

    def of(self, name: str) -> KeptRun:
        """The run of this name.

        Raises:
            UnknownName: Nobody has asked for it, or too long ago.
        """
        found = self._runs.get(name)
        if found is not None:
            return cast(KeptRun, found)
        ask = self._asks.get(name)
        if ask is None:
            raise UnknownName(f"the run {name!r}", "the name of a run that was made", "Ask for the call 'run' again.")
        return self.run(ask)
