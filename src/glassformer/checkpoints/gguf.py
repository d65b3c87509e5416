"""Decoders from GGUF files, by the same table of families as from directories of Hugging Face."""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from glassformer.checkpoints.assembly import Hold, config_errors, read_decoder
from glassformer.checkpoints.families import FAMILIES, Family, family_of_gguf
from glassformer.checkpoints.families.files import with_experts
from glassformer.checkpoints.families.gguf_metadata import FACTORS, gguf_entries, read_gguf_config
from glassformer.checkpoints.families.gpt_oss import packed_experts
from glassformer.checkpoints.families.tensor_names import Entry
from glassformer.checkpoints.gguf_file import GgufFile, read_gguf
from glassformer.checkpoints.lazy import LazyDecoder, LazyTensor, Together, converted
from glassformer.checkpoints.tensor_files import FLOATS, FileTensor, check_tensors, cut
from glassformer.errors import CheckpointError, InputError
from glassformer.kernels.huge_pages import SharedPages
from glassformer.kernels.packed import KINDS as BLOCKS
from glassformer.layers.quantized.packed_experts import interleaved
from glassformer.models import Decoder, DecoderConfig

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
    """Load the decoder of a GGUF file, in evaluation mode.

    Its logits are those of Hugging Face's class with the expanded weights.

    Args:
        source: A file, also one of several parts, or the result of
            :func:`~glassformer.checkpoints.gguf_file.read_gguf`.
        hold: ``"blocks"`` keeps packed matrices as they are in the file, for inference and
            gradients of activations. ``"dense"`` expands all.
        dtype: Dtype of expanded weights; None: bfloat16 if all matrices are stored so, but for
            RMSNorms, else float32, since other weights would lose bits.
        device: Device of the decoder.
        allow_nonfinite: Allow weights that are infinite or NaN, which is an error otherwise.
    """
    if hold not in ("blocks", "dense"):
        raise InputError(
            got=f"hold = {hold!r}",
            expected="'blocks' or 'dense'",
            fix="Use one of these.",
        )
    if not isinstance(source, GgufFile):
        source = read_gguf(source)
    stored = open_gguf(source, allow_nonfinite=allow_nonfinite)
    if hold == "dense":
        stored = with_experts(stored, "dense")
    return read_decoder(stored, source.path, hold=hold, dtype=dtype, device=torch.device(device))


def open_gguf(file: GgufFile, *, allow_nonfinite: bool = False) -> LazyDecoder:
    """Return the decoder of a file, checked against its header.

    No tensor is read but factors of frequencies. Experts that are all stored in MXFP4 are packed as
    a :class:`PackedMixture` holds them.
    """
    family, config, entries = _checked(file)
    dtype = stored_dtype(file, config)
    norm_dtype = stored_dtype(file, config, "norm")
    pages = SharedPages()

    def read(name: str) -> Tensor:
        return file.tensors[name].read(allow_nonfinite=allow_nonfinite, empty=pages.empty)

    tensors: dict[str, LazyTensor] = {}
    files: list[tuple[str, FileTensor]] = []
    for entry in entries:
        files += [(entry.ours[0], file.tensors[name]) for name in entry.theirs]
        source = file.tensors[entry.theirs[0]]
        if source.kind in FLOATS and "norm" in source.name:
            loaded_dtype = norm_dtype
        else:
            loaded_dtype = dtype
        outputs = Together(partial(entry.read, read))
        for name, shape in zip(entry.ours, entry.sizes, strict=True):
            tensors[name] = LazyTensor(
                list(shape), source.kind, loaded_dtype, partial(outputs.take, name)
            )
    stored = LazyDecoder(config, tensors, dtype, family.model_type, files=files)
    if _has_packed_experts(stored):
        return _with_packed_mixtures(stored)
    return stored


def stored_dtype(file: GgufFile, config: DecoderConfig, name: str = "") -> torch.dtype:
    """Return the dtype of expanded tensors.

    Gemma stores norms as 1 + w, which bfloat16 would round.
    """
    kinds = {tensor.kind for tensor in file.tensors.values() if len(tensor.shape) > 1}
    is_rms_norm = config.norm == "rms" and "norm" in name
    if kinds == {"BF16"} and not is_rms_norm:
        return torch.bfloat16
    return torch.float32


def _has_packed_experts(stored: LazyDecoder) -> bool:
    """Return whether all experts are stored in MXFP4."""
    kinds = {tensor.kind for name, tensor in stored.tensors.items() if _EXPERTS.fullmatch(name)}
    return kinds == {"MXFP4"}


def _with_packed_mixtures(stored: LazyDecoder) -> LazyDecoder:
    """Return the same decoder whose experts, all in MXFP4, are packed as a mixture holds them."""
    tensors = dict(stored.tensors)
    for layer in range(stored.config.num_layers):
        start = f"layers.{layer}.ffn."
        for convert, parts in (
            (packed_experts, ("gate", "up")),
            (packed_experts, ("down",)),
            (_interleaved_biases, ("gate_bias", "up_bias")),
        ):
            experts = {
                part: tensors.pop(f"{start}{part}") for part in parts if f"{start}{part}" in tensors
            }
            if not experts:
                continue
            for name, tensor in converted(experts, convert).items():
                tensors[f"{start}{name}"] = tensor
    return replace(stored, config=replace(stored.config, expert_format="mxfp4"), tensors=tensors)


def _interleaved_biases(biases: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {"gate_up_bias": interleaved(biases["gate_bias"], biases["up_bias"])}


def _require_family(file: GgufFile) -> Family:
    """Return the family of a file; refuse a file of something else than a model."""
    kind = file.metadata.get("general.type")
    if isinstance(kind, str) and kind in ("adapter", "imatrix", "mmproj"):
        raise CheckpointError(
            f"{file.path} of general.type = {kind!r}",
            "a model",
            "Pass the model's own file. llama.cpp's llama-export-lora merges an adapter into one.",
        )
    family = family_of_gguf(file.metadata)
    if family is None:
        architectures = {family.gguf for family in FAMILIES if family.gguf}
        name = cut(repr(file.metadata.get("general.architecture")))
        raise CheckpointError(
            f"{file.path} of the architecture {name}",
            f"one of {', '.join(sorted(architectures))}",
            _FIX,
        )
    return family


def _checked(file: GgufFile) -> tuple[Family, DecoderConfig, list[Entry]]:
    """Return the family, the configuration and the entries of a file, checked against its header.

    No tensor is read but factors of frequencies.
    """
    with config_errors(file.path):
        family = _require_family(file)
        shapes = {name: tensor.shape for name, tensor in file.tensors.items()}
        factors = {
            name: file.tensors[name].read().tolist() for name in FACTORS if name in file.tensors
        }
        config = read_gguf_config(family, file.metadata, shapes, factors)
        if config.num_layers > len(shapes):
            raise InputError(
                got=f"{config.num_layers} layers with {len(shapes)} tensors",
                expected="fewer",
                fix=_FIX,
            )
        entries = gguf_entries(family, config, shapes)
        expected: dict[str, list[int]] = {}
        for entry in entries:
            expected |= entry.shapes()
    check_tensors(
        {name: tensor for name, tensor in file.tensors.items() if name not in FACTORS},
        expected,
        file.path,
        kinds=(*FLOATS, *BLOCKS),
        described_by=f"a {family.name} with its keys",
        fix=_FIX,
    )
    return family, config, entries
