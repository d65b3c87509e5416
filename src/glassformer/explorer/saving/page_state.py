"""Complete the state in a page's address: the model, its text, and the head's edited weights."""

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
    """State whose open fields have the values with which the page first shows the model."""

    card: m.ModelCard
    state: State
    text: str
    source: list[str] | None
    order: list[int] | None

    @property
    def place(self) -> HeadPlace:
        """Head that is shown."""
        state = self.state
        named = (state.layer, state.head, state.pin, state.key, state.versus)
        if named == (None,) * len(named) and not state.pinned:
            return HeadPlace(layer=self.card.layer, head=self.card.head)
        return HeadPlace(layer=state.layer or 0, head=state.head or 0)

    def stack(self, run: m.Run) -> m.Attention:
        """Return the stack of attention that is shown.

        If the state names none, it is cross-attention or the only stack.
        """
        if not run.attentions:
            raise InputError(
                got=f"{self.card.title}, which has no attention",
                expected="a model with attention",
                fix="Choose one.",
            )
        part = self.state.part or "cross"
        return next((stack for stack in run.attentions if stack.part == part), run.attentions[0])

    def heads(self, stack: m.Attention) -> list[HeadPlace]:
        """Return the heads of a stack that are shown, each once.

        A layer or head beyond the last one becomes the last one.
        """
        heads: list[HeadPlace] = []
        for place in (self.place, self.state.versus, *self.state.pinned):
            if place is None:
                continue
            layer = min(place.layer, stack.layers - 1)
            head = HeadPlace(layer=layer, head=min(place.head, stack.heads - 1))
            if head not in heads:
                heads.append(head)
        return heads


def page_state(state: State, cards: Sequence[m.ModelCard]) -> PageState:
    """Complete a state with its model's card."""
    model = state.model or cards[0].name
    card = next((card for card in cards if card.name == model), None)
    if card is None:
        known = ", ".join(card.name for card in cards)
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
    original_order = list(range(len(source or ())))
    order = None
    if state.order != original_order and sorted(state.order or ()) == original_order:
        order = state.order
    state = state.model_copy(update={"model": card.name, "view": view, "text": text})
    return PageState(card=card, state=state, text=text, source=source, order=order)


def ask_of(backend: Answering, shown: PageState) -> m.Ask:
    """Return the request for the run that is shown, as ``web/src/ask-run.ts`` makes it."""
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
    """Return the weights of a hand-designed head with the edits of the state.

    The edits change the design or, in an exercise, zeros.
    """
    design = _design(backend, shown)
    if shown.state.exercise:
        matrices = design.model_dump(exclude_none=True)
        zeros = {name: np.zeros_like(matrix).tolist() for name, matrix in matrices.items()}
        design = m.HeadWeightsMessage(**zeros)
    return edited(design, shown.state.cells)


def _design(backend: Answering, shown: PageState) -> m.HeadWeightsMessage:
    head: m.Head = backend.answer("head", m.AskHead(model=shown.card.name))
    return head.weights


def edited(design: m.HeadWeightsMessage, cells: Mapping[str, str]) -> m.HeadWeightsMessage:
    """Apply the edits of a page's state to a head, as ``web/src/views/design/weights.ts`` does.

    Edits of unknown cells, edits that are not numbers, and sizes that would make a matrix too large
    are ignored.
    """
    num_coordinates = len(design.pos[0]) if design.pos else 0
    tokens = len(design.Km) - num_coordinates
    columns, coordinates, length = _sizes(design, cells, tokens)
    rows = tokens + coordinates
    matrices: dict[str, list[list[float]] | None] = {
        "Km": _fitted(design.Km, rows, columns),
        "Qm": _fitted(design.Qm, rows, columns),
        "Vm": _fitted(design.Vm, rows, len(design.Vm[0])),
        "pos": None,
    }
    if coordinates:
        matrices["pos"] = _fitted(design.pos or [], length, coordinates)
    for address, text in cells.items():
        cell = re.fullmatch(CELL, address)
        value = number(text)
        if cell is None or value is None:
            continue
        matrix = matrices[cell[1]]
        row, column = map(int, cell.groups()[1:])
        if matrix and row < len(matrix) and column < len(matrix[0]):
            matrix[row][column] = value
    return m.HeadWeightsMessage(**matrices)  # type: ignore[arg-type]


def number(text: str) -> float | None:
    """Return the number that was typed, or None."""
    if len(text) > MOST_DIGITS or not re.fullmatch(NUMBER, text):
        return None
    value = float(text.replace("\u2212", "-"))
    return value if abs(value) <= m.LARGEST else None


def _sizes(
    design: m.HeadWeightsMessage, cells: Mapping[str, str], tokens: int
) -> tuple[int, int, int]:
    """Return the numbers of columns of keys and queries, columns of pos, and rows of pos."""
    designed_columns = len(design.Km[0])
    designed_coordinates = len(design.pos[0]) if design.pos else 0
    designed_length = len(design.pos or ())

    def size(name: str, least: int, designed: int) -> int:
        text = cells.get(f"size.{name}", "")
        if re.fullmatch(SIZE, text) and int(text) >= least:
            return int(text)
        return designed

    columns = size("qk", 1, designed_columns)
    coordinates = size("pos", 0, designed_coordinates)
    length = max(1, size("len", 1, designed_length))
    largest = max((tokens + coordinates) * columns, coordinates * length)
    if largest > m.MOST_CELLS:
        return designed_columns, designed_coordinates, designed_length
    return columns, coordinates, length


def _fitted(matrix: list[list[float]], rows: int, columns: int) -> list[list[float]]:
    """Cut the matrix off or fill it up with zeros."""
    empty_rows: list[list[float]] = [[]] * rows
    zeros = [0.0] * columns
    return [[*row, *zeros][:columns] for row in [*matrix, *empty_rows][:rows]]
