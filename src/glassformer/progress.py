"""Progress bars: one rule for when they are shown."""

import sys
from typing import Any

from tqdm import tqdm

DELAY = 1.0
"""Seconds that a task takes before its bar appears."""


def progress_bar(show: bool | None, **options: Any) -> tqdm:
    """Return a bar on standard error that appears after :data:`DELAY` seconds, and then vanishes.

    Args:
        show: Whether to show it. None: if standard error is a terminal or a notebook's output,
            unless the environment has ``TQDM_DISABLE=1``.
        options: Options of ``tqdm``: ``iterable`` or ``total``, ``desc``, ``unit``, ``unit_scale``.
    """
    options = {"delay": DELAY, "leave": False, "dynamic_ncols": True} | options
    if show is not None:
        return tqdm(**options, disable=not show)
    if not _has_reader():
        return tqdm(**options, disable=True)
    return tqdm(**options)  # TQDM_DISABLE decides


def _has_reader() -> bool:
    """Return whether standard error is a terminal or the output of a notebook's cell."""
    if sys.stderr is None:
        return False
    return sys.stderr.isatty() or type(sys.stderr).__module__.startswith("ipykernel.")
