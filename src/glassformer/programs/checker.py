r"""Whether the weights of a transformer compute a program, for all sequences at once: what a certificate rests on.

The checker reads the weights as they are and the program's definition. Of the compiler it takes names alone, *claims*:
which selector a head follows and which variables it copies, and which variable some units look up, from which others.
No number is taken from anywhere but the weights; a wrong claim makes the verdict undecided, never wrong.

The residual stream is described by a :class:`Form`: at each position, coordinate c is a constant, plus a number for the
value of each of some variables of the program there, plus an error of at most ``radius[c]``::

    x[c] = constant[c] + sum over V of tables[V][value of V, c] + error,    |error| <= radius[c]

1. **Embeddings** are tables of the token and of the index.
2. **Linear maps** map tables, constants and radii.
3. **A head** that claims a selector: its scores are sums of products of a query's and of a key's numbers, so of tables
   of pairs of values. Over all pairs, scores of selected keys lie in [lo, hi] and are ``gap`` ahead of all others, so
   the others have a weight of at most ``n exp(2 d - gap)`` of that of one selected key, d being the error of a score.
   What it copies is written as a function of the copied variable: if selected values are all equal, or if it is linear
   in a number, the mean is that function of the aggregate. Whatever it is apart from that goes into the radius.
4. **Units** that claim a function read one number z, which is written as a sum of functions of the claimed parts. What
   the units add is piecewise linear in z: over each interval that z can be in, the ends and the bends give its range.
   The ranges of all combinations of values with the same result are joined. Two units that are the negative of each
   other are linear.
5. **The output** is written as a function of the program. It is compared with the number of each value.

Sizes of rounding errors: a sum of n products is off by ``n u / (1 - n u)`` of the sum of their sizes, for the unit
roundoff u of the transformer's numbers, and once more for that of float64, in which the checker computes. Which values
a variable can have is told by :mod:`~glassformer.programs.domains`, from the definition alone. Sequences on
which the definition has no value are left out.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import reduce
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from glassformer.errors import InputError
from glassformer.handcraft.bounds import FLOAT64_ROUNDOFF
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


class Affine(NamedTuple):
    """A linear map and what is added to it."""

    weight: Float[np.ndarray, "output input"]
    bias: Float[np.ndarray, " output"]

    def rows(self, chosen: slice) -> Affine:
        """Some of the outputs."""
        return Affine(self.weight[chosen], self.bias[chosen])


@dataclass(frozen=True)
class LayerWeights:
    """A block without norms: attention, and a ReLU network if there is one."""

    num_heads: int
    query: Affine
    key: Affine
    value: Affine
    output: Affine
    sinks: Float[np.ndarray, " head"] | None
    up: Affine | None
    down: Affine | None


@dataclass(frozen=True)
class Network:
    """The weights of a transformer as float64, and its arithmetic.

    Attributes:
        embedding: A row for each token.
        positions: A row for each index.
        layers: Its blocks.
        output: What is read at each position.
        roundoff: Unit roundoff, such as ``2 ** -24`` for float32.
        smallest: The smallest normal number.
        largest: The largest number.
    """

    embedding: Float[np.ndarray, "token hidden_dim"]
    positions: Float[np.ndarray, "position hidden_dim"]
    layers: Sequence[LayerWeights]
    output: Affine
    roundoff: float
    smallest: float
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
    """What was found: no output of any sequence is further than ``error`` from the number of its value."""

    error: float
    reason: str = ""
    """Why there is no bound, if ``error`` is infinite."""


@dataclass(frozen=True)
class Form:
    """What some numbers are at a position, see above. A variable without a list of values has one row, its factor."""

    tables: dict[int, Float[np.ndarray, "value number"]]
    constant: Float[np.ndarray, " number"]
    radius: Float[np.ndarray, " number"]

    def at(self, chosen: slice | list[int]) -> Form:
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
    deadline: float = math.inf,
) -> Checked:
    """Bound the error of the output of all sequences.

    Args:
        network: The weights as they are.
        domains: Vocabulary, greatest length and direction.
        program: The definition.
        codes: The number that stands for each value; None if the output is the value.
        claims: For each layer what its parts are for. Nothing in them is believed.
        deadline: On the clock of :func:`time.monotonic`.
    """
    try:
        with np.errstate(all="ignore"):
            error = _Checker(network, domains, program, deadline).number(codes, claims)
    except (Undecided, InputError) as problem:
        return Checked(math.inf, problem.got if isinstance(problem, InputError) else str(problem))
    except Exception as problem:  # of claims of another form
        return Checked(math.inf, f"claims of another form, or too many parts on one another ({type(problem).__name__})")
    return Checked(error) if math.isfinite(error) else Checked(math.inf, "errors that are not finite")


def _up(radius: Array) -> Array:
    """More than rounding of its own computation takes from a sum of sizes."""
    return radius * (1 + 2**-30)


def _middle(table: Array) -> tuple[Array, Array]:
    """The middle of each column and half its range."""
    low, high = table.min(0), table.max(0)
    middle = (low + high) / 2
    return middle, np.maximum(high - middle, middle - low)


@dataclass(eq=False)
class _Checker:
    network: Network
    domains: Domains
    program: Variable
    deadline: float
    variables: dict[int, Variable] = field(default_factory=dict)
    places: dict[tuple[int, tuple[int, ...]], Int[np.ndarray, " combination"]] = field(default_factory=dict)
    possible: dict[int, Bool[np.ndarray, " value"]] = field(default_factory=dict)

    def stream(self, claims: Sequence[LayerClaim]) -> Form:
        """What the residual stream holds in the end."""
        network, domains, most = self.network, self.domains, self.domains.max_len
        self.parts = {node.part for node in graph(self.program)}
        fits = len(network.embedding) == len(domains.vocabulary) and len(network.positions) >= most
        if not fits or len(claims) != len(network.layers):
            raise Undecided("weights or claims of other sizes")
        rows = np.empty_like(network.embedding)
        rows[domains.places(tokens, domains.vocabulary)] = network.embedding
        zero = np.zeros(rows.shape[1])
        both = {self.key(tokens): rows}, {self.key(indices): network.positions[:most]}
        x = self.add(*(Form(table, zero, zero) for table in both))
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
        if time.monotonic() > self.deadline:
            raise Undecided("the time is over")

    # ---- variables --------------------------------------------------------------------------------------------------

    def key(self, part: Variable) -> int:
        """Equal for variables that are the same."""
        key = self.domains.key(part)
        self.variables.setdefault(key, part)
        return key

    def always(self, part: Selector) -> bool:
        """Whether a selector holds for all keys and queries."""
        return isinstance(part, Select) and bool(self.domains.table(part).all())

    def known(self, part: Variable) -> None:
        """Give up on aggregates that are none of the program's: where it has a value, they might have none."""
        for node in graph(part):
            if isinstance(node.part, Aggregate) and node.part not in self.parts:
                raise Undecided(f"{node.part}, which is no part of the program")

    def values(self, key: int) -> tuple[Value, ...] | None:
        return self.domains.of(self.variables[key])

    def span(self, part: Variable) -> float:
        """The largest absolute value of a number without a list of values."""
        listed = self.domains.of(part)
        if listed is not None:
            numbers = [abs(float(value)) for value in listed if is_number(value)]
            return max(numbers, default=math.inf) if len(numbers) == len(listed) else math.inf
        if isinstance(part, Aggregate):
            if self.domains.reflexive(part.selector):
                return self.span(part.values)
            return max(self.span(part.values), abs(float(part.default))) if is_number(part.default) else math.inf
        if isinstance(part, Elementwise) and part.linear is not None:
            factors, constant = part.linear
            terms = (abs(float(f)) * self.span(each) for f, each in zip(factors, part.sources, strict=True))
            return abs(float(constant)) + sum(terms)
        return math.inf

    def basis(self, part: Variable, known: dict[int, Array]) -> list[int]:
        """The variables, those of ``known`` or inputs of functions, that a variable is a function of."""
        found, seen, waiting = dict[int, None](), set[int](), [part]
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

    def place(self, part: Variable, basis: Sequence[int]) -> Int[np.ndarray, " combination"]:
        """For each combination of values, the index of a variable's value; -1 if it cannot occur."""
        asked = self.key(part), tuple(basis)
        if asked not in self.places:
            sets = self.listed(basis)
            if math.prod(map(len, sets)) > _MOST_COMBINATIONS and asked[1] != (asked[0],):
                raise Undecided(f"{part}, a function of too many combinations of values")
            if not set(self.basis(part, dict.fromkeys(basis, np.zeros(0)))) <= set(basis):
                raise Undecided(f"{part}, which does not follow from what is read")
            found = []
            for values in itertools.product(*sets):
                try:
                    value = self.evaluate(part, dict(zip(basis, values, strict=True)))
                    place = self.domains.place(part, value)
                except InputError:
                    place = None
                if place is None and part not in self.parts:  # where the program has a value, its parts have one
                    raise Undecided(f"{part}, which may have no value")
                found.append(-1 if place is None else place)
            self.places[asked] = np.array(found, dtype=np.int64)
        able = np.ones(1, dtype=bool)
        for key, each in zip(basis, self.listed(basis), strict=True):
            able = (able[:, None] & self.possible.get(key, np.ones(len(each), dtype=bool))).ravel()
        return np.where(able, self.places[asked], -1)

    def listed(self, keys: Sequence[int]) -> list[tuple[Value, ...]]:
        return [self.domains.listed(self.variables[key]) for key in keys]

    # ---- forms ------------------------------------------------------------------------------------------------------

    def rounding(self, count: Array | int, executed: bool = True) -> Array:
        """The relative error of so many roundings, of the transformer and of this."""
        own = (np.asarray(count) + 16) * FLOAT64_ROUNDOFF
        total = np.asarray(count) * self.network.roundoff * executed
        return np.where(total < 1, total / np.where(total < 1, 1 - total, 1), np.inf) + own / (1 - own)

    def size(self, form: Form) -> Array:
        """The largest absolute value of each number."""
        found = np.abs(form.constant) + form.radius
        for key, table in form.tables.items():
            size = np.abs(table).max(0)
            if self.values(key) is None:
                size = np.where(size > 0, size * self.span(self.variables[key]), 0)
            found = found + size
        return _up(found)

    def linear(self, x: Form, map: Affine, executed: bool = True) -> Form:
        weight, bias = map
        count = (weight != 0).sum(1) + (bias != 0) + 1
        terms = np.abs(weight) @ self.size(x) + np.abs(bias)
        radius = np.abs(weight) @ x.radius + self.rounding(count, executed) * terms
        radius = radius + np.where(terms > 0, count * self.network.smallest, 0)
        tables = {key: table @ weight.T for key, table in x.tables.items()}
        return Form(tables, weight @ x.constant + bias, _up(radius))

    def add(self, x: Form, y: Form) -> Form:
        """A sum; zeros are added without rounding."""
        tables = dict(x.tables)
        for key, table in y.tables.items():
            tables[key] = tables[key] + table if key in tables else table
        sizes, other = self.size(x), self.size(y)
        rounding = np.where((sizes > 0) & (other > 0), self.rounding(1) * (sizes + other), 0)
        return Form(tables, x.constant + y.constant, _up(x.radius + y.radius + rounding))

    def join(self, forms: Sequence[Form]) -> Form:
        """The numbers of several forms one after the other."""
        keys = dict.fromkeys(key for form in forms for key in form.tables)
        none = {key: 1 if self.values(key) is None else len(self.values(key) or ()) for key in keys}
        tables = {
            key: np.hstack([form.tables.get(key, np.zeros((none[key], len(form.constant)))) for form in forms])
            for key in keys
        }
        return Form(
            tables, np.concatenate([each.constant for each in forms]), np.concatenate([each.radius for each in forms])
        )

    def within(self, form: Form, key: int, table: Array) -> tuple[Array, Array]:
        """The middle and half the range of what a table adds."""
        if self.values(key) is None:
            size = np.abs(table[0])
            return np.zeros_like(size), np.where(size > 0, size * self.span(self.variables[key]), 0)
        return _middle(table)

    def express(self, form: Form, parts: Sequence[Variable]) -> Form:
        """The same numbers as sums of functions of ``parts``; what else they depend on goes into the radius."""
        rest, found = dict(form.tables), dict[int, Array]()
        constant, radius = form.constant, form.radius + self.rounding(64, executed=False) * self.size(form)
        bases = {self.key(part): self.basis(part, form.tables) for part in parts}
        uses = list(itertools.chain.from_iterable(bases.values()))
        alone = {key: all(uses.count(each) == 1 for each in basis) for key, basis in bases.items()}
        # First those that are read as sums of variables which others share.
        for key in sorted(bases, key=lambda key: (key in rest, alone[key])):
            basis = [each for each in bases[key] if each in rest]
            if key in rest:
                found[key] = rest.pop(key)
                continue
            sets = [self.values(each) for each in bases[key]]
            few = None not in sets and math.prod(len(each or ()) for each in sets) <= _MOST_COMBINATIONS
            if alone[key] and few and self.values(key) is not None:
                table, off = self.joined(key, bases[key], [rest.pop(each, None) for each in bases[key]], len(constant))
            elif basis:
                table, added, off = self.folded(key, basis, rest, uses)
                constant = constant + added
            else:
                continue
            found[key], radius = table, radius + off
        for key, table in rest.items():
            middle, off = self.within(form, key, table)
            constant, radius = constant + middle, radius + off
        return Form(found, constant, _up(radius))

    def joined(self, key: int, basis: Sequence[int], tables: Sequence[Array | None], width: int) -> tuple[Array, Array]:
        """A function of all combinations as one of the variable ``key``, and how far from it it can be."""
        sizes = [len(each) for each in self.listed(basis)]
        total = np.zeros((*sizes, width))
        for axis, table in enumerate(tables):
            if table is not None:
                total = total + table.reshape([-1 if axis == each else 1 for each in range(len(sizes))] + [width])
        where = self.place(self.variables[key], basis)
        return self.hull(where, total.reshape(-1, width), total.reshape(-1, width), key)

    def hull(self, where: Int[np.ndarray, " row"], low: Array, high: Array, key: int) -> tuple[Array, Array]:
        """For each value the middle of the ranges of the rows that have it, and half the largest joint range."""
        count = len(self.listed([key])[0])
        ends = np.full((count, low.shape[1]), np.inf), np.full((count, low.shape[1]), -np.inf)
        able = np.flatnonzero(where >= 0)
        if len(able):
            able = able[np.argsort(where[able], kind="stable")]
            found, first = np.unique(where[able], return_index=True)
            ends[0][found] = np.minimum.reduceat(low[able], first)
            ends[1][found] = np.maximum.reduceat(high[able], first)
        occurs = np.all(ends[0] <= ends[1], axis=1)  # a value that no row has is none, at any position
        self.possible[key] = occurs & self.possible.get(key, occurs)
        middle = np.where(occurs[:, None], (ends[0] + ends[1]) / 2, 0)
        off = np.where(occurs[:, None], np.maximum(ends[1] - middle, middle - ends[0]), 0)
        if np.isnan(low).any() or np.isnan(high).any():
            raise Undecided("errors that are not finite")
        return middle, _up(off.max(0))

    def folded(
        self, key: int, basis: Sequence[int], rest: dict[int, Array], uses: Sequence[int]
    ) -> tuple[Array, Array, Array]:
        """Multiples of a linear variable in the tables of what it is a sum of; they are taken out of ``rest``."""
        part = self.variables[key]
        numbers, start, slack = self.summands(part, rest)
        choice = [each for each in basis if each in numbers and np.ptp(self.ends(numbers[each])) > 0]
        if not choice:
            raise Undecided(f"{part}, which is not read as a number")
        # The factor is that of a variable which nothing else is read from, the one with the largest range.
        lead = max(choice, key=lambda each: (uses.count(each) == 1, float(np.ptp(self.ends(numbers[each])))))
        column = numbers[lead]
        if self.values(lead) is None:
            factor = rest[lead][0] / column[0]
        else:
            low, high = int(column.argmin()), int(column.argmax())
            factor = (rest[lead][high] - rest[lead][low]) / (column[high] - column[low])
        off = slack * np.abs(factor)
        for each, column in numbers.items():
            taken = column[:, None] * factor
            off = off + self.rounding(8, executed=False) * self.size(Form({each: taken}, 0 * factor, 0 * factor))
            before = rest.get(each, np.zeros_like(taken))
            off = off + self.rounding(8, executed=False) * self.size(Form({each: before}, 0 * factor, 0 * factor))
            rest[each] = before - taken
        listed = self.values(key)
        table = factor[None] if listed is None else np.array([float(value) for value in listed])[:, None] * factor
        off = off + self.rounding(8, executed=False) * np.abs(factor) * (self.span(part) + abs(start))
        return table, -start * factor, off

    def ends(self, column: Array) -> Array:
        return column if len(column) > 1 else np.array([0.0, column[0]])

    def summands(self, part: Variable, known: dict[int, Array]) -> tuple[dict[int, Array], float, float]:
        """A number as a sum of numbers of known variables, by their values, and a constant; and its rounding."""
        found, total, slack = dict[int, Array](), Fraction(0), 0.0
        waiting: dict[int, Fraction] = {self.key(part): Fraction(1)}
        for _ in range(_MOST_COMBINATIONS):
            if not waiting:
                return found, float(total), slack + abs(float(total)) * 2**-50
            key, factor = waiting.popitem()
            each = self.variables[key]
            listed, basis = self.domains.of(each), [key] if key in known else self.basis(each, known)
            if listed is None and key in known:
                column = np.ones(1)
            elif len(basis) == 1 and listed is not None and all(map(is_number, listed)):
                where, numbers = self.place(each, basis), np.array([float(value) for value in listed])
                column = numbers[np.where(where >= 0, where, where.max())]
            elif isinstance(each, Elementwise) and each.linear is not None:
                total += factor * each.linear[1]
                for source, multiple in zip(each.sources, each.linear[0], strict=True):
                    inner = self.key(source)
                    waiting[inner] = waiting.get(inner, Fraction(0)) + factor * multiple
                continue
            else:
                raise Undecided(f"{each}, which is not a sum of numbers in the stream")
            (one,) = basis
            found[one] = found.get(one, 0) + float(factor) * column
            slack += float(self.rounding(8, False)) * abs(float(factor)) * max(self.span(each), 1.0)
        raise Undecided(f"{part}, a sum of too many parts")

    # ---- attention --------------------------------------------------------------------------------------------------

    def attention(self, x: Form, layer: LayerWeights, claims: Sequence[HeadClaim]) -> Form:
        q, k, v = (self.linear(x, each) for each in (layer.query, layer.key, layer.value))
        size, wide = (len(each.constant) // layer.num_heads for each in (q, v))
        found = []
        for head in range(layer.num_heads):
            chosen, values = (slice(head * each, (head + 1) * each) for each in (size, wide))
            sink = None if layer.sinks is None else float(layer.sinks[head])
            claim = claims[head] if head < len(claims) else None
            found.append(self.head(q.at(chosen), k.at(chosen), v.at(values), sink, claim))
            self.watch(x, q, k, v)
        return self.add(x, self.linear(self.join(found), layer.output))

    def head(self, q: Form, k: Form, v: Form, sink: float | None, claim: HeadClaim | None) -> Form:
        """What a head reads. In any case that is within the largest of its values."""
        count = len(v.constant)
        scores = None if claim is None else self.scores(q, k, claim.selector)
        more = 1 + self.rounding(self.domains.max_len + 64)
        slots = [Form({}, np.zeros(1), self.size(v.at([slot])) * more) for slot in range(count)]
        if claim is None or scores is None:
            return self.join(slots)
        for slot, part in enumerate(claim.writes[:count]):
            slots[slot] = self.mean(part, v.at([slot]), scores, sink, claim.selector)
        return self.join(slots)

    def mean(self, part: Variable, v: Form, scores: _Scores, sink: float | None, selector: Selector) -> Form:
        """What a head gives that copies ``part``."""
        if not isinstance(part, Aggregate | Width) or self.domains.key(part.selector) != self.domains.key(selector):
            raise Undecided(f"{part}, with a selector other than its head's")
        self.known(part)
        n, error, reflexive = self.domains.max_len, scores.error, self.domains.reflexive(selector)
        size = float(self.size(v)[0])
        others = n * math.exp(min(2 * error - scores.gap, 700.0))
        count = np.arange(1, n + 1)
        least, most = count / (count + others), np.ones(n)
        nothing = size  # without a sink it may be any value
        if sink is not None:
            least = count / (count + others + np.exp(np.minimum(sink - scores.low + error, 700)))
            most = count / (count + np.exp(np.minimum(sink - scores.high - error, 700)))
            nothing = min(1.0, n * math.exp(min(scores.others + error - sink, 700.0))) * size
        width = self.network.embedding.shape[1] + len(v.constant)
        rounded = float(self.rounding(2 * width + n + 64)) * size + 64 * n * self.network.smallest
        if isinstance(part, Width):
            return self.width(part, v, count, least, most, others * size + rounded, None if reflexive else nothing)
        off = (1 - float(least[0]) + others) * size + rounded
        averaged = self.domains.averaged(part)
        v = self.express(v, [part.values])
        copied, values = self.key(part.values), self.domains.of(part.values)
        table, linear = v.tables.get(copied), np.zeros(1)
        if averaged or values is None or self.domains.of(part) is None:
            off += math.expm1(min(scores.spread + 2 * error, 700.0)) * 2 * size
            table, linear, more = self.fitted(copied, table)
            off += more
        return self.copied(part, v, table, linear, off, None if reflexive else nothing)

    def fitted(self, key: int, table: Array | None) -> tuple[Array | None, Array, float]:
        """A table as a multiple of the numbers in it, what is left for other values, and how far it is from that."""
        values = self.values(key)
        if table is None:
            return None, np.zeros(1), 0.0
        if values is None:
            return None, table[0], 0.0
        rows = [place for place, value in enumerate(values) if is_number(value)]
        numbers = np.array([float(values[place]) for place in rows])
        if not rows or np.ptp(numbers) == 0:
            return table, np.zeros(1), float(np.ptp(table[rows])) if rows else 0.0
        low, high = rows[int(numbers.argmin())], rows[int(numbers.argmax())]
        factor = (table[high] - table[low]) / np.ptp(numbers)
        left = table.copy()
        left[rows] -= numbers[:, None] * factor
        middle, off = _middle(left[rows])
        left[rows] = middle
        slack = self.rounding(16, executed=False) * (np.abs(table).max() + np.abs(numbers).max() * np.abs(factor[0]))
        return left, factor, float(off[0] + slack)

    def copied(
        self, part: Aggregate, v: Form, table: Array | None, linear: Array, off: float, nothing: float | None
    ) -> Form:
        """An aggregate of ``constant + table[value] + linear * value``, within ``off``; or within ``nothing`` of 0."""
        values, listed, constant = self.domains.of(part.values), self.domains.of(part), float(v.constant[0])
        off += float(v.radius[0])
        key = self.key(part)
        if listed is None:
            if not all(map(is_number, values or ())) or (nothing is not None and not is_number(part.default)):
                raise Undecided(f"{part}, with too many values, some of them no numbers")
            first = 0.0 if table is None else float(table.flat[0])
            off += 0.0 if table is None else float(np.ptp(table))
            off += float(self.rounding(8, executed=False) * (abs(constant) + abs(first)))
            if nothing is not None:
                at_default = constant + first + float(linear[0]) * float(part.default)
                off = max(off, nothing + abs(at_default) * (1 + 2**-40))
            return Form({key: linear[None]}, np.array([constant + first]), _up(np.array([off])))
        low, high = np.full(len(listed), np.inf), np.full(len(listed), -np.inf)
        own = {} if values is None else {typed(value): place for place, value in enumerate(values)}
        # All numbers that are averaged have the same row.
        mean = next((own[typed(one)] for one in values or () if is_number(one)), None)
        for place, value in enumerate(listed):
            start = own.get(typed(value), mean if self.domains.averaged(part) and is_number(value) else None)
            if start is not None:
                number = float(value) * float(linear[0]) if is_number(value) else 0.0
                middle = constant + number + (float(table[start, 0]) if table is not None else 0.0)
                slack = off + float(self.rounding(16, executed=False) * (abs(constant) + 2 * abs(number) + abs(middle)))
                low[place], high[place] = middle - slack, middle + slack
            if nothing is not None and typed(value) == typed(part.default):
                low[place], high[place] = min(low[place], -nothing), max(high[place], nothing)
        rows, radius = self.hull(np.arange(len(listed)), low[:, None], high[:, None], key)
        return Form({key: rows}, np.zeros(1), radius)

    def width(
        self,
        part: Width,
        v: Form,
        count: Array,
        least: Array,
        most: Array,
        off: float,
        nothing: float | None,
    ) -> Form:
        """Of w selected keys a head gives its share of w keys' values, all of which are in one range."""
        key, constant, radius = self.key(part), float(v.constant[0]), float(v.radius[0])
        for each, table in v.tables.items():
            middle, more = self.within(v, each, table)
            constant, radius = constant + float(middle[0]), radius + float(more[0])
        ends = np.array([least * (constant - radius), least * (constant + radius)])
        ends = np.concatenate([ends, [most * (constant - radius), most * (constant + radius)]])
        low, high = np.append(np.inf, ends.min(0) - off), np.append(-np.inf, ends.max(0) + off)
        if nothing is not None:
            low[0], high[0] = -nothing, nothing
        rows = np.array(self.domains.listed(part))
        middle, more = self.hull(np.arange(len(rows)), low[rows][:, None], high[rows][:, None], key)
        return Form({key: middle}, np.zeros(1), more)

    # ---- scores -----------------------------------------------------------------------------------------------------

    def scores(self, q: Form, k: Form, selector: Selector) -> _Scores:
        """Bounds on the scores of keys that are selected and that are not, over all pairs of values."""
        dim = len(q.constant)
        q, k = self.centred(q), self.centred(k)
        sizes = self.size(q), self.size(k)
        error = float(q.radius @ sizes[1] + sizes[0] @ k.radius) + dim * self.network.smallest
        error += float(self.rounding(dim + 24)) * float(sizes[0] @ sizes[1])
        leaves = [leaf for leaf in self.leaves(selector) if not self.always(leaf)]
        queries = list(dict.fromkeys(each for leaf in leaves for each in self.basis(leaf.queries, q.tables)))
        keys = list(dict.fromkeys(each for leaf in leaves for each in self.basis(leaf.keys, k.tables)))
        terms: list[tuple[int | None, int | None, Array]] = []
        for query, table in (*q.tables.items(), (None, q.constant[None])):
            for key, other in (*k.tables.items(), (None, k.constant[None])):
                product = table @ other.T
                if (query in queries or query is None) and (key in keys or key is None):
                    terms.append((query, key, product))
                else:  # of something that the selector does not depend on
                    unlisted = [each for each in (query, key) if each is not None and self.values(each) is None]
                    spans = [self.span(self.variables[each]) for each in unlisted]
                    error += float(np.abs(product).max()) * math.prod(spans) if product.any() else 0.0
        low, high, others = self.ranges(selector, leaves, queries, keys, terms)
        some, scale = low > -np.inf, dim**-0.5
        highest, error = float(others.max()), error * scale
        if not some.any():
            return _Scores(0.0, 0.0, 0.0, math.inf, highest * scale, error)
        gap = float((low - others)[some].min())
        ends = float(low[some].min()) * scale, float(high[some].max()) * scale
        return _Scores(*ends, float((high - low)[some].max()) * scale, gap * scale, highest * scale, error)

    def centred(self, form: Form) -> Form:
        """The same with tables around 0, so that those which are the same everywhere vanish."""
        tables, constant = {}, form.constant
        for key, table in form.tables.items():
            middle = np.zeros_like(constant) if self.values(key) is None else _middle(table)[0]
            tables[key], constant = table - middle, constant + middle
        slack = self.rounding(8, executed=False) * self.size(form)
        return Form(tables, constant, form.radius + slack)

    def leaves(self, part: Selector) -> list[Select]:
        waiting, seen = [part], dict[Selector, None]()
        while waiting:
            each = waiting.pop()
            if each not in seen:
                seen[each] = None
                waiting += each.parts if isinstance(each, Combined) else ()
        return [each for each in seen if isinstance(each, Select)]

    def ranges(
        self,
        selector: Selector,
        leaves: Sequence[Select],
        queries: Sequence[int],
        keys: Sequence[int],
        terms: Sequence[tuple[int | None, int | None, Array]],
    ) -> Array:
        """For each combination of a query's values: the least and the largest score of selected keys, both minus
        infinity if there are none, and the largest of other keys."""
        sides = queries, keys
        sizes = [[len(each) for each in self.listed(side)] for side in sides]
        rows, columns = (math.prod(each) for each in sizes)
        if rows * columns > _MOST_PAIRS:
            raise Undecided("too many pairs of a query's and a key's values")
        grids = [np.indices(each).reshape(len(each), math.prod(each)) for each in sizes]

        def where(part: Variable, side: int) -> Int[np.ndarray, " combination"]:
            """The index of a variable's value for each combination of the values of a side."""
            basis = self.basis(part, dict.fromkeys(sides[side], np.zeros(0)))
            axes = [sides[side].index(each) for each in basis]
            found = self.place(part, basis)
            if not axes:
                return np.repeat(found, len(grids[side][0]) if sizes[side] else 1)
            return found[np.ravel_multi_index(tuple(grids[side][axes]), [sizes[side][axis] for axis in axes])]

        at = {leaf: (where(leaf.queries, 0), where(leaf.keys, 1)) for leaf in leaves}
        able = [np.ones(count, dtype=bool) for count in (rows, columns)]
        for side, one in itertools.product(range(2), at.values()):
            able[side] &= one[side] >= 0
        found, step = np.empty((3, rows)), max(1, _NUMBERS_AT_ONCE // columns)
        for start in range(0, rows, step):
            block = slice(start, start + step)
            known: dict[Selector, Array] = {}
            for leaf, (of_query, of_key) in at.items():
                known[leaf] = self.domains.table(leaf)[of_query[block]][:, of_key]
            scores = np.zeros((len(found[0, block]), columns))
            for query, key, table in terms:
                row = [0] * len(scores) if query is None else grids[0][queries.index(query), block]
                column = [0] * columns if key is None else grids[1][keys.index(key)]
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

    def holds(self, part: Selector, known: dict[Selector, Array]) -> Bool[np.ndarray, "query key"]:
        if part not in known and isinstance(part, Combined):
            whole = np.broadcast_arrays(*(self.holds(each, known).astype(np.intp) for each in part.parts))
            corners = np.array([bool(part.function(*map(bool, bits))) for bits in np.ndindex(*[2] * len(whole))])
            known[part] = corners.reshape([2] * len(whole))[tuple(whole)]
        return known.get(part, np.ones((1, 1), dtype=bool))  # what is not known always holds

    # ---- functions --------------------------------------------------------------------------------------------------

    def functions(self, x: Form, layer: LayerWeights, claims: Sequence[LookupClaim]) -> Form:
        if layer.up is None or layer.down is None:
            return x
        up, down = layer.up, layer.down
        hidden = self.linear(x, up)
        self.watch(hidden)
        active = self.size(hidden)
        blank = Form({}, down.bias, np.zeros(len(down.bias)))
        count = (down.weight != 0).sum(1) + (down.bias != 0) + 1
        terms = np.abs(down.weight) @ active + np.abs(down.bias)
        added = self.rounding(count) * terms + np.where(terms > 0, count * self.network.smallest, 0)
        claimed = np.zeros(len(up.bias), dtype=bool)
        found = []
        for claim in claims:
            units = slice(claim.first, claim.last)
            if claimed[units].any():
                raise Undecided("units with two claims")
            claimed[units] = True
            found.append(self.lookup(x, up.rows(units), down.weight[:, units], claim))
            self.watch(x)
        keep, linear = np.eye(len(x.constant)), np.zeros(len(x.constant))
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
            added = added + 2 * np.abs(down.weight[:, unit]) * self.off(x, up.rows(slice(unit, unit + 1)))
        for unit in itertools.chain.from_iterable(waiting.values()):
            added = added + np.abs(down.weight[:, unit]) * active[unit]
        kept = self.linear(x, Affine(keep, linear), executed=False)
        total = reduce(self.add, found, blank)
        return self.add(kept, Form(total.tables, total.constant, _up(total.radius + added)))

    def off(self, x: Form, up: Affine) -> Array:
        """How far rounding moves what units read."""
        count = (up.weight != 0).sum(1) + (up.bias != 0) + 1
        return (
            self.rounding(count) * (np.abs(up.weight) @ self.size(x) + np.abs(up.bias)) + count * self.network.smallest
        )

    def lookup(self, x: Form, up: Affine, down: Array, claim: LookupClaim) -> Form:
        """What units add that look ``claim.variable`` up."""
        for part in (claim.variable, *claim.parts):
            self.known(part)
        width = len(down)
        if not len(up.bias):
            return Form({}, np.zeros(width), np.zeros(width))
        sizes = np.abs(up.weight).max(1)
        lead = up.weight[int(sizes.argmax())]
        column = int(np.abs(lead).argmax())
        factor = up.weight[:, column] / lead[column]
        blur = self.off(x, up) + _up(np.abs(up.weight - factor[:, None] * lead) @ self.size(x))
        read = self.linear(x, Affine(lead[None], np.zeros(1)), executed=False)
        keys = list(dict.fromkeys(map(self.key, claim.parts)))
        for key in list(keys):  # what follows from other parts is none of its own
            others = [other for other in keys if other != key]
            if key not in read.tables and others and set(self.basis(self.variables[key], read.tables)) <= set(others):
                keys = others
        z = self.express(read, [self.variables[key] for key in keys])
        sets = self.listed(keys)
        if math.prod(map(len, sets)) > _MOST_COMBINATIONS:
            raise Undecided(f"{claim.variable}, a function of too many combinations of values")
        total = np.full([len(each) for each in sets], float(z.constant[0]))
        for axis, key in enumerate(keys):
            if key in z.tables:
                total = total + z.tables[key].reshape([-1 if axis == each else 1 for each in range(len(sets))])
        where = self.place(claim.variable, keys)
        if not (where >= 0).any():
            raise Undecided(f"{claim.variable}, which has no value")
        points, error = total.ravel()[where >= 0], float(z.radius[0] + self.rounding(8, False) * np.abs(total).max())
        low, high, slack = self.bends(points, error, factor, up.bias, down)
        key = self.key(claim.variable)
        middle, radius = self.hull(where[where >= 0], low, high, key)
        return Form({key: middle}, np.zeros(width), _up(radius + np.abs(down) @ blur + slack))

    def bends(self, points: Array, error: float, factor: Array, bias: Array, down: Array) -> tuple[Array, Array, Array]:
        """The range of ``down @ relu(factor * z + bias)`` for z around each point, and its rounding.

        It is piecewise linear: its ends are those of the interval, or where a unit bends within it.
        """

        def at(z: Array) -> Array:
            found = np.empty((len(z), len(down)))
            step = max(1, _NUMBERS_AT_ONCE // max(1, len(bias)))
            for start in range(0, len(z), step):
                block = slice(start, start + step)
                read = z[block, None] * factor + bias
                found[block] = np.maximum(read, 0) @ down.T
                self.watch()
            return found

        low = high = at(points - error)
        for other in (at(points + error), at(points)):
            low, high = np.minimum(low, other), np.maximum(high, other)
        bent = np.sort(-bias[factor != 0] / factor[factor != 0])
        first, last = np.searchsorted(bent, points - error), np.searchsorted(bent, points + error, "right")
        inside = np.flatnonzero(first < last)
        if len(inside):
            values = at(bent)
            for row in inside.tolist():
                between = values[first[row] : last[row]]
                low[row] = np.minimum(low[row], between.min(0))
                high[row] = np.maximum(high[row], between.max(0))
        largest = np.abs(points).max() + error
        slack = self.rounding(len(bias) + 16, executed=False) * (
            np.abs(down) @ (np.abs(factor) * largest + np.abs(bias))
        )
        return low, high, slack

    # ---- output -----------------------------------------------------------------------------------------------------

    def number(self, codes: Sequence[tuple[float, Value]] | None, claims: Sequence[LayerClaim]) -> float:
        """The largest distance of the output from the number of a value."""
        y = self.express(self.linear(self.stream(claims), self.network.output), [self.program])
        key = self.key(self.program)
        values, table, constant = self.values(key), y.tables.get(key), float(y.constant[0])
        radius = float(y.radius[0] + self.rounding(8, executed=False) * self.size(y)[0])
        if values is None:
            if codes is not None:
                raise Undecided("values without a list, read from a list")
            factor = 0.0 if table is None else float(table[0, 0])
            span = self.span(self.program)
            return radius + (abs(factor - 1) + 2**-50) * span + abs(constant)
        numbers = None if codes is None else {typed(value): number for number, value in codes}
        if numbers is None and not all(map(is_number, values)):
            raise Undecided("values that are no numbers, read as numbers")
        wanted = [float(value) if numbers is None else numbers.get(typed(value), math.nan) for value in values]
        found = np.full(len(values), constant) if table is None else constant + table[:, 0]
        able = self.possible.get(key, np.ones(len(values), dtype=bool))
        off = np.where(able, np.abs(found - np.array(wanted)), 0.0)
        error = float(off.max()) + radius + 2**-50 * max(map(abs, wanted))
        if math.isnan(error):
            raise Undecided("a value without a number")
        return error * (1 + 2**-30)
