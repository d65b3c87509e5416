r"""Plans of transformers: the variables, heads and functions that a program needs.

Every variable that the transformer has to hold is *stored* in coordinates of its residual stream,
by the functions of it that its readers need, *features*. Readers are linear, so there are as many
coordinates as features have dimensions, apart from constants, which biases add. A function of
tokens alone, or of indices alone, is in the embeddings.

A **selector** is a cost of each pair of a key's and a query's value: 0 if selected, at least 1 if
not. The cost is a sum of products of a feature of the query and one of the key, as few as its rank.
A head's score is ``-SHARPNESS`` times the cost. Where nothing may be selected, the head has a sink
of half of that. The mean of the selected values is then right but for ``exp(-SHARPNESS / 2)`` of
their range.

A **width** is a head with a sink at the selected keys' own score: of w selected keys it gives
``w / (w + 1)``.

A **function** of other variables is a feed-forward network. Its inputs are added up with strides,
so that different combinations of values give different sums, and each change of the result from a
sum to the next takes two ReLU units::

    step(x) = relu(u) - relu(u - 1)   with u = (x - low) / (high - low)

which is exactly 0 up to ``low`` and 1 from ``high``: errors of up to a quarter of a gap vanish.

Source: Lindner et al. 2023, "Tracr", arXiv 2301.05062 (programs as weights); OpenAI 2025, gpt-oss
model card (sinks).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
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
"""Smallest lead of a selected key's score over others."""
MOST_SUMS = 4096
"""Range of a sum, in gaps, up to which the steps of a function are right in float32."""

MOST_SHARES = 2048
"""Range of a sum of shares, in gaps; attention computes shares with errors."""

MOST_LABELS = 64
"""Range of numbers whose squared difference is a cost. Its products stay exact in float32."""

MOST_FEATURES = 256
"""Largest number of keys' features for one selector."""

FEW_CHANGES = 64
"""Changes of a function up to which it is computed in as few layers as possible."""
FEWER_CHANGES = 4
"""The factor by which more layers have to reduce the number of changes."""

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
    """True if any feature can be stored; otherwise only its value can."""
    features: list[Float[np.ndarray, " value"]] = field(default_factory=list)
    """The features in its coordinates. A variable that is not free has one, its value."""
    copied: list[Sum] = field(default_factory=list)
    """For each feature that a head writes, the copied number less the default."""
    defaults: list[float] = field(default_factory=list)
    """For each feature that a head writes, the number where nothing is selected.

    It is a bias of the head's output.
    """
    read: int = 0
    """The time of its last reader."""
    coordinates: list[int] = field(default_factory=list)
    solved: dict[bytes, tuple[np.ndarray, float]] = field(default_factory=dict)
    """Solutions of :meth:`solve`, by target.

    They are kept because more features can make the equations harder to solve exactly.
    """

    def solve(
        self, target: Float[np.ndarray, " value"]
    ) -> tuple[Float[np.ndarray, " feature"], float] | None:
        """Return factors of the features and a constant that give a function of the variable.

        Args:
            target: The function, at each value of the variable.

        Returns:
            None if no factors give it.
        """
        span = float(np.ptp(target))
        if span == 0:
            return np.zeros(len(self.features)), float(target[0])
        for place, feature in enumerate(self.features):
            if np.array_equal(feature, target):
                return np.eye(1, len(self.features), place)[0], 0.0
        if target.tobytes() not in self.solved:
            solution = self._solution(target, span)
            if solution is None:
                return None
            self.solved[target.tobytes()] = solution
        factors, constant = self.solved[target.tobytes()]
        return np.pad(factors, (0, len(self.features) - len(factors))), constant

    def _solution(
        self, target: Float[np.ndarray, " value"], span: float
    ) -> tuple[np.ndarray, float] | None:
        features = np.column_stack([*self.features, np.ones(len(target))])
        solution = np.linalg.lstsq(features, target, rcond=None)[0]
        if np.abs(features @ solution - target).max() > 1e-11 * span:
            # The numbers are far from 0, or of different sizes.
            middle = np.append((features.max(0) + features.min(0))[:-1] / 2, 0.0)
            sizes = np.append(np.ptp(features, axis=0)[:-1], 1.0)
            far = float(target.min() + target.max()) / 2
            scaled = (features - middle) / np.where(sizes > 0, sizes, 1)
            solution = np.linalg.lstsq(scaled, target - far, rcond=None)[0]
            if np.abs(scaled @ solution - (target - far)).max() > 1e-11 * span:
                return None
            solution = solution / sizes
            solution[-1] += far - solution @ middle
        contributions = np.abs(solution) * np.append(np.ptp(features, axis=0)[:-1], 1)
        solution[contributions < 1e-12 * span] = 0
        return solution[:-1], float(solution[-1])


@dataclass(frozen=True, eq=False)
class Sum:
    """A number that can be read off the stream.

    It is the sum of features or multiples of stored variables, and a constant.
    """

    terms: tuple[tuple[Stored, Float[np.ndarray, " _"] | float], ...] = ()
    constant: float = 0.0

    @property
    def born(self) -> int:
        """The time from which it can be read."""
        return max((stored.born for stored, _ in self.terms), default=0)

    def read_at(self, time: int) -> Sum:
        """Keep the variables of the sum until ``time``, and return it."""
        for stored, _ in self.terms:
            stored.read = max(stored.read, time)
        return self

    def times(self, factor: float) -> Sum:
        """Return a multiple."""
        terms = tuple((stored, term * factor) for stored, term in self.terms)
        return Sum(terms, self.constant * factor)

    def plus(self, other: Sum) -> Sum:
        """Return the sum of two."""
        return Sum(self.terms + other.terms, self.constant + other.constant)


@dataclass(eq=False)
class Head:
    """One attention head: the cost of its selector, and the variables that it writes."""

    selector: Selector
    time: int
    queries: list[Sum]
    keys: list[Sum]
    sink: float | None
    """The sink's score, 0 or below; None for none."""
    writes: list[Stored] = field(default_factory=list)


@dataclass(eq=False)
class Lookup:
    """A function that a feed-forward network looks up by a sum."""

    time: int
    sum: Sum
    points: list[tuple[float, int]]
    """Each value of the sum, ascending, with the place of the function's value."""
    stored: Stored
    parts: tuple[Variable, ...]
    """The variables that the sum consists of."""


class _Attempt(NamedTuple):
    """A way of looking a function up by a sum of variables."""

    changes: int
    """Number of changes of the result from a value of the sum to the next."""
    parts: list[Variable]
    shares: bool
    """True if the sum has shares of widths instead of widths."""
    strides: list[float]
    """The factor of each variable in the sum."""
    points: list[tuple[float, int]]
    """Each value of the sum with the place of the result."""


@dataclass(eq=False)
class Plan:
    """The stored variables, heads and functions that a program needs."""

    domains: Domains
    stored: dict[object, Stored] = field(default_factory=dict)
    heads: dict[object, Head] = field(default_factory=dict)
    lookups: dict[object, Lookup] = field(default_factory=dict)

    # ---- reading variables ----

    def is_free(self, part: Variable) -> bool:
        """Return whether any function of a variable can be read where the variable can."""
        if isinstance(part, Aggregate):
            return not self.domains.averaged(part) and self.is_free(part.values)
        if not isinstance(part, Elementwise) or self._root(part) is not part:
            return True
        return part.linear is None or not all(map(self.domains.numeric, part.sources))

    def _root(self, part: Variable) -> Variable:
        """Return the only variable that ``part`` is a function of, if it is free; else ``part``."""
        roots = self.domains.roots(part)
        if len(roots) == 1 and roots[0] is not part and self.is_free(roots[0]):
            return roots[0]
        return part

    def read(self, part: Variable, feature: Function | None = None) -> Sum:
        """Return a function of a variable, or its value as a number (:meth:`code`)."""
        if not self.is_free(part) and (feature is None or self._is_code(part, feature)):
            return self._value(part)
        if feature is None:
            feature = self.code(part)
        root = self._root(part)
        function = feature
        if root is not part:
            return self.read(root, lambda value: function(self.domains.value(part, {root: value})))
        return self._feature(self._free_form(part), feature, part)

    def _free_form(self, part: Variable) -> Stored:
        """Return the stored variable of which any function can be read."""
        if isinstance(part, Aggregate) and self.is_free(part):
            return self._aggregated(part)
        if isinstance(part, Input):
            stored = Stored(
                part,
                str(part),
                0,
                self.domains.listed(part),
                free=True,
            )
            return self.stored.setdefault(part, stored)
        return self._looked_up(part)

    def code(self, part: Variable) -> Function:
        """Return a function that gives each value of a variable a different number.

        Numbers that are near to one another stand for themselves. All numbers do if the variable
        is not free.
        """
        if self.domains.numeric(part) and not self.is_free(part):
            return float
        values = self.domains.listed(part)
        if self.is_free(part) and not _evenly(values):
            codes = {typed(value): float(place) for place, value in enumerate(values)}
        else:
            codes = {typed(value): float(value) for value in values if is_number(value)}
            first = 0
            if codes:
                first = math.floor(max(codes.values())) + 1
            others = [value for value in values if not is_number(value)]
            for place, value in enumerate(others):
                codes[typed(value)] = float(first + place)
        return lambda value: codes[typed(value)]

    def _is_code(self, part: Variable, feature: Function) -> bool:
        if feature is float and self.domains.numeric(part):
            return True
        values = self.domains.of(part)
        code = self.code(part)
        return values is not None and all(feature(value) == code(value) for value in values)

    def _value(self, part: Variable) -> Sum:
        """Return the code of a variable that is not free."""
        if isinstance(part, Elementwise) and part.linear is not None:
            total = Sum(constant=float(part.linear[1]))
            for source, factor in zip(part.sources, part.linear[0], strict=True):
                total = total.plus(self.read(source, float).times(float(factor)))
            return total
        assert isinstance(part, Aggregate)
        return Sum(((self._aggregated(part), 1.0),))

    def _feature(self, stored: Stored, function: Function, part: Variable) -> Sum:
        assert stored.domain is not None
        vector = np.array([float(function(value)) for value in stored.domain])
        if stored.solve(vector) is None:
            stored.features.append(vector)
            if isinstance(part, Aggregate):
                default = 0.0
                if not self.domains.reflexive(part.selector):
                    default = float(function(part.default))
                origin = self.read(part.values, lambda value: function(value) - default)
                stored.copied.append(origin.read_at(stored.born))
                stored.defaults.append(default)
        return Sum(((stored, vector),))

    # ---- heads ----

    def _aggregated(self, part: Aggregate) -> Stored:
        """Return an aggregate as a head writes it."""
        key = self.domains.key(part)
        if key not in self.stored:
            free = self.is_free(part)
            reflexive = self.domains.reflexive(part.selector)
            origin = Sum()
            if free:
                born = self._free_form(self._root(part.values)).born
            else:
                code: Function = float
                if not self.domains.numeric(part):
                    code = self.code(part)
                origin = self.read(part.values, code)
                born = origin.born
            sink = None if reflexive else -SHARPNESS / 2
            head = self._head(part.selector, sink, born)
            stored = Stored(
                part,
                str(part),
                head.time,
                self.domains.of(part),
                free,
            )
            if not free:
                default = 0.0 if reflexive else self.code(part)(part.default)
                stored.features.append(np.empty(0))
                stored.copied.append(origin.plus(Sum(constant=-default)).read_at(head.time))
                stored.defaults.append(default)
            head.writes.append(stored)
            self.stored[key] = stored
        return self.stored[key]

    def _head(self, selector: Selector, sink: float | None, born: int) -> Head:
        """Return the head of a selector, after everything that it reads is born."""
        costs = [self._cost(part) for part in self._conjunction(selector)]
        terms = _joined(list(itertools.chain.from_iterable(costs)))
        ready = max([born, *(side.born for side in itertools.chain.from_iterable(terms))])
        time = (ready + 1) // 2 * 2 + 1
        key = ("head", self.domains.key(selector), sink, time)
        if key not in self.heads:
            queries = [query.read_at(time) for query, _ in terms]
            keys = [key_side.read_at(time) for _, key_side in terms]
            self.heads[key] = Head(
                selector=selector,
                time=time,
                queries=queries,
                keys=keys,
                sink=sink,
            )
        return self.heads[key]

    def _conjunction(self, selector: Selector) -> list[Select]:
        """Return selects that all hold exactly where ``selector`` does, each once."""
        selects: dict[int, Select] = {}
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
            selects.setdefault(self.domains.key(part), part)
        return list(selects.values())

    def _joint(self, selector: Combined) -> Select:
        """Return a selector as a select of tuples of keys' and of queries' values."""
        order: dict[Selector, None] = {}  # each selector after its parts

        def add(part: Selector) -> None:
            if part not in order:
                if isinstance(part, Combined):
                    for inner in part.parts:
                        add(inner)
                order[part] = None

        add(selector)
        selects = [part for part in order if isinstance(part, Select)]
        key_of = self.domains.key
        keys = {key_of(select.keys): select.keys for select in selects}
        queries = {key_of(select.queries): select.queries for select in selects}
        place_of_key = {key: place for place, key in enumerate(keys)}
        place_of_query = {key: place for place, key in enumerate(queries)}
        places: dict[Select, tuple[int, int]] = {}
        for select in selects:
            place = place_of_key[key_of(select.keys)]
            places[select] = (place, place_of_query[key_of(select.queries)])

        def joined(variables: Iterable[Variable]) -> Variable:
            label = f"({', '.join(map(str, variables))})"
            return Elementwise(lambda *values: values, tuple(variables), label, takes_none=True)

        def holds(key: tuple[Value, ...], query: tuple[Value, ...]) -> bool:
            known: dict[Selector, bool] = {}
            for part in order:
                if isinstance(part, Combined):
                    known[part] = bool(part.function(*(known[inner] for inner in part.parts)))
                elif isinstance(part, Select):
                    key_place, query_place = places[part]
                    known[part] = fulfils(part, key[key_place], query[query_place])
            return known[selector]

        return Select(
            joined(keys.values()),
            joined(queries.values()),
            holds,
            str(selector),
        )

    def _cost(self, part: Select) -> list[tuple[Sum, Sum]]:
        """Return pairs of a query's and a key's number, whose products add up to the cost."""
        chosen = self.domains.table(part)
        keys = self.domains.listed(part.keys)
        queries = self.domains.listed(part.queries)
        if chosen.all():
            return []
        if not chosen.any():
            return [(Sum(constant=1.0), Sum(constant=1.0))]
        factors = _squares(chosen, keys) or _ranks(chosen, part)
        of_keys_alone = [(q, k) for q, k in factors if np.ptp(q) == 0]
        if len(of_keys_alone) > 1:
            # Join them into one feature of the keys.
            joined = np.sum([q[0] * k for q, k in of_keys_alone], axis=0)
            factors = [(q, k) for q, k in factors if np.ptp(q) > 0]
            factors.append((np.ones(len(queries)), joined))

        def side(variable: Variable, column: Float[np.ndarray, " value"]) -> Sum:
            if np.ptp(column) == 0:
                return Sum(constant=float(column[0]))
            values = map(typed, self.domains.listed(variable))
            numbers = dict(zip(values, column.tolist(), strict=True))
            return self.read(variable, lambda value: numbers[typed(value)])

        return [(side(part.queries, q), side(part.keys, k)) for q, k in factors]

    # ---- functions ----

    def _looked_up(self, part: Variable) -> Stored:
        """Return a variable as a feed-forward network writes it."""
        key = ("function", self.domains.key(part))
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
            stored = Stored(
                part,
                str(part),
                time,
                self.domains.listed(part),
                free=True,
            )
            self.stored[key] = stored
            self.lookups[key] = Lookup(
                time=time,
                sum=total.read_at(time),
                points=points,
                stored=stored,
                parts=tuple(attempt.parts),
            )
        return self.stored[key]

    def _share(self, part: Width) -> Sum:
        """Return ``w / (w + 1)`` of a width w."""
        key = ("share", self.domains.key(part))
        if key not in self.stored:
            head = self._head(part.selector, 0.0, 0)
            stored = Stored(part, f"share of {part}", head.time, None, free=False)
            stored.features.append(np.empty(0))
            stored.copied.append(Sum(constant=1.0))
            stored.defaults.append(0.0)
            head.writes.append(stored)
            self.stored[key] = stored
        return Sum(((self.stored[key], 1.0),))

    def _best(self, part: Variable) -> _Attempt:
        """Return the best way of looking a function up."""
        leaves = self._leaves(part)
        roots = self.domains.roots(part)
        attempts = []
        if any(isinstance(root, Width) for root in roots):
            # The share of a width needs no layer that looks the width up.
            attempts.append((roots, True))
        attempts.append((leaves, True))
        if not isinstance(part, Width):
            attempts.append((leaves, False))
        if isinstance(part, Elementwise):
            attempts.append((part.sources, False))
        best: _Attempt | None = None
        for parts, shares in attempts:  # later ones take more layers
            attempt = self._attempt(part, parts, shares)
            if attempt is None:
                continue
            if best is None or attempt.changes < best.changes / FEWER_CHANGES:
                best = attempt
                if best.changes <= FEW_CHANGES:
                    break
        if best is None:
            self._refuse_alike(part)
            raise InputError(
                got=(
                    f"{part}, a function of too many combinations of values, or a count of too "
                    "many keys"
                ),
                expected=f"at most {MOST_VALUES} combinations, whose sums float32 tells apart",
                fix="Shorten max_len, or map its sources to fewer values first.",
            )
        return best

    def _attempt(self, part: Variable, parts: Sequence[Variable], shares: bool) -> _Attempt | None:
        """Return how a function is looked up from these parts, if that is possible."""
        key_of = self.domains.key
        source_of_key = {key_of(variable): variable for variable in parts}
        sources = list(source_of_key.values())
        combinations = self.domains.combinations(sources)
        if combinations is None:
            return None
        source_of_part = {variable: source_of_key[key_of(variable)] for variable in parts}
        codes = [
            _share if shares and isinstance(source, Width) else self.code(source)
            for source in sources
        ]
        rows = []
        places = []
        for combination in combinations:
            known = {variable: combination[source] for variable, source in source_of_part.items()}
            try:
                result = self.domains.value(part, known)
            except InputError:
                # Some combinations of a sum and its summands are impossible.
                continue
            place = self.domains.place(part, result)
            if place is not None:
                values = [combination[source] for source in sources]
                rows.append([code(value) for code, value in zip(codes, values, strict=True)])
                places.append(place)
        listed = [
            list(map(code, self.domains.listed(source)))
            for source, code in zip(sources, codes, strict=True)
        ]
        numbers = np.array(rows)
        most = MOST_SHARES if shares else MOST_SUMS
        changes_and_strides = _strides(listed, numbers, np.array(places), most)
        if changes_and_strides is None:
            return None
        changes, strides = changes_and_strides
        sums = (numbers * strides).sum(axis=1).tolist()
        points = {
            round(total, 9): (total, place) for total, place in zip(sums, places, strict=True)
        }
        return _Attempt(
            changes=changes,
            parts=sources,
            shares=shares,
            strides=strides,
            points=list(points.values()),
        )

    def _refuse_alike(self, part: Variable) -> None:
        """Refuse a function of numbers that are too near to one another; name the two nearest."""
        for source in part.sources if isinstance(part, Elementwise) else (part,):
            listed = self.domains.of(source)
            if listed is None or self.is_free(source) or not all(map(is_number, listed)):
                continue
            pairs = list(itertools.pairwise(sorted(listed, key=float)))
            if not pairs:
                continue
            nearest = min(pairs, key=lambda pair: float(pair[1]) - float(pair[0]))
            low = float(nearest[0])
            high = float(nearest[1])
            if high - low <= max(abs(low), abs(high)) / MOST_SUMS:
                raise InputError(
                    got=(
                        f"{part} of {nearest[0]!r} and {nearest[1]!r}, which float32 does not "
                        "tell apart well enough"
                    ),
                    expected="numbers further apart",
                    fix="Subtract what they have in common first.",
                )

    @remembered
    def _leaves(self, part: Variable) -> tuple[Variable, ...]:
        """Return the variables that a function is looked up from.

        They are roots, and sums of numbers that are in the stream anyway.
        """
        if not isinstance(part, Elementwise):
            return (part,)
        leaves: list[Variable] = []
        for source in part.sources:
            if isinstance(source, Elementwise) and source.linear and not self.is_free(source):
                leaves.append(source)
            else:
                leaves += self._leaves(source)
        return tuple(dict.fromkeys(leaves))


def _share(width: Value) -> float:
    """Return the share of the weight that ``width`` keys have beside one sink."""
    share: float = width / (width + 1)
    return share


def _joined(terms: list[tuple[Sum, Sum]]) -> list[tuple[Sum, Sum]]:
    """Return the same cost with one term for all functions of the key alone, and of the query."""
    of_key = [(q, k) for q, k in terms if not q.terms]
    of_query = [(q, k) for q, k in terms if q.terms and not k.terms]
    both = [(q, k) for q, k in terms if q.terms and k.terms]
    constant_one = Sum(constant=1.0)
    if of_key:
        total = reduce(Sum.plus, [k.times(q.constant) for q, k in of_key])
        both.append((constant_one, total))
    if of_query:
        total = reduce(Sum.plus, [q.times(k.constant) for q, k in of_query])
        both.append((total, constant_one))
    return both


def _evenly(values: Sequence[Value]) -> bool:
    """Return whether numbers are spaced evenly enough, and near enough to 0, to be codes.

    They are at most twice as far apart on average as the nearest two. Other values count as
    numbers at a distance of 1.
    """
    numbers = [float(value) for value in values if is_number(value)]
    if len(numbers) < 2:
        return not numbers or abs(numbers[0]) <= MOST_SUMS
    gap = float(np.diff(np.sort(numbers)).min())
    if len(numbers) < len(values):  # others are 1 apart
        gap = min(gap, 1.0)
    if not np.ptp(numbers) <= 2 * gap * len(values):
        return False
    return max(map(abs, numbers)) < MOST_SUMS * gap


def _squares(
    chosen: np.ndarray, keys: Sequence[Value]
) -> list[tuple[Float[np.ndarray, " query"], Float[np.ndarray, " key"]]] | None:
    """Return the cost ``|a - b|²`` of a relation "equal labels"; None for another relation.

    The query's label a and the key's label b are numbers. Where there are many labels, they are
    written in two or more digits, so that no product is large.
    """
    sets: dict[bytes, int] = {}  # the label of each set of keys
    labels_of_queries = []
    for row in chosen:
        label = -1
        if row.any():
            label = sets.setdefault(row.tobytes(), len(sets))
        labels_of_queries.append(label)
    places = np.array(labels_of_queries)
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
        gap = 1.0
        if len(numbers) > 1:
            gap = np.diff(np.sort(numbers)).min()
        alone = bool(gap >= 1 and np.ptp(numbers) < MOST_LABELS)
        if alone:
            labels = numbers
    middle = round((labels.min() + labels.max()) / 2)
    labels = labels - middle
    a = np.where(
        places >= 0,
        labels[places],
        labels.min() - 1,
    )
    b = np.where(held, labels[of_keys], labels.max() + 1)
    if not held.all() and alone:
        # Use the keys' numbers for all keys, if other keys are far enough from every label.
        key_numbers = np.array([float(key) for key in keys]) - middle
        others = np.unique(np.append(a, labels))
        distance = np.abs(key_numbers[~held][:, None] - others[None]).min(initial=1)
        if distance >= 1 and np.abs(key_numbers).max() <= MOST_LABELS:
            b = key_numbers
    return [(a**2, np.ones(len(b))), (-2 * a, b), (np.ones(len(a)), b**2)]


def _digits(
    of_queries: np.ndarray,
    of_keys: np.ndarray,
    count: int,
) -> list[tuple[Float[np.ndarray, " query"], Float[np.ndarray, " key"]]]:
    """Return the squared distance of labels' digits; -1 is a label that is equal to no other."""
    digits = math.ceil(math.log(count + 2) / math.log(MOST_LABELS))
    base = math.ceil((count + 2) ** (1 / digits))

    def digits_of(labels: np.ndarray) -> Float[np.ndarray, "digit label"]:
        rows = [labels // base**digit % base - base // 2 for digit in range(digits)]
        return np.array(rows, dtype=np.float64)

    a = digits_of(np.where(of_queries < 0, count, of_queries))
    b = digits_of(np.where(of_keys < 0, count + 1, of_keys))
    factors = [
        ((a**2).sum(0), np.ones(b.shape[1])),
        (np.ones(a.shape[1]), (b**2).sum(0)),
    ]
    for digit_of_query, digit_of_key in zip(a, b, strict=True):
        factors.append((-2 * digit_of_query, digit_of_key))
    return factors


def _ranks(
    chosen: np.ndarray, part: Select
) -> list[tuple[Float[np.ndarray, " query"], Float[np.ndarray, " key"]]]:
    """Return a cost of 1 for pairs that are not chosen, by as few products as its rank."""
    cost = 1.0 - chosen
    basis: list[np.ndarray] = []
    normed = np.zeros((MOST_FEATURES, cost.shape[1]))
    different_rows = sorted({*map(tuple, cost)})
    for row in (np.ones(cost.shape[1]), *map(np.array, different_rows)):
        left = row - normed[: len(basis)].T @ (normed[: len(basis)] @ row)
        left -= normed[: len(basis)].T @ (normed[: len(basis)] @ left)
        if np.linalg.norm(left) > 1e-6 * np.linalg.norm(row) > 0:
            if len(basis) == MOST_FEATURES:
                raise InputError(
                    got=f"{part}, which takes more than {MOST_FEATURES} features of keys",
                    expected=f"at most {MOST_FEATURES} features",
                    fix="Shorten max_len, or compare fewer values.",
                )
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
    """Choose factors of the sources, so that equal sums have equal results.

    Args:
        codes: The numbers of each source's values.
        numbers: The numbers of the sources, for each possible combination of values.
        places: The place of the result, for each combination.
        most: The largest range of a sum, in gaps between different results.

    Returns:
        The number of changes of the result along the sum, and the factors that have the fewest;
        None if no factors tell the results apart.
    """
    gaps = []
    for numbers_of_source in codes:
        gap = float(np.diff(np.unique(numbers_of_source)).min(initial=math.inf))
        gaps.append(gap if gap < math.inf else 1.0)
    spans = [
        (max(numbers_of_source) - min(numbers_of_source)) / gap
        for numbers_of_source, gap in zip(codes, gaps, strict=True)
    ]
    count = len(codes)
    orders = [list(range(count))]
    if count > 1:
        orders.append(list(reversed(range(count))))
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
    best: tuple[int, list[float]] | None = None
    best_rank = (0, 0.0)
    for strides in candidates:
        sums = numbers @ np.array(strides)
        ascending = np.argsort(sums, kind="stable")
        steps = np.diff(sums[ascending])[np.diff(places[ascending]) != 0]
        rank = (len(steps), -float(steps.min(initial=math.inf)))
        apart = rank[1] < -1e-6 and np.ptp(sums) <= -most * rank[1]
        if apart and (best is None or rank < best_rank):
            best = (len(steps), strides)
            best_rank = rank
    return best
