"""Cache runs of models on texts within bounds, and recompute evicted ones."""

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
"""Largest size of all remembered requests in bytes. Evicted runs are recomputed from requests."""


class SizedCache:
    """Thread-safe LRU cache, bounded by the sum of its values' sizes.

    The newest value stays, however large.
    """

    def __init__(self, most: int) -> None:
        # A value larger than the bound counts as the bound, so that it displaces all others.
        self._entries: LRUCache[Hashable, tuple[Any, int]] = LRUCache(
            most, lambda entry: min(entry[1], most)
        )
        self._lock = threading.Lock()

    def get(self, name: Hashable) -> Any | None:
        """Return the value of this name, which becomes the most recently used one, or None."""
        with self._lock:
            return self._entries.get(name, (None, 0))[0]

    def put(self, name: Hashable, value: Any, size: int) -> None:
        """Add a value, or replace the one of this name."""
        with self._lock:
            self._entries.pop(name, None)  # otherwise its old size counts too when room is made
            self._entries[name] = value, size


class Runs:
    """All requested runs. Safe for threads; one model reads one text at a time.

    Args:
        model: Returns the model of a name.
        most_bytes: Largest size of all cached runs. Evicted runs are recomputed on request.
        edits: Returns the edits of a request with changes.
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
        """Cache for results computed from runs."""

    def run(self, ask: m.Ask, loaded: LoadedModel | None = None) -> KeptRun:
        """Return the run of a request, from the cache unless weights have changed.

        ``loaded`` is the request's model, if the caller has it already.
        """
        loaded = loaded or self.model(ask.model)
        name = run_name(ask)
        run = self._current(name, loaded)
        if run is None:
            before_and_edits = None
            if ask.changes is not None:
                assert self._edits is not None
                before_and_edits = (
                    self.run(ask.model_copy(update={"changes": None}), loaded),
                    self._edits(self, ask, loaded),
                )
            with loaded.lock:
                run = self._current(name, loaded)  # another thread may have asked the same
                if run is None:
                    stamp = weights_stamp(loaded)
                    if before_and_edits is None:
                        run = read(loaded, ask)
                    else:
                        run = read_changed(loaded, ask, *before_and_edits)
                    run = replace(run, stamp=stamp)
                    self._runs.put(name, run, run.size)
        self._asks.put(name, run.message.ask, size_of_ask(run.message.ask))
        return run

    def of(self, name: str) -> KeptRun:
        """Return the latest run of this name, under the current interventions and hooks."""
        run: KeptRun | None = self._runs.get(name)
        if run is not None:
            if run.stamp[2] == hooks_stamp(self.model(run.message.ask.model)):
                return run
            return self.run(run.message.ask)
        ask = self._asks.get(name)
        if ask is None:
            raise UnknownName(
                f"the run {name!r}", "the name of an earlier run", "Make the call 'run' again."
            )
        return self.run(ask)

    def _current(self, name: str, loaded: LoadedModel) -> KeptRun | None:
        """Return the cached run of this name, if the model's weights have not changed since."""
        run: KeptRun | None = self._runs.get(name)
        if run is not None and run.stamp == weights_stamp(loaded):
            return run
        return None
