"""The requests that a page in some state makes, and their answers, which a saved page holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from glassformer.errors import InputError
from glassformer.explorer import messages as m
from glassformer.explorer.calls import Answering
from glassformer.explorer.saving.edited_weights import edited
from glassformer.explorer.saving.page_state import PageState


@dataclass(frozen=True)
class Recorded:
    """A request with its JSON answer, or with the error that the page shows instead."""

    call: str
    request: m.Message
    answer: m.Message | InputError


def asks_of(explorer: Answering, shown: PageState) -> list[m.Ask]:
    """The request for the run that is shown, and for a reordered source also for the one in its own order."""
    design = _design(explorer, shown)
    weights = design and edited(design, shown.state.cells)
    weights = None if weights == design else weights
    return [
        m.Ask(model=shown.card.name, text=shown.text, source=shown.source, order=order, weights=weights)
        for order in _orders(shown)
    ]


def recorded_answers(explorer: Answering, shown: PageState) -> list[Recorded]:
    """All answers in JSON that the page may need. Attention weights are not among them.

    Raises:
        InputError: The model refuses the text.
    """
    recorded = [Recorded("models", m.Nothing(), explorer.catalogue().model_copy(update={"models": [shown.card]}))]
    for ask in asks_of(explorer, shown):
        recorded.append(_recorded(explorer, "run", ask))
        answer = recorded[-1].answer
        if isinstance(answer, InputError):
            # An error raised by this request is about the text. Otherwise it is the edited weights that cannot run.
            explorer.answer("run", ask.model_copy(update={"weights": None}))
    runs = [each.answer for each in recorded if isinstance(each.answer, m.Run)]
    return recorded + [_recorded(explorer, call, request) for call, request in _requests(explorer, shown, runs)]


def _requests(explorer: Answering, shown: PageState, runs: list[m.Run]) -> Iterator[tuple[str, m.Message]]:
    views, model, text, rule = shown.card.views, shown.card.name, shown.text, shown.state
    for run in runs:
        for stack in run.attentions:
            yield "measures", m.AskMeasures(run=run.run, part=stack.part)
        if "experts" in views:
            yield "experts", m.AskExperts(run=run.run)
    design = _design(explorer, shown)
    if design is not None:
        yield "head", m.AskHead(model=model)
        yield "check", m.AskCheck(model=model, weights=edited(design, shown.state.cells), text=text)
    if "scramble" in views and shown.source is not None:
        for order in _orders(shown):
            yield "scramble", m.AskScramble(model=model, text=text, source=shown.source, order=order)
    if "sampling" in views:
        yield (
            "next",
            m.AskNext(model=model, text=text, temperature=rule.temperature, top_k=rule.top_k, top_p=rule.top_p),
        )


def _orders(shown: PageState) -> list[list[int] | None]:
    """The order of the source that is shown, and the source as it is, with which it is compared."""
    return [None] if shown.order is None else [shown.order, None]


def _design(explorer: Answering, shown: PageState) -> m.HeadWeightsMessage | None:
    if shown.card.kind != "head":
        return None
    head = explorer.answer("head", m.AskHead(model=shown.card.name))
    assert isinstance(head, m.Head)
    return head.weights


def _recorded(explorer: Answering, call: str, request: m.Message) -> Recorded:
    try:
        answer = explorer.answer(call, request)
    except InputError as error:
        return Recorded(call, request, error)
    assert isinstance(answer, m.Message)
    return Recorded(call, request, answer)
