"""Tasks for a single head: sequences, the target output of each, and how an output is read.

A task's ``target`` does not mention attention, so that a proof is against an independent
definition. Its ``description`` says how a single head can do it, if one can.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from glassformer.errors import InputError
from glassformer.handcraft.description import (
    Description,
    Selector,
    at_position,
    earlier,
    everything,
    itself,
    latest,
    previous,
    same_token,
    token,
)
from glassformer.handcraft.sequences import CLS, Block, SequenceSpace

Letters = np.ndarray[Any, np.dtype[np.int64]]
Target = Callable[[Int[np.ndarray, "sequence letter"]], Float[np.ndarray, "sequence letter v_dim"]]
Readout = Literal["argmax", "sign"]

KEPT_CASES = 20_000
_SAME = 1e-9


class Queries(NamedTuple):
    """The judged queries of some sequences, each with its keys and target; queries come last, where
    numpy is fast.

    A query should attend to the keys in ``wanted`` and to none in ``others``. In the padding
    ``keys`` has 0, both others False.
    """

    place: Int[np.ndarray, " query"]
    keys: Int[np.ndarray, "key query"]
    wanted: Bool[np.ndarray, "key query"]
    others: Bool[np.ndarray, "key query"]
    target: Float[np.ndarray, "v_dim query"]


class Cases(NamedTuple):
    """Sequences, also as one-hot ``inputs``, with their targets.

    Attributes:
        counted: Which outputs are judged: all but those of padding and CLS. ``target`` is zero
            elsewhere.
        queries: The judged queries with the keys that the task's description selects; None without
            a description.
        missed: How far the description's exact outputs are from the targets; infinite without a
            description.
    """

    block: Block
    counted: Bool[np.ndarray, "sequence position"]
    target: Float[np.ndarray, "sequence position v_dim"]
    inputs: Float[np.ndarray, "sequence position token"]
    queries: Queries | None
    missed: float


@dataclass(frozen=True)
class Task:
    """A task for a single head.

    Args:
        name: Its name on the command line.
        summary: One sentence.
        space: Its sequences.
        v_dim: Length of an output.
        target: The target outputs for letter numbers ``[sequence, letter]``, all sequences of one
            length, without CLS.
        readout: How an output is read: its largest entry ("argmax") or the sign of its only one
            ("sign").
        tolerance: The largest error of an output that counts as solved; None if only the readout
            counts.
        decisive_error: Outputs with errors below this are certain to be read correctly; 0 if
            unknown.
        description: How a single head does it; None if unknown or impossible.
        examples: The only sequences to check, as text; None for every sequence of the space.
    """

    name: str
    summary: str
    space: SequenceSpace
    v_dim: int
    target: Target
    readout: Readout
    tolerance: float | None
    decisive_error: float
    description: Description | None = None
    examples: tuple[str, ...] | None = None

    @property
    def count(self) -> int:
        """Number of sequences of the task."""
        if self.examples is None:
            return self.space.count
        return len(self.examples)

    @cached_property
    def all_cases(self) -> Cases:
        """Every sequence with its target, the shorter ones first; at most 20,000, since they are
        cached.
        """
        if not self.count <= KEPT_CASES:
            raise InputError(
                got=f"{self.count:,} sequences",
                expected=f"at most {KEPT_CASES:,}",
                fix="Use case_blocks().",
            )
        if self.examples is None:
            return self.cases(next(self.space.blocks(KEPT_CASES)))
        return self.cases(self.space.block([self.space.encode(text) for text in self.examples]))

    def case_blocks(self, size: int, longest: int | None = None) -> Iterator[Cases]:
        """Every sequence of up to ``longest`` letters with its target, in blocks of at most
        ``size`` sequences.
        """
        longest = self.space.max_len if longest is None else longest
        if self.examples is not None or (
            longest == self.space.max_len and self.count <= min(size, KEPT_CASES)
        ):
            yield self.all_cases
            return
        yield from map(self.cases, self.space.blocks(size, longest))

    def cases(self, block: Block) -> Cases:
        """The sequences of ``block`` with their targets."""
        first = int(self.space.has_cls)
        counted = block.real.copy()
        counted[:, :first] = False
        target = np.zeros((*block.tokens.shape, self.v_dim))
        lengths = counted.sum(axis=1)
        for length in np.unique(lengths).tolist():
            rows = np.flatnonzero(lengths == length)
            wanted = np.asarray(
                self.target(block.tokens[rows, first : first + length]), dtype=float
            )
            shape = (len(rows), length, self.v_dim)
            got = f"targets of shape {list(wanted.shape)} from the task {self.name!r}"
            expected = f"finite numbers of shape {list(shape)}: [sequence, letter, v_dim]"
            fits = wanted.shape == shape and bool(np.isfinite(wanted).all())
            if not fits:
                raise InputError(
                    got=got,
                    expected=expected,
                    fix="Correct the task's target.",
                )
            target[rows, first : first + length] = wanted
        inputs = self.space.one_hot(block)
        if self.description is None:
            return Cases(block, counted, target, inputs, None, math.inf)
        missed = np.abs(self.description.output(block) - target).max(axis=2)[counted]
        queries = queries_of(self.space, block, counted, self.description.wanted(block), target)
        return Cases(block, counted, target, inputs, queries, float(missed.max()))

    def is_right(
        self, output: Float[np.ndarray, "... v_dim"], target: Float[np.ndarray, "... v_dim"]
    ) -> Bool[np.ndarray, "..."]:
        """Whether the readout of each output is that of its target; any of several largest entries
        counts.
        """
        return self.certainty(output, output, target)[0]

    def certainty(
        self,
        low: Float[np.ndarray, "... v_dim"],
        high: Float[np.ndarray, "... v_dim"],
        target: Float[np.ndarray, "... v_dim"],
    ) -> tuple[Bool[np.ndarray, "..."], Bool[np.ndarray, "..."]]:
        """Whether every output from ``low`` to ``high`` is read as its target, and whether none is."""
        if self.readout == "sign":
            wanted = np.sign(target)
            right = (np.sign(low) == wanted) & (np.sign(high) == wanted)
            wrong = (np.sign(low) > wanted) | (np.sign(high) < wanted)
            return np.asarray(right.all(axis=-1)), np.asarray(wrong.any(axis=-1))
        near = _SAME * np.abs(target).max(axis=-1, keepdims=True)
        wanted = target >= target.max(axis=-1, keepdims=True) - near
        least_wanted, least_other = (
            np.where(chosen, low, -np.inf).max(axis=-1) for chosen in (wanted, ~wanted)
        )
        most_wanted, most_other = (
            np.where(chosen, high, -np.inf).max(axis=-1) for chosen in (wanted, ~wanted)
        )
        return np.asarray(least_wanted > most_other), np.asarray(most_wanted <= least_other)


def queries_of(
    space: SequenceSpace,
    block: Block,
    counted: Bool[np.ndarray, "sequence position"],
    wanted: Bool[np.ndarray, "sequence query key"],
    target: Float[np.ndarray, "sequence position v_dim"],
) -> Queries:
    """The ``counted`` queries of ``block`` with their ``wanted`` keys and ``target`` outputs."""
    rows, queries = np.nonzero(counted)
    place = space.place_of(block)
    others = block.real[:, None, :] & ~wanted
    by_query = place[rows], wanted[rows, queries], others[rows, queries], target[rows, queries]
    return Queries(place[rows, queries], *(np.ascontiguousarray(each.T) for each in by_query))


def identity(letters: str = "ABC", max_len: int = 6) -> Task:
    """Every position outputs its own letter; needs content only."""
    summary = "every position outputs its own letter"
    return _of_letters("identity", summary, letters, max_len, lambda x: x, same_token())


def copy_first(letters: str = "ABC", max_len: int = 4) -> Task:
    """Every position outputs the first letter; needs positions only."""
    summary = "every position outputs the first letter"
    return _of_letters(
        "copy_first",
        summary,
        letters,
        max_len,
        lambda x: np.broadcast_to(x[:, :1], x.shape),
        at_position(0),
    )


def unique(letters: str = "ABC", max_len: int = 4) -> Task:
    """+1 for a letter that occurs once, -1 for one that is repeated; needs content and positions."""
    space = SequenceSpace(tuple(letters), max_len, has_cls=True)
    attend = same_token().but_not(itself()).otherwise(token(CLS))
    description = Description(space, attend, {CLS: 1.0} | dict.fromkeys(letters, -1.0))
    summary = "+1 for a letter that occurs once, -1 for one that occurs again"
    return _of_signs(
        "unique", summary, space, lambda x: _same_letters(x).sum(axis=2) == 1, description
    )


def previous_token(letters: str = "ABC", max_len: int = 4) -> Task:
    """Every position outputs the letter before it; the first position its own."""
    summary = "every position outputs the letter before it, the first its own"
    shift = lambda x: np.concatenate([x[:, :1], x[:, :-1]], axis=1)  # noqa: E731
    return _of_letters(
        "previous_token", summary, letters, max_len, shift, previous().otherwise(itself())
    )


def last_token(letters: str = "ABC", max_len: int = 4) -> Task:
    """Every position outputs the last letter of the sequence, however long it is."""
    summary = "every position outputs the last letter"
    return _of_letters(
        "last_token",
        summary,
        letters,
        max_len,
        lambda x: np.broadcast_to(x[:, -1:], x.shape),
        latest(),
    )


def majority_letter(letters: str = "ABC", max_len: int = 4) -> Task:
    """Every position outputs each letter's share of the sequence; the largest is the majority."""
    space = SequenceSpace(tuple(letters), max_len)
    description = Description(space, everything())
    one_hot = np.eye(len(letters))
    shares = lambda x: np.repeat(one_hot[x].mean(axis=1, keepdims=True), x.shape[1], axis=1)  # noqa: E731
    summary = "every position outputs each letter's share of the sequence; the largest entry is the majority"
    decisive = (
        0.5 / max_len * (1 - 1e-9)
    )  # of two equal shares, as floats, one may be nearer to a larger one
    return Task(
        "majority_letter",
        summary,
        space,
        len(letters),
        shares,
        "argmax",
        1e-3,
        decisive,
        description,
    )


def occurs_earlier(letters: str = "ABC", max_len: int = 4) -> Task:
    """+1 where the same letter occurs earlier, -1 elsewhere."""
    space = SequenceSpace(tuple(letters), max_len, has_cls=True)
    attend = (same_token() & earlier()).otherwise(token(CLS))
    description = Description(space, attend, {CLS: -1.0} | dict.fromkeys(letters, 1.0))
    summary = "+1 where the same letter stands somewhere earlier, -1 where it does not"
    return _of_signs(
        "occurs_earlier",
        summary,
        space,
        lambda x: np.tril(_same_letters(x), -1).any(axis=2),
        description,
    )


def parity(letters: str = "AB", max_len: int = 4) -> Task:
    """+1 if the first letter occurs an even number of times in the sequence, else -1. No single
    head can do this.

    Proof, in exact arithmetic: at position i the output has the sign of ``sum_j exp(score_ij)
    value_j``, where term j
    depends only on the letter at j: write it f_j(letter). In a sequence of three, fix the query's
    letter and let the other two, at j and k, be A or B. Parity needs ``f_j(A) + f_k(A)`` and
    ``f_j(B) + f_k(B)`` plus the rest to be on one side of zero, and ``f_j(A) + f_k(B)`` and
    ``f_j(B) + f_k(A)`` plus the rest on the other. But the first two and the last two have the same
    sum.
    """
    if len(letters) < 2 or not max_len >= 3:
        raise InputError(
            got=f"parity of {len(letters)} letters and sequences of at most {max_len}",
            expected="at least 2 letters and sequences of at least 3",
            fix=(
                "Use more letters or longer sequences: smaller cases are possible for a single "
                "head."
            ),
        )
    space = SequenceSpace(tuple(letters), max_len)
    even = lambda x: np.broadcast_to((x == 0).sum(axis=1, keepdims=True) % 2 == 0, x.shape)  # noqa: E731
    summary = f"+1 if {letters[0]} occurs an even number of times, else -1; beyond any single head"
    return _of_signs("parity", summary, space, even, None)


TASKS: dict[str, Callable[..., Task]] = {
    make.__name__: make
    for make in (
        identity,
        copy_first,
        unique,
        previous_token,
        last_token,
        majority_letter,
        occurs_earlier,
        parity,
    )
}
"""The built-in tasks; each takes ``letters`` and ``max_len``."""


def _same_letters(x: Letters) -> Bool[np.ndarray, "sequence letter letter"]:
    return x[:, :, None] == x[:, None, :]


def _of_letters(
    name: str,
    summary: str,
    letters: str,
    max_len: int,
    wanted: Callable[[Letters], Letters],
    attend: Selector,
) -> Task:
    """A task whose outputs are one-hot letters, with the numbers ``wanted``."""
    space = SequenceSpace(tuple(letters), max_len)
    one_hot = np.eye(len(letters))
    tolerance = 1e-3  # what the course asks for
    target = lambda x: one_hot[wanted(x)]  # noqa: E731
    return Task(
        name,
        summary,
        space,
        len(letters),
        target,
        "argmax",
        tolerance,
        0.5,
        Description(space, attend),
    )


def _of_signs(
    name: str,
    summary: str,
    space: SequenceSpace,
    positive: Callable[[Letters], Any],
    description: Description | None,
) -> Task:
    """A task whose outputs are +1 where ``positive`` holds and -1 elsewhere, where only the sign
    counts.
    """
    target = lambda x: np.where(positive(x), 1.0, -1.0)[:, :, None]  # noqa: E731
    return Task(name, summary, space, 1, target, "sign", None, 1.0, description)
