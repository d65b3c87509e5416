"""Writing safetensors files of bounded size, one tensor at a time: a model of any size is written in little memory."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from glassformer.checkpoints.tensor_files import INDEX_FILE, KINDS, WEIGHTS_FILE
from glassformer.errors import require
from glassformer.files import write_text
from glassformer.progress import progress_bar

WEIGHT_FILES = (WEIGHTS_FILE, "model-*-of-*.safetensors", INDEX_FILE)
"""Patterns of the names of the files that :func:`write_tensors` writes."""
SHARD_BYTES = 5 * 10**9
"""The file size of Hugging Face's programs."""


@dataclass(frozen=True)
class Planned:
    """A tensor that is made when it is written or asked for."""

    shape: list[int]
    dtype: torch.dtype
    make: Callable[[], Tensor]

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


def plan(tensor: Tensor) -> Planned:
    """A tensor that is in memory already."""
    return Planned(list(tensor.shape), tensor.dtype, tensor.detach)


def write_tensors(directory: Path, planned: Mapping[str, Planned], *, shard_bytes: int = SHARD_BYTES) -> None:
    """Write ``model.safetensors``; or, beyond ``shard_bytes``, ``model-00001-of-00002.safetensors`` ... with an index.

    Memory holds one tensor at a time. One larger than ``shard_bytes`` has its own file.
    """
    require(shard_bytes >= 1, f"shard_bytes = {shard_bytes}", "a size in bytes, 1 or more", "Leave it out for 5 GB.")
    for name, tensor in planned.items():
        known = ", ".join(KINDS.values())
        require(tensor.dtype in KINDS, f"{name} of {tensor.dtype}", f"a tensor of {known}", "Cast it before.")
    shards = _cut(planned, shard_bytes)
    total, places = sum(tensor.nbytes for tensor in planned.values()), dict[str, str]()
    with progress_bar(None, total=total, unit="B", unit_scale=True) as bar:
        for number, shard in enumerate(shards, 1):
            file = WEIGHTS_FILE if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
            _write(directory / file, shard, bar.update)
            places |= dict.fromkeys(shard, file)
    if len(shards) == 1:
        return
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


def _write(file: Path, planned: Mapping[str, Planned], report: Callable[[int], object]) -> None:
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
            made = tensor.make()
            assert made.dtype == tensor.dtype, name
            flat = made.detach().cpu().contiguous().view(-1).view(torch.uint8)
            written = opened.write(memoryview(flat.numpy()))  # type: ignore[arg-type]
            assert written == tensor.nbytes, name
            report(written)
