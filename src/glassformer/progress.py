"""Progress bars: one rule for when they are shown."""

import sys
from typing import Any

from tqdm import tqdm

DELAY = 1.0
"""Seconds that a task takes before its bar appears."""


def progress_bar(show: bool | None, **options: Any) -> tqdm:
    """A bar on standard error that appears after :data:`DELAY` seconds and leaves nothing behind.

    Args:
        show: None: where standard error is a terminal or a notebook's output. The environment
            variable ``TQDM_DISABLE=1`` then hides it too.
        options: Those of ``tqdm``: ``iterable`` or ``total``, ``desc``, ``unit``, ``unit_scale``.
    """
    options = {"delay": DELAY, "leave": False, "dynamic_ncols": True} | options
    if show or (show is None and _has_reader()):
        # `disable` is left to TQDM_DISABLE unless the caller has decided.
        return tqdm(**options, **({"disable": False} if show else {}))
    return tqdm(**options, disable=True)


def _has_reader() -> bool:
    """Whether standard error is a terminal or the output of a notebook's cell."""
    if sys.stderr is None:
        return False
    return sys.stderr.isatty() or type(sys.stderr).__module__.startswith("ipykernel.")
