"""GGUF files: the whole header is checked, within bounds of size and time, before a tensor is read.

Not by the package ``gguf`` (0.19), which takes 18 seconds and 686 MiB to open a file of 253 MB,
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

# By their number in a file: the kinds that are read, and names of others for messages.
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
}
_KINDS |= {
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
}
_UNREAD |= {
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    29: "IQ1_M",
    34: "TQ1_0",
    40: "NVFP4",
    41: "Q1_0",
}
_UNREAD |= {31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8"}
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
    """A fault of no use to download again; the second argument says what to do."""


@dataclass(frozen=True)
class GgufFile:
    """A model's metadata and tensors; a model in several files has all of theirs."""

    path: Path
    """The first file."""
    metadata: Mapping[str, Any]
    """Texts, numbers and booleans; arrays are lists of texts or arrays of NumPy."""
    tensors: Mapping[str, FileTensor]
    """By name; their kinds are keys of :data:`FLOATS` or of
    :data:`~glassformer.kernels.packed.KINDS`.
    """
    files: tuple[WeightFile, ...]

    def __repr__(self) -> str:
        return (
            f"GgufFile({str(self.path)!r}, {len(self.metadata)} keys, {len(self.tensors)} tensors)"
        )

    @property
    def nbytes(self) -> int:
        """The size of all files."""
        return sum(size for file in self.files for _, size, _ in file.stamps)


def read_gguf(path: str | Path) -> GgufFile:
    """The header of a GGUF file, or of all files of a model that is in several; no tensor is read.

    Args:
        path: A file; of a model in several, such as ``model-00001-of-00003.gguf``, any of them.
            Consecutive pieces of one file take :func:`joined`.
    """
    path = local_path(path)
    return joined([[path.with_name(name)] for name in part_names(path.name)])


def part_names(name: str) -> list[str]:
    """The names of all files of the model of which ``name`` is one."""
    part = _PART.fullmatch(name)
    if part is None:
        return [name]
    count = int(part[3])
    if not 1 <= int(part[2]) <= count <= 1000:
        raise CheckpointError(name, "a part of as many as its name says", "Rename it.")
    return [f"{part[1]}-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]


def is_gguf(path: Path) -> bool:
    """Whether a file begins as GGUF does, whatever its name: Ollama's are called ``sha256-...``."""
    try:
        require_regular(path)
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except (OSError, InputError):
        return False


def joined(parts: Sequence[Sequence[Path]]) -> GgufFile:
    """As :func:`read_gguf`, of files each of which may be in consecutive pieces."""
    first = parts[0][0]
    metadata: dict[str, Any] = {}
    tensors: dict[str, FileTensor] = {}
    files: list[WeightFile] = []
    for number, pieces in enumerate(parts):
        for piece in pieces:
            if not piece.is_file():
                raise CheckpointError(
                    f"no file {piece}", f"all parts of {first.name}", "Download it too."
                )
            require_regular(piece)
        try:
            source = WeightFile.of(*pieces)
            with source.open() as file:
                found, own = _header(file, source)
            place = found.get("split.no", 0), found.get("split.count", 1) or 1
            if place != (number, len(parts)):
                got = f"part {cut(str(place[0]))} of {cut(str(place[1]))}, where {number} of {len(parts)} is expected"
                raise _OtherFile(
                    got, "Name the parts NAME-00001-of-00002.gguf and so on, side by side."
                )
            if number and own.keys() & tensors.keys():
                raise ValueError("tensors that another part has, too")
        except (ValueError, OSError, struct.error) as error:
            fault, fix = error.args if isinstance(error, _OtherFile) else (error, _FIX)
            raise CheckpointError(
                f"{pieces[0]}, which cannot be read ({fault})", "a GGUF file", fix
            ) from error
        metadata = metadata or found
        tensors |= own
        files.append(source)
    total = metadata.get("split.tensors.count", len(tensors))
    if not isinstance(total, int) or total != len(tensors):
        got = f"{first} and its other parts with {len(tensors)} tensors"
        raise CheckpointError(
            got, f"the {cut(str(total))} of the model", "Take all parts from one model."
        )
    return GgufFile(first, metadata, tensors, tuple(files))


class _Header:
    """The bytes of a header, read as they are needed."""

    def __init__(self, file: Pieces) -> None:
        self._file = file
        self.data = bytearray()
        self.at = 0
        self._items = 0

    def need(self, end: int) -> None:
        if end > min(_HEADER, self._file.size):
            raise ValueError(
                "it ends within the header" if end > self._file.size else "a header beyond 67 MB"
            )
        while len(self.data) < end:
            more = self._file.read(max(_CHUNK, end - len(self.data)))
            if not more:
                raise ValueError("it became shorter")
            self.data += more

    def take(self, form: str) -> Any:
        at = self.at
        self.at = self.at + struct.calcsize(form)
        self.need(self.at)
        return struct.unpack_from(form, self.data, at)[0]

    def text(self) -> str:
        return self.texts(1)[0]

    def texts(self, count: int) -> list[str]:
        found = []
        unpack = struct.Struct("<Q").unpack_from
        data = self.data
        for _ in range(count):
            at = self.at + 8
            if at > len(data):
                self.need(at)
            end = at + unpack(data, at - 8)[0]
            if end > len(data):
                self.need(end)
            found.append(data[at:end].decode())
            self.at = end
        return found

    def value(self, kind: int) -> Any:
        name = _NUMBERS[kind] if kind < len(_NUMBERS) else "?"
        if name == "text":
            return self.text()
        if name == "array":
            return self._array()
        if name == "?":
            raise ValueError(f"a value of the unknown type {kind}")
        found = self._numbers(name, 1)[0]
        # Of all numbers that float32 rounds to this one the shortest is what was meant: 1e-5, not
        # 9.99999975e-6.
        return float(str(found)) if name == "<f4" else found.item()

    def _array(self) -> Any:
        kind = self.take("<I")
        count = self.take("<Q")
        name = _NUMBERS[kind] if kind < len(_NUMBERS) else "?"
        if name in ("array", "?") or count > _ITEMS:
            raise ValueError(f"an array of {count} values of type {kind}")
        self._items += count
        if self._items > 2 * _ITEMS:
            raise ValueError(f"{self._items} values in arrays")
        if name == "text":
            return self.texts(count)
        return self._numbers(name, count)

    def _numbers(self, name: str, count: int) -> np.ndarray:
        dtype = np.dtype(np.uint8 if name == "bool" else name)
        at = self.at
        self.at = self.at + count * dtype.itemsize
        self.need(self.at)
        found = np.frombuffer(bytes(self.data[at : self.at]), dtype)
        return found.astype(bool) if name == "bool" else found


def _header(file: Pieces, source: WeightFile) -> tuple[dict[str, Any], dict[str, FileTensor]]:
    head = _Header(file)
    head.need(min(4, file.size))
    if not b"GGUF".startswith(head.data[:4]):
        fix = "Pass a GGUF file, or a model's directory."
        if source.path.suffix in (".json", ".safetensors"):
            fix = f"Pass its directory: {shown(source.path.parent)}."
        raise _OtherFile("it does not begin with GGUF", fix)
    head.need(4)
    head.at = 4
    version = head.take("<I")
    tensors = head.take("<Q")
    keys = head.take("<Q")
    if version not in (2, 3):
        fix = "Convert the model again, or take its safetensors."
        raise _OtherFile(f"version {version}; 2 and 3 in little endian are read", fix)
    if tensors > _TENSORS or keys > _KEYS:
        raise ValueError(f"{tensors} tensors and {keys} keys")
    metadata: dict[str, Any] = {}
    for _ in range(keys):
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
    described = [_described(head) for _ in range(tensors)]
    first = -(-head.at // alignment) * alignment
    found: dict[str, FileTensor] = {}
    reached = 0
    for name, shape, kind, offset in described:
        if name in found:
            raise ValueError(f"{cut(repr(name))} twice")
        if offset != reached:
            raise ValueError(f"{cut(repr(name))} at {offset}, where {reached} is expected")
        block = KINDS[kind].block if kind in KINDS else 1
        if shape[-1] % block:
            raise ValueError(
                f"{cut(repr(name))} with rows of {shape[-1]}, which blocks of {block} do not fill"
            )
        found[name] = FileTensor(source, name, shape, kind, first + offset)
        end = offset + found[name].nbytes
        if first + end > file.size:
            raise ValueError(f"{file.size} bytes, where {cut(repr(name))} ends at {first + end}")
        reached = -(-end // alignment) * alignment
    return metadata, found


def _described(head: _Header) -> tuple[str, list[int], str, int]:
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
        got = f"{cut(repr(name))} of the kind {_UNREAD.get(kind, kind)}, which is not read"
        raise _OtherFile(
            got, "Take the model's file in another format, such as Q4_K_M, IQ4_XS or Q8_0."
        )
    return name, shape, _KINDS[kind], offset
