"""Decoders from GGUF files, by the same table of families as from directories of Hugging Face."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from glassformer.checkpoints.assembly import config_errors, empty_decoder, fill, require_memory
from glassformer.checkpoints.families import FAMILIES, Family, family_of_gguf
from glassformer.checkpoints.families.gguf_metadata import FACTORS, gguf_entries, read_gguf_config
from glassformer.checkpoints.families.gpt_oss import packed_experts
from glassformer.checkpoints.families.tensor_names import Entry
from glassformer.checkpoints.gguf_file import GgufFile, read_gguf
from glassformer.checkpoints.tensor_files import FLOATS, Wanted, check_tensors, cut, nonfinite_weights
from glassformer.errors import CheckpointError, require
from glassformer.kernels.blocks import KINDS, values
from glassformer.layers.quantized.block_layers import BlockEmbedding, BlockLinear
from glassformer.layers.quantized.packed_experts import interleaved
from glassformer.models import Decoder, DecoderConfig

Hold = Literal["blocks", "dense"]
"""Packed weights as the file's own blocks, or expanded."""
_EXPERTS = re.compile(r"layers\.(\d+)\.ffn\.(gate|up|down)")
_FIX = "Take a file that llama.cpp's converter wrote, or the model's safetensors."


def load_gguf(
    source: str | Path | GgufFile,
    *,
    hold: Hold = "blocks",
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cpu",
    allow_nonfinite: bool = False,
) -> Decoder:
    """The decoder of a GGUF file, in evaluation mode.

    It computes the model in the file, whose logits are those of Hugging Face's class with the expanded weights.

    Args:
        source: A file, also one of several parts, or what :func:`~glassformer.checkpoints.gguf_file.read_gguf` gave.
        hold: ``"blocks"`` keeps packed matrices as they are in the file, for inference and gradients of activations;
            of experts only those in MXFP4, others are expanded. ``"dense"`` expands all.
        dtype: Of expanded weights; None: bfloat16 if all matrices are stored so, but for RMSNorms, else float32, since
            other weights would lose bits.
        device: The decoder's.
        allow_nonfinite: Whether weights may be infinite or NaN, which is an error otherwise.
    """
    require(hold in ("blocks", "dense"), f"hold = {hold!r}", "'blocks' or 'dense'", "Use one of these.")
    file = source if isinstance(source, GgufFile) else read_gguf(source)
    family, config = gguf_config(file)
    entries = gguf_entries(family, config, file.tensors)
    kinds = {name: file.tensors[entry.theirs[0]].kind for entry in entries for name in entry.ours}
    norms = stored_dtype(file, config, "norm") if dtype is None else dtype
    dtype = stored_dtype(file, config) if dtype is None else dtype
    place = torch.device(device)
    mixture = hold == "blocks" and has_packed_experts(kinds)
    if mixture:
        config = replace(config, expert_format="mxfp4")
    decoder = empty_decoder(config, dtype)
    packed = _hold_blocks(decoder, kinds) if hold == "blocks" else set()
    require_memory(decoder, place, file.path)
    state: dict[str, Tensor] = {}
    with nonfinite_weights(allow_nonfinite), file.reading() as read:
        for entry in sorted(entries, key=_layer) if mixture else entries:
            kept = packed.issuperset(entry.ours) or (mixture and _EXPERTS.fullmatch(entry.ours[0]) is not None)

            def get(name: str, kept: bool = kept) -> Tensor:
                tensor, kind = read(name), file.tensors[name].kind
                if kind in KINDS:
                    return tensor if kept else values(kind, tensor).to(dtype)
                return tensor.to(norms if "norm" in name else dtype)

            for name, tensor in entry.read(get).items():
                is_block = name in packed
                state[f"{name.removesuffix('.weight')}.blocks" if is_block else name] = tensor.to(place)
            if mixture:
                _pack(state, entry.ours[0].rpartition(".")[0])
    decoder.family = family.model_type
    return fill(decoder, state).eval()


def stored_dtype(file: GgufFile, config: DecoderConfig, name: str = "") -> torch.dtype:
    """That of an expanded tensor. Gemma's norms, which are 1 + w, have more digits than bfloat16."""
    matrices = {tensor.kind for tensor in file.tensors.values() if len(tensor.shape) > 1}
    narrow = matrices == {"BF16"} and not (config.norm == "rms" and "norm" in name)
    return torch.bfloat16 if narrow else torch.float32


def has_packed_experts(kinds: Mapping[str, str]) -> bool:
    """Whether all experts are in MXFP4; ``kinds`` are those of all tensors by our names."""
    return {kind for name, kind in kinds.items() if _EXPERTS.fullmatch(name)} == {"MXFP4"}


def _layer(entry: Entry) -> tuple[int, int]:
    """Experts of a layer one after another, so that those of one layer at a time are in memory twice."""
    found = _EXPERTS.match(entry.ours[0])  # biases, too
    return (0, 0) if found is None else (1, int(found[1]))


def _pack(state: dict[str, Tensor], mixture: str) -> None:
    """Replace the experts of a layer by what a mixture packed in MXFP4 holds, once all parts are there."""
    parts, biases = ("gate", "up", "down"), ("gate_bias", "up_bias")
    if all(f"{mixture}.{part}" in state for part in parts):
        raw = {part: state.pop(f"{mixture}.{part}") for part in parts}
        state |= {f"{mixture}.{name}": tensor for name, tensor in packed_experts(raw).items()}
    if all(f"{mixture}.{bias}" in state for bias in biases):
        state[f"{mixture}.gate_up_bias"] = interleaved(*(state.pop(f"{mixture}.{bias}") for bias in biases))


def gguf_config(file: GgufFile) -> tuple[Family, DecoderConfig]:
    """The family and the configuration of a file, checked against its tensors; none of them is read but factors."""
    with config_errors(file.path):
        kind = file.metadata.get("general.type")
        if isinstance(kind, str) and kind in ("adapter", "imatrix", "mmproj"):
            fix = "Pass the model's own file. llama.cpp's llama-export-lora merges an adapter into one."
            raise CheckpointError(f"{file.path} of general.type = {kind!r}", "a model", fix)
        family = family_of_gguf(file.metadata)
        if family is None:
            known = ", ".join(sorted({each.gguf for each in FAMILIES if each.gguf}))
            name = cut(repr(file.metadata.get("general.architecture")))
            raise CheckpointError(f"{file.path} of the architecture {name}", f"one of {known}", _FIX)
        shapes = {name: tensor.shape for name, tensor in file.tensors.items()}
        with file.reading() as read:
            factors = {name: read(name).tolist() for name in FACTORS if name in file.tensors}
        config = read_gguf_config(family, file.metadata, shapes, factors)
        require(
            config.num_layers <= len(shapes), f"{config.num_layers} layers with {len(shapes)} tensors", "fewer", _FIX
        )
        entries = gguf_entries(family, config, shapes)
        wanted = {name: Wanted(shape, (*FLOATS, *KINDS)) for entry in entries for name, shape in entry.shapes().items()}
    weights = {name: each for name, each in file.tensors.items() if name not in FACTORS}
    check_tensors(weights, wanted, file.path, f"a {family.name} with its keys", _FIX)
    return family, config


def _hold_blocks(decoder: Decoder, kinds: Mapping[str, str]) -> set[str]:
    """Put layers that hold blocks in place of those whose weights are stored so; their weights' names."""
    packed = set()
    for name, kind in kinds.items():
        module, _, part = name.rpartition(".")
        if kind not in KINDS or part != "weight":
            continue
        found = decoder.get_submodule(module)
        with torch.device("meta"):
            if isinstance(found, nn.Embedding):
                layer: nn.Module = BlockEmbedding(found.num_embeddings, found.embedding_dim, kind)
            elif isinstance(found, nn.Linear):
                layer = BlockLinear(found.in_features, found.out_features, kind, bias=found.bias is not None)
            else:
                continue
        decoder.set_submodule(module, layer)
        packed.add(name)
        if module == "embedding" and decoder.config.tied_output:
            with torch.device("meta"):
                output = BlockLinear(decoder.config.hidden_dim, decoder.config.vocab_size, kind)
            decoder.set_submodule("output", output)
    return packed
