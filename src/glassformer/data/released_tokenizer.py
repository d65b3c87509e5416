"""Tokenizers of released decoders: text to tokens and, token by token, back to text.

They work on bytes: every text can be encoded, and a token may be part of a character. The engines are ``tokenizers``
for a ``tokenizer.json`` and ``tiktoken`` for a ``.tiktoken`` file. A model's tokenizer is in the directory of its
weights, on the hub, or in an installed package.
"""

from __future__ import annotations

import base64
import codecs
import importlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers

from glassformer.data.tokenizer import read_json, require_text, whole_text
from glassformer.errors import InputError, first_line, require
from glassformer.files import lies_inside

HARMONY_SPECIALS = {
    "<|startoftext|>": 199998,
    "<|endoftext|>": 199999,
    "<|return|>": 200002,
    "<|constrain|>": 200003,
    "<|channel|>": 200005,
    "<|start|>": 200006,
    "<|end|>": 200007,
    "<|message|>": 200008,
    "<|call|>": 200012,
    "<|endofprompt|>": 200018,
}
"""The named special tokens of o200k_harmony, gpt-oss's tokenizer. Other ids from 200,000 on are reserved."""

# How o200k splits a text into the parts within which bytes are merged.
_WORD = r"[^\r\n\p{L}\p{N}]?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
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

TOKENIZER_FILES = ("tokenizer.json", "o200k_base.tiktoken")
"""Names of a tokenizer's file, the preferred one first."""
ENCODINGS_VARIABLE = "TIKTOKEN_ENCODINGS_BASE"
"""The environment variable with the directory of openai-harmony's vocabulary."""
_WAYS = (
    "a directory or file with tokenizer.json or o200k_base.tiktoken, or the name of a model on the hub such as "
    "openai/gpt-oss-20b"
)
_NAME = re.compile(r"<\|\w+\|>")
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


@dataclass(frozen=True)
class ReleasedTokenizer:
    """A tokenizer that came with a model.

    Args:
        source: Its origin, for messages.
        vocab_size: One more than its highest id. A model's may be larger.
        specials: Ids of the special tokens by name; no text encodes to them.
        ordinary: Encodes a text.
        piece: The bytes of an id; None for an unused one.
        begin: Tokens that the model expects before every text, such as Mixtral's ``<s>``.
    """

    source: str
    vocab_size: int
    specials: Mapping[str, int]
    ordinary: Callable[[str], list[int]] = field(repr=False)
    piece: Callable[[int], bytes | None] = field(repr=False)
    begin: tuple[int, ...] = ()

    def encode(self, text: str) -> list[int]:
        """The tokens of ``text``, without ``begin``. A special token's name in it is ordinary text.

        An unpaired surrogate is read as U+FFFD, the replacement character.

        Raises:
            InputError: A ``text`` that is not a string.
        """
        require_text(text)
        return self.ordinary(whole_text(text))

    def special(self, name: str) -> int:
        """The id of a special token.

        Raises:
            InputError: There is none of this name.
        """
        require(
            name in self.specials,
            f"{self.source} without {name}",
            f"a tokenizer with {name}",
            "Use the tokenizer that came with the model.",
        )
        return self.specials[name]

    def token_bytes(self, token: int) -> bytes:
        """The bytes of ``token``: part of a text, or a special token's name.

        Unused ids, which a model has if its vocabulary is rounded up, are named ``<|reserved_ID|>``.

        Raises:
            InputError: A negative id.
        """
        require(token >= 0, f"the token {token}", "an id of at least 0", "Decode what the model generated.")
        found = self.piece(token)
        return f"<|reserved_{token}|>".encode() if found is None else found

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of ``tokens``, special ones by name; bytes that are not UTF-8 become U+FFFD."""
        return "".join(self.stream(tokens))

    def stream(self, tokens: Iterable[int]) -> Iterator[str]:
        """The text of ``tokens``, piece by piece: each character as soon as it is complete."""
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        yield from (decoder.decode(self.token_bytes(token)) for token in tokens)
        yield decoder.decode(b"", final=True)

    def require_fits(self, vocab_size: int) -> None:
        """Raise :class:`~glassformer.errors.InputError` unless a model of this ``vocab_size`` has every token."""
        require(
            self.vocab_size <= vocab_size,
            f"{self.source} with {self.vocab_size} tokens for a model of vocab_size = {vocab_size}",
            "a tokenizer with no more tokens than the model",
            "Use the tokenizer that came with the model.",
        )


def read_tokenizer(path: Path | str) -> ReleasedTokenizer:
    """The tokenizer in a file: a ``tokenizer.json``, or ``o200k_base.tiktoken`` for o200k_harmony.

    Raises:
        InputError: A file that is missing, damaged, of another kind or larger than :data:`LARGEST_FILE`, or a package
            that is not installed.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise InputError(
            f"{path}, which cannot be read: {error}", "the file of a tokenizer", "Check the path."
        ) from error
    require(
        len(content) <= LARGEST_FILE,
        f"{path} of more than {LARGEST_FILE} bytes",
        "the file of a tokenizer",
        "Use the one that came with the model.",
    )
    if path.suffix == ".tiktoken":
        ranks = _ranks(content, path)
        # The special tokens are not in the file: they belong to this vocabulary alone.
        require(
            set(ranks.values()) == set(range(min(HARMONY_SPECIALS.values()))),
            f"{path} with {len(ranks)} tokens",
            f"o200k_base's {min(HARMONY_SPECIALS.values())}",
            "Download o200k_base.tiktoken, or pass a tokenizer.json.",
        )
        return from_ranks(ranks, HARMONY_SPECIALS, source=str(path))
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}, which is not UTF-8: {error}", "a tokenizer.json", "Download it again.") from error
    return from_json(text, str(path))


def from_json(text: str, source: str = "a tokenizer") -> ReleasedTokenizer:
    """The tokenizer of a ``tokenizer.json`` with byte-pair encoding: of bytes, as gpt-oss's, or of characters with byte
    fallback, as Mixtral's.

    Raises:
        InputError: Text that is not JSON, is faulty, or describes another kind of tokenizer.
    """
    content = read_json(text, source)
    added = content.get("added_tokens", [])
    try:
        # The names of marked tokens are ordinary text in a text. Some files do not mark all special tokens.
        marked = [each | {"special": each["special"] or bool(_NAME.fullmatch(each["content"]))} for each in added]
        engine = tokenizers.Tokenizer.from_str(
            text if marked == added else json.dumps(content | {"added_tokens": marked})
        )
        names = {each["content"]: each["id"] for each in marked if each["special"]}
        read = _piece_reader(content)
    except Exception as error:  # the library raises nothing narrower
        raise InputError(f"{source} with a fault: {error}", "the JSON of a tokenizer", "Download it again.") from error
    if read is None:
        raise InputError(
            f"{source} of the kind {_kind(content)}",
            "byte-pair encoding, of bytes or with byte fallback",
            "Pass the file of a decoder such as gpt-oss or Mixtral.",
        )
    added_texts = {each["content"] for each in added}
    engine.no_padding()
    engine.no_truncation()
    engine.encode_special_tokens = True

    def piece(token: int) -> bytes | None:
        found = engine.id_to_token(token)
        return None if found is None else found.encode() if found in added_texts else read(found)

    highest = max(engine.get_vocab(with_added_tokens=True).values(), default=-1)
    require(highest >= 0, f"{source} without tokens", "a vocabulary", "Download it again.")
    return ReleasedTokenizer(
        source,
        highest + 1,
        names,
        lambda text: list(engine.encode(text, add_special_tokens=False).ids),
        piece,
        tuple(_before(content, names)),
    )


def from_ranks(
    ranks: Mapping[bytes, int], specials: Mapping[str, int], *, source: str = "a tokenizer"
) -> ReleasedTokenizer:
    """The tokenizer that merges bytes in the order of ``ranks``, their ids, within matches of :data:`O200K_PATTERN`.

    Raises:
        InputError: Repeated ids, or bytes without one; or the package ``tiktoken`` is not installed.
    """
    try:
        tiktoken = importlib.import_module("tiktoken")
    except ImportError as error:
        raise InputError(
            f"{source} without the package tiktoken",
            "tiktoken, or a tokenizer.json",
            "pip install 'glassformer[harmony]'",
        ) from error
    names = dict(specials)
    by_id = {token: piece for piece, token in ranks.items()} | {token: name.encode() for name, token in names.items()}
    require(
        len(by_id) == len(ranks) + len(names) and all(bytes([each]) in ranks for each in range(256)),
        f"{source} with repeated ids, or without each of the 256 bytes",
        "different ids for all sequences, including the single bytes",
        "Download it again.",
    )
    engine = tiktoken.Encoding("harmony", pat_str=O200K_PATTERN, mergeable_ranks=dict(ranks), special_tokens=names)
    return ReleasedTokenizer(source, max(by_id) + 1, names, engine.encode_ordinary, by_id.get)


def tokenizer_places(directory: Path) -> list[Path]:
    """The directories to search for a model's tokenizer: its own, and for one named ``original`` also its parent.

    The hub's copies of gpt-oss have OpenAI's layout in a folder of that name and the tokenizer above it.
    """
    resolved = directory.resolve()
    return [directory, resolved.parent] if resolved.name == "original" else [directory]


def tokenizer_beside(directory: Path) -> ReleasedTokenizer | None:
    """The tokenizer in the directories of :func:`tokenizer_places`; None if there is none.

    Raises:
        InputError: A damaged file, or a link out of the directory (but for those of the hub's cache).
    """
    for place in tokenizer_places(directory):
        for name in TOKENIZER_FILES:
            file = place / name
            if file.is_file():
                require(
                    lies_inside(file),
                    f"{file}, a link to {file.resolve()}",
                    "files in the directory itself",
                    "Pass the tokenizer's file if you trust it, or copy it into the directory.",
                )
                return read_tokenizer(file)
    return None


def named_tokenizer(name: str) -> ReleasedTokenizer:
    """The tokenizer that a user names: a file, a directory with one, or a model on the hub.

    Raises:
        InputError: None of these, a damaged file, or no connection.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        found = tokenizer_beside(path)
        if found is None:
            files = " or ".join(TOKENIZER_FILES)
            raise InputError(f"{path} without a tokenizer", files, "Pass the tokenizer's file.")
        return found
    if path.exists() or path.suffix in (".json", ".tiktoken"):
        return read_tokenizer(path)
    require(re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name) is not None, f"the tokenizer {name!r}", _WAYS, "Check the name.")
    from huggingface_hub import hf_hub_download  # takes a third of a second to import, and is rarely needed

    try:
        return read_tokenizer(hf_hub_download(name, TOKENIZER_FILES[0]))
    except (OSError, ValueError) as error:  # the hub's own errors are kinds of these
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"the tokenizer {name!r}, which is not a file and could not be loaded from the hub ({first_line(error)})",
            _WAYS,
            "Check the name and the connection, or download the file and pass its path.",
        ) from error


def installed_tokenizer() -> ReleasedTokenizer | None:
    """o200k_harmony, gpt-oss's tokenizer; None if this machine does not have it.

    It is loaded from the directory in ``TIKTOKEN_ENCODINGS_BASE``, or else by tiktoken: from its cache, or with a
    download of 3.6 MB.

    Raises:
        InputError: A damaged file.
    """
    folder = os.environ.get(ENCODINGS_VARIABLE)
    if folder and (path := Path(folder) / TOKENIZER_FILES[1]).is_file():
        return read_tokenizer(path)
    try:
        engine = importlib.import_module("tiktoken").get_encoding("o200k_base")
    except Exception:  # no package, or no connection in any of its forms
        return None
    ranks = {engine.decode_single_token_bytes(token): token for token in range(min(HARMONY_SPECIALS.values()))}
    return from_ranks(ranks, HARMONY_SPECIALS, source="tiktoken's o200k_harmony")


def _ranks(content: bytes, path: Path) -> dict[bytes, int]:
    """A ``.tiktoken`` file: on each line a sequence of bytes in base64 and its rank."""
    ranks = {}
    for number, line in enumerate(content.splitlines(), 1):
        if not line:
            continue
        try:
            piece, rank = line.split()
            ranks[base64.b64decode(piece, validate=True)] = int(rank)
        except ValueError as error:  # binascii's is one
            raise InputError(
                f"line {number} of {path}: {line[:40]!r}", "bytes in base64 and a rank", "Download it again."
            ) from error
    return ranks


def _kind(content: Mapping[str, Any]) -> str:
    return str((content.get("model") or {}).get("type"))


def _piece_reader(content: Mapping[str, Any]) -> Callable[[str], bytes] | None:
    """A function from a token's spelling in the file to its bytes; None for an unsupported kind of tokenizer."""
    if _kind(content) != "BPE":
        return None
    decoder = content.get("decoder") or {}
    decoders = {each.get("type") for each in (decoder, *decoder.get("decoders", []))}
    if "ByteLevel" in decoders:
        alphabet = _alphabet()
        return lambda piece: b"".join(alphabet.get(sign, sign.encode()) for sign in piece)
    if content["model"].get("byte_fallback") and decoders & {"ByteFallback", "Metaspace", "Replace"}:

        def read(piece: str) -> bytes:
            byte = _BYTE.fullmatch(piece)
            return bytes([int(byte[1], 16)]) if byte else piece.replace(_SPACE, " ").encode()

        return read
    return None


def _alphabet() -> dict[str, bytes]:
    """GPT-2's spelling of bytes: printable ones as themselves, the others as characters from U+0100 on."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): bytes([byte]) for byte in shown} | {
        chr(256 + index): bytes([byte]) for index, byte in enumerate(others)
    }


def _before(content: Mapping[str, Any], names: Mapping[str, int]) -> Iterator[int]:
    """The special tokens that the file's template puts before a text."""
    processor = content.get("post_processor") or {}
    for part in (processor, *(processor.get("processors") or [])):
        for each in part.get("single") or []:
            if "Sequence" in each:
                return
            yield names[each["SpecialToken"]["id"]]
