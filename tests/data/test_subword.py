import json
import shutil
from functools import cache
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.data.sentiment import reviews
from glassformer.data.subword import SubwordTokenizer, Tokenizer, load_subwords, tokenizer_from_json
from glassformer.data.tokenizer import WordTokenizer
from refusals import refused
from trained_subwords import train_subwords

TEXTS = [example.text for example in reviews()]
ODD = [
    "",
    " \t\n",
    "good😀👍🏽 film 👨‍👩‍👧",
    "nul\x00 bell\x07 soft\u00adhyphen zero\u200bwidth \ufeff",
    "Crème BRÛLÉE naïve Straße İstanbul",
    "电影很好看 映画",
    "[CLS] inside [SEP] and [PAD] and [MASK]",
    "a" * 300,
    "didn't -- won't ... well-made",
    "\ufffd \x85 \u2028 x",
]
KINDS = ["wordpiece", "bpe"]


@pytest.fixture(scope="module", params=KINDS)
def trained(request: pytest.FixtureRequest) -> SubwordTokenizer:
    return train_subwords(TEXTS, request.param, vocab_size=900)


def bert_directory(path: Path, lines: str, **config: object) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "vocab.txt").write_text(lines, encoding="utf-8")
    if config:
        (path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return path


def test_a_text_is_parts_of_words_after_cls(trained: SubwordTokenizer) -> None:
    assert isinstance(trained, Tokenizer)
    assert (trained.pad_id, trained.cls_id) == (0, 2)
    ids = trained.encode("the unwatchable film")
    pieces = trained.pieces(ids)
    assert (ids[0], pieces[0]) == (2, "[CLS]")
    assert len(pieces) > 4
    assert "".join(piece.removeprefix("##").strip() for piece in pieces[1:]) == "theunwatchablefilm"
    assert trained.decode(ids) == "the unwatchable film"


def test_the_empty_text_is_cls_alone(trained: SubwordTokenizer) -> None:
    assert trained.encode("") == [2]
    assert trained.decode([2]) == ""


def test_a_cut_text_is_the_beginning_of_the_whole(trained: SubwordTokenizer) -> None:
    text = " ".join(TEXTS)
    whole = trained.encode(text, max_len=100_000)
    assert all(trained.encode(text, max_len=length) == whole[:length] for length in (1, 2, 33))
    assert len(trained.encode("word " * 100_000, max_len=64)) == 64


def test_json_both_ways(trained: SubwordTokenizer) -> None:
    again = tokenizer_from_json(trained.to_json())
    assert isinstance(again, SubwordTokenizer)
    assert again.to_json() == trained.to_json()
    assert [again.encode(text) for text in ODD] == [trained.encode(text) for text in ODD]
    words = WordTokenizer.from_texts(TEXTS)
    assert tokenizer_from_json(words.to_json()) == words


@given(text=st.text(st.characters(exclude_categories=()), max_size=40))
@settings(max_examples=100, deadline=None)
def test_no_text_breaks_them(text: str) -> None:
    for kind in KINDS:
        tokenizer = _cached(kind)
        ids = tokenizer.encode(text, max_len=16)
        assert 1 <= len(ids) <= 16
        assert set(ids) <= set(range(tokenizer.vocab_size))
        tokenizer.decode(ids)
        assert len(tokenizer.pieces(ids)) == len(ids)


def test_bytes_know_every_text() -> None:
    text = "电影 😀 ÿ zażółć"
    assert _cached("bpe").decode(_cached("bpe").encode(text)) == text


def test_half_a_surrogate_pair_counts_as_unreadable() -> None:
    for kind in KINDS:
        assert _cached(kind).encode("a\ud800b") == _cached(kind).encode("a\ufffdb")
        assert _cached(kind).encode("\ud83d\ude00") == _cached(kind).encode("😀")


@cache
def _cached(kind: str) -> SubwordTokenizer:
    return train_subwords(TEXTS, kind)


@pytest.mark.slow
def test_released_tokenizers_give_hugging_faces_ids(
    minilm: Path, shared_data: Path, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(minilm)
    for name in ("vocab.txt", "tokenizer_config.json"):
        shutil.copy(minilm / name, tmp_path)
    lines = (shared_data / "sst2_test.tsv").read_text(encoding="utf-8").splitlines()
    texts = [line.split("\t")[0] for line in lines[::8]] + ODD + TEXTS[::4]
    for path in (minilm, minilm / "tokenizer.json", minilm / "vocab.txt", tmp_path):
        ours = load_subwords(path)
        assert (ours.vocab_size, ours.pad_id, ours.cls_id) == (30522, 0, 101)
        for text in texts:
            assert (
                ours.encode(text, max_len=512)
                == theirs(text, truncation=True, max_length=512).input_ids
            )
        assert (
            ours.encode(texts[0], max_len=8)
            == theirs(texts[0], truncation=True, max_length=8).input_ids
        )
        assert ours.pieces([101, 8348, 15534]) == ["[CLS]", "marvel", "##lous"]
        assert ours.decode(ours.encode("A marvellous film.")) == "a marvellous film."


def test_special_pieces_of_a_vocabulary_stay_whole(tmp_path: Path) -> None:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "mask"]
    engine = load_subwords(bert_directory(tmp_path, "\n".join(pieces) + "\n"))
    assert engine.encode("a [MASK] a") == [2, 5, 4, 5, 3]


def test_a_vocabulary_with_case_keeps_it(tmp_path: Path) -> None:
    lines = "[PAD]\n[UNK]\n[CLS]\n[SEP]\nGood\ngood\n##ly\n"
    cased = load_subwords(bert_directory(tmp_path / "cased", lines, do_lower_case=False))
    uncased = load_subwords(bert_directory(tmp_path / "uncased", lines))
    assert cased.encode("Good goodly Bad") == [2, 4, 5, 6, 1, 3]
    assert uncased.encode("Good goodly Bad") == [2, 5, 5, 6, 1, 3]


@pytest.mark.parametrize("kind", ["BertTokenizer", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize("config", [{}, {"do_lower_case": False}, {"strip_accents": False}])
def test_settings_beside_json_count_as_in_transformers(
    kind: str, config: dict[str, bool], tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "A", "é", "É", "e", "E"]
    numbered = {piece: index for index, piece in enumerate(pieces)}
    tokenizers.BertWordPieceTokenizer(numbered, lowercase=False).save(
        str(tmp_path / "tokenizer.json")
    )
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "tokenizer_class": kind}))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert load_subwords(tmp_path).encode("a A é É") == theirs("a A é É").input_ids
    assert load_subwords(tmp_path / "tokenizer.json").encode("A É") == [2, 6, 8, 3]


def test_stored_padding_and_truncation_are_switched_off() -> None:
    engine = tokenizers.Tokenizer.from_str(_cached("wordpiece").to_json())
    engine.enable_padding(length=50)
    engine.enable_truncation(3)
    assert SubwordTokenizer(engine).encode(TEXTS[0]) == _cached("wordpiece").encode(TEXTS[0])
    assert len(engine.encode("x").ids) == 50


def test_damaged_files_are_refused(tmp_path: Path, without_type_checks: None) -> None:
    with refused("without a tokenizer"):
        load_subwords(tmp_path)
    with refused(r"nowhere.*No such file"):
        load_subwords(tmp_path / "nowhere" / "vocab.txt")
    broken = tmp_path / "tokenizer.json"
    for content, message in (
        (_cached("bpe").to_json()[:-400], "not JSON"),
        ('{"version": "1.0", "model": {"type": "Oracle"}}', "with a fault"),
        ("{}", "without a model"),
        ("[]", "a list"),
    ):
        broken.write_text(content, encoding="utf-8")
        with refused(message):
            load_subwords(tmp_path)
    broken.write_bytes(b"\xff\xfe{}")
    with refused("with the byte 0xff"):
        load_subwords(broken)
    with refused(r"without \['\[SEP\]'\]"):
        load_subwords(bert_directory(tmp_path / "short", "[PAD]\n[UNK]\n[CLS]\ngood\n"))
    with refused("BertJapaneseTokenizer", fix="with transformers"):
        load_subwords(
            bert_directory(tmp_path / "words", "good\n", tokenizer_class="BertJapaneseTokenizer")
        )


def test_wrong_arguments_are_refused(without_type_checks: None) -> None:
    tokenizer = _cached("wordpiece")
    for call, got in [
        (lambda: tokenizer.encode(3), "type int"),  # type: ignore[arg-type]
        (lambda: tokenizer.encode("good", max_len=0), "max_len"),
        (lambda: tokenizer.decode([500]), "the token 500"),
        (lambda: tokenizer.pieces([-1]), "the token -1"),
    ]:
        with refused(got):
            call()


def test_a_tokenizer_without_padding_or_cls_says_so(tmp_path: Path) -> None:
    engine = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"<|end|>": 0, "good": 1}, unk_token="<|end|>")
    )
    with refused(r"without \[PAD\]", expected="a padding token"):
        SubwordTokenizer(engine)
    engine.add_special_tokens(["[PAD]"])
    with refused(r"without \[CLS\]", expected="a CLS token"):
        SubwordTokenizer(engine)
    engine.add_special_tokens(["<s>"])
    assert (SubwordTokenizer(engine).pad_id, SubwordTokenizer(engine).cls_id) == (2, 3)


def test_a_length_without_room_for_the_special_tokens_is_refused(tmp_path: Path) -> None:
    tokenizer = load_subwords(bert_directory(tmp_path, "[PAD]\n[UNK]\n[CLS]\n[SEP]\ngood\n"))
    assert tokenizer.encode("good good", max_len=2) == [2, 3]
    with refused(expected="at least 2"):
        tokenizer.encode("good", max_len=1)
