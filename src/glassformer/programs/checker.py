r"""Proofs that the weights of a transformer compute a program, for all sequences at once.

The checker reads the weights as they are and the program's definition. The compiler contributes
names only, *claims*: the selector that a head follows and the variables that it copies; the
variable that some units look up and the variables that they read. All numbers come from the
weights. A wrong claim makes the verdict undecided, never wrong.

The residual stream is described by a :class:`Form`: at each position, coordinate c is a constant,
plus a number for the value of each of some variables of the program there, plus an error of at most
``radius[c]``::

    x[c] = constant[c] + sum over V of tables[V][value of V, c] + error,    |error| <= radius[c]

1. **Embeddings** are tables of the token and of the index.
2. **Linear maps** map tables, constants and radii.
3. **A head** that claims a selector: its scores are sums of products of a query's and of a key's
   numbers, so of tables of pairs of values. Over all pairs, scores of selected keys lie in [lo, hi]
   and are ``gap`` ahead of all others, so the others have a weight of at most ``n exp(2 d - gap)``
   of that of one selected key, d being the error of a score. What it copies is written as a
   function of the copied variable: if selected values are all equal, or if it is linear in a
   number, the mean is that function of the aggregate. Any other part of it goes into the radius.
4. **Units** that claim a function read one number z, which is written as a sum of functions of the
   claimed parts. The sum that the units add is piecewise linear in z: over each interval that z can
   be in, the ends and the bends give its range. The ranges of all combinations of values with the
   same result are joined. Two units that are the negative of each other are linear.
5. **The output** is written as a function of the program. It is compared with the number of each
   value.

Sizes of rounding errors: a sum of n products is off by ``n u / (1 - n u)`` of the sum of their
sizes, for the unit roundoff u of the transformer's numbers, and once more for that of float64, in
which the checker computes. :mod:`~glassformer.programs.domains` lists the values that a variable
can have, from the definition alone. Sequences on which the definition has no value are left out.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from glassformer.errors import InputError
from glassformer.handcraft.bounds import FLOAT64_ROUNDOFF
from glassformer.processor_time import Budget
from glassformer.programs.domains import Domains
from glassformer.programs.graph import graph
from glassformer.programs.language import (
    Aggregate,
    Combined,
    Elementwise,
    Select,
    Selector,
    Value,
    Variable,
    Width,
    apply,
    indices,
    is_number,
    tokens,
    typed,
)

_MOST_PAIRS = 1 << 24
"""Largest number of pairs of a query's and a key's values in one group of conditions."""
_MOST_COMBINATIONS = 1 << 14
"""Largest number of combinations of the values of several variables."""
_NUMBERS_AT_ONCE = 1 << 21
"""Largest number of float64 numbers in one temporary array."""

_NOT_FINITE = "errors that are not finite"

Array = Float[np.ndarray, "..."]
Places = Int[np.ndarray, " combination"]


class Affine(NamedTuple):
    """A linear map and its bias."""

    weight: Float[np.ndarray, "output input"]
    bias: Float[np.ndarray, " output"]


class LayerWeights(NamedTuple):
    """A block without norms: attention, and a ReLU network if there is one."""

    num_heads: int
    query: Affine
    key: Affine
    value: Affine
    output: Affine
    sinks: Float[np.ndarray, " head"] | None
    up: Affine | None
    down: Affine | None


class Network(NamedTuple):
    """The weights of a transformer as float64, and its arithmetic."""

    embedding: Float[np.ndarray, "token hidden_dim"]
    positions: Float[np.ndarray, "position hidden_dim"]
    layers: Sequence[LayerWeights]
    output: Affine
    roundoff: float
    """Unit roundoff, such as ``2 ** -24`` for float32."""
    smallest: float
    """The smallest normal number."""
    largest: float


class HeadClaim(NamedTuple):
    """A head's selector, and the aggregate or width that each of its numbers stands for."""

    selector: Selector
    writes: tuple[Variable, ...]


class LookupClaim(NamedTuple):
    """Units ``first`` to ``last - 1`` look up a variable from parts that give its value."""

    variable: Variable
    parts: tuple[Variable, ...]
    first: int
    last: int


class LayerClaim(NamedTuple):
    """The claims about the heads and units of a layer."""

    heads: tuple[HeadClaim, ...]
    lookups: tuple[LookupClaim, ...]


class Undecided(Exception):
    """The reason why the weights are not proved to compute the program."""


class Checked(NamedTuple):
    """The bound: no output of any sequence is further than ``error`` from its value's number."""

    error: float
    reason: str = ""
    """The reason why there is no bound, if ``error`` is infinite."""


class Form(NamedTuple):
    """Some numbers at a position, as functions of variables; see the module.

    The table of a variable without a list of values has one row, its factor.
    """

    tables: dict[int, Float[np.ndarray, "value number"]]
    constant: Float[np.ndarray, " number"]
    radius: Float[np.ndarray, " number"]

    def at(self, columns: slice) -> Form:
        """Return some of the numbers."""
        tables = {key: table[:, columns] for key, table in self.tables.items()}
        return Form(
            tables=tables,
            constant=self.constant[columns],
            radius=self.radius[columns],
        )


class _Scores(NamedTuple):
    """Bounds on the scores of a head, over all queries."""

    low: float
    """The lowest score of a selected key."""
    high: float
    """The highest score of a selected key."""
    spread: float
    """The largest difference of two selected keys' scores, for one query."""
    gap: float
    """The smallest lead of a selected key over any other, for one query."""
    others: float
    """The highest score of a key that is not selected."""
    error: float
    """The largest rounding error of a score."""


def check(
    network: Network,
    domains: Domains,
    program: Variable,
    codes: Sequence[tuple[float, Value]] | None,
    claims: Sequence[LayerClaim],
    budget: Budget | None = None,
) -> Checked:
    """Bound the error of the output of all sequences.

    Args:
        network: The weights as they are.
        domains: Vocabulary, greatest length and direction.
        codes: The number that stands for each value; None if the output is the value.
        claims: The purpose of each layer's parts. Nothing in them is believed.
        budget: Processor time after which there is no bound; None for any time.
    """
    checker = _Checker(network, domains, program, budget or Budget(math.inf))
    try:
        with np.errstate(all="ignore"):
            error = checker.output(codes, claims)
    except (Undecided, InputError) as problem:
        return Checked(math.inf, getattr(problem, "got", str(problem)) or _NOT_FINITE)
    except Exception as problem:
        kind = type(problem).__name__
        reason = f"claims of another form, or too many parts on one another ({kind})"
        return Checked(math.inf, reason)
    if error < math.inf:
        return Checked(error)
    return Checked(math.inf, _NOT_FINITE)


def _up(radius: Array) -> Array:
    """Return a radius that its own rounding cannot have made too small."""
    return radius * (1 + 2**-30)


def _float64_rounding(size: Any, count: Any = 64) -> Any:
    """Return the rounding of ``count`` operations of this module on numbers of this size."""
    return (count + 16) * FLOAT64_ROUNDOFF * (1 + 2**-20) * size


def _absolute(value: Value) -> float:
    """Return the absolute value of a number, infinity for another value."""
    return abs(float(value)) if is_number(value) else math.inf


def _combined(tables: Iterable[Array], sizes: Sequence[int], last: tuple[int, ...] = ()) -> Array:
    """Return the sum of one function of each variable, for all combinations of their values.

    Args:
        tables: The n-th one is the function of the n-th variable.
        sizes: The number of values of each variable.
        last: Shape of a function's value.
    """
    total = np.zeros((*sizes, *last))
    for axis, table in enumerate(tables):
        shape = [1] * len(sizes)
        shape[axis] = -1
        total = total + table.reshape(*shape, *last)
    return total.reshape(-1, *last)


@dataclass(eq=False)
class _Checker:
    """The state of one proof.

    Attributes:
        variables: A variable for each key of :meth:`key`.
        places: The results of :meth:`place`, by its arguments.
        possible: The values of a variable that can occur, as far as is known.
    """

    network: Network
    domains: Domains
    program: Variable
    budget: Budget
    variables: dict[int, Variable] = field(default_factory=dict)
    places: dict[tuple[int, tuple[int, ...]], Places] = field(default_factory=dict)
    possible: dict[int, Bool[np.ndarray, " value"]] = field(default_factory=dict)

    def output(
        self, codes: Sequence[tuple[float, Value]] | None, claims: Sequence[LayerClaim]
    ) -> float:
        """Return the largest distance of the output from the number of a value."""
        self.parts = {node.part for node in graph(self.program)}
        stream = self.stream(claims)
        y = self.express(self.linear(stream, self.network.output), [self.program])
        key = self.key(self.program)
        values = self.values(key)
        table = y.tables.get(key)
        constant = float(y.constant[0])
        radius = float(y.radius[0] + _float64_rounding(self.size(y)[0]))
        if values is None:
            if codes is not None:
                raise Undecided("values without a list, read from a list")
            factor = 0.0 if table is None else float(table[0, 0])
            return radius + (abs(factor - 1) + 2**-50) * self.span(self.program) + abs(constant)
        if codes is None:
            numbers = {typed(value): float(value) for value in values if is_number(value)}
        else:
            numbers = {typed(value): number for number, value in codes}
        targets = np.array([numbers.get(typed(value), math.nan) for value in values])
        if table is None:
            outputs = np.full(len(values), constant)
        else:
            outputs = constant + table[:, 0]
        occurs = self.possible.get(key, np.ones(len(values), dtype=bool))
        error = float(
            np.where(occurs, np.abs(outputs - targets), 0).max()
            + radius
            + 2**-50 * np.abs(np.where(occurs, targets, 0)).max()
        )
        if math.isnan(error):
            raise Undecided("a value without a number")
        return error * (1 + 2**-30)

    def stream(self, claims: Sequence[LayerClaim]) -> Form:
        """Return the residual stream after the last layer."""
        network = self.network
        domains = self.domains
        max_len = domains.max_len
        if (
            len(network.embedding) != len(domains.vocabulary)
            or len(network.positions) < max_len
            or len(claims) != len(network.layers)
        ):
            raise Undecided("weights or claims of other sizes")
        rows = np.empty_like(network.embedding)
        rows[domains.places(tokens, domains.vocabulary)] = network.embedding
        zero = np.zeros(rows.shape[1])
        of_tokens = Form(
            tables={self.key(tokens): rows},
            constant=zero,
            radius=zero,
        )
        of_indices = Form(
            tables={self.key(indices): network.positions[:max_len]},
            constant=zero,
            radius=zero,
        )
        x = self.add(of_tokens, of_indices)
        for layer, claim in zip(network.layers, claims, strict=True):
            self.watch(x)
            x = self.attention(x, layer, claim.heads)
            self.watch(x)
            x = self.functions(x, layer, claim.lookups)
        self.watch(x)
        return x

    def watch(self, *forms: Form) -> None:
        """Raise :class:`Undecided` where numbers are too large, or time is over."""
        for form in forms:
            if not (self.size(form) < self.network.largest**0.5 / 1000).all():
                raise Undecided("errors that are too large")
        if self.budget.is_over():
            raise Undecided("the time was over")

    # ---- variables ----

    def key(self, part: Variable) -> int:
        """Return a number that is equal for variables that are the same."""
        key = self.domains.key(part)
        self.variables.setdefault(key, part)
        return key

    def known(self, part: Variable) -> None:
        """Raise :class:`Undecided` for an aggregate that is no part of the program.

        It might have no value where the program has one.
        """
        for node in graph(part):
            if isinstance(node.part, Aggregate) and node.part not in self.parts:
                raise Undecided(f"{node.part}, which is no part of the program")

    def values(self, key: int) -> tuple[Value, ...] | None:
        """Return the values of a variable; None if there are too many."""
        return self.domains.of(self.variables[key])

    def listed(self, keys: Sequence[int]) -> list[tuple[Value, ...]]:
        """Return the values of several variables; raise if there are too many."""
        return [self.domains.listed(self.variables[key]) for key in keys]

    def span(self, part: Variable) -> float:
        """Return the largest absolute value of a variable, infinite where it is no number."""
        listed = self.domains.of(part)
        if listed is not None:
            return max(map(_absolute, listed))
        if isinstance(part, Aggregate):
            if self.domains.reflexive(part.selector):
                default = 0.0
            else:
                default = _absolute(part.default)
            return max(self.span(part.values), default)
        if isinstance(part, Elementwise) and part.linear is not None:
            factors, constant = part.linear
            terms = (
                abs(float(f)) * self.span(source)
                for f, source in zip(factors, part.sources, strict=True)
            )
            return abs(float(constant)) + sum(terms)
        return math.inf

    def basis(self, part: Variable, known: Iterable[int]) -> list[int]:
        """Return the variables that a variable is a function of.

        They are variables of ``known``, or inputs of functions.
        """
        basis = dict[int, None]()
        seen = set[int]()
        waiting = [part]
        while waiting:
            variable = waiting.pop()
            key = self.key(variable)
            if key in known or not isinstance(variable, Elementwise):
                basis[key] = None
            elif key not in seen:
                waiting += variable.sources
            seen.add(key)
        return list(basis)

    def evaluate(self, part: Variable, known: dict[int, Value]) -> Value:
        """Return the value of a function, from the values of the variables that it reads."""
        key = self.key(part)
        if key not in known:
            if not isinstance(part, Elementwise):
                raise Undecided(f"{part}, which does not follow from what is read")
            known[key] = apply(part, [self.evaluate(source, known) for source in part.sources])
        return known[key]

    def place(self, part: Variable, basis: Sequence[int]) -> Places:
        """Return the index of a variable's value for each combination of the basis's values.

        The index is -1 for a combination that cannot occur.
        """
        request = (self.key(part), tuple(basis))
        value_sets = self.listed(basis)
        if request not in self.places:
            too_many = math.prod(map(len, value_sets)) > _MOST_COMBINATIONS
            if too_many and request[1] != (request[0],):
                raise Undecided(f"{part}, a function of too many combinations of values")
            self.places[request] = self.tabulate(part, basis, value_sets)
        occurs = np.ones(1, dtype=bool)
        for key, values in zip(basis, value_sets, strict=True):
            possible = self.possible.get(key, np.ones(len(values), dtype=bool))
            occurs = (occurs[:, None] & possible).ravel()
        return np.where(occurs, self.places[request], -1)

    def tabulate(
        self,
        part: Variable,
        basis: Sequence[int],
        value_sets: Sequence[tuple[Value, ...]],
    ) -> Places:
        """Return the index of a variable's value for each combination of the basis's values."""
        if not set(self.basis(part, basis)) <= set(basis):
            raise Undecided(f"{part}, which does not follow from what is read")
        rows = []
        for values in itertools.product(*value_sets):
            known = dict(zip(basis, values, strict=True))
            try:
                place = self.domains.place(part, self.evaluate(part, known))
            except InputError:
                place = None
            if place is None:
                # Where the program has a value, its parts have one.
                if part not in self.parts:
                    raise Undecided(f"{part}, which may have no value")
                place = -1
            rows.append(place)
        return np.array(rows, dtype=np.int64)

    # ---- forms ----

    def rounding(self, count: Any) -> Any:
        """Return the relative error of so many roundings, of the transformer and of the checker."""
        total = np.asarray(count * self.network.roundoff)
        of_network = np.where(
            total < 1,
            total / np.where(total < 1, 1 - total, 1),
            np.inf,
        )
        return of_network + _float64_rounding(1.0, count)

    def rounded(self, map: Affine, sizes: Array, executed: bool = True) -> Array:
        """Return the rounding errors of a linear map of numbers of these sizes.

        Args:
            executed: True if the transformer computes it, too; otherwise only the checker does.
        """
        size = np.abs(map.weight)
        tiny = self.network.smallest
        count = (map.weight != 0).sum(1) + (map.bias != 0) + 1
        terms = size @ sizes + np.abs(map.bias)
        if executed:
            relative = self.rounding(count)
        else:
            relative = _float64_rounding(1.0, count)
        off = relative * terms + count * tiny
        if executed:
            # Factors below ``tiny`` may be taken as 0. Products may overflow before they cancel.
            off += size @ np.minimum(sizes, tiny) + np.where(size < tiny, size, 0) @ sizes
            off[~(terms < self.network.largest / 4)] = np.inf
        return np.where(terms > 0, off, 0)

    def within(self, key: int, table: Array) -> tuple[Array, Array]:
        """Return the middle and half the range of the numbers that a table adds."""
        if self.values(key) is None:
            size = np.abs(table[0])
            span = np.where(
                size > 0,
                size * self.span(self.variables[key]),
                0,
            )
            return np.zeros_like(size), span
        low = table.min(0)
        high = table.max(0)
        middle = (low + high) / 2
        return middle, np.maximum(high - middle, middle - low)

    def size(self, form: Form) -> Array:
        """Return the largest absolute value of each number."""
        total = np.abs(form.constant) + form.radius
        for key, table in form.tables.items():
            middle, off = self.within(key, table)
            total = total + (np.abs(middle) + off)
        return _up(total)

    def linear(self, x: Form, map: Affine, executed: bool = True) -> Form:
        """Return a linear map of ``x``."""
        radius = np.abs(map.weight) @ x.radius + self.rounded(map, self.size(x), executed)
        tables = {key: table @ map.weight.T for key, table in x.tables.items()}
        return Form(
            tables=tables,
            constant=map.weight @ x.constant + map.bias,
            radius=_up(radius),
        )

    def add(self, x: Form, y: Form) -> Form:
        """Return a sum; zeros are added without rounding."""
        tables = dict(x.tables)
        for key, table in y.tables.items():
            tables[key] = tables[key] + table if key in tables else table
        sizes = self.size(x)
        other = self.size(y)
        rounding = np.where(
            (sizes > 0) & (other > 0),
            self.rounding(1) * (sizes + other),
            0,
        )
        return Form(
            tables=tables,
            constant=x.constant + y.constant,
            radius=_up(x.radius + y.radius + rounding),
        )

    def join(self, forms: Sequence[Form]) -> Form:
        """Return the numbers of several forms one after the other."""
        tables: dict[int, Array] = {}
        for key in dict.fromkeys(itertools.chain.from_iterable(form.tables for form in forms)):
            rows = len(self.values(key) or (0,))
            tables[key] = np.hstack(
                [form.tables.get(key, np.zeros((rows, len(form.constant)))) for form in forms]
            )
        constant = np.concatenate([form.constant for form in forms])
        radius = np.concatenate([form.radius for form in forms])
        return Form(
            tables=tables,
            constant=constant,
            radius=radius,
        )

    def express(self, form: Form, parts: Sequence[Variable]) -> Form:
        """Return the same numbers as sums of functions of ``parts``.

        Whatever else they depend on goes into the radius.
        """
        rest = dict(form.tables)
        expressed = dict[int, Array]()
        constant = form.constant
        radius = form.radius + _float64_rounding(self.size(form))
        bases = {self.key(part): self.basis(part, form.tables) for part in parts}
        uses = Counter(itertools.chain.from_iterable(bases.values()))
        alone = {key: all(uses[source] == 1 for source in basis) for key, basis in bases.items()}
        # First the parts that are read as sums of variables which others share.
        for key in sorted(bases, key=lambda key: (key in rest, alone[key])):
            basis = bases[key]
            few = self.few_combinations(key, basis)
            if key in rest:
                expressed[key] = rest.pop(key)
            elif alone[key] and few:
                expressed[key], off = self.tabulated(key, basis, rest, len(constant))
                radius = radius + off
            elif any(source in rest for source in basis):
                expressed[key], added, off = self.folded(key, rest, uses)
                constant = constant + added
                radius = radius + off
        for key, table in rest.items():
            middle, off = self.within(key, table)
            constant = constant + middle
            radius = radius + off
        return Form(
            tables=expressed,
            constant=constant,
            radius=_up(radius),
        )

    def few_combinations(self, key: int, basis: Sequence[int]) -> bool:
        """Return whether a variable and its basis have lists of values, with few combinations."""
        value_sets = [self.values(variable) for variable in (key, *basis)]
        listed = [values for values in value_sets if values is not None]
        if len(listed) < len(value_sets):
            return False
        return math.prod(map(len, listed[1:])) <= _MOST_COMBINATIONS

    def tabulated(
        self,
        key: int,
        basis: Sequence[int],
        rest: dict[int, Array],
        width: int,
    ) -> tuple[Array, Array]:
        """Return the tables of a basis as one table of its function, and the error of that.

        The tables are taken out of ``rest``.
        """
        sizes = [len(values) for values in self.listed(basis)]
        none = np.zeros((1, width))
        tables = [
            rest.pop(source, np.repeat(none, size, 0))
            for source, size in zip(basis, sizes, strict=True)
        ]
        total = _combined(tables, sizes, (width,))
        where = self.place(self.variables[key], basis)
        return self.hull(where, total, total, key)

    def hull(self, where: Places, low: Array, high: Array, key: int) -> tuple[Array, Array]:
        """Join the ranges of the rows that have the same value.

        Args:
            where: The index of each row's value, or -1.
            low: The lower end of each row's numbers.
            high: The upper end of each row's numbers.

        Returns:
            The middle of the joint range of each value, and half the largest joint range.
        """
        ends = np.full((2, len(self.listed([key])[0]), low.shape[1]), [[[np.inf]], [[-np.inf]]])
        rows = np.flatnonzero(where >= 0)
        if len(rows):
            rows = rows[np.argsort(where[rows], kind="stable")]
            present, first = np.unique(where[rows], return_index=True)
            ends[0][present] = np.minimum.reduceat(low[rows], first)
            ends[1][present] = np.maximum.reduceat(high[rows], first)
        # A value that no row has does not occur at any position.
        occurs = np.all(ends[0] <= ends[1], axis=1)
        self.possible[key] = occurs & self.possible.get(key, occurs)
        middle = np.where(
            occurs[:, None],
            (ends[0] + ends[1]) / 2,
            0,
        )
        off = np.where(
            occurs[:, None],
            np.maximum(ends[1] - middle, middle - ends[0]),
            0,
        )
        if np.isnan(low).any() or np.isnan(high).any():
            raise Undecided(_NOT_FINITE)
        return middle, _up(off.max(0))

    def folded(
        self,
        key: int,
        rest: dict[int, Array],
        uses: Counter[int],
    ) -> tuple[Array, Array, Array]:
        """Take multiples of a linear variable out of the tables of its summands, in ``rest``.

        Returns:
            The table of the variable, a constant, and the error.
        """
        part = self.variables[key]
        numbers, start, slack = self.summands(part, rest)
        widths: dict[int, float] = {}
        for source, column in numbers.items():
            if source in rest:
                if self.values(source) is None:
                    widths[source] = abs(float(column[0]))
                else:
                    widths[source] = float(np.ptp(column))
        # The factor is that of a variable which nothing else is read from, the one with the largest
        # range.
        lead = max(
            widths,
            key=lambda source: (widths[source] > 0, uses[source] == 1, widths[source]),
            default=-1,
        )
        if not widths.get(lead):
            raise Undecided(f"{part}, which is not read as a number")
        column = numbers[lead]
        factor = rest[lead][0] / numbers[lead][0]
        if self.values(lead) is not None:
            low = int(column.argmin())
            high = int(column.argmax())
            factor = (rest[lead][high] - rest[lead][low]) / (column[high] - column[low])
        off = slack * np.abs(factor)
        for source, column in numbers.items():
            taken = column[:, None] * factor
            rest.setdefault(source, np.zeros_like(taken))
            sizes = (
                np.add(*map(np.abs, self.within(source, table))) for table in (taken, rest[source])
            )
            off = off + _float64_rounding(sum(sizes))
            rest[source] = rest[source] - taken
        listed = self.values(key)
        if listed is None:
            values = [1.0]
        else:
            values = list(map(float, listed))
        table = np.array(values)[:, None] * factor
        error = off + _float64_rounding(np.abs(factor) * (self.span(part) + abs(start)))
        return table, -start * factor, error

    def summands(
        self, part: Variable, known: Iterable[int]
    ) -> tuple[dict[int, Array], float, float]:
        """Write a number as a sum of numbers of known variables, and a constant.

        Returns:
            The number for each value of each known variable, the constant, and the rounding.
        """
        columns = dict[int, Array]()
        total = Fraction(0)
        slack = 0.0
        waiting: dict[int, Fraction] = {self.key(part): Fraction(1)}
        for _ in range(_MOST_COMBINATIONS):
            if not waiting:
                return columns, float(total), slack + abs(float(total)) * 2**-50
            key, factor = waiting.popitem()
            variable = self.variables[key]
            listed = self.domains.of(variable)
            if key in known:
                basis = [key]
            else:
                basis = self.basis(variable, known)
            if listed is None and key in known:
                column = np.ones(1)
            elif len(basis) == 1 and listed is not None and all(map(is_number, listed)):
                where = self.place(variable, basis)
                numbers = np.array([float(value) for value in listed])
                column = numbers[np.where(where >= 0, where, where.max())]
            elif isinstance(variable, Elementwise) and variable.linear is not None:
                total += factor * variable.linear[1]
                for source, multiple in zip(variable.sources, variable.linear[0], strict=True):
                    inner = self.key(source)
                    waiting[inner] = waiting.get(inner, Fraction(0)) + factor * multiple
                continue
            else:
                raise Undecided(f"{variable}, which is not a sum of numbers in the stream")
            columns[basis[0]] = columns.get(basis[0], 0) + float(factor) * column
            slack += float(_float64_rounding(abs(float(factor)) * max(self.span(variable), 1.0)))
        raise Undecided(f"{part}, a sum of too many parts")

    # ---- attention ----

    def attention(self, x: Form, layer: LayerWeights, claims: Sequence[HeadClaim]) -> Form:
        """Return the stream after the attention of a layer."""
        q = self.linear(x, layer.query)
        k = self.linear(x, layer.key)
        v = self.linear(x, layer.value)
        self.watch(q, k, v)
        qk_dim = len(q.constant) // layer.num_heads
        v_dim = len(v.constant) // layer.num_heads
        slots = []
        for head in range(layer.num_heads):
            columns = slice(head * qk_dim, (head + 1) * qk_dim)
            first = head * v_dim
            writes: Sequence[Variable] = ()
            if head < len(claims):
                selector = claims[head].selector
                writes = claims[head].writes[:v_dim]
                scores = self.scores(q.at(columns), k.at(columns), selector)
                if layer.sinks is None:
                    sink = None
                else:
                    sink = float(layer.sinks[head])
            for number, part in enumerate(writes):
                column = v.at(slice(first + number, first + number + 1))
                slots.append(self.mean(part, column, scores, sink, selector))
            # Without a claim, a mean is within the largest of its values.
            left = self.size(v.at(slice(first + len(writes), first + v_dim)))
            more = 1 + self.rounding(2 * self.domains.max_len + 64)
            slots.append(
                Form(
                    tables={},
                    constant=np.zeros(len(left)),
                    radius=np.where(left > 0, left * more, 0),
                )
            )
            self.watch(x)
        return self.add(x, self.linear(self.join(slots), layer.output))

    def mean(
        self,
        part: Variable,
        v: Form,
        scores: _Scores,
        sink: float | None,
        selector: Selector,
    ) -> Form:
        """Return the output of a head that copies ``part``."""
        key_of = self.domains.key
        if not isinstance(part, Aggregate | Width) or key_of(part.selector) != key_of(selector):
            raise Undecided(f"{part}, with a selector other than its head's")
        self.known(part)
        n = self.domains.max_len
        error = scores.error
        size = float(self.size(v)[0])
        others = n * math.exp(min(2 * error - scores.gap, 700.0))
        count = np.arange(1, n + 1)
        least = count / (count + others)
        most = np.ones(n)
        nothing = size  # where nothing is selected; without a sink it may be any value
        if sink is not None:
            least = count / (count + others + np.exp(np.minimum(sink - scores.low + error, 700)))
            most = count / (count + np.exp(np.minimum(sink - scores.high - error, 700)))
            nothing = min(1.0, n * math.exp(min(scores.others + error - sink, 700.0))) * size
        width = self.network.embedding.shape[1] + len(v.constant)
        # With n keys both the weighted sum and the sum of weights are rounded n times.
        relative = float(self.rounding(2 * width + 2 * n + 64))
        rounded = relative * size + 64 * n * self.network.smallest
        if self.domains.reflexive(selector):
            unselected = None
        else:
            unselected = nothing + rounded
        if isinstance(part, Width):
            return self.width(part, v, least, most, others * size + rounded, unselected)
        off = (1 - float(least[0]) + others) * size + rounded
        v = self.express(v, [part.values])
        copied = self.key(part.values)
        values = self.domains.of(part.values)
        table = v.tables.get(copied)
        linear = 0.0
        if self.domains.averaged(part) or values is None or self.domains.of(part) is None:
            off += math.expm1(min(scores.spread + 2 * error, 700.0)) * 2 * size
            table, linear, more = self.fitted(copied, table)
            off += more
        return self.copied(part, v, table, linear, off, unselected)

    def fitted(self, key: int, table: Array | None) -> tuple[Array | None, float, float]:
        """Fit a table by a multiple of the values that are numbers.

        Returns:
            The table without that multiple, the factor, and the error.
        """
        values = self.values(key)
        if table is None:
            return None, 0.0, 0.0
        if values is None:
            return None, float(table[0, 0]), 0.0
        rows = [place for place, value in enumerate(values) if is_number(value)]
        if not rows:
            return table, 0.0, 0.0
        numbers = np.array([float(values[place]) for place in rows])
        left = table.copy()
        low = rows[int(numbers.argmin())]
        high = rows[int(numbers.argmax())]
        factor = float(table[high, 0] - table[low, 0]) / float(np.ptp(numbers) or 1.0)
        left[rows] -= numbers[:, None] * factor
        left[rows], off = self.within(key, left[rows])
        rounding = _float64_rounding(np.abs(table).max() + np.abs(numbers).max() * abs(factor))
        return left, factor, float(off[0] + rounding)

    def copied(
        self,
        part: Aggregate,
        v: Form,
        table: Array | None,
        linear: float,
        off: float,
        nothing: float | None,
    ) -> Form:
        """Return an aggregate of ``constant + table[value] + linear * value``.

        Args:
            off: The error of that sum.
            nothing: The largest size of the output where nothing is selected; None if some key
                always is.
        """
        listed = self.domains.of(part)
        constant = float(v.constant[0])
        off += float(v.radius[0])
        if listed is None:
            return self.copied_number(part, constant, table, linear, off, nothing)
        values = self.domains.of(part.values) or ()
        low = np.full((len(listed), 1), np.inf)
        high = np.full((len(listed), 1), -np.inf)
        row_of_value = {typed(value): row for row, value in enumerate(values)}
        # All numbers that are averaged have the same row.
        row_of_mean = None
        if self.domains.averaged(part):
            numbers = filter(is_number, values)
            row_of_mean = next((row_of_value[typed(number)] for number in numbers), None)
        for place, value in enumerate(listed):
            row = row_of_value.get(typed(value))
            if row is None and is_number(value):
                row = row_of_mean
            if row is not None:
                number = float(value) * linear if is_number(value) else 0.0
                added = float(table[row, 0]) if table is not None else 0.0
                middle = constant + number + added
                slack = off + float(
                    _float64_rounding(abs(constant) + 2 * abs(number) + abs(middle))
                )
                low[place] = middle - slack
                high[place] = middle + slack
            if nothing is not None and typed(value) == typed(part.default):
                low[place] = min(low[place, 0], -nothing)
                high[place] = max(high[place, 0], nothing)
        rows, radius = self.hull(
            np.arange(len(listed)),
            low,
            high,
            self.key(part),
        )
        return Form(
            tables={self.key(part): rows},
            constant=np.zeros(1),
            radius=radius,
        )

    def copied_number(
        self,
        part: Aggregate,
        constant: float,
        table: Array | None,
        linear: float,
        off: float,
        nothing: float | None,
    ) -> Form:
        """Return :meth:`copied` for an aggregate with too many values to be listed."""
        values = self.domains.of(part.values) or ()
        numeric_default = nothing is None or is_number(part.default)
        if not all(map(is_number, values)) or not numeric_default:
            raise Undecided(f"{part}, with too many values, some of them no numbers")
        first = 0.0
        spread = 0.0
        if table is not None:
            first = float(table.flat[0])
            spread = float(np.ptp(table))
        default = 0.0
        if nothing is not None:
            default = linear * float(part.default)
        slack = float(_float64_rounding(abs(constant) + abs(first) + abs(default)))
        off += spread + slack
        if nothing is not None:
            off = max(off, nothing + abs(constant + first + default) + slack)
        tables = {self.key(part): np.array([[linear]])}
        return Form(
            tables=tables,
            constant=np.array([constant + first]),
            radius=_up(np.array([off])),
        )

    def width(
        self,
        part: Width,
        v: Form,
        least: Array,
        most: Array,
        off: float,
        nothing: float | None,
    ) -> Form:
        """Return the share of the weight that w selected keys have.

        The values of all selected keys are in one range.
        """
        v = self.express(v, [])
        ends = [
            share * (v.constant + sign * v.radius)
            for share, sign in itertools.product((least, most), (-1, 1))
        ]
        low = np.append(np.inf, np.min(ends, 0) - off)
        high = np.append(-np.inf, np.max(ends, 0) + off)
        if nothing is not None:
            low[0] = -nothing
            high[0] = nothing
        key = self.key(part)
        rows = np.array(self.domains.listed(part))
        middle, more = self.hull(
            np.arange(len(rows)),
            low[rows][:, None],
            high[rows][:, None],
            key,
        )
        return Form(
            tables={key: middle},
            constant=np.zeros(1),
            radius=more,
        )

    # ---- scores ----

    def scores(self, q: Form, k: Form, selector: Selector) -> _Scores:
        """Bound the scores of selected keys and of others, over all pairs of values."""
        dim = len(q.constant)
        q = self.centred(q)
        k = self.centred(k)
        q_size = self.size(q)
        k_size = self.size(k)
        error = float(q.radius @ k_size + q_size @ k.radius) + dim * self.network.smallest
        error += float(self.rounding(dim + 24)) * float(q_size @ k_size)
        leaves = self.leaves(selector)
        of_queries = [self.basis(leaf.queries, q.tables) for leaf in leaves]
        of_keys = [self.basis(leaf.keys, k.tables) for leaf in leaves]
        queries = list(dict.fromkeys(itertools.chain.from_iterable(of_queries)))
        keys = list(dict.fromkeys(itertools.chain.from_iterable(of_keys)))
        terms: list[tuple[int | None, int | None, Array]] = []
        for query, query_table in (*q.tables.items(), (None, q.constant[None])):
            for key, key_table in (*k.tables.items(), (None, k.constant[None])):
                product = query_table @ key_table.T
                if (query in queries or query is None) and (key in keys or key is None):
                    terms.append((query, key, product))
                elif product.any():
                    # The selector does not depend on this product.
                    spans = [
                        self.span(self.variables[side])
                        for side in (query, key)
                        if side is not None and self.values(side) is None
                    ]
                    error += float(np.abs(product).max()) * math.prod(spans)
        low, high, others = self.ranges(selector, leaves, queries, keys, terms) * dim**-0.5
        some = low > -np.inf
        error = error * dim**-0.5
        highest = float(others.max())
        if not some.any():
            return _Scores(
                low=0.0,
                high=0.0,
                spread=0.0,
                gap=math.inf,
                others=highest,
                error=error,
            )
        spread = float((high - low)[some].max())
        gap = float((low - others)[some].min())
        return _Scores(
            low=float(low[some].min()),
            high=float(high[some].max()),
            spread=spread,
            gap=gap,
            others=highest,
            error=error,
        )

    def centred(self, form: Form) -> Form:
        """Return the form with tables around 0, so that constant tables vanish."""
        tables = {}
        constant = form.constant
        for key, table in form.tables.items():
            middle, _ = self.within(key, table)
            tables[key] = table - middle
            constant = constant + middle
        return Form(
            tables=tables,
            constant=constant,
            radius=form.radius + _float64_rounding(self.size(form)),
        )

    def leaves(self, part: Selector) -> list[Select]:
        """Return the selects that a selector combines, but not those that always hold."""
        waiting = [part]
        seen = dict[Selector, None]()
        while waiting:
            selector = waiting.pop()
            if selector not in seen:
                seen[selector] = None
                if isinstance(selector, Combined):
                    waiting += selector.parts
        selects = [selector for selector in seen if isinstance(selector, Select)]
        return [select for select in selects if not self.domains.table(select).all()]

    def ranges(
        self,
        selector: Selector,
        leaves: Sequence[Select],
        queries: Sequence[int],
        keys: Sequence[int],
        terms: Sequence[tuple[int | None, int | None, Array]],
    ) -> Float[np.ndarray, "three query"]:
        """Return bounds on the scores for each combination of a query's values.

        Returns:
            The least and the largest score of selected keys, both minus infinity if there are
            none, and the largest score of other keys.
        """
        query_sizes = [len(values) for values in self.listed(queries)]
        key_sizes = [len(values) for values in self.listed(keys)]
        rows = math.prod(query_sizes)
        columns = math.prod(key_sizes)
        if rows * columns > _MOST_PAIRS:
            raise Undecided("too many pairs of a query's and a key's values")
        query_grid = np.indices(query_sizes).reshape(len(query_sizes), rows)
        key_grid = np.indices(key_sizes).reshape(len(key_sizes), columns)
        query_places: dict[Select, Places] = {}
        key_places: dict[Select, Places] = {}
        query_occurs = np.ones(rows, dtype=bool)
        key_occurs = np.ones(columns, dtype=bool)
        for leaf in leaves:
            query_places[leaf] = self.on_grid(leaf.queries, queries, query_sizes, query_grid)
            key_places[leaf] = self.on_grid(leaf.keys, keys, key_sizes, key_grid)
            query_occurs &= query_places[leaf] >= 0
            key_occurs &= key_places[leaf] >= 0
        ends = np.empty((3, rows))
        step = max(1, _NUMBERS_AT_ONCE // columns)
        for start in range(0, rows, step):
            block = slice(start, start + step)
            known: dict[Selector, Bool[np.ndarray, "query key"]] = {}
            for leaf in leaves:
                table_rows = self.domains.table(leaf)[query_places[leaf][block]]
                known[leaf] = table_rows[:, key_places[leaf]]
            scores = np.zeros((len(ends[0, block]), columns))
            for query, key, table in terms:
                row: Any = [0] * len(scores)
                if query is not None:
                    row = query_grid[queries.index(query), block]
                column: Any = [0] * columns
                if key is not None:
                    column = key_grid[keys.index(key)]
                scores += table[row][:, column]
            selected = np.broadcast_to(self.holds(selector, known), scores.shape) & key_occurs
            ends[0, block] = np.where(selected, scores, np.inf).min(1)
            ends[1, block] = np.where(selected, scores, -np.inf).max(1)
            ends[2, block] = np.where(~selected & key_occurs, scores, -np.inf).max(1)
            self.watch()
        if not query_occurs.any():
            raise Undecided("queries without a value")
        ends[0] = np.where(
            ends[1] > -np.inf,
            ends[0],
            -np.inf,
        )
        return ends[:, query_occurs]

    def on_grid(
        self,
        part: Variable,
        known: Sequence[int],
        sizes: Sequence[int],
        grid: Int[np.ndarray, "variable combination"],
    ) -> Places:
        """Return the index of a variable's value for each combination of known variables' values.

        Args:
            sizes: The number of values of each known variable.
            grid: The index of each known variable's value, for each combination.
        """
        basis = self.basis(part, known)
        axes = [known.index(variable) for variable in basis]
        places = self.place(part, basis)
        if not axes:
            return np.repeat(places, grid.shape[1])
        shape = [sizes[axis] for axis in axes]
        return places[np.ravel_multi_index(tuple(grid[axes]), shape)]

    def holds(
        self, part: Selector, known: dict[Selector, Bool[np.ndarray, "..."]]
    ) -> Bool[np.ndarray, "..."]:
        """Return the pairs that a selector selects, from those of its selects."""
        if part not in known and isinstance(part, Combined):
            inner = [self.holds(selector, known).astype(np.intp) for selector in part.parts]
            corners = np.ndindex(*[2] * len(inner))
            truth = np.array([bool(part.function(*map(bool, bits))) for bits in corners])
            truth = truth.reshape([2] * len(inner))
            known[part] = truth[tuple(np.broadcast_arrays(*inner))]
        # A select that is not known always holds.
        return known.get(part, np.ones((1, 1), dtype=bool))

    # ---- functions ----

    def functions(self, x: Form, layer: LayerWeights, claims: Sequence[LookupClaim]) -> Form:
        """Return the stream after the ReLU network of a layer."""
        if layer.up is None or layer.down is None:
            return x
        up = layer.up
        down = layer.down
        hidden = self.linear(x, up)
        self.watch(hidden)
        active = self.size(hidden)
        off = self.rounded(up, self.size(x))
        added = self.rounded(down, active)
        claimed = np.zeros(len(up.bias), dtype=bool)
        additions = [
            Form(
                tables={},
                constant=down.bias,
                radius=np.zeros(len(down.bias)),
            )
        ]
        for claim in claims:
            units = slice(claim.first, claim.last)
            if claimed[units].any():
                raise Undecided("units with two claims")
            claimed[units] = True
            unit_up = Affine(up.weight[units], up.bias[units])
            unit_down = down.weight[:, units]
            additions.append(self.lookup(x, unit_up, off[units], unit_down, claim))
            self.watch(x)
        keep = np.eye(len(x.constant))
        linear = np.zeros(len(x.constant))
        sizes = self.size(x)
        terms = np.zeros(len(x.constant))
        pairs = 0
        waiting: dict[bytes, list[int]] = {}
        for unit in np.flatnonzero(~claimed & down.weight.any(0)).tolist():
            # Two units that are the negative of each other are linear together.
            whole = np.concatenate([up.weight[unit], up.bias[[unit]], down.weight[:, unit]]) + 0.0
            negatives = waiting.get((0.0 - whole).tobytes())
            if not negatives:
                waiting.setdefault(whole.tobytes(), []).append(unit)
                continue
            negatives.pop()
            keep += down.weight[:, [unit]] @ up.weight[[unit]]
            linear += down.weight[:, unit] * up.bias[unit]
            size = np.abs(up.weight[unit]) @ sizes + abs(up.bias[unit])
            terms += np.abs(down.weight[:, unit]) * size
            pairs += 1
            added = added + 2 * np.abs(down.weight[:, unit]) * off[unit]
        for unit in itertools.chain.from_iterable(waiting.values()):
            added = added + np.abs(down.weight[:, unit]) * active[unit]
        # Terms may cancel in ``keep`` and ``linear``.
        added = added + np.where(terms > 0, _float64_rounding(terms + sizes, pairs), 0)
        carried = self.linear(x, Affine(keep, linear), executed=False)
        total = reduce(self.add, additions)
        return self.add(
            carried,
            Form(
                tables=total.tables,
                constant=total.constant,
                radius=_up(total.radius + added),
            ),
        )

    def lookup(self, x: Form, up: Affine, off: Array, down: Array, claim: LookupClaim) -> Form:
        """Return what the units of a claim add to the stream.

        Args:
            up: The input weights of the units.
            off: The rounding of their inputs.
            down: The output weights of the units.
        """
        for part in (claim.variable, *claim.parts):
            self.known(part)
        if not len(up.bias):
            return Form(
                tables={},
                constant=np.zeros(len(down)),
                radius=np.zeros(len(down)),
            )
        # All units read multiples of one number, up to ``blur``.
        lead = up.weight[int(np.abs(up.weight).max(1).argmax())]
        column = int(np.abs(lead).argmax())
        factor = up.weight[:, column] / lead[column]
        blur = np.abs(down) @ (off + _up(np.abs(up.weight - factor[:, None] * lead) @ self.size(x)))
        read = self.linear(
            x,
            Affine(lead[None], np.zeros(1)),
            executed=False,
        )
        keys = self.independent(claim.parts, read)
        z = self.express(read, [self.variables[key] for key in keys])
        sizes = [len(values) for values in self.listed(keys)]
        if math.prod(sizes) > _MOST_COMBINATIONS:
            raise Undecided(f"{claim.variable}, a function of too many combinations of values")
        none = np.zeros((1, 1))
        tables = (
            z.tables.get(key, np.repeat(none, size, 0))
            for key, size in zip(keys, sizes, strict=True)
        )
        total = _combined(tables, sizes) + z.constant[0]
        where = self.place(claim.variable, keys)
        if not (where >= 0).any():
            raise Undecided(f"{claim.variable}, which has no value")
        error = float(z.radius[0] + _float64_rounding(np.abs(total).max()))
        low, high, slack = self.bends(total[where >= 0], error, factor, up.bias, down)
        key = self.key(claim.variable)
        middle, radius = self.hull(where[where >= 0], low, high, key)
        return Form(
            tables={key: middle},
            constant=np.zeros(len(down)),
            radius=_up(radius + blur + slack),
        )

    def independent(self, parts: Sequence[Variable], read: Form) -> list[int]:
        """Return the keys of parts, but not of those that follow from others."""
        keys = list(dict.fromkeys(map(self.key, parts)))
        for key in list(keys):
            others = [other for other in keys if other != key]
            if (
                key not in read.tables
                and others
                and set(self.basis(self.variables[key], read.tables)) <= set(others)
            ):
                keys = others
        return keys

    def bends(
        self,
        points: Array,
        error: float,
        factor: Array,
        bias: Array,
        down: Array,
    ) -> tuple[Array, Array, Array]:
        """Return the range of ``down @ relu(factor * z + bias)`` for z around each point.

        The function is piecewise linear: its extremes are at the ends of the interval, or where a
        unit bends within it.

        Returns:
            The lower ends, the upper ends, and the rounding.
        """

        def outputs_at(z: Array) -> Array:
            outputs = np.empty((len(z), len(down)))
            step = max(1, _NUMBERS_AT_ONCE // len(bias))
            for start in range(0, len(z), step):
                block = slice(start, start + step)
                outputs[block] = np.maximum(z[block, None] * factor + bias, 0) @ down.T
                self.watch()
            return outputs

        ends = outputs_at(points - error), outputs_at(points + error), outputs_at(points)
        low = np.minimum.reduce(ends)
        high = np.maximum.reduce(ends)
        bent = np.sort(-bias[factor != 0] / factor[factor != 0])
        first = np.searchsorted(bent, points - error)
        last = np.searchsorted(bent, points + error, "right")
        inside = np.flatnonzero(first < last)
        values = outputs_at(bent) if len(inside) else bent
        for row in inside.tolist():
            between = values[first[row] : last[row]]
            low[row] = np.minimum(low[row], between.min(0))
            high[row] = np.maximum(high[row], between.max(0))
        largest = np.abs(factor) * (np.abs(points).max() + error) + np.abs(bias)
        return low, high, _float64_rounding(np.abs(down) @ largest, len(bias))
