"""Requests are read in one way, whoever carries them, and what is none is told in a line."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.errors import InputError
from glassformer.explorer import messages as m
from glassformer.explorer.messages.requests import NotDescribed, parse, refusal_of
from glassformer.explorer.messages.unknown import UnknownName


@given(st.text(max_size=40), st.integers(0, 2**53 - 1), st.floats(0, 100))
def test_a_request_goes_there_and_back(text: str, seed: int, temperature: float) -> None:
    ask = m.AskSteps(model="a", text=text, seed=seed, temperature=temperature)
    assert parse("steps", ask.model_dump_json()) == ask
    assert parse("steps", ask.model_dump_json().encode()) == ask


@pytest.mark.parametrize(
    ("body", "got"),
    [
        ("{", "the body: Invalid JSON"),
        (b"\xff", "the body: Invalid JSON"),
        ('{"model": "a", "text": "\\ud800"}', "the body: Invalid JSON"),
        ("[]", "the body: Input should be an object"),
        ('{"model": "a"}', "text: Field required"),
        ('{"model": "a", "text": 3}', "text: Input should be a valid string"),
        ('{"model": "a", "text": "", "steps": "3"}', "steps: Input should be a valid integer"),
        ('{"model": "a", "text": "", "temperature": NaN}', "temperature: Input should be"),
        ('{"model": "", "text": 3}', "model: String should have at least 1 character, and 1 faults more"),
        (json.dumps({"model": "a", "text": "", "x" * 500: 1}), f"{'x' * 40}: Extra inputs"),
    ],
)
def test_what_is_not_described_is_refused(body: Any, got: str) -> None:
    with pytest.raises(NotDescribed) as refused:
        parse("steps", body)
    assert refused.value.got.startswith(got)
    assert "\n" not in str(refused.value)


def test_a_call_that_there_is_not() -> None:
    with pytest.raises(UnknownName, match="the call 'steal'"):
        parse("steal", "{}")


def test_a_refusal_says_what_the_error_says() -> None:
    error = InputError("a", "b", "c")
    assert refusal_of(error) == m.Refusal(got="a", expected="b", fix="c")
