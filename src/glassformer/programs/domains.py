"""The values that the variables of a program can have, for one vocabulary and greatest length."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from glassformer.errors import InputError, require_positive
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
    distinct,
    fulfils,
    indices,
    is_number,
    remembered,
    require_value,
    simplest,
    tokens,
    typed,
)

MOST_VALUES = 4096
"""Largest number of values of a variable, or of combinations of values, that are listed."""


@dataclass(eq=False, frozen=True)
class Domains:
    """Value sets of variables, and facts about selectors, for sequences of limited length.

    Every value that can occur is in its set. A set may have values that cannot occur.
    """

    vocabulary: Sequence[Value]
    max_len: int
    causal: bool = False
    _numbers: dict[Any, int] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        require_positive(max_len=self.max_len)
        if self.max_len > MOST_VALUES:
            raise InputError(
                got=f"max_len = {self.max_len}",
                expected=f"at most {MOST_VALUES}",
                fix="Shorten it.",
            )
        if not isinstance(self.vocabulary, Sequence):
            raise InputError(
                got=f"a vocabulary of type {type(self.vocabulary).__name__}",
                expected="a text or a list of tokens",
                fix="List each token once.",
            )
        object.__setattr__(self, "vocabulary", tuple(self.vocabulary))
        for token in self.vocabulary:
            require_value(token, "the vocabulary with")
        different = len(self.vocabulary) == len(distinct(self.vocabulary)) > 0
        if not different or None in self.vocabulary:
            raise InputError(
                got=f"vocabulary = {self.vocabulary!r}",
                expected="different tokens, none of them None",
                fix="List each token once.",
            )

    @remembered
    def of(self, part: Variable) -> tuple[Value, ...] | None:
        """Return the values that a variable may have, None among them.

        Returns:
            None if there are more than ``MOST_VALUES`` values.
        """
        candidates = self._find(part)
        if candidates is None:
            return None
        values = sorted(distinct(candidates), key=_order)
        if len(values) > MOST_VALUES:
            return None
        return tuple(values)

    def listed(self, part: Variable) -> tuple[Value, ...]:
        """Return the values of :meth:`of`; refuse a variable that has too many."""
        values = self.of(part)
        if values is None:
            raise InputError(
                got=f"{part} with more than {MOST_VALUES} possible values",
                expected="fewer, where it is compared or looked up",
                fix="Shorten max_len, or map its sources to fewer values first.",
            )
        return values

    def place(self, part: Variable, value: Value) -> int | None:
        """Return the index of a value in :meth:`listed`; None if it is not there."""
        return self._places(part).get(typed(value))

    @remembered
    def _places(self, part: Variable) -> dict[Any, int]:
        return {typed(value): place for place, value in enumerate(self.listed(part))}

    def places(self, part: Variable, values: Sequence[Value]) -> Int[np.ndarray, " value"]:
        """Return the indices of values that are in :meth:`listed`."""
        places = [self.place(part, value) for value in values]
        assert None not in places
        return np.array(places, dtype=np.int64)

    def numeric(self, part: Variable) -> bool:
        """Return whether a variable is a number everywhere."""
        values = self.of(part)
        if values is not None:
            return all(map(is_number, values))
        if isinstance(part, Aggregate):
            if not self.numeric(part.values):
                return False
            return self.reflexive(part.selector) or is_number(part.default)
        if isinstance(part, Elementwise) and part.linear is not None:
            return all(map(self.numeric, part.sources))
        return False

    def averaged(self, part: Aggregate) -> bool:
        """Return whether different numbers may be averaged."""
        values = self.of(part.values)
        if part.single or self.single(part.selector):
            return False
        return values is None or sum(map(is_number, values)) > 1

    @remembered
    def roots(self, part: Variable) -> tuple[Variable, ...]:
        """Return the inputs, aggregates and widths that a variable is a function of."""
        if not isinstance(part, Elementwise):
            return (part,)
        roots = itertools.chain.from_iterable(map(self.roots, part.sources))
        return tuple(dict.fromkeys(roots))

    def value(self, part: Variable, given: Mapping[Variable, Value]) -> Value:
        """Return the value of a variable, from the values of some that it is a function of."""
        known = dict(given)

        def value(variable: Variable) -> Value:
            if variable not in known:
                assert isinstance(variable, Elementwise)
                values = []
                for source in variable.sources:
                    if source not in known:
                        value(source)
                    values.append(known[source])
                known[variable] = apply(variable, values)
            return known[variable]

        return value(part)

    def combinations(self, parts: Sequence[Variable]) -> Iterator[dict[Variable, Value]] | None:
        """Return every combination of the values of ``parts``.

        Returns:
            None if there are more than ``MOST_VALUES`` combinations.
        """
        sets = [self.of(part) for part in parts]
        listed = [values for values in sets if values is not None]
        if len(listed) < len(sets) or math.prod(map(len, listed)) > MOST_VALUES:
            return None
        return (dict(zip(parts, values, strict=True)) for values in itertools.product(*listed))

    @remembered
    def single(self, part: Selector) -> bool:
        """Return whether a query can never select two keys."""
        if isinstance(part, Combined):
            return self._combines_single(part)
        assert isinstance(part, Select)
        if any(root is not indices for root in self.roots(part.keys)):
            return False
        keys = [self.value(part.keys, {indices: place}) for place in range(self.max_len)]
        columns = self.table(part)[:, self.places(part.keys, keys)]
        return bool((columns.sum(1) <= 1).all())

    def _combines_single(self, part: Combined) -> bool:
        """Return whether a selector never holds without one of its parts that is single."""
        single_parts = list(map(self.single, part.parts))
        corners = list(np.ndindex(*[2] * len(part.parts)))
        for place, single in enumerate(single_parts):
            without = (part.function(*bits) for bits in corners if not bits[place])
            if single and not any(without):
                return True
        return False

    @remembered
    def reflexive(self, part: Selector) -> bool:
        """Return whether every query selects at least its own position."""
        if isinstance(part, Combined):
            of_parts = list(map(self.reflexive, part.parts))
            return all(of_parts) and bool(part.function(*of_parts))
        assert isinstance(part, Select)
        pairs = self.table(part)
        if self.key(part.keys) == self.key(part.queries):
            pairs = pairs.diagonal()
        return bool(pairs.all())

    @remembered
    def table(self, part: Select) -> Bool[np.ndarray, "query key"]:
        """Return the predicate of all pairs of a query's and a key's value.

        Rows and columns have the order of :meth:`listed`.
        """
        keys = self.listed(part.keys)
        queries = self.listed(part.queries)
        rows = np.zeros((len(queries), len(keys)), dtype=bool)
        for row, query in zip(rows, queries, strict=True):
            row[:] = [fulfils(part, key, query) for key in keys]
        return rows

    @remembered
    def key(self, part: Variable | Selector) -> int:
        """Return a number that is equal for parts that compute the same.

        Parts that compute the same may have different numbers if their tables are too large.
        """
        identity: tuple[Any, ...] = ("part", id(part))
        if isinstance(part, Select):
            identity = (
                "select",
                self.key(part.keys),
                self.key(part.queries),
                self.table(part).tobytes(),
            )
        elif isinstance(part, Combined):
            identity = (part.function, *map(self.key, part.parts))
        elif isinstance(part, Aggregate):
            identity = (
                "aggregate",
                self.key(part.selector),
                self.key(part.values),
                typed(part.default),
                part.single,
            )
        elif isinstance(part, Width):
            identity = ("width", self.key(part.selector))
        elif isinstance(part, Elementwise):
            roots = self.roots(part)
            combinations = self.combinations(roots)
            if combinations is not None:
                values = tuple(typed(self.value(part, combination)) for combination in combinations)
                if len(roots) == 1 and values == tuple(map(typed, self.listed(roots[0]))):
                    return self.key(roots[0])
                identity = (*map(self.key, roots), values)
            elif part.linear:
                identity = ("linear", part.linear, *map(self.key, part.sources))
        return self._numbers.setdefault(identity, len(self._numbers))

    def _find(self, part: Variable) -> Sequence[Value] | None:
        """Return values among which are all that a variable can have; None if there are many."""
        if part is tokens:
            return self.vocabulary
        if part is indices:
            return range(self.max_len)
        if isinstance(part, Elementwise):
            for parts in (self.roots(part), part.sources):
                combinations = self.combinations(tuple(dict.fromkeys(parts)))
                if combinations is not None:
                    return [self.value(part, combination) for combination in combinations]
            return self._sums(part)
        if isinstance(part, Width):
            most = 1 if self.single(part.selector) else self.max_len
            least = int(self.reflexive(part.selector))
            return range(least, most + 1)
        assert isinstance(part, Aggregate)
        values = self.of(part.values)
        if values is not None and self.averaged(part):
            means = self._means([value for value in values if is_number(value)])
            values = None if means is None else (*means, *values)
        defaults: tuple[Value, ...] = (part.default,)
        if self.reflexive(part.selector):
            defaults = ()
        if values is None:
            return None
        return (*values, *defaults)

    def _sums(self, part: Elementwise) -> Sequence[Value] | None:
        """Return all values of a linear variable; None if there are too many."""
        if part.linear is None:
            return None
        terms = [[part.linear[1]]]
        for source, factor in zip(part.sources, part.linear[0], strict=True):
            values = self.of(source)
            if values is None or not all(map(is_number, values)):
                return None
            terms.append([Fraction(value) * factor for value in values])
        # All numbers are whole multiples of 1 / scale.
        scale = math.lcm(*(number.denominator for number in itertools.chain.from_iterable(terms)))
        sums = {0}
        for term in terms:
            multiples = {int(number * scale) for number in term}
            partial_sums = sums
            sums = set()
            for partial_sum in partial_sums:
                sums.update(partial_sum + multiple for multiple in multiples)
                if len(sums) > MOST_VALUES:
                    return None
        return [simplest(Fraction(total, scale)) for total in sums]

    def _means(self, values: Sequence[Value]) -> Sequence[Value] | None:
        """Return all means of two to ``max_len`` of the values, not all of them the same."""
        exact = list(map(Fraction, values))
        scale = math.lcm(*(number.denominator for number in exact))
        multiples = [int(number * scale) for number in exact]
        sums = set[int]()
        means = set[Fraction]()
        for count in range(2, self.max_len + 1):
            if max(len(sums), len(multiples)) * len(multiples) > MOST_VALUES * 64:
                return None
            pairs = itertools.permutations(multiples, 2)
            all_but_one_same = {(count - 1) * same + other for same, other in pairs}
            longer = {total + other for total, other in itertools.product(sums, multiples)}
            sums = all_but_one_same | longer
            means |= {Fraction(total, count * scale) for total in sums}
            if len(means) > MOST_VALUES:
                return None
        return [simplest(number) for number in means]


def _order(value: Value) -> tuple[int, Any, str]:
    """Return a key that sorts numbers first, then others by their text, None last."""
    if value is None:
        return (2, "", "")
    kind = type(value).__name__
    if is_number(value):
        return (0, value, f"{kind} {value!r}")
    return (1, f"{kind} {value!r}", "")
