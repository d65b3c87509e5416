"""A page's state together with the model that it shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from glassformer.errors import InputError, require
from glassformer.explorer.calls import UnknownName
from glassformer.explorer.messages import MOST_CHARACTERS, AskPage, Attention, ModelCard, Run, View
from glassformer.explorer.state import State, Words, from_words


@dataclass(frozen=True)
class PageState:
    """A state in which the fields that it leaves open have the values with which the page first shows the model."""

    card: ModelCard
    state: State
    view: View
    text: str
    source: list[str] | None
    order: list[int] | None

    def stack(self, run: Run) -> Attention:
        """The stack of attention of a run that is shown.

        Raises:
            InputError: The run has none.
        """
        require(
            len(run.attentions) > 0,
            f"{self.card.title}, which has no attention",
            "a model with attention",
            "Choose one.",
        )
        return next((stack for stack in run.attentions if stack.part == self.state.part), run.attentions[0])


def ask_page(words: Words) -> AskPage:
    """The request for a page with this address.

    Raises:
        InputError: Too many or too long words, or words that are not text.
    """
    try:
        return AskPage(state=dict(words))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = next((str(part) for part in first["loc"][1:] if part != "[key]"), "the state")
        got = f"{where} = {ascii(words.get(where, ''))[:60]}: {first['msg']}"
        raise InputError(got, f"text of at most {MOST_CHARACTERS:,} characters", "Shorten it.") from None


def page_state(ask: AskPage, cards: Sequence[ModelCard]) -> PageState:
    """The state that a request's words describe, with its model's card.

    Raises:
        UnknownName: No model of the state's name.
    """
    state = from_words(ask.state)
    card = next((each for each in cards if each.name == (state.model or cards[0].name)), None)
    if card is None:
        known = ", ".join(each.name for each in cards)
        raise UnknownName(f"the model {state.model!r}", f"one of {known}", "Ask for the call 'models'.")
    view = state.view if state.view in card.views else card.views[0]
    text = card.text if state.text is None else state.text
    source = (card.source if state.source is None else state.source) if card.kind == "encoder_decoder" else None
    given = list(range(len(source or ())))
    order = state.order if state.order != given and sorted(state.order or ()) == given else None
    state = state.model_copy(update={"model": card.name, "view": view, "text": text})
    return PageState(card=card, state=state, view=view, text=text, source=source, order=order)
