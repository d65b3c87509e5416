"""Reading untrusted files: sizes are checked before memory is taken, errors are one line.

Nothing is run, except a Python file when the user asks for it: such a file can do anything on this
computer.
"""

import json
import math
import os
import runpy
import stat
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from glassformer.errors import InputError
from glassformer.files import lies_inside
from glassformer.text import one_line, short, shown

MAX_NUMBERS = 1 << 20
"""Most numbers in a file of weights: enough for positions and letters of about 500 together."""
MAX_BYTES = 1 << 25
"""Largest file that is read: it holds 2^20 numbers of 26 characters."""
_LONGEST_GOT = 300
_POINTER = b"version https://git-lfs."


@contextmanager
def in_file(path: Path) -> Iterator[None]:
    """Errors of the block name the file and repeat at most 300 characters of what it holds."""
    try:
        yield
    except OSError as error:
        reason = f"{shown(path)} ({error.strerror})"
        raise InputError(
            reason, "a readable file or directory", "Check its permissions."
        ) from error
    except InputError as error:
        raise InputError(
            f"{shown(path)}: {one_line(error.got, _LONGEST_GOT)}", error.expected, error.fix
        ) from error


def read_bytes(path: Path, largest: int = MAX_BYTES, *, inside: bool = False) -> bytes:
    """The content of a regular file of at most ``largest`` bytes.

    Args:
        largest: Its greatest size.
        inside: Whether it belongs to the directory that it is in, which a link must then not leave.

    Raises:
        InputError: No such file, a directory, a pipe or a device, no permission, an empty or a
            larger file, a pointer that Git LFS left in its place; with ``inside``, a link to
            elsewhere.
    """
    status = require_regular(path, inside=inside)
    size = status.st_size
    if not size <= largest:
        raise InputError(
            got=f"{shown(path)} of {size:,} bytes",
            expected=f"at most {largest:,} bytes",
            fix="Use a smaller file.",
        )
    if not size > 0:
        raise InputError(
            got=f"{shown(path)}, which is empty",
            expected="a file with content",
            fix="Write the file again.",
        )
    with in_file(path), path.open("rb") as file:
        return file.read(size)


def require_regular(path: Path, *, inside: bool = False) -> os.stat_result:
    """The status of a regular file. Raises :class:`InputError` as :func:`read_bytes`, whatever the
    size.
    """
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        if isinstance(error, FileNotFoundError) and os.path.islink(path):
            reason = "a broken link"
        raise InputError(
            f"{shown(path)} ({reason})", "an existing path", "Check the path."
        ) from error
    # Opening a pipe or a device could block forever, and reading it never end.
    if not stat.S_ISREG(status.st_mode):
        raise InputError(
            got=(
                f"{shown(path)}, which is "
                f"{'a directory' if stat.S_ISDIR(status.st_mode) else 'a pipe, socket or device'}"
            ),
            expected="a regular file",
            fix="Pass the path of a file.",
        )
    if inside and not lies_inside(path):
        raise InputError(
            got=f"{shown(path)}, a link to {shown(path.resolve())}",
            expected="files in the directory itself",
            fix="Copy the file into it.",
        )
    if 0 < status.st_size < 1024:
        with in_file(path), path.open("rb") as file:
            pointer = file.read(len(_POINTER)) == _POINTER
        if pointer:
            raise InputError(
                got=f"{shown(path)}, a pointer of Git LFS to the file",
                expected="the file itself",
                fix="Run 'git lfs pull' there, or download it.",
            )
    return status


def read_text(path: Path, largest: int = MAX_BYTES, *, inside: bool = False) -> str:
    """The content of a UTF-8 text file, without a byte order mark."""
    try:
        return read_bytes(path, largest, inside=inside).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{shown(path)} with the byte {error.object[error.start]:#04x} at offset "
            f"{error.start:,}",
            "a text file in UTF-8",
            "Save it as UTF-8 text.",
        ) from error


def parse_json(path: Path) -> Any:
    """The JSON value in ``path``, all its numbers as floats. pydantic's parser would accept
    repeated keys.

    Raises:
        InputError: As :func:`read_text`; invalid or too deeply nested JSON, more than
            ``MAX_NUMBERS`` entries, a key twice in one object, or a number that is NaN, infinite or
            too large for a float.
    """
    text = read_text(path)
    # Each entry but the first follows a comma, so this limits the parser's memory. A task has 4
    # entries of its own.
    entries = text.count(",") + 1
    most = MAX_NUMBERS + 4

    def number(digits: str) -> float:
        value = float(digits)
        if not math.isfinite(value):
            raise InputError(
                got=f"the number {short(digits)}",
                expected="finite numbers",
                fix="Replace it.",
            )
        return value

    with in_file(path):
        if not entries <= most:
            raise InputError(
                got=f"{entries:,} entries",
                expected=f"at most {most:,}",
                fix="Use a smaller file.",
            )
        return json_value(text, parse_int=number, parse_float=number, parse_constant=number)


def json_value(text: str, **parsers: Any) -> Any:
    """The JSON value that ``text`` is; ``parsers`` as for :func:`json.loads`.

    Raises:
        InputError: Invalid or too deeply nested JSON, an integer of very many digits, a key twice
            in one object.
    """

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(items)
        if len(made) < len(items):
            [(repeated, _)] = Counter(name for name, _ in items).most_common(1)
            raise InputError(f"{short(repeated)} twice", "each key once", "Remove one of them.")
        return made

    try:
        return json.loads(text, object_pairs_hook=pairs, **parsers)
    except json.JSONDecodeError as error:
        reason = f"{error.msg}, line {error.lineno}, column {error.colno}"
        raise InputError(
            f"invalid JSON ({reason})", "a complete JSON file", "Correct that line."
        ) from error
    except InputError:
        raise
    except ValueError as error:  # an integer of very many digits
        raise InputError(
            f"invalid JSON ({error})", "a complete JSON file", "Correct that number."
        ) from error
    except RecursionError as error:
        raise InputError(
            "brackets nested too deeply", "a few levels", "Use fewer levels."
        ) from error


def require_permission(path: Path, run_python: bool) -> None:
    """Raise :class:`InputError` unless the Python file ``path`` may be run."""
    if not run_python:
        raise InputError(
            got=f"{shown(path)}, a Python file, which can do anything on this computer",
            expected="permission to run it",
            fix=(
                "Read it, and if you trust it, pass --run-python (in Python: run_python=True). "
                "JSON is never run."
            ),
        )


def run_python_file(path: Path, names: Sequence[str]) -> dict[str, Any]:
    """Run a Python file of at most 1 MiB; what it defines, ``names`` among it."""
    read_text(path, largest=1 << 20)
    try:
        made = runpy.run_path(str(path), run_name="glassformer_file")
    except (Exception, SystemExit) as error:
        raise error_in(path, error, "when it was run") from error
    with in_file(path):
        for name in names:
            if name not in made:
                raise InputError(
                    got=f"no {name}",
                    expected=", ".join(names),
                    fix=f"Define {name}.",
                )
    return made


def error_in(path: Path, error: BaseException, when: str) -> InputError:
    """An error that a Python file raised, with the last line of the file that it came from."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(path)
    ]
    if isinstance(error, SyntaxError) and error.filename == str(path):
        lines.append(error.lineno)
    where = f", line {lines[-1]}" if lines else ""
    what = one_line(f"{type(error).__name__}: {error}", 200)
    return InputError(
        f"{shown(path)}{where}: {what} {when}", "a file that runs", "Correct the file."
    )
