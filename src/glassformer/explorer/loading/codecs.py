"""Text and tokens: by a tokenizer, as bytes, or as numbers; and inputs passed from Python, such as
arrays, as text.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from typing import Any

import numpy as np
from torch import Tensor

from glassformer.data.engines import engine_errors
from glassformer.data.released_tokenizer import (
    ReleasedTokenizer,
    byte_alphabet,
    part_labels,
    read_numbers,
)
from glassformer.data.subword import Tokenizer
from glassformer.data.tokenizer import WordTokenizer
from glassformer.errors import InputError
from glassformer.explorer.messages import MOST_CHARACTERS
from glassformer.text import one_line, short

Encode = Callable[[str], Sequence[int]]
Join = Callable[[Sequence[int]], str]

_LONGEST_LIST = 40
_SHOWN = {"\n": "⏎", "\t": "⇥", " ": "␣"}


def numbers(text: str, vocab_size: int, longest: int) -> list[int]:
    """The numbers in a text, between spaces: at least one, at most ``longest``."""
    found = read_numbers(text, vocab_size)
    if not 1 <= len(found) <= longest:
        raise InputError(
            got=f"{len(found):,} numbers",
            expected=f"1 to {longest:,}",
            fix="Add or remove some.",
        )
    return found


def text_of_numbers(tokens: Sequence[int]) -> str:
    """Numbers with spaces between them."""
    return " ".join(map(str, tokens))


def text_bytes(text: str, longest: int) -> list[int]:
    """The bytes of a text in UTF-8."""
    try:
        tokens = list(text.encode())
    except UnicodeEncodeError as error:
        got = f"{text[error.start]!a} at place {error.start + 1}, half of a surrogate pair"
        raise InputError(got, "text in UTF-8", "Remove it.") from None
    if not 1 <= len(tokens) <= longest:
        raise InputError(
            got=f"a text of {len(tokens):,} bytes",
            expected=f"1 to {longest:,}",
            fix="Shorten the text.",
        )
    return tokens


def byte_word(token: int) -> str:
    """The name of a byte: its ASCII character, a visible character for white space, or its number,
    as in ``\\xc3``.
    """
    character = chr(token)
    if 0x20 < token < 0x7F or character in _SHOWN:
        return visible_spaces(character)
    return f"\\x{token:02x}"


def visible_spaces(text: str) -> str:
    """A text with visible characters for spaces, tabs and newlines."""
    return "".join(_SHOWN.get(character, character) for character in text)


def text_of_bytes(tokens: Sequence[int]) -> str:
    """The text of some bytes in UTF-8; invalid ones become the replacement character."""
    return bytes(tokens).decode("utf-8", errors="replace")


_SAMPLE = "The quick brown fox jumps over the lazy dog."
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
"""A byte in a SentencePiece vocabulary."""
_BYTES = re.compile(r"\\x[89a-f][0-9a-f]")
"""Bytes that are no whole character, as a token's name shows them."""
_ALPHABET = byte_alphabet()


@dataclass(frozen=True)
class Codec:
    """Conversion between text and tokens.

    Args:
        encode: The tokens of a text.
        word: The name of a single token.
        joins: Functions that may give the text of tokens passed from Python, to be tried in turn;
            the last includes special tokens.
        data: The same as data; see
            :class:`~glassformer.explorer.loading.loaded_model.LoadedDecoder`.
    """

    encode: Callable[[str], list[int]]
    word: Callable[[int], str]
    joins: tuple[Join, ...]
    sample: str
    data: Mapping[str, Any] | None = None
    piece: Callable[[int], bytes] | None = None
    """The bytes of a token, where it may be a part of a character."""

    def labels(self, tokens: Sequence[int]) -> list[str]:
        """The names of a text's tokens; parts of a character as in :func:`part_labels`."""
        words = [self.word(token) for token in tokens]
        if self.piece is None or not any(map(_BYTES.search, words)):
            return words
        pieces = [self.piece(token) for token in tokens]
        shared = [not _is_text(piece) for piece in pieces]
        found = [visible_spaces(label[:1]) + label[1:] for label in part_labels(pieces)]
        return [
            label if part else word for word, label, part in zip(words, found, shared, strict=True)
        ]


def numbers_codec(
    vocab_size: int, longest: int, recurrence: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What :func:`numbers` does, as data, and the recurrence that the numbers follow."""
    return {
        "kind": "numbers",
        "vocab_size": vocab_size,
        "longest": longest,
        "recurrence": recurrence,
    }


def codec_of(
    tokenizer: Any, vocab_size: int, longest: int, text: Any = None, *, cuts: bool = True
) -> Codec:
    """The codec of a model.

    Args:
        tokenizer: Ours, one of transformers or that of a released model. None: the text is token
            numbers, or bytes if the vocabulary has 256 tokens and ``text`` is not numbers.
        longest: Largest number of tokens that the model reads.
        text: The initial text or tokens, if any.
        cuts: Whether our tokenizers cut a longer text, as for a classifier; otherwise it is
            refused.
    """
    kind = None
    if isinstance(tokenizer, ReleasedTokenizer):
        kind = tokenizer.source
    if tokenizer is None and vocab_size == 256:
        if text is None or (isinstance(text, str) and not re.fullmatch(r"[\d\s]+", text)):
            kind = "bytes"
        else:
            kind = "numbers"
    if tokenizer is None or kind in ("bytes", "numbers"):
        if kind == "bytes":
            read = partial(text_bytes, longest=longest)
            data = {"kind": "bytes", "longest": longest}
            return Codec(
                read,
                byte_word,
                (text_of_bytes,),
                _SAMPLE[:longest],
                data,
                lambda token: bytes([token]),
            )
        sample = text_of_numbers([number % vocab_size for number in range(min(8, longest))])
        read = partial(numbers, vocab_size=vocab_size, longest=longest)
        data = numbers_codec(vocab_size, longest)
        return Codec(read, str, (text_of_numbers,), sample, data)
    if isinstance(tokenizer, Tokenizer):
        if isinstance(tokenizer, WordTokenizer):
            words = tokenizer.words[: min(8, longest - 1)]
        else:
            words = ()
        if len(tokenizer.encode(_SAMPLE, MOST_CHARACTERS)) <= longest:
            sample = _SAMPLE
        else:
            sample = "a"
        return Codec(
            lambda typed: _require_length(
                tokenizer.encode(typed, longest if cuts else MOST_CHARACTERS), longest
            ),
            lambda token: _plain(tokenizer.pieces([token])[0], False),
            (tokenizer.decode,),
            " ".join(words) or sample,
            tokenizer.described(longest) if isinstance(tokenizer, WordTokenizer) else None,
            lambda token: _bytes_of(tokenizer.pieces([token])[0], False),
        )
    if isinstance(tokenizer, ReleasedTokenizer):
        return _released(tokenizer, vocab_size, longest)
    if not (callable(tokenizer) and hasattr(tokenizer, "convert_ids_to_tokens")):
        raise InputError(
            got=f"a tokenizer of type {type(tokenizer).__name__}",
            expected="a tokenizer of glassformer or of transformers, or None",
            fix="Pass the one that the model was trained with.",
        )

    def encode(typed: str) -> list[int]:
        with engine_errors("the tokenizer", "it splits a text"):
            tokens = list(tokenizer(typed)["input_ids"])
        return _require_length(tokens, longest)

    engine = getattr(tokenizer, "backend_tokenizer", None)
    bytewise = "ByteLevel" in str(getattr(engine, "decoder", "")) or hasattr(
        tokenizer, "byte_decoder"
    )

    def word(token: int) -> str:
        piece = tokenizer.convert_ids_to_tokens(token)
        if piece is None:
            return str(token)
        return _plain(str(piece), bytewise)

    # A generated special token has to be part of the text, or else the next step would not read it.
    join = partial(tokenizer.decode, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    bare = partial(tokenizer.decode, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    with engine_errors("the tokenizer", "it splits a text"):
        sample_length = len(tokenizer(_SAMPLE)["input_ids"])
    piece = lambda token: _bytes_of(str(tokenizer.convert_ids_to_tokens(token)), bytewise)  # noqa: E731
    return Codec(
        encode, word, (bare, join), _SAMPLE if sample_length <= longest else "a", piece=piece
    )


def _released(tokenizer: ReleasedTokenizer, vocab_size: int, longest: int) -> Codec:
    tokenizer.require_fits(vocab_size)
    begin = list(tokenizer.begin)
    prefix = tokenizer.prefix
    special = frozenset(tokenizer.specials.values())

    def join(tokens: Sequence[int]) -> str:
        # No text encodes to a special token: the next step would read its name as letters.
        shown = (
            token for token in tokens if token not in special and tokenizer.piece(token) is not None
        )
        return "".join(tokenizer.stream(shown, prefix))

    return Codec(
        lambda typed: _require_length([*begin, *tokenizer.encode(typed)], longest),
        # A token may be a part of a character.
        lambda token: visible_spaces(
            tokenizer.token_bytes(token).decode(errors="backslashreplace")
        ),
        (join,),
        _SAMPLE if len(begin) + len(tokenizer.encode(_SAMPLE)) <= longest else "a",
        piece=tokenizer.token_bytes,
    )


def _require_length(tokens: list[int], longest: int) -> list[int]:
    if not 1 <= len(tokens) <= longest:
        raise InputError(
            got=f"{len(tokens):,} tokens",
            expected=f"1 to {longest:,}",
            fix="Shorten the text." if tokens else "Type something.",
        )
    return tokens


def _plain(piece: str, bytewise: bool) -> str:
    r"""The text of a vocabulary's piece; bytes that are no whole character as ``\xe4``."""
    found = _BYTE.fullmatch(piece)
    if found is not None:
        return byte_word(int(found[1], 16))
    return visible_spaces(_bytes_of(piece, bytewise).decode(errors="backslashreplace"))


def _bytes_of(piece: str, bytewise: bool) -> bytes:
    """The bytes that a vocabulary's piece stands for."""
    found = _BYTE.fullmatch(piece)
    if found is not None:
        return bytes([int(found[1], 16)])
    if bytewise and all(character in _ALPHABET for character in piece):
        piece = b"".join(map(_ALPHABET.__getitem__, piece)).decode(errors="surrogateescape")
    return piece.replace("▁", " ").encode(errors="surrogateescape")


def _is_text(piece: bytes) -> bool:
    """Whether the bytes are whole characters."""
    return piece.decode(errors="replace").encode() == piece


def tokens_in(text: Any) -> list[int] | None:
    """The tokens in a list, or in one row of an array or tensor; None for a string."""
    if isinstance(text, str):
        return None
    if isinstance(text, Tensor | np.ndarray):
        one = text.ndim == 1 or (text.ndim == 2 and len(text) == 1)
        if not one:
            raise InputError(
                got=f"tokens of shape {list(text.shape)}",
                expected="one text",
                fix="Take one row.",
            )
        text = text.reshape(-1).tolist()
    expected = "a string, or tokens in a list, an array or a tensor"
    fix = "Pass text='...' or text=[1, 2, 3]."
    if not isinstance(text, list):
        raise InputError(
            got=f"text of type {type(text).__name__}",
            expected=expected,
            fix=fix,
        )
    wrong = [token for token in text if isinstance(token, bool) or not isinstance(token, Integral)]
    if wrong:
        raise InputError(
            got=f"{short(str(wrong[:1]))} among tokens",
            expected="whole numbers",
            fix=fix,
        )
    return list(map(int, text))


def text_of(tokens: Sequence[int], encode: Encode, joins: Sequence[Join]) -> str:
    """A text that encodes to exactly these tokens, from the first of ``joins`` that gives one."""
    if len(tokens) <= 0:
        raise InputError(
            got="no tokens",
            expected="at least one",
            fix="Pass text=[1, 2, 3].",
        )
    asked = one_line(str(list(tokens)), _LONGEST_LIST)
    got = f"the tokens {asked}, which have no text"
    for text in filter(None, (join(tokens) for join in joins)):
        again = list(encode(text))
        if again == list(tokens):
            return text
        got = f"the tokens {asked}, whose text {short(text)} is read as {one_line(str(again), _LONGEST_LIST)}"
    expected = "the tokens of a text, since the page shows texts"
    raise InputError(
        got, expected, "Pass the text, or no tokenizer: then the text is token numbers."
    )


def require_text(text: str) -> str:
    """``text``, if the page can show it."""
    if not 0 < len(text) <= MOST_CHARACTERS:
        raise InputError(
            got=f"a text of {len(text):,} characters",
            expected=f"1 to {MOST_CHARACTERS:,}",
            fix="Pass text='...'.",
        )
    found = halves(text)
    if found:
        raise InputError(
            got=f"a text with {found[:1]!a}, half of a surrogate pair",
            expected="whole characters",
            fix="Remove it.",
        )
    return text


def halves(text: str) -> list[str]:
    """The halves of surrogate pairs in a text: Python's form of bytes that are not UTF-8, which no
    page can contain.
    """
    return [each for each in text if "\ud800" <= each <= "\udfff"]


def units_of(source: Any) -> list[str]:
    """The units of an encoder's input, a list, an array or a tensor: the numbers of one get ``=``
    between them.
    """
    if isinstance(source, Tensor | np.ndarray):
        source = source.tolist()
    if not isinstance(source, list):
        raise InputError(
            got=f"source of type {type(source).__name__}",
            expected="a list",
            fix="Pass [1, 2, 3].",
        )
    return [
        "=".join(map(str, unit)) if isinstance(unit, list | tuple) else str(unit) for unit in source
    ]
