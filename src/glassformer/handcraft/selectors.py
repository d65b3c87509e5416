"""Selectors: which keys a query attends to, composed of relations that a single head can compute exactly.

A head's score is a bilinear form of query and key, so the scores of several relations add up. A :class:`Selector` has
two parts: its *meaning* (integer tiers of keys) and the *scores* that implement it (a weighted sum of relations).
:mod:`glassformer.handcraft.designs` checks that the scores order the keys as the tiers do, and builds the weights.

The meaning: every query attends, equally, to those keys of the sequence that are in the highest tier present.
``same_token().but_not(itself()).otherwise(token(CLS))`` puts other places with the same letter into tier 2, CLS into
tier 1 and everything else into tier 0: attend to other places with my letter, and if there are none, to CLS.

Source: the selectors of RASP, Weiss et al. 2021 (arXiv:2106.06981), section 3; hard attention from a large scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from glassformer.errors import InputError, require
from glassformer.handcraft.sequences import SequenceSpace


class Factors(NamedTuple):
    """A relation as two matrices: its score for a query x and a key y is ``(x query) . (y key)``.

    x and y are the token's one-hot vector followed by the position's: inputs = num_tokens + num_positions.
    """

    query: Float[np.ndarray, "inputs columns"]
    key: Float[np.ndarray, "inputs columns"]


class Term(NamedTuple):
    """``coefficient`` times the score of a relation."""

    coefficient: float
    factors: Factors


class Table(NamedTuple):
    """A selector evaluated for all pairs of places; ``scores`` is the sum of ``terms``, tier 0 is unwanted."""

    tiers: Int[np.ndarray, "query key"]
    scores: Float[np.ndarray, "query key"]
    terms: tuple[Term, ...]


@dataclass(frozen=True)
class Selector:
    """Which keys each query attends to. Created by the functions below and combined by its methods.

    Attributes:
        text: The selector in words.
        table: Evaluates it for a space of sequences.
    """

    text: str
    table: Callable[[SequenceSpace], Table]

    def otherwise(self, fallback: Selector) -> Selector:
        """The keys of this selector; for queries whose sequence has none of them, those of ``fallback``."""

        def table(space: SequenceSpace) -> Table:
            first, second = self.table(space), fallback.table(space)
            tiers = np.where(first.tiers > 0, first.tiers + second.tiers.max(), second.tiers)
            weight = _fallback_weight(space, first, second)
            return _sum(tiers, first, second, weight)

        return Selector(f"{self.text}, otherwise {fallback.text}", table)

    def but_not(self, other: Selector) -> Selector:
        """The keys of this selector that ``other`` does not select."""

        def table(space: SequenceSpace) -> Table:
            first, second = self.table(space), other.table(space)
            return _sum(np.where(second.tiers > 0, 0, first.tiers), first, second, -1.0)

        return Selector(f"{self.text} but not {other.text}", table)

    def __and__(self, other: Selector) -> Selector:
        def table(space: SequenceSpace) -> Table:
            first, second = self.table(space), other.table(space)
            return _sum(((first.tiers > 0) & (second.tiers > 0)).astype(np.int64), first, second, 1.0)

        return Selector(f"{self.text} and {other.text}", table)


def everything() -> Selector:
    """Every key equally: the output is the mean of all values."""
    return _relation("everything", lambda space: _between(space, 1))


def same_token() -> Selector:
    """Keys with the query's own token, including the query's own place."""

    def factors(space: SequenceSpace) -> Factors:
        made = _between(space, space.num_tokens)
        diagonal = np.arange(space.num_tokens)
        made.query[diagonal, diagonal] = made.key[diagonal, diagonal] = 1
        return made

    return _relation("the same token", factors)


def itself() -> Selector:
    """The query's own place."""
    return _by_positions("itself", lambda query, key: query == key)


def previous(distance: int = 1) -> Selector:
    """The place ``distance`` before the query's.

    Raises:
        InputError: ``distance`` below 1.
    """
    require(distance >= 1, f"distance = {distance}", "at least 1", "Use itself() for the query's own place.")
    name = "the previous place" if distance == 1 else f"the place {distance} before"
    return _by_positions(name, lambda query, key: query - key == distance)


def earlier() -> Selector:
    """All places before the query's."""
    return _by_positions("an earlier place", lambda query, key: key < query)


def later() -> Selector:
    """All places after the query's."""
    return _by_positions("a later place", lambda query, key: key > query)


def token(name: str) -> Selector:
    """Keys with the token ``name``: a letter, or CLS.

    Raises:
        InputError: When built for sequences without such a token.
    """

    def factors(space: SequenceSpace) -> Factors:
        if name not in space.token_names:
            raise InputError(f"the token {name!r}", f"one of {', '.join(space.token_names)}", "Name one of these.")
        made = _from_any_query(space)
        made.key[space.token_names.index(name), 0] = 1
        return made

    return _relation(f"the token {name}", factors)


def at_position(index: int) -> Selector:
    """The place of letter number ``index``, from 0, CLS not counted.

    Raises:
        InputError: ``index`` is negative, or, when built, beyond the longest sequence.
    """
    require(index >= 0, f"index = {index}", "a position of at least 0", "Count letters from 0.")

    def factors(space: SequenceSpace) -> Factors:
        require(
            index < space.max_len,
            f"position {index} of sequences of at most {space.max_len} letters",
            f"a position below {space.max_len}",
            "Count letters from 0, or allow longer sequences.",
        )
        made = _from_any_query(space)
        made.key[space.num_tokens + space.has_cls + index, 0] = 1
        return made

    return _relation(f"position {index}", factors)


def latest() -> Selector:
    """The last place of the sequence: the later a key, the higher its tier."""

    def factors(space: SequenceSpace) -> Factors:
        made = _from_any_query(space)
        made.key[space.num_tokens :, 0] = np.arange(1, space.num_positions + 1)
        return made

    return _relation("the last place", factors)


def pair_scores(factors: Factors, space: SequenceSpace) -> Float[np.ndarray, "query key"]:
    """The scores of ``factors`` for every query place and key place of ``space``."""
    tokens, positions = space.places
    rows = tokens, space.num_tokens + positions
    queries = factors.query[rows[0]] + factors.query[rows[1]]
    keys = factors.key[rows[0]] + factors.key[rows[1]]
    return queries @ keys.T


def _relation(text: str, factors: Callable[[SequenceSpace], Factors]) -> Selector:
    """A selector whose tiers are its scores, which are integers."""

    def table(space: SequenceSpace) -> Table:
        made = factors(space)
        scores = pair_scores(made, space)
        return Table(scores.astype(np.int64), scores, (Term(1.0, made),))

    return Selector(text, table)


def _by_positions(text: str, holds: Callable[[Any, Any], Any]) -> Selector:
    def factors(space: SequenceSpace) -> Factors:
        made = _between(space, space.num_positions)
        positions = np.arange(space.num_positions)
        made.query[space.num_tokens :] = holds(positions[:, None], positions[None, :])
        made.key[space.num_tokens :] = np.eye(space.num_positions)
        return made

    return _relation(text, factors)


def _between(space: SequenceSpace, columns: int) -> Factors:
    inputs = space.num_tokens + space.num_positions
    return Factors(np.zeros((inputs, columns)), np.zeros((inputs, columns)))


def _from_any_query(space: SequenceSpace) -> Factors:
    """One column whose query side is 1 for every token."""
    made = _between(space, 1)
    made.query[: space.num_tokens] = 1
    return made


def _sum(tiers: Int[np.ndarray, "query key"], first: Table, second: Table, weight: float) -> Table:
    terms = (*first.terms, *(Term(weight * term.coefficient, term.factors) for term in second.terms))
    return Table(tiers.astype(np.int64), first.scores + weight * second.scores, terms)


def _fallback_weight(space: SequenceSpace, first: Table, second: Table) -> float:
    """The factor on the fallback's scores that puts its keys between the other keys and the wanted ones."""
    judged = slice(int(space.has_cls), None)
    wanted = first.tiers[judged] > 0
    fallback = ~wanted & (second.tiers[judged] > 0)
    rest = ~wanted & ~fallback
    if not fallback.any():
        return 1.0

    def lowest(keys: Bool[np.ndarray, "query key"]) -> Float[np.ndarray, " query"]:
        return first.scores[judged].min(axis=1, where=keys, initial=np.inf)

    def highest(keys: Bool[np.ndarray, "query key"]) -> Float[np.ndarray, " query"]:
        return first.scores[judged].max(axis=1, where=keys, initial=-np.inf)

    has_fallback = fallback.any(axis=1)
    most = float((lowest(wanted) - highest(fallback))[has_fallback].min())
    least = float((highest(rest) - lowest(fallback))[has_fallback].max())
    if math.isinf(most):
        most = max(least, 0.0) + 2
    if math.isinf(least):
        least = most - 2
    return (least + most) / 2 / float(second.scores[judged][fallback].max())
