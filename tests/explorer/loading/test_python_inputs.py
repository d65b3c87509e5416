"""What is handed over to be read becomes a text that is read as the same tokens, or is refused with the reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from glassformer.errors import InputError
from glassformer.explorer.loading.codecs import (
    halves,
    numbers,
    require_text,
    text_of,
    text_of_numbers,
    tokens_in,
    units_of,
)
from refusals import refused


@pytest.mark.parametrize(
    "text",
    [
        [3, 1],
        (3, 1),
        [np.int64(3), np.uint8(1)],
        np.array([3, 1]),
        np.array([[3, 1]], dtype=np.int32),
        torch.tensor([3, 1]),
        torch.tensor([[3, 1]]),
        [torch.tensor(3), 1],
    ],
)
def test_tokens_come_in_many_shapes(text: Any) -> None:
    assert tokens_in(text) == [3, 1]


def test_a_string_is_no_tokens() -> None:
    assert tokens_in("3 1") is None
    assert tokens_in(range(3, 0, -2)) == [3, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "text of type NoneType"),
        ({3: 1}, "text of type dict"),
        (3.5, "text of type float"),
        ([3, 1.5], "1.5' among tokens"),
        ([3, True], "True among tokens"),
        (["3"], "'3' among tokens"),
        (np.array([3.0]), "3.0' among tokens"),
        (torch.zeros(1, 2, 2, dtype=torch.int64), r"shape \[1, 2, 2\]"),
        (torch.zeros(2, 2, dtype=torch.int64), r"shape \[2, 2\]"),
        (np.array(3), r"shape \[\]"),
    ],
)
def test_what_is_neither_text_nor_tokens_is_refused(text: Any, message: str) -> None:
    with refused(message):
        tokens_in(text)


def test_a_text_is_read_as_the_tokens_or_refused() -> None:
    def encode(text: str) -> list[int]:
        return [0, *numbers(text, 10, 9)]  # as a tokenizer that begins each text with a token of its own

    def bare(tokens: Any) -> str:
        return text_of_numbers(tokens[1:])

    assert text_of([0, 3], encode, [text_of_numbers, bare]) == "3"
    with refused(r"the tokens \[3, 4\], whose text '4' is read as \[0, 4\]"):
        text_of([3, 4], encode, [text_of_numbers, bare])
    with refused("no text"):
        text_of([0], encode, [bare])
    with refused("no tokens"):
        text_of([], encode, [bare])


@pytest.mark.parametrize("text", ["", "x" * 65_537, "a\ud800"])
def test_a_text_that_no_page_can_show(text: str) -> None:
    with pytest.raises(InputError):
        require_text(text)
    assert require_text("a") == "a"


def test_halves_of_pairs_are_found() -> None:
    assert halves("a\ud800b\udfff\U0001f600") == ["\ud800", "\udfff"]


def test_units_of_a_source() -> None:
    assert units_of(["emma=4", 5, (1, 2)]) == ["emma=4", "5", "1=2"]
    for source in (torch.tensor([[1, 2]]), np.array([1, 2])):
        assert units_of(source) == ["1", "2"]
    assert units_of(torch.tensor([[[1, 2], [3, 4]]]), 2) == ["1=2", "3=4"]
    for wrong in ({"emma": 4}, "emma=4", 3, None, torch.zeros(2, 2), torch.zeros(1, 1, 2, dtype=torch.int64)):
        with pytest.raises(InputError):
            units_of(wrong)
