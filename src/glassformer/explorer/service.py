"""What answers the page: every call by its name, whoever carries it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from glassformer import __version__
from glassformer.errors import require
from glassformer.explorer import messages as m
from glassformer.explorer.answers.runs import Runs
from glassformer.explorer.exhibits.exhibit import Exhibit, Offer, offered
from glassformer.explorer.messages.calls import CALLS
from glassformer.explorer.messages.unknown import UnknownName


class Explorer:
    """Models to look into, and the answers to what is asked of them. Any number of threads may ask at once.

    Args:
        exhibits: What can be looked into, in the order in which it is offered: open, or to be opened when asked for.

    Raises:
        InputError: No exhibits, or two of one name.
    """

    def __init__(self, exhibits: Sequence[Exhibit | Offer]) -> None:
        offers = [each if isinstance(each, Offer) else offered(each) for each in exhibits]
        require(len(offers) > 0, "no models", "at least one", "Pass an exhibit.")
        names = [offer.card.name for offer in offers]
        twice = sorted({name for name in names if names.count(name) > 1})
        require(not twice, f"two models named {twice}", "a name of its own for each", "Rename one.")
        self.offers = dict(zip(names, offers, strict=True))
        self.runs = Runs(self.exhibit)
        self._open: dict[str, Exhibit] = {}
        self._stamps: dict[str, Hashable] = {}
        self._locks = {name: threading.Lock() for name in names}

    def exhibit(self, name: str) -> Exhibit:
        """The model of this name, whose weights are read when it is asked for, and again when the stored ones changed.

        Where the stored ones are gone, the model stays as it was read.

        Raises:
            UnknownName: There is none.
            InputError: Its weights are damaged.
        """
        if name not in self.offers:
            known = ", ".join(self.offers)
            raise UnknownName(f"the model {name!r}", f"one of {known}", "Ask for the call 'models'.")
        with self._locks[name]:
            stamp = self.offers[name].stamp()
            if name not in self._open or stamp not in (None, self._stamps[name]):
                self._open[name] = self.offers[name].open()
                self._stamps[name] = stamp
            return self._open[name]

    def answer(self, call: str, request: m.Message) -> m.Message | bytes | str:
        """The answer to a call, of the type that :data:`~glassformer.explorer.messages.calls.CALLS` names.

        Raises:
            UnknownName: A call, model or run that there is not.
            InputError: A request of another type than the call's, or one that cannot be answered.
        """
        if call not in CALLS:
            raise UnknownName(f"the call {call!r}", f"one of {', '.join(CALLS)}", "Mend the name.")
        asked = CALLS[call].asked
        require(
            isinstance(request, asked),
            f"a {type(request).__name__} for the call {call!r}",
            f"a {asked.__name__}",
            "Make one from the request's JSON.",
        )
        answered: m.Message | bytes | str = _ANSWERS[call](self, request)
        return answered

    def catalogue(self) -> m.Catalogue:
        """Every model, in the order in which they are offered."""
        return m.Catalogue(models=[offer.card for offer in self.offers.values()], version=__version__)


def _models(explorer: Explorer, ask: m.Nothing) -> m.Catalogue:
    return explorer.catalogue()


def _run(explorer: Explorer, ask: m.Ask) -> m.Run:
    return explorer.runs.run(ask).message


def _weights(explorer: Explorer, ask: m.AskTile) -> bytes:
    from glassformer.explorer.answers.tiles import weights

    return weights(explorer.runs, ask)


def _rows(explorer: Explorer, ask: m.AskRows) -> bytes:
    from glassformer.explorer.answers.tiles import rows

    return rows(explorer.runs, ask)


def _measures(explorer: Explorer, ask: m.AskMeasures) -> m.Measures:
    from glassformer.explorer.answers.measures import measures

    return measures(explorer.runs, ask)


def _experts(explorer: Explorer, ask: m.AskExperts) -> m.Experts:
    from glassformer.explorer.answers.experts import experts

    return experts(explorer.runs, ask)


def _head(explorer: Explorer, ask: m.AskHead) -> m.Head:
    from glassformer.explorer.answers.heads import head

    return head(explorer.exhibit(ask.model), ask)


def _check(explorer: Explorer, ask: m.AskCheck) -> m.Check:
    from glassformer.explorer.answers.heads import check

    return check(explorer.exhibit(ask.model), ask)


def _scramble(explorer: Explorer, ask: m.AskScramble) -> m.Scrambled:
    from glassformer.explorer.answers.scrambling import scramble

    return scramble(explorer.exhibit(ask.model), ask)


def _next(explorer: Explorer, ask: m.AskNext) -> m.Next:
    from glassformer.explorer.answers.sampling import next_token

    return next_token(explorer.exhibit(ask.model), ask)


def _steps(explorer: Explorer, ask: m.AskSteps) -> m.Steps:
    from glassformer.explorer.answers.sampling import steps

    return steps(explorer.exhibit(ask.model), ask)


def _page(explorer: Explorer, ask: m.AskPage) -> str:
    from glassformer.explorer.saving.saved_page import page

    return page(explorer, ask)


_ANSWERS: dict[str, Callable[[Explorer, Any], Any]] = {
    "models": _models,
    "run": _run,
    "weights": _weights,
    "rows": _rows,
    "measures": _measures,
    "experts": _experts,
    "head": _head,
    "check": _check,
    "scramble": _scramble,
    "next": _next,
    "steps": _steps,
    "page": _page,
}
