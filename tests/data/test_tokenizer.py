import json
import unicodedata
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.data.subword import Tokenizer
from glassformer.data.tokenizer import (
    CLS_ID,
    PAD_ID,
    UNK_ID,
    WordTokenizer,
    split_words,
    whole_text,
)
from refusals import refused

SENTENCES = [
    "I loved this movie! It's a movie for my mother.",
    "I didn't love it: the plot was thin, and the plot was slow.",
    "A thin plot.",
]
# Texts as people write them, and worse: every sign of Unicode, lone surrogates too.
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=60) | st.text(
    st.sampled_from("anst' \t.!,n't’İß́ﬁ１\x00\u200b😀"), max_size=40
)


@pytest.fixture
def tokenizer() -> WordTokenizer:
    return WordTokenizer.from_texts(SENTENCES)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("movie!", "movie !"),
        ("Great, GREAT... (almost)", "great , great . . . ( almost )"),
        ("didn't can't won't n't", "did n't ca n't wo n't n't"),
        ("it's the movie's, I'm sure they'd've", "it 's the movie 's , i 'm sure they 'd 've"),
        ("it 's SST-2 's", "it 's sst - 2 's"),
        ("didn’t I’ll", "did n't i 'll"),
        ("rock'n'roll 'so' dogs'", "rock ' n ' roll ' so ' dogs '"),
        ("n'the sn't", "n ' the s n't"),
        ("good😀👍bad", "good 😀 👍 bad"),
        ("fa\u200bmi\u00adly\x00!\x07", "family !"),
        ("one\ttwo\r\nthree\u2028four\u3000five", "one two three four five"),
        ("Cafe\u0301 café ﬁne ＦＵＬＬ", "café café fine full"),
        (
            "\u0928\u092e\u0938\u094d\u0924\u0947 \u05e9\u05b8\u05dc",
            "\u0928\u092e\u0938\u094d\u0924\u0947 \u05e9\u05b8\u05dc",
        ),
        ("电影 好", "电影 好"),
        ("half \ud800 pair", "half pair"),
        ("", ""),
        (" \n\x00 ", ""),
    ],
)
def test_words_and_punctuation_part(text: str, words: str) -> None:
    assert list(split_words(text)) == words.split()


@given(text=st.text(st.sampled_from('abzA09_ \t\n.,!?-"#'), max_size=60))
def test_without_apostrophes_a_loop_over_the_signs_gives_the_same(text: str) -> None:
    words = []
    current = ""
    for sign in text.lower() + " ":
        if sign.isalnum() or sign == "_":
            current += sign
            continue
        words += [part for part in (current, sign) if part.strip()]
        current = ""
    assert list(split_words(text)) == words


@given(text=ANY_TEXT)
@settings(max_examples=300, deadline=None)
def test_any_text_survives(text: str) -> None:
    words = list(split_words(text))
    for word in words:
        assert word
        assert not any(
            sign.isspace() or unicodedata.category(sign) in ("Cc", "Cs") for sign in word
        )
        word.encode()
    if not words:
        return
    known = WordTokenizer.from_texts([text])
    ids = known.encode(text, max_len=100)
    assert ids == [CLS_ID, *(known.ids[word] for word in words[:99])]
    assert known.encode(known.decode(ids), max_len=100) == ids
    assert WordTokenizer.from_json(known.to_json()) == known


@given(
    texts=st.lists(st.text(st.sampled_from("abc !"), max_size=12), min_size=1),
    room=st.integers(1, 6),
)
def test_the_vocabulary_is_the_most_frequent_words_with_ties_in_order(
    texts: list[str], room: int
) -> None:
    counts = Counter(word for text in texts for word in split_words(text))
    if not counts:
        return
    tokenizer = WordTokenizer.from_texts(texts, vocab_size=3 + room)
    words = list(tokenizer.words)
    left = set(counts)
    for word in words:
        most = max(counts[other] for other in left)
        assert word == min(other for other in left if counts[other] == most)
        left.remove(word)
    assert len(words) == min(room, len(counts))
    assert tokenizer.vocab_size == 3 + len(words)


def test_what_was_not_in_the_training_texts_is_unknown(tokenizer: WordTokenizer) -> None:
    assert tokenizer.encode("zebra xylophone") == [CLS_ID, UNK_ID, UNK_ID]
    encoded = tokenizer.encode("The zebra movie!")
    assert [token == UNK_ID for token in encoded] == [False, False, True, False, False]
    assert tokenizer.pieces(encoded) == ["<CLS>", "the", "<UNK>", "movie", "!"]


def test_a_long_text_is_cut(tokenizer: WordTokenizer) -> None:
    text = "the plot was slow, " * 20_000
    assert tokenizer.encode(text, max_len=32) == tokenizer.encode(text[:400], max_len=32)
    assert len(tokenizer.encode(text, max_len=32)) == 32
    assert len(tokenizer.encode(text, max_len=200_000)) == 100_001
    assert tokenizer.encode(text, max_len=1) == [CLS_ID]
    assert tokenizer.encode("a" * 1_000_000) == [CLS_ID, UNK_ID]


def test_decoding_leaves_out_padding_and_sets_punctuation_close(tokenizer: WordTokenizer) -> None:
    tokens = [*tokenizer.encode("It's thin; I didn't love IT !"), PAD_ID, PAD_ID]
    assert tokenizer.decode(tokens) == "it's thin <UNK> i didn't love it!"
    assert tokenizer.pieces([PAD_ID]) == ["<PAD>"]


def test_it_is_a_tokenizer(tokenizer: WordTokenizer) -> None:
    assert isinstance(tokenizer, Tokenizer)
    assert (tokenizer.pad_id, tokenizer.cls_id) == (0, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ('{"format": "glassformer words", "words": ["a"', "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "a list"),
        ("{}", "keys"),
        ('{"format": "other", "words": ["a"]}', "keys"),
        ('{"format": "glassformer words", "words": "abc"}', "keys"),
        ('{"format": "glassformer words", "words": ["a", "a"]}', "twice"),
        ('{"format": "glassformer words", "words": ["a", 3]}', "3 in a vocabulary"),
        ('{"format": "glassformer words", "words": ["<PAD>"]}', "<PAD>"),
        ('{"format": "glassformer words", "words": [""]}', "not empty"),
    ],
)
def test_damaged_json_is_refused(text: str, message: str) -> None:
    with refused(anywhere=message):
        WordTokenizer.from_json(text)


def test_wrong_arguments_are_refused(tokenizer: WordTokenizer) -> None:
    for call, message in [
        (lambda: tokenizer.encode(float("nan")), "type float"),  # type: ignore[arg-type]
        (lambda: tokenizer.encode(b"good"), "type bytes"),  # type: ignore[arg-type]
        (lambda: tokenizer.encode("good", max_len=0), "max_len"),
        (lambda: WordTokenizer.from_texts(SENTENCES, vocab_size=3), "at least 4"),
        (lambda: WordTokenizer.from_texts(["", " "]), "without a word"),
        (lambda: WordTokenizer.from_texts("one text"), "one text"),
        (lambda: tokenizer.decode([-1]), "the token -1"),
        (lambda: tokenizer.decode([tokenizer.vocab_size]), f"the token {tokenizer.vocab_size}"),
    ]:
        with refused(anywhere=message):
            call()


def test_json_is_plain_and_the_same_on_every_machine(tokenizer: WordTokenizer) -> None:
    assert json.loads(tokenizer.to_json()) == {
        "format": "glassformer words",
        "words": list(tokenizer.words),
    }
    assert tokenizer.to_json().isascii()


def test_half_a_surrogate_pair_is_no_text() -> None:
    assert whole_text("a\ud83db\udc00") == "a\ufffdb\ufffd"
    assert whole_text("a\ud83d\ude00\U0001f600") == "a\U0001f600\U0001f600"
