"""Runs of models on texts: cached within bounds, and recomputed after eviction."""

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

from cachetools import LRUCache

from glassformer.explorer import messages as m
from glassformer.explorer.answers.forward import KeptRun, read, read_changed, run_name, size_of_ask
from glassformer.explorer.api import UnknownName
from glassformer.explorer.loading.loaded_model import LoadedModel, hooks_stamp, weights_stamp
from glassformer.observe.edits import Edit

RUN_BYTES = 512 * 2**20
"""Largest size of all cached runs, in bytes."""
ASK_BYTES = 32 * 2**20
"""Largest size of all remembered requests, from which an evicted run is recomputed, in bytes."""


class SizedCache:
    """A thread-safe LRU cache bounded by the sum of its values' sizes; the newest value stays,
    however large.
    """

    def __init__(self, most: int) -> None:
        # A value larger than the bound counts as much as the bound, so that it displaces all
        # others.
        self._entries: LRUCache[Hashable, tuple[Any, int]] = LRUCache(
            most, lambda entry: min(entry[1], most)
        )
        self._lock = threading.Lock()

    def get(self, name: Hashable) -> Any | None:
        """The value of this name, which becomes the most recently used; None if it is not in the
        cache.
        """
        with self._lock:
            return self._entries.get(name, (None, 0))[0]

    def put(self, name: Hashable, value: Any, size: int) -> None:
        """Add a value, or replace the one of this name."""
        with self._lock:
            self._entries.pop(name, None)  # otherwise its old size counts too when room is made
            self._entries[name] = value, size


class Runs:
    """All requested runs. Safe for threads; one model reads one text at a time.

    Cached runs take at most ``most_bytes``; evicted ones are recomputed on request. ``edits`` gives
    the edits of a request with changes.
    """

    def __init__(
        self,
        model: Callable[[str], LoadedModel],
        most_bytes: int = RUN_BYTES,
        edits: Callable[["Runs", m.Ask, LoadedModel], Sequence[Edit]] | None = None,
    ) -> None:
        self.model = model
        self._edits = edits
        self._runs = SizedCache(most_bytes)
        self._asks = SizedCache(ASK_BYTES)
        self.derived = SizedCache(most_bytes // 2)
        """A cache for results computed from runs."""

    def run(self, ask: m.Ask, loaded: LoadedModel | None = None) -> KeptRun:
        """The run of a request, the same one unless weights have changed; an answer that has the
        model names it.
        """
        loaded = loaded or self.model(ask.model)
        name = run_name(ask)
        found = self._current(name, loaded)
        if found is None:
            changed = None
            if ask.changes is not None:
                assert self._edits is not None
                changed = (
                    self.run(ask.model_copy(update={"changes": None}), loaded),
                    self._edits(self, ask, loaded),
                )
            with loaded.lock:
                found = self._current(name, loaded)  # another thread may have asked the same
                if found is None:
                    stamp = weights_stamp(loaded)
                    if changed is None:
                        found = read(loaded, ask)
                    else:
                        found = read_changed(loaded, ask, *changed)
                    found = replace(found, stamp=stamp)
                    self._runs.put(name, found, found.size)
        self._asks.put(name, found.message.ask, size_of_ask(found.message.ask))
        return found

    def of(self, name: str) -> KeptRun:
        """The latest run of this name, under the interventions and hooks that there are now."""
        found: KeptRun | None = self._runs.get(name)
        if found is not None:
            asked = found.message.ask
            if found.stamp[2] == hooks_stamp(self.model(asked.model)):
                return found
            return self.run(asked)
        ask = self._asks.get(name)
        if ask is None:
            raise UnknownName(
                f"the run {name!r}", "the name of an earlier run", "Make the call 'run' again."
            )
        return self.run(ask)

    def _current(self, name: str, loaded: LoadedModel) -> KeptRun | None:
        """The cached run of this name, if the model's weights have not changed since."""
        found: KeptRun | None = self._runs.get(name)
        if found is not None and found.stamp == weights_stamp(loaded):
            return found
        return None
