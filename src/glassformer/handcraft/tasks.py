"""Tasks for a single head: sequences, their target outputs, and the readout of an output.

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
    """The judged queries of some sequences, each with its keys and target.

    Queries are the last axis, where NumPy is fast. A query should attend to the keys in
    ``selected`` and to none in ``others``. In the padding ``keys`` is 0, and ``selected`` and
    ``others`` are False.
    """

    place: Int[np.ndarray, " query"]
    keys: Int[np.ndarray, "key query"]
    selected: Bool[np.ndarray, "key query"]
    others: Bool[np.ndarray, "key query"]
    target: Float[np.ndarray, "v_dim query"]


class Cases(NamedTuple):
    """Sequences, also as one-hot ``inputs``, with their targets.

    Attributes:
        counted: True for the outputs that are judged: all but the outputs of padding and CLS.
            ``target`` is zero elsewhere.
        queries: The judged queries with the keys that the task's description selects; None without
            a description.
        missed: Largest distance of the description's exact outputs from the targets; infinite
            without a description.
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
        readout: The way of reading an output: its largest entry ("argmax"), or the sign of its only
            entry ("sign").
        tolerance: The largest error of an output that counts as solved; None if only the readout
            counts.
        decisive_error: Outputs with errors below this are certain to be read correctly; 0 if
            unknown.
        description: A way for a single head to do it; None if unknown or impossible.
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
        """Every sequence with its target, shorter ones first; at most 20,000, which are cached."""
        if self.count > KEPT_CASES:
            raise InputError(
                got=f"{self.count:,} sequences",
                expected=f"at most {KEPT_CASES:,}",
                fix="Use case_blocks().",
            )
        if self.examples is None:
            return self.cases(next(self.space.blocks(KEPT_CASES)))
        return self.cases(self.space.block([self.space.encode(text) for text in self.examples]))

    def case_blocks(self, size: int, longest: int | None = None) -> Iterator[Cases]:
        """Yield every sequence of up to ``longest`` letters with its target.

        Args:
            size: The largest number of sequences in a block.
            longest: None for the greatest length of the space.
        """
        if longest is None:
            longest = self.space.max_len
        are_all = longest == self.space.max_len
        if self.examples is not None or (are_all and self.count <= min(size, KEPT_CASES)):
            yield self.all_cases
            return
        yield from map(self.cases, self.space.blocks(size, longest))

    def cases(self, block: Block) -> Cases:
        """Return the sequences of ``block`` with their targets."""
        first = int(self.space.has_cls)
        counted = block.real.copy()
        counted[:, :first] = False
        target = np.zeros((*block.tokens.shape, self.v_dim))
        lengths = counted.sum(axis=1)
        for length in np.unique(lengths).tolist():
            rows = np.flatnonzero(lengths == length)
            letters = block.tokens[rows, first : first + length]
            outputs = np.asarray(self.target(letters), dtype=float)
            shape = (len(rows), length, self.v_dim)
            if outputs.shape != shape or not bool(np.isfinite(outputs).all()):
                raise InputError(
                    got=f"targets of shape {list(outputs.shape)} from the task {self.name!r}",
                    expected=f"finite numbers of shape {list(shape)}: [sequence, letter, v_dim]",
                    fix="Correct the task's target.",
                )
            target[rows, first : first + length] = outputs
        inputs = self.space.one_hot(block)
        if self.description is None:
            return Cases(block, counted, target, inputs, None, math.inf)
        missed = np.abs(self.description.output(block) - target).max(axis=2)[counted]
        queries = queries_of(self.space, block, counted, self.description.wanted(block), target)
        return Cases(block, counted, target, inputs, queries, float(missed.max()))

    def is_right(
        self, output: Float[np.ndarray, "... v_dim"], target: Float[np.ndarray, "... v_dim"]
    ) -> Bool[np.ndarray, "..."]:
        """Return whether the readout of each output is the readout of its target.

        Any of several largest entries of a target counts.
        """
        return self.certainty(output, output, target)[0]

    def certainty(
        self,
        low: Float[np.ndarray, "... v_dim"],
        high: Float[np.ndarray, "... v_dim"],
        target: Float[np.ndarray, "... v_dim"],
    ) -> tuple[Bool[np.ndarray, "..."], Bool[np.ndarray, "..."]]:
        """Return where every output from ``low`` to ``high`` is read as its target, and where none.

        Returns:
            The outputs that are certainly right, and those that are certainly wrong.
        """
        if self.readout == "sign":
            sign = np.sign(target)
            right = (np.sign(low) == sign) & (np.sign(high) == sign)
            wrong = (np.sign(low) > sign) | (np.sign(high) < sign)
            return np.asarray(right.all(axis=-1)), np.asarray(wrong.any(axis=-1))
        near = _SAME * np.abs(target).max(axis=-1, keepdims=True)
        largest = target >= target.max(axis=-1, keepdims=True) - near
        least_largest = np.where(largest, low, -np.inf).max(axis=-1)
        least_other = np.where(~largest, low, -np.inf).max(axis=-1)
        most_largest = np.where(largest, high, -np.inf).max(axis=-1)
        most_other = np.where(~largest, high, -np.inf).max(axis=-1)
        right = least_largest > most_other
        wrong = most_largest <= least_other
        return np.asarray(right), np.asarray(wrong)


def queries_of(
    space: SequenceSpace,
    block: Block,
    counted: Bool[np.ndarray, "sequence position"],
    wanted: Bool[np.ndarray, "sequence query key"],
    target: Float[np.ndarray, "sequence position v_dim"],
) -> Queries:
    """Return the ``counted`` queries of ``block`` with their keys and targets."""
    rows, queries = np.nonzero(counted)
    place = space.place_of(block)
    others = block.real[:, None, :] & ~wanted
    return Queries(
        place=place[rows, queries],
        keys=np.ascontiguousarray(place[rows].T),
        selected=np.ascontiguousarray(wanted[rows, queries].T),
        others=np.ascontiguousarray(others[rows, queries].T),
        target=np.ascontiguousarray(target[rows, queries].T),
    )


def identity(letters: str = "ABC", max_len: int = 6) -> Task:
    """Return the task: every position outputs its letter. It needs content only."""
    summary = "every position outputs its own letter"
    return _of_letters("identity", summary, letters, max_len, lambda x: x, same_token())


def copy_first(letters: str = "ABC", max_len: int = 4) -> Task:
    """Return the task: every position outputs the first letter. It needs positions only."""
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
    """Return the task: +1 for a letter that occurs once, -1 for one that is repeated.

    It needs content and positions.
    """
    space = SequenceSpace(tuple(letters), max_len, has_cls=True)
    attend = same_token().but_not(itself()).otherwise(token(CLS))
    description = Description(space, attend, {CLS: 1.0} | dict.fromkeys(letters, -1.0))
    summary = "+1 for a letter that occurs once, -1 for one that occurs again"
    once = lambda x: _same_letters(x).sum(axis=2) == 1  # noqa: E731
    return _of_signs("unique", summary, space, once, description)


def previous_token(letters: str = "ABC", max_len: int = 4) -> Task:
    """Return the task: every position outputs the letter before it, the first one its own."""
    summary = "every position outputs the letter before it, the first its own"
    shift = lambda x: np.concatenate([x[:, :1], x[:, :-1]], axis=1)  # noqa: E731
    attend = previous().otherwise(itself())
    return _of_letters("previous_token", summary, letters, max_len, shift, attend)


def last_token(letters: str = "ABC", max_len: int = 4) -> Task:
    """Return the task: every position outputs the last letter of the sequence."""
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
    """Return the task: every position outputs each letter's share of the sequence.

    The largest entry is the majority.
    """
    space = SequenceSpace(tuple(letters), max_len)
    one_hot = np.eye(len(letters))

    def shares(x: Letters) -> Float[np.ndarray, "sequence letter v_dim"]:
        return np.repeat(one_hot[x].mean(axis=1, keepdims=True), x.shape[1], axis=1)

    return Task(
        name="majority_letter",
        summary=(
            "every position outputs each letter's share of the sequence; the largest entry is the "
            "majority"
        ),
        space=space,
        v_dim=len(letters),
        target=shares,
        readout="argmax",
        tolerance=1e-3,
        # Two equal shares may differ as floats, and one be nearer to a larger share.
        decisive_error=0.5 / max_len * (1 - 1e-9),
        description=Description(space, everything()),
    )


def occurs_earlier(letters: str = "ABC", max_len: int = 4) -> Task:
    """Return the task: +1 where the same letter occurs earlier, -1 elsewhere."""
    space = SequenceSpace(tuple(letters), max_len, has_cls=True)
    attend = (same_token() & earlier()).otherwise(token(CLS))
    description = Description(space, attend, {CLS: -1.0} | dict.fromkeys(letters, 1.0))
    summary = "+1 where the same letter stands somewhere earlier, -1 where it does not"
    occurred = lambda x: np.tril(_same_letters(x), -1).any(axis=2)  # noqa: E731
    return _of_signs("occurs_earlier", summary, space, occurred, description)


def parity(letters: str = "AB", max_len: int = 4) -> Task:
    """Return the task: +1 if the first letter occurs an even number of times, else -1.

    No single head can do this. Proof, in exact arithmetic: at position i the output has the sign of
    ``sum_j exp(score_ij) value_j``, where term j depends only on the letter at j: write it
    f_j(letter). In a sequence of three, fix the query's letter and let the other two, at j and k,
    be A or B. Parity needs ``f_j(A) + f_k(A)`` and ``f_j(B) + f_k(B)`` plus the rest to be on one
    side of zero, and ``f_j(A) + f_k(B)`` and ``f_j(B) + f_k(A)`` plus the rest on the other. But
    the first two and the last two have the same sum.
    """
    if len(letters) < 2 or max_len < 3:
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
    output: Callable[[Letters], Letters],
    attend: Selector,
) -> Task:
    """Return a task whose outputs are one-hot letters, with the numbers of ``output``."""
    space = SequenceSpace(tuple(letters), max_len)
    one_hot = np.eye(len(letters))
    return Task(
        name=name,
        summary=summary,
        space=space,
        v_dim=len(letters),
        target=lambda x: one_hot[output(x)],
        readout="argmax",
        tolerance=1e-3,  # the course's tolerance
        decisive_error=0.5,
        description=Description(space, attend),
    )


def _of_signs(
    name: str,
    summary: str,
    space: SequenceSpace,
    positive: Callable[[Letters], Any],
    description: Description | None,
) -> Task:
    """Return a task whose outputs are +1 where ``positive`` holds and -1 elsewhere.

    Only the sign counts.
    """
    return Task(
        name=name,
        summary=summary,
        space=space,
        v_dim=1,
        target=lambda x: np.where(positive(x), 1.0, -1.0)[:, :, None],
        readout="sign",
        tolerance=None,
        decisive_error=1.0,
        description=description,
    )
