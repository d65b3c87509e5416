"""A page to look inside models on: one view, shown by a local server, in a notebook, or from one saved file."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

from glassformer.errors import InputError

PAGE = Path(__file__).parent / "page"
"""The directory of the built page, which ``make page`` writes."""


def import_door(name: str) -> ModuleType:
    """The module of this package by which the page is opened: ``serving.server`` or ``widget``.

    They alone need what the extra ``explore`` installs, so they are imported when somebody asks for them.

    Args:
        name: Which.

    Raises:
        InputError: A package that it needs is not installed.
    """
    try:
        return import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing.split(".")[0] == "glassformer":
            raise  # a fault of ours, which nobody can install away
        raise InputError(
            f"no module {missing}",
            f"what the page's {name.split('.')[-1]} needs",
            "Run: pip install 'glassformer[explore]'.",
        ) from error
