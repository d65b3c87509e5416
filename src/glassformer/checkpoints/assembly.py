"""Reading a decoder, in the steps that all formats share.

Sizes are checked before memory is taken; then tensors are read one by one, each to its place.
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
    """Turn an :class:`InputError` into a :class:`CheckpointError` that names the file."""
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
    """Refuse a configuration whose sizes cannot be those of the files.

    Nothing of these sizes has been made before.

    Args:
        config: The configuration.
        stored: Tensors of the files.
        directory: Directory of the files, for messages.
        of_layer: Least number of tensors of a layer.
    """
    num_tensors = len(stored)
    num_experts = config.num_experts or 0
    least_tensors = config.num_layers * of_layer
    largest = max((math.prod(tensor.shape) for tensor in stored.values()), default=0)
    faults = []
    if config.num_layers > num_tensors:
        faults.append(f"num_layers = {config.num_layers} with {num_tensors} tensors")
    if least_tensors > max(num_tensors, _FEW_TENSORS):
        faults.append(
            f"num_layers = {config.num_layers} and num_experts = {config.num_experts}, "
            f"which take at least {least_tensors} tensors, with {num_tensors}"
        )
    if num_experts > largest:
        faults.append(f"num_experts = {num_experts} with tensors of {largest} numbers")
    if config.head_dim > _WIDEST_HEAD:
        faults.append(f"head_dim = {config.head_dim}")
    if faults:
        raise CheckpointError(
            f"{directory / CONFIG_FILE} with {', '.join(faults)}",
            "the configuration of these tensors",
            f"Take {CONFIG_FILE} and the weights from the same place.",
        )


class _Undrawn(TorchFunctionMode):
    """Draw no random numbers.

    On the meta device, torch would load its compiler to draw them: 68 MiB, and time.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_):
            return kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def empty_decoder(config: DecoderConfig, dtype: torch.dtype = torch.float32) -> Decoder:
    """Return a decoder whose parameters have shapes and no memory."""
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
        stored: Its configuration and lazy tensors.
        place: Its directory or file, for messages.
        dtype: Dtype of all numbers that are not packed; None: as they are stored.
        device: Device of the decoder.
        hold: ``"blocks"`` keeps packed matrices as in the file, ``"dense"`` expands them.
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
    """Return the linear layers that ``pack`` applies to, by name.

    Routers, experts and an output that is the embedding are not among them.
    """
    tied = decoder.config.tied_output
    return {
        name: module
        for name, module in decoder.named_modules()
        if type(module) in (Linear, nn.Linear) and not (tied and name == "output")
    }


def count_parameters(config: DecoderConfig) -> int:
    """Return the number of parameters of a decoder.

    All layers have the same sizes, so that no more than two are made.
    """
    if isinstance(config.windowed_layers, tuple):
        config = replace(config, windowed_layers="all")

    def count(num_layers: int) -> int:
        smaller = replace(config, num_layers=num_layers, unrotated_layers=())
        return sum(parameter.numel() for parameter in empty_decoder(smaller).parameters())

    one = count(1)
    two = count(2)
    return one + (config.num_layers - 1) * (two - one)


def require_room(directory: Path, size: int) -> None:
    """Raise :class:`InputError` if the disk of a directory lacks room for ``size`` bytes.

    The directory may be missing; 64 MiB stay free.
    """
    place = directory.absolute()
    while not place.is_dir():
        place = place.parent
    free = shutil.disk_usage(place).free
    needed = size + 2**26
    if free < needed:
        raise InputError(
            got=f"{directory}, where {byte_size(free)} are free",
            expected=f"room for {byte_size(needed)}",
            fix="Free some, or choose a directory on another disk, or smaller sizes.",
        )


def require_memory(decoder: Decoder, device: torch.device, directory: Path) -> None:
    """Refuse a decoder that takes more memory than this process may hold.

    The system would end the process without a message. Other devices raise their own error.
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
    """Return the bytes that this process may take before the system ends it; None if unknown."""
    memory = process_memory()
    if memory.with_swap is None:
        return memory.total
    return memory.with_swap


def require_no_nan(exponents: Tensor, stored: FileTensor) -> None:
    """Raise :class:`CheckpointError` for packed weights with the exponent 255, which means NaN."""

    def has_no_nan(tensor: Tensor) -> bool:
        return bool(tensor.max() < mxfp4.NAN_SCALE)

    require_finite(exponents, stored.name, stored.file, has_no_nan)


def fill(decoder: Decoder, state: Mapping[str, Tensor]) -> Decoder:
    """Give a decoder of :func:`empty_decoder` the tensors of ``state``, without a copy.

    An output projection that is the embedding may be left out.
    """
    state = dict(state)
    tied = decoder.config.tied_output
    is_packed = "embedding.blocks" in state
    part = "blocks" if is_packed else "weight"
    if tied:
        state[f"output.{part}"] = state[f"embedding.{part}"]
    decoder.load_state_dict(state, assign=True)
    if tied and not is_packed:
        decoder.output.weight = decoder.embedding.weight
    return decoder
