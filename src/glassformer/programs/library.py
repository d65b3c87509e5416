"""A library of programs: functions that build them, and :data:`PROGRAMS`, which are complete.

A Python file can define another one: ``program``, ``vocabulary`` and ``max_len``, and optionally
``causal`` and ``about``. It is read by :func:`read_program`::

    import operator
    from glassformer.programs import select, selector_width, tokens

    program = selector_width(select(tokens, tokens, operator.eq), "histogram")
    vocabulary, max_len = "abcd", 5

Source: Weiss et al. 2021, arXiv 2106.06981 (histograms, sorting, balanced brackets); Lindner et al.
2023, arXiv 2301.05062 (tracr's library); Olsson et al. 2022, arXiv 2209.11895 (induction).
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from pathlib import Path

from glassformer.errors import InputError, require_positive
from glassformer.files import local_path
from glassformer.programs.domains import Domains
from glassformer.programs.language import (
    Value,
    Variable,
    aggregate,
    elementwise,
    everything,
    indices,
    pick,
    select,
    selector_width,
    tokens,
)
from glassformer.text import known_name, short, shown
from glassformer.untrusted import in_file, require_permission, run_python_file

up_to_here = select(indices, indices, operator.le, "up to here")
"""Selects positions up to the query's own."""
length = selector_width(everything, "length")
"""The number of tokens; of a causal program, up to each position."""


def histogram(values: Variable = tokens) -> Variable:
    """Count how often each position's value occurs: ``abac`` gives 2 1 2 1."""
    return selector_width(select(values, values, operator.eq), "histogram")


def count(values: Variable, value: Value) -> Variable:
    """Count how often ``value`` occurs, at every position."""
    chosen = select(values, values, lambda key, _: key == value, f"{values} == {value!r}")
    return selector_width(chosen, f"count of {value}")


def share_so_far(condition: Variable) -> Variable:
    """Return the share of positions, up to each, at which a condition holds."""
    return aggregate(up_to_here, condition, 0, f"share of {condition}")


def fetch(values: Variable, index: Variable | int, default: Value = None) -> Variable:
    """Return the value at another index; the default where there is none."""
    if isinstance(index, int):
        index = elementwise(lambda _, number=index: number, indices, label=f"{index}")
    return aggregate(select(indices, index, operator.eq), values, default, f"{values} at {index}")


def shift(values: Variable, offset: int, default: Value = None) -> Variable:
    """Return the value ``offset`` positions before: ``abcd`` by 1 gives None a b c."""
    chosen = select(indices, indices, lambda key, query: key == query - offset, f"{offset} before")
    return aggregate(chosen, values, default, f"{values} {offset} before")


def detect(values: Variable, pattern: Sequence[Value]) -> Variable:
    """Return whether ``pattern`` ends at each position.

    The result is None where there are too few positions before.
    """
    if len(pattern) == 0:
        raise InputError(
            got="an empty pattern",
            expected="at least one value",
            fix="Pass what to look for.",
        )
    last = len(pattern) - 1
    matches = []
    for place, value in enumerate(pattern):
        match = values == value
        if place < last:
            match = shift(match, last - place)
        matches.append(match)
    return reduce(operator.and_, matches).named(f"ends in {pattern}")


def reverse(values: Variable = tokens) -> Variable:
    """Return the values from the last to the first."""
    mirrored = (length - indices - 1).named("index from the end")
    return fetch(values, mirrored).named(f"{values} reversed")


def pair_balance(opening: Value, closing: Value) -> Variable:
    """Return the share of opening tokens up to each position, minus the share of closing ones."""
    return share_so_far(tokens == opening) - share_so_far(tokens == closing)


def shuffle_dyck(pairs: Sequence[str]) -> Variable:
    """Return at every position whether the brackets of each pair are balanced.

    Pairs need not be nested: ``([)]`` is balanced.
    """
    balances = [pair_balance(*pair).named(f"balance of {pair}") for pair in pairs]
    negative = reduce(operator.or_, [balance < 0 for balance in balances])
    negative = negative.named("some balance below 0")
    closed = reduce(operator.and_, [balance == 0 for balance in balances])
    closed = closed.named("all balances 0")
    last = fetch(closed, length - 1).named("balanced at the end")
    below = aggregate(everything, negative, 0, label="share of balances below 0")
    return (last & ~below).named("balanced")


def dyck(pairs: Sequence[str]) -> Variable:
    """Return whether the brackets up to each position are balanced and nested; causal.

    A closing bracket has to match the latest opening one at its depth. Openings at one depth are
    counted, so that the latest is the one whose number is the count.
    """
    opens = [pair[0] for pair in pairs]
    closes = [pair[1] for pair in pairs]
    opening = elementwise(lambda token: token in opens, tokens, label="opening")
    openings = select(tokens, tokens, lambda key, _: key in opens, "openings")
    closings = select(tokens, tokens, lambda key, _: key in closes, "closings")
    opened_so_far = selector_width(openings, "openings so far")
    closed_so_far = selector_width(closings, "closings so far")
    depth = (opened_so_far - closed_so_far).named("depth")

    def kind_of(token: Value) -> int:
        if token in opens:
            return opens.index(token)
        return closes.index(token)

    kind = elementwise(kind_of, tokens, label="kind")
    # The depth of a pair's inside.
    level = elementwise(lambda d, o: d if o else d + 1, depth, opening, label="level")
    opened = elementwise(lambda d, o: d if o else None, level, opening, label="opened level")
    partner = latest(kind, opened, level, default=-1).named("partner")
    wrong = elementwise(lambda d, k, p: d < 0 or k != p, depth, kind, partner, label="wrong")
    mistakes = selector_width(
        select(wrong, wrong, lambda key, _: key is not False and bool(key)), "mistakes"
    )
    return ((depth == 0) & (mistakes == 0)).named("balanced")


def sort_unique(values: Variable, keys: Variable) -> Variable:
    """Return the values in the order of their keys, which are all different."""
    place = selector_width(select(keys, keys, operator.lt), "place")
    return aggregate(select(place, indices, operator.eq), values, label=f"{values} sorted")


def sort(values: Variable = tokens, keys: Variable = tokens) -> Variable:
    """Return the values in the order of their keys; equal keys keep their order."""
    earlier = select(keys, keys, operator.eq) & select(indices, indices, operator.lt)
    smaller = selector_width(select(keys, keys, operator.lt), "smaller keys")
    place = (smaller + selector_width(earlier, "equal keys before")).named("place")
    return pick(select(place, indices, operator.eq), values, label=f"{values} sorted")


def sort_by_frequency() -> Variable:
    """Return the tokens by how often they occur, most frequent first."""
    return sort(tokens, -histogram())


def count_less_frequent(most: int) -> Variable:
    """Count the tokens that occur at most ``most`` times, at every position."""
    return selector_width(select(histogram(), tokens, lambda key, _: key <= most))


def mode() -> Variable:
    """Return the most frequent token, the first of several, at every position."""
    return fetch(sort_by_frequency(), 0).named("mode")


def parity(one: Value) -> Variable:
    """Return at every position whether ``one`` occurs an odd number of times."""
    return elementwise(lambda number: number % 2, count(tokens, one), label="parity")


def latest(values: Variable, keys: Variable, queries: Variable, default: Value = None) -> Variable:
    """Return the value at the latest position whose key equals a position's query; causal.

    Keys of each kind are counted, so that the latest is the one whose number is the count.
    """
    same = select(keys, queries, operator.eq)
    number = selector_width(select(keys, keys, operator.eq), f"number of {keys}")
    count = selector_width(same, f"count of {queries}")
    return pick(same & select(number, count, operator.eq), values, default, f"latest {values}")


def follower(order: int = 1) -> Variable:
    """Return the token after the latest earlier occurrence of the last ``order`` tokens; causal.

    With order 1 this is induction, otherwise lookup of an n-gram, n being ``order + 1``.
    """
    require_positive(order=order)
    last = [tokens, *(shift(tokens, back) for back in range(1, order + 1))]
    if order == 1:
        return latest(tokens, last[1], tokens).named("follower")
    before = elementwise(lambda *values: values, *last[1:], label=f"{order} tokens before")
    here = elementwise(lambda *values: values, *last[:-1], label=f"last {order} tokens")
    return latest(tokens, before, here).named("follower")


def lookup(keys: Sequence[Value]) -> Variable:
    """Return the value of each key by the facts before it; causal.

    A fact is a key followed by a value; all tokens but keys are values. The latest fact of a key
    counts.
    """
    keys = tuple(keys)  # a text would have "ab" in it where keys are a and b
    key = elementwise(lambda token: token if token in keys else None, tokens, label="key")
    before = elementwise(
        lambda token, k: None if token in keys else k,
        tokens,
        shift(key, 1),
        label="key of the fact",
    )
    return latest(tokens, before, key).named("value of the key")


def copy(separator: Value) -> Variable:
    """Return the tokens before the first separator, one at each position after it; causal.

    Greedy continuation of ``abc|`` writes ``abc|``.
    """
    text = elementwise(operator.not_, count(tokens, separator), label="before the separator")
    size = selector_width(
        select(text, text, lambda key, _: key, "before the separator"), "tokens before it"
    )
    place = elementwise(
        lambda t, i, n: None if t else i - n, text, indices, size, label="place in the copy"
    )
    return fetch(tokens, place).named("copy")


def addition(base: int = 10) -> Variable:
    """Return the digits of a sum, lowest first, from ``=`` on; causal.

    The text has two numbers of any lengths, their lowest digits first: ``91+3=`` is continued by
    ``22`` and zeros.

    1. The count of signs up to a token is the index of its number. The token's place is the count
       of this number's tokens up to it.
    2. After ``=``, the digits of both numbers at the same place are fetched and added.
    3. The carry comes from the latest place at which they do not add up to ``base - 1``.
    """
    if not 2 <= base <= 10:
        raise InputError(
            got=f"base = {base}",
            expected="from 2 to 10",
            fix="Digits are 0 to 9.",
        )
    is_sign = select(tokens, tokens, lambda key, _: key in "+=", "signs")
    signs = selector_width(is_sign, "signs so far")
    place = selector_width(select(signs, signs, operator.eq), "place")
    digit = elementwise(lambda token: 0 if token in "+=" else int(token), tokens, label="digit")
    in_sum = elementwise(lambda n, p: p if n == 2 else None, signs, place, label="place in the sum")
    first = elementwise(
        lambda n, p: p if n == 0 else None, signs, place, label="place in the first number"
    )
    second = elementwise(
        lambda n, p: p - 1 if n == 1 else None, signs, place, label="place in the second number"
    )
    a = pick(select(first, in_sum, operator.eq), digit, 0, f"digit at its {first}")
    b = pick(select(second, in_sum, operator.eq), digit, 0, f"digit at its {second}")
    pair = elementwise(lambda _, x, y: x + y, in_sum, a, b, label="sum of two digits")
    decides = elementwise(
        lambda two: None if two == base - 1 else 1, pair, label="decides the carry"
    )
    always = elementwise(lambda _: 1, in_sum, label="in the sum")
    carries = elementwise(lambda two: int(two >= base), pair)
    carry = latest(carries, decides, always, default=0).named("carry")
    carry_before = shift(carry, 1, default=0)
    return elementwise(
        lambda two, c: (two + c) % base, pair, carry_before, label="digit of the sum"
    )


def recurrence(modulus: int) -> Variable:
    """Return the next term of ``x(n) = a x(n-2) + b x(n-1)`` modulo a prime; causal.

    The factors a and b are unknown. The first four terms give two equations. Each solution of both
    predicts all later terms: the states ``(x(n-1), x(n))`` stay in the span of the first two. The
    result is None before the fourth term, or where there is no solution.
    """

    def solve(x0: int, x1: int, x2: int, x3: int) -> tuple[int, int] | None:
        for a, b in product(range(modulus), repeat=2):
            if (a * x0 + b * x1 - x2) % modulus == (a * x1 + b * x2 - x3) % modulus == 0:
                return a, b
        return None

    coefficients = elementwise(solve, *(fetch(tokens, n) for n in range(4)), label="a, b")
    older = elementwise(
        lambda ab, x: ab[0] * x % modulus, coefficients, shift(tokens, 1), label="a x(n-1)"
    )
    newer = elementwise(lambda ab, x: ab[1] * x % modulus, coefficients, tokens, label="b x(n)")
    return elementwise(lambda u, v: (u + v) % modulus, older, newer, label="next term")


MACHINE = ("halt", "load", "store", "add", "sub", "jump", "jump if zero")
"""The instructions of :func:`machine`, by their numbers; larger numbers halt."""


def machine(size: int) -> Variable:
    """Run one step of a computer, from memory to memory: apply it again for the next step.

    Memory is up to ``size`` numbers below ``size``. Cell 0 is the counter, the address of an
    instruction; cell 1 is the accumulator. An instruction is its number (see :data:`MACHINE`) and,
    in the next cell, its operand: the address to jump to, or of the number that is loaded into the
    accumulator, added to it or subtracted from it (modulo ``size``), or that the accumulator is
    stored as. Cells outside of the memory are 0.
    """
    counter = fetch(tokens, 0, 0)
    accumulator = fetch(tokens, 1, 0)
    operand = fetch(tokens, counter + 1, 0).named("operand")
    content = fetch(tokens, operand, 0).named("content")
    code = elementwise(
        lambda c: MACHINE[c] if c < len(MACHINE) else "halt",
        fetch(tokens, counter, 0),
        label="code",
    )

    def way(code: str, number: int) -> str:
        if code == "halt":
            return "stays"
        if code == "jump" or (code == "jump if zero" and number == 0):
            return "jumps"
        return "goes on"

    goes = elementwise(way, code, accumulator, label="way")
    ahead = elementwise(
        lambda w, c: {"stays": c, "jumps": 0}.get(w, (c + 2) % size), goes, counter, label="ahead"
    )
    jump = elementwise(lambda w, x: x if w == "jumps" else 0, goes, operand, label="jump")
    unchanged = elementwise(
        lambda c, number: 0 if c == "load" else number, code, accumulator, label="kept"
    )
    signs = {"load": 1, "add": 1, "sub": -1}
    added = elementwise(lambda c, number: signs.get(c, 0) * number, code, content, label="added")
    result = elementwise(lambda number: number % size, unchanged + added, label="next accumulator")
    target = elementwise(lambda c, x: x if c == "store" else -1, code, operand, label="stored at")

    def source_of(index: int, target: int) -> int | str:
        if index == target:
            return "stored"
        if index < 2:
            return index
        return "kept"

    source = elementwise(source_of, indices, target, label="source")
    parts = {
        0: (ahead + jump).named("next counter"),
        1: result,
        "stored": accumulator,
        "kept": tokens,
    }
    terms = []
    for name, part in parts.items():
        term = elementwise(
            lambda s, value, name=name: value if s == name else 0,
            source,
            part,
            label=f"{part} if {name}",
        )
        terms.append(term)
    return reduce(operator.add, terms).named("memory")


@dataclass(frozen=True)
class Example:
    """A program with the vocabulary and length of its sequences."""

    program: Variable
    vocabulary: tuple[Value, ...]
    max_len: int
    about: str
    causal: bool = False


PROGRAMS: dict[str, Example] = {
    "length": Example(length, tuple("abcd"), 5, "the number of tokens"),
    "count": Example(count(tokens, "a"), tuple("abc"), 8, "how often a occurs"),
    "reverse": Example(reverse(), tuple("abcd"), 5, "the tokens backwards"),
    "copy": Example(
        copy("|"), tuple("abc|"), 8, "the tokens before | again, after it", causal=True
    ),
    "histogram": Example(histogram(), tuple("abcd"), 5, "how often each token occurs"),
    "mode": Example(mode(), tuple(range(1, 4)), 5, "the most frequent token"),
    "sort": Example(sort(), tuple(range(1, 5)), 5, "the numbers in order"),
    "sort-by-frequency": Example(
        sort_by_frequency(), tuple(range(1, 5)), 5, "the most frequent tokens first"
    ),
    "shuffle-dyck-2": Example(
        shuffle_dyck(["()", "{}"]), tuple("(){}"), 5, "whether both kinds of brackets close"
    ),
    "shuffle-dyck-3": Example(
        shuffle_dyck(["()", "{}", "[]"]),
        tuple("(){}[]"),
        6,
        "whether all three kinds of brackets close",
    ),
    "dyck-1": Example(
        dyck(["()"]), tuple("()"), 8, "whether the brackets so far are balanced", causal=True
    ),
    "dyck-2": Example(
        dyck(["()", "[]"]),
        tuple("()[]"),
        6,
        "whether two kinds of brackets so far are balanced",
        causal=True,
    ),
    "dyck-3": Example(
        dyck(["()", "[]", "{}"]),
        tuple("()[]{}"),
        6,
        "whether three kinds of brackets so far are balanced",
        causal=True,
    ),
    "detect": Example(detect(tokens, "abc"), tuple("abc"), 6, "where abc ends"),
    "parity": Example(parity("1"), tuple("01"), 8, "whether the number of ones is odd"),
    "induction": Example(
        follower(), tuple("abc"), 6, "what followed the token's last occurrence", causal=True
    ),
    "trigram": Example(
        follower(2), tuple("abc"), 8, "what followed the last two tokens before", causal=True
    ),
    "lookup": Example(
        lookup("abc"), tuple("abcxyz"), 6, "the value of a key, by the facts before it", causal=True
    ),
    "addition": Example(
        addition(2), tuple("01+="), 8, "the binary digits of a sum, lowest first", causal=True
    ),
    "recurrence": Example(
        recurrence(7), tuple(range(7)), 5, "the next term, with unknown coefficients", causal=True
    ),
    "machine": Example(machine(6), tuple(range(6)), 6, "the memory of a computer after one step"),
}
"""Programs by name."""


def read_program(name: Path | str, run_python: bool = False) -> Example:
    """Read a program of the library by its name, or the program that a Python file defines.

    Args:
        name: A name of :data:`~glassformer.programs.library.PROGRAMS`, or the path of a .py file.
        run_python: True if a file may be run, with all permissions of the current user.
    """
    if str(name) in PROGRAMS:
        return PROGRAMS[str(name)]
    path = local_path(name)
    if path.suffix.lower() != ".py":
        raise InputError(
            got=f"the program {shown(path)}",
            expected="a .py file or a known name",
            fix=known_name(str(name), tuple(PROGRAMS)),
        )
    require_permission(path, run_python)
    definitions = run_python_file(path, ("program", "vocabulary", "max_len"))
    with in_file(path):
        program = definitions["program"]
        causal = definitions.get("causal", False)
        about = str(definitions.get("about", ""))
        if not isinstance(program, Variable):
            raise InputError(
                got=f"program = {short(repr(program))}",
                expected="a variable",
                fix="Build it from tokens and indices.",
            )
        if not isinstance(causal, bool):
            raise InputError(
                got=f"causal = {short(repr(causal))}",
                expected="True or False",
                fix="Change it.",
            )
        domains = Domains(definitions["vocabulary"], definitions["max_len"], causal)
        return Example(
            program,
            tuple(domains.vocabulary),
            domains.max_len,
            about,
            causal,
        )


def tokens_in(text: str, vocabulary: Sequence[Value]) -> list[Value]:
    """Split a text into tokens: its characters, if each token is one, otherwise its words.

    Spaces between characters are skipped where a space is no token.
    """
    names = {str(token): token for token in vocabulary}
    if len(names) != len(vocabulary):
        raise InputError(
            got=f"the vocabulary {list(vocabulary)}",
            expected="tokens that are written differently",
            fix="Rename some.",
        )
    if all(len(name) == 1 for name in names):
        kind = "characters"
        pieces = [character for character in text if character in names or not character.isspace()]
    else:
        kind = "words between spaces"
        pieces = text.split()
    expected = f"{kind} among {' '.join(names)}"
    if not pieces:
        raise InputError(
            got="no tokens",
            expected=expected,
            fix="Type some.",
        )
    for piece in pieces:
        if piece not in names:
            raise InputError(
                got=f"the token {short(piece)}",
                expected=expected,
                fix="Use these.",
            )
    return [names[piece] for piece in pieces]
