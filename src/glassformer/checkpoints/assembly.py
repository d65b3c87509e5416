"""Reading a decoder, in steps that all formats share: checks before memory is taken, then each tensor to its place."""

import math
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from glassformer.checkpoints.shards import Planned
from glassformer.checkpoints.tensor_files import CONFIG_FILE, StoredTensor, require_finite
from glassformer.errors import CheckpointError, InputError, require
from glassformer.layers.feedforward import Linear
from glassformer.layers.quantized import DenseFormat, int8, lossless, mxfp4
from glassformer.memory import process_memory
from glassformer.models import Decoder, DecoderConfig
from glassformer.text import byte_size

_HELD: dict[DenseFormat, tuple[type[int8.Int8Linear | lossless.LosslessLinear], tuple[str, str]]] = {
    "int8": (int8.Int8Linear, ("integers", "scales")),
    "lossless": (lossless.LosslessLinear, ("packed", "index")),
}
"""The linear layer of a format, and the names of its weights."""

# No kernel takes wider heads.
_WIDEST_HEAD = 2048
# In every format a layer has two norms, query, key, value and output or these fused with biases, and an MLP of three.
_TENSORS_OF_LAYER = 9
# Up to here, an error that names the missing tensors is worth more than one that counts them.
_FEW_TENSORS = 1000


@contextmanager
def config_errors(file: Path) -> Iterator[None]:
    """Within it, an :class:`InputError` about a configuration becomes a :class:`CheckpointError` with the file."""
    try:
        yield
    except CheckpointError:
        raise
    except InputError as error:
        raise CheckpointError(f"{file} with {error.got}", error.expected, error.fix) from error


def check_sizes(
    config: DecoderConfig, stored: Mapping[str, StoredTensor], directory: Path, of_layer: int = _TENSORS_OF_LAYER
) -> None:
    """Refuse a configuration that cannot belong to the files, before anything as long or as wide is made.

    ``of_layer`` is the least number of tensors of a layer.
    """
    implied = config.num_layers * of_layer
    most = max((math.prod(tensor.shape) for tensor in stored.values()), default=0)
    found = {
        f"num_layers = {config.num_layers} with {len(stored)} tensors": config.num_layers > len(stored),
        f"num_layers = {config.num_layers} and num_experts = {config.num_experts}, which take at least {implied} "
        f"tensors, with {len(stored)}": implied > max(len(stored), _FEW_TENSORS),
        f"num_experts = {config.num_experts} with tensors of {most} numbers": (config.num_experts or 0) > most,
        f"head_dim = {config.head_dim}": config.head_dim > _WIDEST_HEAD,
    }
    if faults := ", ".join(fault for fault, present in found.items() if present):
        raise CheckpointError(
            f"{directory / CONFIG_FILE} with {faults}",
            "the configuration of these tensors",
            f"Take {CONFIG_FILE} and the weights from the same place.",
        )


class _Undrawn(TorchFunctionMode):
    """Draw no random numbers. For the meta device torch would load its compiler to draw them: 68 MiB, and time."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        drawing = func in (nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_)
        return kwargs["tensor"] if drawing else func(*args, **(kwargs or {}))


class StoredDecoder(NamedTuple):
    """A decoder whose tensors are read when they are made."""

    config: DecoderConfig
    state: dict[str, Planned]
    """By the decoder's names."""
    dtype: torch.dtype
    """Of the weights that are made; norms may have more digits."""
    file_dtype: torch.dtype
    """Of the embedding in the files."""
    family: str | None = None
    """Its ``model_type``."""


def empty_decoder(config: DecoderConfig, dtype: torch.dtype = torch.float32) -> Decoder:
    """A decoder whose parameters have shapes and no memory."""
    try:
        with torch.device("meta"), _Undrawn():  # weights are read
            return Decoder(config).to(dtype)
    except (RuntimeError, OverflowError, TypeError) as error:
        raise InputError(
            f"sizes too large for a decoder ({error})", "smaller sizes", "Download the file again."
        ) from error


def read_decoder(
    stored: StoredDecoder, directory: Path, *, device: torch.device, dense: DenseFormat | None = None
) -> Decoder:
    """Read a decoder; with ``dense``, its :func:`convertible` layers become ones of this format."""
    config, state, dtype = stored.config, stored.state, stored.dtype
    decoder = empty_decoder(config, dtype)
    decoder.family = stored.family
    if dense is None:
        require_memory(decoder, device, directory)
        return fill(decoder, {name: each.make() for name, each in state.items()})
    kind, names = _HELD[dense]
    converted = convertible(decoder)
    for name, linear in converted.items():
        with torch.device("meta"):
            layer = kind(linear.in_features, linear.out_features, bias=linear.bias is not None)
        if layer.bias is not None:
            layer.bias.data = layer.bias.data.to(dtype)
        decoder.set_submodule(name, layer)
    require_memory(decoder, device, directory)
    tensors = {name: each.make() for name, each in state.items()}
    for name in converted:
        weight = tensors.pop(f"{name}.weight")
        if dense == "int8":
            encoded = int8.encode(weight)
        else:
            # A file in bfloat16 may be read in another dtype.
            narrow = weight.bfloat16()
            same = stored.file_dtype == torch.bfloat16 and (weight.is_meta or torch.equal(narrow.to(weight), weight))
            got = f"dense = 'lossless' with {name} of {directory}, which is not stored in bfloat16"
            require(same, got, "weights stored in bfloat16", "Leave dense out, or take 'int8'.")
            encoded = lossless.encode(narrow)
        tensors |= zip((f"{name}.{each}" for each in names), encoded, strict=True)
    return fill(decoder, tensors)


def convertible(decoder: Decoder) -> dict[str, nn.Linear]:
    """The linear layers that ``dense`` applies to: all but routers, experts, and an output that is the embedding."""
    tied = decoder.config.tied_output
    return {
        name: module
        for name, module in decoder.named_modules()
        if type(module) in (Linear, nn.Linear) and not (tied and name == "output")
    }


def count_parameters(config: DecoderConfig) -> int:
    """Of the decoder, of which no more than two layers are made: all have the same sizes."""
    layers = "all" if isinstance(config.windowed_layers, tuple) else config.windowed_layers
    one, two = (
        sum(each.numel() for each in empty_decoder(small).parameters())
        for small in (replace(config, num_layers=n, windowed_layers=layers, unrotated_layers=()) for n in (1, 2))
    )
    return one + (config.num_layers - 1) * (two - one)


def require_room(directory: Path, size: int) -> None:
    """Raise :class:`InputError` if the disk of a directory, which may be missing, lacks room for so many bytes."""
    places = (directory.absolute(), *directory.absolute().parents)
    free = shutil.disk_usage(next(place for place in places if place.is_dir())).free
    wanted = size + 2**26
    require(
        free >= wanted,
        f"{directory}, where {byte_size(free)} are free",
        f"room for {byte_size(wanted)}",
        "Free some, or choose a directory on another disk, or smaller sizes.",
    )


def require_memory(decoder: Decoder, device: torch.device, directory: Path) -> None:
    """Refuse a decoder that this process may not hold in memory: the system would end it without a message.

    Devices other than the CPU raise their own error.
    """
    if device.type != "cpu":
        return
    needed = sum(tensor.nbytes for tensor in decoder.state_dict().values())
    available = available_memory()
    if available is not None and needed > available:
        raise CheckpointError(
            f"{directory}, whose weights take {byte_size(needed)} here",
            f"at most the {byte_size(available)} that this process may take now",
            "Load a smaller model, keep the dtype and the packed experts of the file, or free memory.",
        )


def available_memory() -> int | None:
    """Return the bytes that this process may take before the system ends it; None where nothing says so."""
    memory = process_memory()
    return memory.total if memory.with_swap is None else memory.with_swap


def require_no_nan(exponents: Tensor, stored: StoredTensor) -> None:
    """Raise :class:`CheckpointError` for packed weights with an exponent of 255, which means NaN."""
    require_finite(exponents, stored.name, stored.file, lambda each: bool(each.max() < mxfp4.NAN_SCALE))


def fill(decoder: Decoder, state: Mapping[str, Tensor]) -> Decoder:
    """Give a decoder of :func:`empty_decoder` the tensors of ``state`` without a copy.

    An output projection that is the embedding may be left out.
    """
    state, tied = dict(state), decoder.config.tied_output
    part = "blocks" if "embedding.blocks" in state else "weight"
    if tied:
        state[f"output.{part}"] = state[f"embedding.{part}"]
    decoder.load_state_dict(state, assign=True)
    if tied and part == "weight":
        decoder.output.weight = decoder.embedding.weight
    return decoder
