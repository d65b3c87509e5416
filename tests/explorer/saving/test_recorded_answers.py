from dataclasses import replace
from typing import Any

import pytest

from glassformer.errors import InputError
from glassformer.explorer import messages as m
from glassformer.explorer.backend import Backend
from glassformer.explorer.loading.bundled import bundled
from glassformer.explorer.loading.loaded_model import LoadedModel
from glassformer.explorer.saving.page_state import page_state
from glassformer.explorer.saving.recorded_answers import Record, record
from glassformer.explorer.state import State, changed


def recorded(backend: Backend, *, computes: bool = False, **values: object) -> Record:
    return record(
        backend, page_state(changed(State(), values), backend.catalogue().models), computes=computes
    )


def calls(backend: Backend, *, computes: bool = False, **values: object) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for each in recorded(backend, computes=computes, **values).answers:
        found.setdefault(each.call, []).append(each.request)
    return found


def bundle(name: str) -> Backend:
    return Backend([entry for entry in bundled() if entry.card.name == name])


def test_the_edited_design_is_what_is_judged(small_backend: Backend) -> None:
    kept = recorded(small_backend, model="identity", text="AB", cells={"Vm.0.0": "7"})
    assert [each.call for each in kept.answers] == ["run", "head", "check"]
    check = kept.answers[-1]
    assert check.request.weights.Vm[0][0] == 7
    assert check.answer == small_backend.answer("check", check.request)
    assert check.answer.certificate.verdict == "fails"


def test_a_reordered_source_is_recorded_in_both_orders(small_backend: Backend) -> None:
    state: dict[str, Any] = {"model": "lookup", "text": "4", "order": [4, 3, 2, 1, 0]}
    asked = calls(small_backend, **state)
    assert set(asked) == {"run", "scramble"}
    assert [ask.order for ask in asked["run"]] == [[4, 3, 2, 1, 0], None]
    assert [ask.order for ask in asked["scramble"]] == [[4, 3, 2, 1, 0]]
    assert len(recorded(small_backend, **state).rows) == 2


def test_cross_attention_is_recorded_in_the_order_that_is_shown() -> None:
    asked = calls(bundle("lookup-course"), view="attention", order=[1, 0, 2, 3, 4])
    assert set(asked) == {"run", "measures"}
    assert [ask.order for ask in asked["run"]] == [[1, 0, 2, 3, 4]]
    assert [ask.part for ask in asked["measures"]] == ["cross"]


def test_the_sampling_rule_of_the_state(small_backend: Backend) -> None:
    asked = calls(
        small_backend,
        model="decoder",
        view="sampling",
        text="1 2",
        temperature=0.5,
        top_k=3,
        top_p=0.9,
    )
    assert set(asked) == {"run", "next"}
    assert asked["next"] == [
        m.AskNext(model="decoder", text="1 2", temperature=0.5, top_k=3, top_p=0.9)
    ]


def test_experts_are_recorded_where_they_are_shown(by_name: dict[str, LoadedModel]) -> None:
    loaded = by_name["decoder"]
    card = loaded.card.model_copy(update={"views": ["experts"]})
    asked = calls(Backend([replace(loaded, card=card)]), model="decoder", text="1 2")
    assert set(asked) == {"run", "experts"}


def test_a_refused_answer_is_kept_as_one() -> None:
    cells = {"Km.0.0": "1e300", "Qm.0.0": "1e300"}
    for view, refused in (("design", ["run", "check"]), ("attention", ["run"])):
        kept = recorded(bundle("identity"), view=view, text="AB", cells=cells)
        assert [
            each.call for each in kept.answers if isinstance(each.answer, InputError)
        ] == refused


def test_attention_is_of_the_stack_and_the_heads_that_are_shown(small_backend: Backend) -> None:
    asked = calls(small_backend, model="decoder", view="attention", text="1 2")
    assert set(asked) == {"run", "measures", "detect"}
    kept = recorded(
        small_backend,
        model="decoder",
        view="attention",
        text="1 2 3",
        layer=1,
        head=0,
        versus=(0, 1),
    )
    assert [(each["layer"], each["head"]) for each in kept.matrices] == [(1, 0), (0, 1)]
    assert kept.rows == []
    kept = recorded(
        small_backend, model="decoder", view="attention", text="1 2 3", shape="layers", pin=1
    )
    assert [each["asked"]["query"] for each in kept.rows] == [1]
    assert kept.matrices == []


def test_what_the_strongest_heads_read_is_shown_in_flow() -> None:
    backend = bundle("induction")
    kept = recorded(backend, view="flow", text="ABCAB", target=3, other=4)
    assert [each.call for each in kept.answers] == ["run", "whatif", "contributions"]
    assert all(each.request.other is None for each in kept.answers[1:])
    heads = [each for each in kept.answers[-1].answer.parts if each.kind == "head"]
    strongest = sorted(heads, key=lambda each: abs(each.value))[-5:]
    asked = [
        (each["asked"]["layer"], each["asked"]["head"], each["asked"]["query"])
        for each in kept.rows
    ]
    # after the start token
    assert sorted(asked) == sorted((each.layer, each.number, 5) for each in strongest)


def test_a_changed_model_is_recorded_as_it_is_shown(small_backend: Backend) -> None:
    head = m.RemovedHead(part="self", layer=1, head=0)
    values: dict[str, Any] = {"removed": [head.model_dump()], "place": 70, "target": 3, "other": 4}
    values |= {"model": "decoder", "view": "whatif", "text": " ".join(["1", "2", "3"] * 30)}
    about: dict[str, Any] = {
        "ask": m.Ask(model="decoder", text=values["text"]),
        "place": 70,
        "target": 3,
    }
    asked = calls(small_backend, **values)
    assert set(asked) == {"run", "whatif", "sweep", "contributions", "measures", "detect"}
    assert asked["whatif"] == [m.AskWhatIf(**about, other=4, removed=[head])]
    assert asked["sweep"] == [m.AskSweep(**about, other=4)]
    assert asked["contributions"] == [m.AskContributions(**about, other=4)]
    assert len(recorded(small_backend, **values).matrices) == 1
    asked = calls(small_backend, **values, tool="lens")
    assert set(asked) == {"run", "whatif", "sweep", "contributions", "lens"}
    assert asked["lens"] == [
        m.AskLens(**about, first=64),
        m.AskLens(**about | {"target": 4}, first=64),
    ]
    asked = calls(small_backend, **values | {"other": 3}, tool="steering")
    assert set(asked) == {"run", "whatif", "sweep", "contributions"}
    assert asked["contributions"][0].other is None  # nothing is subtracted from itself


def test_a_place_that_the_text_lacks_is_recorded_as_refused(small_backend: Backend) -> None:
    kept = recorded(small_backend, model="decoder", view="whatif", text="1 2", place=5)
    assert [each.call for each in kept.answers] == ["run", "whatif"]
    assert isinstance(kept.answers[-1].answer, InputError)


def test_what_no_page_computes_is_recorded_beside_a_model(small_backend: Backend) -> None:
    asked = calls(small_backend, model="decoder", view="sampling", text="1 2", computes=True)
    assert set(asked) == {"run", "next", "detect"}
    asked = calls(small_backend, model="decoder", view="attention", text="1 2", computes=True)
    assert len(asked["detect"]) == 1


@pytest.mark.parametrize("computes", [False, True])
def test_of_a_program_its_proof_or_the_verdict_on_what_is_written(computes: bool) -> None:
    backend = bundle("program-sort")
    assert set(calls(backend, computes=computes)) == {"run", "program", "proof"}
    asked = calls(backend, computes=computes, exercise=True, attempt="tokens")
    assert set(asked) == {"run", "attempt"} | ({"proof"} if computes else set())
    assert asked["attempt"][0].program == "tokens"
