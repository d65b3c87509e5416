"""Which values the variables of a program can have, for one vocabulary and greatest length."""

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
"""Values of a variable, or combinations of values, that are listed."""


@dataclass(eq=False, frozen=True)
class Domains:
    """Value sets of variables, and facts about selectors, for sequences of up to ``max_len``
    tokens.

    Every value that can occur is in its set; some of the set may not occur.
    """

    vocabulary: Sequence[Value]
    max_len: int
    causal: bool = False
    _numbers: dict[Any, int] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        require_positive(max_len=self.max_len)
        if not self.max_len <= MOST_VALUES:
            raise InputError(
                got=f"max_len = {self.max_len}",
                expected=f"at most {MOST_VALUES}",
                fix="Shorten it.",
            )
        got = f"a vocabulary of type {type(self.vocabulary).__name__}"
        fix = "List each token once."
        if not isinstance(self.vocabulary, Sequence):
            raise InputError(
                got=got,
                expected="a text or a list of tokens",
                fix=fix,
            )
        object.__setattr__(self, "vocabulary", tuple(self.vocabulary))
        for token in self.vocabulary:
            require_value(token, "the vocabulary with")
        different = (
            len(self.vocabulary) == len(distinct(self.vocabulary)) > 0
            and None not in self.vocabulary
        )
        if not different:
            raise InputError(
                got=f"vocabulary = {self.vocabulary!r}",
                expected="different tokens, none of them None",
                fix=fix,
            )

    @remembered
    def of(self, part: Variable) -> tuple[Value, ...] | None:
        """The values that a variable may have, None among them; nothing if there are more than
        ``MOST_VALUES``.
        """
        found = self._find(part)
        if found is None:
            values = ()
        else:
            values = tuple(sorted(distinct(found), key=_order))
        if found is None or len(values) > MOST_VALUES:
            return None
        return values

    def listed(self, part: Variable) -> tuple[Value, ...]:
        """The same; an error that names the variable if there are too many."""
        found = self.of(part)
        if found is None:
            got = f"{part} with more than {MOST_VALUES} possible values"
            fix = "Shorten max_len, or map its sources to fewer values first."
            raise InputError(got, "fewer, where it is compared or looked up", fix)
        return found

    def place(self, part: Variable, value: Value) -> int | None:
        """The index of a value in :meth:`listed`; None if it is not there."""
        return self._places(part).get(typed(value))

    @remembered
    def _places(self, part: Variable) -> dict[Any, int]:
        return {typed(each): place for place, each in enumerate(self.listed(part))}

    def places(self, part: Variable, values: Sequence[Value]) -> Int[np.ndarray, " value"]:
        """The indices of values that are there."""
        found = [self.place(part, value) for value in values]
        assert None not in found
        return np.array(found, dtype=np.int64)

    def numeric(self, part: Variable) -> bool:
        """Whether a variable is a number everywhere."""
        found = self.of(part)
        if found is not None:
            return all(map(is_number, found))
        if isinstance(part, Aggregate):
            return self.numeric(part.values) and (
                self.reflexive(part.selector) or is_number(part.default)
            )
        return (
            isinstance(part, Elementwise)
            and part.linear is not None
            and all(map(self.numeric, part.sources))
        )

    def averaged(self, part: Aggregate) -> bool:
        """Whether different numbers may be averaged."""
        values = self.of(part.values)
        several = not part.single and not self.single(part.selector)
        return several and (values is None or sum(map(is_number, values)) > 1)

    @remembered
    def roots(self, part: Variable) -> tuple[Variable, ...]:
        """The inputs, aggregates and widths that an elementwise variable is a function of."""
        if not isinstance(part, Elementwise):
            return (part,)
        return tuple(dict.fromkeys(itertools.chain.from_iterable(map(self.roots, part.sources))))

    def value(self, part: Variable, given: Mapping[Variable, Value]) -> Value:
        """The value of an elementwise variable, given those of some that it is a function of."""
        known = dict(given)

        def value(one: Variable) -> Value:
            if one not in known:
                assert isinstance(one, Elementwise)
                known[one] = apply(
                    one, [known[each] if each in known else value(each) for each in one.sources]
                )
            return known[one]

        return value(part)

    def combinations(self, parts: Sequence[Variable]) -> Iterator[dict[Variable, Value]] | None:
        """Every combination of the values of ``parts``; nothing if there are more than
        ``MOST_VALUES``.
        """
        sets = [self.of(part) for part in parts]
        known = [each for each in sets if each is not None]
        if len(known) < len(sets) or math.prod(map(len, known)) > MOST_VALUES:
            return None
        return (dict(zip(parts, values, strict=True)) for values in itertools.product(*known))

    @remembered
    def single(self, part: Selector) -> bool:
        """Whether a query can never select two keys."""
        if isinstance(part, Combined):  # one part is, without which the whole does not hold
            found = list(map(self.single, part.parts))
            corners = list(np.ndindex(*[2] * len(part.parts)))
            without = [
                any(part.function(*bits) for bits in corners if not bits[place])
                for place in range(len(found))
            ]
            return any(one and not holds for one, holds in zip(found, without, strict=True))
        assert isinstance(part, Select)
        if [root for root in self.roots(part.keys) if root is not indices]:
            return False
        keys = [self.value(part.keys, {indices: place}) for place in range(self.max_len)]
        return bool((self.table(part)[:, self.places(part.keys, keys)].sum(1) <= 1).all())

    @remembered
    def reflexive(self, part: Selector) -> bool:
        """Whether every query selects at least its own position."""
        if isinstance(part, Combined):
            found = list(map(self.reflexive, part.parts))
            return all(found) and bool(part.function(*found))
        assert isinstance(part, Select)
        table = self.table(part)
        return bool(
            (table.diagonal() if self.key(part.keys) == self.key(part.queries) else table).all()
        )

    @remembered
    def table(self, part: Select) -> Bool[np.ndarray, "query key"]:
        """The predicate of all pairs of a query's and a key's value, in the order of
        :meth:`listed`.
        """
        keys = self.listed(part.keys)
        queries = self.listed(part.queries)
        rows = np.zeros((len(queries), len(keys)), dtype=bool)
        for row, query in zip(rows, queries, strict=True):
            row[:] = [fulfils(part, key, query) for key in keys]
        return rows

    @remembered
    def key(self, part: Variable | Selector) -> int:
        """Equal for parts that compute the same, as far as their tables tell."""
        found: tuple[Any, ...] = "part", id(part)
        if isinstance(part, Select):
            found = (
                "select",
                self.key(part.keys),
                self.key(part.queries),
                self.table(part).tobytes(),
            )
        elif isinstance(part, Combined):
            found = part.function, *map(self.key, part.parts)
        elif isinstance(part, Aggregate):
            found = (
                "aggregate",
                self.key(part.selector),
                self.key(part.values),
                typed(part.default),
                part.single,
            )
        elif isinstance(part, Width):
            found = "width", self.key(part.selector)
        elif isinstance(part, Elementwise):
            roots = self.roots(part)
            given = self.combinations(roots)
            if given is not None:
                values = tuple(typed(self.value(part, each)) for each in given)
                if len(roots) == 1 and values == tuple(map(typed, self.listed(roots[0]))):
                    return self.key(roots[0])
                found = *map(self.key, roots), values
            elif part.linear:
                found = "linear", part.linear, *map(self.key, part.sources)
        return self._numbers.setdefault(found, len(self._numbers))

    def _find(self, part: Variable) -> Sequence[Value] | None:
        if part is tokens:
            return self.vocabulary
        if part is indices:
            return range(self.max_len)
        if isinstance(part, Elementwise):
            for parts in (self.roots(part), part.sources):
                given = self.combinations(tuple(dict.fromkeys(parts)))
                if given is not None:
                    return [self.value(part, each) for each in given]
            return self._sums(part)
        if isinstance(part, Width):
            most = 1 if self.single(part.selector) else self.max_len
            return range(int(self.reflexive(part.selector)), most + 1)
        assert isinstance(part, Aggregate)
        values = self.of(part.values)
        found = values
        if values is not None and self.averaged(part):
            means = self._means([value for value in values if is_number(value)])
            found = None if means is None else (*means, *values)
        default: tuple[Any, ...]
        if self.reflexive(part.selector):
            default = ()
        else:
            default = (part.default,)
        return None if found is None else [*found, *default]

    def _sums(self, part: Elementwise) -> Sequence[Value] | None:
        if part.linear is None:
            return None
        terms = [[part.linear[1]]]
        for source, factor in zip(part.sources, part.linear[0], strict=True):
            values = self.of(source)
            if values is None or not all(map(is_number, values)):
                return None
            terms.append([Fraction(value) * factor for value in values])
        scale = math.lcm(*(each.denominator for term in terms for each in term))
        sums = {0}
        for term in terms:
            numbers = {int(each * scale) for each in term}
            before = sums
            sums = set()
            for one in before:
                sums.update(one + number for number in numbers)
                if len(sums) > MOST_VALUES:
                    return None
        return [simplest(Fraction(each, scale)) for each in sums]

    def _means(self, values: Sequence[Value]) -> Sequence[Value] | None:
        """All means of two to ``max_len`` of the values, not all of them the same."""
        exact = list(map(Fraction, values))
        scale = math.lcm(*(each.denominator for each in exact))
        numbers = [int(each * scale) for each in exact]
        sums = set[int]()
        means = set[Fraction]()
        for count in range(2, self.max_len + 1):
            if max(len(sums), len(numbers)) * len(numbers) > MOST_VALUES * 64:
                return None
            first = {(count - 1) * one + other for one, other in itertools.permutations(numbers, 2)}
            sums = first | {each + number for each in sums for number in numbers}
            means |= {Fraction(each, count * scale) for each in sums}
            if len(means) > MOST_VALUES:
                return None
        return [simplest(each) for each in means]


def _order(value: Value) -> tuple[int, Any, str]:
    """Numbers first, then others by their text, None last."""
    if value is None:
        return 2, "", ""
    kind = type(value).__name__
    if is_number(value):
        return (0, value, f"{kind} {value!r}")
    return (1, f"{kind} {value!r}", "")
