"""A tokenizer of words and punctuation marks: a sentence of n words becomes CLS and n ids."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from typing import Any, ClassVar

from glassformer.data.unicode_words import JAVASCRIPT, MARK, outline, unified
from glassformer.errors import InputError, require_positive
from glassformer.untrusted import json_value

PAD_ID = 0
UNK_ID = 1
CLS_ID = 2
PAD = "<PAD>"
UNK = "<UNK>"
CLS = "<CLS>"
MAX_LEN = 128
"""Default length that texts are truncated to, as in the course."""

_SPECIAL = (PAD, UNK, CLS)
_FORMAT = "glassformer words"
_LETTER = rf"[\w{MARK}]"
_WORD = re.compile(
    rf"{_LETTER}+?(?=n't\b)"  # did|n't: so that all negations share a word
    r"|n't\b"
    r"|'(?:s|re|ve|ll|d|m)\b"  # movie|'s: so that it is the same word as movie
    rf"|{_LETTER}+"
    r"|[^\s]"
)
_LETTERS = re.compile(rf"{_LETTER}+")
_CLITIC = re.compile(r"n't|'(?:s|re|ve|ll|d|m)")
_CLOSING = frozenset(".,!?;:)%")


@dataclass(frozen=True)
class WordTokenizer:
    """A tokenizer whose tokens are words and punctuation marks.

    "Movie!" becomes ``movie`` and ``!``. Ids: 0 is padding, 1 an unknown word, 2 CLS, and 3 + i is
    ``words[i]``.
    """

    words: tuple[str, ...]
    pad_id: ClassVar[int] = PAD_ID
    cls_id: ClassVar[int] = CLS_ID

    def __post_init__(self) -> None:
        for word in self.words:
            if not isinstance(word, str) or word == "" or word in _SPECIAL:
                raise InputError(
                    got=f"{word!r} in a vocabulary",
                    expected=f"words that are not empty and not one of {', '.join(_SPECIAL)}",
                    fix="Make the vocabulary with WordTokenizer.from_texts.",
                )
        twice = [word for word, count in Counter(self.words).items() if count > 1]
        if twice:
            raise InputError(
                got=f"{twice[:1]} twice in a vocabulary",
                expected="each word once",
                fix="Drop the second one.",
            )

    @classmethod
    def from_texts(cls, texts: Iterable[str], vocab_size: int = 5000) -> WordTokenizer:
        """Return a tokenizer with the most frequent words of ``texts``, ordered by frequency.

        Ties are in the order of code points. Pass training texts only: a vocabulary with the words
        of held-out texts leaks them. ``vocab_size`` includes the three special ids.
        """
        require_positive(vocab_size=vocab_size)
        room = vocab_size - len(_SPECIAL)
        if room <= 0:
            raise InputError(
                got=f"vocab_size = {vocab_size}",
                expected="at least 4",
                fix="Pass more: three ids are special.",
            )
        if isinstance(texts, str):
            raise InputError(
                got="one text",
                expected="an iterable of texts",
                fix="Put it into a list.",
            )
        counts = Counter(chain.from_iterable(map(split_words, texts)))
        if not counts:
            raise InputError(
                got="texts without a word",
                expected="at least one word",
                fix="Pass the training texts.",
            )
        ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return cls(tuple(word for word, _ in ranked[:room]))

    @property
    def vocab_size(self) -> int:
        """Return the number of ids, the three special ones included."""
        return len(_SPECIAL) + len(self.words)

    @cached_property
    def ids(self) -> dict[str, int]:
        """Return the id of each token, special ones included."""
        return {word: index for index, word in enumerate((*_SPECIAL, *self.words))}

    def encode(self, text: str, max_len: int = MAX_LEN) -> list[int]:
        """Return CLS and the ids of the first ``max_len - 1`` words; 1 for an unknown word."""
        require_positive(max_len=max_len)
        words = islice(split_words(text), max_len - 1)
        return [CLS_ID, *(self.ids.get(word, UNK_ID) for word in words)]

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Return the word of each id; special ones as ``<PAD>``, ``<UNK>`` and ``<CLS>``."""
        pieces = []
        for token in tokens:
            require_token(token, self.vocab_size)
            if token < len(_SPECIAL):
                pieces.append(_SPECIAL[token])
            else:
                pieces.append(self.words[token - len(_SPECIAL)])
        return pieces

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the words with spaces between them, without padding and CLS.

        No space precedes closing punctuation and parts like n't. Upper case and original spaces are
        lost. Encoding the result gives the same ids if none of them is unknown.
        """
        text = ""
        before = ""
        for word in self.pieces(tokens):
            if word in (PAD, CLS):
                continue
            after_word = _LETTERS.fullmatch(outline(before)) and not _CLITIC.fullmatch(before)
            attached = word in _CLOSING or (_CLITIC.fullmatch(word) and after_word)
            if text and not attached:
                text += " "
            text += word
            before = word
        return text

    def described(self, max_len: int) -> dict[str, Any]:
        """Return :meth:`encode` as data for JavaScript."""
        return {
            "kind": "words",
            "words": [*_SPECIAL, *self.words],
            "longest": max_len,
            **JAVASCRIPT,
        }

    def to_json(self) -> str:
        """Return the vocabulary as a JSON object."""
        return json.dumps({"format": _FORMAT, "words": self.words})

    @classmethod
    def from_json(cls, text: str) -> WordTokenizer:
        """Return the tokenizer that :meth:`to_json` wrote."""
        content = read_json(text, "a tokenizer")
        words = None
        if content.get("format") == _FORMAT:
            words = content.get("words")
        if not isinstance(words, list):
            raise InputError(
                got=f"JSON with the keys {sorted(content)}",
                expected=f'"format": "{_FORMAT}" and a list "words"',
                fix="Use a file that WordTokenizer.to_json made.",
            )
        return cls(tuple(words))


def split_words(text: str) -> Iterator[str]:
    """Return the words and punctuation marks of ``text``, in order, lower-case.

    Adjacent letters, marks, digits and underscores make a word, by Unicode's general categories;
    every other visible character is a separate word. So Thai, Lao, Khmer, Burmese, Chinese and
    Japanese texts need spaces between words, or spaces without width: a run without them is one
    word. As in the Penn Treebank and SST-2, ``didn't`` is ``did`` and ``n't``, ``movie's`` is
    ``movie`` and ``'s``. Variants and invisible characters are
    :func:`~glassformer.data.unicode_words.unified`.
    """
    require_text(text)
    plain = unified(text)
    return (plain[match.start() : match.end()] for match in _WORD.finditer(outline(plain)))


def require_text(text: Any) -> None:
    """Raise :class:`~glassformer.errors.InputError` unless ``text`` is a string."""
    if not isinstance(text, str):
        raise InputError(
            got=f"a text of type {type(text).__name__}",
            expected="a str",
            fix="Read or decode it first.",
        )


def whole_text(text: str) -> str:
    """Return ``text`` with U+FFFD, the replacement character, for each unpaired surrogate."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def require_token(token: int, vocab_size: int) -> None:
    """Refuse a ``token`` that is no id of a vocabulary of this size."""
    if not 0 <= token < vocab_size:
        raise InputError(
            got=f"the token {token}",
            expected=f"ids from 0 to vocab_size - 1 = {vocab_size - 1}",
            fix="Decode with the tokenizer that encoded.",
        )


def read_json(text: str, what: str) -> dict[str, Any]:
    """Return the JSON object in ``text``."""
    try:
        content = json_value(text)
    except InputError as error:
        raise InputError(
            got=f"{what} that is not JSON: {error.got}",
            expected="a JSON object",
            fix=error.fix,
        ) from error
    if not isinstance(content, dict):
        raise InputError(
            got=f"{what} that is a {type(content).__name__}",
            expected="a JSON object",
            fix="Pass another file.",
        )
    return content
