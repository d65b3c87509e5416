"""What a page's address shows: its state together with the model, and the head's weights that were
typed.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from glassformer.errors import InputError
from glassformer.explorer import messages as m
from glassformer.explorer.api import Answering, UnknownName
from glassformer.explorer.state import CELL, MOST_DIGITS, NUMBER, SIZE, HeadPlace, State, view_of


@dataclass(frozen=True)
class PageState:
    """A state in which the fields that it leaves open have the values with which the page first
    shows the model.
    """

    card: m.ModelCard
    state: State
    text: str
    source: list[str] | None
    order: list[int] | None

    @property
    def place(self) -> HeadPlace:
        """The head that is shown."""
        state = self.state
        named = (state.layer, state.head, state.pin, state.key, state.versus)
        if named == (None,) * len(named) and not state.pinned:
            return HeadPlace(layer=self.card.layer, head=self.card.head)
        return HeadPlace(layer=state.layer or 0, head=state.head or 0)

    def stack(self, run: m.Run) -> m.Attention:
        """The stack of attention of a run that is shown; if none is named, cross-attention or the
        only one.
        """
        has = len(run.attentions) > 0
        if not has:
            raise InputError(
                got=f"{self.card.title}, which has no attention",
                expected="a model with attention",
                fix="Choose one.",
            )
        part = self.state.part or "cross"
        return next((stack for stack in run.attentions if stack.part == part), run.attentions[0])

    def heads(self, stack: m.Attention) -> list[HeadPlace]:
        """The heads of a stack that are shown, each once; of layers and heads beyond the last one,
        the last.
        """
        places = [self.place, self.state.versus, *self.state.pinned]
        within = [
            HeadPlace(layer=min(each.layer, stack.layers - 1), head=min(each.head, stack.heads - 1))
            for each in places
            if each is not None
        ]
        return [each for at, each in enumerate(within) if each not in within[:at]]


def page_state(state: State, cards: Sequence[m.ModelCard]) -> PageState:
    """The state with its model's card."""
    card = next((each for each in cards if each.name == (state.model or cards[0].name)), None)
    if card is None:
        known = ", ".join(each.name for each in cards)
        raise UnknownName(
            f"the model {state.model!r}", f"one of {known}", "Ask for the call 'models'."
        )
    view = view_of(state, card.views)
    text = card.text if state.text is None else state.text
    if len(text) > m.MOST_CHARACTERS:
        raise InputError(
            got=f"text = {text[:60]!r}... of {len(text):,} characters",
            expected=f"at most {m.MOST_CHARACTERS:,} characters",
            fix="Shorten it.",
        )
    source = None
    if card.kind == "encoder_decoder":
        source = card.source if state.source is None else state.source
    given = list(range(len(source or ())))
    order = None
    if state.order != given and sorted(state.order or ()) == given:
        order = state.order
    state = state.model_copy(update={"model": card.name, "view": view, "text": text})
    return PageState(card=card, state=state, text=text, source=source, order=order)


def ask_of(backend: Answering, shown: PageState) -> m.Ask:
    """The request for the run that is shown, as ``web/src/ask-run.ts`` makes it."""
    weights = None
    if shown.card.kind == "head":
        typed = weights_of(backend, shown)
        if shown.state.exercise or typed != _design(backend, shown):
            weights = typed
    return m.Ask(
        model=shown.card.name,
        text=shown.text,
        source=shown.source,
        order=shown.order,
        weights=weights,
    )


def weights_of(backend: Answering, shown: PageState) -> m.HeadWeightsMessage:
    """The weights of a hand-designed head with the edits of the state: of the design, or of zeros
    in an exercise.
    """
    design = _design(backend, shown)
    if shown.state.exercise:
        sizes = design.model_dump(exclude_none=True).items()
        design = m.HeadWeightsMessage(
            **{name: np.zeros_like(matrix).tolist() for name, matrix in sizes}
        )
    return edited(design, shown.state.cells)


def _design(backend: Answering, shown: PageState) -> m.HeadWeightsMessage:
    head: m.Head = backend.answer("head", m.AskHead(model=shown.card.name))
    return head.weights


def edited(design: m.HeadWeightsMessage, cells: Mapping[str, str]) -> m.HeadWeightsMessage:
    """A head's matrices with the edits of a page's state, as ``web/src/views/design/weights.ts``
    computes them.

    Edits of unknown cells and edits that are not numbers are ignored; so are sizes that would make
    a matrix too large.
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
        cell = re.fullmatch(CELL, address)
        value = number(text)
        matrix = matrices[cell[1]] if cell else None
        if (
            cell
            and matrix
            and value is not None
            and int(cell[2]) < len(matrix)
            and int(cell[3]) < len(matrix[0])
        ):
            matrix[int(cell[2])][int(cell[3])] = value
    return m.HeadWeightsMessage(**matrices)  # type: ignore[arg-type]


def number(text: str) -> float | None:
    """The number that was typed, or None."""
    if len(text) > MOST_DIGITS or not re.fullmatch(NUMBER, text):
        return None
    value = float(text.replace("\u2212", "-"))
    return value if abs(value) <= m.LARGEST else None


def _sizes(
    design: m.HeadWeightsMessage, cells: Mapping[str, str], tokens: int
) -> tuple[int, int, int]:
    """Columns of keys and queries, columns of pos, and rows of pos."""
    own = (len(design.Km[0]), len(design.pos[0]) if design.pos else 0, len(design.pos or ()))

    def size(name: str, least: int, before: int) -> int:
        text = cells.get(f"size.{name}", "")
        if re.fullmatch(SIZE, text) and int(text) >= least:
            return int(text)
        return before

    columns = size("qk", 1, own[0])
    coordinates = size("pos", 0, own[1])
    length = max(1, size("len", 1, own[2]))
    largest = max((tokens + coordinates) * columns, coordinates * length)
    if largest <= m.MOST_CELLS:
        return (columns, coordinates, length)
    return own


def _fitted(matrix: list[list[float]], rows: int, columns: int) -> list[list[float]]:
    """The matrix cut off or filled up with zeros."""
    return [
        ([*row[:columns], *[0.0] * columns])[:columns] for row in [*matrix, *[[]] * rows][:rows]
    ]
