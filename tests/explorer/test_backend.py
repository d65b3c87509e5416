"""The explorer answers each call by its name, opens models when asked for, and stands many threads
at once.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.errors import InputError
from glassformer.explorer import messages as m
from glassformer.explorer.api import NotDescribed, UnknownName
from glassformer.explorer.backend import CALLS, Backend, parse
from glassformer.explorer.loading.loaded_model import LoadedModel, ModelEntry
from refusals import refused


def _run(backend: Backend, model: str, text: str, **more: Any) -> m.Run:
    return backend.answer("run", m.Ask(model=model, text=text, **more))


def test_the_catalogue_keeps_the_order(
    small_backend: Backend, loaded_models: list[LoadedModel]
) -> None:
    catalogue = small_backend.answer("models", m.Nothing())
    assert [card.name for card in catalogue.models] == [
        loaded.card.name for loaded in loaded_models
    ]


@pytest.mark.parametrize("call", ["weight", "__init__", ""])
def test_a_call_that_there_is_not_is_refused(small_backend: Backend, call: str) -> None:
    with refused("the call", error=UnknownName):
        small_backend.answer(call, m.Nothing())
    with refused("the call", error=UnknownName):
        parse(call, {})


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


def test_many_threads_get_what_one_gets(
    loaded_models: list[LoadedModel], small_backend: Backend
) -> None:
    texts = [("decoder", f"{a} {b} 3 4 5 {a}") for a in range(4) for b in range(3)]
    texts += [("lookup", str(a)) for a in range(4)] + [
        ("unique", word) for word in ("AB", "BB", "ABC", "CAB")
    ]

    def ask(backend: Backend, model: str, text: str) -> tuple[Any, ...]:
        run = _run(backend, model, text)
        part = run.attentions[-1].part
        tile = backend.answer("weights", m.AskTile(run=run.run, part=part, layer=0, head=0))
        coarse = backend.answer(
            "weights", m.AskTile(run=run.run, part=part, layer=0, head=0, level=1)
        )
        return run, tile, coarse, backend.answer("measures", m.AskMeasures(run=run.run, part=part))

    expected = [ask(small_backend, *each) for each in texts]
    fresh = Backend(loaded_models)
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda each: ask(fresh, *each), texts * 4))
    assert found == expected * 4


def test_a_model_whose_stored_weights_changed_is_opened_anew(
    loaded_models: list[LoadedModel],
) -> None:
    stamp: list[object] = [1]
    opened = []

    def open_it() -> LoadedModel:
        opened.append(stamp[0])
        if stamp[0] == 3:
            raise InputError("half a file", "a whole one", "Wait.")
        return loaded_models[0]

    backend = Backend([ModelEntry(loaded_models[0].card, open_it, lambda: stamp[0])])
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


def test_the_calls_for_bare_numbers_are_those_that_the_messages_name() -> None:
    assert len({call.asked for call in CALLS.values()}) == len(CALLS)
    assert {name for name, call in CALLS.items() if call.answered is bytes} == {"weights", "rows"}
    assert all(f"``{name}``" in (m.__doc__ or "") for name in ("weights", "rows"))


@given(st.text(max_size=40), st.integers(0, 2**53 - 1), st.floats(0, 100))
def test_a_request_goes_there_and_back(text: str, seed: int, temperature: float) -> None:
    ask = m.AskSteps(model="a", text=text, seed=seed, temperature=temperature)
    assert parse("steps", ask.model_dump()) == ask
    assert parse("steps", json.loads(ask.model_dump_json())) == ask


@pytest.mark.parametrize(
    ("body", "got"),
    [
        ('{"model": "a", "text": "\\ud800"}', "text: Input should be a valid string"),
        ("[]", "the body: Input should be"),
        ('{"model": "a"}', "text: Field required"),
        ('{"model": "a", "text": 3}', "text: Input should be a valid string"),
        ('{"model": "a", "text": "", "steps": "3"}', "steps: Input should be a valid integer"),
        ('{"model": "a", "text": "", "temperature": NaN}', "temperature: Input should be"),
        (
            '{"model": "", "text": 3}',
            "model: String should have at least 1 character, and 1 more errors",
        ),
        (json.dumps({"model": "a", "text": "", "x" * 500: 1}), f"{'x' * 40}: Extra inputs"),
    ],
)
def test_what_is_not_described_is_refused(body: Any, got: str) -> None:
    with pytest.raises(NotDescribed) as refused:
        parse("steps", json.loads(body))
    assert refused.value.got.startswith(got)
    assert "\n" not in str(refused.value)
