"""Checks of texts and labels."""

from __future__ import annotations

from operator import index
from typing import Any

from glassformer.data.tokenizer import require_text
from glassformer.errors import require


def require_texts(texts: Any) -> None:
    """Raise :class:`~glassformer.errors.InputError` for one text instead of several, or one that is no string."""
    require(not isinstance(texts, str), "one text", "a sequence of texts", "Put it into a list.")
    for text in texts:
        require_text(text)


def require_class(label: Any) -> int:
    """The number of a class as an int, whichever library it comes from.

    Raises:
        InputError: Something else than a whole number from 0.
    """
    try:
        number = index(label)
    except TypeError:
        number = -1
    require(number >= 0, f"the label {label!r}", "whole numbers from 0", "Number the classes from 0.")
    return number
