"""Files of Python that a user asks to run: a file can do anything on this computer, so it is run only on request."""

from __future__ import annotations

import runpy
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glassformer.errors import InputError, require
from glassformer.text import one_line, shown
from glassformer.untrusted import in_file, read_text


def require_permission(path: Path, run_python: bool) -> None:
    """Raise :class:`InputError` unless the Python file ``path`` may be run."""
    got = f"{shown(path)}, a Python file, which can do anything on this computer"
    fix = "Read it, and if you trust it, pass --run-python (in Python: run_python=True). JSON is never run."
    require(run_python, got, "permission to run it", fix)


def run_python_file(path: Path, names: Sequence[str]) -> dict[str, Any]:
    """Run a Python file of at most 1 MiB; what it defines, ``names`` among it."""
    read_text(path, largest=1 << 20)
    try:
        made = runpy.run_path(str(path), run_name="glassformer_file")
    except (Exception, SystemExit) as error:
        raise error_in(path, error, "when it was run") from error
    with in_file(path):
        for name in names:
            require(name in made, f"no {name}", ", ".join(names), f"Define {name}.")
    return made


def error_in(path: Path, error: BaseException, when: str) -> InputError:
    """An error that a Python file raised, with the last line of the file that it came from."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    if isinstance(error, SyntaxError) and error.filename == str(path):
        lines.append(error.lineno)
    where = f", line {lines[-1]}" if lines else ""
    what = one_line(f"{type(error).__name__}: {error}", 200)
    return InputError(f"{shown(path)}{where}: {what} {when}", "a file that runs", "Correct the file.")
