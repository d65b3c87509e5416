"""Engines of the library tokenizers: their failures and their time.

Failures and time depend on a file and a text. A regular expression in a file may backtrack. After
ten million steps, the library gives up a match with an error that is no :class:`Exception`. A text
may have many such matches, and no call can be interrupted.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import tokenizers

from glassformer.errors import InputError, first_line, is_panic
from glassformer.processor_time import Budget

SECONDS = 5.0
"""Processor time of a text's beginning after which the text is refused."""
_PREFIX = 256
_FIX = "Use the tokenizer that came with the model, or a shorter text."
_ESCAPE = re.compile(r"\\(?:[pP]\{[^}]*\}|.)", re.DOTALL)
_CLASS = re.compile(r"\[\^?\]?[^\]]*\]")
_UNBOUNDED = re.compile(r"(?:[*+]|\{\d+,\})[+?]?")
_REPEATED_GROUP = re.compile(r"\)(?:[*+]|\{\d+,\})")


@contextmanager
def engine_errors(source: str, action: str) -> Iterator[None]:
    """Raise :class:`~glassformer.errors.InputError` if the engine of ``source`` fails."""
    try:
        yield
    except BaseException as error:
        if not is_panic(error):
            raise
        raise _failure(source, action, error) from error


def _failure(source: str, action: str, error: BaseException) -> InputError:
    return InputError(
        got=f"{source}, which fails when {action}: {first_line(error)}",
        expected="regular expressions that can split any text",
        fix=_FIX,
    )


def encoding_of(
    engine: tokenizers.Tokenizer, text: str, source: str, backtracks: bool
) -> tokenizers.Encoding:
    """Return the engine's encoding of ``text``, without special tokens.

    ``backtracks`` is the result of :func:`may_backtrack`.

    Raises:
        InputError: If the engine fails or takes very long.
    """
    # Not with engine_errors(): a context manager takes a tenth of a short text's time.
    try:
        if backtracks:
            _require_fast(engine, text, source)
        return engine.encode(text, add_special_tokens=False)
    except BaseException as error:
        if not is_panic(error):
            raise
        raise _failure(source, f"it splits a text of {len(text):,} characters", error) from error


def may_backtrack(content: Mapping[str, Any]) -> bool:
    """Return whether a ``tokenizer.json`` has a regular expression that may take very long.

    Such an expression repeats a group, or has more than two repetitions in a row. Expressions of
    published models rarely do: they split a text in time proportional to its length.
    """
    parts = [content.get("normalizer"), content.get("pre_tokenizer")]
    return any(map(_backtracks, _expressions(parts)))


def _expressions(content: Any) -> Iterator[str]:
    """Yield the regular expressions in a part of a ``tokenizer.json``."""
    if isinstance(content, dict):
        if isinstance(content.get("Regex"), str):
            yield content["Regex"]
        content = list(content.values())
    if isinstance(content, list):
        for part in content:
            yield from _expressions(part)


def _backtracks(expression: str) -> bool:
    plain = _CLASS.sub("x", _ESCAPE.sub("x", expression))
    repetitions = max(len(_UNBOUNDED.findall(alternative)) for alternative in plain.split("|"))
    return repetitions > 2 or _REPEATED_GROUP.search(plain) is not None


def _require_fast(engine: tokenizers.Tokenizer, text: str, source: str) -> None:
    """Refuse a text whose beginning takes too long; beginnings double in length."""
    budget = Budget(SECONDS)
    length = _PREFIX
    while length < len(text):
        engine.encode(text[:length], add_special_tokens=False)
        if budget.is_over():
            raise InputError(
                f"{source}, which takes {SECONDS:g} seconds for the first {length:,} of "
                f"{len(text):,} characters",
                "regular expressions that take time in proportion to a text's length",
                _FIX,
            )
        length *= 2
