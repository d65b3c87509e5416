"""Open entries, such as captures and interventions, of the running code in a context variable.

A ``with`` block opens an entry for its code and for the tasks that are begun in it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, TypeVar

_NOTHING: Mapping[type, tuple[Any, ...]] = MappingProxyType({})
_opened: ContextVar[Mapping[type, tuple[Any, ...]]] = ContextVar("opened", default=_NOTHING)

Kind = TypeVar("Kind")


def entries(kind: type[Kind]) -> tuple[Kind, ...]:
    """Return the open entries of a class, those of outer blocks first."""
    return _opened.get().get(kind, ())


all_entries = _opened.get
"""Return the open entries of all classes; empty if nothing is open."""


def open_entry(entry: Any) -> None:
    """Add an entry, which must compare by identity."""
    kind = type(entry)
    _set(kind, (*entries(kind), entry))


def close_entry(entry: Any) -> None:
    """Remove an entry, and it alone: a generator may end after blocks that began later."""
    kind = type(entry)
    _set(kind, tuple([other for other in entries(kind) if other is not entry]))


def _set(kind: type[Any], new_entries: tuple[Any, ...]) -> None:
    """Replace the open entries of a class."""
    by_kind = {other: entries for other, entries in _opened.get().items() if other is not kind}
    if new_entries:
        by_kind[kind] = new_entries
    _opened.set(by_kind)


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
    """Close all entries of a class within the block."""
    before = _opened.get()
    _set(kind, ())
    try:
        yield
    finally:
        _opened.set(before)
