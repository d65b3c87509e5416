"""Convert text to tokens and back: by a tokenizer, as bytes, or as numbers.

Inputs that are passed from Python, such as arrays, become text.
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
    """Return the numbers in a text, between spaces: at least one, at most ``longest``."""
    tokens = read_numbers(text, vocab_size)
    if not 1 <= len(tokens) <= longest:
        raise InputError(
            got=f"{len(tokens):,} numbers",
            expected=f"1 to {longest:,}",
            fix="Add or remove some.",
        )
    return tokens


def text_of_numbers(tokens: Sequence[int]) -> str:
    """Write numbers with spaces between them."""
    return " ".join(map(str, tokens))


def text_bytes(text: str, longest: int) -> list[int]:
    """Return the bytes of a text in UTF-8."""
    try:
        tokens = list(text.encode())
    except UnicodeEncodeError as error:
        raise InputError(
            got=f"{text[error.start]!a} at place {error.start + 1}, half of a surrogate pair",
            expected="text in UTF-8",
            fix="Remove it.",
        ) from None
    if not 1 <= len(tokens) <= longest:
        raise InputError(
            got=f"a text of {len(tokens):,} bytes",
            expected=f"1 to {longest:,}",
            fix="Shorten the text.",
        )
    return tokens


def byte_word(token: int) -> str:
    """Return the name of a byte: a visible character, or its number as in ``\\xc3``."""
    character = chr(token)
    if 0x20 < token < 0x7F or character in _SHOWN:
        return visible_spaces(character)
    return f"\\x{token:02x}"


def visible_spaces(text: str) -> str:
    """Replace spaces, tabs and newlines by visible characters."""
    return "".join(_SHOWN.get(character, character) for character in text)


def text_of_bytes(tokens: Sequence[int]) -> str:
    """Return the text of bytes in UTF-8; invalid bytes become the replacement character."""
    return bytes(tokens).decode("utf-8", errors="replace")


_SAMPLE = "The quick brown fox jumps over the lazy dog."
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
"""Byte in a SentencePiece vocabulary."""
_BYTES = re.compile(r"\\x[89a-f][0-9a-f]")
"""Byte that is no whole character, as a token's name shows it."""
_ALPHABET = byte_alphabet()
"""Bytes of the characters in a vocabulary of byte-level BPE."""


@dataclass(frozen=True)
class Codec:
    """Conversion between text and tokens.

    Args:
        encode: Returns the tokens of a text.
        word: Returns the name of a token.
        joins: Functions that may return the text of tokens. They are tried in turn; the last one
            includes special tokens.
        sample: The initial text by default.
        data: Description of these functions; see ``codec`` of
            :class:`~glassformer.explorer.loading.loaded_model.LoadedDecoder`.
        piece: Returns the bytes of a token; None if no token is a part of a character.
    """

    encode: Callable[[str], list[int]]
    word: Callable[[int], str]
    joins: tuple[Join, ...]
    sample: str
    data: Mapping[str, Any] | None = None
    piece: Callable[[int], bytes] | None = None

    def labels(self, tokens: Sequence[int]) -> list[str]:
        """Return the names of a text's tokens; parts of a character as in :func:`part_labels`."""
        words = [self.word(token) for token in tokens]
        if self.piece is None or not any(map(_BYTES.search, words)):
            return words
        pieces = [self.piece(token) for token in tokens]
        are_parts = [not _is_text(piece) for piece in pieces]
        labels = [visible_spaces(label[:1]) + label[1:] for label in part_labels(pieces)]
        names = zip(words, labels, are_parts, strict=True)
        return [label if is_part else word for word, label, is_part in names]


def numbers_codec(
    vocab_size: int, longest: int, recurrence: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Describe :func:`numbers` as data, with the recurrence that the numbers follow."""
    return {
        "kind": "numbers",
        "vocab_size": vocab_size,
        "longest": longest,
        "recurrence": recurrence,
    }


def codec_of(
    tokenizer: Any, vocab_size: int, longest: int, text: Any = None, *, cuts: bool = True
) -> Codec:
    """Return the codec of a model.

    Args:
        tokenizer: A tokenizer of glassformer, of transformers or of a released model. With None,
            the text is token numbers, or bytes if the vocabulary has 256 tokens and ``text`` is not
            numbers.
        vocab_size: Number of tokens in the vocabulary.
        longest: Largest number of tokens that the model reads.
        text: The initial text or tokens, if any.
        cuts: Whether glassformer's tokenizers cut a longer text, as for a classifier; otherwise it
            is refused.
    """
    kind = None
    if isinstance(tokenizer, ReleasedTokenizer):
        kind = tokenizer.source
    if tokenizer is None:
        is_numeric = not isinstance(text, str) or re.fullmatch(r"[\d\s]+", text) is not None
        kind = "bytes" if vocab_size == 256 and (text is None or not is_numeric) else "numbers"
    if kind == "bytes":
        return _bytes_codec(longest)
    if kind == "numbers":
        sample = text_of_numbers([number % vocab_size for number in range(min(8, longest))])
        encode = partial(numbers, vocab_size=vocab_size, longest=longest)
        return Codec(encode, str, (text_of_numbers,), sample, numbers_codec(vocab_size, longest))
    if isinstance(tokenizer, Tokenizer):
        return _own(tokenizer, longest, cuts)
    if isinstance(tokenizer, ReleasedTokenizer):
        return _released(tokenizer, vocab_size, longest)
    if not (callable(tokenizer) and hasattr(tokenizer, "convert_ids_to_tokens")):
        raise InputError(
            got=f"a tokenizer of type {type(tokenizer).__name__}",
            expected="a tokenizer of glassformer or of transformers, or None",
            fix="Pass the one that the model was trained with.",
        )
    return _hugging_face(tokenizer, longest)


def _bytes_codec(longest: int) -> Codec:
    return Codec(
        encode=partial(text_bytes, longest=longest),
        word=byte_word,
        joins=(text_of_bytes,),
        sample=_SAMPLE[:longest],
        data={"kind": "bytes", "longest": longest},
        piece=lambda token: bytes([token]),
    )


def _own(tokenizer: Tokenizer, longest: int, cuts: bool) -> Codec:
    """Return the codec of one of glassformer's tokenizers."""
    most = longest if cuts else MOST_CHARACTERS
    sample = _sample(len(tokenizer.encode(_SAMPLE, MOST_CHARACTERS)), longest)
    data = None
    if isinstance(tokenizer, WordTokenizer):
        sample = " ".join(tokenizer.words[: min(8, longest - 1)]) or sample
        data = tokenizer.described(longest)
    return Codec(
        encode=lambda typed: _require_length(tokenizer.encode(typed, most), longest),
        word=lambda token: _plain(tokenizer.pieces([token])[0], False),
        joins=(tokenizer.decode,),
        sample=sample,
        data=data,
        piece=lambda token: _bytes_of(tokenizer.pieces([token])[0], False),
    )


def _hugging_face(tokenizer: Any, longest: int) -> Codec:
    """Return the codec of a tokenizer of transformers."""

    def encode(typed: str) -> list[int]:
        with engine_errors("the tokenizer", "it splits a text"):
            tokens = list(tokenizer(typed)["input_ids"])
        return _require_length(tokens, longest)

    engine = getattr(tokenizer, "backend_tokenizer", None)
    bytewise = "ByteLevel" in str(getattr(engine, "decoder", ""))
    bytewise = bytewise or hasattr(tokenizer, "byte_decoder")

    def word(token: int) -> str:
        piece = tokenizer.convert_ids_to_tokens(token)
        if piece is None:
            return str(token)
        return _plain(str(piece), bytewise)

    def piece_bytes(token: int) -> bytes:
        return _bytes_of(str(tokenizer.convert_ids_to_tokens(token)), bytewise)

    # A generated special token must be part of the text, or the next step would not read it.
    join = partial(tokenizer.decode, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    bare = partial(tokenizer.decode, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    with engine_errors("the tokenizer", "it splits a text"):
        sample_length = len(tokenizer(_SAMPLE)["input_ids"])
    return Codec(encode, word, (bare, join), _sample(sample_length, longest), piece=piece_bytes)


def _sample(length: int, longest: int) -> str:
    """Return the sample text of ``length`` tokens if the model reads it, or a short one."""
    return _SAMPLE if length <= longest else "a"


def _released(tokenizer: ReleasedTokenizer, vocab_size: int, longest: int) -> Codec:
    """Return the codec of a released model's tokenizer."""
    tokenizer.require_fits(vocab_size)
    begin = list(tokenizer.begin)
    prefix = tokenizer.prefix
    special = frozenset(tokenizer.specials.values())

    def word(token: int) -> str:
        # A token may be a part of a character.
        return visible_spaces(tokenizer.token_bytes(token).decode(errors="backslashreplace"))

    def join(tokens: Sequence[int]) -> str:
        # No text encodes to a special token: the next step would read its name as letters.
        text_tokens = (
            token for token in tokens if token not in special and tokenizer.piece(token) is not None
        )
        return "".join(tokenizer.stream(text_tokens, prefix))

    return Codec(
        encode=lambda typed: _require_length([*begin, *tokenizer.encode(typed)], longest),
        word=word,
        joins=(join,),
        sample=_sample(len(begin) + len(tokenizer.encode(_SAMPLE)), longest),
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
    r"""Return the text of a vocabulary's piece; bytes of a part of a character as ``\xe4``."""
    byte = _BYTE.fullmatch(piece)
    if byte is not None:
        return byte_word(int(byte[1], 16))
    return visible_spaces(_bytes_of(piece, bytewise).decode(errors="backslashreplace"))


def _bytes_of(piece: str, bytewise: bool) -> bytes:
    """Return the bytes that a vocabulary's piece stands for."""
    byte = _BYTE.fullmatch(piece)
    if byte is not None:
        return bytes([int(byte[1], 16)])
    if bytewise and all(character in _ALPHABET for character in piece):
        piece = b"".join(map(_ALPHABET.__getitem__, piece)).decode(errors="surrogateescape")
    return piece.replace("▁", " ").encode(errors="surrogateescape")


def _is_text(piece: bytes) -> bool:
    """Check that the bytes are whole characters."""
    return piece.decode(errors="replace").encode() == piece


def tokens_in(text: Any) -> list[int] | None:
    """Return the tokens in a list, or in one row of an array or tensor; None for a string."""
    if isinstance(text, str):
        return None
    if isinstance(text, Tensor | np.ndarray):
        is_one_text = text.ndim == 1 or (text.ndim == 2 and len(text) == 1)
        if not is_one_text:
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
    non_integers = [
        token for token in text if isinstance(token, bool) or not isinstance(token, Integral)
    ]
    if non_integers:
        raise InputError(
            got=f"{short(str(non_integers[:1]))} among tokens",
            expected="whole numbers",
            fix=fix,
        )
    return list(map(int, text))


def text_of(tokens: Sequence[int], encode: Encode, joins: Sequence[Join]) -> str:
    """Return a text that encodes to exactly these tokens, by the first of ``joins`` that can."""
    if len(tokens) == 0:
        raise InputError(
            got="no tokens",
            expected="at least one",
            fix="Pass text=[1, 2, 3].",
        )
    tokens_shown = one_line(str(list(tokens)), _LONGEST_LIST)
    problem = f"the tokens {tokens_shown}, which have no text"
    for text in filter(None, (join(tokens) for join in joins)):
        tokens_again = list(encode(text))
        if tokens_again == list(tokens):
            return text
        again_shown = one_line(str(tokens_again), _LONGEST_LIST)
        problem = f"the tokens {tokens_shown}, whose text {short(text)} is read as {again_shown}"
    raise InputError(
        got=problem,
        expected="the tokens of a text, since the page shows texts",
        fix="Pass the text, or no tokenizer: then the text is token numbers.",
    )


def require_text(text: str) -> str:
    """Return ``text``, if the page can show it."""
    if not 0 < len(text) <= MOST_CHARACTERS:
        raise InputError(
            got=f"a text of {len(text):,} characters",
            expected=f"1 to {MOST_CHARACTERS:,}",
            fix="Pass text='...'.",
        )
    surrogates = halves(text)
    if surrogates:
        raise InputError(
            got=f"a text with {surrogates[:1]!a}, half of a surrogate pair",
            expected="whole characters",
            fix="Remove it.",
        )
    return text


def halves(text: str) -> list[str]:
    """Return the halves of surrogate pairs in a text, which no page can contain.

    They are Python's form of bytes that are not UTF-8.
    """
    return [character for character in text if "\ud800" <= character <= "\udfff"]


def units_of(source: Any) -> list[str]:
    """Return the units of an encoder's input as texts, with ``=`` between the numbers of a unit."""
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
