"""Loaded models: their entries, their last logits, and the stamp of their weights."""

from __future__ import annotations

import re

import pytest
import torch

from glassformer.explorer.loading.loaded_model import (
    LoadedDecoder,
    LoadedModel,
    entry_of,
    final_logits,
    last_logits,
    of_kind,
    require_order,
)
from refusals import refused


def test_an_open_exhibit_is_offered_with_its_card(by_name: dict[str, LoadedModel]) -> None:
    entry = entry_of(by_name["decoder"])
    assert entry.card is by_name["decoder"].card
    assert entry.open() is by_name["decoder"]


def test_the_last_logits_are_those_of_the_whole_text(by_name: dict[str, LoadedModel]) -> None:
    loaded = by_name["decoder"]
    assert isinstance(loaded, LoadedDecoder)
    with torch.no_grad():
        whole = loaded.model(torch.tensor([[1, 2, 3, 4, 5, 6]]))
    torch.testing.assert_close(last_logits(loaded, [1, 2, 3, 4, 5, 6]), whole[0, -1])


@pytest.mark.parametrize("order", [[0, 0], [0], [0, 1, 2], [1, 2], [-1, 0]])
def test_an_order_names_every_place_once(order: list[int]) -> None:
    require_order([1, 0], 2)
    with refused(re.escape(f"order = {order} of 2 units")):
        require_order(order, 2)


def test_a_model_without_logits_has_none() -> None:
    class Bare(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(5, 3)

        def forward(self, row: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"hidden": self.table(row)}

    assert final_logits(Bare(), torch.tensor([[1, 2]])) is None


def test_a_model_without_logits_has_no_last_ones(by_name: dict[str, LoadedModel]) -> None:
    decoder = by_name["decoder"]
    assert isinstance(decoder, LoadedDecoder)

    class Hidden(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(5, 3)

        def forward(self, row: torch.Tensor) -> None:
            return None

    hidden = LoadedDecoder(decoder.card, Hidden(), decoder.encode, decoder.word, decoder.join)
    assert last_logits(hidden, [1]) is None


def test_asking_the_wrong_kind_says_which_it_is(by_name: dict[str, LoadedModel]) -> None:
    with refused("steps of 'identity', whose kind is head", expected="a decoder"):
        of_kind(LoadedDecoder, by_name["identity"], "steps", "a decoder")
    assert of_kind(LoadedDecoder, by_name["decoder"], "steps", "a decoder") is by_name["decoder"]
