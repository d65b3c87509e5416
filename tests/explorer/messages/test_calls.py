"""The table of calls: every one has types of messages and is told in a sentence."""

from __future__ import annotations

import pytest

from glassformer.explorer import messages as m
from glassformer.explorer.messages.calls import CALLS, Answering
from glassformer.explorer.service import Explorer


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


def test_an_explorer_is_who_answers(small_explorer: Explorer) -> None:
    assert isinstance(small_explorer, Answering)
    assert not isinstance(CALLS, Answering)
