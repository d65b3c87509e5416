"""Programs: the interpreter, the same on many sequences, and compiled transformers on every
sequence.
"""

import itertools
import operator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.errors import InputError
from glassformer.programs import (
    Variable,
    aggregate,
    compile_program,
    elementwise,
    everything,
    indices,
    pick,
    select,
    selector_width,
    tokens,
    verify_program,
)
from glassformer.programs import library as lib
from glassformer.programs.enumeration import Batch
from random_programs import RandomPrograms
from refusals import refused


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), causal=st.booleans(), depth=st.integers(1, 4))
def test_random_programs_compute_what_they_say(seed: int, causal: bool, depth: int) -> None:
    some = RandomPrograms(seed)
    program = some.variable(depth, letters=some.flip())
    try:
        model = compile_program(program, some.vocabulary, some.draw.randrange(2, 5), causal=causal)
    except InputError as error:
        if "too many" in error.got or "possible values" in error.got:
            return
        raise
    certificate = verify_program(model)
    assert certificate.verdict == "holds", certificate
    assert certificate.rests_on == "every sequence"


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), causal=st.booleans())
def test_many_sequences_at_once_are_each_interpreted(seed: int, causal: bool) -> None:
    some = RandomPrograms(seed)
    draw = some.draw
    vocabulary = some.vocabulary
    program = some.variable(4, letters=some.flip())
    length = draw.randrange(1, 5)
    sequences = np.array(list(itertools.product(range(len(vocabulary)), repeat=length)))
    batch = Batch(sequences, vocabulary, causal)
    codes, values = batch.column(program)
    for row in draw.sample(range(len(sequences)), min(20, len(sequences))):
        sequence = [vocabulary[token] for token in sequences[row]]
        if batch.defined[row]:
            assert program(sequence, causal=causal) == [values[code] for code in codes[row]]
        else:
            with pytest.raises(InputError):
                program(sequence, causal=causal)


def test_coordinates_and_heads_are_described() -> None:
    model = compile_program(lib.histogram(), tuple("ab"), 4)
    assert {each.name for each in model.coordinates if each.born == 0} == {"tokens"}
    assert len(model.heads) == len(model.layers) == 1
    assert {each.index for each in model.coordinates} == set(range(model.embedding.weight.shape[1]))


def test_erased_coordinates_leave_nothing_behind() -> None:
    """The output is in a coordinate that held another variable with its error before."""
    example = lib.PROGRAMS["shuffle-dyck-2"]
    model = compile_program(
        example.program, example.vocabulary, example.max_len, dtype=torch.float32
    )
    place = next(each.index for each in model.coordinates if each.name == "balanced")
    assert sum(each.index == place for each in model.coordinates) > 1
    assert verify_program(model).largest_error == 0


def test_tokens_that_are_alike_are_run_once() -> None:
    model = compile_program(lib.count(tokens, "a"), tuple("abcdefghij"), 9)
    certificate = verify_program(model)
    assert (certificate.verdict, certificate.rests_on) == ("holds", "every sequence")
    assert (
        certificate.num_run
        == certificate.num_different
        == sum(2**length for length in range(1, 10))
    )
    assert certificate.num_possible == sum(10**length for length in range(1, 10))
    with torch.no_grad():
        model.embedding.weight[7] = model.embedding.weight[0]
    certificate = verify_program(model)
    assert certificate.verdict == "fails"
    assert certificate.counterexample[0] == ("h",)
    for program in (
        tokens,
        lib.histogram(),
        lib.shift(tokens, 1),
        elementwise(lambda t, i: (t, i), tokens, indices),
    ):
        certificate = verify_program(compile_program(program, tuple("abcd"), 3))
        assert certificate.num_different == certificate.num_possible


def test_beyond_the_limit_the_bound_decides() -> None:
    model = compile_program(lib.histogram(), tuple("abcdefghij"), 12)
    certificate = verify_program(model, limit=200)
    assert (certificate.verdict, certificate.rests_on, certificate.num_run) == (
        "holds",
        "the bound",
        200,
    )
    assert certificate.num_possible > 10**12
    with torch.no_grad():
        model.output.bias += 1e-3
    certificate = verify_program(model, limit=200)
    # for weights as they are
    assert (certificate.verdict, certificate.rests_on) == (
        "holds",
        "the bound",
    )
    assert certificate.largest_error <= certificate.bound < 1.1e-3
    model.claims = ()
    certificate = verify_program(model, limit=200)
    assert (certificate.verdict, certificate.rests_on) == ("undecided", "samples")
    assert "UNDECIDED" in str(certificate)
    assert "no bound" in str(certificate)


def only(value: Any) -> Variable:
    """The same value everywhere."""
    return elementwise(lambda _: value, tokens, label="only")


def nested(depth: int) -> Variable:
    program: Variable = tokens
    for _ in range(depth):
        program = aggregate(select(indices, indices, operator.le), program, 0)
    return program


SAME = select(tokens, tokens, operator.eq)
LARGE_MEAN = elementwise(
    lambda mean: mean > 3, aggregate(everything, elementwise(lambda t: t**3, tokens))
)


@pytest.mark.parametrize(
    ("build", "named"),
    [
        # sequences and vocabularies
        (lambda: compile_program(tokens, (), 3), "vocabulary"),
        (lambda: compile_program(tokens, ("a", "a"), 3), "vocabulary"),
        (lambda: compile_program(tokens, (["a"], "b"), 3), "vocabulary"),
        (lambda: compile_program(tokens, (None, "b"), 3), "vocabulary"),
        (lambda: compile_program(tokens, (float("nan"), 1.0), 3), "vocabulary"),
        (lambda: compile_program(tokens, 3, 3), "vocabulary"),  # type: ignore[arg-type]
        (lambda: compile_program(tokens, ("a",), 0), "max_len"),
        (lambda: compile_program(tokens, ("a",), 10**9), "max_len"),
        (lambda: compile_program(tokens, ("a",), 2, dtype=torch.int32), "dtype"),
        (lambda: compile_program(tokens, ("a", "b"), 2).run("c"), "c"),
        (lambda: tokens("", causal=False), "empty sequence"),
        (lambda: verify_program(compile_program(tokens, ("a", "b"), 2), limit=0), "limit"),
        # types
        (lambda: compile_program(3, ("a",), 2), "program"),  # type: ignore[arg-type]
        (lambda: bool(tokens == "a"), "truth"),
        (lambda: tokens + "a", "sum"),
        (lambda: compile_program(tokens + 1, ("a",), 2), "'a' in a sum"),
        (lambda: compile_program(tokens * indices, ("a",), 2), "'a' in a sum"),
        (lambda: compile_program(tokens < 1, ("a",), 2), "(tokens < 1) of 'a'"),
        (lambda: select(tokens, "a", operator.eq), "queries"),  # type: ignore[arg-type]
        (lambda: elementwise(len, SAME), "sources"),  # type: ignore[arg-type]
        (lambda: elementwise(len), "no sources"),
        (lambda: aggregate(tokens, tokens), "selector"),  # type: ignore[arg-type]
        (lambda: aggregate(SAME, tokens, [1]), "default"),
        (lambda: selector_width(tokens), "selector"),  # type: ignore[arg-type]
        (lambda: SAME & tokens, "& tokens"),  # type: ignore[operator]
        (lambda: SAME | True, "| True"),  # type: ignore[operator]
        (
            lambda: compile_program(selector_width(select(tokens, tokens, "eq")), ("a",), 2),
            "predicate",
        ),  # type: ignore[arg-type]
        # functions and predicates that give no value
        (
            lambda: compile_program(elementwise(lambda t: 1 / 0, tokens), ("a",), 2),
            "ZeroDivisionError",
        ),
        (lambda: compile_program(tokens / indices, (1, 2), 2), "(tokens / indices) of 1, 0"),
        (lambda: compile_program(tokens / 0, (1, 2), 2), "/ 0"),
        (lambda: compile_program(only(float("nan")), ("a",), 2), "nan"),
        (lambda: compile_program(only(float("inf")), ("a",), 2), "inf"),
        (lambda: compile_program(only(10**400), ("a",), 2), "only of 'a'"),
        (lambda: compile_program(only([1]), ("a",), 2), "[1]"),
        (lambda: compile_program(only(tokens), ("a",), 2), "only of 'a'"),
        (lambda: only([1])("ab"), "[1]"),
        (
            lambda: compile_program(
                selector_width(select(tokens, tokens, lambda k, q: 1 / 0)), ("a",), 2
            ),
            "division",
        ),
        (
            lambda: compile_program(
                selector_width(select(tokens, tokens, lambda k, q: None)), ("a",), 2
            ),
            "None",
        ),
        (lambda: selector_width(select(tokens, tokens, lambda k, q: float("nan")))("ab"), "nan"),
        # sizes and types
        (lambda: compile_program(tokens, (float("inf"), 1), 2), "inf"),
        (lambda: compile_program(tokens, (10**400, 1), 2), "vocabulary"),
        (lambda: compile_program(tokens, (10**5000, 1), 2), "vocabulary"),
        (lambda: compile_program(tokens, ((1, float("nan")), 1), 2), "nan"),
        (lambda: compile_program(tokens == 10**5000, (1, 2), 2).run([3]), "3"),
        (lambda: compile_program(tokens % 0, (1, 2), 2), "ZeroDivisionError"),
        (lambda: compile_program(tokens % 2, ("a",), 2), "'a'"),
        (lambda: compile_program(tokens, "ab", 2).run(5), "int"),  # type: ignore[arg-type]
        (lambda: tokens(5), "5"),  # type: ignore[arg-type]
        (lambda: compile_program(tokens, "ab", 2, dtype="float32"), "dtype"),  # type: ignore[arg-type]
        (lambda: verify_program(tokens), "Input"),  # type: ignore[arg-type]
        (lambda: verify_program(compile_program(tokens, "ab", 2), seconds=0), "seconds"),
        (lambda: select(tokens, tokens, 5), "predicate = 5"),
        (lambda: select(tokens, tokens, tokens), "predicate = tokens"),
        (lambda: compile_program(10**400 * tokens, (1, 2), 2), "factor"),
        (
            lambda: compile_program(aggregate(everything, tokens) * 10, (1e308, 1e307), 2),
            "(10 * aggregate",
        ),
        # several values where one is needed, and too many
        (lambda: aggregate(everything, tokens)("ab"), "selects"),
        (lambda: pick(everything, tokens)([1, 2]), "selects"),
        (lambda: compile_program(LARGE_MEAN, range(40), 40), "possible values"),
        (lambda: compile_program(nested(400), (0, 1), 2), "parts on one another"),
        (lambda: nested(2000)([0, 1]), "parts on one another"),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_unusable_programs_are_refused_by_name(build: Any, named: str) -> None:
    with pytest.raises(InputError) as caught:
        build()
    assert named in caught.value.got
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(("text", "fix"), [("", "Pass some"), ("aba", "larger max_len")])
def test_texts_of_other_lengths_are_refused_with_their_remedy(text: str, fix: str) -> None:
    with refused(f"{len(text)} tokens", fix=fix):
        compile_program(tokens, ("a", "b"), 2).run(text)


def test_where_nothing_is_selected_there_is_the_default() -> None:
    nothing = select(tokens, tokens, lambda key, query: False)
    for default in (None, 7, "x"):
        program = aggregate(nothing, tokens, default)
        assert program("ab") == compile_program(program, "ab", 3).run("ab") == [default] * 2
    assert compile_program(selector_width(nothing), "ab", 3).run("ab") == [0, 0]


def test_parts_that_share_many_others_are_compiled() -> None:
    first = tokens
    second = indices
    total = tokens
    for _ in range(40):  # more than 10^8 paths
        first, second, total = (
            second,
            elementwise(lambda a, b: (a + b) % 5, first, second),
            total + total,
        )
    assert len(str(total)) < 200
    for program in (second, total / 2**40):
        assert verify_program(compile_program(program, (0, 1), 3)).verdict == "holds"


def test_a_sequence_above_max_len_has_no_output() -> None:
    for most in (1, 2):
        with pytest.raises(IndexError):
            compile_program(tokens, "ab", most)(torch.tensor([[0, 1, 0]]))
