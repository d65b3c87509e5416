r"""Weights from a description instead of from numbers.

A :class:`~glassformer.handcraft.selectors.Selector` is a weighted sum of relations, each given by two matrices. Side by
side they are the columns of Qm and Km, so that one score is the sum. A factor on Qm, the *sharpness*, turns the gaps
between tiers into margins: with n keys, values that differ by at most D and a smallest gap g, an error of at most e
takes

    sharpness = ln((n - 1) D / e) / g

since the leakage is below ``(n - 1) exp(-g sharpness)`` (:mod:`glassformer.handcraft.bounds`).

What one head without an MLP cannot do:

- *Tell keys apart by an exclusive or.* Scores add up: for any two queries and two keys of tokens and positions,
  ``score(token, position)`` is a sum of a part for each. So "the same letter or the place before, but not both" cannot
  be built, and :func:`build` says so.
- *Follow a pointer.* What a key has to offer is fixed by its own token and position. "The letter that came after my
  last occurrence" (induction) needs the key to know its predecessor, and that takes a layer before this one.
- *Read a parity* of two letters in sequences of three or more. See :func:`glassformer.handcraft.tasks.parity` for the
  proof. The verifier refutes every attempt:

      verify(head, parity())    # fails on a sequence of at most three letters, whatever the weights

- *Count* without positions and CLS: weights add up to 1, so "A" and "AA" give one output. Shares can be read, numbers
  cannot. A CLS mends that: as one more key, always there, it turns numbers into shares.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from glassformer.errors import InputError, require
from glassformer.handcraft.bounds import PlaceTables, bound_of_pairs, tier_cases
from glassformer.handcraft.description import Description
from glassformer.handcraft.single_head import HeadWeights
from glassformer.handcraft.tasks import Task

_ROUNDOFF = float(np.finfo(np.float64).eps) / 2
_SAME = 1e-9


@dataclass(frozen=True, eq=False)
class Design:
    """A head that was made from a description.

    Attributes:
        weights: Its matrices.
        description: What it was made from.
        sharpness: The factor on its scores.
        margin: Smallest distance of a wanted score from an unwanted one, over every sequence.
        bound: No output of any sequence is further from the description's, in float64.
    """

    weights: HeadWeights
    description: Description
    sharpness: float
    margin: float
    bound: float


def build(description: Description, largest_error: float = 1e-9) -> Design:
    """The weights of a head that does what ``description`` says, to within ``largest_error``, on every sequence.

    Tokens are one-hot and so are positions; a head whose description mentions no position has none, and takes sequences
    of any length. The sharpness is what ``largest_error`` needs, rounded up to a whole number.

    Args:
        description: What to attend to, and what it is worth.
        largest_error: The largest error of any output that is allowed, in the units of the values.

    Raises:
        InputError: ``largest_error`` is not above 0, or so small that rounding alone exceeds it; or no sum of the
            description's relations orders the keys as it asks, with a pair of keys that shows it.
    """
    require(
        largest_error > 0 and math.isfinite(largest_error),
        f"largest_error = {largest_error}",
        "a number above 0",
        "Pass 1e-9, for example.",
    )
    sharpness = needed_sharpness(description, largest_error)
    weights = _weights(description, sharpness)
    bound = bound_of_pairs(PlaceTables.of(weights, description.space, _ROUNDOFF), description)
    require(
        bound.error <= largest_error,
        f"largest_error = {largest_error}",
        f"at least {bound.error:.2g}, which rounding in float64 comes to here",
        "Allow a larger error.",
    )
    return Design(weights, description, sharpness, bound.margin, bound.error)


def design(task: Task, largest_error: float = 1e-9) -> Design:
    """The head that solves ``task`` as its description says.

    Raises:
        InputError: The task has no description, or :func:`build` refuses it.
    """
    if task.description is None:
        raise InputError(
            f"the task {task.name!r}, which has no description",
            "a task that says what a head is to attend to",
            "Write a Description for it, if one head can do it at all, and call build().",
        )
    return build(task.description, largest_error)


def needed_sharpness(description: Description, largest_error: float) -> float:
    """The sharpness that keeps every error at or below ``largest_error``: a whole number of at least 1.

    Raises:
        InputError: The description's scores do not order the keys as its tiers do.
    """
    gap = _smallest_gap(description)
    values = description.place_values
    difference = float((values.max(axis=0) - values.min(axis=0)).max())
    others = description.space.num_positions - 1
    if math.isinf(gap) or difference == 0 or others == 0:
        return 1.0
    # Half of the error is left to rounding.
    return float(max(1, math.ceil((math.log(2 * others * difference) - math.log(largest_error)) / gap)))


def _smallest_gap(description: Description) -> float:
    space, table = description.space, description.table
    gap = math.inf
    for case in tier_cases(space, table.tiers, table.scores):
        if (case.spread > _SAME).any() or (case.margin < _SAME).any():
            query = int(case.queries[((case.spread > _SAME) | (case.margin < _SAME)).argmax()])
            raise InputError(
                f"{description}, for which the query {_name(description, query)} cannot score its keys",
                "relations whose sum is the same for all keys that are wanted alike, and lower for all others",
                "One head adds its relations up. Say it with fewer of them, or use two heads.",
            )
        gap = min(gap, float(case.margin.min()))
    return gap


def _name(description: Description, place: int) -> str:
    tokens, positions = description.space.places
    return f"{description.space.token_names[tokens[place]]} at position {positions[place] - description.space.has_cls}"


def _weights(description: Description, sharpness: float) -> HeadWeights:
    space, terms = description.space, description.table.terms
    columns = sum(term.factors.query.shape[1] for term in terms)
    scale = sharpness * math.sqrt(columns)
    query = np.concatenate([scale * term.coefficient * term.factors.query for term in terms], axis=1)
    query += 0.0  # turns -0 into 0
    key = np.concatenate([term.factors.key for term in terms], axis=1)
    values = description.value_rows
    tokens = slice(space.num_tokens)
    if not any(matrix[space.num_tokens :].any() for matrix in (query, key, values)):
        return HeadWeights(key[tokens], query[tokens], values[tokens])
    return HeadWeights(key, query, values, np.eye(space.num_positions))
