"""What the tests of weight files share: a good head, and what is asked of every refusal."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from glassformer.errors import InputError
from glassformer.handcraft.single_head import HeadWeights
from glassformer.handcraft.weight_files import read_head

GOOD = {"Km": [[1, 0], [0, 1]], "Qm": [[2, 0], [0, 2]], "Vm": [[1], [-1]]}
WIDEST = 4 * 2**20
"""Bytes that reading a hostile file of a few kB may take at most, libraries included."""


def same(first: HeadWeights, second: HeadWeights) -> bool:
    """Whether all bits are the same, signs of zeros included."""
    one, other = first.matrices, second.matrices
    return one.keys() == other.keys() and all(
        one[name].shape == other[name].shape and one[name].tobytes() == other[name].tobytes() for name in one
    )


def refused_file(path: Path, *words: str) -> None:
    """Reading ``path`` is one line that names the file and has these words in it."""
    with pytest.raises(InputError) as raised:
        read_head(path)
    message = str(raised.value)
    assert message.count("\n") == 0
    assert message.isprintable()
    assert len(message) < 600
    assert path.name in message
    assert [word for word in words if word not in message] == []


def read_or_refused(path: Path) -> HeadWeights | None:
    """The weights in ``path``, or None if they are refused in one line."""
    try:
        return read_head(path)
    except InputError as error:
        complaint = str(error)
    assert complaint.isprintable()
    return None


@contextmanager
def little_memory(most: int = WIDEST) -> Iterator[None]:
    """The block takes at most this much memory at once."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()
