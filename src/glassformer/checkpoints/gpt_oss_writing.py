"""Writing gpt-oss in either layout, tensor by tensor: the model need not be in memory."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from tqdm import tqdm

from glassformer.checkpoints.assembly import require_room
from glassformer.checkpoints.gpt_oss_config import write_gpt_oss_config, write_openai_config
from glassformer.checkpoints.gpt_oss_layouts import GptOssLayout, Matrix, expert_names, sources
from glassformer.checkpoints.shards import SHARD_BYTES, Planned, plan, write_tensors
from glassformer.checkpoints.tensor_files import CONFIG_FILE
from glassformer.errors import CheckpointError, InputError, require
from glassformer.files import new_directory, write_text
from glassformer.layers.quantized import mxfp4
from glassformer.models import DecoderConfig

ExpertKind = Literal["mxfp4", "bfloat16"]

# OpenAI stores the 20b in one file, and the 120b in several.
_SHARD_BYTES: dict[GptOssLayout, int] = {"huggingface": SHARD_BYTES, "openai": 2 * 10**10}
# Settings of the released models' files that a decoder does not have.
_RELEASED = {"eos_token_id": 200002, "pad_token_id": 199999}
_RELEASED_VOCABULARY = 201088


@dataclass(frozen=True)
class PlannedExperts:
    """A matrix of one layer's experts, independent of a layout. Gate and up rows alternate."""

    weights: tuple[Planned, ...]
    """``[expert, out, in]`` with one part ``[out, in]`` for each expert; or the codes and the exponents of MXFP4."""
    bias: Planned
    """``[expert, out]``."""


@dataclass(frozen=True)
class PlannedModel:
    """A gpt-oss model, independent of a layout."""

    config: DecoderConfig
    weights: Mapping[str, Planned]
    """All but the experts, by the decoder's names."""
    experts: Sequence[Mapping[Matrix, PlannedExperts]]

    def completed(self) -> PlannedModel:
        """The same model with all tensors of the released files: biases of 0 where attention or the router has none,
        and an output projection where it is the embedding."""
        config = dataclasses.replace(self.config, tied_output=False, attention_bias=True)
        weights: dict[str, Planned] = {}
        for name in sources(config, "huggingface"):
            if name in self.weights:
                weights[name] = self.weights[name]
            elif name == "output.weight":
                weights[name] = self.weights["embedding.weight"]
            else:
                weight = self.weights[f"{name.removesuffix('bias')}weight"]
                weights[name] = plan(torch.zeros(weight.shape[:1], dtype=weight.dtype))
        return dataclasses.replace(self, config=config, weights=weights)

    def in_layout(self, layout: GptOssLayout) -> dict[str, Planned]:
        """Every tensor by its name in the files of ``layout``; OpenAI's has query, key and value in one."""
        rows: dict[str, list[Planned]] = {}
        complete = self.completed()
        for ours, source in sources(complete.config, layout).items():
            rows.setdefault(source.name, []).append(complete.weights[ours])  # they come in the order of their rows
        found = {name: _concatenated(parts) for name, parts in rows.items()}
        packed = self.config.expert_format == "mxfp4"
        for layer, experts in enumerate(self.experts):
            for matrix, planned in experts.items():
                names, bias = expert_names(layout, layer, matrix, packed=packed)
                transposed = layout == "huggingface" and not packed
                weights = map(_transposed, planned.weights) if transposed else planned.weights
                found |= {**dict(zip(names, weights, strict=True)), bias: planned.bias}
        return found


def with_experts(model: PlannedModel, kind: ExpertKind | None) -> PlannedModel:
    """The same model with its experts packed, which rounds, or as numbers in bfloat16, which does not; None: as they
    are.
    """
    kinds = get_args(ExpertKind)
    require(kind is None or kind in kinds, f"experts = {kind!r}", " or ".join(map(repr, kinds)), "Use one of these.")
    packed = model.config.expert_format == "mxfp4"
    if kind is None or (kind == "mxfp4") == packed:
        return model
    config = dataclasses.replace(model.config, expert_format="dense" if packed else "mxfp4")
    other = _expanded if packed else _packed
    experts = [
        {matrix: dataclasses.replace(planned, weights=other(*planned.weights)) for matrix, planned in layer.items()}
        for layer in model.experts
    ]
    return dataclasses.replace(model, config=config, experts=experts)


def write_gpt_oss(
    model: PlannedModel,
    directory: Path,
    layout: GptOssLayout,
    *,
    extras: Mapping[str, Any] | None = None,
    beside: Iterable[Path] = (),
    shard_bytes: int | None = None,
    replace: bool = False,
    progress: bool = False,
) -> tuple[int, dict[str, Any]]:
    """Write a directory in ``layout``: complete or, whatever happens, as it was before.

    Memory holds one part of a tensor at a time.

    Args:
        extras: More for Hugging Face's ``config.json``.
        beside: Files to copy into the directory, such as a tokenizer's.
        shard_bytes: Size of a file of weights; None: 5 GB, and 20 GB in OpenAI's layout.

    Returns:
        The bytes of all tensors, and the content of ``config.json``.
    """
    config = model.completed().config
    if layout == "openai":
        written = write_openai_config(config)
    else:
        dtype = model.weights["embedding.weight"].dtype
        written = write_gpt_oss_config(config, dtype)
        if config.vocab_size == _RELEASED_VOCABULARY:
            written |= _RELEASED
        written |= {name: value for name, value in (extras or {}).items() if name not in written or name in _RELEASED}
    planned = model.in_layout(layout)
    size = sum(tensor.nbytes for tensor in planned.values())
    require_room(directory, size)
    with (
        tqdm(total=size, unit="B", unit_scale=True, desc=directory.name, disable=None if progress else True) as bar,
        new_directory(directory, replace=replace) as draft,
    ):
        write_text(draft / CONFIG_FILE, json.dumps(written, indent=2) + "\n")
        for file in beside:
            shutil.copyfile(file, draft / file.name)
        watched = {name: _watched(tensor, bar.update) for name, tensor in planned.items()}
        write_tensors(draft, watched, shard_bytes=shard_bytes or _SHARD_BYTES[layout])
    return size, written


def _concatenated(parts: list[Planned]) -> Planned:
    if len(parts) == 1:
        return parts[0]
    dtype = parts[0].dtype
    for each in parts:
        dtype = torch.promote_types(dtype, each.dtype)

    def rows() -> Iterator[Tensor]:
        for each in parts:
            yield from (part.to(dtype) for part in each.parts())

    return Planned([sum(each.shape[0] for each in parts), *parts[0].shape[1:]], dtype, rows)


def _transposed(experts: Planned) -> Planned:
    count, out, into = experts.shape

    def matrices() -> Iterator[Tensor]:
        for matrix in experts.parts():
            yield matrix.t()

    return Planned([count, into, out], experts.dtype, matrices)


def _watched(tensor: Planned, tell: Callable[[int], object]) -> Planned:
    def parts() -> Iterator[Tensor]:
        for part in tensor.parts():
            yield part
            tell(part.nbytes)

    return dataclasses.replace(tensor, parts=parts)


def _expanded(blocks: Planned, scales: Planned) -> tuple[Planned]:
    experts, rows, groups = scales.shape

    def matrices() -> Iterator[Tensor]:
        for codes, exponents in zip(blocks.parts(), scales.parts(), strict=True):
            for one, its_exponents in zip(codes, exponents, strict=True):
                yield mxfp4.decode(one, its_exponents, torch.bfloat16)

    return (Planned([experts, rows, groups * mxfp4.GROUP], torch.bfloat16, matrices),)


def _packed(experts: Planned) -> tuple[Planned, Planned]:
    count, rows, width = experts.shape
    shape = [count, rows, width // mxfp4.GROUP]
    # Encoding gives exponents with the codes, a sixteenth of their size; they are written next.
    kept: list[Tensor] = []

    def encoded() -> Iterator[tuple[Tensor, Tensor]]:
        for matrix in experts.parts():
            try:
                yield mxfp4.encode(matrix.contiguous())
            except InputError as error:
                raise CheckpointError(f"{experts.source} with {error.got}", error.expected, error.fix) from error

    def blocks() -> Iterator[Tensor]:
        kept.clear()
        for codes, exponents in encoded():
            kept.append(exponents)
            yield codes

    def scales() -> Iterable[Tensor]:
        ready = list(kept) if len(kept) == count else [exponents for _, exponents in encoded()]
        kept.clear()
        return ready

    return Planned([*shape, mxfp4.GROUP_BYTES], torch.uint8, blocks), Planned(shape, torch.uint8, scales)
