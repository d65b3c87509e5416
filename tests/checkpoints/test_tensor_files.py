from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from glassformer.checkpoints.tensor_files import read_json, read_tensors, stored_tensors
from glassformer.errors import InputError

TENSORS = {"a": torch.randn(2, 3), "b.weight": torch.randn(4), "c": torch.arange(5)}


def write(directory: Path, tensors: dict[str, Tensor], name: str = "model.safetensors") -> Path:
    save_file(tensors, directory / name)
    return directory


def test_tensors_are_described_before_they_are_read(tmp_path: Path) -> None:
    stored = stored_tensors(write(tmp_path, TENSORS))
    described = {name: (part.name, part.shape, part.kind) for name, part in stored.items()}
    assert described == {"a": ("a", [2, 3], "F32"), "b.weight": ("b.weight", [4], "F32"), "c": ("c", [5], "I64")}


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_tensors_are_read_by_other_names_in_the_dtype_asked_for(tmp_path: Path, kind: torch.dtype) -> None:
    tensor = torch.randn(2, 3).to(kind)
    stored = stored_tensors(write(tmp_path, {"a": tensor}))
    for dtype in (torch.float32, torch.bfloat16):
        read = read_tensors(stored, {"mine": ("a", [2, 3])}, dtype)
        assert read.keys() == {"mine"}
        assert read["mine"].dtype == dtype
        assert torch.equal(read["mine"], tensor.to(dtype))


def test_what_was_read_stays_when_the_file_changes(tmp_path: Path) -> None:
    read = read_tensors(stored_tensors(write(tmp_path, {"a": torch.ones(9)})), {"a": ("a", [9])}, torch.float32)
    content = bytearray((tmp_path / "model.safetensors").read_bytes())
    content[-4:] = b"\0\0\0\0"
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.write(content)
    assert torch.equal(read["a"], torch.ones(9))


def test_every_fault_is_named_and_nothing_is_read(tmp_path: Path) -> None:
    stored = stored_tensors(write(tmp_path, TENSORS))
    with pytest.raises(InputError) as raised:
        read_tensors(stored, {"x": ("a", [3, 2]), "y": ("gone", [1]), "z": ("c", [5])}, torch.float32)
    for fault in ("a of shape [2, 3] instead of [3, 2]", "missing gone", "unknown b.weight", "c of kind I64"):
        assert fault in str(raised.value)


def test_pieces_with_an_index(tmp_path: Path) -> None:
    write(tmp_path, {"a": TENSORS["a"]}, "model-1.safetensors")
    write(tmp_path, {"b.weight": TENSORS["b.weight"]}, "model-2.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors", "b.weight": "model-2.safetensors"}}))
    read = read_tensors(stored_tensors(tmp_path), {"a": ("a", [2, 3]), "b": ("b.weight", [4])}, torch.float32)
    assert torch.equal(read["a"], TENSORS["a"])
    assert torch.equal(read["b"], TENSORS["b.weight"])
    (tmp_path / "model-2.safetensors").unlink()
    with pytest.raises(InputError, match=r"no file .*model-2\.safetensors"):
        stored_tensors(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "../../elsewhere/model-1.safetensors"}}))
    assert stored_tensors(tmp_path).keys() == {"a"}  # an index leads to no other directory
    index.write_text("{}")
    with pytest.raises(InputError, match="without a weight_map"):
        stored_tensors(tmp_path)


def test_names_that_become_one_are_refused(tmp_path: Path) -> None:
    write(tmp_path, {"bert.a": torch.zeros(1), "a": torch.ones(1)})
    with pytest.raises(InputError, match=r"a twice in .*: as a and as bert\.a|a twice in .*: as bert\.a and as a"):
        stored_tensors(tmp_path, lambda name: name.removeprefix("bert."))


@pytest.mark.parametrize("kept", [0, 4, 8, 30, -1])
def test_truncated_files_are_refused(tmp_path: Path, kept: int) -> None:
    path = write(tmp_path, TENSORS) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(InputError, match=r"which cannot be read .* expected a complete safetensors file"):
        stored_tensors(tmp_path)


def test_files_of_other_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no file .*model\.safetensors; expected weights as safetensors"):
        stored_tensors(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\x80\x02}q\x00." * 50)  # what a pickle looks like
    with pytest.raises(InputError, match="cannot be read"):
        stored_tensors(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "cannot be read"),
        (b"\xff\xfe\x00", "cannot be read"),
        (b"", "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (b"[1]", "with a list; expected a JSON object"),
        (None, "no file"),
    ],
)
def test_json_that_is_no_object_is_refused(tmp_path: Path, content: Any, message: str) -> None:
    if content is not None:
        (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_json(tmp_path / "x.json")


def test_the_advice_for_a_broken_file_fits_ones_own_training_too(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match="restore it from a copy, or download or train it anew"):
        read_json(tmp_path / "config.json")
