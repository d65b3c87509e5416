"""Engines of the library tokenizers: their failures and their time, which depend on a file and a
text.

A regular expression of a file may backtrack. The library gives up a single match after ten million
steps, by an error that is no :class:`Exception`; a text may have many such matches, and no call can
be interrupted.
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
    """Raise :class:`~glassformer.errors.InputError` where the engine of ``source`` fails within
    itself.
    """
    try:
        yield
    except BaseException as error:
        if not is_panic(error):
            raise
        raise _failure(source, action, error) from error


def _failure(source: str, action: str, error: BaseException) -> InputError:
    got = f"{source}, which fails when {action}: {first_line(error)}"
    return InputError(got, "regular expressions that can split any text", _FIX)


def encoding_of(
    engine: tokenizers.Tokenizer, text: str, source: str, backtracks: bool
) -> tokenizers.Encoding:
    """The engine's encoding of ``text``, without special tokens; ``backtracks`` as
    :func:`may_backtrack` gives it.

    Raises:
        InputError: The engine fails, or takes very long.
    """
    try:
        if backtracks:
            _require_fast(engine, text, source)
        return engine.encode(text, add_special_tokens=False)
    except (
        BaseException
    ) as error:  # without a context manager, which would take a tenth of a short text's time
        if not is_panic(error):
            raise
        raise _failure(source, f"it splits a text of {len(text):,} characters", error) from error


def may_backtrack(content: Mapping[str, Any]) -> bool:
    """Whether a ``tokenizer.json`` has a regular expression that repeats a group, or that has more
    than two repetitions in a row.

    Those of published models rarely do, and split a text in time that is proportional to its
    length.
    """
    return any(
        map(_backtracks, _expressions([content.get("normalizer"), content.get("pre_tokenizer")]))
    )


def _expressions(content: Any) -> Iterator[str]:
    """The regular expressions in a part of a ``tokenizer.json``."""
    if isinstance(content, dict):
        if isinstance(content.get("Regex"), str):
            yield content["Regex"]
        content = list(content.values())
    if isinstance(content, list):
        for part in content:
            yield from _expressions(part)


def _backtracks(expression: str) -> bool:
    plain = _CLASS.sub("x", _ESCAPE.sub("x", expression))
    most = max(len(_UNBOUNDED.findall(alternative)) for alternative in plain.split("|"))
    return most > 2 or _REPEATED_GROUP.search(plain) is not None


def _require_fast(engine: tokenizers.Tokenizer, text: str, source: str) -> None:
    """Refuse a text whose beginning takes too long. Twice the length takes only a few times as
    long.
    """
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
