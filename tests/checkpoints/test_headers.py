from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from glassformer.checkpoints.tensor_files import DTYPES, FLOATS, KINDS, StoredTensor, cut, header_tensors

FILE = Path("there/model.safetensors")
# Bytes of a number, as safetensors' own table has them.
SIZES = {"F64": 8, "F32": 4, "BF16": 2, "U8": 1, "BOOL": 1, "U16": 2, "C64": 8, "F8_E4M3": 1}


@given(st.lists(st.tuples(st.sampled_from(sorted(SIZES)), st.lists(st.integers(0, 5), max_size=3))), st.randoms())
def test_tensors_side_by_side_are_found_where_they_lie(tensors: list[tuple[str, list[int]]], order: Any) -> None:
    entries, expected, reached = {}, {}, 0
    for number, (kind, shape) in enumerate(tensors):
        size = SIZES[kind] * torch.Size(shape).numel()
        entries[f"t{number}"] = {"dtype": kind, "shape": shape, "data_offsets": [reached, reached + size]}
        expected[f"t{number}"] = StoredTensor(FILE, f"t{number}", shape, kind, 100 + reached)
        assert expected[f"t{number}"].nbytes == size
        reached += size
    names = sorted(entries)
    order.shuffle(names)
    header = {"__metadata__": {"format": "pt"}, **{name: entries[name] for name in names}}
    assert {tensor.name: tensor for tensor in header_tensors(FILE, header, 100, 100 + reached)} == expected
    for size in (99 + reached, 101 + reached):
        with pytest.raises(ValueError, match=f"{size} bytes, where the tensors end at {100 + reached}"):
            header_tensors(FILE, header, 100, size)


def test_kinds_are_those_that_safetensors_writes() -> None:
    for dtype, kind in KINDS.items():
        assert f'"dtype":"{kind}"'.encode() in save({"a": torch.zeros(1, dtype=dtype)})
        assert DTYPES[kind] == dtype
        assert dtype.is_floating_point == (kind in FLOATS)


def test_numbers_of_less_than_a_byte() -> None:
    assert [StoredTensor(FILE, "a", [8, 3], kind).nbytes for kind in ("F4", "F6_E2M3", "F8_E8M0")] == [12, 18, 24]


def test_a_long_text_is_cut() -> None:
    assert (cut("a" * 200), cut("a" * 201)) == ("a" * 200, "a" * 200 + "...")
