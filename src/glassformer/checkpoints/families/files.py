"""A family's directories: read tensor by tensor, checked before memory is taken, and written in the same names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer.checkpoints.assembly import check_sizes, config_errors, read_decoder
from glassformer.checkpoints.equivalent_weights import as_experts, half_split_projections
from glassformer.checkpoints.families import FAMILIES
from glassformer.checkpoints.families.table import Family
from glassformer.checkpoints.families.tensor_names import Entry, tensors_of_layer
from glassformer.checkpoints.shards import Planned
from glassformer.checkpoints.tensor_files import (
    CONFIG_FILE,
    DTYPES,
    StoredTensor,
    Wanted,
    check_tensors,
    open_tensors,
    stored_tensors,
)
from glassformer.errors import CheckpointError, InputError
from glassformer.kernels.experts import Experts
from glassformer.layers.blocks import Block
from glassformer.layers.grouped_query import GroupedQueryAttention
from glassformer.layers.quantized import DenseFormat
from glassformer.models import Decoder, DecoderConfig

# Masks and frequencies that older versions of transformers saved beside the weights.
_BUFFERS = re.compile(r".*\.(rotary_emb\.inv_freq|attn\.(masked_)?bias|attention\.(masked_)?bias)")


def load_family(
    family: Family,
    directory: Path,
    content: Mapping[str, Any],
    *,
    dtype: torch.dtype | None,
    device: torch.device,
    dense: DenseFormat | None = None,
) -> Decoder:
    """The decoder of a directory with this content of ``config.json``; options as
    :func:`~glassformer.checkpoints.decoders.load_decoder`."""
    stored = _named(family, stored_tensors(directory))
    config = checked_config(family, directory, content, stored)
    entries = family.entries(config, stored)
    embedding = f"{family.names['embedding']}.weight"
    with open_tensors(stored) as read:

        def state(dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
            return family_state(family, config, entries, stored, lambda name: read(name).to(device, dtype))

        kind = DTYPES[stored[embedding].kind]
        decoder = read_decoder(config, directory, state, stored_dtype=kind, dtype=dtype, device=device, dense=dense)
    decoder.family = family.model_type
    return decoder


def family_state(
    family: Family,
    config: DecoderConfig,
    entries: Sequence[Entry],
    stored: Mapping[str, StoredTensor],
    get: Callable[[str], Tensor],
) -> dict[str, Tensor]:
    """The decoder's state dict, from a function that gives the tensors in its dtype on its device."""
    state: dict[str, Tensor] = {}
    for entry in entries:
        state |= entry.read(get)
    like, output = state["embedding.weight"], f"{family.names['output']}.weight"
    if config.tied_output and output in stored and not like.is_meta and not torch.equal(get(output), like):
        embedding = f"{family.names['embedding']}.weight"
        raise CheckpointError(
            f"{stored[output].file} with an {output} that differs from {embedding}, and tie_word_embeddings = True in "
            f"{CONFIG_FILE}",
            "one tensor for both",
            "Set tie_word_embeddings to False to keep both.",
        )
    # A weight that is no part of the files is made here; others have their dtype, shifted ones that of their sum.
    made = {name for entry in entries if not entry.theirs for name in entry.ours}
    return {name: tensor.to(like) if name in made else tensor for name, tensor in state.items()}


def checked_config(
    family: Family, directory: Path, content: Mapping[str, Any], stored: Mapping[str, StoredTensor]
) -> DecoderConfig:
    """The decoder's configuration, checked against the tensors of the directory. None of them is read."""
    stored = _named(family, stored)
    with config_errors(directory / CONFIG_FILE):
        config = family.read_config(content)
    check_sizes(config, stored, directory, tensors_of_layer(family.names, config))
    with config_errors(directory / CONFIG_FILE):
        entries = family.entries(config, stored)
        wanted = {name: Wanted(shape) for entry in entries for name, shape in entry.shapes().items()}
    output = f"{family.names['output']}.weight"
    if config.tied_output and output in stored:
        wanted[output] = Wanted([config.vocab_size, config.hidden_dim])
    check_tensors(stored, wanted, directory)
    return config


def family_for(config: DecoderConfig, loaded: str | None = None) -> Family | None:
    """The first family that can hold a decoder of this configuration, the one that it was loaded from before others;
    None: none can."""
    first = [family for family in FAMILIES if family.model_type == loaded]
    for family in (*first, *FAMILIES):
        try:
            family.write_config(rewritten(config), torch.float32)
            family.entries(rewritten(config))
        except InputError:
            continue
        return family
    return None


def rewritten(config: DecoderConfig) -> DecoderConfig:
    """The configuration without key weights and interleaved rotation, where these can be rewritten."""
    return config if config.qk_norm else replace(config, key_weights=False, rope_layout="half-split")


def rewritten_weights(decoder: Decoder) -> dict[str, Tensor]:
    """The projections of the rewritten configuration, where it differs."""
    if rewritten(decoder.config) == decoder.config:
        return {}
    found: dict[str, Tensor] = {}
    for layer, block in enumerate(decoder.layers):
        assert isinstance(block, Block)
        assert isinstance(block.attention, GroupedQueryAttention)
        projections = half_split_projections(block.attention, decoder.config.rope_layout)
        found |= {f"layers.{layer}.{name}": tensor.detach() for name, tensor in projections.items()}
    return found


def family_from_decoder(family: Family, decoder: Decoder) -> tuple[dict[str, Any], dict[str, Planned]]:
    """The content of ``config.json`` and the tensors that compute the same logits, made when they are written.

    Key weights are multiplied into the query projections, an interleaved rotary layout is rewritten as half-split, and
    where a family has experts, a dense feed-forward network becomes the only one.
    """
    config = rewritten(decoder.config)
    state = {name: each.detach() for name, each in decoder.state_dict().items()} | rewritten_weights(decoder)
    dtype = decoder.embedding.weight.dtype
    if "num_experts" in family.keys and config.num_experts is None and config.ff_dim:
        config = replace(config, num_experts=1, top_k=1)
        for layer, block in enumerate(decoder.layers):
            assert isinstance(block, Block)
            state |= _only_expert(f"layers.{layer}.ffn.", as_experts(block.ffn))
    written = family.write_config(config, dtype)
    planned: dict[str, Planned] = {}
    for entry in family.entries(config):
        if not entry.theirs:
            entry.write(state)  # refuses a weight that the file cannot hold
        for index, (name, shape) in enumerate(entry.shapes().items()):
            planned[name] = _planned(entry, index, shape, state, dtype)
    return written, planned


def _only_expert(prefix: str, experts: Experts) -> dict[str, Tensor]:
    """The state of a mixture of one expert, whose router has no choice."""
    router = experts.gate.new_zeros(1, experts.gate.shape[-1])
    matrices = {"gate": experts.gate, "up": experts.up, "down": experts.down, "router.score.weight": router}
    return {f"{prefix}{name}": tensor.detach() for name, tensor in matrices.items()}


def _named(family: Family, stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Tensors by the names of the table, which some files cut, without masks and frequencies."""
    kept = (family.base, f"{family.names['output']}.")
    named = {name if name.startswith(kept) else f"{family.base}{name}": tensor for name, tensor in stored.items()}
    if len(named) < len(stored):
        twice = next(name for name in stored if not name.startswith(kept) and f"{family.base}{name}" in stored)
        raise CheckpointError(f"{twice} twice, also after {family.base}", "unique names", "Download the files again.")
    return {name: tensor for name, tensor in named.items() if not _BUFFERS.fullmatch(name)}


def _planned(entry: Entry, index: int, shape: list[int], state: Mapping[str, Tensor], dtype: torch.dtype) -> Planned:
    def made() -> Tensor:
        return entry.write(state)[index].to(dtype)

    return Planned(shape, dtype, lambda: [made()], made, entry.theirs[index])
