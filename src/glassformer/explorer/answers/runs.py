"""Runs that were asked for: kept within bounds, and computed anew where they had to go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

from glassformer.explorer import messages as m
from glassformer.explorer.answers.kept import Kept
from glassformer.explorer.answers.reading import KeptRun, read, run_name, size_of_ask
from glassformer.explorer.exhibits.exhibit import Exhibit, weights_stamp
from glassformer.explorer.messages.unknown import UnknownName

KEPT_BYTES = 512 * 2**20
"""What all kept runs take together."""
KEPT_ASKS = 32 * 2**20
"""What all questions take that are remembered, so that a run that had to go can be had again."""


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

        Where the model's weights have changed in between, it is read anew.

        Raises:
            UnknownName: There is no such model.
            InputError: A text that the model cannot read.
        """
        exhibit = self._exhibit(ask.model)
        name = run_name(ask)
        found = self._current(name, exhibit)
        if found is None:
            with exhibit.lock:
                found = self._current(name, exhibit)  # another thread may have asked the same
                if found is None:
                    stamp = weights_stamp(exhibit)
                    found = replace(read(exhibit, ask), stamp=stamp)
                    self._runs.put(name, found, found.size)
        self._asks.put(name, found.message.ask, size_of_ask(found.message.ask))
        return found

    def of(self, name: str) -> KeptRun:
        """The run of this name, as it was read last: all that is told of it fits together.

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

    def _current(self, name: str, exhibit: Exhibit) -> KeptRun | None:
        """The kept run of this name, if the model has the weights still with which it read."""
        found: KeptRun | None = self._runs.get(name)
        return found if found is not None and found.stamp == weights_stamp(exhibit) else None
