"""A page to look inside models: one view, shown by a local server, in a notebook, or from one saved file."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

from glassformer.errors import InputError

PAGE = Path(__file__).parent / "page"
"""The directory of the built page, which ``make page`` writes."""


def import_extra(name: str) -> ModuleType:
    """Import ``server`` or ``widget``, the modules of this package that need the extra ``explore``.

    Raises:
        InputError: A package that the module needs is not installed.
    """
    try:
        return import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing.split(".")[0] == "glassformer":
            raise  # a fault of ours, which no installation repairs
        raise InputError(
            f"no module {missing}", f"the packages that the {name} needs", "Run: pip install 'glassformer[explore]'."
        ) from error
