"""What looks at the code that runs, or changes it: one context variable for captures, interventions and their kin.

An entry is opened by a ``with`` block, for the code of the block and for the tasks that are begun in it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

_opened: ContextVar[tuple[Any, ...]] = ContextVar("opened", default=())

Kind = TypeVar("Kind")


def entries(kind: type[Kind]) -> tuple[Kind, ...]:
    """Return the open entries of one class, those of outer blocks first."""
    return tuple([entry for entry in _opened.get() if isinstance(entry, kind)])


def any_open(*kinds: type[Any]) -> bool:
    """Return whether an entry of one of these classes is open."""
    for entry in _opened.get():  # noqa: SIM110 (a generator takes five times as long)
        if isinstance(entry, kinds):
            return True
    return False


all_entries = _opened.get
"""Return all open entries, those of outer blocks first."""


def open_entry(entry: Any) -> None:
    """Add an entry, which must compare by identity."""
    _opened.set((*_opened.get(), entry))


def close_entry(entry: Any) -> None:
    """Remove an entry, and it alone: a generator may end after blocks that began later."""
    _opened.set(tuple(other for other in _opened.get() if other is not entry))


@contextmanager
def opened(entry: Any) -> Iterator[None]:
    """Open an entry until the block ends."""
    open_entry(entry)
    try:
        yield
    finally:
        close_entry(entry)


@contextmanager
def without(kind: type[Any]) -> Iterator[None]:
    """Within the block no entry of a class is open."""
    token = _opened.set(tuple(entry for entry in _opened.get() if not isinstance(entry, kind)))
    try:
        yield
    finally:
        _opened.reset(token)
