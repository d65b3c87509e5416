import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save, save_file
from torch import Tensor

from glassformer.checkpoints.decoders import load_decoder
from glassformer.checkpoints.description import describe
from glassformer.checkpoints.gguf_file import read_gguf
from glassformer.checkpoints.store import open_model
from glassformer.checkpoints.tensor_files import (
    DTYPES,
    FLOATS,
    KINDS,
    FileTensor,
    WeightFile,
    check_tensors,
    header_tensors,
    read_json,
    read_tensors,
    stored_tensors,
)
from glassformer.data.released_tokenizer import read_tokenizer
from glassformer.errors import CheckpointError, InputError
from glassformer.explorer.loading.discovery import entries_at
from refusals import refused

TENSORS = {"a": torch.randn(2, 3), "b.weight": torch.randn(4), "c": torch.arange(5)}


def write(directory: Path, tensors: dict[str, Tensor], name: str = "model.safetensors") -> Path:
    save_file(tensors, directory / name)
    return directory


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_tensors_are_read_by_other_names_in_the_dtype_asked_for(
    tmp_path: Path, kind: torch.dtype
) -> None:
    tensor = torch.randn(2, 3).to(kind)
    stored = stored_tensors(write(tmp_path, {"a": tensor}))
    for dtype in (torch.float32, torch.bfloat16):
        read = read_tensors(stored, {"mine": ("a", [2, 3])}, dtype)
        assert read.keys() == {"mine"}
        assert read["mine"].dtype == dtype
        assert torch.equal(read["mine"], tensor.to(dtype))


def test_what_was_read_stays_when_the_file_changes(tmp_path: Path) -> None:
    read = read_tensors(
        stored_tensors(write(tmp_path, {"a": torch.ones(9)})), {"a": ("a", [9])}, torch.float32
    )
    content = bytearray((tmp_path / "model.safetensors").read_bytes())
    content[-4:] = b"\0\0\0\0"
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.write(content)
    assert torch.equal(read["a"], torch.ones(9))


def test_every_fault_is_named_and_nothing_is_read(tmp_path: Path) -> None:
    stored = stored_tensors(write(tmp_path, TENSORS))
    with pytest.raises(InputError) as raised:
        read_tensors(
            stored, {"x": ("a", [3, 2]), "y": ("gone", [1]), "z": ("c", [5])}, torch.float32
        )
    for fault in (
        "a of shape [2, 3] instead of [3, 2]",
        "missing gone",
        "unknown b.weight",
        "c of kind I64",
    ):
        assert fault in str(raised.value)


def test_pieces_with_an_index(tmp_path: Path) -> None:
    write(tmp_path, {"a": TENSORS["a"]}, "model-1.safetensors")
    write(tmp_path, {"b.weight": TENSORS["b.weight"]}, "model-2.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(
        json.dumps({"weight_map": {"a": "model-1.safetensors", "b.weight": "model-2.safetensors"}})
    )
    read = read_tensors(
        stored_tensors(tmp_path), {"a": ("a", [2, 3]), "b": ("b.weight", [4])}, torch.float32
    )
    assert torch.equal(read["a"], TENSORS["a"])
    assert torch.equal(read["b"], TENSORS["b.weight"])
    (tmp_path / "model-2.safetensors").unlink()
    with refused(r"no file .*model-2\.safetensors"):
        stored_tensors(tmp_path)
    index.write_text("{}")
    with refused("without a weight_map"):
        stored_tensors(tmp_path)


def test_names_that_become_one_are_refused(tmp_path: Path) -> None:
    write(tmp_path, {"bert.a": torch.zeros(1), "a": torch.ones(1)})
    with refused(r"a twice in .*: as a in model\.safetensors and as bert\.a in"):
        stored_tensors(tmp_path, lambda name: name.removeprefix("bert."))


def test_an_index_that_does_not_agree_with_the_files_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"a": TENSORS["a"]}, "model-1.safetensors")
    write(tmp_path, {"b": TENSORS["b.weight"]}, "model-2.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(
        json.dumps({"weight_map": {"a": "model-2.safetensors", "b": "model-1.safetensors"}})
    )
    with refused(r"index\.json with a in model-2\.safetensors", error=CheckpointError):
        stored_tensors(tmp_path)
    for elsewhere in (
        "../model-1.safetensors",
        "/etc/passwd",
        "sub\\model.safetensors",
        "x.bin",
        "a\0.safetensors",
        3,
        None,
    ):
        index.write_text(json.dumps({"weight_map": {"a": elsewhere}}))
        with refused(
            "with a in ",
            expected="the name of a safetensors file in the same",
            error=CheckpointError,
        ):
            stored_tensors(tmp_path)


def test_files_without_an_index_are_all_read(tmp_path: Path) -> None:
    """As OpenAI's own program reads a directory."""
    write(tmp_path, {"a": TENSORS["a"]}, "model--00001-of-00002.safetensors")
    write(tmp_path, {"b": TENSORS["b.weight"]}, "model--00002-of-00002.safetensors")
    assert stored_tensors(tmp_path).keys() == {"a", "b"}
    write(tmp_path, {"b": TENSORS["b.weight"]}, "model.extra.safetensors")
    with refused(
        r"b twice in .* in model--00002-of-00002\.safetensors and as b in model\.ex",
        error=CheckpointError,
    ):
        stored_tensors(tmp_path)


def test_tensors_without_numbers_and_without_axes_are_read(tmp_path: Path) -> None:
    stored = stored_tensors(write(tmp_path, {"none": torch.zeros(0, 3), "c": torch.tensor(2)}))
    assert stored["none"].read().shape == (0, 3)
    assert stored["c"].read() == 2


def test_a_file_that_changes_after_its_header_was_read_is_refused(tmp_path: Path) -> None:
    """Cut, written anew in its place, or replaced: tensors of two files are never mixed."""
    file = write(tmp_path, {"a": torch.randn(500)}) / "model.safetensors"
    for change in (
        lambda: os.truncate(file, 1000),
        lambda: file.write_bytes(file.read_bytes()[:-1] + b"x"),
        lambda: (
            file.with_name("other").write_bytes(file.read_bytes())
            and file.with_name("other").replace(file)
        ),
    ):
        write(tmp_path, {"a": torch.randn(500)})
        tensor = stored_tensors(tmp_path)["a"]
        tensor.read()
        change()
        with refused(
            r"model\.safetensors, which cannot be read \(at a: it changed", error=CheckpointError
        ):
            tensor.read()


def test_kinds_that_torch_lacks_may_stand_beside_what_is_read(tmp_path: Path) -> None:
    raw(
        tmp_path,
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, "b": entry("F4", [4], 4, 6)},
        bytes(6),
    )
    stored = stored_tensors(tmp_path)
    assert stored["a"].read() == 0
    with refused(r"b of kind F4 instead of F32 in model\.safetensors", error=CheckpointError):
        check_tensors(stored, {"a": [1], "b": [4]}, tmp_path, kinds=("F32",))


def test_kinds_and_shapes_are_held_against_what_is_wanted(tmp_path: Path) -> None:
    stored = stored_tensors(write(tmp_path, TENSORS))
    shapes = {"a": [2, 3], "b.weight": [4], "c": [5]}
    check_tensors(stored, shapes, tmp_path, kinds=(*FLOATS, "I64"))
    with refused(r"c of kind I64 instead of U8 in model\.safetensors", error=CheckpointError):
        check_tensors(stored, shapes, tmp_path, in_bytes={"c"})


def entry(kind: Any, shape: Any, begin: Any, end: Any) -> dict[str, Any]:
    return {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}


def raw(directory: Path, header: Any, data: bytes, length: int | None = None) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    content = (len(text) if length is None else length).to_bytes(8, "little") + text + data
    (directory / "model.safetensors").write_bytes(content)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"a": entry("F32", [2], 0, 4)}, "'a' with 4 bytes for the shape"),
        ({"a": entry("F32", [2**62, 2**62, 2**62], 0, 8)}, "'a' with 8 bytes for the shape"),
        ({"a": entry("F32", [-1, -2], 0, 8)}, "'a' without a shape"),
        ({"a": entry("F32", [2.0], 0, 8)}, "'a' without a shape"),
        ({"a": entry("F32", [True, 2], 0, 8)}, "'a' without a shape"),
        ({"a": entry("F32", [2] + 16 * [1], 0, 8)}, "'a' without a shape"),
        ({"a": entry("F32", {"2": 1}, 0, 8)}, "'a' without a shape"),
        ({"a": entry("F32", [2], 0, "8")}, "'a' without a shape"),
        ({"a": entry("F32", [2], 8, 0)}, "'a' with -8 bytes"),
        ({"a": entry("F32", [2], -8, 0)}, "'a' without a shape"),
        ({"a": entry("F32", [2], 0.0, 8.0)}, "'a' without a shape"),
        ({"a": entry("F32", [0, 2**62], 0, 8)}, "'a' with 8 bytes for the shape"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4, 8]}}, "'a' without a shape"),
        ({"a": {"dtype": "F32", "shape": [2]}}, "'a' without a shape"),
        ({"a": entry("F33", [2], 0, 8)}, "'a' of the unknown dtype 'F33'"),
        ({"a": entry(32, [2], 0, 8)}, "'a' without a shape"),
        ({"a": 3}, "'a' without a shape"),
        ({"a" * 10**6: 3}, f"'{199 * 'a'}[.]{{3}} without a shape"),
        (
            {"a" * 10**6: entry("b" * 10**6, [2], 0, 8)},
            f"'{199 * 'a'}[.]{{3}} of the unknown dtype '{199 * 'b'}[.]{{3}}",
        ),
        ({"a" * 10**6: entry("F32", [2], 0, 4)}, f"'{199 * 'a'}[.]{{3}} with 4 bytes"),
        ({"a" * 10**6: entry("F32", [1], 4, 8)}, f"'{199 * 'a'}[.]{{3}} at 4 where"),
        (b'{"%s": 1, "%s": 1}' % (b"a" * 10**6, b"a" * 10**6), "'a{50,}[.]{3}' twice"),
        (
            {"a": entry("F32", [1], 0, 4), "b": entry("F32", [2], 0, 8)},
            "'b' at 0 where the tensor before it ends at 4",
        ),
        (
            {"a": entry("F32", [1], 0, 4), "b": entry("F16", [1], 6, 8)},
            "'b' at 6 where the tensor before it ends at 4",
        ),
        ({"a": entry("F32", [1], 4, 8)}, "'a' at 4 where"),
        ({"a": entry("F32", [1], 0, 4)}, "bytes, where the tensors end at"),
        ({"a": entry("F32", [3], 0, 12)}, "bytes, where the tensors end at"),
        ({}, "bytes, where the tensors end at"),
        ([], "no JSON object in the header"),
        (b'{"a": {}, "a": {}}', "'a' twice"),
        (
            b'{"a": {"dtype": "F32", "dtype": "F16", "shape": [2], "data_offsets": [0, 8]}}',
            "'dtype' twice",
        ),
        (b"{", "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (b'{"a": ' + b"1" * 5000 + b"}", "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_headers_that_lie_are_refused(tmp_path: Path, header: Any, message: str) -> None:
    raw(tmp_path, header, bytes(8))
    with refused(message, error=CheckpointError) as caught:
        stored_tensors(tmp_path)
    assert "model.safetensors" in str(caught.value)
    assert len(caught.value.got) < 1000


@pytest.mark.parametrize("length", [10**6, 2**63, 2**64 - 1])
def test_a_header_longer_than_the_file_is_refused(tmp_path: Path, length: int) -> None:
    raw(tmp_path, {}, bytes(8), length)
    with refused("bytes, which end within the header", error=CheckpointError):
        stored_tensors(tmp_path)


def test_a_header_of_absurd_length_is_not_read(tmp_path: Path) -> None:
    raw(tmp_path, {}, b"", 2**40)
    os.truncate(tmp_path / "model.safetensors", 2**41)  # takes no room on the disk
    with refused("a header of more than", error=CheckpointError):
        stored_tensors(tmp_path)


def test_links_that_lead_elsewhere(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    outside = tmp_path / "outside"
    inside.mkdir(), outside.mkdir()
    write(outside, TENSORS)
    (outside / "config.json").write_text("{}")
    for name in ("model.safetensors", "config.json"):
        (inside / name).symlink_to(outside / name)
    assert stored_tensors(inside).keys() == TENSORS.keys()
    with refused(r"config\.json, a link to .*outside", error=CheckpointError):
        read_json(inside / "config.json")
    (tmp_path / "name").symlink_to(outside)
    # what the user names may be a link itself
    assert stored_tensors(tmp_path / "name").keys() == TENSORS.keys()


def test_links_of_the_hubs_cache_are_followed(tmp_path: Path) -> None:
    blobs = tmp_path / "models--x--y" / "blobs"
    snapshot = tmp_path / "models--x--y" / "snapshots" / "0123"
    blobs.mkdir(parents=True), snapshot.mkdir(parents=True)
    write(blobs, TENSORS, "abc")
    (snapshot / "model.safetensors").symlink_to("../../blobs/abc")
    assert stored_tensors(snapshot).keys() == TENSORS.keys()
    (blobs / "def").write_text('{"a": 1}')
    (snapshot / "config.json").symlink_to("../../blobs/def")
    assert read_json(snapshot / "config.json") == {"a": 1}


@pytest.mark.parametrize("kept", [0, 4, 8, 30, -1])
def test_truncated_files_are_refused(tmp_path: Path, kept: int) -> None:
    path = write(tmp_path, TENSORS) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with refused("which cannot be read", expected="a complete file of weights"):
        stored_tensors(tmp_path)


def test_files_of_other_kinds_are_refused(tmp_path: Path) -> None:
    with refused(r"no file .*model\.safetensors$", expected="weights as safetensors"):
        stored_tensors(tmp_path)
    # what a pickle looks like
    (tmp_path / "model.safetensors").write_bytes(b"\x80\x02}q\x00." * 50)
    with refused("cannot be read"):
        stored_tensors(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (b"[1]", "a JSON object"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "'c' twice"),
        (b" " * 2**22 + b"{}", "of 4,194,306 bytes"),
    ],
)
def test_json_that_is_no_object_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with refused(anywhere=message):
        read_json(tmp_path / "x.json")


def test_the_advice_for_a_broken_file_fits_ones_own_training_too(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with refused(fix="Put a whole copy in its place, or download or train it again"):
        read_json(tmp_path / "config.json")
    (tmp_path / "config.json").write_bytes(b'{"a": "\xe9"}')
    with refused("byte 0xe9", fix="UTF-8"):
        read_json(tmp_path / "config.json")


def test_a_pointer_of_git_lfs_is_told_as_such(tmp_path: Path) -> None:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 548105171\n"
    for name, read in (
        ("model.safetensors", lambda file: stored_tensors(file.parent)),
        ("model.gguf", read_gguf),
        ("tokenizer.json", read_tokenizer),
    ):
        (tmp_path / name).write_text(pointer)
        with refused("a pointer of Git LFS to the file"):
            read(tmp_path / name)


def test_an_adapter_and_a_directory_of_gguf_files_are_told_as_such(tmp_path: Path) -> None:
    for name in ("mmproj-n.gguf", "n.gguf"):
        (tmp_path / name).touch()
    with refused(
        "no file .*config.json", fix=re.escape(f"a GGUF file itself: {tmp_path / 'n.gguf'}")
    ):
        open_model(tmp_path)
    (tmp_path / "cache" / "snapshots" / "abc").mkdir(parents=True)
    (tmp_path / "cache" / "snapshots" / "abc" / "config.json").touch()
    with refused(
        "no file .*config.json", fix=re.escape(f"Pass {tmp_path / 'cache' / 'snapshots' / 'abc'},")
    ):
        open_model(tmp_path / "cache")
    (tmp_path / "adapter_config.json").write_text("{}")
    for config in (None, tmp_path / "config.json"):
        if config is not None:
            config.write_text('{"model_type": "llama"}')
        for read in (open_model, load_decoder, describe, entries_at):
            with refused(
                "adapter_config.json, an adapter to another model", fix="merge_and_unload"
            ):
                read(tmp_path)


def test_a_link_that_leads_nowhere_is_no_missing_file(tmp_path: Path) -> None:
    write(tmp_path, TENSORS, "part.safetensors")
    for name in ("model.safetensors.index.json", "model.safetensors"):
        (tmp_path / name).symlink_to(tmp_path / "gone")
        with refused(f"no file .*{name}", error=CheckpointError):
            stored_tensors(tmp_path)


def test_of_many_faults_the_first_are_named_and_the_rest_counted(tmp_path: Path) -> None:
    stored = stored_tensors(write(tmp_path, {f"t{place}": torch.zeros(1) for place in range(30)}))
    with refused(
        r"missing gone, unknown t\d+ in .*, and 10 more$", error=CheckpointError
    ) as raised:
        check_tensors(stored, {"gone": [1]}, tmp_path)
    assert raised.value.got.count("unknown") == 20
    (tmp_path / "model.safetensors").rename(tmp_path / "part.safetensors")
    write(tmp_path, {"other": torch.zeros(1)}, "else.safetensors")
    places = {"other": "else.safetensors"} | {
        f"t{place}": "else.safetensors" for place in range(25)
    }
    places |= {f"t{place}": "part.safetensors" for place in range(25, 30)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    with refused(r"with t0 in else\.safetensors, .*, and 5 more$", error=CheckpointError):
        stored_tensors(tmp_path)


def test_a_long_name_is_cut(tmp_path: Path) -> None:
    stored = stored_tensors(write(tmp_path, {"a" * 300: torch.zeros(1)}))
    with refused(r"unknown a{200}\.\.\. in model\.safetensors", error=CheckpointError):
        check_tensors(stored, {}, tmp_path)


FILE = WeightFile((Path("there/model.safetensors"),))
# Bytes of a number, as safetensors' own table has them.
SIZES = {"F64": 8, "F32": 4, "BF16": 2, "U8": 1, "BOOL": 1, "U16": 2, "C64": 8, "F8_E4M3": 1}


@given(
    st.lists(st.tuples(st.sampled_from(sorted(SIZES)), st.lists(st.integers(0, 5), max_size=3))),
    st.randoms(),
)
def test_tensors_side_by_side_are_found_where_they_lie(
    tensors: list[tuple[str, list[int]]], order: Any
) -> None:
    entries = {}
    expected = {}
    reached = 0
    for number, (kind, shape) in enumerate(tensors):
        size = SIZES[kind] * torch.Size(shape).numel()
        entries[f"t{number}"] = {
            "dtype": kind,
            "shape": shape,
            "data_offsets": [reached, reached + size],
        }
        expected[f"t{number}"] = FileTensor(FILE, f"t{number}", shape, kind, 100 + reached)
        assert expected[f"t{number}"].nbytes == size
        reached += size
    names = sorted(entries)
    order.shuffle(names)
    header = {"__metadata__": {"format": "pt"}, **{name: entries[name] for name in names}}
    assert {
        tensor.name: tensor for tensor in header_tensors(FILE, header, 100, 100 + reached)
    } == expected
    for size in (99 + reached, 101 + reached):
        with pytest.raises(
            ValueError, match=f"{size} bytes, where the tensors end at {100 + reached}"
        ):
            header_tensors(FILE, header, 100, size)


def test_kinds_are_those_that_safetensors_writes() -> None:
    for dtype, kind in KINDS.items():
        assert f'"dtype":"{kind}"'.encode() in save({"a": torch.zeros(1, dtype=dtype)})
        assert DTYPES[kind] == dtype
        assert dtype.is_floating_point == (kind in FLOATS)


def test_numbers_of_less_than_a_byte() -> None:
    assert [
        FileTensor(FILE, "a", [8, 3], kind).nbytes for kind in ("F4", "F6_E2M3", "F8_E8M0")
    ] == [12, 18, 24]
