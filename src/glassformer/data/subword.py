"""Subword tokenizers of released models, with the library ``tokenizers``.

Word pieces (BERT) mark parts that continue a word: ``marvel ##lous``. Byte pairs (GPT-2) mark parts
that begin a word. They consist of bytes, so that every text can be encoded.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import BertWordPieceTokenizer, decoders

from glassformer.data.engines import encoding_of, engine_errors, may_backtrack
from glassformer.data.released_tokenizer import read_tokenizer_config
from glassformer.data.tokenizer import (
    MAX_LEN,
    WordTokenizer,
    read_json,
    require_text,
    require_token,
    whole_text,
)
from glassformer.errors import InputError, is_panic, require_positive
from glassformer.files import local_path
from glassformer.untrusted import read_text

PAD = "[PAD]"
UNK = "[UNK]"
CLS = "[CLS]"
SEP = "[SEP]"

_PAD_NAMES = (PAD, "<pad>", "<PAD>")
_CLS_NAMES = (CLS, "<s>", "<CLS>")
_SETTINGS = {
    "do_lower_case": ("lowercase", True),
    "strip_accents": ("strip_accents", None),
    "tokenize_chinese_chars": ("handle_chinese_chars", True),
}
"""BERT's settings in ``tokenizer_config.json``: the library's names, and BERT's defaults."""


class SubwordTokenizer:
    """A tokenizer of the library ``tokenizers``, with the interface of :class:`WordTokenizer`.

    The library's tokenizer is copied. Stored padding and truncation are switched off, as Hugging
    Face does on loading. Padding is the token named ``[PAD]`` or ``<pad>``; ``[CLS]`` or ``<s>``
    comes before every text.
    """

    def __init__(self, engine: tokenizers.Tokenizer | BertWordPieceTokenizer) -> None:
        text = engine.to_str()
        self._engine = tokenizers.Tokenizer.from_str(text)
        self._backtracks = may_backtrack(json.loads(text))
        self._engine.no_padding()
        self._engine.no_truncation()
        self.pad_id = _special_id(self._engine, _PAD_NAMES, "padding")
        self.cls_id = _special_id(self._engine, _CLS_NAMES, "CLS")
        self._added = self._engine.num_special_tokens_to_add(False)
        # With special ids. Computed once, because the library builds the whole table at every call.
        self.vocab_size: int = max(self._engine.get_vocab(with_added_tokens=True).values()) + 1

    def encode(self, text: str, max_len: int = MAX_LEN) -> list[int]:
        """Return the ids of ``text`` between the engine's special tokens, at most ``max_len``.

        An unpaired surrogate is read as U+FFFD, the replacement character.
        """
        require_text(text)
        require_positive(max_len=max_len)
        if max_len < self._added:
            raise InputError(
                got=f"max_len = {max_len}",
                expected=f"at least {self._added}, the special tokens around every text",
                fix="Pass a longer max_len.",
            )
        encoding = encoding_of(self._engine, whole_text(text), "a tokenizer", self._backtracks)
        encoding.truncate(max_len - self._added)
        ids: list[int] = self._engine.post_process(encoding).ids
        return ids

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Return the text of each id; word pieces keep their ``##``, byte pairs are decoded."""
        with engine_errors("a tokenizer", "it decodes tokens"):
            return self._pieces(tokens)

    def _pieces(self, tokens: Sequence[int]) -> list[str]:
        added = self._engine.get_added_tokens_decoder()
        byte_level = isinstance(self._engine.decoder, decoders.ByteLevel)
        pieces = []
        for token in map(int, tokens):
            require_token(token, self.vocab_size)
            piece: str | None
            if byte_level and token not in added:
                piece = self._engine.decode([token])
            else:
                piece = self._engine.id_to_token(token)
            if piece is None:
                raise InputError(
                    got=f"the token {token}",
                    expected="an id in use",
                    fix="Decode with the tokenizer that encoded.",
                )
            pieces.append(str(piece))
        return pieces

    def decode(self, tokens: Sequence[int]) -> str:
        """Return readable text, without special tokens."""
        for token in tokens:
            require_token(token, self.vocab_size)
        with engine_errors("a tokenizer", "it decodes tokens"):
            text: str = self._engine.decode(
                [int(token) for token in tokens], skip_special_tokens=True
            )
        return text.strip()

    def to_json(self) -> str:
        """Return the engine's JSON, a ``tokenizer.json``, for :func:`tokenizer_from_json`."""
        return str(self._engine.to_str())


Tokenizer = WordTokenizer | SubwordTokenizer
"""A tokenizer of classifiers: ids are 0 ... vocab_size - 1; ``cls_id`` precedes every text."""


def load_subwords(path: Path | str) -> SubwordTokenizer:
    """Return the tokenizer of a released model.

    ``path`` is a ``tokenizer.json``, a BERT ``vocab.txt``, or a directory with one of them.

    A ``tokenizer_config.json`` next to ``vocab.txt`` decides whether case matters; by default it
    does not. As in transformers, BERT's settings in a directory's config, and the defaults of the
    class that it names, override ``tokenizer.json``.
    """
    path = local_path(path)
    inside = path.is_dir()
    if inside:
        paths = [path / name for name in ("tokenizer.json", "vocab.txt") if (path / name).is_file()]
        if not paths:
            raise InputError(
                got=f"{path} without a tokenizer",
                expected="tokenizer.json or vocab.txt in it",
                fix="Download the rest.",
            )
        path = paths[0]
    text = read_text(path, inside=inside)
    if inside or path.suffix != ".json":
        config = read_tokenizer_config(path.parent)
    else:
        config = {}
    kind = config.get("tokenizer_class")
    settings = {}
    if kind not in ("PreTrainedTokenizerFast", "TokenizersBackend"):
        for name, (library_name, default) in _SETTINGS.items():
            if kind or name in config:
                settings[library_name] = config.get(name, default)
    if path.suffix == ".json":
        return SubwordTokenizer(_engine_from(text, str(path), settings))
    if kind == "BertJapaneseTokenizer":  # it splits a text by a dictionary first
        raise InputError(
            got=f"{path} of the class {kind}",
            expected="a BERT vocabulary alone",
            fix="Tokenize texts with transformers.",
        )
    return SubwordTokenizer(_bert(path, text, settings))


def tokenizer_from_json(text: str) -> Tokenizer:
    """Return the tokenizer of either kind that ``to_json`` wrote."""
    content = read_json(text, "a tokenizer")
    if "format" in content:
        return WordTokenizer.from_json(text)
    return SubwordTokenizer(_engine_from(text, "a tokenizer"))


def _bert(path: Path, text: str, settings: dict[str, Any]) -> BertWordPieceTokenizer:
    """Return BERT's tokenizer: one piece per line, whose id is the line's number from 0."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    vocabulary = {piece.rstrip("\r"): index for index, piece in enumerate(lines)}
    missing = [piece for piece in (PAD, UNK, CLS, SEP) if piece not in vocabulary]
    if missing:
        raise InputError(
            got=f"{path} without {missing}",
            expected="a BERT vocabulary, one piece per line",
            fix="Check the file.",
        )
    return BertWordPieceTokenizer(vocabulary, **settings)


def _engine_from(
    text: str, what: str, settings: dict[str, Any] | None = None
) -> tokenizers.Tokenizer:
    content = read_json(text, what)
    if "model" not in content:
        raise InputError(
            got=f"{what} without a model",
            expected="the JSON of a tokenizer",
            fix="Pass a tokenizer.json.",
        )
    normalizer = content.get("normalizer")
    if settings and isinstance(normalizer, dict) and normalizer.get("type") == "BertNormalizer":
        text = json.dumps(content | {"normalizer": normalizer | settings})
    try:
        return tokenizers.Tokenizer.from_str(text)
    except BaseException as error:  # the library raises nothing narrower
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise InputError(
            got=f"{what} with a fault: {error}",
            expected="the JSON of a tokenizer",
            fix="Download it again.",
        ) from error


def _special_id(engine: tokenizers.Tokenizer, names: tuple[str, ...], role: str) -> int:
    ids = [token for token in map(engine.token_to_id, names) if token is not None]
    if not ids:
        raise InputError(
            got=f"a tokenizer without {' or '.join(names)}",
            expected=f"a {role} token",
            fix=f"Add {names[0]} to it.",
        )
    return int(ids[0])
