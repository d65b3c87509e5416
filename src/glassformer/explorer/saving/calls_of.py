"""Everything that a page in a certain state may ask of one model: what a saved page has to hold the answers to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from glassformer.errors import InputError
from glassformer.explorer import messages as m
from glassformer.explorer.messages.calls import Answering
from glassformer.explorer.saving.edited_cells import edited
from glassformer.explorer.saving.view_state import ViewState

Answer = m.Message | InputError


@dataclass(frozen=True)
class Asked:
    """A question with its answer in JSON, which may be a refusal: the page shows that as well."""

    call: str
    request: m.Message
    answer: Answer


def runs_of(explorer: Answering, state: ViewState) -> list[m.Run]:
    """The run that is shown, and for another order of an encoder-decoder's source the one of the order before.

    With weights that a head cannot be run with, whose design the page still shows, it is the run of the design.

    Raises:
        InputError: The model refuses the text: there is nothing to show.
    """
    answers = [_answer(explorer, "run", ask) for ask in asks_of(explorer, state)]
    if isinstance(answers[0], InputError) and state.cells:
        answers = [explorer.answer("run", m.Ask(model=state.card.name, text=state.text))]  # type: ignore[list-item]
    runs = []
    for answer in answers:
        if isinstance(answer, InputError):
            raise answer
        assert isinstance(answer, m.Run)
        runs.append(answer)
    return runs


def asks_of(explorer: Answering, state: ViewState) -> list[m.Ask]:
    """The questions of the runs that are shown, as the page puts them."""
    model, text, source = state.card.name, state.text, state.source
    weights = None
    if state.card.kind == "head" and state.cells:
        design = _design(explorer, model)
        weights = edited(design, state.cells)
        weights = None if weights == design else weights
    return [m.Ask(model=model, text=text, source=source, order=order, weights=weights) for order in _orders(state)]


def answers_of(explorer: Answering, state: ViewState, runs: list[m.Run]) -> list[Asked]:
    """Every answer in JSON that the page may want; attention weights, which are numbers, are not among them.

    Args:
        explorer: Who answers.
        state: What is shown.
        runs: From :func:`runs_of`.
    """
    catalogue = m.Catalogue(models=[state.card], version=explorer.catalogue().version)
    asked = [Asked("models", m.Nothing(), catalogue)]
    asked += [Asked("run", ask, _answer(explorer, "run", ask)) for ask in asks_of(explorer, state)]
    for call, request in _requests(explorer, state, runs):
        asked.append(Asked(call, request, _answer(explorer, call, request)))
    return asked


def _requests(explorer: Answering, state: ViewState, runs: list[m.Run]) -> Iterator[tuple[str, m.Message]]:
    card, model = state.card, state.card.name
    for run in runs:
        for stack in run.attentions:
            yield "measures", m.AskMeasures(run=run.run, part=stack.part)
        if "experts" in card.views:
            yield "experts", m.AskExperts(run=run.run)
    if "design" in card.views:
        yield "head", m.AskHead(model=model)
        weights = edited(_design(explorer, model), state.cells)
        yield "check", m.AskCheck(model=model, weights=weights, text=state.text)
    if "scramble" in card.views and state.source is not None:
        for order in _orders(state):
            yield "scramble", m.AskScramble(model=model, text=state.text, source=state.source, order=order)
    if "sampling" in card.views:
        yield (
            "next",
            m.AskNext(
                model=model, text=state.text, temperature=state.temperature, top_k=state.top_k, top_p=state.top_p
            ),
        )


def _orders(state: ViewState) -> list[list[int] | None]:
    """The order of the source that is shown, and none, with which it is compared."""
    return [None] if state.order is None else [state.order, None]


def _design(explorer: Answering, model: str) -> m.HeadWeightsMessage:
    design = explorer.answer("head", m.AskHead(model=model))
    assert isinstance(design, m.Head)
    return design.weights


def _answer(explorer: Answering, call: str, request: m.Message) -> Answer:
    try:
        answer = explorer.answer(call, request)
    except InputError as refusal:
        return refusal
    assert isinstance(answer, m.Message)
    return answer
