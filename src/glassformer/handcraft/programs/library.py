"""Programs to start from: functions that build them, and :data:`PROGRAMS` with a vocabulary and a length for each.

Source: Weiss et al. 2021, arXiv 2106.06981 (histograms, sorting, balanced brackets); Lindner et al. 2023, arXiv
2301.05062 (tracr's library); Olsson et al. 2022, arXiv 2209.11895 (induction).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce

from glassformer.errors import require
from glassformer.handcraft.programs.language import (
    Value,
    Variable,
    aggregate,
    elementwise,
    everything,
    indices,
    select,
    selector_width,
    tokens,
)

up_to_here = select(indices, indices, operator.le, "up to here")
"""Selects positions up to the query's own."""
length = selector_width(everything, "length")
"""The number of tokens; of a causal program, up to each position."""


def histogram(values: Variable = tokens) -> Variable:
    """How often each position's value occurs: ``abac`` gives 2 1 2 1."""
    return selector_width(select(values, values, operator.eq), "histogram")


def count(values: Variable, value: Value) -> Variable:
    """How often ``value`` occurs, at every position."""
    chosen = select(values, values, lambda key, _: key == value, f"{values} == {value!r}")
    return selector_width(chosen, f"count of {value}")


def share_so_far(condition: Variable) -> Variable:
    """The share of positions up to each at which a condition holds."""
    return aggregate(up_to_here, condition, 0, f"share of {condition}")


def shift(values: Variable, offset: int) -> Variable:
    """The value ``offset`` positions before; None where there is none: ``abcd`` by 1 gives None a b c."""
    chosen = select(indices, indices, lambda key, query: key == query - offset, f"{offset} before")
    return aggregate(chosen, values, label=f"{values} {offset} before")


def detect(values: Variable, pattern: Sequence[Value]) -> Variable:
    """Whether ``pattern`` ends at each position; None where there are too few positions before.

    Raises:
        InputError: An empty pattern.
    """
    require(len(pattern) > 0, "an empty pattern", "at least one value", "Pass what to look for.")
    places = reversed(list(enumerate(reversed(pattern))))
    found = [shift(values == value, back) if back else values == value for back, value in places]
    return reduce(operator.and_, found).named(f"ends in {pattern}")


def reverse(values: Variable = tokens) -> Variable:
    """The values from the last to the first."""
    mirrored = (length - indices - 1).named("index from the end")
    return aggregate(select(indices, mirrored, operator.eq), values, label=f"{values} reversed")


def pair_balance(opening: Value, closing: Value) -> Variable:
    """The share of opening tokens up to each position, minus that of closing ones."""
    return share_so_far(tokens == opening) - share_so_far(tokens == closing)


def shuffle_dyck(pairs: Sequence[str]) -> Variable:
    """Whether brackets of each pair are balanced, whatever lies between them: ``([)]`` is; at every position."""
    balances = [pair_balance(*pair).named(f"balance of {pair}") for pair in pairs]
    negative = reduce(operator.or_, [balance < 0 for balance in balances]).named("some balance below 0")
    closed = reduce(operator.and_, [balance == 0 for balance in balances]).named("all balances 0")
    last = aggregate(select(indices, length - 1, operator.eq, "last"), closed, label="balanced at the end")
    below = aggregate(everything, negative, 0, label="share of balances below 0")
    return (last & ~below).named("balanced")


def dyck(pairs: Sequence[str]) -> Variable:
    """Whether the brackets up to each position are balanced and nested; of a causal program.

    A closing bracket has to match the latest opening one at its depth. Openings at one depth are counted, so that the
    latest is the one whose number is the count.
    """
    opens, closes = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    opening = elementwise(lambda token: token in opens, tokens, label="opening")
    opened_so_far = selector_width(select(tokens, tokens, lambda key, _: key in opens, "openings"), "openings so far")
    closed_so_far = selector_width(select(tokens, tokens, lambda key, _: key in closes, "closings"), "closings so far")
    depth = (opened_so_far - closed_so_far).named("depth")
    kind = elementwise(lambda token: (opens if token in opens else closes).index(token), tokens, label="kind")
    level = elementwise(lambda d, o: d if o else d + 1, depth, opening, label="level")  # of the pair
    opened = elementwise(lambda d, o: d if o else None, level, opening, label="opened level")
    number = selector_width(select(opened, level, operator.eq), "openings at this level")
    place = elementwise(lambda d, c, o: (d, c) if o else None, level, number, opening, label="opening's place")
    here = elementwise(lambda d, c: (d, c), level, number, label="place")
    partner = aggregate(select(place, here, operator.eq), kind, default=-1, label="partner")
    wrong = elementwise(lambda d, k, p: d < 0 or k != p, depth, kind, partner, label="wrong")
    mistakes = selector_width(select(wrong, wrong, lambda key, _: key is not False and bool(key)), "mistakes")
    return ((depth == 0) & (mistakes == 0)).named("balanced")


def sort_unique(values: Variable, keys: Variable) -> Variable:
    """The values in the order of their keys, which are all different."""
    place = selector_width(select(keys, keys, operator.lt), "place")
    return aggregate(select(place, indices, operator.eq), values, label=f"{values} sorted")


def sort(values: Variable, keys: Variable, max_len: int, gap: Value = 1) -> Variable:
    """The values in the order of their keys; equal keys keep their order. Different keys differ by ``gap`` at least."""
    unique = elementwise(lambda k, i: k + Fraction(gap) * Fraction(i, max_len), keys, indices, label="unique key")
    return sort_unique(values, unique)


def sort_by_frequency(max_len: int) -> Variable:
    """The tokens by how often they occur, most frequent first."""
    return sort(tokens, -histogram(), max_len)


def count_less_frequent(most: int) -> Variable:
    """How many tokens occur at most ``most`` times, at every position."""
    return selector_width(select(histogram(), tokens, lambda key, _: key <= most))


def mode(max_len: int) -> Variable:
    """The most frequent token, the first of several, at every position."""
    first = select(indices, indices, lambda key, _: key == 0, "first")
    return aggregate(first, sort_by_frequency(max_len), label="mode")


def parity(one: Value) -> Variable:
    """Whether ``one`` occurs an odd number of times, at every position."""
    return elementwise(lambda number: number % 2, count(tokens, one), label="parity")


def follower(values: Variable = tokens) -> Variable:
    """Induction: the value that followed the latest earlier occurrence of each position's; of a causal program.

    Occurrences are counted, so that the latest one before is the one whose number is less by 1.
    """
    number = histogram(values)
    now = elementwise(lambda value, n: (value, n - 1), values, number, label="earlier occurrence")
    before = shift(elementwise(lambda value, n: (value, n), values, number, label="occurrence"), 1)
    return aggregate(select(before, now, operator.eq), values, label="follower")


@dataclass(frozen=True)
class Example:
    """A program with the sequences that it is for."""

    program: Variable
    vocabulary: tuple[Value, ...]
    max_len: int
    about: str
    causal: bool = False


PROGRAMS: dict[str, Example] = {
    "length": Example(length, tuple("abcd"), 5, "the number of tokens"),
    "reverse": Example(reverse(), tuple("abcd"), 5, "the tokens backwards"),
    "histogram": Example(histogram(), tuple("abcd"), 5, "how often each token occurs"),
    "mode": Example(mode(5), tuple(range(1, 4)), 5, "the most frequent token"),
    "sort": Example(sort(tokens, tokens, 5), tuple(range(1, 5)), 5, "the numbers in order"),
    "sort-by-frequency": Example(sort_by_frequency(5), tuple(range(1, 5)), 5, "the most frequent tokens first"),
    "shuffle-dyck-2": Example(shuffle_dyck(["()", "{}"]), tuple("(){}"), 5, "whether both kinds of brackets close"),
    "dyck-1": Example(dyck(["()"]), tuple("()"), 8, "whether the brackets so far are balanced", causal=True),
    "dyck-2": Example(dyck(["()", "[]"]), tuple("()[]"), 6, "the same for two kinds, nested", causal=True),
    "detect": Example(detect(tokens, "abc"), tuple("abc"), 6, "where abc ends"),
    "parity": Example(parity("1"), tuple("01"), 8, "whether the number of ones is odd"),
    "induction": Example(follower(), tuple("abc"), 6, "what followed the token's last occurrence", causal=True),
}
"""Programs by name."""
