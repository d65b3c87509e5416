"""Measures agree with those of the whole matrix, and thumbnails with its maxima."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from glassformer.explorer import messages as m
from glassformer.explorer.answers.measures import measures
from glassformer.explorer.answers.runs import Runs
from glassformer.explorer.exhibits.exhibit import DecoderExhibit, EncoderDecoderExhibit, Exhibit
from glassformer.explorer.messages.unknown import UnknownName
from glassformer.observe.attention_measures import head_measures
from glassformer.observe.capture import capture


@pytest.mark.parametrize("length", [1, 7, 32, 77])
def test_measures_of_a_decoder(by_name: dict[str, Exhibit], length: int) -> None:
    exhibit = by_name["decoder"]
    assert isinstance(exhibit, DecoderExhibit)
    runs = Runs(by_name.__getitem__)
    tokens = [(3 * number) % 11 for number in range(length)]
    run = runs.run(m.Ask(model="decoder", text=" ".join(map(str, tokens)))).message.run
    found = measures(runs, m.AskMeasures(run=run, part="self"))
    with torch.no_grad(), capture(exhibit.model) as seen:
        exhibit.model(torch.tensor([tokens]))
    weights = np.stack([each[0].numpy() for each in seen.weights.values()])
    wanted = head_measures(weights)
    np.testing.assert_allclose(found.entropy, wanted.entropy / math.log(2), rtol=1e-5, atol=1e-6)
    assert found.distance is not None
    np.testing.assert_allclose(found.distance, wanted.distance, rtol=1e-5, atol=1e-6)
    assert found.sink is not None
    np.testing.assert_allclose(found.sink, wanted.sink, rtol=1e-5, atol=1e-6)
    parts = min(length, m.THUMBNAIL)
    edges = [length * part // parts for part in range(parts + 1)]
    for layer in range(2):
        for head in range(2):
            small = [[weights[layer, head, a:b, c:d].max() for c, d in pairwise(edges)] for a, b in pairwise(edges)]
            np.testing.assert_allclose(found.thumbnails[layer][head], small, atol=6e-5)


def test_cross_attention_has_no_distance(by_name: dict[str, Exhibit]) -> None:
    exhibit = by_name["lookup"]
    assert isinstance(exhibit, EncoderDecoderExhibit)
    runs = Runs(by_name.__getitem__)
    run = runs.run(m.Ask(model="lookup", text="4 5", source=list("6789"))).message.run
    found = measures(runs, m.AskMeasures(run=run, part="cross"))
    assert found.distance is None
    assert found.sink is None
    assert np.shape(found.thumbnails) == (1, 2, 2, 4)
    assert measures(runs, m.AskMeasures(run=run, part="encoder")).distance is not None
    with pytest.raises(UnknownName, match="part"):
        measures(runs, m.AskMeasures(run=run, part="self"))
