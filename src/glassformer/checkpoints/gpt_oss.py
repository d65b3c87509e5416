"""gpt-oss's files, in Hugging Face's layout or OpenAI's, to a decoder: tensor by tensor, each to where it stays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from glassformer.checkpoints.assembly import (
    choose_dtype,
    config_errors,
    empty_decoder,
    fill,
    require_layers,
    require_memory,
    require_no_nan,
)
from glassformer.checkpoints.gpt_oss_config import read_gpt_oss_config
from glassformer.checkpoints.gpt_oss_layouts import (
    MATRICES,
    ExpertNames,
    GptOssLayout,
    Matrix,
    are_packed,
    expert_names,
    matrix_sizes,
    sources,
    wanted,
)
from glassformer.checkpoints.headers import StoredTensor
from glassformer.checkpoints.tensor_files import CONFIG_FILE, check_tensors, open_tensors, stored_tensors
from glassformer.errors import CheckpointError, InputError
from glassformer.models import Decoder, DecoderConfig
from glassformer.quantized import mxfp4

Read = Callable[..., Tensor]


def load_gpt_oss(
    directory: Path,
    config: Mapping[str, Any],
    layout: GptOssLayout,
    *,
    dtype: torch.dtype | None = None,
    experts: Literal["dense", "mxfp4"] | None = None,
    device: torch.device | None = None,
) -> Decoder:
    """The decoder of a directory with gpt-oss's weights.

    Every tensor is read to where it stays. Beside the decoder no more is held than one tensor, or one expert where
    experts have to be rewritten.

    Args:
        directory: Where the files lie.
        config: The content of its ``config.json``.
        layout: Whose names and configuration those are, see
            :func:`~glassformer.checkpoints.gpt_oss_config.layout_of`.
        dtype: Of all weights but packed ones; None: as the embedding is stored, which is bfloat16 in what was released.
        experts: ``"mxfp4"`` keeps or packs them, ``"dense"`` keeps or expands them; None: as they are stored. Packing
            rounds.
        device: None: the CPU.

    Raises:
        CheckpointError: A file that is missing or damaged, another form of network, tensors that are missing, unknown
            or of another shape or kind, an exponent that means NaN, or more weights than this machine's memory.
        InputError: A ``dtype`` that is none.

    Source: OpenAI 2025, gpt-oss, ``gpt_oss/torch``; Hugging Face's layout.
    """
    stored = stored_tensors(directory)
    form = checked_form(directory, config, layout, stored)
    packed = form.expert_format == "mxfp4"
    chosen = experts or form.expert_format
    with config_errors(directory / CONFIG_FILE):
        decoder_config = replace(form, expert_format=chosen)
    source_of = sources(decoder_config, layout)
    dtype = choose_dtype(dtype, stored[source_of["embedding.weight"].name])
    device = torch.device("cpu") if device is None else device
    decoder = empty_decoder(decoder_config, dtype, directory)
    require_memory(decoder, device, directory)
    with open_tensors(stored) as read:
        state = {
            name: read(source.name, source.start, source.stop).to(device, dtype) for name, source in source_of.items()
        }
        for layer in range(decoder_config.num_layers):
            reader = _Experts(read, stored, expert_names(layout, layer), layout == "huggingface", packed, dtype, device)
            make = reader.packed if chosen == "mxfp4" else reader.dense
            state |= {f"layers.{layer}.ffn.{name}": tensor for name, tensor in make(decoder_config).items()}
    return fill(decoder, state, device)


def checked_form(
    directory: Path, config: Mapping[str, Any], layout: GptOssLayout, stored: Mapping[str, StoredTensor]
) -> DecoderConfig:
    """The decoder's configuration for gpt-oss's files, with the experts' format that these have. No tensor is read.

    Args:
        directory: Where the files lie, for messages.
        config: The content of ``config.json``.
        layout: Whose names and configuration those are.
        stored: The tensors of the files.

    Raises:
        CheckpointError: Another form of network, or tensors that are missing, unknown or of another shape or kind.
    """
    form = read_gpt_oss_config(config, layout, directory / CONFIG_FILE)
    require_layers(form, stored, directory)
    packed = are_packed(layout, stored)
    with config_errors(directory / CONFIG_FILE):
        form = replace(form, expert_format="mxfp4" if packed else "dense")
    check_tensors(stored, wanted(form, layout, packed=packed), directory)
    return form


@dataclass(frozen=True)
class _Experts:
    """One layer's experts, from either form of file to either form in memory."""

    read: Read
    stored: Mapping[str, StoredTensor]
    names: ExpertNames
    transposed: bool
    are_packed: bool
    dtype: torch.dtype
    device: torch.device

    def packed(self, config: DecoderConfig) -> dict[str, Tensor]:
        """What :class:`~glassformer.quantized.packed_experts.PackedMixture` holds: as packed files do."""
        state = {
            "gate_up_bias": self.read(self.names.gate_up_bias).to(self.device, self.dtype),
            "down_bias": self.read(self.names.down_bias).to(self.device, self.dtype),
        }
        for matrix in MATRICES:
            rows, width = matrix_sizes(config, matrix)
            if self.are_packed:
                blocks, scales = self._bytes(matrix)
            else:
                shape = (config.num_experts or 0, rows, width // mxfp4.GROUP)
                blocks = torch.empty(*shape, mxfp4.GROUP_BYTES, dtype=torch.uint8)
                scales = torch.empty(shape, dtype=torch.uint8)
                for expert in range(len(blocks)):
                    blocks[expert], scales[expert] = self._encoded(matrix, expert)
            state[f"{matrix}_blocks"], state[f"{matrix}_scales"] = blocks.to(self.device), scales.to(self.device)
        return state

    def dense(self, config: DecoderConfig) -> dict[str, Tensor]:
        """What :class:`~glassformer.layers.experts.MixtureOfExperts` holds: gate and up apart."""
        experts, ff = config.num_experts or 0, config.ff_dim
        bias = self.read(self.names.gate_up_bias).to(self.device, self.dtype)
        state = {
            "gate_bias": bias[:, 0::2].contiguous(),
            "up_bias": bias[:, 1::2].contiguous(),
            "down_bias": self.read(self.names.down_bias).to(self.device, self.dtype),
        }
        for name, rows, width in (
            ("gate", ff, config.hidden_dim),
            ("up", ff, config.hidden_dim),
            ("down", config.hidden_dim, ff),
        ):
            state[name] = torch.empty(experts, rows, width, dtype=self.dtype, device=self.device)
        for expert in range(experts):
            both = self._numbers("gate_up", expert)
            state["gate"][expert].copy_(both[0::2])
            state["up"][expert].copy_(both[1::2])
            state["down"][expert].copy_(self._numbers("down", expert))
        return state

    def _numbers(self, matrix: Matrix, expert: int) -> Tensor:
        """One matrix of one expert, ``[out, in]``."""
        if self.are_packed:
            blocks, scales = self._bytes(matrix, expert, expert + 1)
            return mxfp4.decode(blocks[0], scales[0], torch.promote_types(self.dtype, torch.bfloat16))
        numbers = self.read(self.names.dense(matrix), expert, expert + 1)[0]
        return numbers.t() if self.transposed else numbers

    def _bytes(self, matrix: Matrix, start: int = 0, stop: int | None = None) -> tuple[Tensor, Tensor]:
        """Codes and exponents, none of which means NaN."""
        blocks, scales = self.names.packed(matrix)
        exponents = self.read(scales, start, stop)
        require_no_nan(exponents, self.stored[scales])
        return self.read(blocks, start, stop), exponents

    def _encoded(self, matrix: Matrix, expert: int) -> tuple[Tensor, Tensor]:
        try:
            return mxfp4.encode(self._numbers(matrix, expert).contiguous())
        except InputError as error:
            name = self.names.dense(matrix)
            raise CheckpointError(
                f"{name} with {error.got} in {self.stored[name].file}", error.expected, error.fix
            ) from error
