"""The calls that a page can make, and the checks and refusals that are the same for every transport."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from pydantic import ValidationError

from glassformer.errors import InputError
from glassformer.explorer import messages as m

if TYPE_CHECKING:
    from glassformer.explorer.loading.loaded_model import LoadedModel


@dataclass(frozen=True)
class Call:
    """One call: the types of its request and its answer, and what it does in a sentence."""

    asked: type[m.Message]
    answered: type[m.Message] | type[bytes] | type[str]
    """``bytes`` for float32 numbers, ``str`` for a whole HTML page."""
    summary: str


CALLS = MappingProxyType(
    {
        "models": Call(m.Nothing, m.Catalogue, "List every model that can be explored."),
        "run": Call(m.Ask, m.Run, "Run a model on a text."),
        "weights": Call(m.AskTile, bytes, "A tile of an attention matrix."),
        "rows": Call(m.AskRows, bytes, "The attention weights of one query, in every layer and head or in one."),
        "measures": Call(m.AskMeasures, m.Measures, "Entropy, distance, sink share and thumbnail of every head."),
        "experts": Call(m.AskExperts, m.Experts, "The experts that every token was routed to."),
        "head": Call(m.AskHead, m.Head, "A task with the weights that were designed for it."),
        "check": Call(m.AskCheck, m.Check, "Run weights on a sequence, and prove or refute them for all sequences."),
        "program": Call(m.AskProgram, m.Program, "A compiled program on a text: its parts, heads and residual stream."),
        "proof": Call(m.AskProof, m.Proof, "Prove or refute that a compiled program gives what its definition gives."),
        "scramble": Call(m.AskScramble, m.Scrambled, "Reorder a source, in one way or in all, and compare the logits."),
        "next": Call(m.AskNext, m.Next, "The distribution of the next token under a sampling rule."),
        "steps": Call(m.AskSteps, m.Steps, "Continue a text by some tokens."),
        "whatif": Call(m.AskWhatIf, m.WhatIf, "Change a model and compare its output with that of a run."),
        "sweep": Call(m.AskSweep, m.HeadSweep, "Remove every head, one at a time, and compare the output."),
        "lens": Call(m.AskLens, m.Lens, "What the residual stream predicts after each layer."),
        "contributions": Call(m.AskContributions, m.Contributions, "What each part of a model adds to a logit."),
        "find": Call(m.AskFind, m.Found, "The token with which a text begins."),
        "page": Call(m.AskPage, str, "The page, in its current state, as one file that needs no server."),
    }
)


@runtime_checkable
class Answering(Protocol):
    """An object that answers calls, as an :class:`~glassformer.explorer.backend.Backend` does."""

    def answer(self, call: str, request: m.Message) -> m.Message | bytes | str:
        """The answer to a call, of the type that :data:`CALLS` names."""

    def catalogue(self) -> m.Catalogue:
        """Every model."""

    def model(self, name: str) -> LoadedModel:
        """The model of this name."""


class UnknownName(InputError):
    """Unknown call, model, run or part; the server answers with 404."""


class NotDescribed(InputError):
    """A request that is not of its call's type; the server answers with 400."""


def parse(call: str, asked: object) -> m.Message:
    """The request ``asked``, a value from JSON, checked to be exactly of the type that :data:`CALLS` names."""
    if call not in CALLS:
        raise UnknownName(f"the call {call[:40]!r}", f"one of {', '.join(CALLS)}", "Use one of these names.")
    try:
        return CALLS[call].asked.model_validate(asked)
    except ValidationError as error:
        raise not_described(call, error.errors(include_url=False, include_context=False, include_input=False)) from None


def not_described(call: str, errors: Sequence[Any]) -> NotDescribed:
    """The refusal for a request with pydantic's ``errors``, of which the first is reported."""
    where = ".".join(str(part)[:40] for part in errors[0]["loc"][:6]).encode(errors="backslashreplace").decode()
    more = f", and {len(errors) - 1:,} more errors" if len(errors) > 1 else ""
    got = f"{where or 'the body'}: {errors[0]['msg'][:200]}{more}"
    return NotDescribed(got, f"a request as described for {call!r}", "See /api/openapi.json.")


abandoned: ContextVar[Callable[[], bool]] = ContextVar("abandoned", default=bool)
"""Whether the caller of this thread or task has stopped waiting for the answer."""


class Abandoned(Exception):
    """The caller has stopped waiting for the answer."""


def require_waiting() -> None:
    """Raise :class:`Abandoned` if the caller has stopped waiting; between the parts of a long answer."""
    if abandoned.get()():
        raise Abandoned


def refusal_of(error: InputError) -> m.Refusal:
    """The message that reports an error to the page."""
    return m.Refusal(got=error.got, expected=error.expected, fix=error.fix)
