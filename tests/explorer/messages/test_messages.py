"""Messages refuse what is not in the contract: unknown fields, numbers that are none, too much."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from glassformer.explorer import messages as m

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
