"""From text to tokens and back, for models that came without a tokenizer of their own: bytes, and bare numbers."""

from __future__ import annotations

from collections.abc import Sequence

from glassformer.errors import InputError, require

_SHOWN = {"\n": "⏎", "\t": "⇥", " ": "␣"}


def numbers(text: str, vocab_size: int, longest: int) -> list[int]:
    """The numbers in a text, between spaces.

    Raises:
        InputError: None, too many, or something else than numbers below ``vocab_size``.
    """
    words = text.split()
    expected = f"whole numbers from 0 to {vocab_size - 1} between spaces"
    for place, word in enumerate(words, start=1):
        fits = word.isascii() and word.isdecimal() and len(word) <= 12 and int(word) < vocab_size
        require(fits, f"{word[:40]!r} at place {place}", expected, "Mend it.")
    require(1 <= len(words) <= longest, f"{len(words):,} numbers", f"1 to {longest:,}", "Add or remove some.")
    return [int(word) for word in words]


def text_of_numbers(tokens: Sequence[int]) -> str:
    """Numbers with spaces between them."""
    return " ".join(map(str, tokens))


def text_bytes(text: str, longest: int) -> list[int]:
    """The bytes of a text in UTF-8.

    Raises:
        InputError: None, too many, or half a surrogate pair, which has none.
    """
    try:
        tokens = list(text.encode())
    except UnicodeEncodeError as error:
        got = f"{text[error.start]!a} at place {error.start + 1}, half a surrogate pair"
        raise InputError(got, "text that UTF-8 can hold", "Leave it out.") from None
    require(1 <= len(tokens) <= longest, f"a text of {len(tokens):,} bytes", f"1 to {longest:,}", "Shorten the text.")
    return tokens


def byte_word(token: int) -> str:
    """What a byte is called: its ASCII character, a sign for a blank, or its number as in ``\\xc3``."""
    character = chr(token)
    return blanks_shown(character) if 0x20 < token < 0x7F or character in _SHOWN else f"\\x{token:02x}"


def blanks_shown(text: str) -> str:
    """A text with signs for its blanks, tabs and line ends."""
    return "".join(_SHOWN.get(character, character) for character in text)


def text_of_bytes(tokens: Sequence[int]) -> str:
    """The text that these bytes are in UTF-8; what is none becomes the replacement character."""
    return bytes(tokens).decode("utf-8", errors="replace")
