r"""Designs of heads: weights that are built from a description.

A :class:`~glassformer.handcraft.description.Selector` is a weighted sum of relations, each given by
two matrices. Their columns, concatenated, are those of Qm and Km, so that the score is the sum. A
factor on Qm, the *sharpness*, turns the gaps between tiers into margins: with n keys, values that
differ by at most D and a smallest gap g, an error of at most e needs ``ln((n - 1) D / e) / g``,
since the leakage is below ``(n - 1) exp(-g sharpness)`` (:mod:`glassformer.handcraft.bounds`).
docs/concepts/heads.md lists what a single head cannot do.
"""

import math
from dataclasses import dataclass

import numpy as np

from glassformer.errors import InputError, require_above_zero
from glassformer.handcraft.bounds import FLOAT64_ROUNDOFF, PlaceTables, bound_of_pairs, tier_cases
from glassformer.handcraft.description import Description
from glassformer.handcraft.single_head import HeadWeights
from glassformer.handcraft.tasks import TASKS, Task

_SAME = 1e-9


@dataclass(frozen=True, eq=False)
class Design:
    """A head built from a description.

    Attributes:
        sharpness: The factor on its scores.
        margin: Smallest lead of a wanted score over an unwanted one, over every sequence.
        bound: Upper bound on the error of any output of any sequence, in float64.
    """

    weights: HeadWeights
    description: Description
    sharpness: float
    margin: float
    bound: float


def build(description: Description, largest_error: float = 1e-9) -> Design:
    """Build a head that computes a description on every sequence, within ``largest_error``.

    Tokens and positions are one-hot. If the description mentions no position, the head has none and
    takes sequences of any length. The sharpness is the smallest integer that gives
    ``largest_error``, in the units of the values.
    """
    require_above_zero(largest_error=largest_error)
    sharpness = needed_sharpness(description, largest_error)
    space = description.space
    query, key = description.table.factors
    values = description.value_rows
    tokens = slice(space.num_tokens)
    query = sharpness * math.sqrt(key.shape[1]) * query + 0.0  # turns -0 into 0
    weights = HeadWeights(key, query, values, np.eye(space.num_positions))
    if not any(matrix[space.num_tokens :].any() for matrix in (query, key, values)):
        weights = HeadWeights(key[tokens], query[tokens], values[tokens])
    bound = bound_of_pairs(PlaceTables.of(weights, space, FLOAT64_ROUNDOFF), description)
    if not (bound.error <= largest_error):
        raise InputError(
            got=f"largest_error = {largest_error}",
            expected=f"at least {bound.error:.2g}, the rounding error in float64",
            fix="Allow a larger error.",
        )
    return Design(weights, description, sharpness, bound.margin, bound.error)


def design(task: Task, largest_error: float = 1e-9) -> Design:
    """Build the head that solves ``task`` by its description."""
    if task.description is None:
        raise InputError(
            got=f"the task {task.name!r}, which has no description",
            expected="a task with a description",
            fix="Write a Description for it, if a single head can do it, and call build().",
        )
    return build(task.description, largest_error)


def needed_sharpness(description: Description, largest_error: float) -> float:
    """Return the least integer of at least 1 that keeps every error within ``largest_error``."""
    space = description.space
    table = description.table
    gap = math.inf
    for case in tier_cases(space, table.tiers, table.scores):
        unordered = case.queries[(case.spread > _SAME) | (case.margin < _SAME)]
        if len(unordered):
            query = int(unordered[0])
            tokens, positions = space.places
            letter = space.token_names[tokens[query]]
            name = f"{letter} at position {positions[query] - space.has_cls}"
            raise InputError(
                got=f"{description}, for which the query {name} cannot score its keys",
                expected=(
                    "relations whose sum is equal for all keys of a tier, and lower for lower tiers"
                ),
                fix="A single head adds its relations. Use fewer of them, or two heads.",
            )
        gap = min(gap, float(case.margin.min()))
    values = description.place_values
    difference = float((values.max(axis=0) - values.min(axis=0)).max())
    others = space.num_positions - 1
    if math.isinf(gap) or difference == 0 or others == 0:
        return 1.0
    # Half of the error is reserved for rounding.
    needed = (math.log(2 * others * difference) - math.log(largest_error)) / gap
    return float(max(1, math.ceil(needed)))


def designable() -> list[str]:
    """Return the names of the built-in tasks that a single head can do."""
    return [name for name, make in TASKS.items() if make().description is not None]
