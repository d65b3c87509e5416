"""Messages refuse unknown fields, wrong types, numbers that are not finite, and too much."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from glassformer.explorer import messages as m
from glassformer.explorer.messages import MOST_CELLS, AskNext, AskSteps, HeadWeightsMessage, Index, Message, Name, Steps


@pytest.mark.parametrize("name", ["", "../x", "a/b", "A", ".hidden", "-x", "a b", "a\x00", "é", "a" * 81, "a\n"])
def test_a_name_is_never_a_path(name: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Name).validate_python(name)


@pytest.mark.parametrize("name", ["identity", "lookup-facts", "occurs_earlier", "r0", "a.b", "a" * 80])
def test_plain_names_are_taken(name: str) -> None:
    assert TypeAdapter(Name).validate_python(name) == name


def test_a_whole_number_may_have_a_point() -> None:
    assert TypeAdapter(Index).validate_json("3.0", strict=True) == 3
    for wrong in ("3.5", '"3"', "true", "NaN"):
        with pytest.raises(ValidationError):
            TypeAdapter(Index).validate_json(wrong, strict=True)


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(ValidationError):
        Message.model_validate({"a": 1})


TILE: dict[str, Any] = {"run": "r1", "part": "self", "layer": 0, "head": 0}


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (m.Nothing, {"a": 1}),
        (m.Ask, {"model": "x"}),
        (m.Ask, {"model": "x", "text": "a" * (m.MOST_CHARACTERS + 1)}),
        (m.Ask, {"model": "x", "text": "\ud800"}),
        (m.Ask, {"model": "x", "text": "a", "source": ["a"] * (m.MOST_UNITS + 1)}),
        (m.Ask, {"model": "x", "text": "a", "order": [-1]}),
        (m.AskTile, {**TILE, "level": 13}),
        (m.AskTile, {**TILE, "row": m.MOST_TOKENS}),
        (m.AskTile, {**TILE, "part": "values"}),
        (m.AskNext, {"model": "x", "text": "a", "temperature": float("nan")}),
        (m.AskNext, {"model": "x", "text": "a", "top_p": 1.5}),
        (m.AskSteps, {"model": "x", "text": "a", "steps": 65}),
    ],
)
def test_what_is_outside_of_the_contract_is_refused(kind: type[m.Message], values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        kind(**values)


def test_messages_stay_as_they_are_made_and_come_back_from_json() -> None:
    ask = m.Ask(model="x", text="é\u2028", source=["1"], order=[0])
    assert m.Ask.model_validate_json(ask.model_dump_json()) == ask
    with pytest.raises(ValidationError):
        ask.text = "b"


ONE = [[1.0]]


@pytest.mark.parametrize(
    "cells", [[[float("inf")]], [[float("nan")]], [["1; drop"]], [[None]], [[1.0] * (MOST_CELLS + 1)], "1", [1.0]]
)
def test_what_is_no_matrix_is_refused(cells: object) -> None:
    with pytest.raises(ValidationError):
        HeadWeightsMessage.model_validate({"Km": cells, "Qm": ONE, "Vm": ONE})


def test_numbers_come_back_as_they_were() -> None:
    weights = HeadWeightsMessage(Km=[[0.1, 5e-324]], Qm=ONE, Vm=ONE)
    assert HeadWeightsMessage.model_validate_json(weights.model_dump_json()) == weights
    assert weights.pos is None


@pytest.mark.parametrize("asked", [AskNext, AskSteps])
@pytest.mark.parametrize(
    "wrong",
    [{"temperature": -1}, {"temperature": 101}, {"top_k": 0}, {"top_k": 1.5}, {"top_p": 1.1}, {"top_p": float("nan")}],
)
def test_rules_that_there_are_not_are_refused(asked: type[AskNext | AskSteps], wrong: dict[str, Any]) -> None:
    asked(model="a", text="")
    with pytest.raises(ValidationError):
        asked(model="a", text="", **wrong)


def test_a_continuation_says_why_it_ended() -> None:
    assert Steps(text="a", steps=[], ended="model").ended == "model"
    for more in ({}, {"ended": "tired"}):
        with pytest.raises(ValidationError):
            Steps(text="a", steps=[], **more)  # type: ignore[arg-type]
