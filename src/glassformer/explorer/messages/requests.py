"""From what a page sends to a request, and from a refusal to what it is told: the same, whoever carries them."""

from __future__ import annotations

from pydantic import ValidationError

from glassformer.errors import InputError
from glassformer.explorer.messages import Message, Refusal
from glassformer.explorer.messages.calls import CALLS
from glassformer.explorer.messages.unknown import UnknownName


class NotDescribed(InputError):
    """What is no request of its call: no JSON, or not of the form that is described; a server answers with 400."""


def parse(call: str, body: str | bytes) -> Message:
    """The request in ``body``: JSON, of exactly the types that :data:`CALLS` names.

    Raises:
        UnknownName: There is no such call.
        NotDescribed: Anything else.
    """
    if call not in CALLS:
        raise UnknownName(f"the call {call[:40]!r}", f"one of {', '.join(CALLS)}", "Mend the name.")
    try:
        return CALLS[call].asked.model_validate_json(body, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part)[:40] for part in first["loc"][:6])
        more = f", and {error.error_count() - 1:,} faults more" if error.error_count() > 1 else ""
        got = f"{where or 'the body'}: {first['msg'][:200]}{more}"
        raise NotDescribed(got, f"what the description of {call!r} names", "Mend the request.") from None


def refusal_of(error: InputError) -> Refusal:
    """What a page is told of an error."""
    return Refusal(got=error.got, expected=error.expected, fix=error.fix)
