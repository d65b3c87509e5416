"""The tokenizer in the metadata of a GGUF file.

``tokenizer.ggml.model`` names one of two kinds. ``gpt2`` merges bytes in the order of a list,
within the parts into which the patterns of ``tokenizer.ggml.pre`` split a text. ``llama``,
SentencePiece's byte-pair encoding, merges
characters of the whole text: each time the two neighbours whose union has the highest score.

Source: llama.cpp, src/llama-vocab.cpp, whose tokens these are. Where its patterns approximate a
published one because its regular expressions lack a feature (``gpt-4o``, ``tekken``,
``deepseek-coder``), the published one is used.
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
"""Characters; runs of spaces have up to 512."""
LONGEST_SCORED = 256
MOST_SCORED = 2**22
"""Characters of a token that has a score, and of all of them: the work grows with the product."""

_NO_PRE = (
    "does not say how its tokenizer splits a text (tokenizer.ggml.pre, since May 2024): it is "
    "split in llama.cpp's "
    "default way, which may not be the model's. Take a newer file, or pass the model's "
    "tokenizer.json as tokenizer."
)
_FIX = "Pass tokenizer=, or --tokenizer: the model's tokenizer.json, its name on the hub, or 'numbers' for token ids."

UNKNOWN = 2
CONTROL = 3
USER_DEFINED = 4
UNUSED = 5
"""Values of ``tokenizer.ggml.token_type``; the others are ordinary tokens."""

_CONTRACTION = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_END = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LLAMA3 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_END}"
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
    "gpt-2 phi-2 gigachat a.x-4.0 mellum modern-bert exaone4 mpt olmo jais trillion granite-docling": (
        _GPT2,
    ),
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
_SPLITS = {name: patterns for names, patterns in _PATTERNS.items() for name in names.split()}
_BEGIN = {*_LLAMA3_NAMES.split(), "tekken"}
"""Names whose texts begin with BOS where the file does not say otherwise."""
_WHOLE_WORDS = {*_BEGIN, "glm4", "glm5"}
"""Names with which a part that is a token is not merged from its bytes."""


def has_tokenizer(metadata: Mapping[str, Any]) -> bool:
    """Whether a GGUF file does not say that it has no tokenizer."""
    return str(metadata.get("tokenizer.ggml.model")) != "none"


def tokenizer_from_gguf(
    metadata: Mapping[str, Any], source: str = "a GGUF file"
) -> ReleasedTokenizer:
    """The tokenizer that a GGUF file's metadata describes.

    Its tokens are llama.cpp's but for two things. Names of special tokens in a text stay text, also
    those that the file marks as "user-defined" (gpt-oss's ``<|channel|>``). Of equal scores, which
    converters write where they find none, that of the lower id comes first, as in the tokenizer
    that was converted, and not the leftmost one. A byte without a token of its own is dropped, as
    there.
    """
    read = _Metadata(metadata, source)
    model = read.value("model", str, "")
    if model not in ("gpt2", "llama"):
        raise InputError(
            f"{source} with a tokenizer of the kind {short(model)}", "gpt2 or llama", _FIX
        )
    listed = read.strings("tokens", MOST_TOKENS)
    tokens = [token or f"[EMPTY_{index}]" for index, token in enumerate(listed)]
    ids = {token: index for index, token in enumerate(tokens)}
    read.require(
        0 < len(ids) == len(tokens), f"{len(tokens) - len(ids)} repeated tokens", "different tokens"
    )
    longest = max(map(len, tokens))
    read.require(
        longest <= LONGEST_TOKEN, f"a token of {longest:,} characters", f"at most {LONGEST_TOKEN:,}"
    )
    typed = "tokenizer.ggml.token_type" in metadata
    if typed:
        types = read.numbers("token_type", len(tokens))
    else:
        types = [1] * len(tokens)
    phi3 = model == "llama" and metadata.get("general.architecture") == "phi3"
    specials = {
        token: index
        for index, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (UNKNOWN, CONTROL)
        or is_special_name(token, listed=kind == USER_DEFINED)
        or (phi3 and token == "</s>")
    }
    begins = True
    default_bos = 1
    default_eos = 2
    if model == "llama":
        engine = _scored(read, tokens, ids, specials)
    else:
        pre = read.value("pre", str, "") or "default"
        if not metadata.get("tokenizer.ggml.pre"):
            warnings.warn(f"{source} {_NO_PRE}", stacklevel=2)
        begins = pre in _BEGIN
        default_bos = -1
        default_eos = -1
        engine = _by_merges(read, ids, specials, pre)
    # Phi-3 was trained without the white space after its special tokens, which its template writes.
    strips: Collection[str]
    if phi3:
        strips = specials.keys() - {"<unk>", "<s>", "<|endoftext|>"}
    else:
        strips = ()
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
        name = tokens[bos].lstrip("$").replace(":", "")  # both have a meaning there
        begin = {"id": name, "ids": [bos], "tokens": [tokens[bos]]}
        engine.post_processor = processors.TemplateProcessing(
            single=[name, "$A"], special_tokens=[begin]
        )
    spelt = piece_reader("ByteLevel" if model == "gpt2" else "ByteFallback")

    def piece(token: int) -> bytes | None:
        if token >= len(tokens):
            return None
        verbatim = tokens[token] in specials or (model == "gpt2" and types[token] == USER_DEFINED)
        if verbatim:
            return tokens[token].encode()
        return spelt(tokens[token])

    return released(
        source,
        engine,
        len(tokens),
        specials,
        piece,
        (bos,) if adds else (),
        end_tokens(specials, ends),
    )


def byte_vocabulary() -> dict[str, Any]:
    """The ``tokenizer.ggml.*`` of a model whose 256 tokens are bytes, such as ``glassformer train``
    makes of a text.
    """
    spelt = piece_reader("ByteLevel")
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet(), key=spelt)
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
    """The ``tokenizer.ggml.*`` of a tokenizer that merges bytes, for :func:`tokenizer_from_gguf`
    and llama.cpp.

    No key says that a text is normalised to NFC first, as Qwen's is: llama.cpp does not do it.

    Args:
        tokenizer: Of a ``tokenizer.json``.
        vocab_size: The model's; tokens that the tokenizer lacks are filled up.
        ends: Tokens that end a text or a turn, the most important first. The file names three;
            others are known by their names.
    """
    if tokenizer.json is None:
        content = {}
    else:
        content = json.loads(tokenizer.json())
    model = content.get("model", {})
    added = content.get("added_tokens", [])
    patterns = _patterns_of(content.get("pre_tokenizer") or {})
    named = (
        name
        for name, known in _SPLITS.items()
        if tuple(map(_plain, known)) == patterns
        and (name in _WHOLE_WORDS) == bool(model.get("ignore_merges"))
    )
    pre = next(named, None)
    lacking = {
        "no byte-level merges": model.get("type") != "BPE" or bool(model.get("byte_fallback")),
        "affixes of words": any(
            model.get(each) for each in ("continuing_subword_prefix", "end_of_word_suffix")
        ),
        "a normalizer other than NFC": (content.get("normalizer") or {"type": "NFC"})["type"]
        != "NFC",
        "tokens that take white space": any(
            each[side] for each in added for side in ("lstrip", "rstrip")
        ),
        f"{len(tokenizer.begin)} tokens before a text": len(tokenizer.begin) > 1,
        "patterns that no tokenizer.ggml.pre names": pre is None,
    }
    fault = next((name for name, found in lacking.items() if found), None)
    if fault is not None:
        raise InputError(
            got=f"{tokenizer.source} with {fault}",
            expected="a tokenizer that GGUF can hold",
            fix="Remove it from the directory for a file that takes token ids.",
        )
    tokens = [f"[PAD{token}]" for token in range(vocab_size)]
    types = [UNUSED] * vocab_size
    kinds = {each["content"]: CONTROL if each["special"] else USER_DEFINED for each in added}
    for token, index in {
        **model["vocab"],
        **{each["content"]: each["id"] for each in added},
    }.items():
        if index < vocab_size:
            tokens[index], types[index] = token, kinds.get(token, 1)
    ends = sorted(dict.fromkeys(ends), key=lambda end: (end != ends[0], tokens[end] in END_NAMES))
    found = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": types,
        "merges": [" ".join(merge) for merge in model["merges"]],
        "add_bos_token": bool(tokenizer.begin),
        **({"bos_token_id": tokenizer.begin[0]} if tokenizer.begin else {}),
        **{
            f"{kind}_token_id": token
            for kind, token in zip(("eos", "eot", "eom"), ends, strict=False)
        },
    }
    return {f"tokenizer.ggml.{name}": value for name, value in found.items()}


def _patterns_of(pre_tokenizer: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The patterns by which a byte-level tokenizer splits a text; None for other ways."""
    found = []
    for each in pre_tokenizer.get("pretokenizers", [pre_tokenizer]):
        match each:
            case {
                "type": "Split",
                "pattern": {"Regex": pattern},
                "behavior": "Isolated",
                "invert": False,
            }:
                found.append(_plain(pattern))
            case {"type": "Digits", "individual_digits": True}:
                found.append(r"\p{N}")
            case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": use_regex}:
                found += [_plain(_GPT2)] if use_regex else []
            case _:
                return None
    return tuple(found)


def _plain(pattern: str) -> str:
    """A pattern in the spelling of this file. White space that it leaves is a part in any case."""
    return pattern.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)", _CONTRACTION).removesuffix(r"|\s+")


def _by_merges(
    read: _Metadata, ids: dict[str, int], specials: Mapping[str, int], pre: str
) -> Tokenizer:
    if pre not in _SPLITS:
        raise InputError(
            f"{read.source} with tokenizer.ggml.pre = {short(pre)}", ", ".join(_SPLITS), _FIX
        )
    pairs: list[tuple[str, str]] = []
    for merge in read.strings("merges", MOST_MERGES, least=0):
        # The first part may begin with a space.
        cut = merge.find(" ", 1)
        pair = merge[:cut], merge[cut + 1 :]
        if not (cut > 0 and pair[0] in ids and pair[1] in ids and pair[0] + pair[1] in ids):
            read.require(False, f"the merge {short(merge)}", "two tokens that together are one")
        # No text encodes to a special token.
        if pair[0] + pair[1] not in specials:
            pairs.append(pair)
    # Of a repeated merge the first counts.
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
    """SentencePiece's encoding: the merges are all ways to cut a token in two, the token of the
    highest score first.
    """
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
    joined = decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()
    engine.decoder = decoders.Sequence([*joined, decoders.Strip(" ", prefix, 0)])
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
        found = self._metadata.get(f"tokenizer.ggml.{name}", default)
        self.require(
            isinstance(found, kind),
            f"tokenizer.ggml.{name} = {short(str(found))}",
            f"a {kind.__name__}",
        )
        return found

    def token(self, kind: str, count: int, default: int) -> int:
        """An id; -1 for none."""
        found = int(self.value(f"{kind}_token_id", int, default))
        return found if 0 <= found < count else -1

    def strings(self, name: str, most: int, least: int = 1) -> list[str]:
        found = self._list(name, least, most)
        self._convert(lambda: "".join(found).encode(), name, "strings")
        return found

    def numbers(self, name: str, count: int) -> list[float]:
        found = self._list(name, count, MOST_TOKENS)
        numbers: list[float] = self._convert(
            lambda: [float(each) for each in found[:count]], name, "numbers"
        )
        return numbers

    def _list(self, name: str, least: int, most: int) -> list[Any]:
        found: Any = self._metadata.get(f"tokenizer.ggml.{name}")
        self.require(
            hasattr(found, "__len__") and not isinstance(found, str),
            f"no list tokenizer.ggml.{name}",
            "one",
        )
        got = f"{len(found):,} entries of tokenizer.ggml.{name}"
        self.require(least <= len(found) <= most, got, f"{least:,} to {most:,}")
        return list(found)

    def _convert(self, convert: Callable[[], Any], name: str, kind: str) -> Any:
        try:
            return convert()
        except (TypeError, ValueError):
            self.require(False, f"tokenizer.ggml.{name} of another type", kind)
            raise
