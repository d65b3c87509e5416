from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.errors import InputError
from glassformer.explorer.messages import AskPage
from glassformer.explorer.messages.unknown import UnknownName
from glassformer.explorer.saving.view_state import KEYS, HeadPlace, Window, from_words, to_words, view_state
from glassformer.explorer.service import Explorer

STATE_TS = Path(__file__).resolve().parents[3] / "web" / "src" / "state.ts"
COUNTS = st.integers(0, 4095)
PLACES = st.builds(HeadPlace, layer=COUNTS, head=COUNTS)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "model": st.text(),
    "view": st.sampled_from(["attention", "design", "scramble", "sampling", "experts"]),
    "text": st.text(max_size=50),
    "source": st.none() | st.lists(st.text(max_size=5), max_size=5),
    "order": st.none() | st.lists(st.integers(0, 255), max_size=5),
    "part": st.sampled_from([None, "self", "encoder", "decoder", "cross"]),
    "layer": COUNTS,
    "head": COUNTS,
    "versus": st.none() | PLACES,
    "pin": st.none() | COUNTS,
    "shape": st.sampled_from(["matrix", "lines", "words", "layers", "heads"]),
    "root": st.none() | st.booleans(),
    "measure": st.sampled_from(["pictures", "entropy", "distance", "sink"]),
    "across": st.sampled_from(["average", "chosen", "all"]),
    "window": st.none() | st.builds(Window, query=COUNTS, key=COUNTS, size=st.integers(1, 4096)),
    "cells": st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    "temperature": st.floats(0, 100),
    "topK": st.none() | st.integers(1, 1000),
    "topP": st.floats(0, 1),
    "seed": st.integers(0, 2**53 - 1),
    "written": st.lists(st.integers(0, 65_536), max_size=5),
    "expertLayer": COUNTS,
}
STATES = st.fixed_dictionaries({}, optional=VALUES)


def test_the_page_and_python_know_the_same_names() -> None:
    start = re.search(r"export const START: \w+ = \{(.*?)\n\};", STATE_TS.read_text(encoding="utf-8"), re.DOTALL)
    assert start is not None
    assert set(KEYS) == set(re.findall(r"^  (\w+):", start[1], re.MULTILINE))


def test_every_name_is_tried() -> None:
    assert set(VALUES) == set(KEYS)


@given(STATES)
def test_values_come_back_from_words(state: dict[str, Any]) -> None:
    words = to_words(state)
    assert all(isinstance(word, str) for word in words.values())
    assert from_words(words) == state


@given(st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), st.text(max_size=30)))
def test_nonsense_is_passed_over(words: dict[str, str]) -> None:
    for name, value in from_words(words).items():
        assert name in KEYS
        # What was taken is what JSON says, where the word is JSON at all.
        if not isinstance(value, str):
            json.loads(words[name])


def test_whole_numbers_with_a_point_are_whole_as_in_the_page() -> None:
    words = {"layer": "3.0", "pin": "0.0", "topK": "5.0", "seed": "7.0", "written": "[2.0]", "order": "[1.0,0]"}
    assert from_words(words) == {"layer": 3, "pin": 0, "topK": 5, "seed": 7, "written": [2], "order": [1, 0]}
    assert from_words({"versus": '{"layer":1.0,"head":2}'})["versus"].layer == 1
    assert from_words({"window": '{"query":1.0,"key":2.0,"size":3.0}'})["window"].size == 3
    assert from_words({"layer": "3.5", "topK": "0.5", "seed": "true", "written": "[1.5]"}) == {}


def test_python_spells_names_its_own_way() -> None:
    given = {"top_k": 5, "top_p": 0.5, "versus": (1, 2), "cells": {"Km.0.0": 2.5}, "order": (1, 0)}
    words = {
        "topK": "5",
        "topP": "0.5",
        "versus": '{"layer":1,"head":2}',
        "cells": '{"Km.0.0":"2.5"}',
        "order": "[1,0]",
    }
    assert to_words(given) == words


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"colour": "red"}, "got colour = 'red'; expected one of model, view"),
        ({"layer": -1}, "greater than or equal to 0"),
        ({"layer": "two"}, "got layer = 'two'"),
        ({"view": "cellar"}, "'attention', 'design'"),
        ({"temperature": float("nan")}, "finite number"),
    ],
)
def test_what_there_is_not_is_refused(state: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        to_words(state)


def test_what_is_left_open_is_as_the_card_says(small_explorer: Explorer) -> None:
    cards = small_explorer.catalogue().models
    first = view_state(AskPage(state={}), cards)
    assert (first.card, first.text, first.view) == (cards[0], cards[0].text, cards[0].views[0])
    lookup = view_state(AskPage(state={"model": "lookup", "text": "", "view": "design"}), cards)
    assert (lookup.text, lookup.source, lookup.view) == ("", list("12345"), "scramble")


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
def test_an_order_that_is_none_of_the_source_is_passed_over(
    small_explorer: Explorer, order: str, expected: list[int] | None
) -> None:
    cards = small_explorer.catalogue().models
    assert view_state(AskPage(state={"model": "lookup", "order": order}), cards).order == expected
    assert view_state(AskPage(state={"model": cards[0].name, "order": order}), cards).order is None


def test_a_model_that_there_is_not(small_explorer: Explorer) -> None:
    with pytest.raises(UnknownName, match="the model 'nobody'"):
        view_state(AskPage(state={"model": "nobody"}), small_explorer.catalogue().models)
