"""Directories of families: their tensors are checked, and read or written when asked for."""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from glassformer.checkpoints.assembly import check_sizes, config_errors, require_no_nan
from glassformer.checkpoints.families import FAMILIES
from glassformer.checkpoints.families.table import Family
from glassformer.checkpoints.families.tensor_names import SHIFTED, Entry, tensors_of_layer
from glassformer.checkpoints.lazy import (
    LazyDecoder,
    LazyTensor,
    Together,
    converted,
    expanded,
    in_memory,
)
from glassformer.checkpoints.tensor_files import (
    CONFIG_FILE,
    FLOATS,
    KINDS,
    FileTensor,
    check_tensors,
)
from glassformer.errors import CheckpointError, InputError
from glassformer.layers.quantized.packed import PACKED, buffer_name
from glassformer.layers.quantized.packed_experts import packed, unpacked
from glassformer.models import Decoder, DecoderConfig

# Masks and frequencies that older versions of transformers saved beside the weights.
_BUFFERS = re.compile(r".*\.(rotary_emb\.inv_freq|attn\.(masked_)?bias|attention\.(masked_)?bias)")
# Prefix of the text model's names in models that also see. The rest begins with "model." or is cut.
_TEXT = re.compile(r"(model\.)?language_model\.")


def decoder_in_memory(decoder: Decoder) -> LazyDecoder:
    """Return the lazy tensors of a decoder that is in memory, with packed weights expanded."""
    config = decoder.config
    expected_layers = [
        (config.layer_window(index), index not in config.unrotated_layers)
        for index in range(config.num_layers)
    ]
    layers = [
        (decoder.layer_window(index), getattr(layer, "rotated", True))
        for index, layer in enumerate(decoder.layers)
    ]
    if layers != expected_layers:
        raise InputError(
            got="a decoder whose layers were moved or deleted",
            expected="the layers of its configuration",
            fix="Load them into a Decoder whose configuration has them.",
        )
    tensors = {name: in_memory(tensor) for name, tensor in decoder.state_dict().items()}
    for module_name, module in decoder.named_modules():
        if not isinstance(module, PACKED):
            continue
        for weight_name, weight in module.packed_weights().items():
            name = f"{module_name}.{weight_name}"
            del tensors[buffer_name(name)]
            tensors[name] = LazyTensor(weight.shape, "F32", torch.float32, weight.dense)
    return LazyDecoder(config, tensors, decoder.dtype, decoder.family)


def open_family(
    family: Family,
    directory: Path,
    content: Mapping[str, Any],
    stored: Mapping[str, FileTensor],
    *,
    allow_nonfinite: bool = False,
) -> LazyDecoder:
    """Return the decoder of a directory; no tensor is read.

    Numbers are in the embedding's dtype. When read, a tensor raises :class:`CheckpointError` for
    weights that are not finite, unless ``allow_nonfinite``, or for an output projection that should
    be the embedding and differs from it.

    Args:
        family: Family of the directory.
        directory: The directory.
        content: Content of its ``config.json``.
        stored: Tensors of its files.
        allow_nonfinite: Allow weights that are infinite or NaN.
    """
    files = named(family, stored)
    config, entries = _checked(family, directory, content, files)
    embedding = f"{family.names['embedding']}.weight"
    output = f"{family.names['output']}.weight"
    dtype = FLOATS[files[embedding].kind]

    def read(name: str) -> Tensor:
        tensor = files[name].read(allow_nonfinite=allow_nonfinite)
        if name == embedding and config.tied_output and output in files:
            _require_same_output(tensor, files[output], embedding)
        if name.endswith("scales") and not tensor.is_floating_point() and not allow_nonfinite:
            require_no_nan(tensor, files[name])
        return tensor

    tensors: dict[str, LazyTensor] = {}
    wide: set[str] = set()
    our_names: dict[str, str] = {}
    if output in files:
        our_names[files[output].name] = "output.weight"
    for entry in entries:
        our_names |= {files[name].name: entry.ours[0] for name in entry.theirs}
        kind = "F32"  # of constants, which are in no file
        if entry.theirs:
            kind = files[entry.theirs[0]].kind
        outputs = Together(partial(entry.read, read))
        for name, shape, form in zip(entry.ours, entry.sizes, entry.parts, strict=True):
            loaded_dtype = torch.uint8 if kind == "U8" else dtype
            if form is SHIFTED:
                wide.add(name)
                loaded_dtype = torch.promote_types(dtype, torch.float32)
            take = partial(outputs.take, name)
            tensors[name] = LazyTensor(list(shape), kind, loaded_dtype, take)
    in_files = [(our_names.get(tensor.name, ""), tensor) for tensor in stored.values()]
    return LazyDecoder(config, tensors, dtype, family.model_type, frozenset(wide), in_files)


def _require_same_output(embedding: Tensor, output: FileTensor, name: str) -> None:
    projection = output.read(allow_nonfinite=True)
    wide = torch.promote_types(projection.dtype, embedding.dtype)
    if not torch.equal(projection.to(wide), embedding.to(wide)):
        raise CheckpointError(
            f"{output.file} with an {output.name} that differs from {name}, and "
            f"tie_word_embeddings = True in {CONFIG_FILE}",
            "one tensor for both",
            "Set tie_word_embeddings to False to keep both.",
        )


def _checked(
    family: Family, directory: Path, content: Mapping[str, Any], stored: Mapping[str, FileTensor]
) -> tuple[DecoderConfig, list[Entry]]:
    """Return the decoder's configuration and entries, checked against the files.

    ``stored`` are the tensors of :func:`named`.
    """
    with config_errors(directory / CONFIG_FILE):
        config = family.read_config(content)
    check_sizes(config, stored, directory, tensors_of_layer(family.names, config))
    with config_errors(directory / CONFIG_FILE):
        if family.packs and any(name.endswith("blocks") for name in stored):
            config = replace(config, expert_format="mxfp4")
        entries = family.entries(config)
        shapes: dict[str, list[int]] = {}
        in_bytes: set[str] = set()
        for entry in entries:
            shapes |= entry.shapes()
            if entry.ours[0].endswith(("_blocks", "_scales")):
                in_bytes |= set(entry.theirs)
    output = f"{family.names['output']}.weight"
    if config.tied_output and output in stored:
        shapes[output] = [config.vocab_size, config.hidden_dim]
    check_tensors(stored, shapes, directory, in_bytes=in_bytes)
    return config, entries


def named(family: Family, stored: Mapping[str, FileTensor]) -> dict[str, FileTensor]:
    """Return tensors by the names of the table, from which some files cut a prefix.

    Masks, frequencies and the tensors for images are left out.
    """
    if family.multimodal and any(map(_TEXT.match, stored)):
        stored = {
            _TEXT.sub("", name): tensor for name, tensor in stored.items() if _TEXT.match(name)
        }
    whole_prefixes = (family.base, f"{family.names['output']}.")
    tensors: dict[str, FileTensor] = {}
    for name, tensor in stored.items():
        whole_name = name
        if not name.startswith(whole_prefixes):
            whole_name = f"{family.base}{name}"
            if whole_name in stored:
                raise CheckpointError(
                    f"{name} twice, also after {family.base}",
                    "unique names",
                    "Download the files again.",
                )
        if not _BUFFERS.fullmatch(whole_name):
            tensors[whole_name] = tensor
    return tensors


def with_experts(stored: LazyDecoder, experts: Literal["dense", "mxfp4"]) -> LazyDecoder:
    """Return a decoder with its experts packed, which rounds, or as numbers in its dtype."""
    if experts == stored.config.expert_format:
        return stored
    config = replace(stored.config, expert_format=experts)
    if experts == "mxfp4":
        convert = packed
    else:
        convert = partial(unpacked, dtype=stored.dtype)
    tensors = dict(stored.tensors)
    for layer in range(config.num_layers):
        start = f"layers.{layer}.ffn."
        for parts in (("gate", "up"), ("down",)):  # one after the other, for less memory
            prefixes = tuple(f"{start}{part}" for part in parts)
            names = [name for name in tensors if name.startswith(prefixes)]
            experts_of_layer = {
                name.removeprefix(start): expanded(tensors.pop(name)) for name in names
            }
            for name, tensor in converted(experts_of_layer, convert).items():
                tensors[f"{start}{name}"] = tensor
    return replace(stored, config=config, tensors=tensors)


def family_for(config: DecoderConfig, loaded: str | None = None) -> Family | None:
    """Return the first family of Hugging Face's that has exactly the parts of a decoder.

    None if no family has. The family whose ``model_type`` is ``loaded`` comes first.
    """
    rows = [family for family in FAMILIES if family.layout == "Hugging Face"]
    for family in sorted(rows, key=lambda family: family.model_type != loaded):
        try:
            family.write_config(config, torch.float32)
            family.entries(config)
        except InputError:
            continue
        return family
    return None


def in_family(family: Family, stored: LazyDecoder) -> tuple[dict[str, Any], dict[str, LazyTensor]]:
    """Return the content of ``config.json`` and the tensors of a family's files.

    The tensors are computed when they are written.

    Raises:
        InputError: Names every part of the decoder that the family lacks.
    """
    content = family.write_config(stored.config, stored.dtype)
    tensors: dict[str, LazyTensor] = {}
    for entry in family.entries(stored.config):
        tensors |= _written_entry(entry, stored)
    return content, tensors


def _written_entry(entry: Entry, stored: LazyDecoder) -> dict[str, LazyTensor]:
    """Return the tensors of a file for an entry."""
    is_bytes = stored.tensors[entry.ours[0]].kind == "U8"
    dtype = torch.uint8 if is_bytes else stored.dtype

    def write() -> dict[int, Tensor]:
        state = {name: stored.tensors[name].read() for name in entry.ours}
        return dict(enumerate(entry.write(state)))

    if not entry.theirs:
        write()  # refuses values that the file cannot hold
    outputs = Together(write)

    def take(index: int) -> Tensor:
        return outputs.take(index).to(dtype)

    return {
        name: LazyTensor(shape, KINDS[dtype], dtype, partial(take, index))
        for index, (name, shape) in enumerate(entry.shapes().items())
    }
