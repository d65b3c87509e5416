"""From text to tokens and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.explorer.exhibits.text_codecs import byte_word, numbers, text_bytes, text_of_bytes, text_of_numbers
from refusals import refused


@given(st.lists(st.integers(0, 99), min_size=1, max_size=50))
def test_numbers_go_there_and_back(tokens: list[int]) -> None:
    assert numbers(text_of_numbers(tokens), 100, 50) == tokens


@given(st.text(min_size=1, max_size=40))
def test_bytes_go_there_and_back(text: str) -> None:
    tokens = text_bytes(text, 200)
    assert tokens == list(text.encode())
    assert text_of_bytes(tokens) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "0 numbers"),
        ("1 2 3 4", "4 numbers"),
        ("1 x", "'x' at place 2"),
        ("7", "'7' at place 1"),
        ("-1", "'-1'"),
        ("٣", "place 1"),
        ("1" * 5000, "place 1"),
    ],
)
def test_other_text_than_numbers_is_refused(text: str, message: str) -> None:
    with refused(message):
        numbers(text, 7, 3)


@pytest.mark.parametrize("text", ["", "abcd"])
def test_a_text_of_too_few_or_many_bytes_is_refused(text: str) -> None:
    with refused("bytes"):
        text_bytes(text, 3)


def test_half_a_surrogate_pair_has_no_bytes() -> None:
    with refused("at place 2"):
        text_bytes("a\ud800", 9)


def test_every_byte_has_a_name_of_its_own_that_can_be_seen() -> None:
    words = [byte_word(byte) for byte in range(256)]
    assert len(set(words)) == 256
    assert all(word.isprintable() and word.strip() for word in words)
    assert [words[byte] for byte in b"a \n"] == ["a", "␣", "⏎"]
    assert words[0xC3] == "\\xc3"
