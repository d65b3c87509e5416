"""Files of a head's matrices, in two formats that are readable and writable without this package.

- ``head.json``: an object ``{"Km": [[1, 0], [0, 1]], "Qm": ..., "Vm": ..., "pos": ...}`` of lists
  of rows;
- ``head.npz``: arrays of these names, as ``numpy.savez`` writes them.

``pos`` is optional. A head.json may also say which exercise it answers, by ``lab``, ``exercise``
and ``seed``.

Files are untrusted: sizes are checked before memory is taken, nothing in a file is ever run, and
each error is one line that names the file.
"""

import io
import json
import math
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float
from numpy.lib import format as npy
from pydantic import ConfigDict, TypeAdapter, ValidationError

from glassformer.errors import InputError
from glassformer.files import any_file, holds, local_path, new_file, write_text
from glassformer.handcraft.single_head import HeadWeights
from glassformer.text import known_name, short, shown
from glassformer.untrusted import MAX_NUMBERS, in_file, parse_json, read_bytes, read_text

Matrix = Float[np.ndarray, "row column"]

_REQUIRED = ("Km", "Qm", "Vm")
_NAMES = (*_REQUIRED, "pos")
_ANSWERED = ("lab", "exercise", "seed")
_ROWS = TypeAdapter(list[list[float]], config=ConfigDict(strict=True))
_NPY_HEADER = 4096
_ZIP_ENTRY = b"PK\x01\x02"
_MOST_ZIP_ENTRIES = 64
_ENCRYPTED = 0x1
_NPZ_MARK = b"written by glassformer"
_END_OF_NPZ = 1024
"""Number of bytes at the end of an .npz file that have the list of its arrays, with the mark."""


def read_head(path: Path | str) -> HeadWeights:
    """Read the matrices in ``path``, a .json or .npz file. Links are followed."""
    path = local_path(path)
    readers = {".json": _read_json, ".npz": _read_npz}
    kind = path.suffix.lower()
    if kind not in readers:
        raise InputError(
            got=shown(path),
            expected="a .json file or an .npz file",
            fix="Save the matrices in one of these formats.",
        )
    matrices = readers[kind](path)
    with in_file(path):
        require_size(matrices)
        return HeadWeights(**matrices)


def write_head(weights: HeadWeights, path: Path | str, *, overwrite: bool = False) -> None:
    """Write ``weights`` so that :func:`read_head` returns exactly the same numbers.

    The suffix, .json or .npz, decides the format. A file that is there already is replaced if this
    function wrote it, or with ``overwrite``, and atomically: readers see the old weights or the new
    ones.
    """
    path = local_path(path)
    require_place(path)
    require_size(weights.matrices)
    replaces = any_file if overwrite else _is_written
    if path.suffix.lower() == ".json":
        write_text(path, _as_json(weights), replaces=replaces)
    else:
        with new_file(path, replaces=replaces) as draft:
            with draft.open("wb") as file:
                np.savez(file, **weights.matrices)  # type: ignore[arg-type]
            with zipfile.ZipFile(draft, "a") as archive:
                archive.infolist()[0].comment = _NPZ_MARK
                archive.comment = b""  # makes zipfile write the list again


def _as_json(weights: HeadWeights) -> str:
    tables = []
    for name, matrix in weights.matrices.items():
        rows = ",\n    ".join(json.dumps(row) for row in matrix.tolist())
        tables.append(f'  "{name}": [\n    {rows}\n  ]')
    return "{\n" + ",\n".join(tables) + "\n}\n"


def _is_written(file: Path) -> bool:
    """Return whether :func:`write_head` wrote a file.

    An .npz file has a mark; a .json file is the same to the last space.
    """
    if file.suffix.lower() == ".npz":
        return holds(file, _NPZ_MARK, -_END_OF_NPZ)
    try:
        return read_text(file) == _as_json(read_head(file))
    except InputError:
        return False


def require_place(path: Path) -> None:
    """Refuse a path with another suffix than .json and .npz, and a directory."""
    description = shown(path)
    if path.is_dir():
        description += ", a directory"
    if path.is_dir() or path.suffix.lower() not in (".json", ".npz"):
        raise InputError(
            got=description,
            expected="a name that ends in .json or .npz",
            fix="Choose another name.",
        )


def require_size(matrices: dict[str, Matrix]) -> None:
    """Refuse more than ``MAX_NUMBERS`` numbers, which could not be read again."""
    total = sum(matrix.size for matrix in matrices.values())
    if total > MAX_NUMBERS:
        raise InputError(
            got=f"{total:,} numbers",
            expected=f"at most {MAX_NUMBERS:,}",
            fix="Use a smaller head.",
        )


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        if name not in _NAMES:
            raise InputError(
                got=f"the matrix {short(name)}",
                expected=f"{', '.join(_NAMES)}",
                fix=known_name(name, _NAMES),
            )
        if names.count(name) != 1:
            raise InputError(
                got=f"{name} twice",
                expected="each matrix once",
                fix="Remove one of them.",
            )
    for name in _REQUIRED:
        if name not in names:
            raise InputError(
                got=f"no {name}",
                expected="Km, Qm and Vm, and optionally pos",
                fix=f"Add {name}.",
            )


def _read_json(path: Path) -> dict[str, Matrix]:
    value = parse_json(path)
    with in_file(path):
        if not isinstance(value, dict):
            raise InputError(
                got="no names",
                expected='an object {"Km": [[...]], ...}',
                fix="Add the names.",
            )
        value = {name: rows for name, rows in value.items() if name not in _ANSWERED}
        _check_names(list(value))
        return {name: _matrix(name, rows) for name, rows in value.items()}


def _matrix(name: str, rows: object) -> Matrix:
    try:
        checked = _ROWS.validate_python(rows)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = "".join(f"[{index}]" for index in first["loc"])
        raise InputError(
            got=f"{name}{place} = {short(json.dumps(first['input']))}",
            expected="a list of rows of numbers",
            fix="Correct that entry.",
        ) from error
    lengths = sorted({len(row) for row in checked})
    if len(lengths) != 1:
        raise InputError(
            got=f"{name} with rows of {lengths[:3]} numbers",
            expected="rows of one length",
            fix="Correct the rows.",
        )
    return np.array(checked, dtype=np.float64)


def _read_npz(path: Path) -> dict[str, Matrix]:
    # numpy.load would take the memory that a member's header asks for, whatever the file holds.
    data = read_bytes(path)
    with in_file(path):
        # zipfile makes an object for every entry.
        entries = data.count(_ZIP_ENTRY)
        if entries > _MOST_ZIP_ENTRIES:
            raise InputError(
                got=f"{entries:,} entries",
                expected="Km, Qm, Vm and pos",
                fix="Remove the others.",
            )
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                members = archive.infolist()
                # zipfile cuts names off at a zero byte; orig_filename keeps the rest.
                _check_names([member.orig_filename.removesuffix(".npy") for member in members])
                return {
                    member.filename.removesuffix(".npy"): _read_member(archive, member)
                    for member in members
                }
        except InputError:
            raise
        except Exception as error:  # a forged archive can make the libraries raise nearly anything
            reason = short(f"{type(error).__name__}: {error}")
            raise InputError(
                got=f"a damaged .npz file ({reason})",
                expected="a complete .npz file",
                fix="Write it again.",
            ) from error


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Matrix:
    """Read one array, after its sizes are checked."""
    name = info.filename
    largest = 8 * MAX_NUMBERS + _NPY_HEADER
    # Other methods decompress without a limit on the size of the result.
    limited = info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
    if not limited or info.flag_bits & _ENCRYPTED:
        raise InputError(
            got=f"{name}, encrypted or compressed by method {info.compress_type}",
            expected="a plain array",
            fix="Use savez.",
        )
    if info.file_size > largest:
        raise InputError(
            got=f"{name} of {info.file_size:,} bytes",
            expected=f"at most {largest:,}",
            fix="Use fewer.",
        )
    with archive.open(info) as member:
        start = io.BytesIO(member.read(_NPY_HEADER))
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shape, _, dtype = readers[npy.read_magic(start)](start, max_header_size=_NPY_HEADER)
    # Arrays of objects are pickled: unpickling them would run code.
    numeric = dtype.kind in "iuf" and dtype.itemsize <= 8
    if not numeric:
        raise InputError(
            got=f"{name} of type {short(str(dtype))}",
            expected="an array of numbers",
            fix="Save it as float64.",
        )
    if len(shape) != 2:
        raise InputError(
            got=f"{name} of shape {short(str(shape))}",
            expected="a matrix",
            fix="Reshape it to two dimensions.",
        )
    count = math.prod(shape)
    needed = start.tell() + count * dtype.itemsize
    if min(shape) <= 0 or count > MAX_NUMBERS or info.file_size != needed:
        header = f"a header for the shape {short(str(shape))}"
        raise InputError(
            got=f"{name} of {info.file_size:,} bytes with {header}",
            expected=f"1 to {MAX_NUMBERS:,} numbers, and the bytes that they need",
            fix="Write the file again.",
        )
    # Reading the last byte makes zipfile compare the checksum.
    with archive.open(info) as member:
        return npy.read_array(member, allow_pickle=False, max_header_size=_NPY_HEADER).astype(
            np.float64
        )
