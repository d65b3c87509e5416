"""A page's state together with the model that it shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from glassformer.errors import require
from glassformer.explorer.calls import UnknownName
from glassformer.explorer.messages import MOST_CHARACTERS, Attention, ModelCard, Run
from glassformer.explorer.state import State


@dataclass(frozen=True)
class PageState:
    """A state in which the fields that it leaves open have the values with which the page first shows the model."""

    card: ModelCard
    state: State
    text: str
    source: list[str] | None
    order: list[int] | None

    def stack(self, run: Run) -> Attention:
        """The stack of attention of a run that is shown.

        Raises:
            InputError: The run has none.
        """
        has = len(run.attentions) > 0
        require(has, f"{self.card.title}, which has no attention", "a model with attention", "Choose one.")
        return next((stack for stack in run.attentions if stack.part == self.state.part), run.attentions[0])


def page_state(state: State, cards: Sequence[ModelCard]) -> PageState:
    """The state with its model's card.

    Raises:
        UnknownName: No model of the state's name.
        InputError: The text is too long for any request.
    """
    card = next((each for each in cards if each.name == (state.model or cards[0].name)), None)
    if card is None:
        known = ", ".join(each.name for each in cards)
        raise UnknownName(f"the model {state.model!r}", f"one of {known}", "Ask for the call 'models'.")
    view = state.view if state.view in card.views else card.views[0]
    text = card.text if state.text is None else state.text
    most = f"at most {MOST_CHARACTERS:,} characters"
    require(len(text) <= MOST_CHARACTERS, f"text = {text[:60]!r}... of {len(text):,} characters", most, "Shorten it.")
    source = (card.source if state.source is None else state.source) if card.kind == "encoder_decoder" else None
    given = list(range(len(source or ())))
    order = state.order if state.order != given and sorted(state.order or ()) == given else None
    state = state.model_copy(update={"model": card.name, "view": view, "text": text})
    return PageState(card=card, state=state, text=text, source=source, order=order)
