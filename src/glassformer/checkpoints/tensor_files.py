"""Safetensors files: all tensors are checked before the first is read, and then read one at a time.

Files are not read by safetensors' ``safe_open``, which is weaker (0.8.0). It accepts a repeated
name, takes 1.4 GB and a minute for a header of 83 MB, and ends the process if a file is truncated
while it is open. Its mapped file counts as
memory: 787 MiB instead of 10 to read 759 MiB of experts one by one.
"""

import io
import math
import os
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer.errors import CheckpointError, InputError
from glassformer.files import local_path, standing
from glassformer.kernels.huge_pages import empty_in_huge_pages
from glassformer.kernels.packed import KINDS as BLOCKS
from glassformer.kernels.packed import finite
from glassformer.untrusted import json_value, read_text, require_regular

FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Kinds of floating-point numbers, as safetensors writes them."""
DTYPES = FLOATS | {
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "BOOL": torch.bool,
}
"""Kinds of numbers that are read."""
KINDS = {dtype: kind for kind, dtype in DTYPES.items()}
"""How safetensors writes a dtype."""
# Also of kinds that are not read, but may occur in a file with others.
_BITS = {kind: 8 * dtype.itemsize for kind, dtype in DTYPES.items()}
_BITS |= {"U16": 16, "U32": 32, "U64": 64, "C64": 64, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4}
_BITS |= dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0"), 8)
_DAMAGED = "Put a whole copy in its place, or download or train it again, or make it readable."

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
ADAPTER_FILE = "adapter_config.json"
INDEX_FILE = f"{WEIGHTS_FILE}.index.json"

# Headers of the largest models' files have less than a tenth of this; parsing it takes a second and
# 200 MiB at most.
_LONGEST_JSON = 2**22
# An untrusted file may have tens of thousands of names, and names of megabytes; messages must stay
# readable.
_MOST_FAULTS = 20
_LONGEST_NAME = 200


def stored_bytes(shape: Sequence[int], kind: str) -> int:
    """Return the size in bytes of a tensor of this shape and kind."""
    numbers = math.prod(shape)
    block = BLOCKS.get(kind)
    if block is None:
        return numbers * _BITS[kind] // 8
    return numbers // block.block * block.nbytes


@dataclass(frozen=True)
class WeightFile:
    """A file of weights, in one piece or in consecutive ones, as it was when its header was read."""

    pieces: tuple[Path, ...]
    stamps: tuple[tuple[int, int, int], ...] = ()
    """Inode, size and time of the last change of each piece. Empty for a file that is not here."""

    @staticmethod
    def of(*pieces: Path) -> "WeightFile":
        """Return the file of these pieces as it is now."""
        return WeightFile(pieces, tuple(_stamp(piece.stat()) for piece in pieces))

    @property
    def path(self) -> Path:
        """Path of the file, or of its first piece."""
        return self.pieces[0]

    @contextmanager
    def open(self) -> Iterator["Pieces"]:
        """Open the file for reading; an ``OSError`` if it is another one than when its header was
        read.
        """
        with Pieces(self.pieces) as pieces:
            if pieces.stamps != self.stamps:
                raise OSError("it changed after its header was read: load it again")
            yield pieces


class Pieces(io.RawIOBase):
    """Consecutive pieces of a file, opened for reading as one."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._files: list[io.FileIO] = []
        self._ends: list[int] = []
        self._position = 0
        self.size = 0
        try:
            for path in paths:
                self._files.append(io.FileIO(path))
        except OSError:
            self.close()
            raise
        statuses = [os.fstat(file.fileno()) for file in self._files]
        self.stamps = tuple(_stamp(status) for status in statuses)
        for status in statuses:
            self.size += status.st_size
            self._ends.append(self.size)

    def seek(self, position: int, whence: int = 0) -> int:
        """Go to a position from the start of the first piece."""
        self._position = position
        return position

    def readinto(self, buffer: Any) -> int:
        """Read bytes from the current position on into ``buffer``; return how many."""
        room = memoryview(buffer).cast("B")
        done = 0
        begin = 0
        for file, end in zip(self._files, self._ends, strict=True):
            if begin <= self._position < end and done < len(room):
                file.seek(self._position - begin)
                count = file.readinto(room[done : done + end - self._position]) or 0
                done += count
                self._position += count
            begin = end
        return done

    def close(self) -> None:
        """Close all pieces."""
        for file in self._files:
            file.close()
        super().close()


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns


@dataclass(frozen=True)
class FileTensor:
    """A tensor of a file, which is not read yet."""

    source: WeightFile
    name: str
    """As in the file."""
    shape: list[int]
    kind: str
    """As safetensors writes it, ``"F32"``, or as GGUF calls its blocks: ``"Q4_K"``."""
    start: int = 0
    """Position of its first byte in the file."""

    @property
    def file(self) -> Path:
        """Path of its file, for messages."""
        return self.source.path

    @property
    def nbytes(self) -> int:
        """Size in the file, in bytes."""
        return stored_bytes(self.shape, self.kind)

    def read(
        self,
        *,
        allow_nonfinite: bool = False,
        empty: Callable[[Sequence[int], torch.dtype], Tensor] = empty_in_huge_pages,
    ) -> Tensor:
        """Read it into memory that ``empty`` takes; blocks as uint8 ``[..., rows, bytes of a
        row]``.

        Raises:
            CheckpointError: The file ends within it or has changed, or some weights are infinite or
                NaN, unless ``allow_nonfinite``.
        """
        block = BLOCKS.get(self.kind)
        if block is None:
            tensor = empty(self.shape, DTYPES[self.kind])
        else:
            tensor = empty(block.packed_shape(self.shape), torch.uint8)
        try:
            with self.source.open() as opened:
                read_into(tensor, opened, self.start)
        except OSError as error:
            raise _damaged(self.file, f"at {cut(self.name)}: {error}") from error
        if not allow_nonfinite:
            if block is None:
                check = None
            else:
                check = partial(finite, self.kind)
            require_finite(tensor, self.name, self.file, check)
        return tensor


def stored_tensors(
    directory: Path | str, clean: Callable[[str], str] = str
) -> dict[str, FileTensor]:
    """Every tensor of a directory: of ``model.safetensors``, of the files in
    ``model.safetensors.index.json``, or else of all ``.safetensors`` files.

    Headers are checked as a whole: sizes agree with shapes, tensors are contiguous and fill the
    file, names are unique. No tensor is read. ``clean`` maps the spellings of a name in files to
    the keys of the result.
    A file may be a link to anywhere: what is no safetensors file there is refused, without a word
    of its content.
    """
    directory = local_path(directory)
    files, places = weight_files(directory)
    return joined(
        directory, ((file, tensors_in(directory / file)) for file in files), places, clean
    )


def weight_files(directory: Path) -> tuple[list[str], dict[str, str]]:
    """The names of a directory's files of weights, which may be missing, and the file of each
    tensor by its index.
    """
    # A broken link counts as a file.
    if os.path.lexists(directory / WEIGHTS_FILE):
        return [WEIGHTS_FILE], {}
    if os.path.lexists(directory / INDEX_FILE):
        places = _places(directory / INDEX_FILE)
        return sorted(set(places.values())), places
    return sorted(path.name for path in directory.glob("*.safetensors")) or [WEIGHTS_FILE], {}


def run_places(run: Path) -> list[Path]:
    """Where a training run may have weights: the best ones, and those of its checkpoints, the
    latest first.
    """
    return [
        standing(run / "best"),
        *sorted(run.glob(f"checkpoints/step-{'[0-9]' * 8}"), reverse=True),
    ]


def run_weights(run: Path) -> Path:
    """The directory of the weights of a training run: its best ones, or before its first evaluation
    its latest.
    """
    found = [place for place in run_places(run) if place.is_dir()]
    if len(found) <= 0:
        raise InputError(
            got=f"{run}, a run without weights yet",
            expected="a run with a checkpoint",
            fix=f"Train it first: glassformer train --run {shlex.quote(str(run))} --resume.",
        )
    return found[0]


def joined(
    directory: Path,
    pieces: Iterable[tuple[str, Iterable[FileTensor]]],
    places: Mapping[str, str],
    clean: Callable[[str], str] = str,
) -> dict[str, FileTensor]:
    """The tensors of several files by their cleaned names, checked against an index.

    The index may name tensors that no file has: an output projection that is the embedding, for
    example. Whether the model needs them is for :func:`check_tensors`.
    """
    tensors: dict[str, FileTensor] = {}
    for file, stored in pieces:
        for tensor in stored:
            name = clean(tensor.name)
            if name in tensors:
                raise CheckpointError(
                    f"{cut(name)} twice in {directory}: as {cut(tensors[name].name)} in "
                    f"{tensors[name].file.name} "
                    f"and as {cut(tensor.name)} in {file}",
                    "each tensor once",
                    "Remove one of them.",
                )
            tensors[name] = tensor
    found = {tensor.name: tensor.file.name for tensor in tensors.values()}
    if wrong := [
        f"{cut(name)} in {file}" for name, file in places.items() if found.get(name, file) != file
    ]:
        fault = f"{directory / INDEX_FILE} with {_listed(wrong)}"
        raise CheckpointError(fault, "the file of each tensor", "Download all files again.")
    return tensors


def check_tensors(
    stored: Mapping[str, FileTensor],
    shapes: Mapping[str, list[int]],
    place: Path,
    *,
    kinds: Collection[str] = tuple(FLOATS),
    in_bytes: Collection[str] = (),
    described_by: str = CONFIG_FILE,
    fix: str = f"Take {CONFIG_FILE} and the weights from the same place.",
) -> None:
    """Check the tensors of a directory or file against the expected ``shapes``.

    Their numbers are of one of ``kinds``, but for tensors of bytes, which ``in_bytes`` names.
    """
    missing = [f"missing {name}" for name in shapes if name not in stored]
    others = [tensor for name, tensor in stored.items() if name not in shapes]
    unknown = [f"unknown {cut(tensor.name)} in {tensor.file.name}" for tensor in others]
    faults = []
    for name, shape in shapes.items():
        tensor = stored.get(name)
        if tensor is None:
            continue
        known = ("U8",) if name in in_bytes else kinds
        if tensor.shape != shape:
            faults.append(
                f"{cut(tensor.name)} of shape {tensor.shape} instead of {shape} in "
                f"{tensor.file.name}"
            )
        elif tensor.kind not in known:
            faults.append(
                f"{cut(tensor.name)} of kind {tensor.kind} instead of {' or '.join(known)} in "
                f"{tensor.file.name}"
            )
    if missing or unknown or faults:
        raise CheckpointError(
            f"{place} with {', '.join(_listed(each) for each in (missing, unknown, faults) if each)}",
            f"exactly the tensors of {described_by}",
            fix,
        )


def header_tensors(
    source: WeightFile, header: Mapping[str, Any], first: int, size: int
) -> list[FileTensor]:
    """The tensors of a header, a JSON object, of a file of ``size`` bytes whose first number is at
    ``first``.

    Faults are a ``ValueError``.
    """
    spans: list[tuple[int, int, FileTensor]] = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        fields: dict[str, Any] = entry if isinstance(entry, dict) else {}
        shape = fields.get("shape", "")
        kind = fields.get("dtype")
        offsets = fields.get("data_offsets", "")
        if not (
            _whole_numbers(shape)
            and _whole_numbers(offsets)
            and len(offsets) == 2
            and isinstance(kind, str)
        ):
            raise ValueError(f"{cut(repr(name))} without a shape, a dtype or two offsets")
        if kind not in _BITS:
            raise ValueError(f"{cut(repr(name))} of the unknown dtype {cut(repr(kind))}")
        begin, end = offsets
        if math.prod(shape) * _BITS[kind] != (end - begin) * 8:
            raise ValueError(
                f"{cut(repr(name))} with {end - begin} bytes for the shape {shape} of {kind}"
            )
        spans.append((begin, end, FileTensor(source, name, shape, kind, first + begin)))
    reached = 0
    for begin, end, tensor in sorted(spans, key=lambda span: span[:2]):
        if begin != reached:
            raise ValueError(
                f"{cut(repr(tensor.name))} at {begin} where the tensor before it ends at {reached}"
            )
        reached = end
    if first + reached != size:
        raise ValueError(f"{size} bytes, where the tensors end at {first + reached}")
    return [tensor for _, _, tensor in spans]


def require_finite(
    tensor: Tensor, name: str, file: Path, finite: Callable[[Tensor], bool] | None = None
) -> Tensor:
    """Return a tensor; raise :class:`CheckpointError` if some of its weights are infinite or NaN.

    ``finite`` looks at packed weights. Other numbers are looked at in one pass, faster than they
    are read.
    """
    if tensor.is_meta or tensor.numel() == 0:
        return tensor
    if finite is not None:
        is_sound = finite(tensor)
    elif tensor.is_floating_point():
        is_sound = all(math.isfinite(end) for end in tensor.detach().aminmax())
    else:
        is_sound = True
    if not is_sound:
        raise CheckpointError(
            f"{cut(name)} with weights that are infinite or NaN in {file}",
            "finite weights",
            "Download or train it again. To look at such a model, pass allow_nonfinite=True in "
            "Python.",
        )
    return tensor


def read_tensors(
    stored: Mapping[str, FileTensor],
    wanted: Mapping[str, tuple[str, list[int]]],
    dtype: torch.dtype,
    *,
    allow_nonfinite: bool = False,
) -> dict[str, Tensor]:
    """Read the tensors of ``stored`` by our names, in ``dtype`` and in memory of their own.

    ``wanted`` is ``{our name: (name in stored, shape)}`` for all of them.
    """
    directories = {str(tensor.file.parent) for tensor in stored.values()}
    check_tensors(stored, dict(wanted.values()), Path(*directories))
    return {
        ours: stored[name].read(allow_nonfinite=allow_nonfinite).to(dtype)
        for ours, (name, _) in wanted.items()
    }


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in the file ``path``; that of a model's directory not beside an adapter."""
    directory = path.parent
    fix = "Pass the directory that holds it."
    if path.name == CONFIG_FILE and (directory / ADAPTER_FILE).is_file():
        merged = "Merge it with PEFT: merge_and_unload(), then save_pretrained()"
        fix = f"{merged}. To read weights beside it alone, remove {ADAPTER_FILE}."
        raise CheckpointError(
            f"{directory} with {ADAPTER_FILE}, an adapter to another model", "a whole model", fix
        )
    if not path.is_file():
        if path.name == CONFIG_FILE:
            files = sorted(
                each for each in directory.glob("*.gguf") if not each.name.startswith("mmproj")
            )
            named: object
            if files:
                named = files[0]
            else:
                named = "on the hub owner/name:file.gguf"
            copies = sorted(directory.glob(f"snapshots/*/{CONFIG_FILE}"))  # of the hub's cache
            place: object
            if copies:
                place = copies[0].parent
            else:
                place = "the directory that holds it"
            fix = f"Pass {place}, or a GGUF file itself: {named}."
        raise CheckpointError(f"no file {path}", "a JSON object", fix)
    try:
        content = json_value(read_text(path, _LONGEST_JSON, inside=True))
    except InputError as error:
        if isinstance(error.__cause__, OSError | UnicodeError):
            fix = error.fix
        else:
            fix = _DAMAGED
        raise CheckpointError(
            f"{path}, which cannot be read ({error.got})", "a JSON object", fix
        ) from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} with a {type(content).__name__}", "a JSON object", _DAMAGED)
    return content


def cut(name: str) -> str:
    """``name`` for a message, shortened if it is long."""
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[:_LONGEST_NAME]}..."


def _places(index: Path) -> dict[str, str]:
    pieces = read_json(index).get("weight_map")
    if not isinstance(pieces, dict) or not pieces:
        raise CheckpointError(f"{index} without a weight_map", "the file of each tensor", _DAMAGED)
    for tensor, file in pieces.items():
        plain = (
            isinstance(file, str) and file.endswith(".safetensors") and not set(file) & set("/\\\0")
        )
        if not plain:
            raise CheckpointError(
                f"{index} with {cut(tensor)} in {cut(repr(file))}",
                "the name of a safetensors file in the same directory",
                "Files elsewhere are not read: put all of them into one directory.",
            )
    return pieces


def tensors_in(file: Path) -> list[FileTensor]:
    """Return the tensors of one safetensors file, whose header is checked as a whole."""
    if not file.is_file():
        raise CheckpointError(
            f"no file {file}",
            "weights as safetensors",
            "Download it too, or save the model as safetensors: nothing that would have to be "
            "unpickled is read.",
        )
    try:
        require_regular(file)
        with file.open("rb") as opened:
            status = os.fstat(opened.fileno())
            size = status.st_size
            length = int.from_bytes(opened.read(8), "little")
            if size < 8 or length > size - 8:
                raise ValueError(f"{size} bytes, which end within the header")
            if length > _LONGEST_JSON:
                raise ValueError(f"a header of more than {_LONGEST_JSON} bytes")
            header = json_value(opened.read(length).decode())
            if not isinstance(header, dict):
                raise ValueError("no JSON object in the header")
            return header_tensors(WeightFile((file,), (_stamp(status),)), header, 8 + length, size)
    except (OSError, ValueError) as error:
        raise _damaged(file, error.got if isinstance(error, InputError) else str(error)) from error


def read_into(out: Tensor, file: io.RawIOBase, start: int) -> None:
    """Fill a tensor with the bytes of a file from ``start`` on."""
    rest = memoryview(out.view(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
    file.seek(start)
    while rest:
        got = file.readinto(rest)
        if not got:
            raise OSError("the file ends here")
        rest = rest[got:]


def _listed(faults: list[str]) -> str:
    more = len(faults) - _MOST_FAULTS
    return ", ".join([*faults[:_MOST_FAULTS], *([f"and {more} more"] if more > 0 else [])])


def _damaged(file: Path, reason: str) -> CheckpointError:
    return CheckpointError(
        f"{file}, which cannot be read ({reason})", "a complete file of weights", _DAMAGED
    )


def _whole_numbers(values: Any) -> bool:
    return (
        isinstance(values, list)
        and len(values) <= 16
        and all(type(value) is int and 0 <= value < 2**63 for value in values)
    )
