import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.explorer.messages import ForbiddenEdge, RemovedHead, ReplacedExpert, Steering, View
from glassformer.explorer.state import (
    NAMES,
    PLAIN,
    HeadPlace,
    State,
    Window,
    changed,
    from_words,
    to_words,
    view_of,
)
from refusals import refused

counts = st.integers(0, 4095)
maybe = st.none() | counts
parts = st.sampled_from(["self", "encoder", "decoder", "cross"])
states = st.builds(
    State,
    model=st.text(),
    view=st.sampled_from([None, "attention", "experts", "whatif"]),
    text=st.none() | st.text(max_size=50),
    source=st.none() | st.lists(st.text(max_size=5), max_size=5),
    order=st.none() | st.lists(st.integers(0, 255), max_size=5),
    part=st.sampled_from([None, "self", "cross"]),
    layer=maybe,
    versus=st.none() | st.builds(HeadPlace, layer=counts, head=counts),
    pin=st.none() | counts,
    shape=st.sampled_from(["matrix", "heads"]),
    root=st.none() | st.booleans(),
    window=st.none() | st.builds(Window, query=counts, key=counts, size=st.integers(1, 4096)),
    cells=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    temperature=st.floats(0, 100),
    top_k=st.none() | st.integers(1, 1000),
    top_p=st.floats(0, 1),
    seed=st.integers(0, 2**53 - 1),
    written=st.lists(st.integers(0, 65_536), max_size=5),
    removed=st.lists(st.builds(RemovedHead, part=parts, layer=counts, head=counts), max_size=3),
    forbidden=st.lists(
        st.builds(ForbiddenEdge, part=parts, layer=maybe, head=maybe, query=counts, key=counts),
        max_size=3,
    ),
    steer=st.none()
    | st.builds(Steering, layer=counts, toward=counts, away=maybe, strength=st.floats(-100, 100)),
    swaps=st.lists(
        st.builds(ReplacedExpert, layer=counts, expert=counts, instead=maybe), max_size=3
    ),
    place=maybe,
    target=maybe,
    other=maybe,
)


@given(states)
def test_a_state_comes_back_from_its_words(state: State) -> None:
    assert from_words(to_words(state)) == state


def test_only_what_differs_from_the_defaults_is_written() -> None:
    assert to_words(State()) == {}
    state = State(
        model="a", text="", layer=2, part="cross", top_k=5, versus=HeadPlace(layer=1, head=2)
    )
    words = {
        "model": "a",
        "text": "",
        "layer": "2",
        "part": "cross",
        "topK": "5",
        "versus": '{"layer":1,"head":2}',
    }
    assert to_words(state) == words


def test_plain_words_are_those_of_text_fields() -> None:
    properties = State.model_json_schema()["properties"]
    text = [name for name, field in properties.items() if "string" in _types(field)]
    assert list(PLAIN) == text


def _types(schema: dict[str, Any]) -> set[str]:
    return {each.get("type", "object") for each in schema.get("anyOf", [schema])}


@given(
    st.dictionaries(
        st.sampled_from([*NAMES.values(), *NAMES]) | st.text(max_size=5), st.text(max_size=30)
    )
)
def test_nonsense_is_ignored(words: dict[str, str]) -> None:
    for name, value in from_words(words).model_dump(mode="json", exclude_defaults=True).items():
        assert value == (words[name] if name in PLAIN else json.loads(words[name]))


def test_whole_numbers_may_have_a_decimal_point() -> None:
    words = {
        "layer": "3.0",
        "pin": "0.0",
        "topK": "5.0",
        "seed": "7.0",
        "written": "[2.0]",
        "order": "[1.0,0]",
    }
    read = from_words(
        {
            **words,
            "versus": '{"layer":1.0,"head":2}',
            "window": '{"query":1.0,"key":2.0,"size":3.0}',
        }
    )
    assert (read.layer, read.pin, read.top_k, read.seed, read.written, read.order) == (
        3,
        0,
        5,
        7,
        [2],
        [1, 0],
    )
    assert (read.versus, read.window) == (
        HeadPlace(layer=1, head=2),
        Window(query=1, key=2, size=3),
    )
    assert (
        from_words({"layer": "3.5", "topK": "0.5", "seed": "true", "written": "[1.5]"}) == State()
    )


@pytest.mark.parametrize("word", ["[" * 100_000, "1" * 5000, "NaN", "1e400", "{}", '"\ud800"', ""])
def test_words_that_cannot_be_read_are_ignored(word: str) -> None:
    assert from_words(dict.fromkeys([*set(NAMES.values()) - set(PLAIN)], word)) == State()


def test_edits_from_python() -> None:
    head = {"part": "self", "layer": np.int64(1), "head": 0}
    found = changed(
        State(),
        {"removed": [head], "steer": {"layer": 0, "toward": 3, "away": None, "strength": 1}},
    )
    assert found.removed == [RemovedHead(part="self", layer=1, head=0)]
    assert found.steer == Steering(layer=0, toward=3, away=None, strength=1.0)
    assert changed(found, {"removed": [], "steer": None}) == State()
    with refused("removed = .*"):
        changed(State(), {"removed": [{"layer": 1, "head": 0}]})


def test_values_from_python() -> None:
    values = {
        "top_k": np.int64(5),
        "topP": 0.5,
        "versus": (1, 2),
        "cells": {"Km.0.0": 2.5},
        "order": np.array([1, 0]),
    }
    assert changed(State(layer=1), values) == State(
        layer=1,
        top_k=5,
        top_p=0.5,
        versus=HeadPlace(layer=1, head=2),
        cells={"Km.0.0": "2.5"},
        order=[1, 0],
    )
    assert changed(State(pin=3), {"pin": None}) == State()


@pytest.mark.parametrize(
    ("values", "got", "expected"),
    [
        ({"colour": "red"}, "colour = 'red'", "one of model, view"),
        ({"layer": -1}, "layer = -1", "greater than or equal to 0"),
        ({"layer": "two"}, "layer = 'two'", "integer"),
        ({"head": 1, "view": "cellar"}, "view = 'cellar'", "'attention', 'design'"),
        ({"temperature": float("nan")}, "temperature = nan", "finite number"),
        ({"top_k": 0}, "top_k = 0", "greater than or equal to 1"),
        ({"source": {1}}, "source = {1}", "tolist"),
        ({"text": b"a"}, "text = b'a'", "tolist"),
    ],
)
def test_values_that_do_not_fit_are_refused(
    values: dict[str, Any], got: str, expected: str
) -> None:
    with refused(got=re.escape(got), expected=expected):
        changed(State(), values)


def test_a_model_opens_on_its_first_view_but_flow() -> None:
    views: list[View] = ["flow", "attention", "sampling"]
    assert view_of(State(), views) == view_of(State(pin=0), views) == "attention"
    assert view_of(State(view="flow"), views) == "flow"
    assert view_of(State(view="design"), views) == "attention"
    assert view_of(State(), ["design", "attention"]) == "design"
