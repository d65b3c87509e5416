"""Runs are kept within bounds, and one that had to go comes back as it was."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from threading import RLock

import pytest
import torch
from torch import nn

from glassformer.explorer import messages as m
from glassformer.explorer.answers.runs import Runs
from glassformer.explorer.answers.tiles import tile_of
from glassformer.explorer.exhibits.exhibit import DecoderExhibit, Exhibit, weights_stamp
from glassformer.explorer.messages.unknown import UnknownName
from glassformer.explorer.service import Explorer


def test_asked_again_it_is_the_same_run(by_name: dict[str, Exhibit]) -> None:
    runs = Runs(by_name.__getitem__)
    first = runs.run(m.Ask(model="decoder", text="1 2 3"))
    assert runs.run(m.Ask(model="decoder", text="1 2 3")) is first
    assert runs.of(first.message.run) is first
    assert runs.run(m.Ask(model="decoder", text="1 2 4")) is not first


def test_a_run_that_had_to_go_comes_back(by_name: dict[str, Exhibit]) -> None:
    runs = Runs(by_name.__getitem__, most_bytes=1)
    first = runs.run(m.Ask(model="decoder", text="1 2 3"))
    runs.run(m.Ask(model="decoder", text="4 5 6"))
    again = runs.of(first.message.run)
    assert again is not first
    assert again.message == first.message
    assert all((a.q == b.q).all() for a, b in zip(again.layers("self"), first.layers("self"), strict=True))


@pytest.mark.parametrize("name", ["r0", "decoder", "r" + 20 * "f"])
def test_a_run_that_nobody_asked_for_is_unknown(by_name: dict[str, Exhibit], name: str) -> None:
    with pytest.raises(UnknownName, match=name):
        Runs(by_name.__getitem__).of(name)


def _trainable(by_name: dict[str, Exhibit]) -> DecoderExhibit:
    there = by_name["decoder"]
    assert isinstance(there, DecoderExhibit)
    return replace(there, model=deepcopy(there.model), lock=RLock())


def _trained(model: nn.Module) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.tensor([[1, 2, 3]])).sum().backward()
    optimizer.step()


def test_a_model_that_was_trained_in_between_is_read_anew(by_name: dict[str, Exhibit]) -> None:
    exhibit = _trainable(by_name)
    explorer = Explorer([exhibit])
    ask = m.Ask(model="decoder", text="1 2 3")

    def told() -> list[object]:
        run = explorer.answer("run", ask)
        assert isinstance(run, m.Run)
        tile = m.AskTile(run=run.run, part="self", layer=1, head=0)
        asks: list[tuple[str, m.Message]] = [
            ("weights", tile),
            ("weights", tile.model_copy(update={"level": 2})),
            ("measures", m.AskMeasures(run=run.run, part="self")),
            ("experts", m.AskExperts(run=run.run)),
            ("next", m.AskNext(model="decoder", text="1 2 3")),
        ]
        return [run.said, *(explorer.answer(call, request) for call, request in asks)]

    before = told()
    assert told() == before
    _trained(exhibit.model)
    after = told()
    assert all(one != other for one, other in zip(before, after, strict=True))
    # As an explorer tells that never saw the model before.
    explorer = Explorer([replace(exhibit, lock=RLock())])
    assert told() == after


def test_what_is_told_of_one_run_fits_together(by_name: dict[str, Exhibit]) -> None:
    """Until somebody asks for the run again, its weights are those with which it was read."""
    exhibit = _trainable(by_name)
    runs = Runs(lambda name: exhibit)
    run = runs.run(m.Ask(model="decoder", text="1 2 3"))
    ask = m.AskTile(run=run.message.run, part="self", layer=0, head=0)
    _trained(exhibit.model)
    sound = Runs(by_name.__getitem__)
    sound.run(m.Ask(model="decoder", text="1 2 3"))
    assert (tile_of(runs, ask) == tile_of(sound, ask)).all()


def test_reading_alone_changes_no_stamp(by_name: dict[str, Exhibit]) -> None:
    for exhibit in by_name.values():
        before = weights_stamp(exhibit)
        Runs(by_name.__getitem__).run(m.Ask(model=exhibit.card.name, text=exhibit.card.text))
        assert weights_stamp(exhibit) == before


def test_the_questions_stay_within_their_bound(by_name: dict[str, Exhibit], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassformer.explorer.answers.runs.KEPT_ASKS", 1_000_000)
    there = by_name["decoder"]
    assert isinstance(there, DecoderExhibit)
    deaf = replace(there, encode=lambda text: [1, 2])
    runs = Runs(lambda name: deaf, most_bytes=1_000_000)
    first = runs.run(m.Ask(model="decoder", text="x" * 60_000)).message.run
    for number in range(8):
        runs.run(m.Ask(model="decoder", text=chr(0x1F600 + number) * 60_000))
    assert sum(kept.total for kept in (runs._runs, runs._asks)) <= 2_000_000
    with pytest.raises(UnknownName):
        runs.of(first)
