"""GGUF files: the whole header is checked, within bounds of size and time, before a tensor is read.

The package ``gguf`` (0.19) is not used: it takes 18 seconds and 686 MiB to open a file of 253 MB,
never returns from one of 192 bytes, and accepts offsets that wrap and tensors that overlap.

Source: the specification in ggml's ``docs/gguf.md``; ``ggml/src/gguf.cpp`` for the order and
padding of tensors.
"""

import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glassformer.checkpoints.tensor_files import FileTensor, Pieces, WeightFile, cut
from glassformer.errors import CheckpointError, InputError
from glassformer.files import local_path
from glassformer.kernels.packed import KINDS
from glassformer.text import shown
from glassformer.untrusted import require_regular

# Kinds of tensors by their number in a file: those that are read, and others for messages.
_KINDS = {
    0: "F32",
    1: "F16",
    30: "BF16",
    28: "F64",
    2: "Q4_0",
    3: "Q4_1",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    20: "IQ4_NL",
    23: "IQ4_XS",
    35: "TQ2_0",
    39: "MXFP4",
}
_UNREAD = {
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    29: "IQ1_M",
    34: "TQ1_0",
    40: "NVFP4",
    41: "Q1_0",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
}
# Types of values by their number.
_NUMBERS = (
    "<u1",
    "<i1",
    "<u2",
    "<i2",
    "<u4",
    "<i4",
    "<f4",
    "bool",
    "text",
    "array",
    "<u8",
    "<i8",
    "<f8",
)
# Bounds of a header: the largest vocabularies have 262,144 tokens and twice as many merges, in less
# than 16 MiB.
_HEADER = 2**26
_ITEMS = 2**20
_TENSORS = 2**16
_KEYS = 2**12
_NAME = 64
_ALIGNMENT = 2**16
_CHUNK = 2**20
_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
_FIX = "Download the file again, join its pieces, convert the model again, or make it readable."


class _OtherFile(ValueError):
    """A fault that a new download would not cure; the second argument is the advice."""


@dataclass(frozen=True)
class GgufFile:
    """A model's metadata and tensors; a model in several files has all of theirs."""

    path: Path
    """The first file."""
    metadata: Mapping[str, Any]
    """Texts, numbers and booleans; arrays are lists of texts or arrays of NumPy."""
    tensors: Mapping[str, FileTensor]
    """Tensors by name. Their kinds are keys of :data:`FLOATS` or of
    :data:`~glassformer.kernels.packed.KINDS`.
    """
    files: tuple[WeightFile, ...]

    def __repr__(self) -> str:
        return (
            f"GgufFile({str(self.path)!r}, {len(self.metadata)} keys, {len(self.tensors)} tensors)"
        )

    @property
    def nbytes(self) -> int:
        """Size of all files, in bytes."""
        return sum(file.nbytes for file in self.files)


def read_gguf(path: str | Path) -> GgufFile:
    """Read the header of a GGUF file, or of all files of a model in several; no tensor is read.

    Args:
        path: A file. Of a model in several, such as ``model-00001-of-00003.gguf``, any of them.
            For consecutive pieces of one file, use :func:`joined`.
    """
    return read_parts(local_path(path))


def read_parts(path: Path) -> GgufFile:
    """Read the headers of all files of a model; ``path`` is any of them."""
    return joined([[path.with_name(name)] for name in part_names(path.name)])


def part_names(name: str) -> list[str]:
    """Return the names of all files of a model; ``name`` is any of them."""
    part = _PART.fullmatch(name)
    if part is None:
        return [name]
    count = int(part[3])
    if not 1 <= int(part[2]) <= count <= 1000:
        raise CheckpointError(name, "a part of as many as its name says", "Rename it.")
    return [f"{part[1]}-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]


def is_gguf(path: Path) -> bool:
    """Return whether a file begins as GGUF does. Ollama's are called ``sha256-...``."""
    try:
        require_regular(path)
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except (OSError, InputError):
        return False


def joined(parts: Sequence[Sequence[Path]]) -> GgufFile:
    """Read the headers of a model's files, each of which may be in consecutive pieces.

    Args:
        parts: The files of a model, each a list of its pieces.
    """
    first = parts[0][0]
    metadata: dict[str, Any] = {}
    tensors: dict[str, FileTensor] = {}
    files: list[WeightFile] = []
    for number, pieces in enumerate(parts):
        _require_pieces(pieces, first)
        try:
            source = WeightFile.of(*pieces)
            with source.open() as file:
                part_metadata, part_tensors = _header(file, source)
            _require_place(part_metadata, number, len(parts))
            if number and part_tensors.keys() & tensors.keys():
                raise ValueError("tensors that another part has, too")
        except _OtherFile as error:
            fault, fix = error.args
            raise _unreadable(pieces[0], fault, fix) from error
        except (ValueError, OSError, struct.error) as error:
            raise _unreadable(pieces[0], error, _FIX) from error
        metadata = metadata or part_metadata
        tensors |= part_tensors
        files.append(source)
    total = metadata.get("split.tensors.count", len(tensors))
    if not isinstance(total, int) or total != len(tensors):
        raise CheckpointError(
            f"{first} and its other parts with {len(tensors)} tensors",
            f"the {cut(str(total))} of the model",
            "Take all parts from one model.",
        )
    return GgufFile(first, metadata, tensors, tuple(files))


def _require_pieces(pieces: Sequence[Path], first: Path) -> None:
    """Check that all pieces of a file are regular files; ``first`` names the model."""
    for piece in pieces:
        if not piece.is_file():
            raise CheckpointError(
                f"no file {piece}", f"all parts of {first.name}", "Download it too."
            )
        require_regular(piece)


def _require_place(metadata: Mapping[str, Any], number: int, count: int) -> None:
    """Check that a file is the part of a model that its name says."""
    place = (metadata.get("split.no", 0), metadata.get("split.count", 1) or 1)
    if place != (number, count):
        raise _OtherFile(
            f"part {cut(str(place[0]))} of {cut(str(place[1]))}, "
            f"where {number} of {count} is expected",
            "Name the parts NAME-00001-of-00002.gguf and so on, side by side.",
        )


def _unreadable(file: Path, fault: object, fix: str) -> CheckpointError:
    return CheckpointError(f"{file}, which cannot be read ({fault})", "a GGUF file", fix)


def _type_name(kind: int) -> str:
    """Return the type of values of this number; ``"?"`` for an unknown one."""
    return _NUMBERS[kind] if kind < len(_NUMBERS) else "?"


class _Header:
    """The bytes of a header, read as they are needed."""

    def __init__(self, file: Pieces) -> None:
        self._file = file
        self.data = bytearray()
        self.position = 0
        self._items = 0

    def need(self, end: int) -> None:
        """Read the header up to ``end``."""
        if end > self._file.size:
            raise ValueError("it ends within the header")
        if end > _HEADER:
            raise ValueError("a header beyond 67 MB")
        while len(self.data) < end:
            more = self._file.read(max(_CHUNK, end - len(self.data)))
            if not more:
                raise ValueError("it became shorter")
            self.data += more

    def take(self, form: str) -> Any:
        """Return the next number, of a format of ``struct``."""
        start = self.position
        self.position = start + struct.calcsize(form)
        self.need(self.position)
        return struct.unpack_from(form, self.data, start)[0]

    def text(self) -> str:
        """Return the next text."""
        return self.texts(1)[0]

    def texts(self, count: int) -> list[str]:
        """Return the next texts; a vocabulary has hundreds of thousands."""
        texts = []
        unpack = struct.Struct("<Q").unpack_from
        data = self.data
        for _ in range(count):
            start = self.position + 8
            if start > len(data):
                self.need(start)
            end = start + unpack(data, start - 8)[0]
            if end > len(data):
                self.need(end)
            texts.append(data[start:end].decode())
            self.position = end
        return texts

    def value(self, kind: int) -> Any:
        """Return the next value, of the type of this number."""
        name = _type_name(kind)
        if name == "text":
            return self.text()
        if name == "array":
            return self._array()
        if name == "?":
            raise ValueError(f"a value of the unknown type {kind}")
        number = self._numbers(name, 1)[0]
        # Of all numbers that float32 rounds to this one, the shortest was meant: 1e-5, not
        # 9.99999975e-6, for example.
        if name == "<f4":
            return float(str(number))
        return number.item()

    def _array(self) -> Any:
        kind = self.take("<I")
        count = self.take("<Q")
        name = _type_name(kind)
        if name in ("array", "?") or count > _ITEMS:
            raise ValueError(f"an array of {count} values of type {kind}")
        self._items += count
        if self._items > 2 * _ITEMS:
            raise ValueError(f"{self._items} values in arrays")
        if name == "text":
            return self.texts(count)
        return self._numbers(name, count)

    def _numbers(self, name: str, count: int) -> np.ndarray:
        is_bool = name == "bool"
        dtype = np.dtype(np.uint8 if is_bool else name)
        start = self.position
        self.position = start + count * dtype.itemsize
        self.need(self.position)
        numbers = np.frombuffer(bytes(self.data[start : self.position]), dtype)
        return numbers.astype(bool) if is_bool else numbers


def _header(file: Pieces, source: WeightFile) -> tuple[dict[str, Any], dict[str, FileTensor]]:
    """Return the metadata and the tensors of a file, checked as a whole."""
    head = _Header(file)
    head.need(min(4, file.size))
    if not b"GGUF".startswith(head.data[:4]):
        fix = "Pass a GGUF file, or a model's directory."
        if source.path.suffix in (".json", ".safetensors"):
            fix = f"Pass its directory: {shown(source.path.parent)}."
        raise _OtherFile("it does not begin with GGUF", fix)
    head.need(4)
    head.position = 4
    version = head.take("<I")
    num_tensors = head.take("<Q")
    num_keys = head.take("<Q")
    if version not in (2, 3):
        fix = "Convert the model again, or take its safetensors."
        raise _OtherFile(f"version {version}; 2 and 3 in little endian are read", fix)
    if num_tensors > _TENSORS or num_keys > _KEYS:
        raise ValueError(f"{num_tensors} tensors and {num_keys} keys")
    metadata: dict[str, Any] = {}
    for _ in range(num_keys):
        key = head.text()
        if key in metadata:
            raise ValueError(f"{cut(repr(key))} twice")
        metadata[key] = head.value(head.take("<I"))
    alignment = metadata.get("general.alignment", 32)
    if not (
        isinstance(alignment, int)
        and 0 < alignment <= _ALIGNMENT
        and alignment & (alignment - 1) == 0
    ):
        raise ValueError(f"general.alignment = {cut(repr(alignment))}")
    described = [_described(head) for _ in range(num_tensors)]
    first = -(-head.position // alignment) * alignment
    named_tensors: dict[str, FileTensor] = {}
    reached = 0
    for name, shape, kind, offset in described:
        if name in named_tensors:
            raise ValueError(f"{cut(repr(name))} twice")
        if offset != reached:
            raise ValueError(f"{cut(repr(name))} at {offset}, where {reached} is expected")
        block = 1
        if kind in KINDS:
            block = KINDS[kind].block
        if shape[-1] % block:
            raise ValueError(
                f"{cut(repr(name))} with rows of {shape[-1]}, which blocks of {block} do not fill"
            )
        tensor = FileTensor(source, name, shape, kind, first + offset)
        named_tensors[name] = tensor
        end = offset + tensor.nbytes
        if first + end > file.size:
            raise ValueError(f"{file.size} bytes, where {cut(repr(name))} ends at {first + end}")
        reached = -(-end // alignment) * alignment
    return metadata, named_tensors


def _described(head: _Header) -> tuple[str, list[int], str, int]:
    """Return name, shape, kind and offset of the next tensor that a header describes."""
    name = head.text()
    count = head.take("<I")
    if not 0 < len(name.encode()) < _NAME or not 1 <= count <= 4:
        raise ValueError(f"a tensor {cut(repr(name))} of {count} dimensions")
    shape = [head.take("<Q") for _ in range(count)][::-1]
    if 0 in shape or math.prod(shape) >= 2**48:
        raise ValueError(f"{cut(repr(name))} of shape {shape}")
    kind = head.take("<I")
    offset = head.take("<Q")
    if kind not in _KINDS:
        fix = "Take the model's file in another format, such as Q4_K_M, IQ4_XS or Q8_0."
        raise _OtherFile(
            f"{cut(repr(name))} of the kind {_UNREAD.get(kind, kind)}, which is not read", fix
        )
    return name, shape, _KINDS[kind], offset
