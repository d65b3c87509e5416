"""gpt-oss's files in Hugging Face's layout or OpenAI's, read tensor by tensor: to a decoder, or to be written again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from glassformer.checkpoints.assembly import check_sizes, config_errors, read_decoder, require_no_nan
from glassformer.checkpoints.gpt_oss_config import layout_of, read_gpt_oss_config
from glassformer.checkpoints.gpt_oss_layouts import (
    MATRICES,
    GptOssLayout,
    Matrix,
    are_packed,
    expert_names,
    sources,
    wanted,
)
from glassformer.checkpoints.gpt_oss_writing import PlannedExperts, PlannedModel, with_experts
from glassformer.checkpoints.shards import Planned
from glassformer.checkpoints.tensor_files import (
    CONFIG_FILE,
    DTYPES,
    StoredTensor,
    check_tensors,
    open_tensors,
    stored_tensors,
)
from glassformer.errors import CheckpointError
from glassformer.layers.quantized import DenseFormat
from glassformer.models import Decoder, DecoderConfig

# Of a large tensor, this much is read at a time.
_PIECE_BYTES = 2**25


def load_gpt_oss(
    directory: Path,
    config: Mapping[str, Any],
    *,
    dtype: torch.dtype | None,
    experts: Literal["dense", "mxfp4"] | None,
    device: torch.device,
    dense: DenseFormat | None = None,
) -> Decoder:
    """The decoder of a directory with gpt-oss's weights and this ``config.json``.

    Options and errors are those of :func:`~glassformer.checkpoints.decoders.load_decoder`. Every tensor is read to
    where it stays. Besides the decoder, memory holds at most one tensor, or one expert where experts have to be
    rewritten.

    Source: OpenAI 2025, gpt-oss, ``gpt_oss/torch``; Hugging Face's layout.
    """
    with stored_model(directory, config) as stored:
        with config_errors(directory / CONFIG_FILE):
            model = with_experts(stored, "bfloat16" if experts == "dense" else experts)
        return read_decoder(
            model.config,
            directory,
            lambda *place: _state(model, *place),
            stored_dtype=model.weights["embedding.weight"].dtype,
            dtype=dtype,
            device=device,
            dense=dense,
        )


@contextmanager
def stored_model(directory: Path, config: Mapping[str, Any]) -> Iterator[PlannedModel]:
    """The gpt-oss model of a directory with this ``config.json``, in either layout.

    Its tensors are read when they are asked for, while the context lasts.
    """
    layout = layout_of(config)
    if layout is None:
        raise CheckpointError(
            f"{directory / CONFIG_FILE} of the model_type {config.get('model_type')!r}",
            "gpt-oss's configuration",
            "Load the model and save it in another layout.",
        )
    stored = stored_tensors(directory)
    form = checked_config(directory, config, layout, stored)
    with open_tensors(stored) as read:
        files = _Files(read, stored, layout)
        weights = {
            ours: files.rows(source.name, source.start, source.stop) for ours, source in sources(form, layout).items()
        }
        packed = form.expert_format == "mxfp4"
        experts = [
            {matrix: files.experts(layer, matrix, packed) for matrix in MATRICES} for layer in range(form.num_layers)
        ]
        yield PlannedModel(form, weights, experts)


def checked_config(
    directory: Path, config: Mapping[str, Any], layout: GptOssLayout, stored: Mapping[str, StoredTensor]
) -> DecoderConfig:
    """The decoder's configuration for gpt-oss's files, with the experts' format that these have. No tensor is read."""
    file = directory / CONFIG_FILE
    form = read_gpt_oss_config(config, layout, file)
    check_sizes(form, stored, directory)
    packed = are_packed(stored)
    with config_errors(file):
        form = replace(form, expert_format="mxfp4" if packed else "dense")
        tensors = wanted(form, layout, packed=packed)
    check_tensors(stored, tensors, directory)
    return form


@dataclass(frozen=True)
class _Files:
    """The tensors of a directory as tensors to be read."""

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

        return Planned(shape, dtype, parts, lambda: self.read(name, start, stop), f"{name} in {tensor.file}")

    def experts(self, layer: int, matrix: Matrix, packed: bool) -> PlannedExperts:
        """A matrix of one layer's, in parts of one expert."""
        names, bias = expert_names(self.layout, layer, matrix, packed=packed)
        if packed:
            blocks, scales = names
            return PlannedExperts((self.rows(blocks, step=1), self._checked(scales)), self.rows(bias))
        stacked = self.rows(names[0], step=1)
        transposed = self.layout == "huggingface"
        count, *shape = stacked.shape
        weights = Planned(
            [count, *(reversed(shape) if transposed else shape)],
            stacked.dtype,
            lambda: (part[0].t() if transposed else part[0] for part in stacked.parts()),
            source=stacked.source,
        )
        return PlannedExperts((weights,), self.rows(bias))

    def _checked(self, name: str) -> Planned:
        """Exponents, none of which means NaN."""
        exponents = self.rows(name, step=1)

        def checked(part: Tensor) -> Tensor:
            require_no_nan(part, self.stored[name])
            return part

        return replace(
            exponents, parts=lambda: map(checked, exponents.parts()), read=lambda: checked(exponents.whole())
        )


def _state(model: PlannedModel, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    """The decoder's state dict."""
    state = {name: planned.whole().to(device, dtype) for name, planned in model.weights.items()}
    for layer, experts in enumerate(model.experts):
        make = _packed_state if model.config.expert_format == "mxfp4" else _dense_state
        state |= {f"layers.{layer}.ffn.{name}": tensor for name, tensor in make(experts, dtype, device).items()}
    return state


_Layer = Mapping[Matrix, PlannedExperts]


def _packed_state(experts: _Layer, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    """What :class:`~glassformer.layers.quantized.packed_experts.PackedMixture` holds, as packed files do."""
    state = {}
    for matrix, planned in experts.items():
        blocks, scales = planned.weights
        state[f"{matrix}_blocks"], state[f"{matrix}_scales"] = blocks.whole().to(device), scales.whole().to(device)
        state[f"{matrix}_bias"] = planned.bias.whole().to(device, dtype)
    return state


def _dense_state(experts: _Layer, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    """What :class:`~glassformer.layers.experts.MixtureOfExperts` holds: gate and up apart."""
    (gate_up,), (down,) = experts["gate_up"].weights, experts["down"].weights
    count, hidden, ff = down.shape
    state = {
        "gate": torch.empty(count, ff, hidden, dtype=dtype, device=device),
        "up": torch.empty(count, ff, hidden, dtype=dtype, device=device),
        "down": torch.empty(count, hidden, ff, dtype=dtype, device=device),
    }
    for expert, both in enumerate(gate_up.parts()):
        state["gate"][expert].copy_(both[0::2])
        state["up"][expert].copy_(both[1::2])
    for expert, matrix in enumerate(down.parts()):
        state["down"][expert].copy_(matrix)
    bias = experts["gate_up"].bias.whole().to(device, dtype)
    return state | {
        "gate_bias": bias[:, 0::2].contiguous(),
        "up_bias": bias[:, 1::2].contiguous(),
        "down_bias": experts["down"].bias.whole().to(device, dtype),
    }
