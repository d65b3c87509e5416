"""A page's state together with the model that it shows; the requests that such a page makes, and their answers."""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glassformer.errors import InputError, require
from glassformer.explorer import messages as m
from glassformer.explorer.answers.lenses import MOST_POSITIONS
from glassformer.explorer.api import Answering, UnknownName
from glassformer.explorer.state import CELL, MOST_DIGITS, NUMBER, SIZE, State


@dataclass(frozen=True)
class PageState:
    """A state in which the fields that it leaves open have the values with which the page first shows the model."""

    card: m.ModelCard
    state: State
    text: str
    source: list[str] | None
    order: list[int] | None

    def stack(self, run: m.Run) -> m.Attention:
        """The stack of attention of a run that is shown; if none is named, cross-attention or the only one."""
        has = len(run.attentions) > 0
        require(has, f"{self.card.title}, which has no attention", "a model with attention", "Choose one.")
        part = self.state.part or "cross"
        return next((stack for stack in run.attentions if stack.part == part), run.attentions[0])


def page_state(state: State, cards: Sequence[m.ModelCard]) -> PageState:
    """The state with its model's card."""
    card = next((each for each in cards if each.name == (state.model or cards[0].name)), None)
    if card is None:
        known = ", ".join(each.name for each in cards)
        raise UnknownName(f"the model {state.model!r}", f"one of {known}", "Ask for the call 'models'.")
    view = state.view if state.view in card.views else card.views[0]
    text = card.text if state.text is None else state.text
    most = f"at most {m.MOST_CHARACTERS:,} characters"
    require(len(text) <= m.MOST_CHARACTERS, f"text = {text[:60]!r}... of {len(text):,} characters", most, "Shorten it.")
    source = (card.source if state.source is None else state.source) if card.kind == "encoder_decoder" else None
    given = list(range(len(source or ())))
    order = state.order if state.order != given and sorted(state.order or ()) == given else None
    state = state.model_copy(update={"model": card.name, "view": view, "text": text})
    return PageState(card=card, state=state, text=text, source=source, order=order)


@dataclass(frozen=True)
class Recorded:
    """A request with its JSON answer, or with the error that the page shows instead."""

    call: str
    request: m.Message
    answer: m.Message | InputError


def asks_of(backend: Answering, shown: PageState) -> list[m.Ask]:
    """The request for the run that is shown, and for a reordered source also for the one in its own order."""
    design = _design(backend, shown)
    weights = design and edited(_start(design, shown), shown.state.cells)
    weights = None if weights == design and not shown.state.exercise else weights
    return [
        m.Ask(model=shown.card.name, text=shown.text, source=shown.source, order=order, weights=weights)
        for order in _orders(shown)
    ]


def listed(backend: Answering, cards: Sequence[m.ModelCard]) -> Recorded:
    """The answer that names these models alone."""
    return Recorded("models", m.Nothing(), backend.catalogue().model_copy(update={"models": [*cards]}))


def recorded_answers(backend: Answering, shown: PageState) -> list[Recorded]:
    """All answers in JSON that the page may need. Attention weights are not among them."""
    recorded = [listed(backend, [shown.card])]
    for ask in asks_of(backend, shown):
        recorded.append(_recorded(backend, "run", ask))
        answer = recorded[-1].answer
        if isinstance(answer, InputError):
            # An error raised by this request is about the text. Otherwise it is the edited weights that cannot run.
            backend.answer("run", ask.model_copy(update={"weights": None}))
    runs = [each.answer for each in recorded if isinstance(each.answer, m.Run)]
    return recorded + [_recorded(backend, call, request) for call, request in _requests(backend, shown, runs)]


def _requests(backend: Answering, shown: PageState, runs: list[m.Run]) -> Iterator[tuple[str, m.Message]]:
    views, model, text, rule = shown.card.views, shown.card.name, shown.text, shown.state
    for run in runs:
        for stack in run.attentions:
            yield "measures", m.AskMeasures(run=run.run, part=stack.part)
        if "experts" in views:
            yield "experts", m.AskExperts(run=run.run)
        if "program" in views:
            yield "program", m.AskProgram(run=run.run)
    if shown.card.kind == "decoder":
        yield "detect", m.AskDetect(model=model)
    if "program" in views:
        yield "proof", m.AskProof(model=model)
        if rule.exercise:
            program = shown.card.blank if rule.attempt is None else rule.attempt
            yield "attempt", m.AskAttempt(model=model, program=program, text=text)
    if "whatif" in views and runs:
        yield from _what_if(backend, rule, runs[0].ask)
    design = _design(backend, shown)
    if design is not None:
        yield "head", m.AskHead(model=model)
        yield "check", m.AskCheck(model=model, weights=edited(_start(design, shown), shown.state.cells), text=text)
    if "scramble" in views and shown.source is not None:
        for order in _orders(shown):
            yield "scramble", m.AskScramble(model=model, text=text, source=shown.source, order=order)
    if "sampling" in views:
        sampling = rule.model_dump(include={"temperature", "top_k", "top_p"}, by_alias=False)
        yield "next", m.AskNext(model=model, text=text, **sampling)


def _what_if(backend: Answering, state: State, ask: m.Ask) -> Iterator[tuple[str, m.Message]]:
    """With the changes of the state and without; the sweep, which may take a minute, only where it is shown."""
    about: dict[str, Any] = {"ask": ask, "place": state.place, "target": state.target}
    changes: dict[str, Any] = {name: getattr(state, name) for name in ("removed", "forbidden", "steer", "swaps")}
    plain = m.AskWhatIf(**about, other=state.other)
    yield "whatif", plain
    if any(changes.values()):
        yield "whatif", m.AskWhatIf(**about, other=state.other, **changes)
    try:
        answer: m.WhatIf = backend.answer("whatif", plain)
    except InputError:  # a place or a target that the text lacks
        return
    other = None if state.other == answer.target else state.other  # nothing is subtracted from itself
    if "sweep" in answer.offers and state.view == "whatif":
        yield "sweep", m.AskSweep(**about, other=other)
    if "lens" in answer.offers:
        for first in sorted({0, (answer.place or 0) // MOST_POSITIONS * MOST_POSITIONS}):
            yield "lens", m.AskLens(**about, first=first)
    if "contributions" in answer.offers:
        yield "contributions", m.AskContributions(**about, other=other)


def _orders(shown: PageState) -> list[list[int] | None]:
    """The order of the source that is shown, and the source as it is, with which it is compared."""
    return [None] if shown.order is None else [shown.order, None]


def _design(backend: Answering, shown: PageState) -> m.HeadWeightsMessage | None:
    if shown.card.kind != "head":
        return None
    head: m.Head = backend.answer("head", m.AskHead(model=shown.card.name))
    return head.weights


def _start(design: m.HeadWeightsMessage, shown: PageState) -> m.HeadWeightsMessage:
    """The matrices before the edits: the design, or zeros in an exercise."""
    if not shown.state.exercise:
        return design
    sizes = {name: np.zeros_like(matrix).tolist() for name, matrix in design.model_dump(exclude_none=True).items()}
    return m.HeadWeightsMessage(**sizes)


def whole_sweep(backend: Answering, ask: m.AskSweep, within: float = 60.0) -> m.HeadSweep:
    """The sweep as far as it comes within so many seconds."""
    end = time.monotonic() + within
    while True:
        answer: m.HeadSweep = backend.answer("sweep", ask)
        if answer.done >= answer.total or time.monotonic() > end:
            return answer
        ask = ask.model_copy(update={"done": answer.done})


def _recorded(backend: Answering, call: str, request: m.Message) -> Recorded:
    try:
        answer = whole_sweep(backend, request) if isinstance(request, m.AskSweep) else backend.answer(call, request)
    except InputError as error:
        answer = error
    return Recorded(call, request, answer)


def edited(design: m.HeadWeightsMessage, cells: Mapping[str, str]) -> m.HeadWeightsMessage:
    """A head's matrices with the edits of a page's state, as ``web/src/views/design/weights.ts`` computes them.

    Edits of unknown cells and edits that are not numbers are ignored; so are sizes that would make a matrix too large.
    """
    tokens = len(design.Km) - (len(design.pos[0]) if design.pos else 0)
    columns, coordinates, length = _sizes(design, cells, tokens)
    rows = tokens + coordinates
    matrices: dict[str, list[list[float]] | None] = {
        "Km": _fitted(design.Km, rows, columns),
        "Qm": _fitted(design.Qm, rows, columns),
        "Vm": _fitted(design.Vm, rows, len(design.Vm[0])),
        "pos": _fitted(design.pos or [], length, coordinates) if coordinates else None,
    }
    for address, text in cells.items():
        cell, value = re.fullmatch(CELL, address), number(text)
        matrix = matrices[cell[1]] if cell else None
        if cell and matrix and value is not None and int(cell[2]) < len(matrix) and int(cell[3]) < len(matrix[0]):
            matrix[int(cell[2])][int(cell[3])] = value
    return m.HeadWeightsMessage(**matrices)  # type: ignore[arg-type]


def number(text: str) -> float | None:
    """The number that was typed, or None."""
    if len(text) > MOST_DIGITS or not re.fullmatch(NUMBER, text):
        return None
    value = float(text.replace("\u2212", "-"))
    return value if abs(value) <= m.LARGEST else None


def _sizes(design: m.HeadWeightsMessage, cells: Mapping[str, str], tokens: int) -> tuple[int, int, int]:
    """Columns of keys and queries, columns of pos, and rows of pos."""
    own = (len(design.Km[0]), len(design.pos[0]) if design.pos else 0, len(design.pos or ()))

    def size(name: str, least: int, before: int) -> int:
        text = cells.get(f"size.{name}", "")
        return int(text) if re.fullmatch(SIZE, text) and int(text) >= least else before

    columns, coordinates, length = size("qk", 1, own[0]), size("pos", 0, own[1]), max(1, size("len", 1, own[2]))
    largest = max((tokens + coordinates) * columns, coordinates * length)
    return (columns, coordinates, length) if largest <= m.MOST_CELLS else own


def _fitted(matrix: list[list[float]], rows: int, columns: int) -> list[list[float]]:
    """The matrix cut off or filled up with zeros."""
    return [([*row[:columns], *[0.0] * columns])[:columns] for row in [*matrix, *[[]] * rows][:rows]]
