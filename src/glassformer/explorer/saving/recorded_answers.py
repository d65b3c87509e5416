"""The answers that a saved page holds: those that its view shows."""

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
"""Heads of which the view Flow shows what they read, as in ``web/src/views/flow/diagram.tsx``."""


@dataclass(frozen=True)
class Recorded:
    """A request with its JSON answer, or with the error that the page shows instead."""

    call: str
    request: m.Message
    answer: m.Message | InputError


class Record:
    """The answers to a page's requests.

    Attributes:
        answers: Those in JSON.
        rows: Attention weights of single queries.
        matrices: Attention weights of whole heads.
        left_out: What the page lacks, in sentences.
    """

    def __init__(self, backend: Answering) -> None:
        self.backend = backend
        self.answers: list[Recorded] = []
        self.rows: list[dict[str, Any]] = []
        self.matrices: list[dict[str, Any]] = []
        self.left_out: list[str] = []

    def ask(self, call: str, request: m.Message) -> Any:
        """The answer to a call, which is kept; None where it is refused."""
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
        """Keep the attention weights of one query."""
        self.rows.append(recorded_row(self.backend, request))

    def ask_heads(self, run: m.Run, stack: m.Attention, places: Sequence[HeadPlace]) -> None:
        """Keep the attention weights of some heads."""
        self.matrices = recorded_heads(self.backend, run, stack, places)
        if any(each["level"] > 0 for each in self.matrices):
            self.left_out.append(
                "The text is long: its attention is held as an overview, without single weights."
            )


def listed(backend: Answering, cards: Sequence[m.ModelCard]) -> Recorded:
    """The answer that names these models alone."""
    return Recorded(
        "models", m.Nothing(), backend.catalogue().model_copy(update={"models": [*cards]})
    )


def record(backend: Answering, shown: PageState, *, computes: bool) -> Record:
    """Ask what the view asks.

    Args:
        computes: Whether the page holds the model. Then what no page computes is recorded for the
            other views, too.
    """
    kept = Record(backend)
    card = shown.card
    ask = ask_of(backend, shown)
    run: m.Run | None = kept.ask("run", ask)
    if run is None:
        # An error raised by this request is about the text. Otherwise it is the edited weights that
        # cannot run.
        backend.answer("run", ask.model_copy(update={"weights": None}))
    if card.kind == "head":
        kept.ask("head", m.AskHead(model=card.name))
    if shown.state.view == "design":
        kept.ask(
            "check",
            m.AskCheck(model=card.name, weights=weights_of(backend, shown), text=shown.text),
        )
    elif run is not None:
        _record_view(kept, shown, run)
    asked = {each.call for each in kept.answers}
    if computes and card.kind == "decoder" and "detect" not in asked:
        kept.ask("detect", m.AskDetect(model=card.name))
    if computes and "program" in card.views and "proof" not in asked:
        kept.ask("proof", m.AskProof(model=card.name))
    return kept


def _record_view(kept: Record, shown: PageState, run: m.Run) -> None:
    model = shown.card.name
    text = shown.text
    state = shown.state
    match state.view:
        case "attention" if run.attentions:
            _record_attention(kept, shown, run)
        case "flow":
            _record_flow(kept, shown, run)
        case "whatif" if run.attentions:
            _record_what_if(kept, shown, run)
        case "scramble":
            _record_scramble(kept, shown, run)
        case "experts":
            kept.ask("experts", m.AskExperts(run=run.run))
        case "sampling":
            rule = m.AskNext(
                model=model,
                text=text,
                temperature=state.temperature,
                top_k=state.top_k,
                top_p=state.top_p,
            )
            kept.ask("next", rule)
        case "program" if state.exercise:
            if state.attempt is None:
                program = shown.card.blank
            else:
                program = state.attempt
            kept.ask("attempt", m.AskAttempt(model=model, program=program, text=text))
        case "program":
            kept.ask("program", m.AskProgram(run=run.run))
            kept.ask("proof", m.AskProof(model=model))


def _record_attention(kept: Record, shown: PageState, run: m.Run) -> None:
    stack = shown.stack(run)
    pin = shown.state.pin
    _record_measures(kept, shown, run)
    if shown.state.shape == "layers":
        if pin is not None and pin < stack.queries:
            query = pin
        else:
            query = stack.queries - 1
        kept.ask_rows(m.AskRows(run=run.run, part=stack.part, query=query))
    else:
        kept.ask_heads(run, stack, shown.heads(stack))


def _record_measures(kept: Record, shown: PageState, run: m.Run) -> None:
    """What is shown of every head of the stack."""
    kept.ask("measures", m.AskMeasures(run=run.run, part=shown.stack(run).part))
    if shown.card.kind == "decoder":
        kept.ask("detect", m.AskDetect(model=shown.card.name))


def _record_flow(kept: Record, shown: PageState, run: m.Run) -> None:
    about: dict[str, Any] = {
        "ask": run.ask,
        "place": shown.state.place,
        "target": shown.state.target,
    }
    kept.ask("whatif", m.AskWhatIf(**about))
    found: m.Contributions | None = kept.ask("contributions", m.AskContributions(**about))
    if found is None:
        heads = []
    else:
        heads = [each for each in found.parts if each.kind == "head"]
    if shown.state.place is None:
        query = run.place or 0
    else:
        query = shown.state.place
    for each in sorted(heads, key=lambda head: -abs(head.value))[:_READING]:
        kept.ask_rows(
            m.AskRows(
                run=run.run,
                part=shown.stack(run).part,
                query=query,
                layer=each.layer,
                head=each.number,
            )
        )


def _record_what_if(kept: Record, shown: PageState, run: m.Run) -> None:
    state = shown.state
    about: dict[str, Any] = {"ask": run.ask, "place": state.place, "target": state.target}
    changes: dict[str, Any] = {
        "removed": state.removed,
        "forbidden": state.forbidden,
        "steer": state.steer,
        "swaps": state.swaps,
    }
    answer: m.WhatIf | None = kept.ask("whatif", m.AskWhatIf(**about, other=state.other, **changes))
    if answer is None:  # a place or a target that the text lacks
        return
    other = (
        None if state.other == answer.target else state.other
    )  # nothing is subtracted from itself
    if "sweep" in answer.offers:
        kept.ask("sweep", m.AskSweep(**about, other=other))
    if "contributions" in answer.offers:
        kept.ask("contributions", m.AskContributions(**about, other=other))
    if state.tool == "lens" and "lens" in answer.offers:
        first = (answer.place or 0) // MOST_POSITIONS * MOST_POSITIONS
        kept.ask("lens", m.AskLens(**about, first=first))
        if other is not None:
            kept.ask("lens", m.AskLens(**about | {"target": other}, first=first))
    elif state.tool == "experts" and "experts" in answer.offers:
        kept.ask("experts", m.AskExperts(run=run.run))
    elif state.tool != "steering" or "steer" not in answer.offers:
        stack = shown.stack(run)
        _record_measures(kept, shown, run)
        kept.ask_heads(run, stack, shown.heads(stack)[:1])


def _record_scramble(kept: Record, shown: PageState, run: m.Run) -> None:
    """The source in the order that is shown and as it is, with which it is compared."""
    runs: list[m.Run | None] = [run]
    if shown.order is not None:
        ask = run.ask
        kept.ask(
            "scramble",
            m.AskScramble(
                model=ask.model, text=ask.text, source=ask.source or [], order=shown.order
            ),
        )
        runs.append(kept.ask("run", ask.model_copy(update={"order": None})))
    for each in filter(None, runs):
        kept.ask_rows(m.AskRows(run=each.run, part="cross", query=each.place or 0))


def whole_sweep(backend: Answering, ask: m.AskSweep, within: float = 60.0) -> m.HeadSweep:
    """The sweep as far as it comes within so many seconds."""
    end = time.monotonic() + within
    while True:
        answer: m.HeadSweep = backend.answer("sweep", ask)
        if answer.done >= answer.total or time.monotonic() > end:
            return answer
        ask = ask.model_copy(update={"done": answer.done})
