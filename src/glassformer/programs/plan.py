r"""What a transformer has to hold and to compute for a program.

Every variable that the transformer has to hold is *stored* in coordinates of its residual stream,
by the functions of
it that its readers need, *features*: readers are linear, so there are as many coordinates as
features have dimensions, apart from constants, which biases add. A function of tokens alone, or of
indices alone, is in the embeddings.

A **selector** is a cost of each pair of a key's and a query's value: 0 if selected, at least 1 if
not, written as a sum of products of a feature of the query and one of the key, as few as its rank.
A head's score is ``-SHARPNESS`` times the cost. Where nothing may be selected, the head has a sink
of half of that. The mean of the selected values is then right but for ``exp(-SHARPNESS / 2)`` of
their range.

A **width** is a head with a sink at the selected keys' own score: of w selected keys it gives w /
(w + 1).

A **function** of other variables is a feed-forward network. Its inputs are added up with strides,
so that different combinations of values give different sums, and each change of the result from a
sum to the next takes two ReLU units::

    step(x) = relu(u) - relu(u - 1)   with u = (x - low) / (high - low)

which is exactly 0 up to ``low`` and 1 from ``high``: errors of the sum up to a quarter of a gap
vanish.

Source: Lindner et al. 2023, "Tracr", arXiv 2301.05062 (programs as weights); OpenAI 2025, gpt-oss
model card (sinks).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from glassformer.errors import InputError
from glassformer.programs.domains import MOST_VALUES, Domains
from glassformer.programs.language import (
    Aggregate,
    Combined,
    Elementwise,
    Input,
    Select,
    Selector,
    Value,
    Variable,
    Width,
    fulfils,
    is_number,
    remembered,
    typed,
)

SHARPNESS = 60.0
"""The score by which a selected key is ahead of others, at least."""
MOST_SUMS = 4096
"""Range of a sum, in gaps, up to which the steps of a function are right in float32."""

MOST_SHARES = 2048
"""The same for sums of shares, which attention computes with errors."""

MOST_LABELS = 64
"""Range of numbers whose squared difference is a cost, so that its products are small beside
float32's precision.
"""

MOST_FEATURES = 256
"""Of keys, for one selector."""

FEW_CHANGES = 64
"""Changes of a function up to which it is computed in as few layers as possible."""
FEWER_CHANGES = 4
"""By which factor there have to be fewer changes for more layers."""

Function = Callable[[Value], float]


@dataclass(eq=False)
class Stored:
    """A variable in the residual stream, from the time ``born`` to the time ``read``.

    Times: 0 is the embedding, 2 l + 1 the attention of layer l, 2 l + 2 its feed-forward network.
    """

    part: Variable
    name: str
    born: int
    domain: tuple[Value, ...] | None
    free: bool
    """Whether any feature can be stored; otherwise only its value."""
    features: list[Float[np.ndarray, " value"]] = field(default_factory=list)
    """The features in its coordinates; of a variable that is not free there is one, the value."""
    copied: list[Sum] = field(default_factory=list)
    """If a head writes it: for each feature the number at a key of which it takes the mean, less
    ``defaults``.
    """
    defaults: list[float] = field(default_factory=list)
    """If a head writes it: for each feature what is added everywhere, and so is left where nothing
    is selected.
    """
    read: int = 0
    """The time of its last reader."""
    coordinates: list[int] = field(default_factory=list)
    solved: dict[bytes, tuple[np.ndarray, float]] = field(default_factory=dict)
    """Solutions found, which more features may not lose: with those the equations can be solved
    less exactly.
    """

    def solve(
        self, wanted: Float[np.ndarray, " value"]
    ) -> tuple[Float[np.ndarray, " feature"], float] | None:
        """The factors of its features, and the constant, that give ``wanted``; None if there are
        none.
        """
        span = float(np.ptp(wanted))
        if span == 0:
            return np.zeros(len(self.features)), float(wanted[0])
        for place, feature in enumerate(self.features):
            if np.array_equal(feature, wanted):
                return np.eye(1, len(self.features), place)[0], 0.0
        if wanted.tobytes() not in self.solved:
            solution = self._solution(wanted, span)
            if solution is None:
                return None
            self.solved[wanted.tobytes()] = solution
        factors, constant = self.solved[wanted.tobytes()]
        return np.pad(factors, (0, len(self.features) - len(factors))), constant

    def _solution(
        self, wanted: Float[np.ndarray, " value"], span: float
    ) -> tuple[np.ndarray, float] | None:
        features = np.column_stack([*self.features, np.ones(len(wanted))])
        found = np.linalg.lstsq(features, wanted, rcond=None)[0]
        if (
            np.abs(features @ found - wanted).max() > 1e-11 * span
        ):  # numbers far from 0, or of different sizes
            middle = np.append((features.max(0) + features.min(0))[:-1] / 2, 0.0)
            sizes = np.append(np.ptp(features, axis=0)[:-1], 1.0)
            far = float(wanted.min() + wanted.max()) / 2
            scaled = (features - middle) / np.where(sizes > 0, sizes, 1)
            found = np.linalg.lstsq(scaled, wanted - far, rcond=None)[0]
            if np.abs(scaled @ found - (wanted - far)).max() > 1e-11 * span:
                return None
            found = found / sizes
            found[-1] += far - found @ middle
        found[np.abs(found) * np.append(np.ptp(features, axis=0)[:-1], 1) < 1e-12 * span] = 0
        return found[:-1], float(found[-1])


@dataclass(frozen=True, eq=False)
class Sum:
    """A number that can be read off the stream: features or multiples of stored variables, and a
    constant.
    """

    terms: tuple[tuple[Stored, Float[np.ndarray, " _"] | float], ...] = ()
    constant: float = 0.0

    @property
    def born(self) -> int:
        """The time from which it can be read."""
        return max((stored.born for stored, _ in self.terms), default=0)

    def read_at(self, time: int) -> Sum:
        """The same; keeps what it reads until then."""
        for stored, _ in self.terms:
            stored.read = max(stored.read, time)
        return self

    def times(self, factor: float) -> Sum:
        """A multiple."""
        return Sum(
            tuple((stored, wanted * factor) for stored, wanted in self.terms),
            self.constant * factor,
        )

    def plus(self, other: Sum) -> Sum:
        """The sum of two."""
        return Sum(self.terms + other.terms, self.constant + other.constant)


@dataclass(eq=False)
class Head:
    """One attention head: the cost of its selector, and what it copies."""

    selector: Selector
    time: int
    queries: list[Sum]
    keys: list[Sum]
    sink: float | None
    """The sink's score, 0 or below; None for none."""
    writes: list[Stored] = field(default_factory=list)


@dataclass(eq=False)
class Lookup:
    """A function in a feed-forward network: the place of its value for each value of the sum,
    ascending.
    """

    time: int
    sum: Sum
    points: list[tuple[float, int]]
    stored: Stored
    parts: tuple[Variable, ...]
    """What it is looked up from."""


class _Attempt(NamedTuple):
    """A way of looking a function up: what it is looked up from, and its result for each value of
    their sum.
    """

    changes: int
    """Of the result, from each value of the sum to the next."""
    parts: list[Variable]
    shares: bool
    """Whether the sum has shares of widths."""
    strides: list[float]
    points: list[tuple[float, int]]


@dataclass(eq=False)
class Plan:
    """What a program takes: stored variables, heads, functions and the output."""

    domains: Domains
    stored: dict[object, Stored] = field(default_factory=dict)
    heads: dict[object, Head] = field(default_factory=dict)
    lookups: dict[object, Lookup] = field(default_factory=dict)

    # ---- what can be read
    # -------------------------------------------------------------------------------------------

    def is_free(self, part: Variable) -> bool:
        """Whether any function of a variable can be read where the variable can."""
        if isinstance(part, Aggregate):
            return not self.domains.averaged(part) and self.is_free(part.values)
        if not isinstance(part, Elementwise) or self._root(part) is not part:
            return True
        return part.linear is None or not all(map(self.domains.numeric, part.sources))

    def _root(self, part: Variable) -> Variable:
        """The variable that an elementwise one is a function of, if it is one and free; otherwise
        itself.
        """
        roots = self.domains.roots(part)
        if len(roots) == 1 and roots[0] is not part and self.is_free(roots[0]):
            return roots[0]
        return part

    def read(self, part: Variable, wanted: Function | None = None) -> Sum:
        """A function of a variable, or its value as a number (:meth:`code`)."""
        if not self.is_free(part) and (wanted is None or self._is_code(part, wanted)):
            return self._value(part)
        wanted = self.code(part) if wanted is None else wanted
        root = self._root(part)
        function = wanted
        if root is not part:
            return self.read(root, lambda value: function(self.domains.value(part, {root: value})))
        return self._feature(self._free_form(part), wanted, part)

    def _free_form(self, part: Variable) -> Stored:
        """Where any function of a variable can be read."""
        if isinstance(part, Aggregate) and self.is_free(part):
            return self._aggregated(part)
        if isinstance(part, Input):
            return self.stored.setdefault(
                part, Stored(part, str(part), 0, self.domains.listed(part), free=True)
            )
        return self._looked_up(part)

    def code(self, part: Variable) -> Function:
        """Different numbers for the values of a variable: themselves if they are numbers, and near
        to one another.

        Of a variable that is not free, numbers stand for themselves in any case.
        """
        if self.domains.numeric(part) and not self.is_free(part):
            return float
        values = self.domains.listed(part)
        if self.is_free(part) and not _evenly(values):
            codes = {typed(value): float(place) for place, value in enumerate(values)}
        else:
            codes = {typed(value): float(value) for value in values if is_number(value)}
            first = math.floor(max(codes.values())) + 1 if codes else 0
            others = [value for value in values if not is_number(value)]
            codes |= {typed(value): float(first + place) for place, value in enumerate(others)}
        return lambda value: codes[typed(value)]

    def _is_code(self, part: Variable, wanted: Function) -> bool:
        if wanted is float and self.domains.numeric(part):
            return True
        values = self.domains.of(part)
        code = self.code(part)
        return values is not None and all(wanted(value) == code(value) for value in values)

    def _value(self, part: Variable) -> Sum:
        """The code of a variable that is not free."""
        if isinstance(part, Elementwise) and part.linear is not None:
            total = Sum(constant=float(part.linear[1]))
            for source, factor in zip(part.sources, part.linear[0], strict=True):
                total = total.plus(self.read(source, float).times(float(factor)))
            return total
        assert isinstance(part, Aggregate)
        return Sum(((self._aggregated(part), 1.0),))

    def _feature(self, stored: Stored, wanted: Function, part: Variable) -> Sum:
        assert stored.domain is not None
        vector = np.array([float(wanted(value)) for value in stored.domain])
        if stored.solve(vector) is None:
            stored.features.append(vector)
            if isinstance(part, Aggregate):
                sure = self.domains.reflexive(part.selector)
                default = 0.0 if sure else float(wanted(part.default))
                origin = self.read(part.values, lambda value: wanted(value) - default)
                stored.copied.append(origin.read_at(stored.born))
                stored.defaults.append(default)
        return Sum(((stored, vector),))

    # ---- heads ------------------------------------------------------------------------------------------------------

    def _aggregated(self, part: Aggregate) -> Stored:
        key = self.domains.key(part)
        if key not in self.stored:
            free = self.is_free(part)
            sure = self.domains.reflexive(part.selector)
            if free:
                origin = Sum()
            else:
                origin = self.read(
                    part.values, float if self.domains.numeric(part) else self.code(part)
                )
            if free:
                born = self._free_form(self._root(part.values)).born
            else:
                born = origin.born
            head = self._head(part.selector, None if sure else -SHARPNESS / 2, born)
            stored = Stored(part, str(part), head.time, self.domains.of(part), free)
            if not free:
                default = 0.0 if sure else self.code(part)(part.default)
                stored.features.append(np.empty(0))
                stored.copied.append(origin.plus(Sum(constant=-default)).read_at(head.time))
                stored.defaults.append(default)
            head.writes.append(stored)
            self.stored[key] = stored
        return self.stored[key]

    def _head(self, selector: Selector, sink: float | None, born: int) -> Head:
        terms = _joined([term for part in self._conjunction(selector) for term in self._cost(part)])
        time = (max([born, *(side.born for pair in terms for side in pair)]) + 1) // 2 * 2 + 1
        key = "head", self.domains.key(selector), sink, time
        if key not in self.heads:
            queries, keys = (
                ([side.read_at(time) for side in sides] for sides in zip(*terms, strict=True))
                if terms
                else ([], [])
            )
            self.heads[key] = Head(selector, time, queries, keys, sink)
        return self.heads[key]

    def _conjunction(self, selector: Selector) -> list[Select]:
        """Selectors that all hold where ``selector`` does, each once."""
        found: dict[int, Select] = {}
        waiting = [selector]
        seen = set[Selector]()
        while waiting:
            part = waiting.pop()
            if part in seen:
                continue
            seen.add(part)
            if isinstance(part, Combined):
                corners = itertools.product((False, True), repeat=len(part.parts))
                if all(bool(part.function(*bits)) == all(bits) for bits in corners):
                    waiting += reversed(part.parts)
                    continue
                part = self._joint(part)
            assert isinstance(part, Select)
            found.setdefault(self.domains.key(part), part)
        return list(found.values())

    def _joint(self, selector: Combined) -> Select:
        """Any selector as one of tuples of keys' and of queries' values."""
        order: dict[Selector, None] = {}  # each after its parts

        def add(part: Selector) -> None:
            if part not in order:
                for each in part.parts if isinstance(part, Combined) else ():
                    add(each)
                order[part] = None

        add(selector)
        selects = [each for each in order if isinstance(each, Select)]
        keys = list({self.domains.key(each.keys): each.keys for each in selects}.values())
        queries = list({self.domains.key(each.queries): each.queries for each in selects}.values())

        def joined(variables: list[Variable]) -> Variable:
            label = f"({', '.join(map(str, variables))})"
            return Elementwise(lambda *values: values, tuple(variables), label, takes_none=True)

        def place(part: Variable, among: list[Variable]) -> int:
            return [self.domains.key(each) for each in among].index(self.domains.key(part))

        places = {each: (place(each.keys, keys), place(each.queries, queries)) for each in selects}

        def holds(key: tuple[Value, ...], query: tuple[Value, ...]) -> bool:
            known: dict[Selector, bool] = {}
            for part in order:
                if isinstance(part, Combined):
                    known[part] = bool(part.function(*(known[each] for each in part.parts)))
                elif isinstance(part, Select):
                    known[part] = fulfils(part, key[places[part][0]], query[places[part][1]])
            return known[selector]

        return Select(joined(keys), joined(queries), holds, str(selector))

    def _cost(self, part: Select) -> list[tuple[Sum, Sum]]:
        """Pairs of a query's and a key's number, whose products add up to the cost."""
        chosen = self.domains.table(part)
        keys = self.domains.listed(part.keys)
        queries = self.domains.listed(part.queries)
        if chosen.all():
            return []
        if not chosen.any():
            return [(Sum(constant=1.0), Sum(constant=1.0))]
        factors = _squares(chosen, keys) or _ranks(chosen, part)
        same = [(q, k) for q, k in factors if np.ptp(q) == 0]
        if len(same) > 1:  # as one feature of the keys
            whole = np.sum([q[0] * k for q, k in same], axis=0)
            factors = [
                *(pair for pair in factors if np.ptp(pair[0]) > 0),
                (np.ones(len(queries)), whole),
            ]

        def side(variable: Variable, column: Float[np.ndarray, " value"]) -> Sum:
            if np.ptp(column) == 0:
                return Sum(constant=float(column[0]))
            numbers = dict(
                zip(map(typed, self.domains.listed(variable)), column.tolist(), strict=True)
            )
            return self.read(variable, lambda value: numbers[typed(value)])

        return [(side(part.queries, q), side(part.keys, k)) for q, k in factors]

    # ---- functions
    # --------------------------------------------------------------------------------------------------

    def _looked_up(self, part: Variable) -> Stored:
        key = "function", self.domains.key(part)
        if key not in self.stored:
            attempt = self._best(part)
            total = Sum()
            for source, stride in zip(attempt.parts, attempt.strides, strict=True):
                if attempt.shares and isinstance(source, Width):
                    term = self._share(source)
                else:
                    term = self.read(source)
                total = total.plus(term.times(stride))
            time = (total.born + 2) // 2 * 2
            points = sorted(attempt.points, key=lambda point: point[0])
            stored = Stored(part, str(part), time, self.domains.listed(part), free=True)
            self.stored[key] = stored
            self.lookups[key] = Lookup(
                time, total.read_at(time), points, stored, tuple(attempt.parts)
            )
        return self.stored[key]

    def _share(self, part: Width) -> Sum:
        """``w / (w + 1)`` of a width w."""
        key = "share", self.domains.key(part)
        if key not in self.stored:
            head = self._head(part.selector, 0.0, 0)
            stored = Stored(
                part, f"share of {part}", head.time, None, free=False, features=[np.empty(0)]
            )
            stored.copied.append(Sum(constant=1.0))
            stored.defaults.append(0.0)
            head.writes.append(stored)
            self.stored[key] = stored
        return Sum(((self.stored[key], 1.0),))

    def _best(self, part: Variable) -> _Attempt:
        """How a function is looked up."""
        leaves = self._leaves(part)
        roots = self.domains.roots(part)
        if isinstance(part, Width):
            attempts = [(leaves, True)]
        else:
            attempts = [(leaves, True), (leaves, False)]
        if any(
            isinstance(root, Width) for root in roots
        ):  # from its share, without a layer that looks it up
            attempts.insert(0, (roots, True))
        if isinstance(part, Elementwise):
            attempts.append((part.sources, False))
        best: _Attempt | None = None
        for parts, shares in attempts:  # later ones take more layers
            found = self._attempt(part, parts, shares)
            if found is not None and (best is None or found.changes < best.changes / FEWER_CHANGES):
                best = found
                if best.changes <= FEW_CHANGES:
                    break
        if best is None:
            self._refuse_alike(part)
            raise InputError(
                f"{part}, a function of too many combinations of values, or a count of too many "
                "keys",
                f"at most {MOST_VALUES} combinations, whose sums float32 tells apart",
                "Shorten max_len, or map its sources to fewer values first.",
            )
        return best

    def _attempt(self, part: Variable, parts: Sequence[Variable], shares: bool) -> _Attempt | None:
        """How a function is looked up from these parts, if they have few enough combinations."""
        sources = list({self.domains.key(each): each for each in parts}.values())
        given = self.domains.combinations(sources)
        if given is None:
            return None
        by_key = {self.domains.key(each): each for each in sources}
        stands_for = {each: by_key[self.domains.key(each)] for each in parts}
        table = []
        for each in given:  # some combinations of sums and what is in them are not possible
            try:
                result = self.domains.value(
                    part, {one: each[source] for one, source in stands_for.items()}
                )
            except InputError:
                continue
            place = self.domains.place(part, result)
            if place is not None:
                table.append((tuple(each[source] for source in sources), place))
        share: Function = lambda value: value / (value + 1)  # noqa: E731
        codes = [
            share if shares and isinstance(source, Width) else self.code(source)
            for source in sources
        ]
        listed = [
            list(map(code, self.domains.listed(one)))
            for one, code in zip(sources, codes, strict=True)
        ]
        numbers = np.array(
            [
                [code(value) for code, value in zip(codes, values, strict=True)]
                for values, _ in table
            ]
        )
        places = [place for _, place in table]
        found = _strides(listed, numbers, np.array(places), MOST_SHARES if shares else MOST_SUMS)
        if found is None:
            return None
        changes, strides = found
        sums = (numbers * strides).sum(axis=1).tolist()
        points = {round(at, 9): (at, place) for at, place in zip(sums, places, strict=True)}
        return _Attempt(changes, sources, shares, strides, list(points.values()))

    def _refuse_alike(self, part: Variable) -> None:
        """Refuse a function of numbers that are too near to one another, by its two nearest that it
        tells apart.
        """
        for source in part.sources if isinstance(part, Elementwise) else (part,):
            listed = self.domains.of(source)
            if listed is None or self.is_free(source) or not all(map(is_number, listed)):
                continue
            ordered = sorted(listed, key=float)
            pairs = sorted(
                itertools.pairwise(ordered), key=lambda pair: float(pair[1]) - float(pair[0])
            )
            low, high = (float(each) for each in pairs[0]) if pairs else (0.0, 1.0)
            if high - low <= max(abs(low), abs(high)) / MOST_SUMS:
                got = f"{part} of {pairs[0][0]!r} and {pairs[0][1]!r}, which float32 does not tell apart well enough"
                raise InputError(
                    got, "numbers further apart", "Subtract what they have in common first."
                )

    @remembered
    def _leaves(self, part: Variable) -> tuple[Variable, ...]:
        """What a function is looked up from: roots, and sums of numbers that are in the stream
        anyway.
        """
        if not isinstance(part, Elementwise):
            return (part,)
        found: list[Variable] = []
        for source in part.sources:
            whole = isinstance(source, Elementwise) and source.linear and not self.is_free(source)
            found += [source] if whole else self._leaves(source)
        return tuple(dict.fromkeys(found))


def _joined(terms: list[tuple[Sum, Sum]]) -> list[tuple[Sum, Sum]]:
    """The same cost with one term for what depends on the key alone, and one for what depends on
    the query alone.
    """
    of_key = [(q, k) for q, k in terms if not q.terms]
    of_query = [(q, k) for q, k in terms if q.terms and not k.terms]
    both = [(q, k) for q, k in terms if q.terms and k.terms]
    one = Sum(constant=1.0)
    if of_key:
        both.append((one, reduce(Sum.plus, [k.times(q.constant) for q, k in of_key])))
    if of_query:
        both.append((reduce(Sum.plus, [q.times(k.constant) for q, k in of_query]), one))
    return both


def _evenly(values: Sequence[Value]) -> bool:
    """Whether numbers, with None among them, are at most twice as far apart as the nearest two, and
    not far from 0.
    """
    numbers = [float(value) for value in values if is_number(value)]
    if len(numbers) < 2:
        return not numbers or abs(numbers[0]) <= MOST_SUMS
    gap = float(np.diff(np.sort(numbers)).min())
    if len(numbers) < len(values):  # others are 1 apart
        gap = min(gap, 1.0)
    return (
        bool(np.ptp(numbers) <= 2 * gap * len(values)) and max(map(abs, numbers)) < MOST_SUMS * gap
    )


def _squares(
    chosen: np.ndarray, keys: Sequence[Value]
) -> list[tuple[Float[np.ndarray, " query"], Float[np.ndarray, " key"]]] | None:
    """Of a relation "equal labels": ``|a - b|²`` with the label a of the query and b of the key, if
    it is one.

    A label is a number; where there are many, two or more digits, so that no product is large.
    """
    sets: dict[bytes, int] = {}  # of keys, by the place of the label
    places = np.array(
        [sets.setdefault(row.tobytes(), len(sets)) if row.any() else -1 for row in chosen]
    )
    first = [int(np.flatnonzero(places == place)[0]) for place in range(len(sets))]
    if (chosen[first].sum(0) > 1).any():
        return None
    held = chosen[first].any(0)
    of_keys = np.where(held, chosen[first].argmax(0), -1)
    if len(sets) + 2 > MOST_LABELS:
        return _digits(places, of_keys, len(sets))
    alone = all(map(is_number, keys)) and bool((chosen[first].sum(1) == 1).all())
    labels = np.arange(len(sets), dtype=np.float64)
    if alone:
        numbers = np.array([float(keys[row.argmax()]) for row in chosen[first]])
        if len(numbers) > 1:
            gap = np.diff(np.sort(numbers)).min()
        else:
            gap = 1.0
        alone = bool(gap >= 1 and np.ptp(numbers) < MOST_LABELS)
        labels = numbers if alone else labels
    middle = round((labels.min() + labels.max()) / 2)
    labels = labels - middle
    a = np.where(places >= 0, labels[places], labels.min() - 1)
    b = np.where(held, labels[of_keys], labels.max() + 1)
    if not held.all() and alone:  # keep keys' own numbers where they are far enough, and near
        own = np.array([float(key) for key in keys]) - middle
        apart = (
            np.abs(own[~held][:, None] - np.unique(np.append(a, labels))[None]).min(initial=1) >= 1
        )
        b = own if apart and np.abs(own).max() <= MOST_LABELS else b
    return [(a**2, np.ones(len(b))), (-2 * a, b), (np.ones(len(a)), b**2)]


def _digits(
    of_queries: np.ndarray, of_keys: np.ndarray, count: int
) -> list[tuple[Float[np.ndarray, " query"], Float[np.ndarray, " key"]]]:
    """The squared distance of labels' digits; -1 is a label that is equal to no other."""
    digits = math.ceil(math.log(count + 2) / math.log(MOST_LABELS))
    base = math.ceil((count + 2) ** (1 / digits))
    sides = np.where(of_queries < 0, count, of_queries), np.where(of_keys < 0, count + 1, of_keys)
    a, b = (
        np.array(
            [labels // base**digit % base - base // 2 for digit in range(digits)], dtype=np.float64
        )
        for labels in sides
    )
    squares = [((a**2).sum(0), np.ones(b.shape[1])), (np.ones(a.shape[1]), (b**2).sum(0))]
    return [*squares, *((-2 * one, other) for one, other in zip(a, b, strict=True))]


def _ranks(
    chosen: np.ndarray, part: Select
) -> list[tuple[Float[np.ndarray, " query"], Float[np.ndarray, " key"]]]:
    """A cost of 1 for what is not chosen, as products of as many columns as its rank."""
    cost = 1.0 - chosen
    basis: list[np.ndarray] = []
    normed = np.zeros((MOST_FEATURES, cost.shape[1]))
    for row in (np.ones(cost.shape[1]), *map(np.array, sorted({*map(tuple, cost)}))):
        left = row - normed[: len(basis)].T @ (normed[: len(basis)] @ row)
        left -= normed[: len(basis)].T @ (normed[: len(basis)] @ left)
        if np.linalg.norm(left) > 1e-6 * np.linalg.norm(row) > 0:
            if len(basis) == MOST_FEATURES:
                got = f"{part}, which takes more than {MOST_FEATURES} features of keys"
                raise InputError(got, "fewer", "Shorten max_len, or compare fewer values.")
            normed[len(basis)] = left / np.linalg.norm(left)
            basis.append(row)
    columns = np.array(basis)
    factors = np.linalg.lstsq(columns.T, cost.T, rcond=None)[0]
    factors[np.abs(factors) < 1e-9] = 0
    if np.array_equal(factors.round(9).T @ columns, cost):
        factors = factors.round(9)
    return [(factor, row) for factor, row in zip(factors, basis, strict=True) if factor.any()]


def _strides(
    codes: list[list[float]],
    numbers: Float[np.ndarray, "combination source"],
    places: Int[np.ndarray, " combination"],
    most: int,
) -> tuple[int, list[float]] | None:
    """Factors of the sources, so that equal sums have equal results, with few changes, and how many
    these are.
    """
    gaps = [float(np.diff(np.unique(each)).min(initial=math.inf)) for each in codes]
    gaps = [each if each < math.inf else 1.0 for each in gaps]
    spans = [(max(each) - min(each)) / gap for each, gap in zip(codes, gaps, strict=True)]
    count = len(codes)
    best = None
    if count > 1:
        orders = [list(range(count)), list(reversed(range(count)))]
    else:
        orders = [[0]]
    candidates = [[1.0 / gap for gap in gaps]]
    if count == 2:
        candidates.append([1.0 / gaps[0], -1.0 / gaps[1]])
    for order in orders:
        stride = 1.0
        product = [0.0] * count
        for place in order:
            product[place] = stride / gaps[place]
            stride *= spans[place] + 1
        candidates.append(product)
    for strides in candidates:
        sums = numbers @ np.array(strides)
        ascending = np.argsort(sums, kind="stable")
        steps = np.diff(sums[ascending])[np.diff(places[ascending]) != 0]
        rank = len(steps), -float(steps.min(initial=math.inf))
        if rank[1] < -1e-6 and np.ptp(sums) <= -most * rank[1] and (best is None or rank < best[0]):
            best = rank, strides
    return None if best is None else (best[0][0], best[1])
