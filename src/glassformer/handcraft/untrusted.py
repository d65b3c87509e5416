"""Reading files that a stranger may have written: sizes are checked first, nothing is run, faults are one line."""

from __future__ import annotations

import json
import math
import os
import stat
from pathlib import Path
from typing import Any

from glassformer.errors import InputError, require
from glassformer.text import short, shown

MAX_NUMBERS = 1 << 20
"""Most numbers that a head in a file may have: with positions and letters together, about 500."""
MAX_BYTES = 1 << 25
"""Largest file that is read: 2^20 numbers of 26 characters fit into it."""
MOST_NAMES = 4
"""Entries beside the numbers that a file may have."""


def read_bytes(path: Path, largest: int = MAX_BYTES) -> bytes:
    """The content of a regular file of at most ``largest`` bytes.

    Raises:
        InputError: No such file, a directory, a pipe or a device, no permission, an empty or a larger file.
    """
    status = status_of(path)
    # A pipe or a device is not even opened: that can wait for ever.
    require(
        stat.S_ISREG(status.st_mode),
        f"{shown(path)}, which is {'a directory' if stat.S_ISDIR(status.st_mode) else 'a pipe, socket or device'}",
        "a regular file",
        "Mend the path.",
    )
    size, content = status.st_size, b""
    if size <= largest:
        try:
            with path.open("rb") as file:
                content = file.read(size)
        except OSError as error:
            raise InputError(f"{shown(path)} ({error.strerror})", "a file that can be read", "Mend it.") from error
    require(size <= largest, f"{shown(path)} of {size:,} bytes", f"at most {largest:,} bytes", "Make it smaller.")
    require(len(content) > 0, f"{shown(path)}, which is empty", "a file with content", "Write it again.")
    return content


def read_text(path: Path, largest: int = MAX_BYTES) -> str:
    """The content of a UTF-8 text file, without a byte order mark.

    Raises:
        InputError: As :func:`read_bytes`; or bytes that are no UTF-8.
    """
    try:
        return read_bytes(path, largest).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{shown(path)} with the byte {error.object[error.start]:#04x} at place {error.start:,}, which is no UTF-8",
            "a text file in UTF-8",
            "Save it as UTF-8 text.",
        ) from error


def parse_json(path: Path) -> Any:
    """The JSON value in ``path``, all its numbers as floats.

    Raises:
        InputError: As :func:`read_text`; what is no JSON, nests too deeply, has more than ``MAX_NUMBERS`` entries, a
            key twice in one object, or a number that is NaN, infinite or too large for a float.
    """
    text = read_text(path)
    # One comma stands between two entries, so that this bounds what parsing takes.
    entries = text.count(",") + 1
    most = MAX_NUMBERS + MOST_NAMES
    require(entries <= most, f"{shown(path)} with {entries:,} entries", f"at most {most:,}", "Make it less.")

    def number(digits: str) -> float:
        value = float(digits)
        if not math.isfinite(value):
            raise InputError(f"{shown(path)} with the number {short(digits)}", "finite numbers", "Replace that one.")
        return value

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for name, value in found:
            require(name not in made, f"{shown(path)} with {short(name)} twice", "each key once", "Remove one of them.")
            made[name] = value
        return made

    try:
        return json.loads(text, parse_int=number, parse_float=number, parse_constant=number, object_pairs_hook=pairs)
    except json.JSONDecodeError as error:
        reason = f"{error.msg}, line {error.lineno}, column {error.colno}"
        raise InputError(
            f"{shown(path)}, which is no JSON ({reason})", "a whole JSON file", "Mend it there."
        ) from error
    except RecursionError as error:
        raise InputError(f"{shown(path)} with brackets nested too deeply", "few levels", "Take some out.") from error


def status_of(path: Path) -> os.stat_result:
    """What the system knows of ``path``, links followed.

    Raises:
        InputError: It leads nowhere.
    """
    try:
        return path.stat()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        if isinstance(error, FileNotFoundError) and os.path.islink(path):
            reason = "a link to nothing"
        raise InputError(f"{shown(path)} ({reason})", "a path that leads somewhere", "Mend the path.") from error
