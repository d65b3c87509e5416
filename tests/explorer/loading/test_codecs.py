"""Texts become the tokens that a tokenizer makes of them, and come back."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from glassformer.checkpoints.store import named_tokenizer
from glassformer.data.released_tokenizer import from_json
from glassformer.explorer.loading.codecs import (
    byte_word,
    codec_of,
    halves,
    numbers,
    text_bytes,
    text_of,
    text_of_bytes,
    text_of_numbers,
    tokens_in,
    units_of,
)
from glassformer.explorer.loading.wrapping import wrap_model
from glassformer.models import Decoder, DecoderConfig
from refusals import refused
from transformers_models import transformers


@given(st.lists(st.integers(0, 99), min_size=1, max_size=50))
def test_numbers_go_there_and_back(tokens: list[int]) -> None:
    assert numbers(text_of_numbers(tokens), 100, 50) == tokens


@given(st.text(min_size=1, max_size=40))
def test_bytes_go_there_and_back(text: str) -> None:
    tokens = text_bytes(text, 200)
    assert tokens == list(text.encode())
    assert text_of_bytes(tokens) == text


NO_NUMBERS = {
    "": "0 numbers",
    "1 2 3 4": "4 numbers",
    "1 x": "'x' at place 2",
    "7": "'7' at place 1",
    "-1": "'-1'",
}


@pytest.mark.parametrize(
    ("text", "message"), [*NO_NUMBERS.items(), ("٣", "place 1"), ("1" * 5000, "place 1")]
)
def test_other_text_than_numbers_is_refused(text: str, message: str) -> None:
    with refused(message):
        numbers(text, 7, 3)


@pytest.mark.parametrize(
    ("text", "message"), [("", "bytes"), ("abcd", "bytes"), ("a\ud800", "at place 2")]
)
def test_a_text_of_too_few_or_many_bytes_or_of_half_a_pair_is_refused(
    text: str, message: str
) -> None:
    with refused(message):
        text_bytes(text, 3)


def test_every_byte_has_a_name_of_its_own_that_can_be_seen() -> None:
    words = [byte_word(byte) for byte in range(256)]
    assert len(set(words)) == 256
    assert all(word.isprintable() and word.strip() for word in words)
    assert [words[byte] for byte in b"a \n"] == ["a", "␣", "⏎"]
    assert words[0xC3] == "\\xc3"


def test_of_a_run_on_bytes_or_numbers_a_text_is_what_it_was_trained_on() -> None:
    for name, text, tokens in (("bytes", "12", [49, 50]), ("numbers", "12 3", [12, 3])):
        codec = codec_of(named_tokenizer(name, 256), 256, 9, text)
        assert (codec.encode(text), codec.joins[0](tokens)) == (tokens, text)
        assert (codec.data or {})["kind"] == name, "a saved page computes other texts"


def test_without_a_tokenizer_a_text_is_numbers_or_bytes() -> None:
    assert codec_of(None, 11, 8).encode("3 1 4") == [3, 1, 4]
    assert codec_of(None, 256, 8).encode("3 1") == list(b"3 1")
    assert codec_of(None, 256, 8, "3 1").encode("3 1") == [3, 1]
    assert codec_of(None, 256, 8, [3, 1]).joins[-1]([3, 1]) == "3 1"
    for vocab_size in (11, 256):
        codec = codec_of(None, vocab_size, 8)
        assert codec.joins[-1](codec.encode(codec.sample)) == codec.sample


def test_what_a_tokenizer_puts_before_a_text_is_no_part_of_it(
    byte_engine: Tokenizer, spaced_engine: Tokenizer
) -> None:
    tokenizer = replace(from_json(byte_engine.to_str()), begin=(256,))
    codec = codec_of(tokenizer, 280, 4)
    tokens = codec.encode("aé")
    assert tokens == [256, *byte_engine.encode("aé").ids]
    assert [codec.word(token) for token in tokens] == ["<|startoftext|>", "a", "\\xc3", "\\xa9"]
    assert codec.labels(tokens) == ["<|startoftext|>", "a", "é 1/2", "é 2/2"]
    assert codec.joins[-1](tokens) == "aé"
    assert codec.joins[-1](tokens[1:2]) == "a"
    # Neither is what no text encodes to: a name, or an id that is not in use.
    assert codec.joins[-1]([*tokens, 257, 279]) == "aé"
    assert codec.word(257).startswith("<|")
    with refused("5 tokens"):
        codec.encode("aéa")
    config = DecoderConfig(280, num_layers=1, hidden_dim=8, ff_dim=8, num_heads=2, head_dim=4)
    assert wrap_model(Decoder(config), tokens, tokenizer).card.text == "aé"
    spaced = codec_of(from_json(spaced_engine.to_str()), 280, 4)
    assert text_of(spaced.encode(" a"), spaced.encode, spaced.joins) == " a"


def test_bytes_of_a_vocabulary_are_shown_as_text() -> None:
    text = "B\u00e4ren \u201ca\u201d\n\u4e2d"
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    engine = Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    engine.train_from_iterator(["B\u00e4ren \u201ca\u201d"] * 9, trainer)
    codec = codec_of(transformers.PreTrainedTokenizerFast(tokenizer_object=engine), 400, 64, text)
    words = [codec.word(token) for token in codec.encode(text)]
    assert "".join(words) == "B\u00e4ren\u2423\u201ca\u201d\u23ce\\xe4\\xb8\\xad"
    with refused("0 tokens", fix="Type something."):
        codec.encode("")


LISTS = ([3, 1], [np.int64(3), np.uint8(1)], np.array([3, 1]), np.array([[3, 1]], dtype=np.int32))


@pytest.mark.parametrize("text", [*LISTS, torch.tensor([3, 1]), torch.tensor([[3, 1]])])
def test_tokens_come_in_many_shapes(text: Any) -> None:
    assert tokens_in(text) == [3, 1]


def test_a_string_is_no_tokens() -> None:
    assert tokens_in("3 1") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "text of type NoneType"),
        ({3: 1}, "text of type dict"),
        (3.5, "text of type float"),
        ([3, 1.5], "1.5.* among tokens"),
        ([3, True], "True.* among tokens"),
        (["3"], "'3'.* among tokens"),
        (np.array([3.0]), "3.0.* among tokens"),
        (torch.zeros(1, 2, 2, dtype=torch.int64), r"shape \[1, 2, 2\]"),
        (torch.zeros(2, 2, dtype=torch.int64), r"shape \[2, 2\]"),
        (np.array(3), r"shape \[\]"),
    ],
)
def test_what_is_neither_text_nor_tokens_is_refused(text: Any, message: str) -> None:
    with refused(message):
        tokens_in(text)


def test_a_text_is_read_as_the_tokens_or_refused() -> None:
    def encode(text: str) -> list[int]:
        # as a tokenizer that begins each text with a token of its own
        return [
            0,
            *numbers(text, 10, 9),
        ]

    def bare(tokens: Any) -> str:
        return text_of_numbers(tokens[1:])

    assert text_of([0, 3], encode, [text_of_numbers, bare]) == "3"
    with refused(r"the tokens \[3, 4\], whose text '4' is read as \[0, 4\]"):
        text_of([3, 4], encode, [text_of_numbers, bare])
    with refused("no text"):
        text_of([0], encode, [bare])
    with refused("no tokens"):
        text_of([], encode, [bare])


def test_halves_of_surrogate_pairs_are_found() -> None:
    assert halves("a\ud800b\udfff\U0001f600") == ["\ud800", "\udfff"]


def test_units_of_a_source() -> None:
    assert units_of(["emma=4", 5, (1, 2)]) == ["emma=4", "5", "1=2"]
    assert units_of(torch.tensor([1, 2])) == units_of(np.array([1, 2])) == ["1", "2"]
    assert units_of(torch.tensor([[1, 2], [3, 4]])) == ["1=2", "3=4"]
    for wrong in ({"emma": 4}, "emma=4", 3, None):
        with refused("source of type"):
            units_of(wrong)
