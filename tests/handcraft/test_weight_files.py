"""Weight files: the same numbers come back from every format, and a hostile file costs one line and
no memory.
"""

import io
import json
import os
import socket
import struct
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from glassformer.errors import InputError
from glassformer.handcraft import weight_files
from glassformer.handcraft.designs import design
from glassformer.handcraft.single_head import HeadWeights
from glassformer.handcraft.tasks import unique
from glassformer.handcraft.weight_files import MAX_NUMBERS, read_head, write_head
from refusals import refused

GOOD = {"Km": [[1, 0], [0, 1]], "Qm": [[2, 0], [0, 2]], "Vm": [[1], [-1]]}
WIDEST = 4 * 2**20
"""Bytes that reading a hostile file of a few kB may take at most, libraries included."""


def same(first: HeadWeights, second: HeadWeights) -> bool:
    """Whether all bits are the same, signs of zeros included."""
    one = first.matrices
    other = second.matrices
    return one.keys() == other.keys() and all(
        one[name].shape == other[name].shape and one[name].tobytes() == other[name].tobytes()
        for name in one
    )


def refused_file(path: Path, *words: str) -> None:
    """Reading ``path`` is one line that names the file and has these words in it."""
    with pytest.raises(InputError) as raised:
        read_head(path)
    message = str(raised.value)
    assert message.count("\n") == 0
    assert message.isprintable()
    assert len(message) < 600
    assert path.name in message
    assert [word for word in words if word not in message] == []


def read_or_refused(path: Path) -> HeadWeights | None:
    """The weights in ``path``, or None if they are refused in one line."""
    try:
        return read_head(path)
    except InputError as error:
        complaint = str(error)
    assert complaint.isprintable()
    return None


@contextmanager
def little_memory(most: int = WIDEST) -> Iterator[None]:
    """The block takes at most this much memory at once."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


FORMATS = ("head.json", "head.npz")


# Round trips


@st.composite
def heads(draw: st.DrawFn) -> HeadWeights:
    """Any weights, extreme numbers among them."""
    numbers = st.floats(allow_nan=False, allow_infinity=False)
    inputs, qk_dim, v_dim, pos_dim = (draw(st.integers(low, 3)) for low in (1, 1, 1, 0))
    matrix = lambda rows, columns: draw(arrays(np.float64, (rows, columns), elements=numbers))  # noqa: E731
    total = inputs + pos_dim
    pos = matrix(draw(st.integers(1, 3)), pos_dim) if pos_dim else None
    return HeadWeights(matrix(total, qk_dim), matrix(total, qk_dim), matrix(total, v_dim), pos)


@pytest.mark.parametrize("name", FORMATS)
@given(weights=heads())
@example(weights=HeadWeights([[-0.0]], [[5e-324]], [[1.7976931348623157e308]]))
@example(weights=HeadWeights([[0.1 + 0.2]], [[1e22]], [[2**53 + 2]]))
@settings(max_examples=25, deadline=None)
def test_every_bit_comes_back(
    name: str, weights: HeadWeights, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "round-trip" / name
    write_head(weights, path)
    assert same(read_head(path), weights)
    assert [entry.name for entry in path.parent.iterdir() if entry.name.startswith(".")] == []


def test_the_formats_can_be_read_without_us(tmp_path: Path) -> None:
    weights = design(unique()).weights
    for name in FORMATS:
        write_head(weights, tmp_path / name)
    from_json = json.loads((tmp_path / "head.json").read_text(encoding="utf-8"))
    with np.load(tmp_path / "head.npz", allow_pickle=False) as from_npz:
        assert set(from_npz) == set(from_json) == {"Km", "Qm", "Vm", "pos"}
        for matrix, numbers in weights.matrices.items():
            assert np.array_equal(np.array(from_json[matrix]), numbers)
            assert np.array_equal(from_npz[matrix], numbers)


def test_files_of_others_are_understood(tmp_path: Path) -> None:
    expected = HeadWeights(**GOOD)
    arrays_ = {name: np.array(rows) for name, rows in GOOD.items()}
    np.savez_compressed(tmp_path / "int.npz", **arrays_)
    np.savez(
        tmp_path / "f.npz",
        **{name: np.asfortranarray(array, dtype=">f4") for name, array in arrays_.items()},
    )
    (tmp_path / "bom.JSON").write_text("\ufeff" + json.dumps(GOOD), encoding="utf-8")
    (tmp_path / "link.npz").symlink_to(tmp_path / "int.npz")
    for name in ("int.npz", "f.npz", "bom.JSON", "link.npz"):
        assert same(read_head(str(tmp_path / name)), expected)
    of_version_2 = archive(
        tmp_path / "2.npz", header(shaped("(2, 2)"), b"\x02\x00") + np.eye(2).tobytes()
    )
    assert same(read_head(of_version_2), HeadWeights(np.eye(2), np.eye(2), np.eye(2)))


# Where there is no file


def test_what_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "dangling.json").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop.json").symlink_to(tmp_path / "loop.json")
    (tmp_path / "zeros.npz").symlink_to("/dev/zero")
    (tmp_path / "head.pt").write_bytes(b"PK")
    (tmp_path / "file").write_text("{}")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s.json"))
        refused_file(tmp_path / "s.json", "pipe, socket or device")
    refused_file(tmp_path / "absent.json", "No such file")
    refused_file(tmp_path / "dangling.json", "a broken link")
    refused_file(tmp_path / "loop.json", "ymbolic link")
    refused_file(tmp_path / "zeros.npz", "pipe, socket or device")
    refused_file(tmp_path / "head.pt", "a .json file or an .npz file")
    refused_file(tmp_path / "file", ".json file")
    with refused("null"):
        read_head(tmp_path / "a\0b.json")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission(tmp_path: Path) -> None:
    path = tmp_path / "locked.json"
    path.write_text("{}")
    path.chmod(0)
    refused_file(path, "ermission")
    path.chmod(0o700)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    for name in ("big.json", "big.npz"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(10**9)
        with little_memory():
            refused_file(tmp_path / name, "1,000,000,000 bytes", "at most 33,554,432")


# JSON


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1, 2]", ["no names"]),
        ('{"Km": [[1]], "Qm": [[1]]}', ["no Vm", "Add Vm."]),
        ('{"km": [[1]], "Qm": [[1]], "Vm": [[1]]}', ["'km'", "Did you mean 'Km'?"]),
        (
            '{"Km": [[1]], "Qm": [[1]], "Vm": [[1]], "positions": [[1]]}',
            ["'positions'", "Did you mean 'pos'?"],
        ),
        (
            '{"Km": [[1]], "Qm": [[1]], "Vm": [[1]], "xyz": 1}',
            ["'xyz'", "Known are Km, Qm, Vm, pos"],
        ),
        ('{"Km": [[NaN]], "Qm": [[1]], "Vm": [[1]]}', ["NaN"]),
        ('{"Km": [[-Infinity]], "Qm": [[1]], "Vm": [[1]]}', ["-Infinity"]),
        ('{"Km": [[1e999]], "Qm": [[1]], "Vm": [[1]]}', ["1e999"]),
        ('{"Km": [[true]], "Qm": [[1]], "Vm": [[1]]}', ["Km[0][0] = 'true'"]),
        ('{"Km": [[1, 2], [1, "2"]], "Qm": [[1]], "Vm": [[1]]}', ["Km[1][1]", '"2"']),
        ('{"Km": [[null]], "Qm": [[1]], "Vm": [[1]]}', ["null"]),
        ('{"Km": [[[1]]], "Qm": [[1]], "Vm": [[1]]}', ["Km[0][0]"]),
        ('{"Km": [[1, 2], [3]], "Qm": [[1]], "Vm": [[1]]}', ["Km with rows of [1, 2] numbers"]),
        ('{"Km": [], "Qm": [[1]], "Vm": [[1]]}', ["Km with rows of [] numbers"]),
        ('{"Km": 7, "Qm": [[1]], "Vm": [[1]]}', ["Km = "]),
        ('{"Km": {"a": 1}, "Qm": [[1]], "Vm": [[1]]}', ["Km = "]),
        (
            '{"Km": [[1], [2]], "Qm": [[1]], "Vm": [[1]]}',
            ["Km of shape [2, 1], Qm", "input_dim + pos_dim"],
        ),
        ('{"Km": [[1]], "Qm"', ["invalid JSON", "line 1, column"]),
        ('{"Km": [[1]], \n"Qm": [[0x10]]}', ["invalid JSON", "line 2, column"]),
        ("{'Km': [[1]]}", ["invalid JSON"]),
        ('{"Km": [[1,]]}', ["invalid JSON"]),
        ('{"\\ud800\x1b\\n": 1}', ["invalid JSON"]),
        ('{"\\ud800\\u001b\\n": 1}', ["\\ud800\\x1b\\n"]),
        ("\x00\x00", ["invalid JSON"]),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else None,
)
def test_json_that_cannot_be_used(text: str, words: list[str], tmp_path: Path) -> None:
    path = tmp_path / "head.json"
    path.write_text(text, encoding="utf-8")
    refused_file(path, *words)


def test_json_with_too_many_numbers(tmp_path: Path) -> None:
    path = tmp_path / "head.json"
    path.write_text('{"Km": [[' + "0," * (MAX_NUMBERS + 10) + "0]]}")
    with little_memory(3 * path.stat().st_size):
        refused_file(path, "1,048,587 entries", "at most 1,048,580")


@given(
    value=st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=3), st.lists, max_leaves=6
    ),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_any_json_is_read_or_refused(
    value: object, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    text = json.dumps({**GOOD, data.draw(st.sampled_from(["Km", "Qm", "Vm", "pos", "x"])): value})
    cut = data.draw(st.integers(0, len(text)))
    for written in (text, text[:cut], text[cut:]):
        path.write_text(written)
        read_or_refused(path)


def test_the_largest_head_goes_through_every_format_and_no_larger_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_files, "MAX_NUMBERS", 10)
    most = HeadWeights(np.ones((2, 2)), np.ones((2, 2)), np.ones((2, 1)))
    more = HeadWeights(np.ones((2, 2)), np.ones((2, 2)), np.ones((2, 2)))
    for name in FORMATS:
        write_head(most, tmp_path / name)
        assert same(read_head(tmp_path / name), most)
        with refused("12 numbers", expected="at most 10"):
            write_head(more, tmp_path / name)
    np.savez(tmp_path / "more.npz", **more.matrices)
    refused_file(tmp_path / "more.npz", "12 numbers")


# Writing


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = HeadWeights(**GOOD)
    new = design(unique()).weights
    for name in FORMATS:
        write_head(old, tmp_path / name)

    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    for name in FORMATS:
        with pytest.raises(OSError, match="No space"):
            write_head(new, tmp_path / name)
        assert same(read_head(tmp_path / name), old)


def test_places_that_are_not_written_to(tmp_path: Path) -> None:
    weights = HeadWeights(**GOOD)
    (tmp_path / "dir.json").mkdir()
    with refused(r"dir\.json, a directory"):
        write_head(weights, tmp_path / "dir.json")
    for name in ("head.pt", "head"):
        with refused(name, expected=r"a name that ends in \.json or \.npz"):
            write_head(weights, tmp_path / name)


# Hostile archives: forged sizes, bombs, objects, other names


def npy(array: np.ndarray) -> bytes:
    """The .npy file of ``array``."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def header(text: str, version: bytes = b"\x01\x00", length: int | None = None) -> bytes:
    """The start of a .npy file with this text as its header."""
    size = struct.pack(
        "<H" if version == b"\x01\x00" else "<I", len(text) if length is None else length
    )
    return b"\x93NUMPY" + version + size + text.encode("latin1")


def archive(
    path: Path,
    for_keys: bytes,
    compression: int = zipfile.ZIP_STORED,
    more: dict[str, bytes] | None = None,
) -> Path:
    """An .npz file with these bytes for Km and good ones for the rest."""
    members = {
        "Km.npy": for_keys,
        "Qm.npy": npy(np.eye(2)),
        "Vm.npy": npy(np.eye(2)),
        **(more or {}),
    }
    with zipfile.ZipFile(path, "w", compression) as made:
        for name, content in members.items():
            made.writestr(name, content)
    return path


def shaped(shape: str, descr: str = "'<f8'") -> str:
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            header(shaped("(1000000000, 2)")) + bytes(32),
            ["shape '(1000000000, 2)'", "1 to 1,048,576 numbers"],
        ),
        (header(shaped("(4294967296, 4294967296)")), ["1 to 1,048,576 numbers"]),
        (header(shaped(f"(2, {10**200})")), ["shape"]),
        (header(shaped("(-2, -2)")) + bytes(32), ["shape '(-2, -2)'"]),
        (header(shaped("(0, 2)")), ["shape '(0, 2)'"]),
        (header(shaped("(2,)")) + bytes(16), ["a matrix"]),
        (header(shaped("()")) + bytes(8), ["Km"]),
        (header(shaped("(2, 2)")) + bytes(31), ["with a header for the shape"]),
        (header(shaped("(2, 2)")) + bytes(33), ["with a header for the shape"]),
        (header(shaped("(2, 2)", "'|O'")) + bytes(32), ["of type 'object'"]),
        (header(shaped("(2, 2)", "[('a', '|O')]")) + bytes(32), ["of type"]),
        (header(shaped("(2, 2)", "[('a', '<f8')]")) + bytes(32), ["Km.npy of"]),
        (header(shaped("(2, 2)", "'(1000000, 1000000)f8'")) + bytes(32), ["damaged"]),
        (header(shaped("(2, 2)", "'<f16'")) + bytes(64), ["of type", "an array of numbers"]),
        (header(shaped("(2, 2)", "'<c16'")) + bytes(64), ["complex128"]),
        (header(shaped("(2, 2)", "'|b1'")) + bytes(4), ["bool"]),
        (header(shaped("(2, 2)", "'<U8'")) + bytes(128), ["<U8"]),
        (header(shaped("(2, 2)", "'<M8[s]'")) + bytes(32), ["datetime64"]),
        (header(shaped("(2, 2)", "'nonsense'")) + bytes(32), ["damaged"]),
        (header("__import__('os').getcwd()\n"), ["damaged"]),
        (header("(" * 4000 + "\n"), ["damaged"]),
        (header("-" * 4000 + "1\n"), ["damaged"]),
        (header("{}\n"), ["damaged"]),
        (header("x" * 60_000), ["damaged"]),
        (header("", b"\x02\x00", length=2**32 - 1), ["damaged"]),
        (header(shaped("(2, 2)"), b"\x09\x00"), ["damaged"]),
        (header(shaped("(2L, 2L)")) + bytes(32), ["damaged"]),
        (b"not an array at all", ["damaged"]),
        (b"", ["damaged"]),
        (npy(np.array([[np.nan, 0], [0, 1]])), ["Km[0, 0] = nan", "finite"]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_arrays_that_cannot_be_used(
    content: bytes, words: list[str], compression: int, tmp_path: Path
) -> None:
    path = archive(tmp_path / "head.npz", content, compression)
    with little_memory():
        refused_file(path, *words)


class Payload:
    """What would leave a file behind if it were ever unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (str(self.trace),)


def test_pickled_objects_are_never_opened(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    content = npy(np.array([[Payload(trace)]], dtype=object))
    refused_file(archive(tmp_path / "head.npz", content), "of type 'object'")
    assert not trace.exists()
    # The file is armed: unpickling it does run the payload.
    np.load(io.BytesIO(content), allow_pickle=True)
    assert trace.exists()


def test_numbers_are_limited_whatever_their_width(tmp_path: Path) -> None:
    content = header(shaped("(8000, 1000)", "'|i1'")) + bytes(8_000_000)
    path = archive(tmp_path / "head.npz", content, zipfile.ZIP_DEFLATED)
    with little_memory():
        refused_file(path, "1 to 1,048,576 numbers")


@pytest.mark.parametrize("shape", ["(2, 2)", "(8000000, 1)"])
def test_a_zip_bomb_is_not_unpacked(shape: str, tmp_path: Path) -> None:
    path = archive(
        tmp_path / "head.npz", header(shaped(shape)) + bytes(64_000_000), zipfile.ZIP_DEFLATED
    )
    assert path.stat().st_size < 100_000
    with little_memory():
        refused_file(path, "Km.npy of 64,000,0", "at most 8,392,704")


def test_a_zip_bomb_that_says_it_is_small_is_not_unpacked_either(tmp_path: Path) -> None:
    start = header(shaped("(2, 2)"))
    size = len(start) + 64_000_000
    said = len(start) + 32
    path = archive(tmp_path / "head.npz", start + bytes(64_000_000), zipfile.ZIP_DEFLATED)
    content = path.read_bytes()
    assert content.count(struct.pack("<I", size)) == 2
    path.write_bytes(content.replace(struct.pack("<I", size), struct.pack("<I", said)))
    with little_memory():
        refused_file(path, "damaged")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_methods_that_unpack_without_a_limit_are_refused(method: int, tmp_path: Path) -> None:
    path = archive(tmp_path / "head.npz", header(shaped("(2, 2)")) + bytes(32), method)
    refused_file(path, f"compressed by method {method}")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("../Km.npy", ["'../Km'", "Did you mean 'Km'?"]),
        ("/etc/passwd", ["'/etc/passwd'"]),
        ("Km", ["Km twice"]),
        ("km.npy", ["'km'", "Did you mean 'Km'?"]),
        ("readme.txt", ["'readme.txt'"]),
        ("Km.npy.npy", ["'Km.npy'"]),
        ("dir/", ["'dir/'"]),
        ("x" * 60_000, ["'xxxx"]),
    ],
    ids=lambda value: repr(value[:20]),
)
def test_members_of_other_names(name: str, words: list[str], tmp_path: Path) -> None:
    refused_file(archive(tmp_path / "head.npz", npy(np.eye(2)), more={name: b""}), *words)


def test_members_twice_missing_hidden_encrypted_or_far_too_many(tmp_path: Path) -> None:
    path = tmp_path / "head.npz"
    with zipfile.ZipFile(path, "w") as made, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("Km.npy", "Qm.npy", "Vm.npy", "Km.npy"):
            made.writestr(name, npy(np.eye(2)))
    refused_file(path, "Km twice")
    np.savez(path, Km=np.eye(2), Qm=np.eye(2))
    refused_file(path, "no Vm")
    archive(path, npy(np.eye(2)), more={"pos.npyZ.sh": npy(np.eye(2))})
    path.write_bytes(path.read_bytes().replace(b"pos.npyZ.sh", b"pos.npy\0.sh"))
    refused_file(path, "pos.npy\\x00.sh")
    archive(path, npy(np.eye(2)))
    content = bytearray(path.read_bytes())
    # The flags of the first entry of the zip directory.
    content[content.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(content)
    refused_file(path, "Km.npy, encrypted")
    with zipfile.ZipFile(path, "w") as made:
        for number in range(30_000):
            made.writestr(f"{number}.npy", b"")
    # What the library would make of so many entries is several times the file.
    with little_memory(2 * path.stat().st_size):
        refused_file(path, "30,000 entries")


@pytest.fixture(scope="module")
def good_archive(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes, HeadWeights]:
    """A good .npz file, its bytes and what they say."""
    path = tmp_path_factory.mktemp("npz") / "head.npz"
    weights = HeadWeights(**GOOD)
    write_head(weights, path)
    return path, path.read_bytes(), weights


def test_every_truncated_file_is_refused(good_archive: tuple[Path, bytes, HeadWeights]) -> None:
    path, content, _ = good_archive
    for end in range(len(content)):
        path.write_bytes(content[:end])
        refused_file(path, "empty" if end == 0 else "")


@given(place=st.integers(0, 10**6), byte=st.integers(1, 255))
@settings(max_examples=300, deadline=None)
def test_a_damaged_byte_is_refused_or_harmless(
    place: int, byte: int, good_archive: tuple[Path, bytes, HeadWeights]
) -> None:
    path, content, weights = good_archive
    damaged = bytearray(content)
    damaged[place % len(content)] ^= byte
    path.write_bytes(damaged)
    # Dates, versions and the like may change. The checksum covers the numbers.
    found = read_or_refused(path)
    assert found is None or same(found, weights)


@pytest.mark.parametrize("place", [200, 5000, 12_000])
def test_a_damaged_number_of_a_large_array_is_found_by_its_checksum(
    place: int, tmp_path: Path
) -> None:
    path = tmp_path / "head.npz"
    write_head(HeadWeights(np.eye(40), np.eye(40), np.eye(40)), path)
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    refused_file(path, "damaged")
