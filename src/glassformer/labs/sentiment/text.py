"""Text as the course passes it on: its tokenizer, which also fills up, its data set of padded rows, and odd texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index
from typing import Any

import torch
from torch import Tensor

from glassformer.data.tokenizer import CLS, PAD, PAD_ID, UNK, WordTokenizer, require_text
from glassformer.errors import InputError, require, require_positive


class SimpleTokenizer:
    """The course's tokenizer: a :class:`~glassformer.data.tokenizer.WordTokenizer` that fills up what it encodes.

    Words and punctuation marks are tokens of their own, so "movie!" holds the word "movie". Ids: 0 is padding, 1 an
    unknown word, 2 stands before every text, and from 3 on follow the most frequent words.

    Args:
        vocab_size: Ids at most, the three special ones included.

    Attributes:
        vocab: The id of each token; empty before :meth:`build_vocab`.
        inverse_vocab: The token of each id.
        pad_token, unk_token, cls_token: The special tokens.

    Raises:
        InputError: Room for no word.
    """

    pad_token, unk_token, cls_token = PAD, UNK, CLS

    def __init__(self, vocab_size: int = 5000) -> None:
        require_positive(vocab_size=vocab_size)
        require(vocab_size > 3, f"vocab_size = {vocab_size}", "at least 4", "Three ids are special; leave some room.")
        self.vocab_size = vocab_size
        self.vocab: dict[str, int] = {}
        self.inverse_vocab: dict[int, str] = {}
        self._words: WordTokenizer | None = None

    @property
    def words(self) -> WordTokenizer:
        """The tokenizer that the rest of the project works with.

        Raises:
            InputError: Before :meth:`build_vocab`.
        """
        if self._words is None:
            raise InputError("a tokenizer without vocabulary", "one that has seen texts", "Call build_vocab(texts).")
        return self._words

    def build_vocab(self, texts: Iterable[str]) -> None:
        """Take the most frequent words of ``texts`` as the vocabulary, in place of an earlier one.

        Pass training texts only: a vocabulary made of held-out texts has seen them.

        Raises:
            InputError: Texts without any word, or one text instead of several.
        """
        self._words = WordTokenizer.from_texts(texts, self.vocab_size)
        self.vocab = dict(self._words.ids)
        self.inverse_vocab = {index: token for token, index in self.vocab.items()}

    def clean_text(self, text: str) -> str:
        """``text`` in lower case, with single spaces, and none at its ends.

        Raises:
            InputError: A ``text`` that is no string.
        """
        require_text(text)
        return " ".join(text.lower().split())

    def tokenize(self, text: str, max_length: int = 128) -> list[int]:
        """``max_length`` ids: 2, the words of ``text`` as far as there is room, then padding.

        Raises:
            InputError: No vocabulary, a ``text`` that is no string, or ``max_length`` below 1.
        """
        ids = self.words.encode(text, max_length)
        return ids + [PAD_ID] * (max_length - len(ids))

    def decode(self, indices: Sequence[int]) -> str:
        """The words of ``indices``, without padding and ``<CLS>``; ids that stand for nothing are passed over.

        Raises:
            InputError: No vocabulary.
        """
        return self.words.decode([index for index in indices if index in self.inverse_vocab])


class SentimentDataset:
    """The course's data set: labelled texts, each a row of ``max_length`` ids, for a torch ``DataLoader``.

    Args:
        texts: What to classify.
        labels: The class of each, from 0.
        tokenizer: Its vocabulary is built.
        max_length: Ids in a row.

    Raises:
        InputError: One text instead of several, or something else than texts; texts and labels that are not equally
            many; a label that is no whole number from 0; ``max_length`` below 1, or a tokenizer without vocabulary.
    """

    def __init__(
        self, texts: Sequence[str], labels: Sequence[int], tokenizer: SimpleTokenizer, max_length: int = 32
    ) -> None:
        require_texts(texts)
        require(
            len(texts) == len(labels),
            f"{len(texts)} texts with {len(labels)} labels",
            "one label per text",
            "Pass the labels of the same texts.",
        )
        tokenizer.tokenize("", max_length)  # says at once if there is no vocabulary or no room
        self.texts, self.tokenizer, self.max_length = texts, tokenizer, max_length
        self.labels = [require_class(label) for label in labels]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, idx: int) -> dict[str, Tensor]:
        """``{"input_ids": int64 [max_length], "labels": int64 []}`` of text ``idx``."""
        ids = self.tokenizer.tokenize(self.texts[idx], max_length=self.max_length)
        return {"input_ids": torch.tensor(ids), "labels": torch.tensor(self.labels[idx])}


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
