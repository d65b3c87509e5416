"""Parts of a lab's run that are computed once: what an interrupted run has finished is read from its file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from glassformer.errors import InputError
from glassformer.files import write_text

_Part = TypeVar("_Part")


def kept(path: Path, kind: type[_Part], compute: Callable[[], _Part]) -> _Part:
    """The part that the JSON file ``path`` holds; what ``compute`` gives, written there, if there is no such file.

    Args:
        path: Of this part alone; its directory is made.
        kind: A dataclass of numbers, strings, lists, dictionaries and dataclasses.
        compute: Called at most once.

    Returns:
        The part as the file gives it back, so that a run in one go and one that was continued go on from the same.

    Raises:
        InputError: A file that does not hold such a part.
    """
    if not path.exists():
        write_text(path, to_json(compute(), kind))
    return read_part(path, kind)


def read_part(path: Path, kind: type[_Part]) -> _Part:
    """The part that the JSON file ``path`` holds.

    Raises:
        InputError: A file that cannot be read, or does not hold such a part.
    """
    try:
        return TypeAdapter(kind).validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        fault = error if isinstance(error, OSError) else _first(error)
        raise InputError(
            f"{path}, which cannot be read: {fault}",
            f"a {kind.__name__} that a run of the lab has left",
            "Remove the file and go on with --resume: it is then computed again.",
        ) from error


def to_json(part: _Part, kind: type[_Part]) -> str:
    """``part`` as JSON text; numbers that are none (NaN, infinite) are kept as such."""
    adapter: TypeAdapter[_Part] = TypeAdapter(kind)
    # Not by dump_json, which makes null of a number that is none.
    return json.dumps(adapter.dump_python(part, mode="python"), indent=1) + "\n"


def _first(error: ValidationError) -> str:
    fault = error.errors()[0]
    return ".".join(str(place) for place in fault["loc"]) + ": " * bool(fault["loc"]) + fault["msg"]
