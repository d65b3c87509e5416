"""The directory of a lab's run: whose it is, and whether it may be continued."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from glassformer.errors import InputError, require
from glassformer.files import write_text


def claim(out: Path, asked: dict[str, Any], resume: bool) -> None:
    """Make ``out`` the directory of a run, or check that it is the one of this run.

    Args:
        out: The directory; what was asked for is kept in its lab.json.
        asked: The seed and the plan, as values that JSON has.
        resume: Whether a run that is there already may be continued.

    Raises:
        InputError: ``out`` holds a run and ``resume`` is false, or the run of another plan or seed, or a lab.json that
            cannot be read; or ``out`` is a file, or a directory that cannot be made or written in.
    """
    path = out / "lab.json"
    asked = json.loads(json.dumps(asked))
    if not path.exists():
        try:
            write_text(path, json.dumps(asked, indent=1) + "\n")
        except OSError as error:  # a file where a directory should be, or no right to write
            got = f"{out}, in which nothing can be written ({error.strerror or error})"
            raise InputError(got, "a directory, or a place for a new one", "Choose another directory.") from error
        return
    require(
        resume,
        f"{out}, which holds a run of the lab",
        "a directory without one",
        "Continue it with resume=True (on the command line: --resume), or choose another directory.",
    )
    try:
        earlier = json.loads(path.read_text(encoding="utf-8"))
        changed = sorted(name for name in asked if earlier[name] != asked[name])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}, which cannot be read", "the plan of a run", "Choose another directory.") from error
    require(
        not changed,
        f"{out}, which holds a run with another {', '.join(changed)}",
        "the plan and the seed that it was begun with",
        "Remove it, or choose another directory.",
    )
