"""Compiled programs in the explorer: what is shown is what the program and its transformer compute."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from compiled_programs import compiled
from glassformer import explore
from glassformer.errors import InputError
from glassformer.explorer import messages as m
from glassformer.explorer.answers import programs as answers
from glassformer.explorer.backend import Backend
from glassformer.explorer.loading.bundled import bundled
from glassformer.explorer.loading.discovery import entries_at, find_models
from glassformer.explorer.loading.wrapping import wrap_model
from glassformer.explorer.saving.saved_page import page
from glassformer.explorer.state import from_words
from glassformer.observe.capture import capture
from glassformer.programs import CompiledProgram, compile_program, tokens
from glassformer.programs.library import count
from glassformer.programs.saved import save_program
from refusals import refused
from sorting import sorting


def shown(backend: Backend, model: str, text: str) -> m.Program:
    run = backend.answer("run", m.Ask(model=model, text=text))
    return backend.answer("program", m.AskProgram(run=run.run))


def proof(backend: Backend, model: str) -> m.Proof:
    return backend.answer("proof", m.AskProof(model=model))


@pytest.fixture(scope="module")
def given() -> tuple[Backend, CompiledProgram]:
    model = sorting()
    return Backend([wrap_model(model, [2, 4, 1, 2])]), model


def test_parts_have_the_values_of_the_definition(given: tuple[Backend, CompiledProgram]) -> None:
    program = shown(given[0], "given", "2412")
    by_name = {part.name: part for part in program.parts}
    assert by_name["unique key"].values == ["10", "21", "7", "13"]
    assert by_name["unique key"].sources == [0, 1]
    assert by_name["select(unique key < unique key)"].values == ["2", "0 2 3", "", "0 2"]
    assert by_name["place"].values == ["1", "3", "0", "2"]
    assert by_name["place"].domain == "0 to 5"
    assert program.parts[-1].values == program.definition == program.outputs == ["1", "2", "2", "4"]
    assert program.right == [True] * 4


def test_a_program_without_attention_is_shown() -> None:
    program = shown(
        Backend([wrap_model(compile_program(tokens + 1, (1, 2), 3), [2, 1])]), "given", "21"
    )
    assert (program.stages, program.heads) == (["embedding", "output"], [])
    assert program.outputs == program.definition == ["3", "2"]


def test_heads_and_stream_are_those_of_the_transformer(
    given: tuple[Backend, CompiledProgram],
) -> None:
    backend, model = given
    program = shown(backend, "given", "2412")
    with torch.inference_mode(), capture(model, what=("weights", "residual")) as seen:
        model(model.encode([2, 4, 1, 2]))
    for head in program.heads:
        (weights,) = [
            each.values[0]
            for each in seen.records
            if (each.what, each.layer) == ("weights", head.layer)
        ]
        np.testing.assert_array_equal(head.weights, weights[head.head].double())
        np.testing.assert_allclose(np.sum(head.weights, 1) + np.array(head.sink), 1, atol=1e-12)
    last = [each.values[0] for each in seen.records if each.what == "residual"][-1]
    np.testing.assert_array_equal(program.stream[-1], last)
    assert [(head.select, head.writes) for head in program.heads] == [
        ("select(unique key < unique key)", ["share of place"]),
        ("select(place == indices)", ["tokens sorted"]),
    ]
    assert len(program.stages) == len(program.stream) + 1 == 8


def test_variables_are_decoded_from_the_stream(given: tuple[Backend, CompiledProgram]) -> None:
    program = shown(given[0], "given", "2412")
    by_name = {variable.name: variable for variable in program.variables}
    assert by_name["place"].values == ["1", "3", "0", "2"]
    assert by_name["unique key"].values == ["10", "21", "7", "13"]
    assert by_name["share of place"].values == ["0.5", "0.75", "0", "0.667"]
    for variable in program.variables:
        assert 0 <= variable.born < variable.read < len(program.stages)


def test_what_coordinates_do_not_tell_apart_is_listed() -> None:
    model = compile_program(count(tokens, "a"), tuple("abcd"), 3)
    program = shown(Backend([wrap_model(model)]), "given", "ab")
    assert program.variables[0].values == ["a", "b or c or d"]


def test_a_proof_is_computed_once_and_anew_for_other_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = compiled("histogram")
    verified = Mock(wraps=answers.verify_program)
    monkeypatch.setattr(answers, "verify_program", verified)
    backend = Backend([wrap_model(model)])
    first = proof(backend, "given")
    assert (first.verdict, first.rests_on, first.num_checked, first.allowed) == (
        "holds",
        "every sequence",
        1364,
        0.5,
    )
    assert proof(backend, "given") == first
    assert verified.call_count == 1
    with torch.no_grad():
        model.output.bias += 0.75
    failing = proof(backend, "given")
    assert failing.verdict == "fails"
    assert failing.bound == pytest.approx(0.75)
    assert failing.counterexample == m.ProgramFailure(
        text="a", position=0, wanted="1", found="1.75"
    )
    program = shown(backend, "given", "ab")
    assert (program.outputs, program.definition, program.right) == (
        ["2", "2"],
        ["1", "1"],
        [False, False],
    )


def test_a_proof_waits_for_an_answer_that_watches_the_model() -> None:
    model = compiled("histogram")
    watching = threading.Event()
    backend = Backend([wrap_model(model)])
    loaded = backend.model("given")

    def watch() -> None:
        with loaded.lock, capture(model):
            watching.set()
            time.sleep(0.3)

    with ThreadPoolExecutor(1) as pool:
        watched = pool.submit(watch)
        assert watching.wait(300)
        assert proof(backend, "given").verdict == "holds"
        watched.result()


def test_where_the_bound_is_no_proof_all_sequences_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "QUICKLY_RUN", 10)
    model = compiled("histogram")
    backend = Backend([wrap_model(model)])
    assert proof(backend, "given").rests_on == "the bound"
    model.claims = ()
    with torch.no_grad():
        model.output.bias += 0.125
    assert (proof(backend, "given").rests_on, proof(backend, "given").num_checked) == (
        "every sequence",
        1364,
    )


def test_a_stored_program_has_no_definition(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_program(compiled("induction"), tmp_path / "mine.json")
    (entry,) = entries_at(tmp_path / "mine.json")
    assert (entry.card.kind, entry.card.text, entry.card.origin) == ("program", "abcabc", "run")
    backend = Backend([entry])
    program = shown(backend, entry.card.name, "abcab")
    assert (program.parts, program.definition, program.right) == ([], None, None)
    assert program.outputs == ["None", "None", "None", "b", "c"]
    with refused("without its program"):
        proof(backend, entry.card.name)
    (tmp_path / "notes.json").write_text("{}")
    assert [each.card.title.endswith("mine.json") for each in find_models(tmp_path)] == [True]
    (tmp_path / "mine.json").write_text('{"format": "glassformer program 1"}')
    capsys.readouterr()
    assert find_models(tmp_path) == []
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_text_without_a_value_has_no_definition() -> None:
    from glassformer.programs import aggregate, everything

    model = compile_program(aggregate(everything, tokens), tuple("ab"), 3)
    backend = Backend([wrap_model(model)])
    assert shown(backend, "given", "aa").right == [True, True]
    program = shown(backend, "given", "ab")
    assert (program.definition, program.right, program.parts[-1].values) == (None, None, [])


def test_what_is_no_program_is_refused(
    given: Any, small_backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text, named in (("", "no tokens"), ("5", "'5'"), ("123412", "6 tokens")):
        with refused(named):
            given[0].answer("run", m.Ask(model="given", text=text))
    run = small_backend.answer("run", m.Ask(model="decoder", text="1"))
    with refused("program of 'decoder'"):
        small_backend.answer("program", m.AskProgram(run=run.run))
    with refused("proof of 'decoder'"):
        proof(small_backend, "decoder")
    with refused("a program"):
        given[0].answer("whatif", m.AskWhatIf(ask=m.Ask(model="given", text="12")))
    monkeypatch.setattr(m, "MOST_PROGRAM_NUMBERS", 100)
    with refused("4 tokens, with"):
        shown(given[0], "given", "2412")


def test_weights_that_are_not_finite_are_refused() -> None:
    model = compiled("histogram")
    with torch.no_grad():
        model.output.weight.fill_(float("nan"))
    backend = Backend([wrap_model(model)])
    assert backend.answer("run", m.Ask(model="given", text="a")).said.headline.endswith(
        "not finite"
    )
    with refused("not finite"):
        shown(backend, "given", "a")
    with refused("output.weight with numbers that are not finite"):
        proof(backend, "given")


def test_explore_and_a_saved_page_take_a_compiled_program(
    given: tuple[Backend, CompiledProgram],
) -> None:
    written = page(given[0], from_words({"text": "31"}))
    for words in ('"call":"program"', '"call":"proof"', "unique key", '"verdict":"holds"'):
        assert words in written
    seen = explore(given[1], [3, 1, 2])
    assert seen.words["text"] == "3 1 2"
    with pytest.raises(InputError):
        explore(given[1], [9])
    bundle: Any = seen._repr_mimebundle_()
    assert "image/png" not in bundle[0]


def test_a_written_program_is_compared_with_the_task() -> None:
    backend = Backend([entry for entry in bundled() if entry.card.name == "program-sort"])
    card = backend.catalogue().models[0]
    text = "2412"

    def attempt(program: str, model: str = card.name) -> m.Attempt:
        return backend.answer("attempt", m.AskAttempt(model=model, program=program, text=text))

    right = attempt(card.blank.replace("___", "select(indices, indices, operator.lt)"))
    assert (right.verdict, right.num_checked, right.num_possible, right.fault) == (
        "holds",
        1364,
        1364,
        None,
    )
    assert right.outputs == right.definition == ["1", "2", "2", "4"]
    assert right.right == [True] * 4
    wrong = attempt("tokens")
    assert wrong.verdict == "fails"
    assert wrong.counterexample == m.ProgramFailure(text="21", position=0, wanted="1", found="2")
    assert (wrong.outputs, wrong.right) == (["2", "4", "1", "2"], [False] * 4)
    for program in (card.blank, "", "tokens.x", "pick(everything, tokens)", "(" * 9_000):
        unread = attempt(program)
        assert (unread.verdict, unread.outputs, unread.right, unread.counterexample) == (
            "undecided",
            None,
            None,
            None,
        )
        assert unread.fault
    with pytest.raises(InputError):
        backend.answer("attempt", m.AskAttempt(model=card.name, program="tokens", text="x"))
    model = compiled("sort")
    model.program = None
    without = Backend([wrap_model(model, [2, 4])])
    with pytest.raises(InputError, match="definition"):
        without.answer("attempt", m.AskAttempt(model="given", program="tokens", text="24"))
