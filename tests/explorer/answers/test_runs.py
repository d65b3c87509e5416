"""Runs are kept within bounds, and computed again where they had to go."""

from copy import deepcopy
from dataclasses import replace
from itertools import count, cycle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from glassformer.explorer import messages as m
from glassformer.explorer.answers.attention import weights
from glassformer.explorer.answers.runs import Runs, SizedCache
from glassformer.explorer.api import UnknownName
from glassformer.explorer.backend import Backend
from glassformer.explorer.loading.loaded_model import (
    LoadedDecoder,
    LoadedModel,
    ModelEntry,
    Turn,
    weights_stamp,
)
from glassformer.observe.edits import zero
from glassformer.observe.intervene import intervene
from refusals import refused


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 150), st.booleans()), max_size=60))
def test_what_is_kept_is_what_was_used_last(steps: list[tuple[int, int, bool]]) -> None:
    kept = SizedCache(100)
    used: list[tuple[int, int]] = []  # the plain way: a list, the newest last
    for name, size, asks in steps:
        if asks:
            found = next((each for each in used if each[0] == name), None)
            assert kept.get(name) == (None if found is None else found[1])
            if found is not None:
                used.remove(found)
                used.append(found)
            continue
        used = [each for each in used if each[0] != name] + [(name, min(size, 100))]
        while sum(each for _, each in used) > 100 and len(used) > 1:
            used.pop(0)
        kept.put(name, min(size, 100), size)
        assert kept._entries.currsize == sum(each for _, each in used)
    for name in range(10):
        assert kept.get(name) == dict(used).get(name)


def test_asked_again_it_is_the_same_run(by_name: dict[str, LoadedModel]) -> None:
    runs = Runs(by_name.__getitem__)
    first = runs.run(m.Ask(model="decoder", text="1 2 3"))
    assert runs.run(m.Ask(model="decoder", text="1 2 3")) is first
    assert runs.of(first.message.run) is first
    assert runs.run(m.Ask(model="decoder", text="1 2 4")) is not first
    with refused("'r0'", error=UnknownName):
        runs.of("r0")


def test_a_run_that_had_to_go_comes_back(by_name: dict[str, LoadedModel]) -> None:
    runs = Runs(by_name.__getitem__, most_bytes=1)
    first = runs.run(m.Ask(model="decoder", text="1 2 3"))
    runs.run(m.Ask(model="decoder", text="4 5 6"))
    again = runs.of(first.message.run)
    assert again is not first
    assert again.message == first.message
    assert all(
        (a.q == b.q).all() for a, b in zip(again.layers("self"), first.layers("self"), strict=True)
    )


def _trainable(by_name: dict[str, LoadedModel]) -> LoadedDecoder:
    there = by_name["decoder"]
    return replace(there, model=deepcopy(there.model), lock=Turn())


def _trained(model: nn.Module) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.tensor([[1, 2, 3]])).sum().backward()
    optimizer.step()


def test_a_model_that_was_trained_in_between_is_read_anew(by_name: dict[str, LoadedModel]) -> None:
    loaded = _trainable(by_name)
    backend = Backend([loaded])
    ask = m.Ask(model="decoder", text="1 2 3")

    def told() -> list[object]:
        run = backend.answer("run", ask)
        tile = m.AskTile(run=run.run, part="self", layer=1, head=0)
        asks: list[tuple[str, m.Message]] = [
            ("weights", tile),
            ("weights", tile.model_copy(update={"level": 2})),
            ("measures", m.AskMeasures(run=run.run, part="self")),
            ("experts", m.AskExperts(run=run.run)),
            ("next", m.AskNext(model="decoder", text="1 2 3")),
        ]
        return [run.said, *(backend.answer(call, request) for call, request in asks)]

    before = told()
    assert told() == before
    _trained(loaded.model)
    after = told()
    assert all(one != other for one, other in zip(before, after, strict=True))
    # As an explorer tells that never saw the model before.
    backend = Backend([replace(loaded, lock=Turn())])
    assert told() == after


def test_an_answer_is_of_the_same_weights_throughout(by_name: dict[str, LoadedModel]) -> None:
    both = one, other = _trainable(by_name), _trainable(by_name)
    _trained(other.model)
    ask = m.Ask(model="decoder", text="1 2 3")
    second = m.Ask(model="decoder", text="1 2 4")
    removed = [m.RemovedHead(part="self", layer=0, head=1)]
    patch = m.PatchedPlace(text="1 2 3", layer=0, position=2)
    changes = m.Changes(removed=removed, patch=patch)
    calls: list[tuple[str, m.Message]] = [
        ("whatif", m.AskWhatIf(ask=ask, removed=removed)),
        ("whatif", m.AskWhatIf(ask=second, patch=patch)),
        ("run", second.model_copy(update={"changes": changes})),
        ("patches", m.AskPatches(ask=ask, second="1 2 4", target=1)),
        ("lens", m.AskLens(ask=ask, target=1)),
    ]
    # A training replaces the weights as often as they are looked for.
    stamps = count()
    opened = cycle(both)
    backend = Backend([ModelEntry(one.card, lambda: next(opened), lambda: next(stamps))])
    for call, request in calls:
        allowed = [Backend([each]).answer(call, request) for each in both]
        assert allowed[0] != allowed[1]
        assert backend.answer(call, request) in allowed


def test_what_an_intervention_or_a_hook_changes_is_not_told_without_it(
    by_name: dict[str, LoadedModel],
) -> None:
    loaded = _trainable(by_name)
    backend = Backend([loaded])
    ask = m.Ask(model="decoder", text="1 2 3")

    def told() -> tuple[m.Said, list[m.Candidate]]:
        following: m.Next = backend.answer("next", m.AskNext(model="decoder", text="1 2 3"))
        return backend.answer("run", ask).said, following.candidates

    with intervene(loaded.model, zero("heads", layers=0)):
        within = told()
    plain = told()
    with loaded.model.layers[0].register_forward_hook(lambda _, __, out: 0.5 * out):
        hooked = told()
    with torch.autocast("cpu", torch.bfloat16):
        coarse = told()
    assert plain == told()
    assert all(
        one != other
        for each in (within, hooked, coarse)
        for one, other in zip(each, plain, strict=True)
    )
    name = backend.answer("run", ask).run
    tile = m.AskTile(run=name, part="self", layer=1, head=0)
    weights = backend.answer("weights", tile)
    with intervene(loaded.model, zero("heads", layers=0)):
        assert told() == within
        assert backend.answer("weights", tile) != weights
    assert backend.answer("weights", tile) == weights  # of the same name


def test_what_is_told_of_one_run_fits_together(by_name: dict[str, LoadedModel]) -> None:
    """A run keeps the weights of its forward pass until it is requested again."""
    loaded = _trainable(by_name)
    runs = Runs(lambda name: loaded)
    run = runs.run(m.Ask(model="decoder", text="1 2 3"))
    ask = m.AskTile(run=run.message.run, part="self", layer=0, head=0)
    _trained(loaded.model)
    sound = Runs(by_name.__getitem__)
    sound.run(m.Ask(model="decoder", text="1 2 3"))
    assert (weights(runs, ask) == weights(sound, ask)).all()


def test_reading_alone_changes_no_stamp(by_name: dict[str, LoadedModel]) -> None:
    for loaded in by_name.values():
        before = weights_stamp(loaded)
        Runs(by_name.__getitem__).run(m.Ask(model=loaded.card.name, text=loaded.card.text))
        assert weights_stamp(loaded) == before


def test_questions_stay_within_their_bound(
    by_name: dict[str, LoadedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glassformer.explorer.answers.runs.ASK_BYTES", 1_000_000)
    there = by_name["decoder"]
    deaf = replace(there, encode=lambda text: [1, 2])
    runs = Runs(lambda name: deaf, most_bytes=1_000_000)
    first = runs.run(m.Ask(model="decoder", text="x" * 60_000)).message.run
    for number in range(8):
        runs.run(m.Ask(model="decoder", text=chr(0x1F600 + number) * 60_000))
    assert sum(kept._entries.currsize for kept in (runs._runs, runs._asks)) <= 2_000_000
    with pytest.raises(UnknownName):
        runs.of(first)
