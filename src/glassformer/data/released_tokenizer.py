"""Tokenizers of released decoders: text to tokens and, token by token, back to text.

They work on bytes: every text can be encoded, and a token may be part of a character. A model's
tokenizer is the ``tokenizer.json`` in the directory of its weights or on the hub.
"""

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import tokenizers
from tokenizers import normalizers

from glassformer.data.engines import encoding_of, may_backtrack
from glassformer.data.tokenizer import read_json, require_text, whole_text
from glassformer.errors import InputError, is_panic
from glassformer.files import local_path
from glassformer.text import short
from glassformer.untrusted import read_bytes, read_text, require_regular

# How o200k splits a text into the parts within which bytes are merged.
_WORD = r"[^\r\n\p{L}\p{N}]?"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K_PATTERN = "|".join(
    (
        f"{_WORD}{_UPPER}*{_LOWER}+{_ENDING}",
        f"{_WORD}{_UPPER}+{_LOWER}*{_ENDING}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
"""o200k's pattern, in the syntax of Rust's regular expressions."""

LARGEST_FILE = 2**26
"""Most bytes of a tokenizer's file; gpt-oss's has 28 MB."""

TOKENIZER_FILE = "tokenizer.json"
END_NAMES = (
    *(
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<end_of_turn>",
    ),
    *(
        "<|endoftext|>",
        "<|eom_id|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<|end_of_text|>",
        "<end_of_utterance>",
    ),
    *(
        "<eos>",
        "<turn|>",
        "<|tool_response>",
        "[e~[",
        "<｜end▁of▁sentence｜>",
        "<|fim_pad|>",
        "<fim-pad>",
        "<fim_pad>",
    ),
    *(
        "<PAD>",
        "[PAD]",
        "<|fim_repo|>",
        "<|repo_name|>",
        "<fim-repo>",
        "<REPO>",
        "<reponame>",
        "<|file_sep|>",
    ),
)
"""Names of tokens that end a text or a turn in some model; llama.cpp's list, src/llama-vocab.cpp.

``</s>`` is not among them: it is a tag of HTML to most models, and an end where a file declares it.
"""
_NAME = re.compile(r"<\|\w+\|>")
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""SentencePiece's spelling of a space."""


@dataclass(frozen=True)
class ReleasedTokenizer:
    """A tokenizer that came with a model.

    Args:
        source: Its origin, for messages.
        vocab_size: One more than its highest id. A model's may be larger.
        specials: Ids of the special tokens by name; no text encodes to them.
        prompt: Encodes a text in which the names of special tokens stand for these tokens, unless
            ``named`` is false. A character given after it is left out once they are found.
        piece: The bytes of an id; None for an unused one.
        begin: Tokens that the model expects before every text, such as Mixtral's ``<s>``.
        ends: Tokens that end a text or a turn.
        json: Writes the content of a ``tokenizer.json``; None: the engine has none.
    """

    source: str
    vocab_size: int
    specials: Mapping[str, int]
    prompt: Callable[..., list[int]] = field(repr=False)
    piece: Callable[[int], bytes | None] = field(repr=False)
    begin: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    json: Callable[[], str] | None = field(default=None, repr=False)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """For other processes, which make a tokenizer from this one's content: its functions hold a
        lock.
        """
        if self.source == "numbers":
            return number_tokenizer, (self.vocab_size,)
        if self.json is None:
            return super().__reduce_ex__(protocol)
        pieces = [self.piece(token) for token in range(self.vocab_size)]
        content = self.json(), self.vocab_size, {**self.specials}, pieces, self.begin, self.ends
        return _rebuilt, (self.source, *content)

    def encode(self, text: str) -> list[int]:
        """The tokens of ``text``, without ``begin``. A special token's name in it is ordinary text.

        An unpaired surrogate is read as U+FFFD, the replacement character.
        """
        require_text(text)
        return self.prompt(whole_text(text), named=False)

    def encode_prompt(self, text: str) -> list[int]:
        """The tokens of a prompt that a chat template wrote: ``begin``, and in ``text`` special
        tokens by name.

        ``begin`` is not repeated where the text has it already.
        """
        require_text(text)
        return self.begun(self.prompt(whole_text(text)))

    def begun(self, tokens: list[int]) -> list[int]:
        """``tokens`` with ``begin`` before them, unless they have it."""
        if tuple(tokens[: len(self.begin)]) == self.begin:
            return tokens
        return [*self.begin, *tokens]

    def special(self, name: str) -> int:
        """The id of a special token."""
        if name not in self.specials:
            raise InputError(
                got=f"{self.source} without {name}",
                expected=f"a tokenizer with {name}",
                fix="Use the tokenizer that came with the model.",
            )
        return self.specials[name]

    @property
    def prefix(self) -> bytes:
        """The space before every text that is no part of it: SentencePiece's, or that of numbers."""
        return b" " if self.decode(self.encode("0")) == " 0" else b""

    def token_bytes(self, token: int) -> bytes:
        """The bytes of ``token``: part of a text, or a special token's name.

        Unused ids, which a model has if its vocabulary is rounded up, are named
        ``<|reserved_ID|>``.
        """
        if not token >= 0:
            raise InputError(
                got=f"the token {token}",
                expected="an id of at least 0",
                fix="Decode what the model generated.",
            )
        found = self.piece(token)
        if found is None:
            return f"<|reserved_{token}|>".encode()
        return found

    def is_number(self, token: int) -> bool:
        """Whether ``token`` is digits alone, with or without a space before."""
        return self.token_bytes(token).strip().isdigit()

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of ``tokens``, special ones by name; bytes that are not UTF-8 become U+FFFD."""
        return "".join(self.stream(tokens))

    def stream(self, tokens: Iterable[int], prefix: bytes = b"") -> Iterator[str]:
        """The text of ``tokens``, piece by piece: each character as soon as it is complete.

        A ``prefix`` of the first token is left out: :attr:`prefix` where a text or a reply begins.
        """
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        for token in tokens:
            yield decoder.decode(self.token_bytes(token).removeprefix(prefix))
            prefix = b""
        yield decoder.decode(b"", final=True)

    def strings(self, tokens: Iterable[int]) -> list[str]:
        r"""What each of ``tokens`` shows of the text: the characters whose last byte it has.

        A token that only begins a character shows nothing of it. Bytes that no token completes to a
        character are shown as ``\\xe2`` where they stand. Joined, the strings are the text, if it
        has no such bytes.
        """
        pieces = [self.token_bytes(token) for token in tokens]
        texts = [""] * len(pieces)
        token = -1
        place = 0
        end = 0
        for character in b"".join(pieces).decode(errors="surrogateescape"):
            broken = "\udc80" <= character <= "\udcff"
            place += 1 if broken else len(character.encode())
            while place > end:
                token += 1
                end += len(pieces[token])
            texts[token] += f"\\x{ord(character) - 0xDC00:02x}" if broken else character
        return texts

    def labels(self, tokens: Iterable[int]) -> list[str]:
        """What each of ``tokens`` is called in a figure; see :func:`part_labels`."""
        return part_labels([self.token_bytes(token) for token in tokens])

    def require_fits(self, vocab_size: int) -> None:
        """Raise :class:`~glassformer.errors.InputError` unless a model of this ``vocab_size`` has
        every token of texts.

        Special ones may be beyond it, as Gemma 3's for images is.
        """
        beyond = {
            token for token in range(vocab_size, self.vocab_size) if self.piece(token) is not None
        }
        if not beyond <= {*self.specials.values()}:
            raise InputError(
                got=(
                    f"{self.source} with {self.vocab_size} tokens for a model of vocab_size = "
                    f"{vocab_size}"
                ),
                expected="a tokenizer with no more tokens than the model",
                fix="Use the tokenizer that came with the model.",
            )


def part_labels(pieces: Sequence[bytes]) -> list[str]:
    r"""The text of each piece of a text in UTF-8; a character that several pieces share is numbered
    in each of them.

    The pieces ``b" \xf0\x9f"``, ``b"\x8e"`` and ``b"\x89"`` are ``" 🎉 1/3"``, ``"🎉 2/3"`` and ``"🎉
    3/3"``. Bytes of no character are shown as ``\\xf0``.
    """
    owners = [number for number, piece in enumerate(pieces) for _ in piece]
    labels = [""] * len(pieces)
    place = 0
    for character in b"".join(pieces).decode(errors="surrogateescape"):
        broken = "\udc80" <= character <= "\udcff"
        end = place + (1 if broken else len(character.encode()))
        sharing = sorted({*owners[place:end]})
        for part, number in enumerate(sharing, start=1):
            if broken:
                labels[number] += f"\\x{ord(character) - 0xDC00:02x}"
            else:
                labels[number] += (
                    character if len(sharing) == 1 else f"{character} {part}/{len(sharing)}"
                )
        place = end
    return labels


def read_tokenizer(path: Path | str) -> ReleasedTokenizer:
    """The tokenizer in a ``tokenizer.json``."""
    path = local_path(path)
    return from_json(read_text(path, LARGEST_FILE), str(path))


def from_json(text: str, source: str = "a tokenizer") -> ReleasedTokenizer:
    """The tokenizer of a ``tokenizer.json`` with byte-pair encoding: of bytes, as gpt-oss's, or of
    characters with byte fallback, as Mixtral's.
    """
    content = read_json(text, source)
    added = content.get("added_tokens", [])
    try:
        # The names of marked tokens are ordinary text in a text. Some files do not mark all special
        # tokens.
        marked = [
            each | {"special": each["special"] or is_special_name(each["content"])}
            for each in added
        ]
        # Of Llama's older files names count as normalised: they would be found after a space only,
        # not after a word.
        bare = content.get("normalizer") is None
        marked = [
            each | {"normalized": False} if bare or each["special"] else each for each in marked
        ]
        engine = tokenizers.Tokenizer.from_str(
            text if marked == added else json.dumps(content | {"added_tokens": marked})
        )
        names = {each["content"]: each["id"] for each in marked if each["special"]}
        read = _piece_reader(content)
        begin = tuple(_before(content))
    except BaseException as error:  # the library raises nothing narrower
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise InputError(
            f"{source} with a fault: {error}", "the JSON of a tokenizer", "Download it again."
        ) from error
    if read is None:
        kind = (content.get("model") or {}).get("type")
        raise InputError(
            f"{source} that merges characters and has no bytes"
            if kind == "BPE"
            else f"{source} of the kind {kind}",
            "byte-pair encoding, of bytes or with byte fallback",
            "Pass the file of a decoder such as gpt-oss or Mixtral.",
        )
    # Characters of added tokens are not bytes in another spelling, but SentencePiece's runs of
    # spaces are spelt.
    if content["model"].get("byte_fallback"):
        verbatim = {*names}
    else:
        verbatim = {each["content"] for each in added}
    engine.no_padding()
    engine.no_truncation()

    def piece(token: int) -> bytes | None:
        found = engine.id_to_token(token)
        if found is None:
            return None
        if found in verbatim:
            return found.encode()
        return read(found)

    highest = max(engine.get_vocab(with_added_tokens=True).values(), default=-1)
    if not highest >= 0:
        raise InputError(
            got=f"{source} without tokens",
            expected="a vocabulary",
            fix="Download it again.",
        )
    return released(
        source,
        engine,
        highest + 1,
        names,
        piece,
        begin,
        end_tokens(names),
        backtracks=may_backtrack(content),
    )


def read_numbers(text: str, vocab_size: int) -> list[int]:
    """The numbers below ``vocab_size`` in a text, between spaces."""
    words = text.split()
    expected = f"whole numbers from 0 to {vocab_size - 1} between spaces"
    for place, word in enumerate(words, start=1):
        fits = word.isascii() and word.isdecimal() and len(word) <= 12 and int(word) < vocab_size
        if not fits:
            raise InputError(
                got=f"{word[:40]!r} at place {place}",
                expected=expected,
                fix="Type such numbers.",
            )
    return [int(word) for word in words]


def number_tokenizer(vocab_size: int) -> ReleasedTokenizer:
    """Of a model of ``vocab_size`` numbers, such as the recurrence's: texts are numbers between
    spaces.
    """

    def encode(text: str, *, named: bool = True) -> list[int]:
        return read_numbers(text, vocab_size)

    return ReleasedTokenizer("numbers", vocab_size, {}, encode, lambda token: f" {token}".encode())


def tokenizer_places(directory: Path) -> list[Path]:
    """The directories to search for a model's tokenizer: its own, and for one named ``original``
    also its parent.

    The hub's copies of gpt-oss have OpenAI's layout in a folder of that name and the tokenizer
    above it.
    """
    resolved = directory.resolve()
    if resolved.name == "original":
        return [directory, resolved.parent]
    return [directory]


def read_tokenizer_config(directory: Path) -> dict[str, Any]:
    """The ``tokenizer_config.json`` in a directory, and beside an older one
    ``special_tokens_map.json`` and ``added_tokens.json``.
    """
    found: dict[str, Any] = {}
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        path = directory / name
        if path.is_file() and "added_tokens_decoder" not in found:
            text = read_bytes(path, LARGEST_FILE, inside=True).decode("utf-8", errors="replace")
            found |= read_json(text, str(path))
    path = directory / "added_tokens.json"
    if path.is_file() and "added_tokens_decoder" not in found:
        tokens = read_json(read_text(path, LARGEST_FILE, inside=True), str(path))
        # No prompt has a token for padding, which was often added for training alone.
        found["added_tokens_decoder"] = {
            str(token): n for n, token in tokens.items() if "pad" not in n.lower()
        }
    return found


def named_token(value: Any) -> str | None:
    """The name of a token in ``tokenizer_config.json``: a string, or the content of an object; None
    for none.
    """
    found = value.get("content") if isinstance(value, dict) else value
    return found if isinstance(found, str) else None


def _configured(tokenizer: ReleasedTokenizer, config: Mapping[str, Any]) -> ReleasedTokenizer:
    """``tokenizer`` with the end that ``tokenizer_config.json`` names.

    Its ``add_bos_token`` counts for nothing beside a ``tokenizer.json``, as in transformers.
    """
    declared = config.get("added_tokens_decoder")
    files = "tokenizer_config.json or added_tokens.json"
    for token, described in declared.items() if isinstance(declared, dict) else ():
        name = named_token(described) or ""
        if name != "" and list(map(str, tokenizer.prompt(name)[-1:])) != [token]:
            raise InputError(
                got=(
                    f"{tokenizer.source} without the token {short(name)} = {short(token)} of "
                    f"{files}"
                ),
                expected="the same tokens in both",
                fix=(
                    "Write both again with transformers: "
                    "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)."
                ),
            )
    eos = tokenizer.specials.get(named_token(config.get("eos_token")) or "")
    if eos is None:
        return tokenizer
    return replace(tokenizer, ends=tuple(sorted({*tokenizer.ends, eos})))


def tokenizer_beside(directory: Path | str) -> ReleasedTokenizer | None:
    """The tokenizer in the directories of :func:`tokenizer_places`; None if there is none."""
    for place in tokenizer_places(local_path(directory)):
        if (file := place / TOKENIZER_FILE).is_file():
            require_regular(file, inside=True)
            return _configured(read_tokenizer(file), read_tokenizer_config(place))
    return None


def _piece_reader(content: Mapping[str, Any]) -> Callable[[str], bytes] | None:
    """A function from a token's spelling in the file to its bytes; None for an unsupported kind of
    tokenizer.
    """
    model = content.get("model") or {}
    if (
        model.get("type", "BPE" if "merges" in model else None) != "BPE"
    ):  # files of 2020, as GPT-2's, do not say it
        return None
    decoder = content.get("decoder") or {}
    decoders = {each.get("type") for each in (decoder, *decoder.get("decoders", []))}
    if "ByteLevel" in decoders:
        return piece_reader("ByteLevel")
    if model.get("byte_fallback") and decoders & {"ByteFallback", "Metaspace", "Replace"}:
        return piece_reader("ByteFallback")
    return None


def piece_reader(decoder: Literal["ByteLevel", "ByteFallback"]) -> Callable[[str], bytes]:
    """A function from the spelling of a token to its bytes.

    Args:
        decoder: ``"ByteLevel"``: a character for each byte, GPT-2's alphabet. ``"ByteFallback"``:
            SentencePiece's characters, or ``<0x0A>`` for a single byte.
    """
    if decoder == "ByteLevel":
        alphabet = byte_alphabet()
        return lambda piece: b"".join(alphabet.get(sign, sign.encode()) for sign in piece)

    def read(piece: str) -> bytes:
        byte = _BYTE.fullmatch(piece)
        if byte:
            return bytes([int(byte[1], 16)])
        return piece.replace(SPACE, " ").encode()

    return read


def released(
    source: str,
    engine: tokenizers.Tokenizer,
    vocab_size: int,
    specials: Mapping[str, int],
    piece: Callable[[int], bytes | None],
    begin: tuple[int, ...] = (),
    ends: tuple[int, ...] = (),
    *,
    backtracks: bool = False,
) -> ReleasedTokenizer:
    """The tokenizer with this engine, whose added tokens include ``specials``, marked as special.

    ``backtracks`` says that its regular expressions may take very long.
    """
    turn = Lock()
    normalizer = engine.normalizer

    def ids(text: str) -> list[int]:
        return list(encoding_of(engine, text, source, backtracks).ids)

    def encode(text: str, mark: str = "", *, named: bool = True) -> list[int]:
        with turn:  # the switches belong to the engine, and servers have threads
            engine.encode_special_tokens = not named
            if not mark:
                return ids(text)
            unmarked = [
                normalizers.Replace(mark, ""),
                *([] if normalizer is None else [normalizer]),
            ]
            try:
                engine.normalizer = normalizers.Sequence(unmarked)
                return ids(text)
            finally:
                engine.normalizer = normalizer

    return ReleasedTokenizer(
        source, vocab_size, specials, encode, piece, begin, ends, engine.to_str
    )


def _rebuilt(
    source: str, text: str, size: int, specials: Mapping[str, int], pieces: list[Any], *more: Any
) -> Any:
    def piece(token: int) -> bytes | None:
        return pieces[token] if token < len(pieces) else None

    engine = tokenizers.Tokenizer.from_str(text)
    backtracks = may_backtrack(json.loads(text))
    return released(source, engine, size, specials, piece, *more, backtracks=backtracks)


def is_special_name(name: str, *, listed: bool = True) -> bool:
    """Whether a token is special by its name: one of :data:`END_NAMES`, or of the ``listed`` tokens
    ``<|NAME|>`` or ``<pad>``, which many tokenizers of Llama 2 have and the model lacks.
    """
    return name in END_NAMES or (listed and (name == "<pad>" or _NAME.fullmatch(name) is not None))


def end_tokens(specials: Mapping[str, int], declared: Iterable[int] = ()) -> tuple[int, ...]:
    """The tokens that end a text or a turn: the ``declared`` ones, and those of :data:`END_NAMES`.

    Negative ids stand for none. In the harmony format ``<|end|>`` ends a message within a turn.
    """
    ends = {*declared, *(specials[name] for name in END_NAMES if name in specials)}
    if {"<|return|>", "<|call|>"} <= specials.keys() or {
        "<|calls|>",
        "<|flush|>",
    } <= specials.keys():
        ends.discard(specials.get("<|end|>", -1))
    return tuple(sorted(end for end in ends if end >= 0))


def byte_alphabet() -> dict[str, bytes]:
    """GPT-2's spelling of bytes: printable ones as themselves, the others as characters from U+0100
    on.
    """
    shown = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): bytes([byte]) for byte in shown} | {
        chr(256 + index): bytes([byte]) for index, byte in enumerate(others)
    }


def _before(content: Mapping[str, Any]) -> Iterator[int]:
    """The tokens that the file's template puts before a text."""
    processor = content.get("post_processor") or {}
    for part in (processor, *(processor.get("processors") or [])):
        for each in part.get("single") or []:
            if "Sequence" in each:
                return
            yield from part["special_tokens"][each["SpecialToken"]["id"]]["ids"]
