"""gpt-oss from one layout of files to another, tensor by tensor, and its experts from one format to another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from glassformer.checkpoints.assembly import require_no_nan
from glassformer.checkpoints.gpt_oss import checked_form
from glassformer.checkpoints.gpt_oss_config import layout_of
from glassformer.checkpoints.gpt_oss_layouts import (
    GptOssLayout,
    Matrix,
    expert_names,
    sources,
)
from glassformer.checkpoints.gpt_oss_writing import Packed, PlannedExperts, PlannedModel
from glassformer.checkpoints.headers import DTYPES, StoredTensor
from glassformer.checkpoints.shards import Planned
from glassformer.checkpoints.tensor_files import CONFIG_FILE, open_tensors, stored_tensors
from glassformer.errors import CheckpointError, require
from glassformer.models import DecoderConfig
from glassformer.quantized import mxfp4

ExpertKind = Literal["mxfp4", "bfloat16"]

# Of a large tensor, this much is read at a time.
_PIECE_BYTES = 2**25


@contextmanager
def stored_model(directory: Path, config: Mapping[str, Any]) -> Iterator[PlannedModel]:
    """The gpt-oss model of a directory, whose tensors are read when they are asked for, while the context lasts.

    Args:
        directory: Where the files lie, in either layout.
        config: The content of its ``config.json``.

    Raises:
        CheckpointError: Another model's configuration, a damaged file, or tensors that are missing, unknown, or of
            another shape or kind; when read, an exponent that means NaN.
    """
    layout = layout_of(config)
    if layout is None:
        raise CheckpointError(
            f"{directory / CONFIG_FILE} of the model_type {config.get('model_type')!r}",
            "gpt-oss's configuration",
            "Load the model and save it in another layout.",
        )
    stored = stored_tensors(directory)
    form = checked_form(directory, config, layout, stored)
    packed = form.expert_format == "mxfp4"
    with open_tensors(stored) as read:
        files = _Files(read, stored, layout)
        weights = {
            ours: files.rows(source.name, source.start, source.stop) for ours, source in sources(form, layout).items()
        }
        weights |= _without_biases(form, weights)
        if form.tied_output:
            weights["output.weight"] = weights["embedding.weight"]
        form = replace(form, tied_output=False, attention_bias=True)
        yield PlannedModel(form, weights, [files.experts(layer, packed) for layer in range(form.num_layers)])


def with_experts(model: PlannedModel, kind: ExpertKind | None) -> PlannedModel:
    """The same model with its experts packed, which rounds, or as numbers in bfloat16, which does not; None: as they
    are.

    Raises:
        InputError: Another kind, widths that are no multiples of 32, or, when written, numbers that MXFP4 lacks.
    """
    kinds = get_args(ExpertKind)
    require(kind is None or kind in kinds, f"experts = {kind!r}", " or ".join(map(repr, kinds)), "Use one of these.")
    packed = model.config.expert_format == "mxfp4"
    if kind is None or (kind == "mxfp4") == packed:
        return model
    config = replace(model.config, expert_format="dense" if packed else "mxfp4")
    experts = [replace(each, gate_up=_other(each.gate_up), down=_other(each.down)) for each in model.experts]
    return replace(model, config=config, experts=experts)


@dataclass(frozen=True)
class _Files:
    """Tensors of a directory to what can be written."""

    read: Callable[..., Tensor]
    stored: Mapping[str, StoredTensor]
    layout: GptOssLayout

    def rows(self, name: str, start: int = 0, stop: int | None = None, step: int | None = None) -> Planned:
        """Some rows of a tensor, ``step`` of them in a part."""
        tensor = self.stored[name]
        dtype = DTYPES[tensor.kind]
        stop = tensor.shape[0] if stop is None else stop
        shape = [stop - start, *tensor.shape[1:]]
        row_bytes = Planned(shape[1:], dtype, list).nbytes
        step = step or max(1, _PIECE_BYTES // max(1, row_bytes))

        def parts() -> Iterator[Tensor]:
            for first in range(start, stop, step):
                yield self.read(name, first, min(first + step, stop))

        return Planned(shape, dtype, parts)

    def experts(self, layer: int, packed: bool) -> PlannedExperts:
        """One layer's, in parts of one expert."""
        names = expert_names(self.layout, layer)

        def matrix(which: Matrix) -> Planned | Packed:
            if packed:
                blocks, scales = names.packed(which)
                return self.rows(blocks, step=1), self._checked(scales)
            stacked = self.rows(names.dense(which), step=1)
            each = replace(stacked, parts=lambda: (part[0] for part in stacked.parts()))
            return _turned(each) if self.layout == "huggingface" else each

        biases = self.rows(names.gate_up_bias), self.rows(names.down_bias)
        return PlannedExperts(matrix("gate_up"), biases[0], matrix("down"), biases[1])

    def _checked(self, name: str) -> Planned:
        exponents = self.rows(name, step=1)

        def parts() -> Iterator[Tensor]:
            for part in exponents.parts():
                require_no_nan(part, self.stored[name])
                yield part

        return replace(exponents, parts=parts)


def _turned(experts: Planned) -> Planned:
    """Parts of one expert, ``[in, out]`` to ``[out, in]``."""
    count, rows, width = experts.shape
    return Planned([count, width, rows], experts.dtype, lambda: (part.t() for part in experts.parts()))


def _without_biases(config: DecoderConfig, weights: Mapping[str, Planned]) -> dict[str, Planned]:
    """Zeros where Hugging Face's configuration says that attention has none: what is written always has them."""
    if config.attention_bias:
        return {}
    zeros = {}
    for layer in range(config.num_layers):
        for name in ("query", "key", "value", "output"):
            weight = weights[f"layers.{layer}.attention.{name}.weight"]
            zeros[f"layers.{layer}.attention.{name}.bias"] = _zeros(weight.shape[:1], weight.dtype)
    return zeros


def _zeros(shape: list[int], dtype: torch.dtype) -> Planned:
    return Planned(shape, dtype, lambda: [torch.zeros(shape, dtype=dtype)])


def _other(weights: Planned | Packed) -> Planned | Packed:
    return _expanded(weights) if isinstance(weights, tuple) else _packed(weights)


def _expanded(packed: Packed) -> Planned:
    blocks, scales = packed
    experts, rows, groups = scales.shape

    def matrices() -> Iterator[Tensor]:
        for codes, exponents in zip(blocks.parts(), scales.parts(), strict=True):
            for one, its_exponents in zip(codes, exponents, strict=True):
                yield mxfp4.decode(one, its_exponents, torch.bfloat16)

    return Planned([experts, rows, groups * mxfp4.GROUP], torch.bfloat16, matrices)


def _packed(experts: Planned) -> Packed:
    count, rows, width = experts.shape
    shape = [count, rows, width // mxfp4.GROUP]
    # Exponents come with the codes, a sixteenth of their size, and are written next.
    kept: list[Tensor] = []

    def encoded() -> Iterator[tuple[Tensor, Tensor]]:
        return (mxfp4.encode(matrix.contiguous()) for matrix in experts.parts())

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
