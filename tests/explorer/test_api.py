"""Requests are read in one way on every transport; the table of calls is complete."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.errors import InputError
from glassformer.explorer import messages as m
from glassformer.explorer.api import CALLS, Answering, NotDescribed, UnknownName, parse, refusal_of
from glassformer.explorer.backend import Backend
from refusals import refused


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_asked_with_a_message_and_told_in_a_sentence(name: str) -> None:
    call = CALLS[name]
    assert name.isidentifier()
    assert issubclass(call.asked, m.Message)
    assert issubclass(call.answered, m.Message | bytes | str)
    assert call.summary.endswith(".")


def test_no_two_calls_are_asked_alike() -> None:
    assert len({call.asked for call in CALLS.values()}) == len(CALLS)


def test_the_two_calls_for_bare_numbers_are_those_that_the_contract_names() -> None:
    assert {name for name, call in CALLS.items() if call.answered is bytes} == {"weights", "rows"}
    assert all(f"``{name}``" in (m.__doc__ or "") for name in ("weights", "rows"))


def test_an_explorer_is_who_answers(small_backend: Backend) -> None:
    assert isinstance(small_backend, Answering)
    assert not isinstance(CALLS, Answering)


@given(st.text(max_size=40), st.integers(0, 2**53 - 1), st.floats(0, 100))
def test_a_request_goes_there_and_back(text: str, seed: int, temperature: float) -> None:
    ask = m.AskSteps(model="a", text=text, seed=seed, temperature=temperature)
    assert parse("steps", ask.model_dump()) == ask
    assert parse("steps", json.loads(ask.model_dump_json())) == ask


@pytest.mark.parametrize(
    ("body", "got"),
    [
        ('{"model": "a", "text": "\\ud800"}', "text: Input should be a valid string"),
        ("[]", "the body: Input should be"),
        ('{"model": "a"}', "text: Field required"),
        ('{"model": "a", "text": 3}', "text: Input should be a valid string"),
        ('{"model": "a", "text": "", "steps": "3"}', "steps: Input should be a valid integer"),
        ('{"model": "a", "text": "", "temperature": NaN}', "temperature: Input should be"),
        ('{"model": "", "text": 3}', "model: String should have at least 1 character, and 1 more errors"),
        (json.dumps({"model": "a", "text": "", "x" * 500: 1}), f"{'x' * 40}: Extra inputs"),
    ],
)
def test_what_is_not_described_is_refused(body: Any, got: str) -> None:
    with pytest.raises(NotDescribed) as refused:
        parse("steps", json.loads(body))
    assert refused.value.got.startswith(got)
    assert "\n" not in str(refused.value)


def test_a_call_that_there_is_not() -> None:
    with refused("the call 'steal'", error=UnknownName):
        parse("steal", "{}")


def test_a_refusal_says_what_the_error_says() -> None:
    error = InputError("a", "b", "c")
    assert refusal_of(error) == m.Refusal(got="a", expected="b", fix="c")


def test_an_unknown_name_is_bad_input() -> None:
    assert issubclass(UnknownName, InputError)
