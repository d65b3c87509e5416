"""Descriptions of heads: which places a query attends to, by selectors, and the values of places.

A head's score is a bilinear form of query and key, so the scores of several relations add up. A
:class:`Selector` has two parts: its *meaning* (integer tiers of keys) and the *scores* that
implement it exactly (a sum of relations). :mod:`glassformer.handcraft.designs` checks that the
scores order the keys as the tiers do, and builds the weights.

The meaning: every query attends, equally, to the keys of its sequence that are in the highest tier
present. ``same_token().but_not(itself()).otherwise(token(CLS))`` puts other places with the same
letter into tier 2, CLS into tier 1 and everything else into tier 0: attend to other places with the
query's letter, and if there are none, to CLS.

Source: the selectors of RASP, Weiss et al. 2021 (arXiv:2106.06981), section 3; hard attention from
a large scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from glassformer.errors import InputError
from glassformer.handcraft.sequences import Block, SequenceSpace


class Factors(NamedTuple):
    """A relation as two matrices: its score for a query x and a key y is ``(x query) . (y key)``.

    x and y are the token's one-hot vector followed by the position's.
    """

    query: Float[np.ndarray, "inputs columns"]
    key: Float[np.ndarray, "inputs columns"]


class Table(NamedTuple):
    """A selector evaluated for all pairs of places.

    Tier 0 is unwanted. ``scores`` are the scores of ``factors``.
    """

    tiers: Int[np.ndarray, "query key"]
    scores: Float[np.ndarray, "query key"]
    factors: Factors


@dataclass(frozen=True)
class Selector:
    """The keys that each query attends to.

    Create selectors by the functions of this module, and combine them by their methods.
    """

    text: str
    table: Callable[[SequenceSpace], Table]

    def otherwise(self, fallback: Selector) -> Selector:
        """Select the keys of this selector, or those of ``fallback`` where there are none."""

        def table(space: SequenceSpace) -> Table:
            first = self.table(space)
            second = fallback.table(space)
            tiers = np.where(first.tiers > 0, first.tiers + second.tiers.max(), second.tiers)
            return _sum(tiers, first, second, _fallback_weight(space, first, second))

        return Selector(f"{self.text}, otherwise {fallback.text}", table)

    def but_not(self, other: Selector) -> Selector:
        """Select the keys of this selector that ``other`` does not select."""

        def table(space: SequenceSpace) -> Table:
            first = self.table(space)
            second = other.table(space)
            return _sum(np.where(second.tiers > 0, 0, first.tiers), first, second, -1.0)

        return Selector(f"{self.text} but not {other.text}", table)

    def __and__(self, other: Selector) -> Selector:
        def table(space: SequenceSpace) -> Table:
            first = self.table(space)
            second = other.table(space)
            return _sum((first.tiers > 0) & (second.tiers > 0), first, second, 1.0)

        return Selector(f"{self.text} and {other.text}", table)


@dataclass(frozen=True)
class Description:
    """The function of a head: every query outputs the mean value of the places it attends to.

    Args:
        space: The sequences that it covers.
        attend: The places that a query attends to.
        values: The value of each token, numbers or lists of numbers of one length; zeros for
            omitted tokens. None gives each letter its one-hot vector, and CLS zeros.
        position_values: Added to the value for the position, ``[num_positions, v_dim]``; zeros when
            None.
    """

    space: SequenceSpace
    attend: Selector
    values: Mapping[str, Any] | None = None
    position_values: Any = None

    @cached_property
    def table(self) -> Table:
        """The selector evaluated for all pairs of places."""
        return self.attend.table(self.space)

    @cached_property
    def value_rows(self) -> Float[np.ndarray, "inputs v_dim"]:
        """The value map: a row for each token, then one for each position."""
        tokens = self._token_values()
        shape = (self.space.num_positions, tokens.shape[1])
        if self.position_values is None:
            positions = np.zeros(shape)
        else:
            positions = np.array(self.position_values, dtype=float)
        if positions.shape != shape or not bool(np.isfinite(positions).all()):
            raise InputError(
                got=f"position_values of shape {list(positions.shape)}",
                expected=f"finite numbers of shape {list(shape)}",
                fix="Give one row for each position, CLS first.",
            )
        return np.concatenate([tokens, positions])

    @cached_property
    def place_values(self) -> Float[np.ndarray, "place v_dim"]:
        """The value of each place."""
        tokens, positions = self.space.places
        return self.value_rows[tokens] + self.value_rows[self.space.num_tokens + positions]

    def wanted(self, block: Block) -> Bool[np.ndarray, "sequence query key"]:
        """Return the keys in the highest tier present: the query should attend to these."""
        place = self.space.place_of(block)
        tiers = self.table.tiers[place[:, :, None], place[:, None, :]]
        tiers = np.where(block.real[:, None, :], tiers, -1)
        return np.asarray(tiers == tiers.max(axis=2, keepdims=True))

    def output(self, block: Block) -> Float[np.ndarray, "sequence query v_dim"]:
        """Return the exact output of this description: the mean over the wanted keys."""
        keys = self.wanted(block).astype(float)
        values = self.place_values[self.space.place_of(block)]
        return keys @ values / keys.sum(axis=2, keepdims=True)

    def __str__(self) -> str:
        return f"attend to {self.attend.text}"

    def _token_values(self) -> Float[np.ndarray, "token v_dim"]:
        """Return the value of each token."""
        if self.values is None:
            return np.eye(self.space.num_tokens, len(self.space.letters))
        names = self.space.token_names
        for name in self.values:
            if name not in names:
                raise InputError(
                    got=f"a value for {name!r}",
                    expected=f"values for {', '.join(names)}",
                    fix="Name one of these.",
                )
        if not self.values:
            raise InputError(
                got="no values",
                expected="a value for at least one token",
                fix="Omit values for one-hot ones.",
            )
        rows = {}
        try:
            for name, value in self.values.items():
                rows[name] = np.atleast_1d(np.array(value, dtype=float))
        except (TypeError, ValueError) as error:
            raise InputError(
                got=f"values {self.values!r}",
                expected="a number or a list of numbers for each token",
                fix="Pass numbers.",
            ) from error
        shapes = sorted({row.shape for row in rows.values()})
        finite = all(np.isfinite(row).all() for row in rows.values())
        if len(shapes) != 1 or len(shapes[0]) != 1 or not finite:
            raise InputError(
                got=f"values of shapes {shapes}",
                expected="finite numbers, equally many for every token",
                fix="Give every token a number, or lists of the same length.",
            )
        return np.stack([rows.get(name, np.zeros(shapes[0])) for name in names])


def everything() -> Selector:
    """Select every key: the output is the mean of all values."""

    def factors(space: SequenceSpace) -> Factors:
        query, key = np.zeros((2, space.num_tokens + space.num_positions, 1))
        return Factors(query, key)

    return _relation("everything", factors)


def same_token() -> Selector:
    """Select keys with the query's token, including the query's own place."""

    def factors(space: SequenceSpace) -> Factors:
        rows = np.eye(space.num_tokens + space.num_positions, space.num_tokens)
        return Factors(rows, rows)

    return _relation("the same token", factors)


def itself() -> Selector:
    """Select the query's own place."""
    return _by_positions("itself", lambda query, key: query == key)


def previous(distance: int = 1) -> Selector:
    """Select the place ``distance`` before the query's."""
    if distance < 1:
        raise InputError(
            got=f"distance = {distance}",
            expected="at least 1",
            fix="Use itself() for the query's own place.",
        )
    if distance == 1:
        name = "the previous place"
    else:
        name = f"the place {distance} before"
    return _by_positions(name, lambda query, key: query - key == distance)


def earlier() -> Selector:
    """Select all places before the query's."""
    return _by_positions("an earlier place", lambda query, key: key < query)


def later() -> Selector:
    """Select all places after the query's."""
    return _by_positions("a later place", lambda query, key: key > query)


def token(name: str) -> Selector:
    """Select keys with the token ``name``: a letter, or CLS."""

    def factors(space: SequenceSpace) -> Factors:
        if name not in space.token_names:
            raise InputError(
                got=f"the token {name!r}",
                expected=f"one of {', '.join(space.token_names)}",
                fix="Name one of these.",
            )
        return _from_any_query(space, space.token_names.index(name))

    return _relation(f"the token {name}", factors)


def at_position(index: int) -> Selector:
    """Select the place of letter number ``index``, from 0, CLS not counted."""
    if index < 0:
        raise InputError(
            got=f"index = {index}",
            expected="a position of at least 0",
            fix="Count letters from 0.",
        )

    def factors(space: SequenceSpace) -> Factors:
        if index >= space.max_len:
            raise InputError(
                got=f"position {index} of sequences of at most {space.max_len} letters",
                expected=f"a position below {space.max_len}",
                fix="Count letters from 0, or allow longer sequences.",
            )
        return _from_any_query(space, space.num_tokens + space.has_cls + index)

    return _relation(f"position {index}", factors)


def latest() -> Selector:
    """Select the last place of the sequence: the later a key, the higher its tier."""

    def factors(space: SequenceSpace) -> Factors:
        position_rows = slice(space.num_tokens, None)
        return _from_any_query(space, position_rows, np.arange(1, space.num_positions + 1))

    return _relation("the last place", factors)


def pair_scores(factors: Factors, space: SequenceSpace) -> Float[np.ndarray, "query key"]:
    """Return the scores of ``factors`` for every query place and key place of ``space``."""
    tokens, positions = space.places
    queries, keys = (side[tokens] + side[space.num_tokens + positions] for side in factors)
    return queries @ keys.T


def _relation(text: str, factors: Callable[[SequenceSpace], Factors]) -> Selector:
    """Return a selector whose tiers are its scores, which are integers."""

    def table(space: SequenceSpace) -> Table:
        factors_of_space = factors(space)
        scores = pair_scores(factors_of_space, space)
        return Table(scores.astype(np.int64), scores, factors_of_space)

    return Selector(text, table)


def _by_positions(text: str, holds: Callable[[Any, Any], Any]) -> Selector:
    """Return a selector of pairs of a query's and a key's position."""

    def factors(space: SequenceSpace) -> Factors:
        positions = np.arange(space.num_positions)
        no_token = np.zeros((space.num_tokens, space.num_positions))
        query = holds(positions[:, None], positions[None, :])
        return Factors(
            np.concatenate([no_token, query]),
            np.concatenate([no_token, np.eye(space.num_positions)]),
        )

    return _relation(text, factors)


def _from_any_query(space: SequenceSpace, key_rows: int | slice, scores: Any = 1) -> Factors:
    """Return a relation in which every query scores the keys of ``key_rows`` by ``scores``."""
    query, key = np.zeros((2, space.num_tokens + space.num_positions, 1))
    query[: space.num_tokens] = 1
    key[key_rows, 0] = scores
    return Factors(query, key)


def _sum(tiers: Any, first: Table, second: Table, weight: float) -> Table:
    """Return a table with the scores of ``first`` plus ``weight`` times those of ``second``."""
    query = np.concatenate([first.factors.query, weight * second.factors.query], axis=1)
    key = np.concatenate([first.factors.key, second.factors.key], axis=1)
    return Table(tiers.astype(np.int64), first.scores + weight * second.scores, Factors(query, key))


def _fallback_weight(space: SequenceSpace, first: Table, second: Table) -> float:
    """Return a factor that puts the fallback's keys between the other and the selected keys."""
    judged = slice(int(space.has_cls), None)
    selected = first.tiers[judged] > 0
    fallback = ~selected & (second.tiers[judged] > 0)
    rest = ~selected & ~fallback
    if not fallback.any():
        return 1.0
    scores = first.scores[judged]
    lowest = lambda keys: scores.min(axis=1, where=keys, initial=np.inf)  # noqa: E731
    highest = lambda keys: scores.max(axis=1, where=keys, initial=-np.inf)  # noqa: E731
    has_fallback = fallback.any(axis=1)
    most = float((lowest(selected) - highest(fallback))[has_fallback].min())
    least = float((highest(rest) - lowest(fallback))[has_fallback].max())
    if math.isinf(most):
        most = max(least, 0.0) + 2
    if math.isinf(least):
        least = most - 2
    return (least + most) / 2 / float(second.scores[judged][fallback].max())
