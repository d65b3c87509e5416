"""What every transport of the page's calls shares: who answers, and how a request is refused or
abandoned.
"""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, Protocol, runtime_checkable

from glassformer.errors import InputError
from glassformer.explorer import messages as m


@runtime_checkable
class Answering(Protocol):
    """An object that answers calls, as an :class:`~glassformer.explorer.backend.Backend` does."""

    def answer(self, call: str, request: m.Message) -> Any:
        """The answer to a call, of the type that :data:`~glassformer.explorer.backend.CALLS` names."""

    def catalogue(self) -> m.Catalogue:
        """Every model."""

    def model(self, name: str) -> Any:
        """The :class:`~glassformer.explorer.loading.loaded_model.LoadedModel` of this name."""


class UnknownName(InputError):
    """Unknown call, model, run or part; the server answers with 404."""


class NotDescribed(InputError):
    """A request that is not of its call's type; the server answers with 400."""


def not_described(call: str, errors: Sequence[Any]) -> NotDescribed:
    """The refusal for a request with pydantic's ``errors``, of which the first is reported."""
    where = (
        ".".join(str(part)[:40] for part in errors[0]["loc"][:6])
        .encode(errors="backslashreplace")
        .decode()
    )
    if len(errors) > 1:
        more = f", and {len(errors) - 1:,} more errors"
    else:
        more = ""
    got = f"{where or 'the body'}: {errors[0]['msg'][:200]}{more}"
    return NotDescribed(got, f"a request as described for {call!r}", "See /api/openapi.json.")


abandoned: ContextVar[Callable[[], bool]] = ContextVar("abandoned", default=bool)
"""Whether the caller of this thread or task has stopped waiting for the answer."""


class Abandoned(Exception):
    """The caller has stopped waiting for the answer."""


def require_waiting() -> None:
    """Raise :class:`Abandoned` if the caller has stopped waiting; between the parts of a long
    answer.
    """
    if abandoned.get()():
        raise Abandoned


def refusal_of(error: InputError) -> m.Refusal:
    """The message that reports an error to the page."""
    return m.Refusal(got=error.got, expected=error.expected, fix=error.fix)
