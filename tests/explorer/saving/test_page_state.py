from __future__ import annotations

import pytest

from glassformer.explorer.api import UnknownName
from glassformer.explorer.backend import Backend
from glassformer.explorer.saving.recorded_answers import PageState, page_state
from glassformer.explorer.state import State, from_words
from refusals import refused


def shown(backend: Backend, **words: str) -> PageState:
    return page_state(from_words(words), backend.catalogue().models)


def test_fields_that_are_left_open_come_from_the_card(small_backend: Backend) -> None:
    card = small_backend.catalogue().models[0]
    for first in (shown(small_backend), shown(small_backend, model="")):
        assert (first.card, first.text) == (card, card.text)
        assert (first.state.model, first.state.text, first.state.view) == (card.name, card.text, card.views[0])
    lookup = shown(small_backend, model="lookup", text="", view="design")
    assert (lookup.text, lookup.source, lookup.state.view) == ("", list("12345"), "scramble")


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("[4,3,2,1,0]", [4, 3, 2, 1, 0]),
        ("[0,1,2,3,4]", None),
        ("[0,0,0]", None),
        ("[0,0,1,2,3]", None),
        ("[1,0]", None),
        ("[]", None),
    ],
)
def test_an_order_that_does_not_fit_the_source_is_ignored(
    small_backend: Backend, order: str, expected: list[int] | None
) -> None:
    assert shown(small_backend, model="lookup", order=order).order == expected
    assert shown(small_backend, order=order).order is None


def test_an_unknown_model(small_backend: Backend) -> None:
    with refused(got="'absent'", error=UnknownName):
        shown(small_backend, model="absent")


def test_a_text_that_is_too_long(small_backend: Backend) -> None:
    with refused(got="65,537 characters"):
        page_state(State(text="a" * 65_537), small_backend.catalogue().models)
