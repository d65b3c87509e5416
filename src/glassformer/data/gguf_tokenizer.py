"""The tokenizer in the metadata of a GGUF file.

``tokenizer.ggml.model`` names one of two kinds. ``gpt2`` splits a text by the patterns of
``tokenizer.ggml.pre``, and merges bytes within these parts in the order of a list. ``llama``,
SentencePiece's byte-pair encoding, merges characters of the whole text: always the two neighbours
whose union has the highest score.

Source: llama.cpp, src/llama-vocab.cpp, which gives the same tokens. Some of its patterns
approximate a published one because its regular expressions lack a feature (``gpt-4o``, ``tekken``,
``deepseek-coder``); then the published one is used.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from glassformer.data.released_tokenizer import (
    END_NAMES,
    O200K_PATTERN,
    SPACE,
    ReleasedTokenizer,
    end_tokens,
    is_special_name,
    piece_reader,
    released,
)
from glassformer.errors import InputError
from glassformer.text import short

MOST_TOKENS = 2**20
MOST_MERGES = 2**20
LONGEST_TOKEN = 1024
"""Maximum characters of a token; runs of spaces have up to 512."""
LONGEST_SCORED = 256
MOST_SCORED = 2**22
"""Maximum characters of a token with a score, and of all: the work grows with the product."""

_NO_PRE = (
    "does not say how its tokenizer splits a text (tokenizer.ggml.pre, since May 2024): it is "
    "split in llama.cpp's default way, which may not be the model's. Take a newer file, or pass "
    "the model's tokenizer.json as tokenizer."
)
_FIX = (
    "Pass tokenizer=, or --tokenizer: the model's tokenizer.json, its name on the hub, or "
    "'numbers' for token ids."
)

UNKNOWN = 2
CONTROL = 3
USER_DEFINED = 4
UNUSED = 5
"""Values of ``tokenizer.ggml.token_type``; the others are ordinary tokens."""

_CONTRACTION = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_END = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LLAMA3 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_END}"
)
_QWEN2 = _LLAMA3.replace("{1,3}", "")
_DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_END}"
)
_WORDS = r" ?[^(\s|.,!?…。，、।۔،)]+"

_LLAMA3_NAMES = "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2"

# Each pattern splits the parts that the ones before it left.
_PATTERNS: dict[str, tuple[str, ...]] = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    "gpt-2 phi-2 gigachat a.x-4.0 mellum modern-bert exaone4 mpt olmo": (_GPT2,),
    "jais trillion granite-docling": (_GPT2,),
    "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2": (r"\p{N}", _GPT2),
    _LLAMA3_NAMES: (_LLAMA3,),
    "dbrx smaug-bpe chatglm-bpe glm4 glm5": (_LLAMA3,),
    "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2": (_QWEN2,),
    "qwen35": (_QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"\s\p{L}", r"\s\p{L}\p{M}"),),
    "tekken": (O200K_PATTERN.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "").replace("{1,3}", ""),),
    "gpt-4o llama4 kanana2 talkie minimax-m2": (O200K_PATTERN,),
    "deepseek-v3 hunyuan-dense joyai-llm hy_v4": (r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3),
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"),
    "falcon": (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]"),
    "poro-chat bloom gpt3-finnish": (_WORDS,),
    "viking": (_WORDS, r"\p{N}"),
    "seed-coder": (_QWEN2.replace(r"\p{N}]+[\r\n]*", r"\p{N}\r\n]+"),),
}
_SPLITS: dict[str, tuple[str, ...]] = {}
for _names, _patterns in _PATTERNS.items():
    _SPLITS |= dict.fromkeys(_names.split(), _patterns)
_BEGIN = {*_LLAMA3_NAMES.split(), "tekken"}
"""Values of ``tokenizer.ggml.pre`` with which a text begins with BOS by default."""
_WHOLE_WORDS = {*_BEGIN, "glm4", "glm5"}
"""Values of ``tokenizer.ggml.pre`` with which a part that is a token is not merged from bytes."""


def has_tokenizer(metadata: Mapping[str, Any]) -> bool:
    """Return whether a GGUF file has a tokenizer."""
    return str(metadata.get("tokenizer.ggml.model")) != "none"


def tokenizer_from_gguf(
    metadata: Mapping[str, Any], source: str = "a GGUF file"
) -> ReleasedTokenizer:
    """Return the tokenizer that a GGUF file's metadata describes.

    Its tokens are llama.cpp's, with two exceptions. Names of special tokens in a text stay text,
    also if the file marks them as "user-defined" (gpt-oss's ``<|channel|>``). Converters write
    equal scores if they find none. Then the lower id comes first, as in the original tokenizer, and
    not the leftmost token. As in llama.cpp, a byte without a token is dropped.
    """
    read = _Metadata(metadata, source)
    model = read.value("model", str, "")
    if model not in ("gpt2", "llama"):
        raise InputError(
            got=f"{source} with a tokenizer of the kind {short(model)}",
            expected="gpt2 or llama",
            fix=_FIX,
        )
    tokens = _read_tokens(read)
    ids = {token: index for index, token in enumerate(tokens)}
    types: Sequence[float] = [1] * len(tokens)
    if "tokenizer.ggml.token_type" in metadata:
        types = read.numbers("token_type", len(tokens))
    phi3 = model == "llama" and metadata.get("general.architecture") == "phi3"
    specials = _special_tokens(tokens, types, phi3)
    if model == "llama":
        begins = True
        default_bos = 1
        default_eos = 2
        engine = _scored(read, tokens, ids, specials)
    else:
        pre = read.value("pre", str, "") or "default"
        if not metadata.get("tokenizer.ggml.pre"):
            warnings.warn(f"{source} {_NO_PRE}", stacklevel=2)
        begins = pre in _BEGIN
        default_bos = -1
        default_eos = -1
        engine = _by_merges(read, ids, specials, pre)
    # Phi-3 was trained without the white space that its template writes after special tokens.
    strips: Collection[str] = ()
    if phi3:
        strips = specials.keys() - {"<unk>", "<s>", "<|endoftext|>"}
    engine.add_tokens(
        [
            AddedToken(token, normalized=False, special=token in specials, rstrip=token in strips)
            for token, kind in zip(tokens, types, strict=True)
            if kind == USER_DEFINED or token in specials
        ]
    )
    declared = {"eos": default_eos, "eot": -1, "eom": -1}
    ends = [read.token(kind, len(tokens), default) for kind, default in declared.items()]
    bos = read.token("bos", len(tokens), default_bos)
    adds = read.value("add_bos_token", bool, begins)
    read.require(
        not adds or bos >= 0, "add_bos_token without a bos_token_id", "the id of that token"
    )
    if adds:
        name = tokens[bos].lstrip("$").replace(":", "")  # both have a meaning in a template
        begin = {"id": name, "ids": [bos], "tokens": [tokens[bos]]}
        engine.post_processor = processors.TemplateProcessing(
            single=[name, "$A"], special_tokens=[begin]
        )
    bytes_of = piece_reader("ByteLevel" if model == "gpt2" else "ByteFallback")

    def piece(token: int) -> bytes | None:
        if token >= len(tokens):
            return None
        verbatim = tokens[token] in specials or (model == "gpt2" and types[token] == USER_DEFINED)
        if verbatim:
            return tokens[token].encode()
        return bytes_of(tokens[token])

    return released(
        source,
        engine,
        len(tokens),
        specials,
        piece,
        (bos,) if adds else (),
        end_tokens(specials, ends),
    )


def _read_tokens(read: _Metadata) -> list[str]:
    """Return the tokens by id; empty ones get a name."""
    spellings = read.strings("tokens", MOST_TOKENS)
    tokens = [token or f"[EMPTY_{index}]" for index, token in enumerate(spellings)]
    num_repeated = len(tokens) - len(set(tokens))
    read.require(num_repeated == 0, f"{num_repeated} repeated tokens", "different tokens")
    longest = max(map(len, tokens))
    read.require(
        longest <= LONGEST_TOKEN, f"a token of {longest:,} characters", f"at most {LONGEST_TOKEN:,}"
    )
    return tokens


def _special_tokens(tokens: Sequence[str], types: Sequence[float], phi3: bool) -> dict[str, int]:
    specials = {}
    for index, (token, kind) in enumerate(zip(tokens, types, strict=True)):
        is_special = (
            kind in (UNKNOWN, CONTROL)
            or is_special_name(token, listed=kind == USER_DEFINED)
            or (phi3 and token == "</s>")
        )
        if is_special:
            specials[token] = index
    return specials


def byte_vocabulary() -> dict[str, Any]:
    """Return the ``tokenizer.ggml.*`` of a model whose 256 tokens are bytes.

    ``glassformer train`` makes such models of a text.
    """
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet(), key=piece_reader("ByteLevel"))
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * 256,
        "tokenizer.ggml.merges": [],
    }


def gguf_vocabulary(
    tokenizer: ReleasedTokenizer, vocab_size: int, ends: Sequence[int] = ()
) -> dict[str, Any]:
    """Return the ``tokenizer.ggml.*`` of a byte-level tokenizer, for this module and llama.cpp.

    GGUF has no key for a normalisation to NFC, such as Qwen's: llama.cpp does not do it.

    Args:
        tokenizer: Tokenizer of a ``tokenizer.json``.
        vocab_size: Number of the model's tokens; those that the tokenizer lacks are filled up.
        ends: Tokens that end a text or a turn, the most important first. The file names three;
            others are known by their names.
    """
    content = {} if tokenizer.json is None else json.loads(tokenizer.json())
    pre = _pre_name(content)
    _check_convertible(tokenizer, content, pre)
    model = content["model"]
    tokens = [f"[PAD{token}]" for token in range(vocab_size)]
    types = [UNUSED] * vocab_size
    ids = dict(model["vocab"])
    kinds = {}
    for entry in content.get("added_tokens", []):
        ids[entry["content"]] = entry["id"]
        kinds[entry["content"]] = CONTROL if entry["special"] else USER_DEFINED
    for token, index in ids.items():
        if index < vocab_size:
            tokens[index] = token
            types[index] = kinds.get(token, 1)
    ends = sorted(dict.fromkeys(ends), key=lambda end: (end != ends[0], tokens[end] in END_NAMES))
    fields: dict[str, Any] = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": types,
        "merges": [" ".join(merge) for merge in model["merges"]],
        "add_bos_token": bool(tokenizer.begin),
    }
    if tokenizer.begin:
        fields["bos_token_id"] = tokenizer.begin[0]
    for kind, token in zip(("eos", "eot", "eom"), ends, strict=False):
        fields[f"{kind}_token_id"] = token
    return {f"tokenizer.ggml.{name}": value for name, value in fields.items()}


def _pre_name(content: Mapping[str, Any]) -> str | None:
    """Return the value of ``tokenizer.ggml.pre`` for a ``tokenizer.json``; None if none fits."""
    patterns = _patterns_of(content.get("pre_tokenizer") or {})
    ignores_merges = bool(content.get("model", {}).get("ignore_merges"))
    for name, known_patterns in _SPLITS.items():
        same_patterns = tuple(map(_plain, known_patterns)) == patterns
        if same_patterns and (name in _WHOLE_WORDS) == ignores_merges:
            return name
    return None


def _check_convertible(
    tokenizer: ReleasedTokenizer, content: Mapping[str, Any], pre: str | None
) -> None:
    """Refuse a ``tokenizer.json`` with parts that GGUF has no key for."""
    model = content.get("model", {})
    normalizer = content.get("normalizer") or {"type": "NFC"}
    affixes = ("continuing_subword_prefix", "end_of_word_suffix")
    if model.get("type") != "BPE" or model.get("byte_fallback"):
        fault = "no byte-level merges"
    elif any(model.get(affix) for affix in affixes):
        fault = "affixes of words"
    elif normalizer["type"] != "NFC":
        fault = "a normalizer other than NFC"
    elif any(entry["lstrip"] or entry["rstrip"] for entry in content.get("added_tokens", [])):
        fault = "tokens that take white space"
    elif len(tokenizer.begin) > 1:
        fault = f"{len(tokenizer.begin)} tokens before a text"
    elif pre is None:
        fault = "patterns that no tokenizer.ggml.pre names"
    else:
        return
    raise InputError(
        got=f"{tokenizer.source} with {fault}",
        expected="a tokenizer that GGUF can hold",
        fix="Remove it from the directory for a file that takes token ids.",
    )


def _patterns_of(pre_tokenizer: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the patterns by which a byte-level tokenizer splits a text; None for other ways."""
    patterns = []
    for part in pre_tokenizer.get("pretokenizers", [pre_tokenizer]):
        match part:
            case {
                "type": "Split",
                "pattern": {"Regex": pattern},
                "behavior": "Isolated",
                "invert": False,
            }:
                patterns.append(_plain(pattern))
            case {"type": "Digits", "individual_digits": True}:
                patterns.append(r"\p{N}")
            case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": use_regex}:
                if use_regex:
                    patterns.append(_plain(_GPT2))
            case _:
                return None
    return tuple(patterns)


def _plain(pattern: str) -> str:
    """Return a pattern in the spelling of this module; white space that it leaves is a part."""
    return pattern.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)", _CONTRACTION).removesuffix(r"|\s+")


def _by_merges(
    read: _Metadata, ids: dict[str, int], specials: Mapping[str, int], pre: str
) -> Tokenizer:
    if pre not in _SPLITS:
        raise InputError(
            got=f"{read.source} with tokenizer.ggml.pre = {short(pre)}",
            expected=", ".join(_SPLITS),
            fix=_FIX,
        )
    pairs: list[tuple[str, str]] = []
    for merge in read.strings("merges", MOST_MERGES, least=0):
        # The first part may begin with a space.
        cut = merge.find(" ", 1)
        first = merge[:cut]
        second = merge[cut + 1 :]
        if not (cut > 0 and first in ids and second in ids and first + second in ids):
            read.require(False, f"the merge {short(merge)}", "two tokens that together are one")
        # No text encodes to a special token.
        if first + second not in specials:
            pairs.append((first, second))
    # dict.fromkeys: the first of repeated merges counts.
    engine = Tokenizer(
        models.BPE(vocab=ids, merges=list(dict.fromkeys(pairs)), ignore_merges=pre in _WHOLE_WORDS)
    )
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in _SPLITS[pre]]
    bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    engine.pre_tokenizer = pre_tokenizers.Sequence([*splits, bytewise])
    engine.decoder = decoders.ByteLevel()
    return engine


def _scored(
    read: _Metadata, tokens: list[str], ids: dict[str, int], specials: Mapping[str, int]
) -> Tokenizer:
    """Return SentencePiece's encoding; merges make the token of the highest score first."""
    missing = next((byte for byte in range(256) if f"<0x{byte:02X}>" not in ids), None)
    read.require(missing is None, f"no token for the byte {missing}", "all of <0x00> to <0xFF>")
    scores = read.numbers("scores", len(tokens))
    read.require(all(map(math.isfinite, scores)), "scores that are not finite", "numbers")
    lengths = [len(token) for token in tokens if token not in specials]
    longest = max(lengths, default=0)
    total = sum(lengths)
    read.require(
        longest <= LONGEST_SCORED, f"a token of {longest:,} characters", f"at most {LONGEST_SCORED}"
    )
    read.require(
        total <= MOST_SCORED, f"tokens of {total:,} characters", f"at most {MOST_SCORED:,}"
    )
    merges: list[tuple[str, str]] = []
    for index in sorted(range(len(tokens)), key=lambda index: -scores[index]):
        token = tokens[index]
        if token not in specials:
            merges += [
                (token[:cut], token[cut:])
                for cut in range(1, len(token))
                if token[:cut] in ids and token[cut:] in ids
            ]
        read.require(
            len(merges) <= MOST_MERGES, f"more than {MOST_MERGES:,} ways to merge", "fewer"
        )
    engine = Tokenizer(models.BPE(vocab=ids, merges=merges, byte_fallback=True))
    prefix = int(read.value("add_space_prefix", bool, True))
    engine.normalizer = normalizers.Sequence(
        [*[normalizers.Prepend(SPACE)] * prefix, normalizers.Replace(" ", SPACE)]
    )
    engine.decoder = decoders.Sequence(
        [
            decoders.Replace(SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", prefix, 0),
        ]
    )
    return engine


class _Metadata:
    """The ``tokenizer.ggml.*`` of a file, checked."""

    def __init__(self, metadata: Mapping[str, Any], source: str) -> None:
        self._metadata = metadata
        self.source = source

    def require(self, condition: bool, got: str, expected: str) -> None:
        if not condition:
            raise InputError(
                got=f"{self.source} with {got}",
                expected=expected,
                fix="Download or convert it again.",
            )

    def value(self, name: str, kind: type, default: Any) -> Any:
        value = self._metadata.get(f"tokenizer.ggml.{name}", default)
        self.require(
            isinstance(value, kind),
            f"tokenizer.ggml.{name} = {short(str(value))}",
            f"a {kind.__name__}",
        )
        return value

    def token(self, kind: str, count: int, default: int) -> int:
        """Return a token's id; -1 if there is none."""
        token = int(self.value(f"{kind}_token_id", int, default))
        return token if 0 <= token < count else -1

    def strings(self, name: str, most: int, least: int = 1) -> list[str]:
        strings = self._list(name, least, most)
        self._convert(lambda: "".join(strings).encode(), name, "strings")
        return strings

    def numbers(self, name: str, count: int) -> list[float]:
        values = self._list(name, count, MOST_TOKENS)
        numbers: list[float] = self._convert(
            lambda: [float(value) for value in values[:count]], name, "numbers"
        )
        return numbers

    def _list(self, name: str, least: int, most: int) -> list[Any]:
        entries: Any = self._metadata.get(f"tokenizer.ggml.{name}")
        self.require(
            hasattr(entries, "__len__") and not isinstance(entries, str),
            f"no list tokenizer.ggml.{name}",
            "one",
        )
        self.require(
            least <= len(entries) <= most,
            f"{len(entries):,} entries of tokenizer.ggml.{name}",
            f"{least:,} to {most:,}",
        )
        return list(entries)

    def _convert(self, convert: Callable[[], Any], name: str, kind: str) -> Any:
        try:
            return convert()
        except (TypeError, ValueError):
            self.require(False, f"tokenizer.ggml.{name} of another type", kind)
            raise
