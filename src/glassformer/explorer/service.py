"""The explorer's answers: every call by its name, whatever carries it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from glassformer import __version__
from glassformer.errors import require
from glassformer.explorer import messages as m
from glassformer.explorer.answers.attention import measures, rows, weights
from glassformer.explorer.answers.experts import experts
from glassformer.explorer.answers.hand_designed import check, head
from glassformer.explorer.answers.lenses import contributions, lens
from glassformer.explorer.answers.programs import program, proof
from glassformer.explorer.answers.runs import Runs
from glassformer.explorer.answers.sampling import find, next_token, steps
from glassformer.explorer.answers.scrambling import scramble
from glassformer.explorer.answers.sweeping import sweep
from glassformer.explorer.answers.what_if import whatif
from glassformer.explorer.calls import CALLS, UnknownName
from glassformer.explorer.loading.loaded_model import LoadedModel, ModelEntry, entry_of
from glassformer.explorer.saving.saved_page import page
from glassformer.explorer.state import from_words


class Explorer:
    """Models and the answers to calls about them. Safe for threads.

    Args:
        models: The models in the order in which they are listed: loaded ones, or entries to be opened on demand.
    """

    def __init__(self, models: Sequence[LoadedModel | ModelEntry]) -> None:
        entries = [each if isinstance(each, ModelEntry) else entry_of(each) for each in models]
        require(len(entries) > 0, "no models", "at least one", "Pass a model.")
        names = [entry.card.name for entry in entries]
        twice = sorted({name for name in names if names.count(name) > 1})
        require(not twice, f"two models named {twice}", "unique names", "Rename one.")
        self.entries = dict(zip(names, entries, strict=True))
        self.runs = Runs(self.model)
        self._open: dict[str, LoadedModel] = {}
        self._stamps: dict[str, Hashable] = {}
        self._locks = {name: threading.Lock() for name in names}

    def model(self, name: str) -> LoadedModel:
        """The model of this name. Its weights are read on first use, and again when the stored ones have changed.

        If the stored weights are gone, the model stays as it was read.
        """
        if name not in self.entries:
            known = ", ".join(self.entries)
            raise UnknownName(f"the model {name!r}", f"one of {known}", "List them with the call 'models'.")
        with self._locks[name]:
            stamp = self.entries[name].stamp()
            if name not in self._open or stamp not in (None, self._stamps[name]):
                self._open[name] = self.entries[name].open()
                self._stamps[name] = stamp
            return self._open[name]

    def answer(self, call: str, request: m.Message) -> m.Message | bytes | str:
        """The answer to a call, of the type that :data:`~glassformer.explorer.calls.CALLS` names."""
        if call not in CALLS:
            raise UnknownName(f"the call {call!r}", f"one of {', '.join(CALLS)}", "Use one of these names.")
        asked = CALLS[call].asked
        require(
            isinstance(request, asked),
            f"a {type(request).__name__} for the call {call!r}",
            f"a {asked.__name__}",
            "Make one from the request's JSON.",
        )
        answered: m.Message | np.ndarray | str = _ANSWERS[call](self, request)
        return answered.astype("<f4").tobytes() if isinstance(answered, np.ndarray) else answered

    def catalogue(self) -> m.Catalogue:
        """Every model, in the order in which they are listed."""
        return m.Catalogue(models=[entry.card for entry in self.entries.values()], version=__version__)


_ANSWERS = MappingProxyType[str, Callable[[Explorer, Any], Any]](
    {
        "models": lambda explorer, ask: explorer.catalogue(),
        "run": lambda explorer, ask: explorer.runs.run(ask).message,
        "weights": lambda explorer, ask: weights(explorer.runs, ask),
        "rows": lambda explorer, ask: rows(explorer.runs, ask),
        "measures": lambda explorer, ask: measures(explorer.runs, ask),
        "experts": lambda explorer, ask: experts(explorer.runs, ask),
        "head": lambda explorer, ask: head(explorer.model(ask.model)),
        "check": lambda explorer, ask: check(explorer.model(ask.model), ask),
        "program": lambda explorer, ask: program(explorer.runs, explorer.model, ask),
        "proof": lambda explorer, ask: proof(explorer.runs, explorer.model(ask.model)),
        "scramble": lambda explorer, ask: scramble(explorer.model(ask.model), ask),
        "next": lambda explorer, ask: next_token(explorer.model(ask.model), ask),
        "steps": lambda explorer, ask: steps(explorer.model(ask.model), ask),
        "whatif": lambda explorer, ask: whatif(explorer.runs, explorer.model(ask.ask.model), ask),
        "sweep": lambda explorer, ask: sweep(explorer.runs, explorer.model(ask.ask.model), ask),
        "lens": lambda explorer, ask: lens(explorer.runs, explorer.model(ask.ask.model), ask),
        "contributions": lambda explorer, ask: contributions(explorer.runs, explorer.model(ask.ask.model), ask),
        "find": lambda explorer, ask: find(explorer.model(ask.model), ask),
        "page": lambda explorer, ask: page(explorer, from_words(ask.state)),
    }
)
