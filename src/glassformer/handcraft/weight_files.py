"""A head's matrices in files that a person, or another program, may have written; three formats.

- ``head.json``: an object ``{"Km": [[1, 0], [0, 1]], "Qm": ..., "Vm": ..., "pos": ...}`` of lists of rows;
- ``head.npz``: arrays of these names, as ``numpy.savez`` writes them;
- a directory with ``Km.csv``, ``Qm.csv``, ``Vm.csv`` and ``pos.csv``: numbers between commas, no header.

``pos`` may be left out. A file may come from a stranger, so sizes are checked before memory is taken for them, nothing
in a file is ever run, and each fault is one line that names the file.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import stat
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.lib import format as npy

from glassformer.errors import InputError, require
from glassformer.files import new_directory, new_file, write_text
from glassformer.handcraft.single_head import HeadWeights
from glassformer.handcraft.untrusted import MAX_NUMBERS, parse_json, read_bytes, read_text, status_of
from glassformer.text import LONGEST_CELL, known_name, short, shown

_REQUIRED = ("Km", "Qm", "Vm")
_NAMES = (*_REQUIRED, "pos")
_FORMATS = "a .json file, an .npz file or a directory of Km.csv, Qm.csv and Vm.csv"
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NPY_HEADER = 4096
_ZIP_ENTRY, _MOST_ZIP_ENTRIES = b"PK\x01\x02", 64
_ENCRYPTED = 0x1


def read_head(path: Path | str) -> HeadWeights:
    """The matrices in ``path``: a .json or .npz file, or a directory of .csv files. Links are followed.

    Raises:
        InputError: Nothing there, or no regular file; more than ``MAX_BYTES`` or ``MAX_NUMBERS``; a file that is cut
            off, damaged, encrypted or of another format; matrices that are missing, unknown, given twice, ragged, of
            objects, or not finite; shapes that do not fit one another.
    """
    path = Path(path)
    readers = {".json": _read_json, ".npz": _read_npz, "directory": _read_directory}
    kind = "directory" if stat.S_ISDIR(status_of(path).st_mode) else path.suffix.lower()
    fix = "Name the directory instead." if kind == ".csv" else "Save the matrices in one of these."
    require(kind in readers, shown(path), _FORMATS, fix)
    matrices = readers[kind](path)
    total = sum(matrix.size for matrix in matrices.values())
    require(total <= MAX_NUMBERS, f"{shown(path)} with {total:,} numbers", f"at most {MAX_NUMBERS:,}", "Make it less.")
    try:
        return HeadWeights(**matrices)
    except InputError as error:
        raise InputError(f"{shown(path)}: {error.got}", error.expected, error.fix) from error


def write_head(weights: HeadWeights, path: Path | str) -> None:
    """Write ``weights`` so that :func:`read_head` gives back the very same numbers; the path's ending says the format.

    What stands at ``path`` is replaced in one step, so that a reader finds the old or the new weights and never a part.

    Args:
        weights: The matrices.
        path: Ends in .json or .npz; without an ending, a directory of .csv files.

    Raises:
        InputError: Another ending, a directory where a file is to be or the other way round, a directory that holds
            something else than weights, or more than ``MAX_NUMBERS`` numbers.
    """
    path = Path(path)
    kind = require_place(path)
    require_size(weights)
    if kind == ".json":
        write_text(path, _json_text(weights))
    elif kind == ".npz":
        buffer = io.BytesIO()
        np.savez(buffer, **weights.matrices)  # type: ignore[arg-type]
        with new_file(path) as draft:
            draft.write_bytes(buffer.getvalue())
    else:
        _write_directory(weights, path)


def require_place(path: Path) -> str:
    """The format that ``path`` asks :func:`write_head` for: ".json", ".npz", or "" for a directory.

    Raises:
        InputError: Another ending, or a directory where a file is to be.
    """
    kind = "" if path.is_dir() else path.suffix.lower()
    require(
        kind in ("", ".json", ".npz") and not (path.is_dir() and path.suffix.lower() in (".json", ".npz")),
        shown(path) + (", a directory" if path.is_dir() else ""),
        "a name that ends in .json or .npz, or has no ending for a directory of .csv files",
        "Choose another name.",
    )
    return kind


def require_size(weights: HeadWeights) -> None:
    """Check that the weights have at most ``MAX_NUMBERS`` numbers, so that they can be read again.

    Raises:
        InputError: They have more.
    """
    total = sum(matrix.size for matrix in weights.matrices.values())
    require(total <= MAX_NUMBERS, f"{total:,} numbers", f"at most {MAX_NUMBERS:,}", "Use numpy.savez for such a head.")


def _read_json(path: Path) -> dict[str, Float[np.ndarray, "row column"]]:
    value = parse_json(path)
    require(isinstance(value, dict), f"{shown(path)} without names", 'an object {"Km": [[...]], ...}', "Add the names.")
    _check_names(path, list(value))
    return {name: _matrix(f"{shown(path)}: {name}", rows) for name, rows in value.items()}


def _read_directory(path: Path) -> dict[str, Float[np.ndarray, "row column"]]:
    try:
        files = [file for file in sorted(path.iterdir()) if file.suffix.lower() == ".csv"]
    except OSError as error:
        raise InputError(f"{shown(path)} ({error.strerror})", "a directory that can be read", "Mend it.") from error
    _check_names(path, [file.stem for file in files])
    return {file.stem: _read_csv(file) for file in files}


def _read_csv(path: Path) -> Float[np.ndarray, "row column"]:
    text = read_text(path).rstrip()
    cells = text.count(",") + text.count("\n") + 1
    require(cells <= MAX_NUMBERS, f"{shown(path)} with {cells:,} cells", f"at most {MAX_NUMBERS:,}", "Make it less.")
    return _matrix(shown(path), [[_cell(cell.strip()) for cell in line.split(",")] for line in text.split("\n")])


def _cell(text: str) -> float | str:
    return float(text) if len(text) <= LONGEST_CELL and _NUMBER.fullmatch(text) else text


def _matrix(place: str, rows: Any) -> Float[np.ndarray, "row column"]:
    """``rows`` as a matrix, checked cell by cell so that a message can say which one is wrong."""
    require(
        isinstance(rows, list) and len(rows) > 0 and all(isinstance(row, list) and row for row in rows),
        f"{place}, which is no table",
        "a list of rows, each a list of numbers",
        "Write [[1, 0], [0, 1]], for example.",
    )
    for number, row in enumerate(rows, start=1):
        for column, cell in enumerate(row, start=1):
            if not isinstance(cell, float) or not math.isfinite(cell):
                what = short(cell) if isinstance(cell, str) else short(json.dumps(cell))
                fix = "Write numbers alone: no header, a point before decimals, commas in between."
                raise InputError(f"{place}, row {number}, column {column}: {what}", "a finite number", fix)
        require(
            len(row) == len(rows[0]),
            f"{place}, row {number} with {len(row)} numbers",
            f"{len(rows[0])}, as in row 1",
            "Give all rows the same length.",
        )
    return np.array(rows, dtype=np.float64)


def _check_names(path: Path, names: Sequence[str]) -> None:
    for name in names:
        require(
            name in _NAMES, f"{shown(path)} with {short(name)}", "matrices of known names", known_name(name, _NAMES)
        )
        require(names.count(name) == 1, f"{shown(path)} with {name} twice", "each matrix once", "Remove one of them.")
    for name in _REQUIRED:
        require(
            name in names, f"{shown(path)} without {name}", "Km, Qm and Vm, and pos if there is one", f"Add {name}."
        )


def _read_npz(path: Path) -> dict[str, Float[np.ndarray, "row column"]]:
    data = read_bytes(path)
    # The library makes an object of every entry, needed or not.
    entries = data.count(_ZIP_ENTRY)
    require(
        entries <= _MOST_ZIP_ENTRIES, f"{shown(path)} with {entries:,} entries", "Km, Qm, Vm and pos", "Remove some."
    )
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            # The library cuts names off at a zero byte; the name as it is written shows that.
            _check_names(path, [member.orig_filename.removesuffix(".npy") for member in members])
            return {each.filename.removesuffix(".npy"): _read_member(path, archive, each) for each in members}
    except InputError:
        raise
    except Exception as error:  # a forged archive can make the libraries raise nearly anything
        reason = short(f"{type(error).__name__}: {error}")
        raise InputError(
            f"{shown(path)}, which is cut off, damaged or no .npz file ({reason})",
            "a whole .npz file",
            "Write it again with numpy.savez.",
        ) from error


def _read_member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Float[np.ndarray, "row column"]:
    place = f"{shown(path)}: {info.filename}"
    require(
        not info.flag_bits & _ENCRYPTED, f"{place}, which is encrypted", "plain arrays", "Save it without password."
    )
    # Other methods decompress without a limit on what comes out.
    require(
        info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED),
        f"{place}, compressed by method {info.compress_type}",
        "stored or deflated arrays",
        "Use numpy.savez or numpy.savez_compressed.",
    )
    largest = 8 * MAX_NUMBERS + _NPY_HEADER
    require(
        info.file_size <= largest, f"{place} of {info.file_size:,} bytes", f"at most {largest:,}", "Make it smaller."
    )
    with archive.open(info) as member:
        start = io.BytesIO(member.read(_NPY_HEADER))
        shape, by_columns, dtype = _npy_header(start)
        require(
            not dtype.hasobject,
            f"{place} of pickled Python objects, which can run code and are never opened",
            "an array of numbers",
            "Save it as float64.",
        )
        require(
            dtype.kind in "iuf" and dtype.itemsize <= 8,
            f"{place} of {short(str(dtype))}",
            "float64 or narrower, or whole numbers",
            "Save it as float64.",
        )
        require(
            len(shape) == 2 and min(shape) > 0, f"{place} of shape {short(str(shape))}", "a matrix", "Mend its shape."
        )
        count = math.prod(shape)
        require(count <= MAX_NUMBERS, f"{place} of shape {shape}", f"at most {MAX_NUMBERS:,} numbers", "Make it less.")
        size = start.tell() + count * dtype.itemsize
        require(
            info.file_size == size,
            f"{place} of {info.file_size:,} bytes with a header that says {size:,}",
            "as many as its shape needs",
            "Write it again with numpy.savez.",
        )
        # With the last byte the library compares the checksum.
        rest = member.read(size - len(start.getvalue()))
    numbers = np.frombuffer(start.read() + rest, dtype=dtype, count=count)
    return numbers.reshape(shape, order="F" if by_columns else "C").astype(np.float64)


def _npy_header(start: io.BytesIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether columns come first, and type of the numbers; ``start`` is left where the numbers begin."""
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        version = npy.read_magic(start)
        if version not in readers:
            raise ValueError(f"version {version} of the .npy format")
        shape, by_columns, dtype = readers[version](start, max_header_size=_NPY_HEADER)
    return shape, by_columns, dtype


def _json_text(weights: HeadWeights) -> str:
    tables = []
    for name, matrix in weights.matrices.items():
        rows = ",\n    ".join(json.dumps(row) for row in matrix.tolist())
        tables.append(f'  "{name}": [\n    {rows}\n  ]')
    return "{\n" + ",\n".join(tables) + "\n}\n"


def _write_directory(weights: HeadWeights, path: Path) -> None:
    expected = {f"{name}.csv" for name in _NAMES}
    require(path.is_dir() or not os.path.lexists(path), f"{shown(path)}, a file", "a directory", "Choose another path.")
    others = sorted({entry.name for entry in path.iterdir()} - expected) if path.is_dir() else []
    require(
        not others,
        f"{shown(path)}, which holds {short(others[0]) if others else ''}",
        "a new or empty directory, or one with weights only",
        "Choose another path.",
    )
    with new_directory(path, replace=True) as draft:
        for name, matrix in weights.matrices.items():
            lines = [",".join(map(repr, row)) + "\n" for row in matrix.tolist()]
            (draft / f"{name}.csv").write_text("".join(lines), encoding="utf-8")
