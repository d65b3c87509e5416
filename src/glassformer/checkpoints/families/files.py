"""A family's directories: all tensors are checked, each is read when it is asked for, and written in its names."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from glassformer.checkpoints.assembly import StoredDecoder, check_sizes, config_errors, require_no_nan
from glassformer.checkpoints.families import FAMILIES
from glassformer.checkpoints.families.table import Family
from glassformer.checkpoints.families.tensor_names import SHIFTED, Entry, tensors_of_layer
from glassformer.checkpoints.shards import Planned, plan
from glassformer.checkpoints.tensor_files import (
    CONFIG_FILE,
    FLOATS,
    StoredTensor,
    Wanted,
    check_tensors,
    open_tensors,
    stored_tensors,
)
from glassformer.errors import CheckpointError, InputError, require
from glassformer.layers.quantized.block_layers import BlockEmbedding, BlockLinear
from glassformer.layers.quantized.packed_experts import packed, unpacked
from glassformer.models import Decoder, DecoderConfig

# Masks and frequencies that older versions of transformers saved beside the weights.
_BUFFERS = re.compile(r".*\.(rotary_emb\.inv_freq|attn\.(masked_)?bias|attention\.(masked_)?bias)")
# Before the names of text in models that also see; what is left begins with "model." or is cut.
_TEXT = re.compile(r"(model\.)?language_model\.")


def decoder_in_memory(decoder: Decoder) -> StoredDecoder:
    """The same, of a decoder."""
    config = decoder.config
    said = [(config.layer_window(n), n not in config.unrotated_layers) for n in range(config.num_layers)]
    there = [(decoder.layer_window(n), getattr(each, "rotated", True)) for n, each in enumerate(decoder.layers)]
    got, fix = "a decoder whose layers were moved or deleted", "Load them into a Decoder whose configuration has them."
    require(there == said, got, "the layers of its configuration", fix)
    state = {name: plan(tensor) for name, tensor in decoder.state_dict().items()}
    for name, module in decoder.named_modules():
        if isinstance(module, BlockLinear):
            size = [module.out_features, module.in_features]
        elif isinstance(module, BlockEmbedding):
            size = [module.num_embeddings, module.embedding_dim]
        else:
            continue
        del state[f"{name}.blocks"]
        state[f"{name}.weight"] = Planned(size, torch.float32, partial(getattr, module, "weight"))
    return StoredDecoder(config, state, decoder.dtype, decoder.dtype, decoder.family)


@contextmanager
def open_family(
    family: Family,
    directory: Path,
    content: Mapping[str, Any],
    dtype: torch.dtype | None,
    device: torch.device,
) -> Iterator[StoredDecoder]:
    """The decoder of a directory with this content of ``config.json``; its tensors are read within the context.

    ``dtype`` None is the embedding's. When read, a tensor raises :class:`CheckpointError` for weights that are not
    finite, or for an output projection that should be the embedding and differs from it.
    """
    stored = named(family, stored_tensors(directory))
    config = checked_config(family, directory, content, stored)
    embedding, output = (f"{family.names[name]}.weight" for name in ("embedding", "output"))
    file_dtype = FLOATS[stored[embedding].kind]
    kind = dtype or file_dtype
    with open_tensors(stored) as read:

        def get(name: str) -> Tensor:
            tensor = read(name)
            if name == embedding and config.tied_output and output in stored and not torch.equal(read(output), tensor):
                raise CheckpointError(
                    f"{stored[output].file} with an {output} that differs from {embedding}, and tie_word_embeddings = "
                    f"True in {CONFIG_FILE}",
                    "one tensor for both",
                    "Set tie_word_embeddings to False to keep both.",
                )
            if tensor.is_floating_point():
                return tensor.to(device, kind)
            if name.endswith("scales"):
                require_no_nan(tensor, stored[name])
            return tensor.to(device)

        state: dict[str, Planned] = {}
        for entry in family.entries(config):
            pieces = _Pieces(partial(_read, entry, get, kind, device))
            for name, size, form in zip(entry.ours, entry.sizes, entry.parts, strict=True):
                made = torch.promote_types(kind, torch.float32) if form is SHIFTED else kind
                made = torch.uint8 if name.endswith(("_blocks", "_scales")) else made
                state[name] = Planned(list(size), made, partial(pieces.take, name))
        yield StoredDecoder(config, state, kind, file_dtype, family.model_type)


def _read(entry: Entry, get: Callable[[str], Tensor], dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    read = entry.read(get)
    return read if entry.theirs else {name: tensor.to(device, dtype) for name, tensor in read.items()}


@dataclass
class _Pieces:
    """Tensors that are made together; each is kept until it is taken."""

    make: Callable[[], dict[Any, Tensor]]
    found: dict[Any, Tensor] = field(default_factory=dict)

    def take(self, name: Any) -> Tensor:
        if name not in self.found:
            self.found = dict(self.make())
        return self.found.pop(name)


def checked_config(
    family: Family, directory: Path, content: Mapping[str, Any], stored: Mapping[str, StoredTensor]
) -> DecoderConfig:
    """The decoder's configuration, checked against the tensors of the directory. None of them is read."""
    stored = named(family, stored)
    with config_errors(directory / CONFIG_FILE):
        config = family.read_config(content)
    check_sizes(config, stored, directory, tensors_of_layer(family.names, config))
    with config_errors(directory / CONFIG_FILE):
        if family.packs and any(name.endswith("blocks") for name in stored):
            config = replace(config, expert_format="mxfp4")
        entries = family.entries(config)
        wanted = {
            name: Wanted(shape, ("U8",) if entry.ours[0].endswith(("_blocks", "_scales")) else tuple(FLOATS))
            for entry in entries
            for name, shape in entry.shapes().items()
        }
    output = f"{family.names['output']}.weight"
    if config.tied_output and output in stored:
        wanted[output] = Wanted([config.vocab_size, config.hidden_dim])
    check_tensors(stored, wanted, directory)
    return config


def named(family: Family, stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Tensors by the names of the table, which some files cut, without masks and frequencies, and those of images."""
    if family.multimodal and any(map(_TEXT.match, stored)):
        stored = {_TEXT.sub("", name): each for name, each in stored.items() if _TEXT.match(name)}
    kept = (family.base, f"{family.names['output']}.")
    found = {name if name.startswith(kept) else f"{family.base}{name}": tensor for name, tensor in stored.items()}
    if len(found) < len(stored):
        twice = next(name for name in stored if not name.startswith(kept) and f"{family.base}{name}" in stored)
        raise CheckpointError(f"{twice} twice, also after {family.base}", "unique names", "Download the files again.")
    return {name: tensor for name, tensor in found.items() if not _BUFFERS.fullmatch(name)}


def with_experts(stored: StoredDecoder, experts: Literal["dense", "mxfp4"]) -> StoredDecoder:
    """The same decoder with its experts packed, which rounds, or as numbers in the embedding's dtype."""
    if experts == stored.config.expert_format:
        return stored
    config, state = replace(stored.config, expert_format=experts), dict(stored.state)
    convert = packed if experts == "mxfp4" else partial(unpacked, dtype=stored.dtype)
    for layer in range(config.num_layers):
        start = f"layers.{layer}.ffn."
        for parts in (("gate", "up"), ("down",)):  # one after the other, for less memory
            named = tuple(f"{start}{part}" for part in parts)
            ours = {name.removeprefix(start): state.pop(name) for name in list(state) if name.startswith(named)}
            state |= {f"{start}{name}": each for name, each in _converted(ours, convert).items()}
    return stored._replace(config=config, state=state)


def _converted(
    given: Mapping[str, Planned], convert: Callable[[dict[str, Tensor]], dict[str, Tensor]]
) -> dict[str, Planned]:
    """What ``convert`` makes of some tensors together; its sizes are those that it makes on the device meta."""
    like = convert({name: torch.empty(each.shape, dtype=each.dtype, device="meta") for name, each in given.items()})
    pieces = _Pieces(lambda: convert({name: each.make() for name, each in given.items()}))
    return {name: Planned(list(each.shape), each.dtype, partial(pieces.take, name)) for name, each in like.items()}


def family_for(config: DecoderConfig, loaded: str | None = None) -> Family | None:
    """Return the first family of Hugging Face's that has exactly the parts of a decoder; None if no family does.

    The family whose ``model_type`` is ``loaded`` comes first.
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


def in_family(family: Family, stored: StoredDecoder) -> tuple[dict[str, Any], dict[str, Planned]]:
    """Return the content of ``config.json`` and the tensors of a family's files, which are made when they are written.

    Raises:
        InputError: Names every part of the decoder that the family lacks.
    """
    content = family.write_config(stored.config, stored.dtype)
    planned: dict[str, Planned] = {}
    for entry in family.entries(stored.config):
        planned |= _planned_entry(entry, stored)
    return content, planned


def _planned_entry(entry: Entry, stored: StoredDecoder) -> dict[str, Planned]:
    """Return the tensors of a file that hold what an entry names."""

    def write() -> dict[int, Tensor]:
        return dict(enumerate(entry.write({name: stored.state[name].make() for name in entry.ours})))

    if not entry.theirs:
        write()  # refuses values that the file cannot hold
    dtype = stored.dtype
    if stored.state[entry.ours[0]].dtype == torch.uint8:
        dtype = torch.uint8
    pieces = _Pieces(write)

    def take(index: int) -> Tensor:
        return pieces.take(index).to(dtype)

    return {
        name: Planned(shape, dtype, partial(take, index)) for index, (name, shape) in enumerate(entry.shapes().items())
    }
