"""Programs: the interpreter, the same on many sequences, and compiled transformers on every sequence."""

from __future__ import annotations

import itertools
import operator
import random
import zlib
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.errors import InputError
from glassformer.handcraft.programs import (
    Selector,
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
from glassformer.handcraft.programs import library as lib
from glassformer.handcraft.programs.enumeration import Batch


def random_variable(draw: random.Random, depth: int) -> Variable:
    """A program of up to ``depth`` parts on one another."""
    if depth == 0:
        return draw.choice([tokens, indices])

    def part() -> Variable:
        return random_variable(draw, draw.choice([depth - 1, depth - 1, 0]))

    def table(size: int, salt: int) -> Any:
        return lambda *values: zlib.crc32(repr((salt, values)).encode()) % size

    kind, size, salt = draw.randrange(6), draw.randrange(2, 5), draw.randrange(100)
    if kind == 0:
        return elementwise(table(size, salt), part())
    if kind == 1:
        return elementwise(table(size, salt), part(), part())
    if kind == 2:
        return part() + part() if salt % 2 else part() - part()
    selector = random_selector(draw, depth - 1)
    return selector_width(selector) if kind == 3 else aggregate(selector, part(), draw.choice([None, 0, 1]))


def random_selector(draw: random.Random, depth: int) -> Selector:
    kind, salt = draw.random(), draw.randrange(100)
    if kind < 0.3 and depth > 0:
        first, second = random_selector(draw, depth - 1), random_selector(draw, depth - 1)
        return first & second if kind < 0.2 else first | second
    if kind < 0.4:
        return ~random_selector(draw, max(depth - 1, 0))
    keys, queries = (random_variable(draw, max(depth - 1, 0)) for _ in range(2))
    predicates = [operator.eq, operator.ne, operator.lt, operator.le, lambda key, query: key == query + 1]
    predicates.append(lambda key, query: zlib.crc32(repr((salt, key, query)).encode()) % 3 == 0)
    return select(keys, queries, draw.choice(predicates))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), causal=st.booleans())
def test_random_programs_compute_what_they_say(seed: int, causal: bool) -> None:
    draw = random.Random(seed)
    max_len, vocabulary = draw.randrange(2, 5), tuple(range(draw.randrange(2, 4)))
    program = random_variable(draw, draw.randrange(1, 4))
    try:
        model = compile_program(program, vocabulary, max_len, causal=causal)
    except InputError as error:
        if "too many" in error.got or "possible values" in error.got:
            return
        raise
    certificate = verify_program(model)
    assert certificate.verdict == "holds", certificate


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), causal=st.booleans())
def test_many_sequences_at_once_are_each_interpreted(seed: int, causal: bool) -> None:
    draw = random.Random(seed)
    program, length = random_variable(draw, 3), draw.randrange(1, 5)
    sequences = np.array(list(itertools.product(range(3), repeat=length)))
    batch = Batch(sequences, "012"[:3], causal) if draw.random() < 0.5 else Batch(sequences, (0, 1, 2), causal)
    try:
        codes, values = batch.column(program)
    except InputError:
        return  # sums of strings
    for row in draw.sample(range(len(sequences)), min(20, len(sequences))):
        sequence = [batch._vocabulary[token] for token in sequences[row]]
        if batch.defined[row]:
            assert program(sequence, causal=causal) == [values[code] for code in codes[row]]
        else:
            with pytest.raises(InputError):
                program(sequence, causal=causal)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_changed_weight_is_found(seed: int) -> None:
    draw = random.Random(seed)
    example = lib.PROGRAMS[draw.choice(["histogram", "detect", "reverse", "induction", "parity"])]
    model = compile_program(example.program, example.vocabulary, 4, causal=example.causal)
    sequences = [torch.tensor(list(itertools.product(range(len(example.vocabulary)), repeat=n))) for n in range(1, 5)]

    def read() -> list[Any]:
        with torch.inference_mode():
            return [model.decode(row) for each in sequences for row in model(each).tolist()]

    before = read()
    with torch.no_grad():
        weight = draw.choice([each for each in model.parameters() if each.numel()])
        weight.view(-1)[draw.randrange(weight.numel())] += draw.choice([-1.0, 1.0, 7.0])
    assert verify_program(model).verdict == "fails" or read() == before


def test_coordinates_and_heads_are_described() -> None:
    model = compile_program(lib.histogram(), tuple("ab"), 4)
    assert [each.name for each in model.coordinates if each.born == 0] == ["tokens"] * len(
        [each for each in model.coordinates if each.born == 0]
    )
    assert len(model.heads) == len(model.layers) == 1
    assert {each.index for each in model.coordinates} == set(range(model.embedding.weight.shape[1]))


@pytest.mark.parametrize("name", ["histogram", "reverse", "sort", "detect", "induction", "parity", "length"])
def test_bounds_cover_the_errors_of_every_sequence(name: str) -> None:
    example = lib.PROGRAMS[name]
    for dtype in (torch.float64, torch.float32):
        model = compile_program(
            example.program, example.vocabulary, example.max_len, causal=example.causal, dtype=dtype
        )
        certificate = verify_program(model)
        assert certificate.largest_error <= certificate.bound
        assert dtype == torch.float32 or certificate.bound < certificate.allowed / 100


def test_tokens_that_are_alike_are_run_once() -> None:
    model = compile_program(lib.count(tokens, "a"), tuple("abcdefghij"), 9)
    certificate = verify_program(model)
    assert (certificate.verdict, certificate.rests_on) == ("holds", "every sequence")
    assert certificate.num_run == certificate.num_different == sum(2**length for length in range(1, 10))
    assert certificate.num_possible == sum(10**length for length in range(1, 10))
    with torch.no_grad():
        model.embedding.weight[7] = model.embedding.weight[0]
    certificate = verify_program(model)
    assert certificate.verdict == "fails"
    assert certificate.counterexample is not None
    assert certificate.counterexample[0] == ("h",)
    for program in (tokens, lib.histogram(), lib.shift(tokens, 1), elementwise(lambda t, i: (t, i), tokens, indices)):
        certificate = verify_program(compile_program(program, tuple("abcd"), 3))
        assert certificate.num_different == certificate.num_possible


def test_beyond_the_limit_the_bound_decides() -> None:
    model = compile_program(lib.histogram(), tuple("abcdefghij"), 12)
    certificate = verify_program(model, limit=200)
    assert (certificate.verdict, certificate.rests_on, certificate.num_run) == ("holds", "the bound", 200)
    assert certificate.num_possible > 10**12
    with torch.no_grad():
        model.output.bias += 1e-3
    certificate = verify_program(model, limit=200)
    assert (certificate.verdict, certificate.rests_on) == ("undecided", "samples")
    assert "UNDECIDED" in str(certificate)


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: compile_program(tokens, (), 3), "vocabulary"),
        (lambda: compile_program(tokens, ("a", "a"), 3), "vocabulary"),
        (lambda: compile_program(tokens, ("a",), 0), "max_len"),
        (lambda: compile_program(3, ("a",), 2), "program"),  # type: ignore[arg-type]
        (lambda: compile_program(elementwise(lambda t: 1 / 0, tokens), ("a",), 2), "ZeroDivisionError"),
        (lambda: compile_program(elementwise(lambda t: float("nan"), tokens), ("a",), 2), "nan"),
        (lambda: compile_program(select_all_of_a_large_mean(), tuple(range(40)), 40), "possible values"),
        (lambda: tokens("", causal=False), "empty sequence"),
        (lambda: aggregate(everything, tokens)("ab"), "selects"),
        (lambda: bool(tokens == "a"), "truth"),
        (lambda: tokens + "a", "sum"),
        (lambda: select(tokens, "a", operator.eq), "queries"),  # type: ignore[arg-type]
        (lambda: compile_program(tokens, ("a", "b"), 2).run("abc"), "3 tokens"),
        (lambda: compile_program(tokens, ("a", "b"), 2).run("c"), "c"),
        (lambda: lib.detect(tokens, ""), "pattern"),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_unusable_programs_are_refused_by_name(build: Any, named: str) -> None:
    with pytest.raises(InputError) as caught:
        build()
    assert named in caught.value.got


def select_all_of_a_large_mean() -> Variable:
    return elementwise(lambda mean: mean > 3, aggregate(everything, elementwise(lambda t: t**3, tokens)))
