"""Programs run on many sequences of one length at once, by tables.

The values are those of :class:`~.language.Interpreter`. Functions and predicates are called once
for each combination of values that occurs, not for each position.
"""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from math import lcm

import numpy as np
from jaxtyping import Bool, Int

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
    is_number,
    remembered,
    simplest,
    tokens,
    typed,
)

Column = tuple[Int[np.ndarray, "sequence position"], list[Value]]
"""The index of each position's value in a list of different values, and that list."""

_NUMBERS_AT_ONCE = 1 << 21


class Batch:
    """All variables of a program on some sequences of one length.

    Args:
        sequences: Indices into the vocabulary.
        causal: Let selectors choose only keys up to the query's own position.
        given: Variables that have these values instead of those that they are computed to have.

    Attributes:
        defined: False for sequences on which a mean of values that are no numbers was asked for.
    """

    def __init__(
        self,
        sequences: Int[np.ndarray, "sequence position"],
        vocabulary: Sequence[Value],
        causal: bool = False,
        given: Mapping[Variable, Column] | None = None,
    ) -> None:
        self._tokens = sequences
        self._vocabulary = list(vocabulary)
        count, length = sequences.shape
        if causal:
            self._seen = np.tri(length, dtype=bool)
        else:
            self._seen = np.ones((length, length), dtype=bool)
        self._shape = (count, length)
        self.defined: Bool[np.ndarray, " sequence"] = np.ones(count, dtype=bool)
        self._given = given or {}

    @remembered
    def column(self, part: Variable) -> Column:
        """Return the values of a variable."""
        if part in self._given:
            return self._given[part]
        if part is tokens:
            return self._tokens, self._vocabulary
        if isinstance(part, Elementwise):
            return self._elementwise(part)
        length = self._shape[1]
        if isinstance(part, Width):
            return self.chosen(part.selector).sum(2), list(range(length + 1))
        if isinstance(part, Aggregate):
            return self._aggregate(part)
        return np.broadcast_to(np.arange(length), self._shape), list(range(length))

    def chosen(self, part: Selector) -> Bool[np.ndarray, "sequence query key"]:
        """Return which keys each query selects."""
        return self._holds(part) & self._seen

    def _elementwise(self, part: Elementwise) -> Column:
        columns = [self.column(source) for source in part.sources]
        joint = np.zeros(self._shape, dtype=np.int64)
        known = list[tuple[Value, ...]]([()])
        # Only combinations that occur so far are combined with the values of the next source.
        for codes, values in columns:
            pair_codes, joint = _unique(joint * len(values) + codes, len(known) * len(values))
            pairs = (divmod(code, len(values)) for code in pair_codes.tolist())
            known = [(*known[before], values[now]) for before, now in pairs]
        results = [apply(part, values_of_sources) for values_of_sources in known]
        return _listed(joint, results)

    def _aggregate(self, part: Aggregate) -> Column:
        chosen = self.chosen(part.selector)
        codes, values = self.column(part.values)
        count = chosen.sum(2)
        first = np.take_along_axis(codes, chosen.argmax(2), 1)
        same = ((codes[:, None] == first[..., None]) | ~chosen).all(2)
        default = len(values)
        out = np.where(count == 0, default, first)
        results = [*values, part.default]
        several = ~same & (count > 0)
        if several.any():
            fits = np.array([is_number(value) and not part.single for value in values])
            able = (fits[codes][:, None] | ~chosen).all(2)
            self.defined &= ~(several & ~able).any(1)
            # Where there is no mean, functions are called with the first value.
            several &= able
            numbers, scale = self._scaled(values)
            sums = np.where(chosen, numbers[codes][:, None], 0).sum(2)[several]
            totals, place = np.unique(sums, return_inverse=True)
            size = self._shape[1] + 1
            pairs, where = np.unique(place.reshape(-1) * size + count[several], return_inverse=True)
            out[several] = len(results) + where.reshape(-1)
            for pair in pairs.tolist():
                total = int(totals[pair // size])
                number = pair % size
                results.append(simplest(Fraction(total, number * scale)))
        return _listed(out, results)

    def _scaled(self, values: Sequence[Value]) -> tuple[np.ndarray, int]:
        """Return numbers as multiples of one fraction, and its denominator; 0 for other values.

        The array holds Python's integers where a sum might not fit into int64.
        """
        exact = [Fraction(value) if is_number(value) else Fraction(0) for value in values]
        scale = lcm(*(number.denominator for number in exact))
        whole = [int(number * scale) for number in exact]
        longest = max(map(abs, whole)) * self._shape[1]
        return np.array(whole, dtype=np.int64 if longest < 2**62 else object), scale

    @remembered
    def _holds(self, part: Selector) -> Bool[np.ndarray, "sequence query key"]:
        """Return the pairs for which a selector holds, seen or not."""
        if isinstance(part, Combined):
            inner = [self._holds(selector).astype(np.intp) for selector in part.parts]
            corners = np.ndindex(*[2] * len(inner))
            truth = np.array([part.function(*map(bool, bits)) for bits in corners], dtype=bool)
            return truth.reshape([2] * len(inner))[tuple(inner)]
        assert isinstance(part, Select)
        keys, key_values = self.column(part.keys)
        queries, query_values = self.column(part.queries)
        joint = queries[:, :, None] * len(key_values) + keys[:, None, :]
        pair_codes, where = _unique(joint, len(query_values) * len(key_values))
        table = np.empty(len(pair_codes), dtype=bool)
        for index, code in enumerate(pair_codes.tolist()):
            query, key = divmod(code, len(key_values))
            table[index] = fulfils(part, key_values[key], query_values[query])
        return table[where]


def count_sequences(letters: int, max_len: int) -> int:
    """Return the number of sequences of 1 to ``max_len`` tokens."""
    return sum(letters**length for length in range(1, max_len + 1))


def blocks(
    letters: int,
    most: int,
    limit: int,
    at_once: int = 1 << 21,
) -> Iterator[Int[np.ndarray, "sequence position"]]:
    """Yield blocks of sequences of 1 to ``most`` tokens, shorter ones first, ``limit`` in all.

    The sequences of a block have one length. There are at most ``at_once`` of them, and fewer
    where their pairs of positions would take much memory.
    """
    for length in range(1, most + 1):
        count = min(letters**length, limit)
        limit -= count
        step = max(1, min(at_once, _NUMBERS_AT_ONCE // length**2 // 8))
        for start in range(0, count, step):
            left = np.arange(start, min(start + step, count))
            block = np.zeros((len(left), length), dtype=np.int64)
            for place in reversed(range(length)):
                left, block[:, place] = np.divmod(left, letters)
            yield block
        if not limit:
            return


def _unique(codes: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers below ``size`` that occur, ascending, and the place of each code there."""
    if size > codes.size:
        numbers, where = np.unique(codes, return_inverse=True)
        return numbers, where.reshape(codes.shape)
    there = np.zeros(size, dtype=bool)
    there[codes] = True
    return np.flatnonzero(there), (np.cumsum(there) - 1)[codes]


def _listed(codes: Int[np.ndarray, "sequence position"], values: list[Value]) -> Column:
    """Return a column with each value once."""
    once = distinct(values)
    places = {typed(value): place for place, value in enumerate(once)}
    again = np.array([places[typed(value)] for value in values], dtype=np.int64)
    return again[codes], once
