"""The command line: ``main`` finds the commands, which are in ``commands``."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from glassformer.errors import InputError
from glassformer.text import shown

TEXT = "text"
RECURRENCE = "recurrence"
"""Kinds of training data: bytes of a text, or numbers of the recurrence."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise :class:`InputError` if the block fails to write to ``path``."""
    try:
        yield
    except OSError as error:
        raise InputError(
            got=f"{shown(path)} ({error.strerror})",
            expected="a place that can be written to",
            fix="Choose another.",
        ) from error
