"""What messages are made of: names that are no paths, numbers that JSON may write in two ways."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from glassformer.explorer.messages.base import Index, Message, Name


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
