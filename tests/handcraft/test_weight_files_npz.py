"""Hostile .npz files: forged sizes, bombs, objects, other names; each costs one line and no memory."""

from __future__ import annotations

import io
import os
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from weight_file_checks import GOOD, little_memory, read_or_refused, refused_file, same

from glassformer.handcraft.single_head import HeadWeights
from glassformer.handcraft.weight_files import write_head


def npy(array: np.ndarray) -> bytes:
    """The .npy file of ``array``."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def header(text: str, version: bytes = b"\x01\x00", length: int | None = None) -> bytes:
    """The start of a .npy file with this text as its header."""
    size = struct.pack("<H" if version == b"\x01\x00" else "<I", len(text) if length is None else length)
    return b"\x93NUMPY" + version + size + text.encode("latin1")


def archive(
    path: Path, for_keys: bytes, compression: int = zipfile.ZIP_STORED, more: dict[str, bytes] | None = None
) -> Path:
    """An .npz file with these bytes for Km and good ones for the rest."""
    members = {"Km.npy": for_keys, "Qm.npy": npy(np.eye(2)), "Vm.npy": npy(np.eye(2)), **(more or {})}
    with zipfile.ZipFile(path, "w", compression) as made:
        for name, content in members.items():
            made.writestr(name, content)
    return path


def shaped(shape: str, descr: str = "'<f8'") -> str:
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (header(shaped("(1000000000, 2)")) + bytes(32), ["shape '(1000000000, 2)'", "1 to 1,048,576 numbers"]),
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
        (npy(np.array([[0, 1], [-np.inf, 1]])), ["Km[1, 0] = -inf", "finite"]),
        (npy(np.eye(3)), ["Km of shape [3, 3]"]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_arrays_that_cannot_be_used(content: bytes, words: list[str], compression: int, tmp_path: Path) -> None:
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


def bomb(start: bytes, zeros: int) -> bytes:
    return start + bytes(zeros)


@pytest.mark.parametrize("shape", ["(2, 2)", "(8000000, 1)"])
def test_a_zip_bomb_is_not_unpacked(shape: str, tmp_path: Path) -> None:
    path = archive(tmp_path / "head.npz", bomb(header(shaped(shape)), 64_000_000), zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 100_000
    with little_memory():
        refused_file(path, "Km.npy of 64,000,0", "at most 8,392,704")


def test_a_zip_bomb_that_says_it_is_small_is_not_unpacked_either(tmp_path: Path) -> None:
    start = header(shaped("(2, 2)"))
    size, said = len(start) + 64_000_000, len(start) + 32
    path = archive(tmp_path / "head.npz", bomb(start, 64_000_000), zipfile.ZIP_DEFLATED)
    content = path.read_bytes()
    assert content.count(struct.pack("<I", size)) == 2
    path.write_bytes(content.replace(struct.pack("<I", size), struct.pack("<I", said)))
    with little_memory():
        refused_file(path, "damaged")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_methods_that_unpack_without_a_limit_are_refused(method: int, tmp_path: Path) -> None:
    path = archive(tmp_path / "head.npz", bomb(header(shaped("(2, 2)")), 32), method)
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
def test_a_damaged_number_of_a_large_array_is_found_by_its_checksum(place: int, tmp_path: Path) -> None:
    path = tmp_path / "head.npz"
    write_head(HeadWeights(np.eye(40), np.eye(40), np.eye(40)), path)
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    refused_file(path, "damaged")
