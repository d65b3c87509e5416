"""The description of a model in files, from its configuration and the headers of its files."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from glassformer.checkpoints import bert
from glassformer.checkpoints.assembly import (
    config_errors,
    convertible,
    empty_decoder,
    hold_packed,
    stored_kinds,
)
from glassformer.checkpoints.hub import directory_tensors
from glassformer.checkpoints.lazy import LazyDecoder
from glassformer.checkpoints.store import ModelDirectory, find_model
from glassformer.checkpoints.tensor_files import CONFIG_FILE, FileTensor, read_json
from glassformer.kernels.packed import KINDS
from glassformer.layers.quantized import Pack, mxfp4
from glassformer.models import DecoderConfig
from glassformer.models.encoder import EncoderConfig

Part = Literal[
    "experts", "feed-forward", "attention", "router", "norms", "embedding", "output", "others"
]
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
# BERT's numbers of positions.
_POSITION_IDS = "position_ids"


@dataclass(frozen=True)
class Description:
    """The model in a directory or a file."""

    path: Path
    """Its directory, or its first file."""
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
    """Number of tensors of each kind, and their bytes."""
    held: int | None = None
    """Bytes of a GGUF file's weights once they are loaded as in the file; None for directories."""

    @property
    def total(self) -> int:
        """Parameters."""
        return sum(self.parameters.values())

    @property
    def active(self) -> int:
        """Parameters used per token.

        These are all but the experts that are not chosen, and the embedding unless it is also the
        output projection.
        """
        config = self.config
        idle = self.parameters.get("embedding", 0)
        if isinstance(config, DecoderConfig):
            if config.tied_output:
                idle = 0
            if config.num_experts is not None:
                idle_experts = config.num_experts - config.top_k
                idle += self.parameters.get("experts", 0) * idle_experts // config.num_experts
        return self.total - idle

    @property
    def experts(self) -> Literal["mxfp4", "dense"] | None:
        """Format of the experts; None without experts."""
        if not isinstance(self.config, DecoderConfig) or self.config.num_experts is None:
            return None
        return self.config.expert_format

    def memory(
        self, number_bytes: int, *, packed: bool = False, pack: Pack | None = None
    ) -> int | None:
        """Return the bytes of the loaded weights.

        Args:
            number_bytes: Bytes of a number: 2 in bfloat16.
            packed: Experts are packed in MXFP4.
            pack: Kind in which :func:`~glassformer.checkpoints.assembly.convertible` layers are
                packed.

        Returns:
            None if experts are to be packed and cannot be, or the model has none; or if layers have
            widths that blocks of ``pack`` do not fill.
        """
        config = self.config
        total = number_bytes * self.total
        if isinstance(config, DecoderConfig) and pack is not None:
            kind = KINDS[pack]
            layers = convertible(empty_decoder(replace(config, expert_format="dense"))).values()
            if any(layer.in_features % kind.block for layer in layers):
                return None
            weights = sum(layer.weight.numel() for layer in layers)
            total += kind.row_bytes(weights) - number_bytes * weights
        if not packed:
            return total
        if not isinstance(config, DecoderConfig) or config.num_experts is None:
            return None
        if config.hidden_dim % mxfp4.GROUP or config.ff_dim % mxfp4.GROUP:
            return None
        weights = 3 * config.num_layers * config.num_experts * config.hidden_dim * config.ff_dim
        return total - number_bytes * weights + weights * (mxfp4.GROUP_BYTES + 1) // mxfp4.GROUP

    def cache(self, tokens: int) -> int:
        """Return the bytes of keys and values of ``tokens`` tokens in 16 bits; 0 for an encoder."""
        config = self.config
        if isinstance(config, EncoderConfig):
            return 0
        seen = sum(
            min(tokens, config.layer_window(layer) or tokens) for layer in range(config.num_layers)
        )
        return 4 * seen * (config.num_kv_heads or config.num_heads) * config.head_dim


def describe(source: Path | str, *, download: bool = True) -> Description:
    """Describe a model in files, or an encoder's directory; no tensor is read.

    Args:
        source: Source of :func:`~glassformer.checkpoints.store.open_model`.
        download: Download the weights of a directory on the hub; else, read their headers there.
    """
    model = find_model(source, download=download)
    if isinstance(model, ModelDirectory) and not (model.path / "trainings").is_dir():
        content = read_json(model.path / CONFIG_FILE)
        if content.get("model_type") in (bert.OWN, *bert.FAMILY):
            return _describe_encoder(model, content)
    stored = model.open()
    if stored.family is None:
        family = "glassformer"
    else:
        family = stored.family.name
    description = _described(
        stored.path, family, stored.layout, stored.config, stored.decoder.files
    )
    if stored.layout != "GGUF":
        return description
    return replace(description, held=_held(stored.decoder))


def _describe_encoder(model: ModelDirectory, content: Mapping[str, Any]) -> Description:
    with config_errors(model.path / CONFIG_FILE):
        config = bert.read_encoder_config(content)
    files = directory_tensors(model.path, model.repository)
    family = "BERT"
    layout = "Hugging Face"
    if content["model_type"] == bert.OWN:
        family = "glassformer"
        layout = "glassformer"
    return _described(model.path, family, layout, config, list(files.items()))


def _held(stored: LazyDecoder) -> int:
    """Return the bytes of a GGUF file's weights once they are loaded."""
    decoder = empty_decoder(stored.config, stored.dtype)
    held = hold_packed(decoder, stored_kinds(stored))
    nbytes = 0
    for name, tensor in stored.tensors.items():
        if name in held or tensor.kind == "U8":
            nbytes += tensor.nbytes
        else:
            nbytes += tensor.dtype.itemsize * math.prod(tensor.shape)
    return nbytes


def _described(
    path: Path,
    family: str,
    layout: str,
    config: DecoderConfig | EncoderConfig,
    files: Collection[tuple[str, FileTensor]],
) -> Description:
    parameters = Counter[Part]()
    sizes = Counter[Part]()
    for name, tensor in files:
        part = _part(name, config)
        sizes[part] += tensor.nbytes
        count = 0
        if _is_weight(name, part, config):
            count = _count(name, tensor)
        parameters[part] += count  # a part without weights is listed, too
    num_files = len({tensor.source for _, tensor in files})
    return Description(
        path,
        family,
        layout,
        config,
        parameters,
        sizes,
        num_files,
        _kinds(tensor for _, tensor in files),
    )


def _is_weight(name: str, part: Part, config: DecoderConfig | EncoderConfig) -> bool:
    """Return whether a tensor holds weights of its own.

    Masks, position numbers and a copy of the embedding do not.
    """
    if name == "" or name.endswith(_POSITION_IDS):
        return False
    return not (part == "output" and isinstance(config, DecoderConfig) and config.tied_output)


def _count(name: str, tensor: FileTensor) -> int:
    """Return the number of weights in a tensor."""
    count = math.prod(tensor.shape)
    if tensor.kind != "U8":
        return count
    if name.endswith("blocks"):
        return 2 * count  # two codes in each byte
    return 0  # exponents are no weights of their own


def _kinds(stored: Iterable[FileTensor]) -> dict[str, tuple[int, int]]:
    kinds: dict[str, tuple[int, int]] = {}
    for tensor in stored:
        count, nbytes = kinds.get(tensor.kind, (0, 0))
        kinds[tensor.kind] = (count + 1, nbytes + tensor.nbytes)
    return kinds


def _part(name: str, config: DecoderConfig | EncoderConfig) -> Part:
    if name == "output.weight":
        return "output"
    lower = name.lower()
    has_experts = isinstance(config, DecoderConfig) and config.num_experts is not None
    for part, words in _WORDS.items():
        if any(word in lower for word in words):
            return "experts" if has_experts and part == "feed-forward" else part
    return "others"
