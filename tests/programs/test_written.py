"""Programs as text: what can be read, that nothing is run or grows, and that verdicts are those of
the definition.
"""

import itertools
from collections.abc import Iterator
from contextlib import suppress

import pytest

from glassformer.errors import InputError
from glassformer.explorer.loading.bundled import CARDS
from glassformer.processor_time import Budget
from glassformer.programs import written
from glassformer.programs.domains import Domains
from glassformer.programs.language import Value, Variable, typed
from glassformer.programs.library import PROGRAMS
from glassformer.programs.written import compare, read_written
from refusals import refused
from written_programs import FILLED, UNREADABLE, WITHOUT_VALUE, WRONG, blank


def domains_of(name: str) -> Domains:
    example = PROGRAMS[name]
    return Domains(example.vocabulary, example.max_len, example.causal)


def outputs(program: Variable, sequence: tuple[Value, ...], causal: bool) -> list[Value] | None:
    try:
        return [typed(value) for value in program(sequence, causal=causal)]
    except InputError:
        return None


def sequences(domains: Domains) -> Iterator[tuple[Value, ...]]:
    for length in range(1, domains.max_len + 1):
        yield from itertools.product(domains.vocabulary, repeat=length)


def test_every_blank_has_answers() -> None:
    assert (
        {name for name, texts in CARDS["programs"].items() if "blank" in texts}
        == FILLED.keys()
        == WRONG.keys()
    )


@pytest.mark.parametrize("name", FILLED)
def test_right_answers_hold_on_every_sequence(name: str) -> None:
    for filling in FILLED[name]:
        found = compare(
            read_written(blank(name).replace("___", filling), PROGRAMS[name].vocabulary),
            PROGRAMS[name].program,
            domains_of(name),
        )
        assert (found.verdict, found.num_run) == ("holds", found.num_possible)
        assert found.num_possible == sum(1 for _ in sequences(domains_of(name)))


@pytest.mark.parametrize("name", WRONG)
def test_wrong_answers_fail_with_the_shortest_counterexample(name: str) -> None:
    example = PROGRAMS[name]
    domains = domains_of(name)
    for filling in WRONG[name]:
        program = read_written(blank(name).replace("___", filling), example.vocabulary)
        first = next(
            sequence
            for sequence in sequences(domains)
            if outputs(program, sequence, example.causal)
            != outputs(example.program, sequence, example.causal)
        )
        if outputs(program, first, example.causal) is None:
            with pytest.raises(InputError):
                compare(program, example.program, domains)
            continue
        found = compare(program, example.program, domains)
        assert found.counterexample is not None
        sequence, position, wanted, got = found.counterexample
        assert (found.verdict, sequence) == ("fails", first)
        assert typed(wanted) == typed(example.program(first, causal=example.causal)[position])
        assert typed(got) == typed(program(first, causal=example.causal)[position])
        assert typed(wanted) != typed(got)


@pytest.mark.parametrize("text", UNREADABLE, ids=range(len(UNREADABLE)))
def test_what_is_no_program_is_refused(text: str, recwarn: pytest.WarningsRecorder) -> None:
    with pytest.raises(InputError):
        read_written(text, "abcd")
    assert not recwarn.list


@pytest.mark.parametrize(
    "wrong", ["___", "tokens", "select", "None", "lambda key, query: True", "tokens == tokens"]
)
@pytest.mark.parametrize(
    "text", ["select(tokens, tokens, WRONG)", "select(tokens, predicate=WRONG, queries=tokens)"]
)
def test_where_a_comparison_is_wanted_comparisons_are_listed(text: str, wrong: str) -> None:
    with refused(got="in line 1", expected="one of operator.eq, operator.ne, operator.lt"):
        read_written(f"selector_width({text.replace('WRONG', wrong)})", "abcd")


def test_a_comparison_without_its_module_is_recognized() -> None:
    with refused(got="'eq' in line 2", expected="comparison", fix="Did you mean operator.eq"):
        read_written("a = tokens\nselector_width(select(a, a, eq))", "abcd")


def test_a_comparison_may_have_a_name() -> None:
    named = read_written("same = operator.eq\nselector_width(select(tokens, tokens, same))", "abcd")
    assert [named(tuple("abca"))] == [PROGRAMS["histogram"].program(tuple("abca"))]


@pytest.mark.parametrize("text", WITHOUT_VALUE)
def test_a_program_without_a_value_somewhere_never_holds(text: str) -> None:
    domains = Domains("abcd", 3)
    definition = read_written("indices", "abcd")
    with suppress(InputError):
        assert compare(read_written(text, "abcd"), definition, domains).verdict == "fails"


LARGE = (
    "a = indices\n" + "a = a * 3\n" * 150,
    "a = indices\n" + "a = a / 3\n" * 150,
    "a = indices\n" + "a = a + a + indices\n" * 90,
    "a = aggregate(everything, indices / 7)\n" + "a = aggregate(everything, a + indices)\n" * 45,
    "a = indices * 7 / 11\n"
    + "a = aggregate(select(tokens, tokens, operator.le), a) * 3 + indices\n" * 27,
    "a = select(tokens, tokens, operator.le)\n"
    + "a = a & ~a | a\n" * 110
    + "a = selector_width(a)\n",
    "a = tokens == tokens\n" + "a = (a == a) == a\n" * 90,
)


@pytest.mark.parametrize("text", LARGE, ids=range(len(LARGE)))
def test_no_text_takes_long(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written, "SECONDS", 0.3)
    domains = domains_of("addition")
    budget = Budget(5)
    try:
        program = read_written(f"{text}indices + a * 0", domains.vocabulary)
        verdict = compare(program, read_written("indices", domains.vocabulary), domains).verdict
    except InputError:
        verdict = "undecided"
    # A large number times 0 is 0: nothing refutes it, and what is not run is not vouched for.
    assert verdict in ("holds", "undecided")
    assert not budget.is_over()


def test_what_is_not_run_is_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    example = PROGRAMS["histogram"]
    found = compare(example.program, example.program, domains_of("histogram"), limit=100)
    assert (found.verdict, found.num_run, found.num_possible) == ("undecided", 100, 1364)
    monkeypatch.setattr(written, "SECONDS", -1)
    assert compare(example.program, example.program, domains_of("histogram")).verdict == "undecided"


def test_a_number_of_another_type_is_another_value() -> None:
    definition = read_written("indices", "ab")
    found = compare(read_written("indices == 1", "ab"), definition, Domains("ab", 2))
    assert found.counterexample == (("a",), 0, 0, False)
