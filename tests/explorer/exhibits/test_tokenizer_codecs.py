"""Texts become the tokens that a tokenizer makes of them, and come back."""

from __future__ import annotations

from dataclasses import replace

from tokenizers import Tokenizer

from glassformer.data.released_tokenizer import from_json
from glassformer.data.tokenizer import WordTokenizer
from glassformer.explorer.exhibits.given import given
from glassformer.explorer.exhibits.tokenizer_codecs import codec_of
from glassformer.models.decoder import Decoder
from glassformer.models.decoder_config import DecoderConfig
from refusals import refused


def test_without_a_tokenizer_a_text_is_numbers_or_bytes() -> None:
    assert codec_of(None, 11, 8).encode("3 1 4") == [3, 1, 4]
    assert codec_of(None, 256, 8).encode("3 1") == list(b"3 1")
    assert codec_of(None, 256, 8, "3 1").encode("3 1") == [3, 1]
    assert codec_of(None, 256, 8, [3, 1]).join([3, 1]) == "3 1"
    for vocab_size in (11, 256):
        codec = codec_of(None, vocab_size, 8)
        assert codec.join(codec.encode(codec.sample)) == codec.sample


def test_words_of_our_own_tokenizer() -> None:
    tokenizer = WordTokenizer(("a", "good", "film"))
    codec = codec_of(tokenizer, tokenizer.vocab_size, 6)
    assert codec.encode("a good film") == tokenizer.encode("a good film", 6)
    assert [codec.word(token) for token in codec.encode("a film")] == ["<CLS>", "a", "film"]
    assert codec.sample == "a good film"


def test_what_a_released_tokenizer_puts_before_a_text_is_no_part_of_it(byte_engine: Tokenizer) -> None:
    tokenizer = replace(from_json(byte_engine.to_str()), begin=(256,))
    codec = codec_of(tokenizer, 280, 4)
    tokens = codec.encode("aé")
    assert tokens == [256, *byte_engine.encode("aé").ids]
    assert [codec.word(token) for token in tokens] == ["<|startoftext|>", "a", "\\xc3", "\\xa9"]
    assert codec.join(tokens) == "aé"
    assert codec.join(tokens[1:2]) == "a"
    # Neither is what no text encodes to: a name, or an id that is not in use.
    assert codec.join([*tokens, 257, 279]) == "aé"
    assert codec.word(257).startswith("<|")
    with refused("5 tokens"):
        codec.encode("aéa")
    config = DecoderConfig(280, num_layers=1, hidden_dim=8, ff_dim=8, num_heads=2, head_dim=4)
    assert given(Decoder(config), tokens, tokenizer).card.text == "aé"


def test_a_tokenizer_that_is_none_or_too_large_is_refused(byte_engine: Tokenizer) -> None:
    with refused("a tokenizer of type int"):
        codec_of(3, 11, 8)
    with refused("vocab_size = 11"):
        codec_of(from_json(byte_engine.to_str()), 11, 8)
