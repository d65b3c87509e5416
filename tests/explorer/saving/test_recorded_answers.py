from dataclasses import replace
from typing import Any

import pytest

from glassformer.errors import InputError
from glassformer.explorer import messages as m
from glassformer.explorer.backend import Backend
from glassformer.explorer.loading.loaded_model import LoadedModel
from glassformer.explorer.saving.recorded_answers import PageState, edited, number, page_state, recorded_answers
from glassformer.explorer.state import State, changed


def shown(backend: Backend, **values: object) -> PageState:
    return page_state(changed(State(), values), backend.catalogue().models)


def calls(backend: Backend, **values: object) -> dict[str, list[m.Message]]:
    state = shown(backend, **values)
    found: dict[str, list[m.Message]] = {}
    for each in recorded_answers(backend, state):
        found.setdefault(each.call, []).append(each.request)
    return found


def test_the_edited_design_is_what_is_judged(small_backend: Backend) -> None:
    state = shown(small_backend, model="identity", text="AB", cells={"Vm.0.0": "7"})
    answers = recorded_answers(small_backend, state)
    request, answer = next((each.request, each.answer) for each in answers if each.call == "check")
    assert request.weights.Vm[0][0] == 7
    assert answer == small_backend.answer("check", request)
    assert answer.certificate.verdict == "fails"


def test_a_reordered_source_is_recorded_in_both_orders(small_backend: Backend) -> None:
    asked = calls(small_backend, model="lookup", text="4", order=[4, 3, 2, 1, 0])
    assert [ask.order for ask in asked["run"] if isinstance(ask, m.Ask)] == [[4, 3, 2, 1, 0], None]
    assert [ask.order for ask in asked["scramble"] if isinstance(ask, m.AskScramble)] == [[4, 3, 2, 1, 0], None]
    # Encoder, decoder and cross-attention of two runs.
    assert len(asked["measures"]) == 6


def test_the_sampling_rule_of_the_state(small_backend: Backend) -> None:
    asked = calls(small_backend, model="decoder", text="1 2", temperature=0.5, top_k=3, top_p=0.9)
    assert asked["next"] == [m.AskNext(model="decoder", text="1 2", temperature=0.5, top_k=3, top_p=0.9)]


def test_experts_are_recorded_where_they_are_shown(by_name: dict[str, LoadedModel]) -> None:
    loaded = by_name["decoder"]
    card = loaded.card.model_copy(update={"views": ["experts"]})
    asked = calls(Backend([replace(loaded, card=card)]), model="decoder", text="1 2")
    assert set(asked) == {"models", "run", "measures", "detect", "experts"}


def test_the_catalogue_names_the_one_model(small_backend: Backend) -> None:
    state = shown(small_backend, model="unique")
    catalogue = recorded_answers(small_backend, state)[0].answer
    assert [card.name for card in catalogue.models] == ["unique"]


def test_a_refused_answer_is_kept_as_one(small_backend: Backend) -> None:
    state = shown(small_backend, model="identity", text="AB", cells={"Km.0.0": "1e300", "Qm.0.0": "1e300"})
    answers = recorded_answers(small_backend, state)
    assert [each.call for each in answers if isinstance(each.answer, InputError)] == ["run", "check"]


def test_the_run_is_of_the_edited_head(small_backend: Backend) -> None:
    cells = {"Qm.0.0": "0", "Qm.0.1": "5", "Qm.9.9": "1"}
    (ask,) = calls(small_backend, model="identity", text="AB", cells=cells)["run"]
    design = small_backend.answer("head", m.AskHead(model="identity"))
    assert ask.weights.Qm[0][:2] == [0, 5]
    assert ask.weights.Qm[1:] == design.weights.Qm[1:]
    # Edits that change nothing are not sent.
    cells = {"Vm.0.0": "1", "Vm.1.0": "nonsense", "size.qk": "999", "size.pos": "99"}
    (ask,) = calls(small_backend, model="identity", text="AB", cells=cells)["run"]
    assert ask.weights is None


def test_a_changed_model_is_recorded_as_it_is_shown(small_backend: Backend) -> None:
    head = m.RemovedHead(part="self", layer=1, head=0)
    values = {"removed": [head.model_dump()], "place": 70, "target": 3, "other": 4}
    text = " ".join(["1", "2", "3"] * 30)
    asked = calls(small_backend, model="decoder", view="whatif", text=text, **values)
    about: dict[str, Any] = {"ask": m.Ask(model="decoder", text=text), "place": 70, "target": 3}
    assert asked["whatif"] == [m.AskWhatIf(**about, other=4), m.AskWhatIf(**about, other=4, removed=[head])]
    assert asked["sweep"] == [m.AskSweep(**about, other=4)]
    assert asked["lens"] == [m.AskLens(**about, first=0), m.AskLens(**about, first=64)]
    assert asked["contributions"] == [m.AskContributions(**about, other=4)]
    asked = calls(small_backend, model="decoder", view="attention", text="1 2", target=3, other=3)
    assert set(asked) >= {"whatif", "lens", "contributions"}
    assert asked["contributions"][0].other is None  # nothing is subtracted from itself
    assert "sweep" not in asked  # it may take a minute, so it is only recorded where it is shown


def test_a_place_that_the_text_lacks_is_recorded_as_refused(small_backend: Backend) -> None:
    state = shown(small_backend, model="decoder", view="whatif", text="1 2", place=5)
    found = {each.call: each.answer for each in recorded_answers(small_backend, state)}
    assert isinstance(found["whatif"], InputError)
    assert "sweep" not in found


def test_fields_that_are_left_open_come_from_the_card(small_backend: Backend) -> None:
    card = small_backend.catalogue().models[0]
    for first in (shown(small_backend), shown(small_backend, model="")):
        assert (first.card, first.text) == (card, card.text)
        assert (first.state.model, first.state.text, first.state.view) == (card.name, card.text, card.views[0])
    lookup = shown(small_backend, model="lookup", text="", view="design")
    assert (lookup.text, lookup.source, lookup.state.view) == ("", list("12345"), "scramble")


@pytest.mark.parametrize("order", [[4, 3, 2, 1, 0], [0, 1, 2, 3, 4], [0, 0, 0], [0, 0, 1, 2, 3], [1, 0], []])
def test_an_order_that_does_not_fit_is_ignored(small_backend: Backend, order: list[int]) -> None:
    expected = order if order == [4, 3, 2, 1, 0] else None
    assert shown(small_backend, model="lookup", order=order).order == expected
    assert shown(small_backend, order=order).order is None


DESIGN = m.HeadWeightsMessage(Km=[[1, 2], [3, 4]], Qm=[[0, 2], [1, 4]], Vm=[[1], [2]], pos=[[0], [1]])


def test_edits_are_laid_over_the_design() -> None:
    changed = edited(DESIGN, {"Km.0.1": "9", "pos.1.0": "-1.5", "Vm.9.9": "1", "nothing": "1", "Qm.0.0": "?"})
    assert changed.Km == [[1.0, 9.0], [3.0, 4.0]]
    assert changed.pos == [[0.0], [-1.5]]
    assert (changed.Qm, changed.Vm) == (DESIGN.Qm, DESIGN.Vm)


TYPED = {"\u22122e\u22121": -0.2, " .5\t": 0.5, "5.": 5, "+1E2": 100, "1" * 40: float("1" * 40)}
NO_NUMBERS = ("1_0", "inf", "1e301", "0x1F", "\u0665", "1\n", "1" * 41)


@pytest.mark.parametrize(("text", "value"), [*TYPED.items(), *((text, None) for text in NO_NUMBERS)])
def test_numbers_as_they_are_typed(text: str, value: float | None) -> None:
    assert number(text) == value
