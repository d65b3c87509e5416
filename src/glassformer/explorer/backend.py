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
from glassformer.explorer.api import CALLS, UnknownName
from glassformer.explorer.loading.loaded_model import LoadedModel, ModelEntry, entry_of
from glassformer.explorer.saving.saved_page import page
from glassformer.explorer.state import from_words


class Backend:
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
        """The answer to a call, of the type that :data:`~glassformer.explorer.api.CALLS` names."""
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


_ANSWERS = MappingProxyType[str, Callable[[Backend, Any], Any]](
    {
        "models": lambda backend, ask: backend.catalogue(),
        "run": lambda backend, ask: backend.runs.run(ask).message,
        "weights": lambda backend, ask: weights(backend.runs, ask),
        "rows": lambda backend, ask: rows(backend.runs, ask),
        "measures": lambda backend, ask: measures(backend.runs, ask),
        "experts": lambda backend, ask: experts(backend.runs, ask),
        "head": lambda backend, ask: head(backend.model(ask.model)),
        "check": lambda backend, ask: check(backend.model(ask.model), ask),
        "program": lambda backend, ask: program(backend.runs, backend.model, ask),
        "proof": lambda backend, ask: proof(backend.runs, backend.model(ask.model)),
        "scramble": lambda backend, ask: scramble(backend.model(ask.model), ask),
        "next": lambda backend, ask: next_token(backend.model(ask.model), ask),
        "steps": lambda backend, ask: steps(backend.model(ask.model), ask),
        "whatif": lambda backend, ask: whatif(backend.runs, backend.model(ask.ask.model), ask),
        "sweep": lambda backend, ask: sweep(backend.runs, backend.model(ask.ask.model), ask),
        "lens": lambda backend, ask: lens(backend.runs, backend.model(ask.ask.model), ask),
        "contributions": lambda backend, ask: contributions(backend.runs, backend.model(ask.ask.model), ask),
        "find": lambda backend, ask: find(backend.model(ask.model), ask),
        "page": lambda backend, ask: page(backend, from_words(ask.state)),
    }
)
