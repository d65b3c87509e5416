"""Writing safetensors files of bounded size, one tensor at a time and so in little memory."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from glassformer.checkpoints.lazy import LazyTensor
from glassformer.checkpoints.tensor_files import DTYPES, INDEX_FILE, WEIGHTS_FILE
from glassformer.errors import InputError
from glassformer.files import write_text
from glassformer.progress import progress_bar

WEIGHT_FILES = (WEIGHTS_FILE, "model-*-of-*.safetensors", INDEX_FILE)
"""Patterns of the names of the files that :func:`write_tensors` writes."""
SHARD_BYTES = 5 * 10**9
"""Greatest size of files, as in Hugging Face's programs."""


def write_tensors(
    directory: Path, tensors: Mapping[str, LazyTensor], *, shard_bytes: int = SHARD_BYTES
) -> None:
    """Write ``model.safetensors``, or several files with an index beyond ``shard_bytes``.

    Several files are ``model-00001-of-00002.safetensors`` and so on. Memory holds one tensor at a
    time. A tensor larger than ``shard_bytes`` has a file of its own.
    """
    _check_request(tensors, shard_bytes)
    shards = _cut(tensors, shard_bytes)
    total = sum(tensor.nbytes for tensor in tensors.values())
    places: dict[str, str] = {}
    with progress_bar(None, total=total, unit="B", unit_scale=True) as bar:
        for number, shard in enumerate(shards, 1):
            if len(shards) == 1:
                file = WEIGHTS_FILE
            else:
                file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
            _write(directory / file, shard, bar.update)
            places |= dict.fromkeys(shard, file)
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
        write_text(directory / INDEX_FILE, json.dumps(index, indent=2) + "\n")


def _check_request(tensors: Mapping[str, LazyTensor], shard_bytes: int) -> None:
    if shard_bytes < 1:
        raise InputError(
            got=f"shard_bytes = {shard_bytes}",
            expected="a size in bytes, 1 or more",
            fix="Leave it out for 5 GB.",
        )
    for name, tensor in tensors.items():
        if tensor.kind not in DTYPES:
            raise InputError(
                got=f"{name} of {tensor.kind}",
                expected=f"a tensor of {', '.join(DTYPES)}",
                fix="Cast it before.",
            )


def _cut(tensors: Mapping[str, LazyTensor], shard_bytes: int) -> list[dict[str, LazyTensor]]:
    shards: list[dict[str, LazyTensor]] = [{}]
    room = shard_bytes
    for name, tensor in tensors.items():
        if shards[-1] and tensor.nbytes > room:
            shards.append({})
            room = shard_bytes
        shards[-1][name] = tensor
        room -= tensor.nbytes
    return shards


def _write(file: Path, tensors: Mapping[str, LazyTensor], report: Callable[[int], object]) -> None:
    # Wide numbers first: then each is aligned to its size, as the format demands.
    ordered = sorted(tensors.items(), key=lambda item: -DTYPES[item[1].kind].itemsize)
    # transformers refuses a file without this entry.
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in ordered:
        begin = end
        end = end + tensor.nbytes
        header[name] = {"dtype": tensor.kind, "shape": tensor.shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as opened:
        opened.write(len(text).to_bytes(8, "little") + text)
        for name, tensor in ordered:
            numbers = tensor.read()
            assert numbers.dtype == DTYPES[tensor.kind], name
            flat = numbers.detach().cpu().contiguous().view(-1).view(torch.uint8)
            written = opened.write(memoryview(flat.numpy()))  # type: ignore[arg-type]
            assert written == tensor.nbytes, name
            report(written)
