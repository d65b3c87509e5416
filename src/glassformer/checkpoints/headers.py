"""The header of a safetensors file, checked for consistency before any number is read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Kinds of floating-point numbers, as safetensors writes them."""
DTYPES = FLOATS | {
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "BOOL": torch.bool,
}
"""Kinds of numbers that are read."""
KINDS = {dtype: kind for kind, dtype in DTYPES.items()}
"""How safetensors writes a dtype."""
# Kinds that are not read, but may occur in a file with others.
_BITS = {kind: 8 * dtype.itemsize for kind, dtype in DTYPES.items()} | {
    "U16": 16,
    "U32": 32,
    "U64": 64,
    "C64": 64,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "F4": 4,
}
_METADATA = "__metadata__"
# An untrusted file may have names of megabytes; messages must stay readable.
_LONGEST_NAME = 200


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a file, not read yet."""

    file: Path
    name: str
    """As in the file."""
    shape: list[int]
    kind: str
    """As safetensors writes it: ``"F32"``."""
    start: int = 0
    """Position of its first byte in the file."""

    @property
    def nbytes(self) -> int:
        """Its size in the file, in bytes."""
        return math.prod(self.shape) * _BITS[self.kind] // 8


def header_tensors(file: Path, header: Mapping[str, Any], first: int, size: int) -> list[StoredTensor]:
    """The tensors of a header, checked against the size of the file.

    Args:
        file: The file.
        header: Its header, a JSON object.
        first: Position of the first number in the file.
        size: Size of the file in bytes.

    Raises:
        ValueError: Sizes that do not agree with shapes, an unknown kind of numbers, or tensors that overlap or leave
            gaps.
    """
    spans: list[tuple[int, int, StoredTensor]] = []
    for name, entry in header.items():
        if name == _METADATA:
            continue
        fields: dict[str, Any] = entry if isinstance(entry, dict) else {}
        shape, kind, offsets = fields.get("shape", ""), fields.get("dtype"), fields.get("data_offsets", "")
        if not (_whole_numbers(shape) and _whole_numbers(offsets) and len(offsets) == 2 and isinstance(kind, str)):
            raise ValueError(f"{cut(repr(name))} without a shape, a dtype or two offsets")
        if kind not in _BITS:
            raise ValueError(f"{cut(repr(name))} of the unknown dtype {cut(repr(kind))}")
        begin, end = offsets
        if math.prod(shape) * _BITS[kind] != (end - begin) * 8:
            raise ValueError(f"{cut(repr(name))} with {end - begin} bytes for the shape {shape} of {kind}")
        spans.append((begin, end, StoredTensor(file, name, shape, kind, first + begin)))
    reached = 0
    for begin, end, tensor in sorted(spans, key=lambda span: span[:2]):
        if begin != reached:
            raise ValueError(f"{cut(repr(tensor.name))} at {begin} where the tensor before it ends at {reached}")
        reached = end
    if first + reached != size:
        raise ValueError(f"{size} bytes, where the tensors end at {first + reached}")
    return [tensor for _, _, tensor in spans]


def cut(name: str) -> str:
    """``name`` for a message, shortened if it is long."""
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}..."


def _whole_numbers(values: Any) -> bool:
    return (
        isinstance(values, list)
        and len(values) <= 16
        and all(type(value) is int and 0 <= value < 2**63 for value in values)
    )
