"""Decoders whose tensors are read, or computed from other tensors, when they are asked for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from glassformer.checkpoints.tensor_files import DTYPES, KINDS, FileTensor, stored_bytes
from glassformer.errors import CheckpointError
from glassformer.kernels.packed import KINDS as BLOCKS
from glassformer.kernels.packed import encode, finite, values
from glassformer.models import DecoderConfig


@dataclass(frozen=True)
class LazyTensor:
    """A tensor that is read, or computed, when it is asked for.

    Args:
        shape: Shape of its numbers, also where these are packed in blocks.
        kind: Format of its numbers: ``"F32"`` as in safetensors, or ``"Q4_K"`` as in GGUF.
        dtype: Dtype in which it is loaded unless another is asked for.
        read: Function that returns it in memory of its own, as it is stored: numbers of ``kind``,
            or blocks as uint8 ``[..., rows, bytes of a row]``.
    """

    shape: list[int]
    kind: str
    dtype: torch.dtype
    read: Callable[[], Tensor]

    @property
    def nbytes(self) -> int:
        """Size in bytes, as it is stored."""
        return stored_bytes(self.shape, self.kind)

    def load(self, dtype: torch.dtype | None = None) -> Tensor:
        """Read it as numbers of ``dtype``; bytes, such as those of experts in MXFP4, stay bytes."""
        tensor = self.read()
        if self.kind in BLOCKS:
            tensor = values(self.kind, tensor)
        if not tensor.is_floating_point():
            return tensor
        return tensor.to(self.dtype if dtype is None else dtype)

    def load_packed(self, kind: str, dtype: torch.dtype, label: str) -> Tensor:
        """Read it as blocks of ``kind``: those of the file, or its numbers of ``dtype`` rounded.

        Raises:
            CheckpointError: Numbers beyond the range of ``kind``; ``label`` names the tensor.
        """
        if kind == self.kind:
            return self.read()
        numbers = self.load(dtype)
        blocks = encode(kind, numbers)
        if not finite(kind, blocks):
            raise CheckpointError(
                f"{label} with weights beyond {kind}, or infinite or NaN",
                f"finite weights of {kind}",
                "Leave out pack.",
            )
        return blocks


def in_memory(tensor: Tensor) -> LazyTensor:
    """Return a lazy tensor of one that is in memory already."""
    return LazyTensor(list(tensor.shape), _kind_of(tensor.dtype), tensor.dtype, tensor.detach)


def _kind_of(dtype: torch.dtype) -> str:
    return KINDS.get(dtype, str(dtype))


@dataclass(frozen=True)
class LazyDecoder:
    """A decoder's configuration, and its tensors by the names of its state dict.

    An output projection that is the embedding may be left out.
    """

    config: DecoderConfig
    tensors: Mapping[str, LazyTensor]
    dtype: torch.dtype
    """Dtype of expanded weights, unless a caller asks for another. Norms may have more digits."""
    family: str | None = None
    """The ``model_type`` of its family; None for our own layout."""
    wide: frozenset[str] = field(default=frozenset())
    """Tensors that stay in float32 at least, whatever dtype is asked for: a norm's 1 + w."""
    files: Sequence[tuple[str, FileTensor]] = ()
    """Tensors of its files, each with our name for the first weight that it holds. The name is
    empty for a tensor that is no weight, such as a mask. A decoder in memory has no files.
    """

    def dtype_of(self, name: str, requested: torch.dtype | None) -> torch.dtype:
        """Return the dtype in which a tensor of numbers is loaded if ``requested`` is asked for."""
        if requested is None:
            return self.tensors[name].dtype
        if name in self.wide:
            return torch.promote_types(requested, torch.float32)
        return requested


def expanded(tensor: LazyTensor) -> LazyTensor:
    """Return a tensor that is read as numbers of its dtype, however it is stored."""
    return LazyTensor(tensor.shape, _kind_of(tensor.dtype), tensor.dtype, tensor.load)


def in_numbers(decoder: LazyDecoder) -> LazyDecoder:
    """Return a decoder whose tensors are all read as numbers, however they are stored."""
    return replace(
        decoder, tensors={name: expanded(tensor) for name, tensor in decoder.tensors.items()}
    )


class Together:
    """Tensors that are computed together. Each is kept until it is taken, by any thread."""

    def __init__(self, compute: Callable[[], Mapping[Any, Tensor]]) -> None:
        self._compute = compute
        self._computed: dict[Any, Tensor] = {}

    def take(self, key: Any) -> Tensor:
        """Return the tensor of ``key``, which is computed again when it is taken a second time."""
        tensor = self._computed.pop(key, None)
        if tensor is None:  # also where another thread has just taken it
            computed = dict(self._compute())
            tensor = computed.pop(key)
            self._computed = computed
        return tensor


def converted(
    tensors: Mapping[str, LazyTensor], convert: Callable[[dict[str, Tensor]], dict[str, Tensor]]
) -> dict[str, LazyTensor]:
    """Return lazy tensors that ``convert`` computes from others, all at once.

    Their shapes are those that ``convert`` returns on the meta device.
    """
    empty = {name: _on_meta(tensor) for name, tensor in tensors.items()}
    outputs = Together(lambda: convert({name: tensor.read() for name, tensor in tensors.items()}))
    return {
        name: LazyTensor(
            list(output.shape), KINDS[output.dtype], output.dtype, partial(outputs.take, name)
        )
        for name, output in convert(empty).items()
    }


def _on_meta(tensor: LazyTensor) -> Tensor:
    """Return a tensor without numbers, in the shape and dtype that ``tensor.read`` returns."""
    block = BLOCKS.get(tensor.kind)
    if block is None:
        return torch.empty(tensor.shape, dtype=DTYPES[tensor.kind], device="meta")
    return torch.empty(block.packed_shape(tensor.shape), dtype=torch.uint8, device="meta")
