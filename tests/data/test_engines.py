"""Engines of the library tokenizers that fail or take very long: refused, whatever calls them."""

import pickle
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from glassformer.data import engines, gguf_tokenizer
from glassformer.data.engines import may_backtrack
from glassformer.data.released_tokenizer import ReleasedTokenizer, from_json, read_tokenizer
from glassformer.data.subword import SubwordTokenizer
from refusals import refused

FOR_EVER = "(a+)+$"
LETTERS = "a" * 60 + "!"


def engine_with(expression: str, kind: str = "split") -> Tokenizer:
    """One token for each byte; the regular expression splits texts, or stands in the normalizer or
    the decoder.
    """
    alphabet = ["[PAD]", "[CLS]", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    engine = Tokenizer(models.BPE({sign: index for index, sign in enumerate(alphabet)}, []))
    bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    engine.pre_tokenizer = bytewise
    engine.decoder = decoders.ByteLevel()
    pattern = Regex(expression)
    if kind == "split":
        engine.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(pattern, "isolated"), bytewise]
        )
    elif kind == "normalizer":
        engine.normalizer = normalizers.Replace(pattern, "b")
    else:
        engine.decoder = decoders.Sequence(
            [decoders.ByteLevel(), decoders.Fuse(), decoders.Replace(pattern, "b")]
        )
    return engine


def tokenizer_with(expression: str, kind: str = "split") -> ReleasedTokenizer:
    return from_json(engine_with(expression, kind).to_str())


@pytest.mark.parametrize("kind", ["split", "normalizer"])
@pytest.mark.parametrize("expression", [FOR_EVER, "(a|a)*$", r"(?:\w+\s?)*$", "(a|aa)+$"])
def test_an_expression_that_backtracks_for_ever_is_refused(expression: str, kind: str) -> None:
    tokenizer = tokenizer_with(expression, kind)
    for encode in (
        tokenizer.encode,
        tokenizer.encode_prompt,
        pickle.loads(pickle.dumps(tokenizer)).encode,
    ):
        with refused("fails when it splits"):
            encode(LETTERS)
    if kind == "split":
        assert tokenizer.decode(tokenizer.encode("ab c!")) == "ab c!"


def test_the_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(engine_with(FOR_EVER).to_str())
    with refused(str(path)):
        read_tokenizer(path).encode(LETTERS)


def test_a_classifier_s_tokenizer_refuses_too() -> None:
    with refused("fails when it splits"):
        SubwordTokenizer(engine_with(FOR_EVER)).encode(LETTERS)
    tokenizer = SubwordTokenizer(engine_with(FOR_EVER, "decoder"))
    with refused("fails when it decodes"):
        tokenizer.decode(tokenizer.encode(LETTERS))


def test_many_matches_that_each_end_take_no_endless_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A match of 20 letters takes a million steps: below the library's limit, which is for a single
    match.
    """
    monkeypatch.setattr(engines, "SECONDS", 0.1)
    with refused("for the first"):
        tokenizer_with(FOR_EVER).encode(("a" * 20 + "!") * 10_000)
    assert len(tokenizer_with(FOR_EVER).encode("ab! " * 1000)) == 4000


def test_expressions_of_published_models_are_not_watched() -> None:
    for patterns in gguf_tokenizer._SPLITS.values():
        for pattern in patterns:
            assert not may_backtrack(
                {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": pattern}}}
            ), pattern
    for pattern in (r"a*a*a*b", r"(?:a|b){2,}", r"\w+(?=(\d{3})+)"):
        assert may_backtrack({"normalizer": {"type": "Replace", "pattern": {"Regex": pattern}}}), (
            pattern
        )
    assert not may_backtrack({"pre_tokenizer": None})


def test_interrupts_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = tokenizer_with(FOR_EVER)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engines, "_require_fast", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tokenizer.encode("a")
