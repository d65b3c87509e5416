"""Tokenizers of released decoders: text to tokens and, token by token, back to text.

Every text can be encoded, because tokens are bytes; a token may be part of a character. A model's
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

# o200k splits a text into parts by these patterns, and merges bytes within a part.
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
"""Maximum bytes of a tokenizer's file; gpt-oss's has 28 MB."""

TOKENIZER_FILE = "tokenizer.json"
END_NAMES = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "[e~[",
    "<｜end▁of▁sentence｜>",
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
)
"""Names of tokens that end a text or a turn in some model; llama.cpp's list, src/llama-vocab.cpp.

``</s>`` is not among them: to most models it is a tag of HTML. It is an end if a file declares it.
"""
_NAME = re.compile(r"<\|\w+\|>")
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""SentencePiece's spelling of a space."""


@dataclass(frozen=True)
class ReleasedTokenizer:
    """A tokenizer that came with a model.

    Args:
        source: Origin of the tokenizer, for messages.
        vocab_size: One more than the highest id. A model's may be larger.
        specials: Ids of the special tokens by name; no text encodes to them.
        prompt: Encodes a text in which names of special tokens become these tokens, unless
            ``named`` is false. A second argument is a character to drop once they are found.
        piece: Returns the bytes of an id; None for an unused id.
        begin: Tokens that the model expects before every text, such as Mixtral's ``<s>``.
        ends: Tokens that end a text or a turn.
        json: Returns the content of a ``tokenizer.json``; None if the engine has none.
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
        """Return the recipe for other processes: this tokenizer's functions hold a lock."""
        if self.source == "numbers":
            return number_tokenizer, (self.vocab_size,)
        if self.json is None:
            return super().__reduce_ex__(protocol)
        pieces = [self.piece(token) for token in range(self.vocab_size)]
        content = self.json(), self.vocab_size, {**self.specials}, pieces, self.begin, self.ends
        return _rebuilt, (self.source, *content)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of ``text``, without ``begin``; special tokens' names stay text.

        An unpaired surrogate is read as U+FFFD, the replacement character.
        """
        require_text(text)
        return self.prompt(whole_text(text), named=False)

    def encode_prompt(self, text: str) -> list[int]:
        """Return the tokens of a prompt that a chat template wrote, ``begin`` included.

        Names of special tokens in ``text`` become these tokens. ``begin`` is not repeated if the
        text has it already.
        """
        require_text(text)
        return self.begun(self.prompt(whole_text(text)))

    def begun(self, tokens: list[int]) -> list[int]:
        """Return ``tokens`` with ``begin`` before them, unless they have it."""
        if tuple(tokens[: len(self.begin)]) == self.begin:
            return tokens
        return [*self.begin, *tokens]

    def special(self, name: str) -> int:
        """Return the id of a special token."""
        if name not in self.specials:
            raise InputError(
                got=f"{self.source} without {name}",
                expected=f"a tokenizer with {name}",
                fix="Use the tokenizer that came with the model.",
            )
        return self.specials[name]

    @property
    def prefix(self) -> bytes:
        """Return the space that SentencePiece and numbers add before every text, or nothing."""
        return b" " if self.decode(self.encode("0")) == " 0" else b""

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of ``token``: part of a text, or a special token's name.

        Unused ids are named ``<|reserved_ID|>``; a model has some if its vocabulary is rounded up.
        """
        if token < 0:
            raise InputError(
                got=f"the token {token}",
                expected="an id of at least 0",
                fix="Decode what the model generated.",
            )
        piece = self.piece(token)
        if piece is None:
            return f"<|reserved_{token}|>".encode()
        return piece

    def is_number(self, token: int) -> bool:
        """Return whether ``token`` is digits only, with or without spaces around them."""
        return self.token_bytes(token).strip().isdigit()

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of ``tokens``, special ones by name; invalid bytes become U+FFFD."""
        return "".join(self.stream(tokens))

    def stream(self, tokens: Iterable[int], prefix: bytes = b"") -> Iterator[str]:
        """Yield the text of ``tokens`` in pieces: each character as soon as it is complete.

        A ``prefix`` of the first token is left out. Pass :attr:`prefix` for the beginning of a text
        or a reply.
        """
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        for token in tokens:
            yield decoder.decode(self.token_bytes(token).removeprefix(prefix))
            prefix = b""
        yield decoder.decode(b"", final=True)

    def strings(self, tokens: Iterable[int]) -> list[str]:
        r"""Return the text of each of ``tokens``: the characters whose last byte it has.

        A token that only begins a character has nothing of it. Bytes that belong to no character
        are shown as ``\\xe2``. Without such bytes, the joined strings are the text.
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
        """Return the name of each of ``tokens`` in a figure; see :func:`part_labels`."""
        return part_labels([self.token_bytes(token) for token in tokens])

    def require_fits(self, vocab_size: int) -> None:
        """Refuse a model whose ``vocab_size`` lacks tokens of texts.

        Special tokens may be beyond it, such as Gemma 3's for images.
        """
        beyond = {
            token for token in range(vocab_size, self.vocab_size) if self.piece(token) is not None
        }
        if beyond - {*self.specials.values()}:
            raise InputError(
                got=(
                    f"{self.source} with {self.vocab_size} tokens for a model of vocab_size = "
                    f"{vocab_size}"
                ),
                expected="a tokenizer with no more tokens than the model",
                fix="Use the tokenizer that came with the model.",
            )


def part_labels(pieces: Sequence[bytes]) -> list[str]:
    r"""Return the text of each piece of a text in UTF-8.

    A character that several pieces share is numbered in each of them. The pieces ``b" \xf0\x9f"``,
    ``b"\x8e"`` and ``b"\x89"`` are ``" 🎉 1/3"``, ``"🎉 2/3"`` and ``"🎉 3/3"``. Bytes of no
    character are shown as ``\\xf0``.
    """
    owners: list[int] = []
    for number, piece in enumerate(pieces):
        owners += [number] * len(piece)
    labels = [""] * len(pieces)
    place = 0
    for character in b"".join(pieces).decode(errors="surrogateescape"):
        broken = "\udc80" <= character <= "\udcff"
        end = place + (1 if broken else len(character.encode()))
        sharing = sorted({*owners[place:end]})
        for part, number in enumerate(sharing, start=1):
            if broken:
                labels[number] += f"\\x{ord(character) - 0xDC00:02x}"
            elif len(sharing) == 1:
                labels[number] += character
            else:
                labels[number] += f"{character} {part}/{len(sharing)}"
        place = end
    return labels


def read_tokenizer(path: Path | str) -> ReleasedTokenizer:
    """Return the tokenizer in a ``tokenizer.json``."""
    path = local_path(path)
    return from_json(read_text(path, LARGEST_FILE), str(path))


def from_json(text: str, source: str = "a tokenizer") -> ReleasedTokenizer:
    """Return the tokenizer of a ``tokenizer.json`` with byte-pair encoding.

    It merges bytes, such as gpt-oss's, or characters with byte fallback, such as Mixtral's.
    """
    content = read_json(text, source)
    added = content.get("added_tokens", [])
    try:
        marked = _mark_special(added, bare=content.get("normalizer") is None)
        if marked != added:
            text = json.dumps(content | {"added_tokens": marked})
        engine = tokenizers.Tokenizer.from_str(text)
        specials = {entry["content"]: entry["id"] for entry in marked if entry["special"]}
        bytes_of = _piece_reader(content)
        begin = tuple(_before(content))
    except BaseException as error:  # the library raises nothing narrower
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise InputError(
            got=f"{source} with a fault: {error}",
            expected="the JSON of a tokenizer",
            fix="Download it again.",
        ) from error
    if bytes_of is None:
        raise _unsupported(source, content)
    # Added tokens are spelt as they are, without the alphabet of bytes. SentencePiece's are not:
    # its runs of spaces are added tokens.
    if content["model"].get("byte_fallback"):
        verbatim = {*specials}
    else:
        verbatim = {entry["content"] for entry in added}
    engine.no_padding()
    engine.no_truncation()

    def piece(token: int) -> bytes | None:
        spelling = engine.id_to_token(token)
        if spelling is None:
            return None
        if spelling in verbatim:
            return spelling.encode()
        return bytes_of(spelling)

    highest = max(engine.get_vocab(with_added_tokens=True).values(), default=-1)
    if highest < 0:
        raise InputError(
            got=f"{source} without tokens",
            expected="a vocabulary",
            fix="Download it again.",
        )
    return released(
        source,
        engine,
        highest + 1,
        specials,
        piece,
        begin,
        end_tokens(specials),
        backtracks=may_backtrack(content),
    )


def _mark_special(added: Sequence[Mapping[str, Any]], *, bare: bool) -> list[dict[str, Any]]:
    """Return the added tokens with all special ones marked, so that their names stay text.

    Args:
        added: Entries of a ``tokenizer.json``; some files do not mark all special tokens.
        bare: The file has no normalizer.
    """
    marked = []
    for entry in added:
        special = entry["special"] or is_special_name(entry["content"])
        changed = {**entry, "special": special}
        # Llama's older files normalise names: they would be found after a space only.
        if bare or special:
            changed["normalized"] = False
        marked.append(changed)
    return marked


def _unsupported(source: str, content: Mapping[str, Any]) -> InputError:
    kind = (content.get("model") or {}).get("type")
    if kind == "BPE":
        fault = f"{source} that merges characters and has no bytes"
    else:
        fault = f"{source} of the kind {kind}"
    return InputError(
        got=fault,
        expected="byte-pair encoding, of bytes or with byte fallback",
        fix="Pass the file of a decoder such as gpt-oss or Mixtral.",
    )


def read_numbers(text: str, vocab_size: int) -> list[int]:
    """Return the numbers below ``vocab_size`` in a text, between spaces."""
    words = text.split()
    for place, word in enumerate(words, start=1):
        is_number = word.isascii() and word.isdecimal() and len(word) <= 12
        if not is_number or int(word) >= vocab_size:
            raise InputError(
                got=f"{word[:40]!r} at place {place}",
                expected=f"whole numbers from 0 to {vocab_size - 1} between spaces",
                fix="Type such numbers.",
            )
    return [int(word) for word in words]


def number_tokenizer(vocab_size: int) -> ReleasedTokenizer:
    """Return the tokenizer of a model of numbers, such as the recurrence's.

    Texts are numbers below ``vocab_size`` between spaces.
    """

    def encode(text: str, *, named: bool = True) -> list[int]:
        return read_numbers(text, vocab_size)

    return ReleasedTokenizer("numbers", vocab_size, {}, encode, lambda token: f" {token}".encode())


def tokenizer_places(directory: Path) -> list[Path]:
    """Return the directories to search for a model's tokenizer.

    These are the model's own directory and, if it is called ``original``, its parent: the hub's
    copies of gpt-oss have OpenAI's layout in a folder of that name, and the tokenizer above it.
    """
    resolved = directory.resolve()
    if resolved.name == "original":
        return [directory, resolved.parent]
    return [directory]


def read_tokenizer_config(directory: Path) -> dict[str, Any]:
    """Return the content of a directory's ``tokenizer_config.json``.

    Older ones have ``special_tokens_map.json`` and ``added_tokens.json`` as well.
    """
    config: dict[str, Any] = {}
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        path = directory / name
        if path.is_file() and "added_tokens_decoder" not in config:
            text = read_bytes(path, LARGEST_FILE, inside=True).decode("utf-8", errors="replace")
            config |= read_json(text, str(path))
    path = directory / "added_tokens.json"
    if path.is_file() and "added_tokens_decoder" not in config:
        tokens = read_json(read_text(path, LARGEST_FILE, inside=True), str(path))
        # No prompt has a token for padding; it was often added for training only.
        config["added_tokens_decoder"] = {
            str(token): name for name, token in tokens.items() if "pad" not in name.lower()
        }
    return config


def named_token(value: Any) -> str | None:
    """Return the name of a token in ``tokenizer_config.json``: a string, or an object's content."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _configured(tokenizer: ReleasedTokenizer, config: Mapping[str, Any]) -> ReleasedTokenizer:
    """Return ``tokenizer`` with the end that ``tokenizer_config.json`` names.

    As in transformers, ``add_bos_token`` has no effect with a ``tokenizer.json``.
    """
    declared_tokens = config.get("added_tokens_decoder")
    if not isinstance(declared_tokens, dict):
        declared_tokens = {}
    for token, described in declared_tokens.items():
        name = named_token(described) or ""
        if name != "" and list(map(str, tokenizer.prompt(name)[-1:])) != [token]:
            raise InputError(
                got=(
                    f"{tokenizer.source} without the token {short(name)} = {short(token)} of "
                    "tokenizer_config.json or added_tokens.json"
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
    """Return the tokenizer in the directories of :func:`tokenizer_places`; None without."""
    for place in tokenizer_places(local_path(directory)):
        if (file := place / TOKENIZER_FILE).is_file():
            require_regular(file, inside=True)
            return _configured(read_tokenizer(file), read_tokenizer_config(place))
    return None


def _piece_reader(content: Mapping[str, Any]) -> Callable[[str], bytes] | None:
    """Return a function from a token's spelling to its bytes; None for an unsupported tokenizer."""
    model = content.get("model") or {}
    # Files of 2020, such as GPT-2's, have no type.
    is_bpe = model["type"] == "BPE" if "type" in model else "merges" in model
    if not is_bpe:
        return None
    decoder = content.get("decoder") or {}
    kinds = {part.get("type") for part in (decoder, *decoder.get("decoders", []))}
    if "ByteLevel" in kinds:
        return piece_reader("ByteLevel")
    if model.get("byte_fallback") and kinds & {"ByteFallback", "Metaspace", "Replace"}:
        return piece_reader("ByteFallback")
    return None


def piece_reader(decoder: Literal["ByteLevel", "ByteFallback"]) -> Callable[[str], bytes]:
    """Return a function from the spelling of a token to its bytes.

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
    """Return the tokenizer of ``engine``, whose added tokens include ``specials``.

    ``backtracks``: its regular expressions may take very long.
    """
    lock = Lock()
    normalizer = engine.normalizer

    def ids(text: str) -> list[int]:
        return list(encoding_of(engine, text, source, backtracks).ids)

    def encode(text: str, mark: str = "", *, named: bool = True) -> list[int]:
        with lock:  # the switches belong to the engine, and servers have threads
            engine.encode_special_tokens = not named
            if not mark:
                return ids(text)
            steps: list[Any] = [normalizers.Replace(mark, "")]
            if normalizer is not None:
                steps.append(normalizer)
            try:
                engine.normalizer = normalizers.Sequence(steps)
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
    """Return whether a token is special by its name.

    The name is one of :data:`END_NAMES`; or the token is ``listed`` and called ``<|NAME|>`` or
    ``<pad>``. Many tokenizers of Llama 2 have ``<pad>``, and the model lacks it.
    """
    if name in END_NAMES:
        return True
    return listed and (name == "<pad>" or _NAME.fullmatch(name) is not None)


def end_tokens(specials: Mapping[str, int], declared: Iterable[int] = ()) -> tuple[int, ...]:
    """Return the tokens that end a text or a turn: ``declared`` ones and :data:`END_NAMES`.

    Negative ids are ignored. In the harmony format ``<|end|>`` ends a message within a turn.
    """
    ends = {*declared, *(specials[name] for name in END_NAMES if name in specials)}
    for names in ({"<|return|>", "<|call|>"}, {"<|calls|>", "<|flush|>"}):
        if names <= specials.keys():
            ends.discard(specials.get("<|end|>", -1))
    return tuple(sorted(end for end in ends if end >= 0))


def byte_alphabet() -> dict[str, bytes]:
    """Return GPT-2's spelling of bytes: printable ones as themselves, others from U+0100 on."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    alphabet = {chr(byte): bytes([byte]) for byte in printable}
    others = [byte for byte in range(256) if byte not in printable]
    for index, byte in enumerate(others):
        alphabet[chr(256 + index)] = bytes([byte])
    return alphabet


def _before(content: Mapping[str, Any]) -> Iterator[int]:
    """Yield the tokens that the file's template puts before a text."""
    processor = content.get("post_processor") or {}
    for part in (processor, *(processor.get("processors") or [])):
        for item in part.get("single") or []:
            if "Sequence" in item:
                return
            yield from part["special_tokens"][item["SpecialToken"]["id"]]["ids"]
