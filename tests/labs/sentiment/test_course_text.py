"""The course's tokenizer and data set, compared with counts by hand and with the library's tokenizer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from glassformer.data.tokenizer import WordTokenizer
from glassformer.labs.sentiment.course_training import SentimentDataset, SimpleTokenizer
from refusals import refused

TEXTS = ["A good movie!  A good plot.", "Good acting", "a movie"]


def tokenizer(vocab_size: int = 100) -> SimpleTokenizer:
    made = SimpleTokenizer(vocab_size)
    made.build_vocab(TEXTS)
    return made


def test_the_vocabulary_has_the_most_frequent_words_after_the_special_ones() -> None:
    words = tokenizer(6)
    assert words.vocab == {"<PAD>": 0, "<UNK>": 1, "<CLS>": 2, "a": 3, "good": 4, "movie": 5}
    assert words.inverse_vocab[4] == "good"
    assert (words.pad_token, words.unk_token, words.cls_token) == ("<PAD>", "<UNK>", "<CLS>")
    assert set(tokenizer().vocab) - set(words.vocab) == {"!", ".", "plot", "acting"}


def test_text_becomes_cls_words_and_padding() -> None:
    assert tokenizer(6).tokenize("GOOD movie! ", max_length=6) == [2, 4, 5, 1, 0, 0]
    assert tokenizer(6).tokenize("a a a a a", max_length=3) == [2, 3, 3]
    assert tokenizer().tokenize("", max_length=3) == [2, 0, 0]
    assert len(tokenizer().tokenize("good")) == 128


def test_decoding_gives_the_words_back() -> None:
    words = tokenizer()
    assert words.decode(words.tokenize("A good movie, a GOOD plot.")) == "a good movie <UNK> a good plot."
    assert words.decode([4, 999]) == "good"


COURSE, LIBRARY = tokenizer(), WordTokenizer.from_texts(TEXTS, 100)


@given(st.text(max_size=60))
def test_any_text_has_a_row_of_the_same_length_and_the_librarys_tokens(text: str) -> None:
    row = COURSE.tokenize(text, max_length=16)
    assert len(row) == 16
    expected = LIBRARY.encode(text, 16)
    assert row == expected + [0] * (16 - len(expected))


def test_cleaning_lowers_and_joins_by_single_spaces() -> None:
    assert SimpleTokenizer().clean_text("  A\tGood \n Movie! ") == "a good movie!"


def test_a_second_vocabulary_replaces_the_first() -> None:
    words = tokenizer()
    words.build_vocab(["other"])
    assert set(words.vocab) == {"<PAD>", "<UNK>", "<CLS>", "other"}
    assert len(words.inverse_vocab) == 4


def test_the_data_set_feeds_a_data_loader() -> None:
    data = SentimentDataset(TEXTS, [1, 0, 1], tokenizer(), max_length=5)
    assert len(data) == 3
    batch = next(iter(DataLoader(data, batch_size=3)))
    assert batch["labels"].tolist() == [1, 0, 1]
    assert batch["input_ids"].dtype == batch["labels"].dtype == torch.int64
    assert batch["input_ids"].tolist() == [tokenizer().tokenize(text, 5) for text in TEXTS]
    assert SentimentDataset(TEXTS, [1, 0, 1], tokenizer())[0]["input_ids"].shape == (32,)


@pytest.mark.usefixtures("without_type_checks")
def test_bad_arguments_are_refused() -> None:
    with refused("vocab_size = 3"):
        SimpleTokenizer(3).build_vocab(TEXTS)
    new = SimpleTokenizer()
    for use in (lambda: new.tokenize("a"), lambda: new.decode([3])):
        with refused("without vocabulary"):
            use()
    with refused("max_len = 0"):
        tokenizer().tokenize("a", max_length=0)
    with refused("of type NoneType"):
        tokenizer().clean_text(None)  # type: ignore[arg-type]
    with refused("2 texts with 1 labels"):
        SentimentDataset(["a", "b"], [1], tokenizer())
    for label in (0.5, "1", None, torch.tensor(1.0)):
        with pytest.raises(TypeError):
            SentimentDataset(["a"], [label], tokenizer())  # type: ignore[list-item]


@pytest.mark.usefixtures("without_type_checks")
def test_labels_may_come_from_any_library() -> None:
    for labels in ([1, 0, 1], np.array([1, 0, 1]), torch.tensor([1, 0, 1])):
        data = SentimentDataset(TEXTS, labels, tokenizer())  # type: ignore[arg-type]
        assert [data[row]["labels"].tolist() for row in range(3)] == [1, 0, 1]
        assert data[0]["labels"].dtype == torch.int64
