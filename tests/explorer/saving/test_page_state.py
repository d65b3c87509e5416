import pytest

from glassformer.explorer import messages as m
from glassformer.explorer.backend import Backend
from glassformer.explorer.saving.page_state import PageState, ask_of, edited, number, page_state
from glassformer.explorer.state import HeadPlace, State, changed


def shown(backend: Backend, **values: object) -> PageState:
    return page_state(changed(State(), values), backend.catalogue().models)


def test_the_run_is_of_the_edited_head(small_backend: Backend) -> None:
    cells = {"Qm.0.0": "0", "Qm.0.1": "5", "Qm.9.9": "1"}
    ask = ask_of(small_backend, shown(small_backend, model="identity", text="AB", cells=cells))
    design = small_backend.answer("head", m.AskHead(model="identity"))
    assert ask.weights.Qm[0][:2] == [0, 5]
    assert ask.weights.Qm[1:] == design.weights.Qm[1:]
    # Edits that change nothing are not sent.
    cells = {"Vm.0.0": "1", "Vm.1.0": "nonsense", "size.qk": "999", "size.pos": "99"}
    ask = ask_of(small_backend, shown(small_backend, model="identity", text="AB", cells=cells))
    assert ask.weights is None


def test_each_head_that_is_shown_is_named_once(small_backend: Backend) -> None:
    run = small_backend.answer("run", m.Ask(model="decoder", text="1 2"))
    stack = run.attentions[0]
    heads = [{"layer": 1, "head": 0}, {"layer": 9, "head": 9}, {"layer": 1, "head": 1}]
    state = shown(small_backend, model="decoder", layer=1, head=0, versus=(9, 0), pinned=heads)
    assert state.heads(stack) == [HeadPlace(layer=1, head=0), HeadPlace(layer=1, head=1)]


def test_fields_that_are_left_open_come_from_the_card(small_backend: Backend) -> None:
    card = small_backend.catalogue().models[0]
    for first in (shown(small_backend), shown(small_backend, model="")):
        assert (first.card, first.text) == (card, card.text)
        assert (first.state.model, first.state.text, first.state.view) == (
            card.name,
            card.text,
            card.views[0],
        )
    lookup = shown(small_backend, model="lookup", text="", view="design")
    assert (lookup.text, lookup.source, lookup.state.view) == ("", list("12345"), "scramble")


@pytest.mark.parametrize(
    "order", [[4, 3, 2, 1, 0], [0, 1, 2, 3, 4], [0, 0, 0], [0, 0, 1, 2, 3], [1, 0], []]
)
def test_an_order_that_does_not_fit_is_ignored(small_backend: Backend, order: list[int]) -> None:
    expected = order if order == [4, 3, 2, 1, 0] else None
    assert shown(small_backend, model="lookup", order=order).order == expected
    assert shown(small_backend, order=order).order is None


DESIGN = m.HeadWeightsMessage(
    Km=[[1, 2], [3, 4]], Qm=[[0, 2], [1, 4]], Vm=[[1], [2]], pos=[[0], [1]]
)


def test_edits_are_laid_over_the_design() -> None:
    changed = edited(
        DESIGN, {"Km.0.1": "9", "pos.1.0": "-1.5", "Vm.9.9": "1", "nothing": "1", "Qm.0.0": "?"}
    )
    assert changed.Km == [[1.0, 9.0], [3.0, 4.0]]
    assert changed.pos == [[0.0], [-1.5]]
    assert (changed.Qm, changed.Vm) == (DESIGN.Qm, DESIGN.Vm)


TYPED = {"\u22122e\u22121": -0.2, " .5\t": 0.5, "5.": 5, "+1E2": 100, "1" * 40: float("1" * 40)}
NO_NUMBERS = ("1_0", "inf", "1e301", "0x1F", "\u0665", "1\n", "1" * 41)


@pytest.mark.parametrize(
    ("text", "value"), [*TYPED.items(), *((text, None) for text in NO_NUMBERS)]
)
def test_numbers_as_they_are_typed(text: str, value: float | None) -> None:
    assert number(text) == value
