"""Record the answers that the view of a saved page shows."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from glassformer.errors import InputError
from glassformer.explorer import messages as m
from glassformer.explorer.answers.lenses import MOST_POSITIONS
from glassformer.explorer.api import Answering
from glassformer.explorer.saving.page_state import PageState, ask_of, weights_of
from glassformer.explorer.saving.recorded_weights import recorded_heads, recorded_row
from glassformer.explorer.state import HeadPlace

_READING = 5
"""Number of heads whose reading the view Flow shows, as in ``web/src/views/flow/diagram.tsx``."""


@dataclass(frozen=True)
class Recorded:
    """Request with its JSON answer, or with the error that the page shows instead."""

    call: str
    request: m.Message
    answer: m.Message | InputError


class Record:
    """Answers to a page's requests.

    Attributes:
        answers: Answers in JSON.
        rows: Attention weights of single queries.
        matrices: Attention weights of whole heads.
        left_out: Sentences that say what the page lacks.
    """

    def __init__(self, backend: Answering) -> None:
        self.backend = backend
        self.answers: list[Recorded] = []
        self.rows: list[dict[str, Any]] = []
        self.matrices: list[dict[str, Any]] = []
        self.left_out: list[str] = []

    def ask(self, call: str, request: m.Message) -> Any:
        """Record and return the answer to a call; return None if the call is refused."""
        answer: m.Message
        try:
            if isinstance(request, m.AskSweep):
                answer = whole_sweep(self.backend, request)
            else:
                answer = self.backend.answer(call, request)
        except InputError as error:
            self.answers.append(Recorded(call, request, error))
            return None
        self.answers.append(Recorded(call, request, answer))
        return answer

    def ask_rows(self, request: m.AskRows) -> None:
        """Record the attention weights of one query."""
        self.rows.append(recorded_row(self.backend, request))

    def ask_heads(self, run: m.Run, stack: m.Attention, places: Sequence[HeadPlace]) -> None:
        """Record the attention weights of some heads."""
        self.matrices = recorded_heads(self.backend, run, stack, places)
        if any(head["level"] > 0 for head in self.matrices):
            self.left_out.append(
                "The text is long: its attention is held as an overview, without single weights."
            )


def listed(backend: Answering, cards: Sequence[m.ModelCard]) -> Recorded:
    """Record the answer that lists these models alone."""
    catalogue = backend.catalogue().model_copy(update={"models": [*cards]})
    return Recorded("models", m.Nothing(), catalogue)


def record(backend: Answering, shown: PageState, *, computes: bool) -> Record:
    """Record the answers to what the view asks.

    Args:
        computes: Whether the page holds the model. If so, answers that no page computes are
            recorded for the other views, too.
    """
    recorded = Record(backend)
    card = shown.card
    ask = ask_of(backend, shown)
    run: m.Run | None = recorded.ask("run", ask)
    if run is None:
        # If this request is refused too, the text is at fault; otherwise the edited weights are.
        backend.answer("run", ask.model_copy(update={"weights": None}))
    if card.kind == "head":
        recorded.ask("head", m.AskHead(model=card.name))
    if shown.state.view == "design":
        recorded.ask(
            "check",
            m.AskCheck(model=card.name, weights=weights_of(backend, shown), text=shown.text),
        )
    elif run is not None:
        _record_view(recorded, shown, run)
    asked = {answer.call for answer in recorded.answers}
    if computes and card.kind == "decoder" and "detect" not in asked:
        recorded.ask("detect", m.AskDetect(model=card.name))
    if computes and "program" in card.views and "proof" not in asked:
        recorded.ask("proof", m.AskProof(model=card.name))
    return recorded


def _record_view(recorded: Record, shown: PageState, run: m.Run) -> None:
    model = shown.card.name
    text = shown.text
    state = shown.state
    match state.view:
        case "attention" if run.attentions:
            _record_attention(recorded, shown, run)
        case "flow":
            _record_flow(recorded, shown, run)
        case "whatif" if run.attentions:
            _record_what_if(recorded, shown, run)
        case "scramble":
            _record_scramble(recorded, shown, run)
        case "experts":
            recorded.ask("experts", m.AskExperts(run=run.run))
        case "sampling":
            rule = m.AskNext(
                model=model,
                text=text,
                temperature=state.temperature,
                top_k=state.top_k,
                top_p=state.top_p,
            )
            recorded.ask("next", rule)
        case "program" if state.exercise:
            if state.attempt is None:
                program = shown.card.blank
            else:
                program = state.attempt
            recorded.ask("attempt", m.AskAttempt(model=model, program=program, text=text))
        case "program":
            recorded.ask("program", m.AskProgram(run=run.run))
            recorded.ask("proof", m.AskProof(model=model))


def _record_attention(recorded: Record, shown: PageState, run: m.Run) -> None:
    stack = shown.stack(run)
    pin = shown.state.pin
    _record_measures(recorded, shown, run)
    if shown.state.shape == "layers":
        if pin is not None and pin < stack.queries:
            query = pin
        else:
            query = stack.queries - 1
        recorded.ask_rows(m.AskRows(run=run.run, part=stack.part, query=query))
    else:
        recorded.ask_heads(run, stack, shown.heads(stack))


def _record_measures(recorded: Record, shown: PageState, run: m.Run) -> None:
    """Record what is shown of every head of the stack."""
    recorded.ask("measures", m.AskMeasures(run=run.run, part=shown.stack(run).part))
    if shown.card.kind == "decoder":
        recorded.ask("detect", m.AskDetect(model=shown.card.name))


def _record_flow(recorded: Record, shown: PageState, run: m.Run) -> None:
    outcome: dict[str, Any] = {
        "ask": run.ask,
        "place": shown.state.place,
        "target": shown.state.target,
    }
    recorded.ask("whatif", m.AskWhatIf(**outcome))
    contributions: m.Contributions | None = recorded.ask(
        "contributions", m.AskContributions(**outcome)
    )
    heads = []
    if contributions is not None:
        heads = [part for part in contributions.parts if part.kind == "head"]
    if shown.state.place is None:
        query = run.place or 0
    else:
        query = shown.state.place
    for head in sorted(heads, key=lambda head: -abs(head.value))[:_READING]:
        recorded.ask_rows(
            m.AskRows(
                run=run.run,
                part=shown.stack(run).part,
                query=query,
                layer=head.layer,
                head=head.number,
            )
        )


def _record_what_if(recorded: Record, shown: PageState, run: m.Run) -> None:
    state = shown.state
    outcome: dict[str, Any] = {"ask": run.ask, "place": state.place, "target": state.target}
    changes: dict[str, Any] = {
        "removed": state.removed,
        "forbidden": state.forbidden,
        "steer": state.steer,
        "swaps": state.swaps,
    }
    answer: m.WhatIf | None = recorded.ask(
        "whatif", m.AskWhatIf(**outcome, other=state.other, **changes)
    )
    if answer is None:  # a place or a target that the text lacks
        return
    other = state.other
    if other == answer.target:  # nothing is subtracted from itself
        other = None
    if "sweep" in answer.offers:
        recorded.ask("sweep", m.AskSweep(**outcome, other=other))
    if "contributions" in answer.offers:
        recorded.ask("contributions", m.AskContributions(**outcome, other=other))
    if state.tool == "lens" and "lens" in answer.offers:
        first = (answer.place or 0) // MOST_POSITIONS * MOST_POSITIONS
        recorded.ask("lens", m.AskLens(**outcome, first=first))
        if other is not None:
            recorded.ask("lens", m.AskLens(**outcome | {"target": other}, first=first))
    elif state.tool == "experts" and "experts" in answer.offers:
        recorded.ask("experts", m.AskExperts(run=run.run))
    elif state.tool != "steering" or "steer" not in answer.offers:
        stack = shown.stack(run)
        _record_measures(recorded, shown, run)
        recorded.ask_heads(run, stack, shown.heads(stack)[:1])


def _record_scramble(recorded: Record, shown: PageState, run: m.Run) -> None:
    """Record the run in the order that is shown and, for comparison, in the original order."""
    runs = [run]
    if shown.order is not None:
        ask = run.ask
        recorded.ask(
            "scramble",
            m.AskScramble(
                model=ask.model, text=ask.text, source=ask.source or [], order=shown.order
            ),
        )
        original: m.Run | None = recorded.ask("run", ask.model_copy(update={"order": None}))
        if original is not None:
            runs.append(original)
    for run in runs:
        recorded.ask_rows(m.AskRows(run=run.run, part="cross", query=run.place or 0))


def whole_sweep(backend: Answering, ask: m.AskSweep, within: float = 60.0) -> m.HeadSweep:
    """Return the sweep as far as it comes in ``within`` seconds."""
    end = time.monotonic() + within
    while True:
        answer: m.HeadSweep = backend.answer("sweep", ask)
        if answer.done >= answer.total or time.monotonic() > end:
            return answer
        ask = ask.model_copy(update={"done": answer.done})
