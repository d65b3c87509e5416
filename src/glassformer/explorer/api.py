"""Answer, refuse and abandon the page's calls in the same way over every transport."""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, Protocol, runtime_checkable

from glassformer.errors import InputError
from glassformer.explorer import messages as m


@runtime_checkable
class Answering(Protocol):
    """An object that answers calls, as an :class:`~glassformer.explorer.backend.Backend` does."""

    def answer(self, call: str, request: m.Message) -> Any:
        """Return the answer to a call, of the type in ``glassformer.explorer.backend.CALLS``."""

    def catalogue(self) -> m.Catalogue:
        """List every model."""

    def model(self, name: str) -> Any:
        """Return the ``LoadedModel`` of this name."""


class UnknownName(InputError):
    """Unknown call, model, run or part; the server answers with 404."""


class NotDescribed(InputError):
    """Request that is not of its call's type; the server answers with 400."""


def not_described(call: str, errors: Sequence[Any]) -> NotDescribed:
    """Return the refusal of a request, which reports the first of pydantic's ``errors``."""
    place = ".".join(str(part)[:40] for part in errors[0]["loc"][:6])
    place = place.encode(errors="backslashreplace").decode()
    other_errors = ""
    if len(errors) > 1:
        other_errors = f", and {len(errors) - 1:,} more errors"
    return NotDescribed(
        got=f"{place or 'the body'}: {errors[0]['msg'][:200]}{other_errors}",
        expected=f"a request as described for {call!r}",
        fix="See /api/openapi.json.",
    )


abandoned: ContextVar[Callable[[], bool]] = ContextVar("abandoned", default=bool)
"""Function that returns True once the caller of this thread or task has stopped waiting."""


class Abandoned(Exception):
    """The caller has stopped waiting for the answer."""


def require_waiting() -> None:
    """Raise :class:`Abandoned` if the caller has stopped waiting.

    Long answers call this between their parts.
    """
    if abandoned.get()():
        raise Abandoned


def refusal_of(error: InputError) -> m.Refusal:
    """Return the message that reports an error to the page."""
    return m.Refusal(got=error.got, expected=error.expected, fix=error.fix)
