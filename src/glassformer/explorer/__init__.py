"""Look inside models on a page, from a local server, in a notebook or from one saved file."""

from importlib import import_module
from pathlib import Path
from types import ModuleType

from glassformer.errors import naming_extras

PAGE = Path(__file__).parent / "page"
"""Directory of the built page, which ``make page`` writes."""
BUNDLED = Path(__file__).parent / "bundled"
"""Directory of the bundled models, which ``tools/train_bundled_models.py`` writes."""


def import_extra(name: str) -> ModuleType:
    """Import ``server`` or ``widget``, which need the extra ``explore``."""
    with naming_extras():
        return import_module(f"{__name__}.{name}")
