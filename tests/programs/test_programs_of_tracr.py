"""tracr's own test programs (43, selector width, and the nine that it lists as unsupported), on
every sequence.
"""

import operator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from glassformer.programs import (
    Variable,
    aggregate,
    compile_program,
    elementwise,
    everything,
    indices,
    select,
    selector_width,
    tokens,
    verify_program,
)
from glassformer.programs import library as lib

Case = tuple[Variable, Any, int, list[tuple[Any, list[Any]]]]


def same(values: Variable) -> Variable:
    """Every value as it is."""
    return elementwise(lambda value: value, values)


def shares(*wholes: int) -> list[Fraction]:
    """Numbers of positions as shares of those up to each."""
    return [Fraction(number, place + 1) for place, number in enumerate(wholes)]


PARENTHESES = "abc()"
NUMBERS = (1, 2, 3)
CASES: dict[str, Case] = {
    "frac_prevs_1": (
        lib.share_so_far(tokens == "l"),
        "helo",
        5,
        [("hello", shares(0, 0, 1, 2, 2))],
    ),
    "frac_prevs_2": (
        lib.share_so_far(tokens == "("),
        PARENTHESES,
        10,
        [("a()b(c))", shares(0, 1, 1, 1, 2, 2, 2, 2))],
    ),
    "frac_prevs_3": (
        lib.share_so_far(tokens == ")"),
        PARENTHESES,
        10,
        [("a()b(c))", shares(0, 0, 1, 1, 1, 1, 2, 3))],
    ),
    "shift_by_one": (lib.shift(tokens, 1), "abcd", 5, [("abcd", [None, "a", "b", "c"])]),
    "shift_by_two": (lib.shift(tokens, 2), "abcd", 5, [("abcd", [None, None, "a", "b"])]),
    "detect_pattern_a": (
        lib.detect(tokens, "a"),
        "abcd",
        5,
        [("bacd", [False, True, False, False])],
    ),
    "detect_pattern_ab": (
        lib.detect(tokens, "ab"),
        "ab",
        5,
        [
            ("aaba", [None, False, True, False]),
            ("abaa", [None, True, False, False]),
            ("aaaa", [None, False, False, False]),
        ],
    ),
    "detect_pattern_abc": (
        lib.detect(tokens, "abc"),
        "abc",
        6,
        [("abcabc", [None, None, True, False, False, True])],
    ),
    "reverse": (
        lib.reverse(),
        "abcd",
        5,
        [(text, list(text[::-1])) for text in ("abcd", "abc", "ad", "c")],
    ),
    "length": (
        lib.length,
        "abcd",
        3,
        [(text, [len(text)] * len(text)) for text in ("abc", "ad", "c")],
    ),
    "pair_balance": (
        lib.pair_balance("(", ")"),
        PARENTHESES,
        10,
        [("a()b(c))", shares(0, 1, 0, 0, 1, 1, 0, -1))],
    ),
    "shuffle_dyck2": (
        lib.shuffle_dyck(["()", "{}"]),
        "(){}",
        5,
        [("({)}", [True] * 4), ("(){)}", [False] * 5), ("{}(", [False] * 3)],
    ),
    "shuffle_dyck3": (
        lib.shuffle_dyck(["()", "{}", "[]"]),
        "(){}[]",
        6,
        [("({)[}]", [True] * 6), ("(){)}", [False] * 5), ("{}[(]", [False] * 5)],
    ),
    "hist": (lib.histogram(), "abcd", 5, [("abac", [2, 1, 2, 1])]),
    "sort_unique_1": (
        lib.sort_unique(tokens, tokens),
        (1, 2, 3, 4),
        5,
        [([2, 4, 3, 1], [1, 2, 3, 4])],
    ),
    "sort_unique_2": (lib.sort_unique(tokens, 1 - indices), "abcd", 5, [("abcd", list("dcba"))]),
    "sort_1, sort_3": (
        lib.sort(),
        (1, 2, 3, 4),
        5,
        [([2, 4, 3, 1], [1, 2, 3, 4]), ([2, 4, 1, 2], [1, 2, 2, 4])],
    ),
    "sort_2": (lib.sort(tokens, 1 - indices), "abcd", 5, [("abcd", list("dcba"))]),
    "sort_freq": (lib.sort_by_frequency(), (1, 2, 3, 4), 5, [([2, 4, 2, 1], [2, 2, 4, 1])]),
    "make_count_less_freq": (
        lib.count_less_frequent(2),
        "abcd",
        6,
        [("aaabbc", [3] * 6), ("aacbbc", [6] * 6)],
    ),
    "make_count": (
        lib.count(tokens, "a"),
        "abc",
        8,
        [("aaabbc", [3] * 6), ("cabc", [1] * 4), ("bbc", [0] * 3)],
    ),
    "make_nary_sequencemap_1": (
        elementwise(lambda x, y, z: x + y - z, tokens, tokens, indices),
        NUMBERS,
        5,
        [([1, 2, 3], [2, 3, 4])],
    ),
    "make_nary_sequencemap_2": (
        elementwise(lambda x, y, z: Fraction(x * y, z), indices, indices, tokens),
        NUMBERS,
        3,
        [([1, 2, 3], [0, Fraction(1, 2), Fraction(4, 3)])],
    ),
    "selector_width": (lib.length, "abcd", 5, [("abcd", [4] * 4)]),
    # What tracr lists as unsupported: kinds of values, which are inferred here, and a default.
    # These have no inputs.
    "numerical_categorical_aggregate": (
        aggregate(everything, same(tokens)),
        NUMBERS,
        5,
        [([1, 2], [Fraction(3, 2)] * 2)],
    ),
    "categorical_numerical_aggregate": (
        aggregate(everything, tokens),
        NUMBERS,
        5,
        [([1, 1, 3], [Fraction(5, 3)] * 3)],
    ),
    "numerical_numerical_aggregate": (
        aggregate(everything, same(tokens), 0),
        NUMBERS,
        5,
        [([1, 3], [2, 2])],
    ),
    "aggregate_with_not_None_default": (
        aggregate(select(indices, indices, operator.eq), tokens, 1),
        NUMBERS,
        5,
        [([3, 1, 2], [3, 1, 2])],
    ),
    "numerical_selector": (
        selector_width(select(same(tokens), same(tokens), operator.lt)),
        NUMBERS,
        5,
        [([3, 1, 2], [2, 0, 1])],
    ),
    "numerical_SequenceMap": (
        elementwise(lambda x, y: x + y, same(indices), same(tokens)),
        NUMBERS,
        5,
        [([3, 1, 2], [3, 2, 4])],
    ),
    "categorical_LinearSequenceMap": (indices + tokens, NUMBERS, 5, [([3, 1, 2], [3, 2, 4])]),
    "numerical_tokens": (tokens, NUMBERS, 5, [([3, 1, 2], [3, 1, 2])]),
    "numerical_indices": (indices, NUMBERS, 5, [([3, 1, 2], [0, 1, 2])]),
}
"""Each with tracr's vocabulary, greatest length, inputs and outputs; programs that differ in these
alone as one.
"""

SIZES = {
    "frac_prevs_1": (2, 14, 1108),
    "shift_by_one": (1, 16, 726),
    "reverse": (4, 43, 19700),
    "hist": (1, 19, 1208),
    "sort_unique_1": (2, 23, 2826),
    "sort_1, sort_3": (3, 43, 17544),
    "sort_freq": (5, 66, 64122),
    "make_count": (1, 24, 1761),
    "make_nary_sequencemap_1": (3, 74, 22270),
}
"""Layers, width and parameters of tracr's models of the same programs (tracr at commit 9ce2b8c)."""


LONG = {"shuffle_dyck2", "shuffle_dyck3", "pair_balance"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in CASES]
)
def test_tracrs_programs_hold_on_every_sequence(name: str) -> None:
    program, vocabulary, max_len, examples = CASES[name]
    model = compile_program(program, tuple(vocabulary), max_len)
    for given, wanted in examples:
        assert program(given) == wanted
        assert model.run(given) == wanted
    for dtype in ("float64", "float32"):
        certificate = verify_program(model.double() if dtype == "float64" else model.float())
        assert certificate.verdict == "holds", certificate
        assert certificate.num_undefined == 0
        assert certificate.rests_on == "every sequence"
        assert certificate.largest_error < (1e-9 if dtype == "float64" else 1e-4)


@pytest.mark.parametrize(
    "name", ["frac_prevs_1", "shift_by_one", "detect_pattern_abc", "selector_width"]
)
def test_causal_ones_hold_on_every_sequence(name: str) -> None:
    program, vocabulary, max_len, _ = CASES[name]
    model = compile_program(program, tuple(vocabulary), max_len, causal=True)
    assert verify_program(model).verdict == verify_program(model.float()).verdict == "holds"


def test_causal_selector_width_counts_positions() -> None:
    assert lib.length("abcd", causal=True) == [1, 2, 3, 4]


def test_models_are_smaller_than_tracrs() -> None:
    shares = []
    for name, sizes in SIZES.items():
        program, vocabulary, max_len, _ = CASES[name]
        model = compile_program(program, tuple(vocabulary), max_len)
        ours = len(model.layers), model.embedding.weight.shape[1], model.num_parameters
        assert all(mine <= theirs for mine, theirs in zip(ours, sizes, strict=True)), name
        shares.append([mine / theirs for mine, theirs in zip(ours, sizes, strict=True)])
    assert (np.median(shares, axis=0)[1:] <= 0.5).all()
