"""What all formats of decoders share: a decoder without memory, filled with tensors as they are read."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer.checkpoints.headers import FLOATS, StoredTensor
from glassformer.checkpoints.tensor_files import CONFIG_FILE
from glassformer.errors import CheckpointError, InputError, require
from glassformer.models import Decoder, DecoderConfig
from glassformer.quantized import mxfp4

# No kernel takes wider heads, and the tables of positions are as wide.
_WIDEST_HEAD = 2048
# In every form a layer has two norms, query, key, value and output or these fused with biases, and an MLP of three.
_TENSORS_OF_LAYER = 9
# Mixtral's released form has a tensor per expert and matrix.
_RELEASED_MARK, _RELEASED_OF_LAYER, _RELEASED_OF_EXPERT = ".block_sparse_moe.", 7, 3
# So few names are made at once, and a message that tells which are missing is worth more than one of numbers.
_FEW_TENSORS = 1000


@contextmanager
def config_errors(file: Path) -> Iterator[None]:
    """Within it, what is wrong with a configuration is told with the name of the file that it comes from.

    Raises:
        CheckpointError: Instead of another :class:`InputError`, or of what Python raises for values of another kind.
    """
    try:
        yield
    except CheckpointError:
        raise
    except InputError as error:
        raise CheckpointError(f"{file} with {error.got}", error.expected, error.fix) from error
    except (TypeError, AttributeError, OverflowError) as error:
        fault = f"{file} with a fault: {error}"
        raise CheckpointError(fault, "numbers where numbers belong", "Take the file anew.") from error


def require_layers(config: DecoderConfig, stored: Mapping[str, StoredTensor], directory: Path) -> None:
    """Refuse what could not belong to the files, before anything as long or as wide is made.

    Raises:
        CheckpointError: More layers than tensors, layers and experts that take more tensors than there are (and more
            than a thousand), more experts than numbers in any tensor, heads beyond all use, or a number that is
            infinite, NaN, or a truth value.
    """
    of_layer = _TENSORS_OF_LAYER
    if any(_RELEASED_MARK in name for name in stored):
        of_layer = _RELEASED_OF_LAYER + _RELEASED_OF_EXPERT * (config.num_experts or 0)
    implied = config.num_layers * of_layer
    most = max((math.prod(tensor.shape) for tensor in stored.values()), default=0)
    told = {
        f"num_layers = {config.num_layers} beside {len(stored)} tensors": config.num_layers > len(stored),
        f"num_layers = {config.num_layers} and num_experts = {config.num_experts}, which take at least {implied} "
        f"tensors, beside {len(stored)}": implied > max(len(stored), _FEW_TENSORS),
        f"num_experts = {config.num_experts} beside tensors of {most} numbers": (config.num_experts or 0) > most,
        f"head_dim = {config.head_dim}": config.head_dim > _WIDEST_HEAD,
        "a number that is infinite or NaN": not _all_finite(dataclasses.asdict(config)),
        "true or false for a number": any(
            isinstance(number, bool) for number in (config.norm_eps, config.rope_base, config.dropout)
        ),
    }
    if faults := ", ".join(fault for fault, present in told.items() if present):
        raise CheckpointError(
            f"{directory / CONFIG_FILE} with {faults}",
            "the configuration of the tensors beside it",
            f"Take {CONFIG_FILE} and the weights from the same place.",
        )


def _all_finite(fields: Mapping[str, Any]) -> bool:
    return all(
        _all_finite(value) if isinstance(value, dict) else not isinstance(value, float) or math.isfinite(value)
        for value in fields.values()
    )


def choose_dtype(dtype: torch.dtype | None, embedding: StoredTensor) -> torch.dtype:
    """``dtype``, or where that is None, the dtype in which the embedding is stored.

    Raises:
        InputError: No dtype that a decoder computes in.
    """
    chosen = FLOATS[embedding.kind] if dtype is None else dtype
    known = ", ".join(map(str, FLOATS.values()))
    require(chosen in FLOATS.values(), f"dtype = {dtype}", f"one of {known}", "Leave it out to keep what is stored.")
    return chosen


def empty_decoder(config: DecoderConfig, dtype: torch.dtype, directory: Path) -> Decoder:
    """A decoder whose parameters have shapes and no memory.

    Raises:
        CheckpointError: Sizes whose product is no size any more.
    """
    try:
        with torch.device("meta"):  # weights are read, so drawing them would be wasted time and memory
            return Decoder(config).to(dtype)
    except (RuntimeError, OverflowError, TypeError) as error:
        raise CheckpointError(
            f"{directory / CONFIG_FILE}, of which no decoder can be made ({error})",
            "possible sizes",
            "Take the file anew.",
        ) from error


def machine_memory() -> int | None:
    """Bytes of this machine's memory; None where the system does not tell."""
    if "SC_PHYS_PAGES" not in getattr(os, "sysconf_names", ()):
        return None
    pages = os.sysconf("SC_PHYS_PAGES")
    return pages * os.sysconf("SC_PAGE_SIZE") if pages > 0 else None


def require_memory(decoder: Decoder, device: torch.device, directory: Path) -> None:
    """Refuse a decoder that is larger than the machine's memory: the system would end the process without a word.

    Raises:
        CheckpointError: One that cannot be held. Other devices than the CPU say so themselves.
    """
    there = machine_memory()
    if device.type != "cpu" or there is None:
        return
    needed = sum(tensor.nbytes for tensor in decoder.state_dict().values())
    if needed > there:
        raise CheckpointError(
            f"{directory}, whose weights take {needed / 2**30:.1f} GiB here",
            f"at most this machine's {there / 2**30:.1f} GiB",
            "Load a smaller model, or keep the dtype and the packed experts of the file.",
        )


def require_no_nan(exponents: Tensor, stored: StoredTensor) -> None:
    """Refuse packed weights that mean no numbers.

    Raises:
        CheckpointError: An exponent of 255.
    """
    if not exponents.is_meta and exponents.max() == mxfp4.NAN_SCALE:
        raise CheckpointError(
            f"{stored.name} with an exponent of {mxfp4.NAN_SCALE}, which means NaN, in {stored.file}",
            "exponents below it",
            "Download the file anew.",
        )


def fill(decoder: Decoder, state: Mapping[str, Tensor], device: torch.device) -> Decoder:
    """Make ``state`` the decoder's own, without a copy; what no file holds is made anew.

    Args:
        decoder: Of :func:`empty_decoder`.
        state: A tensor for each name of its state dict, on ``device``; the output projection may be left out if it is
            the embedding.
        device: Where it shall be.
    """
    state = dict(state)
    if decoder.config.tied_output:
        state["output.weight"] = state["embedding.weight"]
    decoder.load_state_dict(state, assign=True)
    if decoder.config.tied_output:
        decoder.output.weight = decoder.embedding.weight
    decoder.rotary.to(device)
    for module in decoder.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_meta:  # the load of the experts, which counts from 0
                module._buffers[name] = torch.zeros_like(buffer, device=device)
    return decoder
