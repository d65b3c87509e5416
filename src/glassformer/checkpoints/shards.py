"""Writing safetensors files of bounded size, one tensor at a time: a model of any size is written in little memory."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from glassformer.checkpoints.tensor_files import INDEX_FILE, KINDS, WEIGHTS_FILE
from glassformer.errors import require
from glassformer.files import write_text

SHARD_BYTES = 5 * 10**9
"""The file size of Hugging Face's programs."""


@dataclass(frozen=True)
class Planned:
    """A tensor that is made when it is written or asked for."""

    shape: list[int]
    dtype: torch.dtype
    parts: Callable[[], Iterable[Tensor]]
    """Its numbers in order, in pieces of any shape, for example one expert at a time."""
    read: Callable[[], Tensor] | None = None
    """Gives the whole tensor, where that takes less than putting its parts together."""
    source: str = "a tensor"
    """What it is called in errors."""

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def whole(self) -> Tensor:
        """The tensor in memory."""
        if self.read is not None:
            return self.read()
        whole, start = torch.empty(self.shape, dtype=self.dtype), 0
        for part in self.parts():
            whole.view(-1)[start : start + part.numel()] = part.reshape(-1)
            start += part.numel()
        return whole


def plan(tensor: Tensor) -> Planned:
    """A tensor that is in memory already."""
    return Planned(list(tensor.shape), tensor.dtype, lambda: [tensor], lambda: tensor)


def write_tensors(directory: Path, planned: Mapping[str, Planned], *, shard_bytes: int = SHARD_BYTES) -> None:
    """Write ``model.safetensors``; or, beyond ``shard_bytes``, ``model-00001-of-00002.safetensors`` ... with an index.

    Memory holds one part of a tensor at a time. A tensor larger than ``shard_bytes`` has its own file.
    """
    require(shard_bytes >= 1, f"shard_bytes = {shard_bytes}", "a size in bytes, 1 or more", "Leave it out for 5 GB.")
    for name, tensor in planned.items():
        known = ", ".join(KINDS.values())
        require(tensor.dtype in KINDS, f"{name} of {tensor.dtype}", f"a tensor of {known}", "Cast it before.")
    shards = _cut(planned, shard_bytes)
    if len(shards) == 1:
        _write(directory / WEIGHTS_FILE, shards[0])
        return
    places: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        _write(directory / file, shard)
        places |= dict.fromkeys(shard, file)
    total = sum(tensor.nbytes for tensor in planned.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
    write_text(directory / INDEX_FILE, json.dumps(index, indent=2) + "\n")


def _cut(planned: Mapping[str, Planned], shard_bytes: int) -> list[dict[str, Planned]]:
    shards: list[dict[str, Planned]] = [{}]
    room = shard_bytes
    for name, tensor in planned.items():
        if shards[-1] and tensor.nbytes > room:
            shards.append({})
            room = shard_bytes
        shards[-1][name] = tensor
        room -= tensor.nbytes
    return shards


def _write(file: Path, planned: Mapping[str, Planned]) -> None:
    # Wide numbers first: then each is aligned to its size, as the format demands.
    ordered = sorted(planned.items(), key=lambda item: -item[1].dtype.itemsize)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}  # without which transformers refuses the file
    end = 0
    for name, tensor in ordered:
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": KINDS[tensor.dtype], "shape": tensor.shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as opened:
        opened.write(len(text).to_bytes(8, "little") + text)
        for name, tensor in ordered:
            written = 0
            for part in tensor.parts():
                assert part.dtype == tensor.dtype, name
                flat = part.detach().cpu().contiguous().view(-1).view(torch.uint8)
                written += opened.write(memoryview(flat.numpy()))  # type: ignore[arg-type]
            assert written == tensor.nbytes, name
