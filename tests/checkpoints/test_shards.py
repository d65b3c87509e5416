import json
import weakref
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from glassformer.checkpoints.lazy import LazyTensor, in_memory
from glassformer.checkpoints.shards import write_tensors
from glassformer.checkpoints.tensor_files import stored_tensors
from refusals import refused

TENSORS = {
    "a": torch.randn(5, 3),
    "bytes": torch.arange(7, dtype=torch.uint8),
    "half": torch.randn(4).bfloat16(),
    "none": torch.zeros(0, 4),
    "number": torch.tensor(3.5),
    "transposed": torch.randn(2, 3).t(),
    "learned": torch.nn.Parameter(torch.randn(3)),
}


def test_safetensors_reads_what_is_written(tmp_path: Path) -> None:
    write_tensors(tmp_path, {name: in_memory(tensor) for name, tensor in TENSORS.items()})
    read = load_file(tmp_path / "model.safetensors")
    assert read.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor), name
    with safe_open(tmp_path / "model.safetensors", "pt") as opened:
        assert opened.metadata() == {"format": "pt"}
    assert not (tmp_path / "model.safetensors.index.json").exists()


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(st.integers(0, 30), min_size=1, max_size=8), shard=st.integers(1, 150))
def test_shards_and_their_index(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], shard: int
) -> None:
    directory = tmp_path_factory.mktemp("shards")
    tensors = {f"t{i}": torch.randn(size) for i, size in enumerate(sizes)}
    write_tensors(
        directory, {name: in_memory(tensor) for name, tensor in tensors.items()}, shard_bytes=shard
    )
    files = sorted(path.name for path in directory.glob("*.safetensors"))
    for file in files:
        held = load_file(directory / file)
        assert (
            sum(t.nbytes for t in held.values()) <= shard
            or sum(t.nbytes > 0 for t in held.values()) == 1
        )
    index = directory / "model.safetensors.index.json"
    if index.exists():
        told = json.loads(index.read_text())
        assert sorted(set(told["weight_map"].values())) == files
        assert told["metadata"]["total_size"] == 4 * sum(sizes)
        assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
        for name, file in told["weight_map"].items():
            assert torch.equal(load_file(directory / file)[name], tensors[name])
    else:
        assert files == ["model.safetensors"]
    stored = stored_tensors(directory)
    assert all(torch.equal(stored[name].read(), tensor) for name, tensor in tensors.items())


def test_a_tensor_is_made_when_its_turn_comes(tmp_path: Path) -> None:
    """When it is made, at most the one before is still in memory."""
    made: list[weakref.ref[Tensor]] = []

    def make(value: int) -> Tensor:
        assert sum(each() is not None for each in made) <= 1
        tensor = torch.full((3, 2), float(value))
        made.append(weakref.ref(tensor))
        return tensor

    tensors = {
        str(value): LazyTensor([3, 2], "F32", torch.float32, lambda value=value: make(value))
        for value in range(4)
    }
    write_tensors(tmp_path, tensors)
    read = load_file(tmp_path / "model.safetensors")
    assert [read[str(value)][2, 0].item() for value in range(4)] == [0, 1, 2, 3]


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with refused("shard_bytes = 0"):
        write_tensors(tmp_path, {"a": in_memory(torch.zeros(1))}, shard_bytes=0)
    with refused(r"a of torch\.complex64"):
        write_tensors(tmp_path, {"a": in_memory(torch.zeros(1, dtype=torch.complex64))})
    assert list(tmp_path.iterdir()) == []
