"""GGUF files: read as the package ``gguf`` reads them, and refused within bounds of time and memory
when they are not what they say.
"""

import os
import random
import struct
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from glassformer.checkpoints.gguf import load_gguf
from glassformer.checkpoints.gguf_file import GgufFile, joined, read_gguf
from glassformer.checkpoints.gguf_writing import write_gguf
from glassformer.data.gguf_tokenizer import byte_vocabulary
from glassformer.errors import CheckpointError
from glassformer.kernels.packed import KINDS
from glassformer.models import Decoder, DecoderConfig
from glassformer.processor_time import Budget
from refusals import refused

# Opening a file takes 5 ms; the machine is shared.
SECONDS = 1.0
BYTES = 64 * 2**20
U32 = 4
TEXT = 8
ARRAY = 9
U64 = 10
ONE_TENSOR = [("a", (32,), 0, 0)]


def text(value: str | bytes) -> bytes:
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def key(name: str | bytes, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(name: str | bytes, shape: Sequence[int], kind: int, offset: int) -> bytes:
    head = text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return head + struct.pack("<IQ", kind, offset)


def array(kind: int, count: int, content: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + content


def assembled(
    keys: Sequence[bytes] = (),
    tensors: Sequence[tuple[str | bytes, Sequence[int], int, int]] = (),
    data: bytes = b"\0" * 128,
    *,
    version: int = 3,
    magic: bytes = b"GGUF",
    counts: tuple[int, int] | None = None,
    alignment: int = 32,
) -> bytes:
    """A file of these parts."""
    numbers = (len(tensors), len(keys)) if counts is None else counts
    head = (
        magic
        + struct.pack("<IQQ", version, *numbers)
        + b"".join(keys)
        + b"".join(tensor(*each) for each in tensors)
    )
    return head + b"\0" * (-len(head) % alignment) + data


ALIGNED = "general.alignment"
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "ends within"),
    "only the magic": (b"GGUF", "ends within"),
    "another magic": (assembled(magic=b"GGML"), "begin"),
    "a short text": (b"abc", "begin"),
    "half of the magic": (b"GG", "ends within"),
    "version 1": (assembled(version=1), "version"),
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0) + b"\0" * 64, "version"),
    "an array of 2^31 in 192 bytes": (assembled([key("a", ARRAY, array(4, 2**31))])[:192], "array"),
    "50 million values": (
        assembled([key("a", ARRAY, array(0, 50_000_000, b"\1" * 50_000_000))]),
        "array",
    ),
    "2^63 texts": (assembled([key("a", ARRAY, array(TEXT, 2**63))]), "array"),
    "an array of arrays": (assembled([key("a", ARRAY, array(ARRAY, 1, array(4, 0)))]), "array"),
    "deep arrays": (assembled([key("a", ARRAY, array(ARRAY, 1) * 5000)]), "array"),
    "a text of 2^60": (assembled([text("a") + struct.pack("<IQ", TEXT, 2**60)]), "ends within"),
    "a text of 2^64 - 1": (
        assembled([text("a") + struct.pack("<IQ", TEXT, 2**64 - 1)]),
        "ends within",
    ),
    "a key that is no UTF-8": (assembled([key(b"\xff\xfe", U32, b"\0" * 4)]), "utf-8|UTF-8"),
    "a text that is no UTF-8": (assembled([key("a", TEXT, text(b"\xc3\x28"))]), "utf-8|UTF-8"),
    "an unknown type of value": (assembled([key("a", 77, b"\0" * 64)]), "77"),
    "2^60 tensors": (assembled(counts=(2**60, 0)), "tensors"),
    "2^60 keys": (assembled(counts=(0, 2**60)), "keys"),
    "a key twice": (assembled([key("a", U32, b"\0" * 4)] * 2), "twice"),
    "a tensor twice": (assembled(tensors=[("a", (8,), 0, 0), ("a", (8,), 0, 32)]), "twice"),
    "a long name": (assembled(tensors=[("a" * 64, (8,), 0, 0)]), "aaa"),
    "a name of megabytes": (assembled(tensors=[("a" * 2**22, (8,), 0, 0)]), "aaa"),
    "no name": (assembled(tensors=[("", (8,), 0, 0)]), "''"),
    "a name that is no UTF-8": (assembled(tensors=[(b"\xff", (8,), 0, 0)]), "utf-8|UTF-8"),
    "five dimensions": (assembled(tensors=[("a", (1, 1, 1, 1, 8), 0, 0)]), "dimensions"),
    "2^31 dimensions": (
        assembled()[:8] + struct.pack("<QQ", 1, 0) + text("a") + struct.pack("<I", 2**31),
        "dimension",
    ),
    "no dimension": (assembled(tensors=[("a", (), 0, 0)]), "dimensions"),
    "an empty row": (assembled(tensors=[("a", (0, 4), 0, 0)]), "shape"),
    "2^66 numbers": (assembled(tensors=[("a", (2**33, 2**33), 0, 0)]), "shape"),
    "a size that wraps to 0": (assembled(tensors=[("a", (2**32, 2**32), 0, 0)]), "shape"),
    "a negative dimension": (assembled(tensors=[("a", (2**64 - 1,), 0, 0)]), "shape"),
    "half a block": (assembled(tensors=[("a", (48,), 8, 0)]), "blocks of 32"),
    "half a block of 256": (assembled(tensors=[("a", (128, 2), 12, 0)]), "blocks of 256"),
    "an offset that wraps": (
        assembled(tensors=[("a", (8,), 0, 2**64 - 32)]),
        "at 18446744073709551584",
    ),
    "tensors that overlap": (assembled(tensors=[("a", (8,), 0, 0), ("b", (8,), 0, 0)]), "'b' at 0"),
    "tensors in another order": (
        assembled(tensors=[("a", (8,), 0, 32), ("b", (8,), 0, 0)]),
        "'a' at 32",
    ),
    "a gap": (assembled(tensors=[("a", (8,), 0, 0), ("b", (8,), 0, 64)]), "'b' at 64"),
    "an offset that is not aligned": (
        assembled(tensors=[("a", (4,), 0, 0), ("b", (8,), 0, 16)]),
        "'b' at 16",
    ),
    "truncated data": (assembled(tensors=[("a", (64,), 0, 0)]), "ends at"),
    "truncated blocks": (assembled(tensors=[("a", (256, 64), 12, 0)]), "ends at"),
    "alignment 0": (assembled([key(ALIGNED, U32, struct.pack("<I", 0))]), ALIGNED),
    "alignment 3": (assembled([key(ALIGNED, U32, struct.pack("<I", 3))]), ALIGNED),
    "alignment 2^31": (assembled([key(ALIGNED, U32, struct.pack("<I", 2**31))]), ALIGNED),
    "alignment as a text": (assembled([key(ALIGNED, TEXT, text("32"))]), ALIGNED),
    "alignment as a long text": (assembled([key(ALIGNED, TEXT, text("3" * 2**20))]), ALIGNED),
    "an unknown kind": (assembled(tensors=[("a", (32,), 99, 0)]), "kind 99"),
    "a kind that was removed": (assembled(tensors=[("a", (32,), 4, 0)]), "kind 4,"),
    "IQ2_XXS": (assembled(tensors=[("a", (256,), 16, 0)]), "IQ2_XXS"),
    "IQ3_S": (assembled(tensors=[("a", (256,), 21, 0)]), "IQ3_S"),
    "IQ1_M": (assembled(tensors=[("a", (256,), 29, 0)]), "IQ1_M"),
    "TQ1_0": (assembled(tensors=[("a", (256,), 34, 0)]), "TQ1_0"),
    "I32": (assembled(tensors=[("a", (8,), 26, 0)]), "I32"),
    "an array of counts": (
        assembled([key("split.tensors.count", ARRAY, array(U32, 2, b"\0" * 8))], ONE_TENSOR),
        "with 1 tensors",
    ),
    "a part of two": (
        assembled([key("split.count", U32, struct.pack("<I", 2))], ONE_TENSOR),
        "part 0 of 2",
    ),
    "parts as a long text": (
        assembled([key("split.count", TEXT, text("3" * 2**20))], ONE_TENSOR),
        "part 0 of",
    ),
    "three million values": (
        assembled([key(str(number), ARRAY, array(0, 2**20, b"\0" * 2**20)) for number in range(3)]),
        "values in arrays",
    ),
}


def stored(directory: Path, content: bytes, name: str = "a.gguf") -> Path:
    path = directory / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files_are_refused_at_once(case: str, tmp_path: Path) -> None:
    content, fault = HOSTILE[case]
    path = stored(tmp_path, content)
    budget = Budget(SECONDS)
    tracemalloc.start()
    with refused(fault, error=CheckpointError) as caught:
        read_gguf(path)
    _, most = tracemalloc.get_traced_memory()
    # while allocations are traced, which the speed of the machine then counts too
    assert not budget.is_over()
    tracemalloc.stop()
    assert len(str(caught.value)) < 2000
    assert most < BYTES


@pytest.mark.parametrize(
    ("case", "fix"),
    [
        ("IQ2_XXS", "another format"),
        ("a part of two", "NAME-00001-of"),
        ("big endian", "Convert"),
        ("a gap", "again"),
        ("another magic", "a model's directory"),
    ],
)
def test_the_remedy_is_to_download_again_only_where_that_helps(
    case: str, fix: str, tmp_path: Path
) -> None:
    with refused(fix=fix, error=CheckpointError) as caught:
        read_gguf(stored(tmp_path, HOSTILE[case][0]))
    assert ("Download" in caught.value.fix) == (fix == "again")


def test_of_a_file_of_a_directory_the_directory_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("{}")
    with refused("begin with GGUF", fix=f"Pass its directory: {tmp_path}", error=CheckpointError):
        read_gguf(path)


@pytest.mark.parametrize("kind", ["adapter", "mmproj", "imatrix"])
def test_files_beside_a_model_are_named(kind: str, tmp_path: Path) -> None:
    keys = [key("general.architecture", TEXT, text("llama")), key("general.type", TEXT, text(kind))]
    with refused(kind, fix="model's own file", error=CheckpointError):
        load_gguf(stored(tmp_path, assembled(keys, ONE_TENSOR)))


def test_tensors_that_do_not_fit_are_no_matter_of_a_config_json(model: Path) -> None:
    file = read_gguf(model)
    kept = {name: each for name, each in file.tensors.items() if "attn_k" not in name}
    with refused(
        "missing blk.0.attn_k",
        expected="a Llama with its keys",
        fix="llama.cpp's",
        error=CheckpointError,
    ):
        load_gguf(replace(file, tensors=kept))


@pytest.mark.parametrize("kind", [None, "directory", "fifo"])
def test_what_is_no_file(kind: str | None, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    with refused("no file", error=CheckpointError):
        read_gguf(path)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with packed and plain weights and a vocabulary."""
    torch.manual_seed(0)
    config = DecoderConfig(
        vocab_size=256, num_layers=1, hidden_dim=32, ff_dim=64, num_heads=2, head_dim=16
    )
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write_gguf(Decoder(config), path, kind="Q8_0", tokenizer=byte_vocabulary())
    return path


def damaged(content: bytes, rng: random.Random) -> bytes:
    """The file with a few bytes changed, most of them in the header, or cut, or with bytes inserted
    or removed.
    """
    changed = bytearray(content)
    header = 8192
    for _ in range(rng.choice([1, 1, 2, 8])):
        at = rng.randrange(min(header, len(changed)))
        how = rng.randrange(6)
        if how < 2:
            changed[at] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
        elif how == 2:
            changed[at : at + 8] = struct.pack(
                "<Q", rng.choice([0, 2**31, 2**32 - 1, 2**63, 2**64 - 1])
            )
        elif how == 3:
            del changed[at : at + rng.choice([1, 8, 100])]
        elif how == 4:
            changed[at:at] = rng.randbytes(rng.choice([1, 8, 100]))
        else:
            del changed[rng.randrange(len(changed)) + 1 :]
    return bytes(changed)


def check_damaged(model: Path, seeds: Sequence[int], directory: Path) -> None:
    """Whatever the damage: a decoder, or one error of ours."""
    content = model.read_bytes()
    messages = [""]
    for seed in seeds:
        path = stored(directory, damaged(content, random.Random(seed)))
        budget = Budget(SECONDS)
        try:
            load_gguf(path)
        except CheckpointError as error:
            messages.append(str(error))
        assert not budget.is_over(), seed
    assert len(messages) > len(seeds) / 2
    assert max(map(len, messages)) < 8000


def test_damaged_files(model: Path, tmp_path: Path) -> None:
    check_damaged(model, range(60), tmp_path)


@pytest.mark.slow
def test_a_thousand_damaged_files(model: Path, tmp_path: Path) -> None:
    check_damaged(model, range(60, 1060), tmp_path)


def check_as_gguf_reader(path: Path) -> GgufFile:
    """Metadata, names, shapes, kinds and bytes are those of the package ``gguf``."""
    file = read_gguf(path)
    reader = gguf.GGUFReader(path)
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    assert list(file.metadata) == list(fields)
    for name, field in fields.items():
        value: Any = file.metadata[name]
        value = value.tolist() if isinstance(value, np.ndarray) else value
        # Ours is the shortest number that float32 rounds to theirs.
        single = isinstance(value, float) and field.types[0] == gguf.GGUFValueType.FLOAT32
        assert (float(np.float32(value)) if single else value) == field.contents(), name
    assert list(file.tensors) == [each.name for each in reader.tensors]
    for each in reader.tensors:
        got = file.tensors[each.name]
        assert (list(got.shape), got.kind) == (each.shape.tolist()[::-1], each.tensor_type.name)
        assert (got.start, got.nbytes) == (each.data_offset, each.n_bytes)
        assert got.read().view(-1).view(torch.uint8).numpy().tobytes() == each.data.tobytes()
    return file


def test_equal_to_the_package_on_a_file_of_ours(model: Path) -> None:
    file = check_as_gguf_reader(model)
    assert file.nbytes == model.stat().st_size


@pytest.mark.parametrize("alignment", [32, 64, 4096])
def test_equal_to_the_package_on_a_file_of_its_own(alignment: int, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_custom_alignment(alignment)
    writer.add_uint64("u64", 2**63)
    writer.add_int64("i64", -5)
    writer.add_int8("i8", -1)
    writer.add_float64("f64", 0.1)
    writer.add_float32("f32", 1e-5)
    writer.add_bool("yes", True)
    writer.add_string("text", "zażółć\n")
    writer.add_array("floats", [0.5, 1.5])
    writer.add_array("flags", [True, False])
    writer.add_array("texts", ["a", "", "ł" * 1000])
    rng = np.random.default_rng(0)
    for kind in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"):
        number = gguf.GGMLQuantizationType[kind]
        rows = gguf.quants.quantize(rng.standard_normal((3, 64), np.float32), number)
        writer.add_tensor(f"t.{kind}", rows, raw_dtype=number)
    writer.add_tensor("half", rng.standard_normal((2, 3, 5)).astype(np.float16))
    writer.add_tensor("one", np.ones(1, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert check_as_gguf_reader(tmp_path / "a.gguf").metadata["f32"] == 1e-5


def part(number: int, count: int, total: int, names: Sequence[str]) -> bytes:
    keys = [
        key("split.no", 2, struct.pack("<H", number)),
        key("split.count", 2, struct.pack("<H", count)),
        key("split.tensors.count", 5, struct.pack("<i", total)),
    ]
    keys += [key("general.architecture", TEXT, text("llama"))] if number == 0 else []
    return assembled(
        keys,
        [(name, (8,), 0, 32 * at) for at, name in enumerate(names)],
        bytes(range(32)) * len(names),
    )


def test_files_in_parts(tmp_path: Path) -> None:
    names = [f"m-{number:05d}-of-00003.gguf" for number in (1, 2, 3)]
    pieces = (["a", "b"], ["c"], ["d"])
    paths = [stored(tmp_path, part(n, 3, 4, pieces[n]), name) for n, name in enumerate(names)]
    for path in paths:
        file = read_gguf(path)
        assert (list(file.tensors), file.metadata["general.architecture"]) == (
            ["a", "b", "c", "d"],
            "llama",
        )
        assert file.tensors["d"].read().view(torch.uint8).tolist() == list(range(32))
    for changed, fault in (
        (part(1, 3, 4, ["b"]), "another part"),
        (part(1, 3, 4, ["x", "y"]), "5 tensors"),
    ):
        stored(tmp_path, changed, names[1])
        with refused(fault, error=CheckpointError):
            read_gguf(paths[0])
    for number, count in ((2, 3), (1, 4)):
        stored(tmp_path, part(number, count, 4, ["c"]), names[1])
        with refused(f"part {number} of {count}", error=CheckpointError):
            read_gguf(paths[0])
    paths[1].unlink()
    with refused("no file", error=CheckpointError):
        read_gguf(paths[0])
    with refused("a-00004-of-00003", error=CheckpointError):
        read_gguf(stored(tmp_path, b"", "a-00004-of-00003.gguf"))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_consecutive_pieces_of_a_file(count: int, model: Path, tmp_path: Path) -> None:
    content = model.read_bytes()
    whole = read_gguf(model)
    size = -(-len(content) // count)
    pieces = [
        stored(tmp_path, content[size * n : size * (n + 1)], f"m.gguf.part{n:02d}")
        for n in range(count)
    ]
    file = joined([pieces])
    assert file.nbytes == whole.nbytes
    for name, tensor in whole.tensors.items():
        assert torch.equal(file.tensors[name].read(), tensor.read())
    if count > 1:
        with refused("ends", error=CheckpointError):
            joined([pieces[:-1]])


def test_a_file_that_changes_after_its_header_was_read(model: Path, tmp_path: Path) -> None:
    path = stored(tmp_path, model.read_bytes())
    file = read_gguf(path)
    stored(tmp_path, model.read_bytes()[:-1000])
    for tensor in file.tensors.values():
        with refused("changed after its header was read", error=CheckpointError):
            tensor.read()


HALVES = {kind: found.halves for kind, found in KINDS.items()}
NUMBERS = {0: "F32", 1: "F16", 30: "BF16"} | {
    gguf.GGMLQuantizationType[kind].value: kind for kind in KINDS
}


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_no_numbers_are_refused_when_read(
    number: int, bad: float, tmp_path: Path
) -> None:
    kind = NUMBERS[number]
    if kind == "MXFP4":
        faulty = [b"\xff" + b"\0" * 16]
    elif kind in KINDS:
        size = KINDS[kind].nbytes
        half = struct.pack("<e", bad)
        faulty = [b"\0" * at + half + b"\0" * (size - at - 2) for at in HALVES[kind]]
    else:
        dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[kind]
        faulty = [torch.tensor([bad], dtype=dtype).view(torch.uint8).numpy().tobytes()]
    width = KINDS[kind].block if kind in KINDS else 1
    for block in faulty:
        sound = b"\0" * len(block)
        for at in range(3):
            data = b"".join(block if index == at else sound for index in range(3)) + b"\0" * 32
            file = read_gguf(
                stored(tmp_path, assembled(tensors=[("t", (width, 3), number, 0)], data=data))
            )
            with refused("t with weights", error=CheckpointError):
                file.tensors["t"].read()
