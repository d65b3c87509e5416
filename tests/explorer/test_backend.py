"""The explorer answers each call by its name, opens models when asked for, and stands many threads at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from glassformer.errors import InputError
from glassformer.explorer import messages as m
from glassformer.explorer.api import CALLS, UnknownName
from glassformer.explorer.backend import Backend
from glassformer.explorer.loading.loaded_model import LoadedModel, ModelEntry
from refusals import refused


def _run(backend: Backend, model: str, text: str, **more: Any) -> m.Run:
    return cast(m.Run, backend.answer("run", m.Ask(model=model, text=text, **more)))


def test_the_catalogue_keeps_the_order(small_backend: Backend, loaded_models: list[LoadedModel]) -> None:
    catalogue = cast(m.Catalogue, small_backend.answer("models", m.Nothing()))
    assert [card.name for card in catalogue.models] == [loaded.card.name for loaded in loaded_models]


def test_each_call_gives_what_its_table_says(small_backend: Backend) -> None:
    run = _run(small_backend, "decoder", "1 2 3 4")
    lookup = {"model": "lookup", "text": "4"}
    asks: dict[str, dict[str, Any]] = {
        "models": {},
        "run": {"model": "decoder", "text": "1 2"},
        "weights": {"run": run.run, "part": "self", "layer": 0, "head": 0},
        "rows": {"run": run.run, "part": "self", "query": 2},
        "measures": {"run": run.run, "part": "self"},
        "experts": {"run": run.run},
        "head": {"model": "unique"},
        "program": {"run": _run(small_backend, "histogram", "abac").run},
        "proof": {"model": "histogram"},
        "scramble": {**lookup, "source": list("123")},
        "next": {"model": "decoder", "text": "1 2"},
        "steps": {"model": "decoder", "text": "1 2", "steps": 2},
        "find": {"model": "decoder", "text": "4 2"},
    }
    asks |= {name: {"ask": run.ask} for name in ("whatif", "sweep", "lens", "contributions")}
    head = cast(m.Head, small_backend.answer("head", m.AskHead(model="unique")))
    asks["check"] = {"model": "unique", "weights": head.weights, "text": "ABA"}
    for call, values in asks.items():
        answer = small_backend.answer(call, CALLS[call].asked(**values))
        assert isinstance(answer, CALLS[call].answered), call
    assert set(CALLS) - set(asks) == {"page"}  # tested where pages are made


@pytest.mark.parametrize("call", ["weight", "__init__", ""])
def test_a_call_that_there_is_not_is_refused(small_backend: Backend, call: str) -> None:
    with refused("the call", error=UnknownName):
        small_backend.answer(call, m.Nothing())


def test_a_model_that_there_is_not_is_refused(small_backend: Backend) -> None:
    with refused("the model 'gpt-9'", error=UnknownName):
        _run(small_backend, "gpt-9", "1")


def test_a_request_of_another_call_is_refused(small_backend: Backend) -> None:
    with refused("a Nothing for the call 'run'"):
        small_backend.answer("run", m.Nothing())


def test_names_are_told_apart(by_name: dict[str, LoadedModel]) -> None:
    with refused("two models named"):
        Backend([by_name["decoder"], by_name["decoder"]])
    with refused("no models"):
        Backend([])


def test_a_model_is_opened_once_and_when_asked_for(by_name: dict[str, LoadedModel]) -> None:
    opened: list[str] = []

    def open_it() -> LoadedModel:
        opened.append("decoder")
        return by_name["decoder"]

    backend = Backend([ModelEntry(by_name["decoder"].card, open_it), by_name["lookup"]])
    backend.answer("models", m.Nothing())
    assert opened == []
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: backend.model("decoder"), range(16)))
    assert opened == ["decoder"]


def test_many_threads_get_what_one_gets(loaded_models: list[LoadedModel], small_backend: Backend) -> None:
    texts = [("decoder", f"{a} {b} 3 4 5 {a}") for a in range(4) for b in range(3)]
    texts += [("lookup", str(a)) for a in range(4)] + [("unique", word) for word in ("AB", "BB", "ABC", "CAB")]

    def ask(backend: Backend, model: str, text: str) -> tuple[Any, ...]:
        run = _run(backend, model, text)
        part = run.attentions[-1].part
        tile = backend.answer("weights", m.AskTile(run=run.run, part=part, layer=0, head=0))
        coarse = backend.answer("weights", m.AskTile(run=run.run, part=part, layer=0, head=0, level=1))
        return run, tile, coarse, backend.answer("measures", m.AskMeasures(run=run.run, part=part))

    expected = [ask(small_backend, *each) for each in texts]
    fresh = Backend(loaded_models)
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda each: ask(fresh, *each), texts * 4))
    assert found == expected * 4


def test_a_model_whose_stored_weights_changed_is_opened_anew(loaded_models: list[LoadedModel]) -> None:
    stamp: list[object] = [1]
    opened = []

    def open_it() -> LoadedModel:
        opened.append(stamp[0])
        if stamp[0] == 3:
            raise InputError("half a file", "a whole one", "Wait.")
        return loaded_models[0]

    backend = Backend([ModelEntry(loaded_models[0].card, open_it, lambda: cast(Any, stamp[0]))])
    name = loaded_models[0].card.name
    for stamp[0] in (1, 1, 2, 2, None, 2):
        assert backend.model(name) is loaded_models[0]
    assert opened == [1, 2]
    stamp[0] = 3
    with refused("half a file"):
        backend.model(name)
    stamp[0] = 4
    backend.model(name)
    assert opened == [1, 2, 3, 4]
