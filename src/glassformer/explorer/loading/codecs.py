"""Conversion between text and tokens: by a tokenizer, as bytes, or as numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from glassformer.data.released_tokenizer import ReleasedTokenizer
from glassformer.data.tokenizer import Tokenizer, WordTokenizer
from glassformer.errors import InputError, require
from glassformer.explorer.loading.python_inputs import Join

_SHOWN = {"\n": "⏎", "\t": "⇥", " ": "␣"}


def numbers(text: str, vocab_size: int, longest: int) -> list[int]:
    """The numbers in a text, between spaces.

    Raises:
        InputError: No numbers, too many, or a word that is not a number below ``vocab_size``.
    """
    words = text.split()
    expected = f"whole numbers from 0 to {vocab_size - 1} between spaces"
    for place, word in enumerate(words, start=1):
        fits = word.isascii() and word.isdecimal() and len(word) <= 12 and int(word) < vocab_size
        require(fits, f"{word[:40]!r} at place {place}", expected, "Type such numbers.")
    require(1 <= len(words) <= longest, f"{len(words):,} numbers", f"1 to {longest:,}", "Add or remove some.")
    return [int(word) for word in words]


def text_of_numbers(tokens: Sequence[int]) -> str:
    """Numbers with spaces between them."""
    return " ".join(map(str, tokens))


def text_bytes(text: str, longest: int) -> list[int]:
    """The bytes of a text in UTF-8.

    Raises:
        InputError: No bytes, too many, or half of a surrogate pair, which has none.
    """
    try:
        tokens = list(text.encode())
    except UnicodeEncodeError as error:
        got = f"{text[error.start]!a} at place {error.start + 1}, half of a surrogate pair"
        raise InputError(got, "text in UTF-8", "Remove it.") from None
    require(1 <= len(tokens) <= longest, f"a text of {len(tokens):,} bytes", f"1 to {longest:,}", "Shorten the text.")
    return tokens


def byte_word(token: int) -> str:
    """The name of a byte: its ASCII character, a visible character for white space, or its number, as in ``\\xc3``."""
    character = chr(token)
    return visible_spaces(character) if 0x20 < token < 0x7F or character in _SHOWN else f"\\x{token:02x}"


def visible_spaces(text: str) -> str:
    """A text with visible characters for spaces, tabs and newlines."""
    return "".join(_SHOWN.get(character, character) for character in text)


def text_of_bytes(tokens: Sequence[int]) -> str:
    """The text of some bytes in UTF-8; invalid ones become the replacement character."""
    return bytes(tokens).decode("utf-8", errors="replace")


_SAMPLE = "The quick brown fox jumps over the lazy dog."
_SPECIAL = {"Ġ": "␣", "Ċ": "⏎", "▁": "␣"}
"""The characters by which byte-level and SentencePiece vocabularies write spaces and newlines."""


@dataclass(frozen=True)
class Codec:
    """Conversion between text and tokens.

    Args:
        encode: The tokens of a text.
        word: The name of a single token.
        join: The text of tokens, special tokens included.
        joins: All functions that may give the text of tokens passed from Python, to be tried in turn.
        sample: The default text.
    """

    encode: Callable[[str], list[int]]
    word: Callable[[int], str]
    join: Join
    joins: tuple[Join, ...]
    sample: str


def codec_of(tokenizer: Any, vocab_size: int, longest: int, text: Any = None) -> Codec:
    """The codec of a model.

    Args:
        tokenizer: Ours, one of transformers or that of a released model. None: the text is token numbers, or bytes if
            the vocabulary has 256 tokens and ``text`` is not numbers.
        vocab_size: Size of the model's vocabulary.
        longest: Largest number of tokens that the model reads.
        text: The initial text or tokens, if any.

    Raises:
        InputError: An unusable tokenizer, or that of a released model with a larger vocabulary.
    """
    if tokenizer is None:
        if vocab_size == 256 and (text is None or (isinstance(text, str) and not re.fullmatch(r"[\d\s]+", text))):
            joins = (text_of_bytes,)
            return Codec(lambda typed: text_bytes(typed, longest), byte_word, text_of_bytes, joins, _SAMPLE[:longest])
        sample = text_of_numbers([number % vocab_size for number in range(min(8, longest))])
        return Codec(
            lambda typed: numbers(typed, vocab_size, longest), str, text_of_numbers, (text_of_numbers,), sample
        )
    if isinstance(tokenizer, Tokenizer):
        return Codec(
            lambda typed: tokenizer.encode(typed, longest),
            lambda token: _plain(tokenizer.pieces([token])[0]),
            tokenizer.decode,
            (tokenizer.decode,),
            " ".join(tokenizer.words[:8]) if isinstance(tokenizer, WordTokenizer) else _SAMPLE,
        )
    if isinstance(tokenizer, ReleasedTokenizer):
        return _released(tokenizer, vocab_size, longest)
    require(
        callable(tokenizer) and hasattr(tokenizer, "convert_ids_to_tokens"),
        f"a tokenizer of type {type(tokenizer).__name__}",
        "a tokenizer of glassformer or of transformers, or None",
        "Pass the one that the model was trained with.",
    )

    def encode(typed: str) -> list[int]:
        return _require_length(list(tokenizer(typed)["input_ids"]), longest)

    def word(token: int) -> str:
        piece = tokenizer.convert_ids_to_tokens(token)
        return str(token) if piece is None else _plain(str(piece))

    # A generated special token has to be part of the text, or else the next step would not read it.
    join = partial(tokenizer.decode, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    bare = partial(tokenizer.decode, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return Codec(encode, word, join, (bare, join), _SAMPLE if len(tokenizer(_SAMPLE)["input_ids"]) <= longest else "a")


def _released(tokenizer: ReleasedTokenizer, vocab_size: int, longest: int) -> Codec:
    tokenizer.require_fits(vocab_size)
    begin = list(tokenizer.begin)
    special = frozenset(tokenizer.specials.values())

    def join(tokens: Sequence[int]) -> str:
        # No text encodes to a special token: the next step would read its name as letters.
        return tokenizer.decode(
            token for token in tokens if token not in special and tokenizer.piece(token) is not None
        )

    return Codec(
        lambda typed: _require_length([*begin, *tokenizer.encode(typed)], longest),
        # A token may be a part of a character.
        lambda token: visible_spaces(tokenizer.token_bytes(token).decode(errors="backslashreplace")),
        join,
        (join,),
        _SAMPLE if len(begin) + len(tokenizer.encode(_SAMPLE)) <= longest else "a",
    )


def _require_length(tokens: list[int], longest: int) -> list[int]:
    require(1 <= len(tokens) <= longest, f"{len(tokens):,} tokens", f"1 to {longest:,}", "Shorten the text.")
    return tokens


def _plain(piece: str) -> str:
    for special, shown in _SPECIAL.items():
        piece = piece.replace(special, shown)
    return piece
