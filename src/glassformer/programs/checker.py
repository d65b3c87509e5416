r"""Whether the weights of a transformer compute a program, for all sequences at once: what a
certificate rests on.

The checker reads the weights as they are and the program's definition. Of the compiler it takes
names alone, *claims*: which selector a head follows and which variables it copies, and which
variable some units look up, from which others. No number is taken from anywhere but the weights; a
wrong claim makes the verdict undecided, never wrong.

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
   number, the mean is that function of the aggregate. Whatever it is apart from that goes into the
   radius.
4. **Units** that claim a function read one number z, which is written as a sum of functions of the
claimed parts. What
   the units add is piecewise linear in z: over each interval that z can be in, the ends and the
   bends give its range. The ranges of all combinations of values with the same result are joined.
   Two units that are the negative of each other are linear.
5. **The output** is written as a function of the program. It is compared with the number of each
value.

Sizes of rounding errors: a sum of n products is off by ``n u / (1 - n u)`` of the sum of their
sizes, for the unit roundoff u of the transformer's numbers, and once more for that of float64, in
which the checker computes. Which values a variable can have is told by
:mod:`~glassformer.programs.domains`, from the definition alone. Sequences on which the definition
has no value are left out.
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
"""Of a query's and a key's values, in one group of conditions."""
_MOST_COMBINATIONS = 1 << 14
"""Of values of several variables."""
_NUMBERS_AT_ONCE = 1 << 21

Array = Float[np.ndarray, "..."]
Places = Int[np.ndarray, " combination"]


class Affine(NamedTuple):
    """A linear map and what is added to it."""

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
    """That a head follows a selector, and of which aggregate or width each of its numbers is."""

    selector: Selector
    writes: tuple[Variable, ...]


class LookupClaim(NamedTuple):
    """That units from ``first`` to ``last - 1`` look up a variable from parts that give its value."""

    variable: Variable
    parts: tuple[Variable, ...]
    first: int
    last: int


class LayerClaim(NamedTuple):
    """What heads and units of a layer are for."""

    heads: tuple[HeadClaim, ...]
    lookups: tuple[LookupClaim, ...]


class Undecided(Exception):
    """Why the weights are not seen to compute the program."""


class Checked(NamedTuple):
    """What was found: no output of any sequence is further than ``error`` from the number of its
    value.
    """

    error: float
    reason: str = ""
    """Why there is no bound, if ``error`` is infinite."""


class Form(NamedTuple):
    """What some numbers are at a position, see above. A variable without a list of values has one
    row, its factor.
    """

    tables: dict[int, Float[np.ndarray, "value number"]]
    constant: Float[np.ndarray, " number"]
    radius: Float[np.ndarray, " number"]

    def at(self, chosen: slice) -> Form:
        """Some of the numbers."""
        tables = {key: table[:, chosen] for key, table in self.tables.items()}
        return Form(tables, self.constant[chosen], self.radius[chosen])


class _Scores(NamedTuple):
    """Of all queries: bounds on the scores of selected keys, their difference, and those of others."""

    low: float
    high: float
    spread: float
    gap: float
    others: float
    error: float


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
        claims: For each layer what its parts are for. Nothing in them is believed.
        budget: Processor time after which there is no bound; None: any.
    """
    try:
        with np.errstate(all="ignore"):
            error = _Checker(network, domains, program, budget or Budget(math.inf)).output(
                codes, claims
            )
            reason = ""
    except (Undecided, InputError) as problem:
        error = math.inf
        reason = getattr(problem, "got", str(problem))
    except Exception as problem:
        reason = (
            f"claims of another form, or too many parts on one another ({type(problem).__name__})"
        )
        error = math.inf
    if error < math.inf:
        return Checked(error, reason)
    return Checked(math.inf, reason or "errors that are not finite")


def _up(radius: Array) -> Array:
    """More than rounding of its own computation takes from a sum of sizes."""
    return radius * (1 + 2**-30)


def _own(size: Any, count: Any = 64) -> Any:
    """The rounding of ``count`` operations of this module on numbers of this size."""
    return (count + 16) * FLOAT64_ROUNDOFF * (1 + 2**-20) * size


def _combined(tables: Iterable[Array], sizes: Sequence[int], last: tuple[int, ...] = ()) -> Array:
    """The sum of functions of several variables, the n-th of the n-th variable, for all
    combinations of values.
    """
    total = np.zeros((*sizes, *last))
    for axis, table in enumerate(tables):
        total = total + table.reshape(
            *(-1 if axis == each else 1 for each in range(len(sizes))), *last
        )
    return total.reshape(-1, *last)


@dataclass(eq=False)
class _Checker:
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
        """The largest distance of the output from the number of a value."""
        self.parts = {node.part for node in graph(self.program)}
        y = self.express(self.linear(self.stream(claims), self.network.output), [self.program])
        key = self.key(self.program)
        values = self.values(key)
        table = y.tables.get(key)
        constant = float(y.constant[0])
        radius = float(y.radius[0] + _own(self.size(y)[0]))
        if values is None:
            if codes is not None:
                raise Undecided("values without a list, read from a list")
            factor = 0.0 if table is None else float(table[0, 0])
            return radius + (abs(factor - 1) + 2**-50) * self.span(self.program) + abs(constant)
        numbers = {typed(value): float(value) for value in values if is_number(value)}
        if codes is not None:
            numbers = {typed(value): number for number, value in codes}
        wanted = np.array([numbers.get(typed(value), math.nan) for value in values])
        if table is None:
            found = np.full(len(values), constant)
        else:
            found = constant + table[:, 0]
        able = self.possible.get(key, np.ones(len(values), dtype=bool))
        error = float(
            np.where(able, np.abs(found - wanted), 0).max()
            + radius
            + 2**-50 * np.abs(np.where(able, wanted, 0)).max()
        )
        if math.isnan(error):
            raise Undecided("a value without a number")
        return error * (1 + 2**-30)

    def stream(self, claims: Sequence[LayerClaim]) -> Form:
        """What the residual stream holds in the end."""
        network = self.network
        domains = self.domains
        most = self.domains.max_len
        fits = len(network.embedding) == len(domains.vocabulary) and len(network.positions) >= most
        if not fits or len(claims) != len(network.layers):
            raise Undecided("weights or claims of other sizes")
        rows = np.empty_like(network.embedding)
        rows[domains.places(tokens, domains.vocabulary)] = network.embedding
        zero = np.zeros(rows.shape[1])
        x = self.add(
            Form({self.key(tokens): rows}, zero, zero),
            Form({self.key(indices): network.positions[:most]}, zero, zero),
        )
        for layer, claim in zip(network.layers, claims, strict=True):
            self.watch(x)
            x = self.attention(x, layer, claim.heads)
            self.watch(x)
            x = self.functions(x, layer, claim.lookups)
        self.watch(x)
        return x

    def watch(self, *forms: Form) -> None:
        """Give up where numbers are too large, or time is over."""
        if not all((self.size(form) < self.network.largest**0.5 / 1000).all() for form in forms):
            raise Undecided("errors that are too large")
        if self.budget.is_over():
            raise Undecided("the time was over")

    # ---- variables
    # --------------------------------------------------------------------------------------------------

    def key(self, part: Variable) -> int:
        """Equal for variables that are the same."""
        key = self.domains.key(part)
        self.variables.setdefault(key, part)
        return key

    def known(self, part: Variable) -> None:
        """Give up on aggregates that are none of the program's: where it has a value, they might
        have none.
        """
        for node in graph(part):
            if isinstance(node.part, Aggregate) and node.part not in self.parts:
                raise Undecided(f"{node.part}, which is no part of the program")

    def values(self, key: int) -> tuple[Value, ...] | None:
        return self.domains.of(self.variables[key])

    def listed(self, keys: Sequence[int]) -> list[tuple[Value, ...]]:
        return [self.domains.listed(self.variables[key]) for key in keys]

    def span(self, part: Variable) -> float:
        """The largest absolute value of a variable, infinite where it is no number."""
        listed = self.domains.of(part)
        if listed is not None:
            return max(abs(float(value)) if is_number(value) else math.inf for value in listed)
        if isinstance(part, Aggregate):
            if is_number(part.default):
                default = abs(float(part.default))
            else:
                default = math.inf
            return max(
                self.span(part.values), 0.0 if self.domains.reflexive(part.selector) else default
            )
        if isinstance(part, Elementwise) and part.linear is not None:
            factors, constant = part.linear
            terms = (
                abs(float(f)) * self.span(each)
                for f, each in zip(factors, part.sources, strict=True)
            )
            return abs(float(constant)) + sum(terms)
        return math.inf

    def basis(self, part: Variable, known: Iterable[int]) -> list[int]:
        """The variables, those of ``known`` or inputs of functions, that a variable is a function
        of.
        """
        found = dict[int, None]()
        seen = set[int]()
        waiting = [part]
        while waiting:
            each = waiting.pop()
            key = self.key(each)
            if key not in known and isinstance(each, Elementwise):
                waiting += each.sources if key not in seen else ()
            else:
                found[key] = None
            seen.add(key)
        return list(found)

    def evaluate(self, part: Variable, known: dict[int, Value]) -> Value:
        """The value of a function, given those of what it reads."""
        key = self.key(part)
        if key not in known:
            if not isinstance(part, Elementwise):
                raise Undecided(f"{part}, which does not follow from what is read")
            known[key] = apply(part, [self.evaluate(source, known) for source in part.sources])
        return known[key]

    def place(self, part: Variable, basis: Sequence[int]) -> Places:
        """For each combination of values, the index of a variable's value; -1 if it cannot occur."""
        asked = (self.key(part), tuple(basis))
        sets = self.listed(basis)
        if asked not in self.places:
            if math.prod(map(len, sets)) > _MOST_COMBINATIONS and asked[1] != (asked[0],):
                raise Undecided(f"{part}, a function of too many combinations of values")
            if not set(self.basis(part, basis)) <= set(basis):
                raise Undecided(f"{part}, which does not follow from what is read")
            found = []
            for values in itertools.product(*sets):
                try:
                    place = self.domains.place(
                        part, self.evaluate(part, dict(zip(basis, values, strict=True)))
                    )
                except InputError:
                    place = None
                if (
                    place is None and part not in self.parts
                ):  # where the program has a value, its parts have one
                    raise Undecided(f"{part}, which may have no value")
                found.append(-1 if place is None else place)
            self.places[asked] = np.array(found, dtype=np.int64)
        able = np.ones(1, dtype=bool)
        for key, each in zip(basis, sets, strict=True):
            able = (able[:, None] & self.possible.get(key, np.ones(len(each), dtype=bool))).ravel()
        return np.where(able, self.places[asked], -1)

    # ---- forms ------------------------------------------------------------------------------------------------------

    def rounding(self, count: Any) -> Any:
        """The relative error of so many roundings, of the transformer and of this."""
        total = np.asarray(count * self.network.roundoff)
        return np.where(total < 1, total / np.where(total < 1, 1 - total, 1), np.inf) + _own(
            1.0, count
        )

    def rounded(self, map: Affine, sizes: Array, executed: bool = True) -> Array:
        """The rounding errors of a linear map of numbers of these sizes, in the transformer or only
        here.
        """
        size = np.abs(map.weight)
        tiny = self.network.smallest
        count = (map.weight != 0).sum(1) + (map.bias != 0) + 1
        terms = size @ sizes + np.abs(map.bias)
        off = (self.rounding(count) if executed else _own(1.0, count)) * terms + count * tiny
        if (
            executed
        ):  # factors below ``tiny`` may be taken as 0, and products may overflow before they cancel
            off += size @ np.minimum(sizes, tiny) + np.where(size < tiny, size, 0) @ sizes
            off[~(terms < self.network.largest / 4)] = np.inf
        return np.where(terms > 0, off, 0)

    def within(self, key: int, table: Array) -> tuple[Array, Array]:
        """The middle and half the range of what a table adds."""
        if self.values(key) is None:
            size = np.abs(table[0])
            return np.zeros_like(size), np.where(size > 0, size * self.span(self.variables[key]), 0)
        low = table.min(0)
        high = table.max(0)
        middle = (low + high) / 2
        return middle, np.maximum(high - middle, middle - low)

    def size(self, form: Form) -> Array:
        """The largest absolute value of each number."""
        sizes = (
            np.abs(middle) + off
            for middle, off in itertools.starmap(self.within, form.tables.items())
        )
        return _up(sum(sizes, np.abs(form.constant) + form.radius))

    def linear(self, x: Form, map: Affine, executed: bool = True) -> Form:
        radius = np.abs(map.weight) @ x.radius + self.rounded(map, self.size(x), executed)
        tables = {key: table @ map.weight.T for key, table in x.tables.items()}
        return Form(tables, map.weight @ x.constant + map.bias, _up(radius))

    def add(self, x: Form, y: Form) -> Form:
        """A sum; zeros are added without rounding."""
        tables = dict(x.tables)
        for key, table in y.tables.items():
            tables[key] = tables[key] + table if key in tables else table
        sizes = self.size(x)
        other = self.size(y)
        rounding = np.where((sizes > 0) & (other > 0), self.rounding(1) * (sizes + other), 0)
        return Form(tables, x.constant + y.constant, _up(x.radius + y.radius + rounding))

    def join(self, forms: Sequence[Form]) -> Form:
        """The numbers of several forms one after the other."""
        tables = {}
        for key in dict.fromkeys(key for form in forms for key in form.tables):
            rows = len(self.values(key) or (0,))
            tables[key] = np.hstack(
                [each.tables.get(key, np.zeros((rows, len(each.constant)))) for each in forms]
            )
        constant = np.concatenate([x.constant for x in forms])
        radius = np.concatenate([x.radius for x in forms])
        return Form(tables, constant, radius)

    def express(self, form: Form, parts: Sequence[Variable]) -> Form:
        """The same numbers as sums of functions of ``parts``; what else they depend on goes into
        the radius.
        """
        rest = dict(form.tables)
        found = dict[int, Array]()
        constant = form.constant
        radius = form.radius + _own(self.size(form))
        bases = {self.key(part): self.basis(part, form.tables) for part in parts}
        uses = Counter(itertools.chain.from_iterable(bases.values()))
        alone = {key: all(uses[each] == 1 for each in basis) for key, basis in bases.items()}
        # First those that are read as sums of variables which others share.
        for key in sorted(bases, key=lambda key: (key in rest, alone[key])):
            sets = [self.values(each) for each in [key, *bases[key]]]
            few = (
                None not in sets
                and math.prod(len(each or ()) for each in sets[1:]) <= _MOST_COMBINATIONS
            )
            if key in rest:
                found[key] = rest.pop(key)
            elif alone[key] and few:
                none = np.zeros((1, len(constant)))
                tables = [
                    rest.pop(each, np.repeat(none, len(s or ()), 0))
                    for each, s in zip(bases[key], sets[1:], strict=True)
                ]
                total = _combined(tables, [len(each or ()) for each in sets[1:]], (len(constant),))
                found[key], off = self.hull(
                    self.place(self.variables[key], bases[key]), total, total, key
                )
                radius = radius + off
            elif any(each in rest for each in bases[key]):
                found[key], added, off = self.folded(key, rest, uses)
                constant = constant + added
                radius = radius + off
        for key, table in rest.items():
            middle, off = self.within(key, table)
            constant = constant + middle
            radius = radius + off
        return Form(found, constant, _up(radius))

    def hull(self, where: Places, low: Array, high: Array, key: int) -> tuple[Array, Array]:
        """For each value the middle of the ranges of the rows that have it, and half the largest
        joint range.
        """
        ends = np.full((2, len(self.listed([key])[0]), low.shape[1]), [[[np.inf]], [[-np.inf]]])
        able = np.flatnonzero(where >= 0)
        if len(able):
            able = able[np.argsort(where[able], kind="stable")]
            found, first = np.unique(where[able], return_index=True)
            ends[0][found] = np.minimum.reduceat(low[able], first)
            ends[1][found] = np.maximum.reduceat(high[able], first)
        occurs = np.all(
            ends[0] <= ends[1], axis=1
        )  # a value that no row has is none, at any position
        self.possible[key] = occurs & self.possible.get(key, occurs)
        middle = np.where(occurs[:, None], (ends[0] + ends[1]) / 2, 0)
        off = np.where(occurs[:, None], np.maximum(ends[1] - middle, middle - ends[0]), 0)
        if np.isnan(low).any() or np.isnan(high).any():
            raise Undecided("errors that are not finite")
        return middle, _up(off.max(0))

    def folded(
        self, key: int, rest: dict[int, Array], uses: Counter[int]
    ) -> tuple[Array, Array, Array]:
        """Multiples of a linear variable in the tables of what it is a sum of; they are taken out
        of ``rest``.
        """
        part = self.variables[key]
        numbers, start, slack = self.summands(part, rest)
        widths = {
            each: abs(float(column[0])) if self.values(each) is None else float(np.ptp(column))
            for each, column in numbers.items()
            if each in rest
        }
        # The factor is that of a variable which nothing else is read from, the one with the largest
        # range.
        lead = max(
            widths, key=lambda each: (widths[each] > 0, uses[each] == 1, widths[each]), default=-1
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
        for each, column in numbers.items():
            taken = column[:, None] * factor
            rest.setdefault(each, np.zeros_like(taken))
            off = off + _own(
                sum(np.add(*map(np.abs, self.within(each, one))) for one in (taken, rest[each]))
            )
            rest[each] = rest[each] - taken
        listed = self.values(key)
        table = np.array([1.0] if listed is None else list(map(float, listed)))[:, None] * factor
        return table, -start * factor, off + _own(np.abs(factor) * (self.span(part) + abs(start)))

    def summands(
        self, part: Variable, known: Iterable[int]
    ) -> tuple[dict[int, Array], float, float]:
        """A number as a sum of numbers of known variables, by their values, and a constant; and its
        rounding.
        """
        found = dict[int, Array]()
        total = Fraction(0)
        slack = 0.0
        waiting: dict[int, Fraction] = {self.key(part): Fraction(1)}
        for _ in range(_MOST_COMBINATIONS):
            if not waiting:
                return found, float(total), slack + abs(float(total)) * 2**-50
            key, factor = waiting.popitem()
            each = self.variables[key]
            listed = self.domains.of(each)
            basis = [key] if key in known else self.basis(each, known)
            if listed is None and key in known:
                column = np.ones(1)
            elif len(basis) == 1 and listed is not None and all(map(is_number, listed)):
                where = self.place(each, basis)
                numbers = np.array([float(value) for value in listed])
                column = numbers[np.where(where >= 0, where, where.max())]
            elif isinstance(each, Elementwise) and each.linear is not None:
                total += factor * each.linear[1]
                for source, multiple in zip(each.sources, each.linear[0], strict=True):
                    inner = self.key(source)
                    waiting[inner] = waiting.get(inner, Fraction(0)) + factor * multiple
                continue
            else:
                raise Undecided(f"{each}, which is not a sum of numbers in the stream")
            found[basis[0]] = found.get(basis[0], 0) + float(factor) * column
            slack += float(_own(abs(float(factor)) * max(self.span(each), 1.0)))
        raise Undecided(f"{part}, a sum of too many parts")

    # ---- attention
    # --------------------------------------------------------------------------------------------------

    def attention(self, x: Form, layer: LayerWeights, claims: Sequence[HeadClaim]) -> Form:
        q, k, v = (self.linear(x, each) for each in (layer.query, layer.key, layer.value))
        self.watch(q, k, v)
        size, wide = (len(each.constant) // layer.num_heads for each in (q, v))
        slots = []
        for head in range(layer.num_heads):
            chosen = slice(head * size, (head + 1) * size)
            first = head * wide
            writes: Sequence[Variable] = ()
            if head < len(claims):
                selector = claims[head].selector
                writes = claims[head].writes[:wide]
                scores = self.scores(q.at(chosen), k.at(chosen), selector)
                if layer.sinks is None:
                    sink = None
                else:
                    sink = float(layer.sinks[head])
            for number, part in enumerate(writes):
                slots.append(
                    self.mean(
                        part,
                        v.at(slice(first + number, first + number + 1)),
                        scores,
                        sink,
                        selector,
                    )
                )
            # Of what has no claim, the mean is within the largest of its values.
            left = self.size(v.at(slice(first + len(writes), first + wide)))
            more = 1 + self.rounding(2 * self.domains.max_len + 64)
            slots.append(Form({}, np.zeros(len(left)), np.where(left > 0, left * more, 0)))
            self.watch(x)
        return self.add(x, self.linear(self.join(slots), layer.output))

    def mean(
        self, part: Variable, v: Form, scores: _Scores, sink: float | None, selector: Selector
    ) -> Form:
        """What a head gives that copies ``part``."""
        if not isinstance(part, Aggregate | Width) or self.domains.key(
            part.selector
        ) != self.domains.key(selector):
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
        # Of n keys both the weighted sum and the sum of weights are rounded n times.
        rounded = (
            float(self.rounding(2 * width + 2 * n + 64)) * size + 64 * n * self.network.smallest
        )
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
        """A table as a multiple of the numbers in it, what is left for other values, and how far it
        is from that.
        """
        values = self.values(key)
        if table is None or values is None:
            return None, 0.0 if table is None else float(table[0, 0]), 0.0
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
        return (
            left,
            factor,
            float(off[0] + _own(np.abs(table).max() + np.abs(numbers).max() * abs(factor))),
        )

    def copied(
        self,
        part: Aggregate,
        v: Form,
        table: Array | None,
        linear: float,
        off: float,
        nothing: float | None,
    ) -> Form:
        """An aggregate of ``constant + table[value] + linear * value``, within ``off``; or within
        ``nothing`` of 0.
        """
        values = self.domains.of(part.values)
        listed = self.domains.of(part)
        constant = float(v.constant[0])
        off += float(v.radius[0])
        key = self.key(part)
        if listed is None:
            if not all(map(is_number, values or ())) or (
                nothing is not None and not is_number(part.default)
            ):
                raise Undecided(f"{part}, with too many values, some of them no numbers")
            first = 0.0 if table is None else float(table.flat[0])
            if nothing is None:
                default = 0.0
            else:
                default = linear * float(part.default)
            slack = float(_own(abs(constant) + abs(first) + abs(default)))
            off += (0.0 if table is None else float(np.ptp(table))) + slack
            if nothing is not None:
                off = max(off, nothing + abs(constant + first + default) + slack)
            return Form(
                {key: np.array([[linear]])}, np.array([constant + first]), _up(np.array([off]))
            )
        low = np.full((len(listed), 1), np.inf)
        high = np.full((len(listed), 1), -np.inf)
        if values is None:
            own = {}
        else:
            own = {typed(value): place for place, value in enumerate(values)}
        # All numbers that are averaged have the same row.
        mean = next((own[typed(one)] for one in values or () if is_number(one)), None)
        for place, value in enumerate(listed):
            start = own.get(
                typed(value), mean if self.domains.averaged(part) and is_number(value) else None
            )
            if start is not None:
                if is_number(value):
                    number = float(value) * linear
                else:
                    number = 0.0
                middle = constant + number + (float(table[start, 0]) if table is not None else 0.0)
                slack = off + float(_own(abs(constant) + 2 * abs(number) + abs(middle)))
                low[place], high[place] = middle - slack, middle + slack
            if nothing is not None and typed(value) == typed(part.default):
                low[place], high[place] = min(low[place, 0], -nothing), max(high[place, 0], nothing)
        rows, radius = self.hull(np.arange(len(listed)), low, high, key)
        return Form({key: rows}, np.zeros(1), radius)

    def width(
        self, part: Width, v: Form, least: Array, most: Array, off: float, nothing: float | None
    ) -> Form:
        """Of w selected keys a head gives its share of w keys' values, all of which are in one
        range.
        """
        v = self.express(v, [])
        ends = [
            share * (v.constant + sign * v.radius) for share in (least, most) for sign in (-1, 1)
        ]
        low = np.append(np.inf, np.min(ends, 0) - off)
        high = np.append(-np.inf, np.max(ends, 0) + off)
        if nothing is not None:
            low[0], high[0] = -nothing, nothing
        key = self.key(part)
        rows = np.array(self.domains.listed(part))
        middle, more = self.hull(np.arange(len(rows)), low[rows][:, None], high[rows][:, None], key)
        return Form({key: middle}, np.zeros(1), more)

    # ---- scores
    # -----------------------------------------------------------------------------------------------------

    def scores(self, q: Form, k: Form, selector: Selector) -> _Scores:
        """Bounds on the scores of keys that are selected and that are not, over all pairs of
        values.
        """
        dim = len(q.constant)
        q = self.centred(q)
        k = self.centred(k)
        sizes = self.size(q), self.size(k)
        error = float(q.radius @ sizes[1] + sizes[0] @ k.radius) + dim * self.network.smallest
        error += float(self.rounding(dim + 24)) * float(sizes[0] @ sizes[1])
        leaves = self.leaves(selector)
        queries = list(
            dict.fromkeys(each for leaf in leaves for each in self.basis(leaf.queries, q.tables))
        )
        keys = list(
            dict.fromkeys(each for leaf in leaves for each in self.basis(leaf.keys, k.tables))
        )
        terms: list[tuple[int | None, int | None, Array]] = []
        for query, table in (*q.tables.items(), (None, q.constant[None])):
            for key, other in (*k.tables.items(), (None, k.constant[None])):
                product = table @ other.T
                if (query in queries or query is None) and (key in keys or key is None):
                    terms.append((query, key, product))
                elif product.any():  # of something that the selector does not depend on
                    unlisted = [
                        each
                        for each in (query, key)
                        if each is not None and self.values(each) is None
                    ]
                    error += float(np.abs(product).max()) * math.prod(
                        self.span(self.variables[e]) for e in unlisted
                    )
        low, high, others = self.ranges(selector, leaves, queries, keys, terms) * dim**-0.5
        some = low > -np.inf
        error = error * dim**-0.5
        highest = float(others.max())
        if not some.any():
            return _Scores(0.0, 0.0, 0.0, math.inf, highest, error)
        spread = float((high - low)[some].max())
        gap = float((low - others)[some].min())
        return _Scores(float(low[some].min()), float(high[some].max()), spread, gap, highest, error)

    def centred(self, form: Form) -> Form:
        """The same with tables around 0, so that those which are the same everywhere vanish."""
        tables = {}
        constant = form.constant
        for key, table in form.tables.items():
            middle, _ = self.within(key, table)
            tables[key], constant = table - middle, constant + middle
        return Form(tables, constant, form.radius + _own(self.size(form)))

    def leaves(self, part: Selector) -> list[Select]:
        """The selects that a selector combines, but those that hold for all keys and queries."""
        waiting = [part]
        seen = dict[Selector, None]()
        while waiting:
            each = waiting.pop()
            if each not in seen:
                seen[each] = None
                waiting += each.parts if isinstance(each, Combined) else ()
        return [
            each for each in seen if isinstance(each, Select) and not self.domains.table(each).all()
        ]

    def ranges(
        self,
        selector: Selector,
        leaves: Sequence[Select],
        queries: Sequence[int],
        keys: Sequence[int],
        terms: Sequence[tuple[int | None, int | None, Array]],
    ) -> Float[np.ndarray, "three query"]:
        """For each combination of a query's values: the least and the largest score of selected
        keys, both minus infinity if there are none, and the largest of other keys.
        """
        sides = queries, keys
        sizes = [[len(each) for each in self.listed(side)] for side in sides]
        rows, columns = (math.prod(each) for each in sizes)
        if rows * columns > _MOST_PAIRS:
            raise Undecided("too many pairs of a query's and a key's values")
        grids = [np.indices(each).reshape(len(each), math.prod(each)) for each in sizes]

        def where(part: Variable, side: int) -> Places:
            """The index of a variable's value for each combination of the values of a side."""
            basis = self.basis(part, sides[side])
            axes = [sides[side].index(each) for each in basis]
            found = self.place(part, basis)
            if not axes:
                return np.repeat(found, (rows, columns)[side])
            return found[
                np.ravel_multi_index(tuple(grids[side][axes]), [sizes[side][axis] for axis in axes])
            ]

        at = {leaf: (where(leaf.queries, 0), where(leaf.keys, 1)) for leaf in leaves}
        able = [np.ones(count, dtype=bool) for count in (rows, columns)]
        for side, one in itertools.product(range(2), at.values()):
            able[side] &= one[side] >= 0
        found = np.empty((3, rows))
        step = max(1, _NUMBERS_AT_ONCE // columns)
        for start in range(0, rows, step):
            block = slice(start, start + step)
            known: dict[Selector, Bool[np.ndarray, "query key"]] = {}
            for leaf, (of_query, of_key) in at.items():
                known[leaf] = self.domains.table(leaf)[of_query[block]][:, of_key]
            scores = np.zeros((len(found[0, block]), columns))
            for query, key, table in terms:
                row: Any
                if query is None:
                    row = [0] * len(scores)
                else:
                    row = grids[0][queries.index(query), block]
                if key is None:
                    column = [0] * columns
                else:
                    column = grids[1][keys.index(key)]
                scores += table[row][:, column]
            chosen = np.broadcast_to(self.holds(selector, known), scores.shape) & able[1]
            found[0, block] = np.where(chosen, scores, np.inf).min(1)
            found[1, block] = np.where(chosen, scores, -np.inf).max(1)
            found[2, block] = np.where(~chosen & able[1], scores, -np.inf).max(1)
            self.watch()
        if not able[0].any():
            raise Undecided("queries without a value")
        found[0] = np.where(found[1] > -np.inf, found[0], -np.inf)
        return found[:, able[0]]

    def holds(
        self, part: Selector, known: dict[Selector, Bool[np.ndarray, "..."]]
    ) -> Bool[np.ndarray, "..."]:
        if part not in known and isinstance(part, Combined):
            whole = np.broadcast_arrays(
                *(self.holds(each, known).astype(np.intp) for each in part.parts)
            )
            corners = np.array(
                [bool(part.function(*map(bool, bits))) for bits in np.ndindex(*[2] * len(whole))]
            )
            known[part] = corners.reshape([2] * len(whole))[tuple(whole)]
        return known.get(part, np.ones((1, 1), dtype=bool))  # what is not known always holds

    # ---- functions
    # --------------------------------------------------------------------------------------------------

    def functions(self, x: Form, layer: LayerWeights, claims: Sequence[LookupClaim]) -> Form:
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
        found = [Form({}, down.bias, np.zeros(len(down.bias)))]
        for claim in claims:
            units = slice(claim.first, claim.last)
            if claimed[units].any():
                raise Undecided("units with two claims")
            claimed[units] = True
            found.append(
                self.lookup(
                    x,
                    Affine(up.weight[units], up.bias[units]),
                    off[units],
                    down.weight[:, units],
                    claim,
                )
            )
            self.watch(x)
        keep = np.eye(len(x.constant))
        linear = np.zeros(len(x.constant))
        sizes = self.size(x)
        terms = np.zeros(len(x.constant))
        pairs = 0
        waiting: dict[bytes, list[int]] = {}
        for unit in np.flatnonzero(~claimed & down.weight.any(0)).tolist():
            whole = np.concatenate([up.weight[unit], up.bias[[unit]], down.weight[:, unit]]) + 0.0
            others = waiting.get((0.0 - whole).tobytes())
            if not others:
                waiting.setdefault(whole.tobytes(), []).append(unit)
                continue
            others.pop()
            keep += down.weight[:, [unit]] @ up.weight[[unit]]
            linear += down.weight[:, unit] * up.bias[unit]
            terms += np.abs(down.weight[:, unit]) * (
                np.abs(up.weight[unit]) @ sizes + abs(up.bias[unit])
            )
            pairs += 1
            added = added + 2 * np.abs(down.weight[:, unit]) * off[unit]
        for unit in itertools.chain.from_iterable(waiting.values()):
            added = added + np.abs(down.weight[:, unit]) * active[unit]
        added = added + np.where(
            terms > 0, _own(terms + sizes, pairs), 0
        )  # terms may cancel in keep and linear
        kept = self.linear(x, Affine(keep, linear), executed=False)
        total = reduce(self.add, found)
        return self.add(kept, Form(total.tables, total.constant, _up(total.radius + added)))

    def lookup(self, x: Form, up: Affine, off: Array, down: Array, claim: LookupClaim) -> Form:
        """What units add that look ``claim.variable`` up."""
        for part in (claim.variable, *claim.parts):
            self.known(part)
        if not len(up.bias):
            return Form({}, np.zeros(len(down)), np.zeros(len(down)))
        lead = up.weight[int(np.abs(up.weight).max(1).argmax())]
        column = int(np.abs(lead).argmax())
        factor = up.weight[:, column] / lead[column]
        blur = np.abs(down) @ (off + _up(np.abs(up.weight - factor[:, None] * lead) @ self.size(x)))
        read = self.linear(x, Affine(lead[None], np.zeros(1)), executed=False)
        keys = list(dict.fromkeys(map(self.key, claim.parts)))
        for key in list(keys):  # what follows from other parts is none of its own
            others = [other for other in keys if other != key]
            if (
                key not in read.tables
                and others
                and set(self.basis(self.variables[key], read.tables)) <= set(others)
            ):
                keys = others
        z = self.express(read, [self.variables[key] for key in keys])
        sizes = [len(each) for each in self.listed(keys)]
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
        error = float(z.radius[0] + _own(np.abs(total).max()))
        low, high, slack = self.bends(total[where >= 0], error, factor, up.bias, down)
        key = self.key(claim.variable)
        middle, radius = self.hull(where[where >= 0], low, high, key)
        return Form({key: middle}, np.zeros(len(down)), _up(radius + blur + slack))

    def bends(
        self, points: Array, error: float, factor: Array, bias: Array, down: Array
    ) -> tuple[Array, Array, Array]:
        """The range of ``down @ relu(factor * z + bias)`` for z around each point, and its
        rounding.

        It is piecewise linear: its ends are those of the interval, or where a unit bends within it.
        """

        def at(z: Array) -> Array:
            found = np.empty((len(z), len(down)))
            step = max(1, _NUMBERS_AT_ONCE // len(bias))
            for start in range(0, len(z), step):
                block = slice(start, start + step)
                found[block] = np.maximum(z[block, None] * factor + bias, 0) @ down.T
                self.watch()
            return found

        ends = at(points - error), at(points + error), at(points)
        low = np.minimum.reduce(ends)
        high = np.maximum.reduce(ends)
        bent = np.sort(-bias[factor != 0] / factor[factor != 0])
        first = np.searchsorted(bent, points - error)
        last = np.searchsorted(bent, points + error, "right")
        inside = np.flatnonzero(first < last)
        values = at(bent) if len(inside) else bent
        for row in inside.tolist():
            between = values[first[row] : last[row]]
            low[row] = np.minimum(low[row], between.min(0))
            high[row] = np.maximum(high[row], between.max(0))
        largest = np.abs(factor) * (np.abs(points).max() + error) + np.abs(bias)
        return low, high, _own(np.abs(down) @ largest, len(bias))
