"""Answer the calls that a page can make, over any transport."""

import threading
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from pydantic import ValidationError

from glassformer import __version__
from glassformer.errors import InputError
from glassformer.explorer import messages as m
from glassformer.explorer.answers.attention import measures, rows, weights
from glassformer.explorer.answers.detecting import detect
from glassformer.explorer.answers.experts import experts
from glassformer.explorer.answers.hand_designed import check, head
from glassformer.explorer.answers.lenses import contributions, ffn, lens
from glassformer.explorer.answers.programs import attempt, program, proof
from glassformer.explorer.answers.runs import Runs
from glassformer.explorer.answers.sampling import find, next_token, steps
from glassformer.explorer.answers.scrambling import scramble
from glassformer.explorer.answers.sweeping import patches, sweep
from glassformer.explorer.answers.what_if import edits_of, whatif
from glassformer.explorer.api import UnknownName, not_described
from glassformer.explorer.loading.loaded_model import LoadedModel, ModelEntry, entry_of
from glassformer.explorer.saving.saved_page import page
from glassformer.explorer.state import from_words


@dataclass(frozen=True)
class Call:
    """A call of the page.

    Attributes:
        asked: Type of the request.
        answered: Type of the answer: ``bytes`` for float32 numbers, ``str`` for a whole HTML page.
        summary: Sentence that says what the call does.
        answer: Function that answers. :class:`Backend` itself answers ``models`` and ``page``.
    """

    asked: type[m.Message]
    answered: type[m.Message] | type[bytes] | type[str]
    summary: str
    answer: Callable[[Runs, Any], Any] = lambda runs, ask: None


def _of_model(answer: Callable[[Any, Any], Any]) -> Callable[[Runs, Any], Any]:
    return lambda runs, ask: answer(runs.model(ask.model), ask)


CALLS = MappingProxyType(
    {
        "models": Call(m.Nothing, m.Catalogue, "List every model that can be explored."),
        "run": Call(
            m.Ask, m.Run, "Run a model on a text.", lambda runs, ask: runs.run(ask).message
        ),
        "weights": Call(m.AskTile, bytes, "A tile of an attention matrix.", weights),
        "rows": Call(
            m.AskRows,
            bytes,
            "The attention weights of one query, in every layer and head or in one.",
            rows,
        ),
        "measures": Call(
            m.AskMeasures,
            m.Measures,
            "Entropy, distance, sink and thumbnail of every head.",
            measures,
        ),
        "detect": Call(m.AskDetect, m.Detected, "What each head of a decoder looks for.", detect),
        "experts": Call(
            m.AskExperts, m.Experts, "The experts that every token was routed to.", experts
        ),
        "head": Call(
            m.AskHead, m.Head, "A task with the weights that were designed for it.", _of_model(head)
        ),
        "check": Call(
            m.AskCheck,
            m.Check,
            "Run weights on a sequence, and prove or refute them.",
            _of_model(check),
        ),
        "program": Call(
            m.AskProgram,
            m.Program,
            "A compiled program's parts, heads and residual stream.",
            program,
        ),
        "proof": Call(m.AskProof, m.Proof, "Prove or refute a compiled program.", proof),
        "attempt": Call(
            m.AskAttempt,
            m.Attempt,
            "Compare a written program with a compiled one's task.",
            attempt,
        ),
        "scramble": Call(
            m.AskScramble, m.Scrambled, "Compare a source with other orders.", _of_model(scramble)
        ),
        "next": Call(
            m.AskNext, m.Next, "The next token's distribution under a rule.", _of_model(next_token)
        ),
        "steps": Call(m.AskSteps, m.Steps, "Continue a text by some tokens.", _of_model(steps)),
        "whatif": Call(
            m.AskWhatIf,
            m.WhatIf,
            "Change a model and compare its output with that of a run.",
            whatif,
        ),
        "sweep": Call(
            m.AskSweep,
            m.HeadSweep,
            "Remove every head, one at a time, and compare the output.",
            sweep,
        ),
        "patches": Call(
            m.AskPatches, m.Patches, "Run a text with each place as in another one.", patches
        ),
        "lens": Call(
            m.AskLens, m.Lens, "What the residual stream predicts after each layer.", lens
        ),
        "contributions": Call(
            m.AskContributions, m.Contributions, "What each part adds to a logit.", contributions
        ),
        "ffn": Call(
            m.AskFfn, m.Ffn, "What the feed-forward network of a layer adds to the logits.", ffn
        ),
        "find": Call(m.AskFind, m.Found, "The token with which a text begins.", _of_model(find)),
        "page": Call(
            m.AskPage, str, "The page, in its current state, as one file that needs no server."
        ),
    }
)


def parse(call: str, asked: object) -> m.Message:
    """Return the request for the JSON value ``asked``, of the type that :data:`CALLS` names."""
    try:
        return _call_of(call).asked.model_validate(asked)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False, include_input=False)
        raise not_described(call, errors) from None


def _call_of(name: str) -> Call:
    if name not in CALLS:
        raise UnknownName(
            got=f"the call {name[:40]!r}",
            expected=f"one of {', '.join(CALLS)}",
            fix="Use one of these names.",
        )
    return CALLS[name]


class Backend:
    """Models and the answers to calls about them. Safe for threads.

    Args:
        models: The models in the order in which they are listed: loaded ones, or entries to be
            opened on demand.
        look_again: Lists the current runs. The call ``models`` adds runs with new names.
    """

    def __init__(
        self,
        models: Sequence[LoadedModel | ModelEntry],
        look_again: Callable[[], Sequence[ModelEntry]] = list,
    ) -> None:
        entries = [model if isinstance(model, ModelEntry) else entry_of(model) for model in models]
        if not entries:
            raise InputError(
                got="no models",
                expected="at least one",
                fix="Pass a model.",
            )
        names = [entry.card.name for entry in entries]
        repeated_names = sorted({name for name in names if names.count(name) > 1})
        if repeated_names:
            raise InputError(
                got=f"two models named {repeated_names}",
                expected="unique names",
                fix="Rename one.",
            )
        self.entries = dict(zip(names, entries, strict=True))
        self._look_again = look_again
        self.runs = Runs(self.model, edits=edits_of)
        self._open: dict[str, LoadedModel] = {}
        self._stamps: dict[str, Hashable] = {}
        self._locks = {name: threading.Lock() for name in names}

    def model(self, name: str) -> LoadedModel:
        """Return the model of this name.

        Its weights are read on first use, and again when the stored weights have changed. If the
        stored weights are gone, the model stays as it was read.
        """
        if name not in self.entries:
            known = ", ".join(self.entries)
            raise UnknownName(
                got=f"the model {name!r}",
                expected=f"one of {known}",
                fix="List them with the call 'models'.",
            )
        with self._locks[name]:
            stamp = self.entries[name].stamp()
            if name not in self._open or stamp not in (None, self._stamps[name]):
                self._open[name] = self._entry(name).open()
                self._stamps[name] = stamp
            return self._open[name]

    def _entry(self, name: str) -> ModelEntry:
        """Return a model's entry as it is stored now, since another run may have replaced it."""
        with suppress(InputError):  # a half-written file, which is refused when it is opened
            self.entries[name] = self.entries[name].afresh() or self.entries[name]
        return self.entries[name]

    def answer(self, call: str, request: m.Message) -> Any:
        """Return the answer to a call, of the type that :data:`CALLS` names."""
        asked = _call_of(call).asked
        if not isinstance(request, asked):
            raise InputError(
                got=f"a {type(request).__name__} for the call {call!r}",
                expected=f"a {asked.__name__}",
                fix="Make one from the request's JSON.",
            )
        if isinstance(request, m.AskPage):
            return page(self, from_words(request.state))
        if call == "models":
            for entry in self._look_again():
                self._locks.setdefault(entry.card.name, threading.Lock())
                self.entries.setdefault(entry.card.name, entry)
            return self.catalogue()
        answered: m.Message | np.ndarray = CALLS[call].answer(self.runs, request)
        if isinstance(answered, np.ndarray):
            return answered.astype("<f4").tobytes()
        return answered

    def catalogue(self) -> m.Catalogue:
        """List every model, in the order of :attr:`entries`."""
        return m.Catalogue(
            models=[self._entry(name).card for name in list(self.entries)], version=__version__
        )
