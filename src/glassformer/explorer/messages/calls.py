"""Every call there is: what it is asked with and what it is answered with."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol, runtime_checkable

from glassformer.explorer import messages as m


@dataclass(frozen=True)
class Call:
    """One call.

    Args:
        asked: The type of its request.
        answered: The type of its answer: a message, ``bytes`` for float32 numbers, ``str`` for a whole HTML page.
        summary: What it does, in a sentence.
    """

    asked: type[m.Message]
    answered: type[m.Message] | type[bytes] | type[str]
    summary: str


CALLS = MappingProxyType(
    {
        "models": Call(m.Nothing, m.Catalogue, "Every model that can be looked into."),
        "run": Call(m.Ask, m.Run, "Let a model read a text."),
        "weights": Call(m.AskTile, bytes, "A tile of an attention matrix."),
        "rows": Call(m.AskRows, bytes, "What one query reads, in every layer and head or in one."),
        "measures": Call(m.AskMeasures, m.Measures, "Entropy, distance, sink share and thumbnail of every head."),
        "experts": Call(m.AskExperts, m.Experts, "Which experts every token went to."),
        "head": Call(m.AskHead, m.Head, "A task with the weights that were chosen for it."),
        "check": Call(m.AskCheck, m.Check, "Run weights on a sequence, and prove or refute them for all sequences."),
        "scramble": Call(m.AskScramble, m.Scrambled, "Read a source in another order, or in all, and compare."),
        "next": Call(m.AskNext, m.Next, "The distribution of the next token under a sampling rule."),
        "steps": Call(m.AskSteps, m.Steps, "Continue a text by some tokens."),
        "page": Call(m.AskPage, str, "The page in one file that needs no server, as it stands."),
    }
)


@runtime_checkable
class Answering(Protocol):
    """Whoever answers calls, as an :class:`~glassformer.explorer.service.Explorer` does."""

    def answer(self, call: str, request: m.Message) -> m.Message | bytes | str:
        """The answer to a call, of the type that :data:`CALLS` names.

        Raises:
            InputError: A request that cannot be answered.
        """
        ...

    def catalogue(self) -> m.Catalogue:
        """Every model, in the order in which they are offered."""
        ...
