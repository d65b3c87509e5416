"""Inputs passed from Python, as tokens or arrays, converted to the text and units that the page shows."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from glassformer.errors import InputError, require
from glassformer.explorer.messages import MOST_CHARACTERS
from glassformer.text import short

Encode = Callable[[str], Sequence[int]]
Join = Callable[[Sequence[int]], str]

_SHOWN = 8


def tokens_in(text: Any) -> list[int] | None:
    """The tokens of a list of integers, or of one row of an array or tensor; None for a string.

    Raises:
        InputError: A value of another type or shape.
    """
    if isinstance(text, str):
        return None
    if isinstance(text, Tensor | np.ndarray):
        one = text.ndim == 1 or (text.ndim == 2 and len(text) == 1)
        require(one, f"tokens of shape {list(text.shape)}", "one text", "Take one row.")
        text = text.reshape(-1).tolist()
    require(
        isinstance(text, list | tuple | range),
        f"text of type {type(text).__name__}",
        "a string, or tokens in a list, an array or a tensor",
        "Pass text='...' or text=[1, 2, 3].",
    )
    return [_whole(each) for each in text]


def text_of(tokens: Sequence[int], encode: Encode, joins: Sequence[Join]) -> str:
    """A text that encodes to exactly these tokens, from the first of ``joins`` that gives one.

    Args:
        tokens: At least one; all in the vocabulary.
        encode: The tokens of a text.
        joins: Functions that give the text of tokens.

    Raises:
        InputError: No text encodes to these tokens.
    """
    require(len(tokens) > 0, "no tokens", "at least one", "Pass text=[1, 2, 3].")
    got = f"the tokens {_listed(tokens)}, which have no text"
    for join in joins:
        text = join(tokens)
        if text == "":
            continue
        again = list(encode(text))
        if again == list(tokens):
            return text
        got = f"the tokens {_listed(tokens)}, whose text {short(text)} is read as {_listed(again)}"
    raise InputError(
        got,
        "the tokens of a text, since the page shows texts",
        "Pass the text, or no tokenizer: then the text is token numbers.",
    )


def require_text(text: str) -> str:
    """``text``, if the page can show it.

    Raises:
        InputError: An empty or too long text, or half of a surrogate pair, which is not text.
    """
    count = f"a text of {len(text):,} characters"
    require(0 < len(text) <= MOST_CHARACTERS, count, f"1 to {MOST_CHARACTERS:,}", "Pass text='...'.")
    found = halves(text)
    require(not found, f"a text with {found[:1]!a}, half of a surrogate pair", "whole characters", "Remove it.")
    return text


def halves(text: str) -> list[str]:
    """The halves of surrogate pairs in a text: Python's form of bytes that are not UTF-8, which no page can contain."""
    return [each for each in text if "\ud800" <= each <= "\udfff"]


def units_of(source: Any, fields: int = 1) -> list[str]:
    """The input of an encoder as units: numbers become words, and the numbers of one unit get ``=`` between them.

    Args:
        source: A list of units, or an array or tensor, with or without a first axis of one.
        fields: Number of numbers in a unit.

    Raises:
        InputError: A source of another type or shape.
    """
    if isinstance(source, Tensor | np.ndarray):
        batched = 2 if fields == 1 else 3
        require(
            source.ndim == batched - 1 or (source.ndim == batched and len(source) == 1),
            f"a source of shape {list(source.shape)}",
            "one source",
            "Take one row.",
        )
        source = (source[0] if source.ndim == batched else source).tolist()
    require(isinstance(source, list | tuple), f"source of type {type(source).__name__}", "a list", "Pass [1, 2, 3].")
    return ["=".join(map(str, unit)) if isinstance(unit, list | tuple) else str(unit) for unit in source]


def _whole(token: Any) -> int:
    try:
        require(not isinstance(token, bool), f"{token!r} among tokens", "whole numbers", "Pass text=[1, 2, 3].")
        return operator.index(token)
    except TypeError:
        raise InputError(f"{short(str(token))} among tokens", "whole numbers", "Pass text=[1, 2, 3].") from None


def _listed(tokens: Sequence[int]) -> str:
    more = ", ..." if len(tokens) > _SHOWN else ""
    return f"[{', '.join(map(str, tokens[:_SHOWN]))}{more}]"
