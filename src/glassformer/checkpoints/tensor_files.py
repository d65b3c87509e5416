"""Safetensors files: all headers are checked first, then tensors are read one at a time.

Files are not read by safetensors' ``safe_open``, which is weaker (0.8.0). It accepts a repeated
name, takes 1.4 GB and a minute for a header of 83 MB, and ends the process if a file is truncated
while it is open. Its mapped file counts as memory: 787 MiB instead of 10 to read 759 MiB of experts
one by one.
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
"""Names of dtypes in safetensors."""
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
# Untrusted files may have tens of thousands of names, and names of megabytes: messages cut these.
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
    """A file of weights in one or more consecutive pieces, as it was when its header was read."""

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

    @property
    def nbytes(self) -> int:
        """Size in bytes; 0 for a file that is not here."""
        return sum(size for _, size, _ in self.stamps)

    @contextmanager
    def open(self) -> Iterator["Pieces"]:
        """Open the file for reading.

        Raises:
            OSError: The file was changed or replaced after its header was read.
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
        target = memoryview(buffer).cast("B")
        done = 0
        begin = 0
        for file, end in zip(self._files, self._ends, strict=True):
            if begin <= self._position < end and done < len(target):
                file.seek(self._position - begin)
                count = file.readinto(target[done : done + end - self._position]) or 0
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
    """Name in the file."""
    shape: list[int]
    kind: str
    """Format of its numbers: ``"F32"`` as in safetensors, or ``"Q4_K"`` as in GGUF."""
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
        """Read it into memory that ``empty`` takes.

        Blocks are uint8 ``[..., rows, bytes of a row]``.

        Raises:
            CheckpointError: The file ends within the tensor or has changed, or some weights are
                infinite or NaN, unless ``allow_nonfinite``.
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
            check = None if block is None else partial(finite, self.kind)
            require_finite(tensor, self.name, self.file, check)
        return tensor


def stored_tensors(
    directory: Path | str, clean: Callable[[str], str] = str
) -> dict[str, FileTensor]:
    """Return the tensors of a directory by name; none is read.

    Files are ``model.safetensors``, those in ``model.safetensors.index.json``, or else all
    ``.safetensors`` files. Headers are checked as a whole: sizes agree with shapes, tensors are
    contiguous and fill the file, names are unique. A file may be a link to anywhere. If that is no
    safetensors file, the error repeats none of its content.

    Args:
        directory: Directory of the files.
        clean: Function from a name in the files to the key of the result.
    """
    directory = local_path(directory)
    files, places = weight_files(directory)
    headers = ((file, tensors_in(directory / file)) for file in files)
    return joined(directory, headers, places, clean)


def weight_files(directory: Path) -> tuple[list[str], dict[str, str]]:
    """Return the names of a directory's files of weights, and the file of each tensor by its index.

    The files may be missing.
    """
    # A broken link counts as a file.
    if os.path.lexists(directory / WEIGHTS_FILE):
        return [WEIGHTS_FILE], {}
    if os.path.lexists(directory / INDEX_FILE):
        places = _places(directory / INDEX_FILE)
        return sorted(set(places.values())), places
    return sorted(path.name for path in directory.glob("*.safetensors")) or [WEIGHTS_FILE], {}


def run_places(run: Path) -> list[Path]:
    """Return the directories in which a training run may have weights.

    The best weights come first, then those of its checkpoints from the latest on.
    """
    checkpoints = run.glob(f"checkpoints/step-{'[0-9]' * 8}")
    return [standing(run / "best"), *sorted(checkpoints, reverse=True)]


def run_weights(run: Path) -> Path:
    """Return the directory of a training run's best weights.

    Before the first evaluation, these are the weights of its latest checkpoint.
    """
    for directory in run_places(run):
        if directory.is_dir():
            return directory
    raise InputError(
        got=f"{run}, a run without weights yet",
        expected="a run with a checkpoint",
        fix=f"Train it first: glassformer train --run {shlex.quote(str(run))} --resume.",
    )


def joined(
    directory: Path,
    pieces: Iterable[tuple[str, Iterable[FileTensor]]],
    places: Mapping[str, str],
    clean: Callable[[str], str] = str,
) -> dict[str, FileTensor]:
    """Return the tensors of several files by their cleaned names, checked against an index.

    The index may name tensors that no file has: an output projection that is the embedding, for
    example. :func:`check_tensors` decides whether the model needs them.

    Args:
        directory: Directory of the files, for messages.
        pieces: Names of the files with their tensors.
        places: The file of each tensor by the index; empty without an index.
        clean: Function from a name in the files to the key of the result.
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
    actual_places = {tensor.name: tensor.file.name for tensor in tensors.values()}
    wrong = [
        f"{cut(name)} in {file}"
        for name, file in places.items()
        if actual_places.get(name, file) != file
    ]
    if wrong:
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

    Args:
        stored: Tensors of the files.
        shapes: Shape of each tensor that there must be.
        place: The directory or file, for messages.
        kinds: Possible kinds of numbers.
        in_bytes: Names of tensors of bytes.
        described_by: Source of ``shapes``, for messages.
        fix: Advice for messages.
    """
    missing = [f"missing {name}" for name in shapes if name not in stored]
    others = [tensor for name, tensor in stored.items() if name not in shapes]
    unknown = [f"unknown {cut(tensor.name)} in {tensor.file.name}" for tensor in others]
    faults = []
    for name, shape in shapes.items():
        tensor = stored.get(name)
        if tensor is None:
            continue
        possible_kinds = ("U8",) if name in in_bytes else kinds
        if tensor.shape != shape:
            faults.append(
                f"{cut(tensor.name)} of shape {tensor.shape} instead of {shape} in "
                f"{tensor.file.name}"
            )
        elif tensor.kind not in possible_kinds:
            faults.append(
                f"{cut(tensor.name)} of kind {tensor.kind} instead of "
                f"{' or '.join(possible_kinds)} in {tensor.file.name}"
            )
    lists = [_listed(reasons) for reasons in (missing, unknown, faults) if reasons]
    if lists:
        raise CheckpointError(
            f"{place} with {', '.join(lists)}",
            f"exactly the tensors of {described_by}",
            fix,
        )


def header_tensors(
    source: WeightFile, header: Mapping[str, Any], first: int, size: int
) -> list[FileTensor]:
    """Return the tensors of a file by its header, which is checked as a whole.

    Args:
        source: The file.
        header: Its header, a JSON object.
        first: Position of its first number.
        size: Its size in bytes.

    Raises:
        ValueError: A fault of the header.
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

    ``finite`` checks packed weights. Other numbers are checked in one pass.
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
    names: Mapping[str, tuple[str, list[int]]],
    dtype: torch.dtype,
    *,
    allow_nonfinite: bool = False,
) -> dict[str, Tensor]:
    """Read the tensors of ``stored`` by our names, in ``dtype`` and in memory of their own.

    ``names`` is ``{our name: (name in stored, shape)}`` for all of them.
    """
    directories = {str(tensor.file.parent) for tensor in stored.values()}
    check_tensors(stored, dict(names.values()), Path(*directories))
    return {
        our_name: stored[name].read(allow_nonfinite=allow_nonfinite).to(dtype)
        for our_name, (name, _) in names.items()
    }


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        CheckpointError: No such file, no JSON object, or a ``config.json`` beside an adapter.
    """
    is_config = path.name == CONFIG_FILE
    if is_config and (path.parent / ADAPTER_FILE).is_file():
        merged = "Merge it with PEFT: merge_and_unload(), then save_pretrained()"
        raise CheckpointError(
            f"{path.parent} with {ADAPTER_FILE}, an adapter to another model",
            "a whole model",
            f"{merged}. To read weights beside it alone, remove {ADAPTER_FILE}.",
        )
    if not path.is_file():
        fix = "Pass the directory that holds it."
        if is_config:
            fix = _where_models_are(path.parent)
        raise CheckpointError(f"no file {path}", "a JSON object", fix)
    try:
        content = json_value(read_text(path, _LONGEST_JSON, inside=True))
    except InputError as error:
        fix = _DAMAGED
        if isinstance(error.__cause__, OSError | UnicodeError):
            fix = error.fix
        raise CheckpointError(
            f"{path}, which cannot be read ({error.got})", "a JSON object", fix
        ) from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} with a {type(content).__name__}", "a JSON object", _DAMAGED)
    return content


def _where_models_are(directory: Path) -> str:
    """Return advice for a directory without ``config.json``, by the files in it."""
    gguf_files = sorted(
        file for file in directory.glob("*.gguf") if not file.name.startswith("mmproj")
    )
    copies = sorted(directory.glob(f"snapshots/*/{CONFIG_FILE}"))  # of the hub's cache
    gguf_file = "on the hub owner/name:file.gguf"
    if gguf_files:
        gguf_file = str(gguf_files[0])
    place = "the directory that holds it"
    if copies:
        place = str(copies[0].parent)
    return f"Pass {place}, or a GGUF file itself: {gguf_file}."


def cut(name: str) -> str:
    """Return a name for a message, shortened if it is long."""
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[:_LONGEST_NAME]}..."


def _places(index: Path) -> dict[str, str]:
    pieces = read_json(index).get("weight_map")
    if not isinstance(pieces, dict) or not pieces:
        raise CheckpointError(f"{index} without a weight_map", "the file of each tensor", _DAMAGED)
    for tensor, file in pieces.items():
        is_plain_name = isinstance(file, str) and not set(file) & set("/\\\0")
        if not is_plain_name or not file.endswith(".safetensors"):
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
    except InputError as error:
        raise _damaged(file, error.got) from error
    except (OSError, ValueError) as error:
        raise _damaged(file, str(error)) from error


def read_into(out: Tensor, file: io.RawIOBase, start: int) -> None:
    """Fill a tensor with the bytes of a file from ``start`` on."""
    rest = memoryview(out.view(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
    file.seek(start)
    while rest:
        count = file.readinto(rest)
        if not count:
            raise OSError("the file ends here")
        rest = rest[count:]


def _listed(faults: list[str]) -> str:
    shown = faults[:_MOST_FAULTS]
    if len(faults) > _MOST_FAULTS:
        shown.append(f"and {len(faults) - _MOST_FAULTS} more")
    return ", ".join(shown)


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
