"""Subword tokenizers, trained here or read from a released model, with the library ``tokenizers``.

Word pieces (BERT) mark parts that continue a word: ``marvel ##lous``. Byte pairs (GPT-2) mark those that begin one, and
work on bytes, so that every text can be encoded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from glassformer.data.tokenizer import (
    MAX_LEN,
    WordTokenizer,
    read_json,
    require_text,
    require_token,
    whole_text,
)
from glassformer.errors import InputError, require, require_positive
from glassformer.untrusted import read_text

PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"

_PAD_NAMES = (PAD, "<pad>", "<PAD>")
_CLS_NAMES = (CLS, "<s>", "<CLS>")
_BYTES = 256


class SubwordTokenizer:
    """A tokenizer of the library ``tokenizers``, with the interface of :class:`WordTokenizer`.

    The library's tokenizer is copied. Stored padding and truncation are switched off, as Hugging Face does on loading.
    Padding is the token named ``[PAD]`` or ``<pad>``; ``[CLS]`` or ``<s>`` comes before every text.
    """

    def __init__(self, engine: tokenizers.Tokenizer) -> None:
        self._engine = tokenizers.Tokenizer.from_str(engine.to_str())
        self._engine.no_padding()
        self._engine.no_truncation()
        self.pad_id = _special_id(self._engine, _PAD_NAMES, "padding")
        self.cls_id = _special_id(self._engine, _CLS_NAMES, "CLS")
        self._added = self._engine.num_special_tokens_to_add(False)
        # Special ids included. The library builds the whole table at every call.
        self.vocab_size: int = max(self._engine.get_vocab(with_added_tokens=True).values()) + 1

    def encode(self, text: str, max_len: int = MAX_LEN) -> list[int]:
        """The ids of ``text`` and of the engine's special tokens around it, truncated to ``max_len`` in all.

        An unpaired surrogate is read as U+FFFD, the replacement character.
        """
        require_text(text)
        require_positive(max_len=max_len)
        require(
            max_len >= self._added,
            f"max_len = {max_len}",
            f"at least {self._added}, the special tokens around every text",
            "Pass a longer max_len.",
        )
        encoding = self._engine.encode(whole_text(text), add_special_tokens=False)
        encoding.truncate(max_len - self._added)
        ids: list[int] = self._engine.post_process(encoding).ids
        return ids

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """The text of each id; word pieces keep their ``##``, byte pairs are decoded."""
        added, byte_level = (
            self._engine.get_added_tokens_decoder(),
            isinstance(self._engine.decoder, decoders.ByteLevel),
        )
        found = []
        for token in map(int, tokens):
            require_token(token, self.vocab_size)
            decoded = byte_level and token not in added
            piece = self._engine.decode([token]) if decoded else self._engine.id_to_token(token)
            require(piece is not None, f"the token {token}", "an id in use", "Decode with the tokenizer that encoded.")
            found.append(str(piece))
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        """Readable text, without special tokens."""
        for token in tokens:
            require_token(token, self.vocab_size)
        text: str = self._engine.decode([int(token) for token in tokens], skip_special_tokens=True)
        return text.strip()

    def to_json(self) -> str:
        """The engine's JSON, as in a ``tokenizer.json``."""
        return str(self._engine.to_str())

    @classmethod
    def from_json(cls, text: str) -> SubwordTokenizer:
        """The tokenizer of a ``tokenizer.json``, or of :meth:`to_json`."""
        return cls(_engine_from(text, "a tokenizer"))


Tokenizer = WordTokenizer | SubwordTokenizer
"""A tokenizer of classifiers: ids are 0 ... vocab_size - 1, and ``cls_id`` comes before every text."""


def train_subwords(
    texts: Iterable[str], kind: Literal["wordpiece", "bpe"] = "wordpiece", vocab_size: int = 8000
) -> SubwordTokenizer:
    """Train a tokenizer on lower-cased ``texts``. Ids: 0 ``[PAD]``, 1 ``[UNK]``, 2 ``[CLS]``, which begins every text.

    "wordpiece" merges characters within words and punctuation marks, "bpe" bytes. There are at most ``vocab_size`` ids,
    fewer if the texts have fewer parts. Byte pairs need 256 bytes and 3 special tokens.

    Source: Wu et al. 2016, "Google's Neural Machine Translation System", section 4.1 (word pieces); Sennrich et al.
        2016, "Neural Machine Translation of Rare Words with Subword Units" (byte pairs).
    """
    require_positive(vocab_size=vocab_size)
    require(kind in ("wordpiece", "bpe"), f"kind = {kind!r}", "'wordpiece' or 'bpe'", "Choose one of them.")
    require(not isinstance(texts, str), "one text", "an iterable of texts", "Put it into a list.")
    special = [PAD, UNK, CLS]
    least = len(special) + (_BYTES if kind == "bpe" else 1)
    require(vocab_size >= least, f"vocab_size = {vocab_size}", f"at least {least} for {kind}", "Raise vocab_size.")
    known = list(texts)
    for text in known:
        require_text(text)
    known = [whole_text(text) for text in known]
    require(any(text.strip() for text in known), "texts without a word", "at least one word", "Pass training texts.")

    engine = (
        _word_pieces(known, vocab_size, special) if kind == "wordpiece" else _byte_pairs(known, vocab_size, special)
    )
    engine.post_processor = processors.TemplateProcessing(
        single=f"{CLS} $A", special_tokens=[(CLS, engine.token_to_id(CLS))]
    )
    return SubwordTokenizer(engine)


def load_subwords(path: Path | str) -> SubwordTokenizer:
    """The tokenizer of a released model: a ``tokenizer.json``, a BERT ``vocab.txt``, or a directory with one of them.

    A ``tokenizer_config.json`` next to ``vocab.txt`` decides whether case matters; by default it does not.
    """
    path = Path(path)
    inside = path.is_dir()
    if inside:
        found = [path / name for name in ("tokenizer.json", "vocab.txt") if (path / name).is_file()]
        require(bool(found), f"{path} without a tokenizer", "tokenizer.json or vocab.txt in it", "Download the rest.")
        path = found[0]
    text = read_text(path, inside=inside)
    if path.suffix == ".json":
        return SubwordTokenizer(_engine_from(text, str(path)))
    config = path.with_name("tokenizer_config.json")
    return SubwordTokenizer(
        _bert(path, text, read_json(read_text(config, inside=True), str(config)) if config.is_file() else {})
    )


def tokenizer_from_json(text: str) -> Tokenizer:
    """The tokenizer of either kind that ``to_json`` wrote."""
    content = read_json(text, "a tokenizer")
    return WordTokenizer.from_json(text) if "format" in content else SubwordTokenizer.from_json(text)


def _word_pieces(texts: list[str], vocab_size: int, special: list[str]) -> tokenizers.Tokenizer:
    normalizer, parts = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    words = Counter(word for text in texts for word, _ in parts.pre_tokenize_str(normalizer.normalize_str(text)))
    signs: Counter[str] = Counter()
    for word, count in words.items():
        for sign in (word[0], *(f"##{sign}" for sign in word[1:])):
            signs[sign] += count
    ranked = sorted(signs, key=lambda sign: (-signs[sign], sign))
    kept = set(ranked[: vocab_size - len(special)])
    learned = [word for word in words if {word[0], *(f"##{sign}" for sign in word[1:])} <= kept]
    # The trainer also makes a piece of each character at the beginning of a word, even if no word begins with it.
    superfluous = {sign for word in learned for sign in word} - kept
    # It numbers characters in the order of a hash table, which varies between runs and decides between merges of equal
    # count. Characters passed as special tokens have fixed numbers.
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size + len(superfluous), special_tokens=special + sorted(kept), show_progress=False
    )
    scratch = tokenizers.Tokenizer(models.WordPiece(unk_token=UNK))
    scratch.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    scratch.train_from_iterator((" ".join([word] * words[word]) for word in learned), trainer=trainer)
    numbers = scratch.get_vocab(with_added_tokens=True)
    pieces = [piece for piece in sorted(numbers, key=numbers.__getitem__) if piece not in superfluous]
    return _bert_engine({piece: number for number, piece in enumerate(pieces)}, special, normalizer)


def _byte_pairs(texts: list[str], vocab_size: int, special: list[str]) -> tokenizers.Tokenizer:
    engine = tokenizers.Tokenizer(models.BPE())
    engine.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    engine.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=special, show_progress=False, initial_alphabet=alphabet
    )
    engine.train_from_iterator(texts, trainer=trainer)
    return engine


def _bert(path: Path, text: str, config: dict[str, Any]) -> tokenizers.Tokenizer:
    """BERT's tokenizer: one piece per line, whose number is the line's from 0."""
    lines = text.split("\n")
    vocabulary = {piece.rstrip("\r"): index for index, piece in enumerate(lines[:-1] if lines[-1] == "" else lines)}
    missing = [piece for piece in (PAD, UNK, CLS, SEP) if piece not in vocabulary]
    require(not missing, f"{path} without {missing}", "a BERT vocabulary, one piece per line", "Check the file.")
    normalizer = normalizers.BertNormalizer(
        lowercase=config.get("do_lower_case", True),
        strip_accents=config.get("strip_accents"),
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
    )
    special = [piece for piece in (PAD, UNK, CLS, SEP, MASK) if piece in vocabulary]
    engine = _bert_engine(vocabulary, special, normalizer)
    engine.post_processor = processors.TemplateProcessing(
        single=f"{CLS} $A {SEP}", special_tokens=[(piece, vocabulary[piece]) for piece in (CLS, SEP)]
    )
    return engine


def _bert_engine(
    vocabulary: dict[str, int], special: list[str], normalizer: normalizers.BertNormalizer
) -> tokenizers.Tokenizer:
    engine = tokenizers.Tokenizer(models.WordPiece(vocab=vocabulary, unk_token=UNK))
    engine.add_special_tokens(special)
    engine.normalizer = normalizer
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    engine.decoder = decoders.WordPiece()
    return engine


def _engine_from(text: str, what: str) -> tokenizers.Tokenizer:
    content = read_json(text, what)
    require("model" in content, f"{what} without a model", "the JSON of a tokenizer", "Pass a tokenizer.json.")
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises nothing narrower
        raise InputError(f"{what} with a fault: {error}", "the JSON of a tokenizer", "Download it again.") from error


def _special_id(engine: tokenizers.Tokenizer, names: tuple[str, ...], role: str) -> int:
    found = [token for token in map(engine.token_to_id, names) if token is not None]
    require(bool(found), f"a tokenizer without {' or '.join(names)}", f"a {role} token", f"Add {names[0]} to it.")
    return int(found[0])
