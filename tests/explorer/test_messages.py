"""Messages refuse unknown fields, wrong types, numbers that are not finite, and too much."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from glassformer.explorer import messages as m


@pytest.mark.parametrize(
    "name", ["", "../x", "a/b", "A", ".hidden", "-x", "a b", "a\x00", "é", "a" * 81, "a\n"]
)
def test_a_name_is_never_a_path(name: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(m.Name).validate_python(name)


def test_plain_names_and_whole_numbers_with_a_point_are_taken() -> None:
    for name in ("identity", "lookup-facts", "occurs_earlier", "r0", "a.b", "a" * 80):
        assert TypeAdapter(m.Name).validate_python(name) == name
    assert TypeAdapter(m.Index).validate_json("3.0", strict=True) == 3


TILE: dict[str, Any] = {"run": "r1", "part": "self", "layer": 0, "head": 0}
NEXT: dict[str, Any] = {"model": "x", "text": "a"}
ONE = [[1.0]]
CELLS = (
    [[float("inf")]],
    [[float("nan")]],
    [["1; drop"]],
    [[None]],
    [[1.0] * (m.MOST_CELLS + 1)],
    "1",
    [1.0],
)


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
        *(
            (m.AskTile, {**TILE, "row": row})
            for row in (m.MOST_TOKENS, 3.5, "3", True, float("nan"))
        ),
        (m.AskTile, {**TILE, "part": "values"}),
        *((m.AskNext, {**NEXT, "temperature": wrong}) for wrong in (-1, 101, float("nan"))),
        *((m.AskSteps, {**NEXT, "top_k": wrong}) for wrong in (0, 1.5)),
        *((m.AskSteps, {**NEXT, "top_p": wrong}) for wrong in (1.5, float("nan"))),
        (m.AskSteps, {**NEXT, "steps": 65}),
        *((m.HeadWeightsMessage, {"Km": cells, "Qm": ONE, "Vm": ONE}) for cells in CELLS),
        (m.Steps, {"text": "a", "steps": []}),
        (m.Steps, {"text": "a", "steps": [], "ended": "tired"}),
    ],
)
def test_what_is_outside_of_the_contract_is_refused(
    kind: type[m.Message], values: dict[str, Any]
) -> None:
    with pytest.raises(ValidationError):
        kind(**values)


def test_messages_stay_as_they_are_made_and_come_back_from_json() -> None:
    ask = m.Ask(model="x", text="é\u2028", source=["1"], order=[0])
    assert m.Ask.model_validate_json(ask.model_dump_json()) == ask
    with pytest.raises(ValidationError):
        ask.text = "b"
    weights = m.HeadWeightsMessage(Km=[[0.1, 5e-324]], Qm=ONE, Vm=ONE)
    assert m.HeadWeightsMessage.model_validate_json(weights.model_dump_json()) == weights
