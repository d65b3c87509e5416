r"""How far the numbers of a compiled program can be from what they stand for, on any sequence.

Errors are followed from the embedding to the output, variable by variable, as the plan says what is stored where:

1. A sum of stored numbers is off by the sum of their errors, each times its factor, and by rounding.
2. A head's scores are off by ``d`` at most, which follows from the errors of its features. Selected keys have the cost
   0, others at least 1, so the weight of all others together is at most ``n exp(2 d - SHARPNESS)`` of that of one
   selected key; a sink's, or that of all keys where none is selected, is ``n exp(d - SHARPNESS / 2)``. Weights of
   selected keys differ by the factor ``exp(2 d)`` at most, which matters where different values are averaged. Its
   output is off by these shares of the range of its values, and by the values' own error.
3. A function's sum has to be nearer than a quarter of the gap to its point at every step; the result is then off by
   rounding alone. Otherwise there is no bound.
4. An erased coordinate leaves nothing but rounding behind, whatever its error is.

Rounding, with unit roundoff u, width h of the stream, heads of width d and n positions, in terms of
:func:`~glassformer.handcraft.bounds.gamma`: ``gamma(2 h + d + 24)`` of the sum of the sizes of all products for a
score, ``gamma(2 (h + d) + n + 64)`` for what a head adds, ``gamma(h + units + 64)`` for what a network adds.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

import numpy as np

from glassformer.handcraft.bounds import gamma
from glassformer.handcraft.programs.compiler import SHARPNESS, Head, Lookup, Plan, Stored, Sum


@dataclass(frozen=True)
class ErrorBound:
    """The largest error of the output, infinite where a function has none, and then which."""

    error: float
    reason: str | None = None
    largest: float = math.inf
    """The largest error in the stream."""


@dataclass(frozen=True)
class Losses:
    """What parts that approximate the compiler's add to errors.

    Attributes:
        scale: Relative error of all that is read at one position of the stream, the same for constants. It changes
            no score of 0 and no sign of a gate.
        turn: Most radians by which a query turns against a key, each of whose features is in a pair of its own.
        slope: Of the gate g in ``silu(slope g) / slope``, which stands for ``relu(g)``.
    """

    scale: float = 0.0
    turn: float = 0.0
    slope: float = math.inf

    def of_relu(self, distance: float) -> float:
        """Largest ``|silu(slope g) / slope - relu(g)| = |g| / (1 + exp(slope |g|))`` with ``|g| >= distance``."""
        near = max(distance, 1.2785 / self.slope)  # where it is largest
        return near * math.exp(-min(self.slope * near, 700.0)) if math.isfinite(self.slope) else 0.0


EXACT = Losses()


@dataclass
class _Errors:
    """Errors and sizes of what is stored, for a plan whose variables have their places."""

    plan: Plan
    width: int
    roundoff: float
    num_layers: int
    losses: Losses
    errors: dict[Stored, list[float]] = field(default_factory=dict)
    left: dict[int, float] = field(default_factory=dict)  # by coordinate: what was erased from it leaves this

    def rounding(self, count: int) -> float:
        return gamma(count, self.roundoff)

    def keep(self, stored: Stored, errors: list[float]) -> None:
        """Errors of a variable's coordinates; later additions to the stream round it again."""
        sizes = [size_of(stored, feature) for feature in range(len(stored.features))]
        # A sum with other parts of the stream rounds each coordinate by itself.
        again = self.rounding(2 * self.num_layers + 2)
        self.errors[stored] = [
            error + self.left.get(place, 0.0) + again * (size + error)
            for place, error, size in zip(stored.place, errors, sizes, strict=True)
        ]
        for place, error, size in zip(stored.place, self.errors[stored], sizes, strict=True):
            self.left[place] = self.rounding(64) * 2 * (size + error)

    def of(self, total: Sum) -> tuple[float, float]:
        """The error of a sum, and the sizes of its terms together."""
        error, size = 0.0, abs(total.constant)
        for stored, wanted in total.terms:
            if isinstance(wanted, np.ndarray):
                found = stored.solve(wanted)
                assert found is not None
                factors, constant = found
                size += abs(constant)
            else:
                factors = np.array([wanted])
            for place, factor in enumerate(factors):
                error += abs(float(factor)) * self.errors[stored][place]
                size += abs(float(factor)) * (size_of(stored, place) + self.errors[stored][place])
        return error, size


def error_bound(
    plan: Plan, output: Sum, width: int, num_layers: int, roundoff: float, losses: Losses = EXACT
) -> ErrorBound:
    """Follow errors through a plan.

    Args:
        plan: Whose variables have their places in the stream.
        output: What the output reads.
        width: Of the residual stream.
        num_layers: Blocks.
        roundoff: Unit roundoff of the arithmetic, such as ``2 ** -24`` for float32.
        losses: Of a transformer whose parts only approximate the compiler's.
    """
    state = _Errors(plan, width, roundoff, num_layers, losses)
    writers = {stored: head for head in plan.heads.values() for stored in head.writes}
    lookups = {each.stored: each for each in plan.lookups.values()}
    for stored in sorted(plan.stored.values(), key=lambda each: each.born):
        if stored in writers:
            state.keep(stored, _attended(state, writers[stored], stored))
        elif stored in lookups:
            errors = _looked_up(state, lookups[stored])
            if errors is None:
                return ErrorBound(math.inf, f"the sum that {stored.name} is looked up from")
            state.keep(stored, errors)
        else:
            state.keep(stored, [roundoff * size_of(stored, place) for place in range(len(stored.features))])
    error, size = state.of(output)
    largest = max((each for errors in state.errors.values() for each in errors), default=0.0)
    return ErrorBound(error + state.rounding(width + 8) * size, largest=largest)


def size_of(stored: Stored, place: int) -> float:
    """The largest absolute value of a coordinate of a variable."""
    if stored.free:
        return float(np.abs(stored.features[place]).max())
    return max(map(abs, stored.span))


def _attended(state: _Errors, head: Head, stored: Stored) -> list[float]:
    n = state.plan.domains.max_len
    off = products = 0.0
    for query, key in zip(head.queries, head.keys, strict=True):
        q_error, q_size = state.of(query)
        k_error, k_size = state.of(key)
        off += q_error * (k_size + k_error) + k_error * q_size
        products += (q_size + q_error) * (k_size + k_error)
    size = len(head.queries)
    losses = state.losses
    off += losses.turn**2 / 2 * products + 2 * losses.scale
    off = SHARPNESS * (off + state.rounding(2 * state.width + size + 24) * products)
    if off > SHARPNESS / 8:
        return [math.inf] * len(stored.origins)
    share = n * math.exp(2 * off - SHARPNESS)
    if not stored.free:  # otherwise all selected values are the same
        share += math.expm1(2 * off)
    if head.sink is not None and head.sink < 0:
        share += 2 * n * math.exp(off - SHARPNESS / 2)
    found = []
    for origin in stored.origins:
        error, terms = state.of(origin)
        span = max(origin.span[1], 0.0) - min(origin.span[0], 0.0)
        adds = state.rounding(2 * (state.width + size) + n + 64) * (terms + error)
        adds += losses.scale * (max(map(abs, origin.span)) + error)
        found.append(share * (span + 2 * error) + error + adds)
    return found


def _looked_up(state: _Errors, lookup: Lookup) -> list[float] | None:
    stored, domain = lookup.stored, lookup.stored.domain
    assert domain is not None
    error, size = state.of(lookup.sum)
    error += state.rounding(state.width + 8) * size
    place = {value: index for index, value in enumerate(domain)}
    columns = np.column_stack(stored.features) if stored.features else np.zeros((len(domain), 0))
    points = lookup.points
    reach = max(abs(points[0][0]), abs(points[-1][0])) + error
    found = np.abs(columns[place[points[0][1]]]) * state.roundoff
    found = found + 2 * state.losses.scale * np.ptp(columns, axis=0)
    units = 2 * len(points)
    for (low, before), (high, after) in itertools.pairwise(points):
        change = np.abs(columns[place[after]] - columns[place[before]])
        if change.any():
            if error > (high - low) / 4:
                return None
            found = found + change * state.rounding(state.width + units + 64) * (4 * reach / (high - low) + 4)
            # Both units of a step bend a quarter of the gap, which is 1/2 for them, and more from all points.
            found = found + 2 * change * state.losses.of_relu(0.5 - 2 * error / (high - low))
    return list(found.tolist())
