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
    """A place that the block cannot write to is bad input, with that exit status."""
    try:
        yield
    except OSError as error:
        got = f"{shown(path)} ({error.strerror})"
        raise InputError(got, "a place that can be written to", "Choose another.") from error
