"""Reading untrusted files: sizes are checked before memory is taken, errors are one line.

Nothing is run, except a Python file with the user's permission: such a file can do anything on this
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
"""Maximum numbers in a file of weights: enough for about 500 positions and letters together."""
MAX_BYTES = 1 << 25
"""Maximum bytes of a file: enough for 2^20 numbers of 26 characters."""
_LONGEST_GOT = 300
_POINTER = b"version https://git-lfs."


@contextmanager
def in_file(path: Path) -> Iterator[None]:
    """Name the file in errors of the block, with at most 300 characters of its content."""
    try:
        yield
    except OSError as error:
        raise InputError(
            got=f"{shown(path)} ({error.strerror})",
            expected="a readable file or directory",
            fix="Check its permissions.",
        ) from error
    except InputError as error:
        raise InputError(
            got=f"{shown(path)}: {one_line(error.got, _LONGEST_GOT)}",
            expected=error.expected,
            fix=error.fix,
        ) from error


def read_bytes(path: Path, largest: int = MAX_BYTES, *, inside: bool = False) -> bytes:
    """Return the content of a regular file of at most ``largest`` bytes.

    Args:
        largest: Maximum size.
        inside: Whether the file is a part of its directory, which a link must then not leave.

    Raises:
        InputError: If the file is missing, a directory, a pipe or a device, empty, too large, not
            readable or a pointer of Git LFS; with ``inside``, a link to elsewhere.
    """
    status = require_regular(path, inside=inside)
    size = status.st_size
    if size > largest:
        raise InputError(
            got=f"{shown(path)} of {size:,} bytes",
            expected=f"at most {largest:,} bytes",
            fix="Use a smaller file.",
        )
    if size == 0:
        raise InputError(
            got=f"{shown(path)}, which is empty",
            expected="a file with content",
            fix="Write the file again.",
        )
    with in_file(path), path.open("rb") as file:
        return file.read(size)


def require_regular(path: Path, *, inside: bool = False) -> os.stat_result:
    """Return the status of a regular file of any size; refuse others as :func:`read_bytes` does."""
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        if isinstance(error, FileNotFoundError) and os.path.islink(path):
            reason = "a broken link"
        raise InputError(
            got=f"{shown(path)} ({reason})",
            expected="an existing path",
            fix="Check the path.",
        ) from error
    # Opening a pipe or a device could block forever, and reading it could never end.
    if not stat.S_ISREG(status.st_mode):
        kind = "a directory" if stat.S_ISDIR(status.st_mode) else "a pipe, socket or device"
        raise InputError(
            got=f"{shown(path)}, which is {kind}",
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
    """Return the content of a UTF-8 text file, without a byte order mark."""
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
    """Return the JSON value in ``path``, with all numbers as floats.

    pydantic's parser would accept repeated keys.

    Raises:
        InputError: As :func:`read_text`; and for invalid or too deeply nested JSON, more than
            ``MAX_NUMBERS`` entries, a repeated key in an object, or a number that is NaN, infinite
            or too large for a float.
    """
    text = read_text(path)
    # Each entry but the first follows a comma, so this limits the parser's memory. A task has 4
    # further entries.
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
        if entries > most:
            raise InputError(
                got=f"{entries:,} entries",
                expected=f"at most {most:,}",
                fix="Use a smaller file.",
            )
        return json_value(text, parse_int=number, parse_float=number, parse_constant=number)


def json_value(text: str, **parsers: Any) -> Any:
    """Return the JSON value of ``text``; ``parsers`` as for :func:`json.loads`.

    Raises:
        InputError: If the JSON is invalid or too deeply nested, or has an integer of very many
            digits or a repeated key in an object.
    """

    def unique_keys(items: list[tuple[str, Any]]) -> dict[str, Any]:
        mapping = dict(items)
        if len(mapping) < len(items):
            [(repeated, _)] = Counter(name for name, _ in items).most_common(1)
            raise InputError(f"{short(repeated)} twice", "each key once", "Remove one of them.")
        return mapping

    try:
        return json.loads(text, object_pairs_hook=unique_keys, **parsers)
    except json.JSONDecodeError as error:
        raise InputError(
            got=f"invalid JSON ({error.msg}, line {error.lineno}, column {error.colno})",
            expected="a complete JSON file",
            fix="Correct that line.",
        ) from error
    except InputError:
        raise
    except ValueError as error:  # an integer of very many digits
        raise InputError(
            got=f"invalid JSON ({error})",
            expected="a complete JSON file",
            fix="Correct that number.",
        ) from error
    except RecursionError as error:
        raise InputError(
            got="brackets nested too deeply",
            expected="a few levels",
            fix="Use fewer levels.",
        ) from error


def require_permission(path: Path, run_python: bool) -> None:
    """Refuse to run the Python file ``path`` without permission."""
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
    """Run a Python file of at most 1 MiB; return its definitions, which must include ``names``."""
    read_text(path, largest=1 << 20)
    try:
        definitions = runpy.run_path(str(path), run_name="glassformer_file")
    except (Exception, SystemExit) as error:
        raise error_in(path, error, "when it was run") from error
    with in_file(path):
        for name in names:
            if name not in definitions:
                raise InputError(
                    got=f"no {name}",
                    expected=", ".join(names),
                    fix=f"Define {name}.",
                )
    return definitions


def error_in(path: Path, error: BaseException, when: str) -> InputError:
    """Return the refusal for an error in a Python file, with the last line where it occurred."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(path)
    ]
    if isinstance(error, SyntaxError) and error.filename == str(path):
        lines.append(error.lineno)
    where = f", line {lines[-1]}" if lines else ""
    message = one_line(f"{type(error).__name__}: {error}", 200)
    return InputError(
        got=f"{shown(path)}{where}: {message} {when}",
        expected="a file that runs",
        fix="Correct the file.",
    )
