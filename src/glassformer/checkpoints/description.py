"""The description of a directory of weights, from its configuration and the headers of its files: no tensor is read."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from glassformer.checkpoints import bert, decoders
from glassformer.checkpoints.assembly import config_errors, convertible, empty_decoder
from glassformer.checkpoints.families import family_in, files
from glassformer.checkpoints.families.gguf_metadata import gguf_entries
from glassformer.checkpoints.gguf import gguf_config, has_packed_experts, stored_dtype
from glassformer.checkpoints.gguf_file import GgufFile
from glassformer.checkpoints.tensor_files import CONFIG_FILE, StoredTensor, read_json, stored_tensors
from glassformer.files import local_path
from glassformer.kernels.blocks import KINDS
from glassformer.layers.quantized import DenseFormat, int8, lossless, mxfp4
from glassformer.models import DecoderConfig
from glassformer.models.encoder import EncoderConfig

SIXTEENTHS: dict[DenseFormat | None, int] = {None: 32, "lossless": 24, "int8": 17}
"""Sixteenths of a byte for each weight: of bfloat16 and of the formats that replace it."""

Part = Literal["experts", "feed-forward", "attention", "router", "norms", "embedding", "output", "others"]
"""The part of a model that a tensor belongs to."""

# A tensor belongs to the first part with a word in its name, which is ours or of the BERT family.
_WORDS: dict[Part, tuple[str, ...]] = {
    "norms": ("norm",),
    "router": ("router",),
    "attention": ("attention",),
    "others": ("pooler.", "cls.", "classifier.", "position_ids"),
    "output": ("lm_head.",),
    "embedding": ("embed", "positions.", "token_types."),
    "feed-forward": ("ffn.", "intermediate.", "output.dense"),
}
# BERT's numbers of positions; masks and frequencies of decoders are named so, too.
_NO_WEIGHT = "position_ids"


@dataclass(frozen=True)
class Description:
    """The model in a directory."""

    family: str
    """"Llama" or another of the table's, "gpt-oss", "Mixtral", "BERT" or "glassformer"."""
    layout: str
    """"Hugging Face", "OpenAI", "GGUF" or "glassformer"."""
    config: DecoderConfig | EncoderConfig
    parameters: dict[Part, int]
    """Parameters of each part; those in MXFP4 count as expanded."""
    stored_bytes: dict[Part, int]
    """Size of each part on the disk."""
    num_files: int
    kinds: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """How many tensors of each kind there are, and their bytes."""
    held: int | None = None
    """Of a GGUF file, bytes of the loaded weights as they are in the file."""

    @property
    def total(self) -> int:
        """Parameters."""
        return sum(self.parameters.values())

    @property
    def active(self) -> int:
        """Parameters used per token: all but the experts that are not chosen, and the embedding unless it is also the
        output projection."""
        config, parts = self.config, self.parameters
        idle = 0 if isinstance(config, DecoderConfig) and config.tied_output else parts.get("embedding", 0)
        if isinstance(config, DecoderConfig) and config.num_experts is not None:
            idle += parts.get("experts", 0) * (config.num_experts - config.top_k) // config.num_experts
        return self.total - idle

    @property
    def experts(self) -> Literal["mxfp4", "dense"] | None:
        """The format of the experts; None without experts."""
        if not isinstance(self.config, DecoderConfig) or self.config.num_experts is None:
            return None
        return self.config.expert_format

    def memory(self, number_bytes: int, *, packed: bool = False, dense: DenseFormat | None = None) -> int | None:
        """Bytes of the loaded weights, with ``number_bytes`` (2 in bfloat16) each but for experts ``packed`` in MXFP4.

        Linear layers (:func:`~glassformer.checkpoints.assembly.convertible`) take 8.5 bits a weight with
        ``dense="int8"``, about 12 with ``"lossless"``. None if experts are to be packed and cannot be, or the model has
        none, or with ``dense`` for widths that the format does not have, or ``"lossless"`` and attention that is not
        stored in bfloat16.
        """
        config, total = self.config, number_bytes * self.total
        if isinstance(config, DecoderConfig) and dense:
            sixteen_bits = self.stored_bytes["attention"] == 2 * self.parameters["attention"]
            if dense == "lossless" and ("F16" in self.kinds or not sixteen_bits):
                return None
            layers = convertible(empty_decoder(replace(config, expert_format="dense")))
            group = int8.BLOCK if dense == "int8" else lossless.MULTIPLE
            if any(layer.in_features % group for layer in layers.values()):
                return None
            converted = sum(layer.weight.numel() for layer in layers.values())
            total += converted * SIXTEENTHS[dense] // 16 - number_bytes * converted
        if not packed:
            return total
        if not isinstance(config, DecoderConfig) or config.num_experts is None:
            return None
        if config.hidden_dim % mxfp4.GROUP or config.ff_dim % mxfp4.GROUP:
            return None
        weights = 3 * config.num_layers * config.num_experts * config.hidden_dim * config.ff_dim
        return total - number_bytes * weights + weights * (mxfp4.GROUP_BYTES + 1) // mxfp4.GROUP

    def cache(self, tokens: int) -> int:
        """Bytes of the keys and values of a text of this many tokens in 16 bits; 0 for an encoder."""
        config = self.config
        if isinstance(config, EncoderConfig):
            return 0
        seen = sum(min(tokens, config.layer_window(layer) or tokens) for layer in range(config.num_layers))
        return 4 * seen * (config.num_kv_heads or config.num_heads) * config.head_dim


def describe(directory: Path | str, stored: Mapping[str, StoredTensor] | None = None) -> Description:
    """Describe ``directory``: every family, gpt-oss in two layouts, Mixtral, BERT's, or what glassformer wrote.

    ``stored`` are the tensors of its files; None: their headers are read.
    """
    directory = local_path(directory)
    directory, content = decoders.within_run(directory, read_json(directory / CONFIG_FILE))
    stored = stored_tensors(directory) if stored is None else stored
    family, layout, config = _read_config(directory, content, stored)
    row = family_in(content)
    names = dict(zip(stored, stored, strict=True))
    if row is not None and isinstance(config, DecoderConfig):
        ours = {name: entry.ours[0] for entry in row.entries(config) for name in entry.theirs}
        ours[f"{row.names['output']}.weight"] = "output.weight"
        names = {tensor.name: ours[name] for name, tensor in files.named(row, stored).items()}
    return _described(family, layout, config, [(names.get(name, _NO_WEIGHT), each) for name, each in stored.items()])


def describe_gguf(file: GgufFile) -> Description:
    """Describe a GGUF file; no tensor is read."""
    family, config = gguf_config(file)
    entries = gguf_entries(family, config, file.tensors)
    packed = has_packed_experts({name: file.tensors[each.theirs[0]].kind for each in entries for name in each.ours})
    config = replace(config, expert_format="mxfp4") if packed else config
    named = [(entry.ours[0], file.tensors[name]) for entry in entries for name in entry.theirs]
    held = 0
    for _, tensor in named:
        # Layers hold matrices in blocks; experts but those packed in MXFP4, and other numbers, are expanded.
        kept = tensor.kind in KINDS and (packed or len(tensor.shape) == 2)
        wide = stored_dtype(file, config, tensor.name).itemsize
        held += tensor.nbytes if kept else wide * math.prod(tensor.shape)
    return replace(_described(family.name, "GGUF", config, named), num_files=len(file.pieces), held=held)


def _described(
    family: str,
    layout: str,
    config: DecoderConfig | EncoderConfig,
    stored: Collection[tuple[str, StoredTensor]],
) -> Description:
    parts, sizes = Counter[Part](), Counter[Part]()
    for name, tensor in stored:
        part, count = _part(name, config), math.prod(tensor.shape)
        sizes[part] += tensor.nbytes
        if tensor.kind == "U8":  # two codes in each byte; exponents are no weights of their own
            count = 2 * count if name.endswith("blocks") else 0
        tied = part == "output" and isinstance(config, DecoderConfig) and config.tied_output
        parts[part] += 0 if tied or name.endswith(_NO_WEIGHT) else count
    kinds = _kinds(tensor for _, tensor in stored)
    return Description(family, layout, config, parts, sizes, len({tensor.file for _, tensor in stored}), kinds)


def _kinds(stored: Iterable[StoredTensor]) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for tensor in stored:
        number, nbytes = found.get(tensor.kind, (0, 0))
        found[tensor.kind] = number + 1, nbytes + tensor.nbytes
    return found


def _read_config(
    directory: Path, content: Mapping[str, Any], stored: Mapping[str, StoredTensor]
) -> tuple[str, str, DecoderConfig | EncoderConfig]:
    """Family, layout, and the configuration, checked against the files."""
    kind = content.get("model_type")
    if kind in (bert.OWN, *bert.FAMILY):
        with config_errors(directory / CONFIG_FILE):
            encoder = bert.read_encoder_config(content)
        return ("glassformer", "glassformer", encoder) if kind == bert.OWN else ("BERT", "Hugging Face", encoder)
    family = decoders.require_kind(content, directory)
    if family is not None:
        return family.name, family.layout, files.checked_config(family, directory, content, stored)
    config = decoders.read_decoder_config(directory, content)
    decoders.own_tensors(config, stored, directory)
    return "glassformer", "glassformer", config


def _part(name: str, config: DecoderConfig | EncoderConfig) -> Part:
    if name == "output.weight":
        return "output"
    lower = name.lower()
    part: Part = next((part for part, words in _WORDS.items() if any(word in lower for word in words)), "others")
    mixture = isinstance(config, DecoderConfig) and config.num_experts is not None
    return "experts" if part == "feed-forward" and mixture else part
