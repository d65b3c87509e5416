"""Reading a decoder, in steps that all formats share: checks before memory is taken, then each
tensor to its place.
"""

import math
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from glassformer.checkpoints.lazy import LazyDecoder
from glassformer.checkpoints.tensor_files import CONFIG_FILE, FileTensor, require_finite
from glassformer.errors import CheckpointError, InputError
from glassformer.kernels.packed import KINDS
from glassformer.layers.feedforward import Linear
from glassformer.layers.quantized import Pack, mxfp4
from glassformer.layers.quantized.packed import buffer_name, packed_like
from glassformer.memory import process_memory
from glassformer.models import Decoder, DecoderConfig
from glassformer.text import byte_size

Hold = Literal["blocks", "dense"]
"""Packed weights as the file's own blocks, or expanded."""
_CPU = torch.device("cpu")

# No kernel takes wider heads.
_WIDEST_HEAD = 2048
# In every format a layer has two norms, query, key, value and output or these fused with biases,
# and an MLP of three.
_TENSORS_OF_LAYER = 9
# Up to here, an error that names the missing tensors is worth more than one that counts them.
_FEW_TENSORS = 1000


@contextmanager
def config_errors(file: Path) -> Iterator[None]:
    """Within it, an :class:`InputError` about a configuration becomes a :class:`CheckpointError`
    with the file.
    """
    try:
        yield
    except CheckpointError:
        raise
    except InputError as error:
        raise CheckpointError(f"{file} with {error.got}", error.expected, error.fix) from error


def check_sizes(
    config: DecoderConfig,
    stored: Mapping[str, FileTensor],
    directory: Path,
    of_layer: int = _TENSORS_OF_LAYER,
) -> None:
    """Refuse a configuration that cannot belong to the files, before anything as long or as wide is
    made.

    ``of_layer`` is the least number of tensors of a layer.
    """
    implied = config.num_layers * of_layer
    most = max((math.prod(tensor.shape) for tensor in stored.values()), default=0)
    found = {
        f"num_layers = {config.num_layers} with {len(stored)} tensors": config.num_layers
        > len(stored),
        f"num_layers = {config.num_layers} and num_experts = {config.num_experts}, which take at "
        f"least {implied} "
        f"tensors, with {len(stored)}": implied > max(len(stored), _FEW_TENSORS),
        f"num_experts = {config.num_experts} with tensors of {most} numbers": (
            config.num_experts or 0
        )
        > most,
        f"head_dim = {config.head_dim}": config.head_dim > _WIDEST_HEAD,
    }
    if faults := ", ".join(fault for fault, present in found.items() if present):
        raise CheckpointError(
            f"{directory / CONFIG_FILE} with {faults}",
            "the configuration of these tensors",
            f"Take {CONFIG_FILE} and the weights from the same place.",
        )


class _Undrawn(TorchFunctionMode):
    """Draw no random numbers. For the meta device torch would load its compiler to draw them: 68
    MiB, and time.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        drawing = func in (nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_)
        if drawing:
            return kwargs["tensor"]
        return func(*args, **(kwargs or {}))


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
    stored: LazyDecoder,
    place: Path,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device = _CPU,
    hold: Hold = "blocks",
    pack: Pack | None = None,
) -> Decoder:
    """Read a decoder's tensors, one by one, into a new decoder in evaluation mode.

    Args:
        stored: What is read.
        place: Its directory or file, for messages.
        dtype: Dtype of all numbers that are not packed; None: as they are stored.
        device: The decoder's.
        hold: ``"blocks"`` keeps packed matrices as they are in the file, ``"dense"`` expands them.
        pack: Kind in which the :func:`convertible` layers are packed, which rounds; None: as they
            are stored.
    """
    decoder = empty_decoder(stored.config, dtype or stored.dtype)
    decoder.family = stored.family
    kinds: dict[str, str] = {}
    if pack is not None:
        kinds = {f"{name}.weight": pack for name in convertible(decoder)}
        hold_packed(decoder, kinds)
    if hold == "blocks":
        kinds |= hold_packed(decoder, stored_kinds(stored))
    require_memory(decoder, device, place)
    state: dict[str, Tensor] = {}
    for name, tensor in stored.tensors.items():
        kind = kinds.get(name)
        tensor_dtype = stored.dtype_of(name, dtype)
        if kind is None:
            state[name] = tensor.load(tensor_dtype).to(device)
        else:
            blocks = tensor.load_packed(kind, tensor_dtype, f"{name} of {place}")
            state[buffer_name(name)] = blocks.to(device)
    return fill(decoder, state).eval()


def stored_kinds(stored: LazyDecoder) -> dict[str, str]:
    """Return the kind of each tensor that is stored packed, by its name."""
    return {name: tensor.kind for name, tensor in stored.tensors.items() if tensor.kind in KINDS}


def hold_packed(decoder: Decoder, kinds: Mapping[str, str]) -> dict[str, str]:
    """Replace the modules of some weights by modules that hold them packed.

    Args:
        decoder: From :func:`empty_decoder`.
        kinds: The kind of each weight that is to be packed, by its name. A mixture of experts holds
            all its matrices packed or none.

    Returns:
        The kind of each weight that is held packed, an output that is the embedding included. Other
        weights are numbers.
    """
    if decoder.config.tied_output and "embedding.weight" in kinds:
        kinds = {**kinds, "output.weight": kinds["embedding.weight"]}
    kinds_by_module: dict[str, dict[str, str]] = {}
    for name, kind in kinds.items():
        module_name, _, weight = name.rpartition(".")
        kinds_by_module.setdefault(module_name, {})[weight] = kind
    held: dict[str, str] = {}
    for module_name, module_kinds in kinds_by_module.items():
        module = packed_like(decoder.get_submodule(module_name), module_kinds)
        if module is None:
            continue
        decoder.set_submodule(module_name, module)
        held |= {f"{module_name}.{weight}": kind for weight, kind in module_kinds.items()}
    return held


def convertible(decoder: Decoder) -> dict[str, nn.Linear]:
    """Return the linear layers that ``pack`` applies to: no routers and experts, no output that is
    the embedding.
    """
    tied = decoder.config.tied_output
    return {
        name: module
        for name, module in decoder.named_modules()
        if type(module) in (Linear, nn.Linear) and not (tied and name == "output")
    }


def count_parameters(config: DecoderConfig) -> int:
    """Of the decoder, of which no more than two layers are made: all have the same sizes."""
    if isinstance(config.windowed_layers, tuple):
        config = replace(config, windowed_layers="all")

    def count(num_layers: int) -> int:
        smaller = replace(config, num_layers=num_layers, unrotated_layers=())
        return sum(parameter.numel() for parameter in empty_decoder(smaller).parameters())

    one_layer = count(2) - count(1)
    return count(1) + (config.num_layers - 1) * one_layer


def require_room(directory: Path, size: int) -> None:
    """Raise :class:`InputError` if the disk of a directory, which may be missing, lacks room for so
    many bytes.
    """
    places = (directory.absolute(), *directory.absolute().parents)
    free = shutil.disk_usage(next(place for place in places if place.is_dir())).free
    wanted = size + 2**26
    if not free >= wanted:
        raise InputError(
            got=f"{directory}, where {byte_size(free)} are free",
            expected=f"room for {byte_size(wanted)}",
            fix="Free some, or choose a directory on another disk, or smaller sizes.",
        )


def require_memory(decoder: Decoder, device: torch.device, directory: Path) -> None:
    """Refuse a decoder that this process may not hold in memory: the system would end it without a
    message.

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
            "Load a smaller model, keep the dtype and the packed experts of the file, or free "
            "memory.",
        )


def available_memory() -> int | None:
    """Return the bytes that this process may take before the system ends it; None where nothing
    says so.
    """
    memory = process_memory()
    if memory.with_swap is None:
        return memory.total
    return memory.with_swap


def require_no_nan(exponents: Tensor, stored: FileTensor) -> None:
    """Raise :class:`CheckpointError` for packed weights with an exponent of 255, which means NaN."""
    require_finite(
        exponents, stored.name, stored.file, lambda each: bool(each.max() < mxfp4.NAN_SCALE)
    )


def fill(decoder: Decoder, state: Mapping[str, Tensor]) -> Decoder:
    """Give a decoder of :func:`empty_decoder` the tensors of ``state`` without a copy.

    An output projection that is the embedding may be left out.
    """
    state = dict(state)
    tied = decoder.config.tied_output
    part = "blocks" if "embedding.blocks" in state else "weight"
    if tied:
        state[f"output.{part}"] = state[f"embedding.{part}"]
    decoder.load_state_dict(state, assign=True)
    if tied and part == "weight":
        decoder.output.weight = decoder.embedding.weight
    return decoder
