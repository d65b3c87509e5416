"""Heads that are known by construction, and the definition written out by loops."""

from __future__ import annotations

import math

import pytest
import torch
from small_models import decoder
from torch import Tensor

from glassformer.observe.capture import capture
from glassformer.observe.detectors import head_scores, repeated_tokens
from glassformer.observe.edits import put
from glassformer.observe.intervene import intervene
from refusals import refused


def test_repeated_tokens() -> None:
    tokens = repeated_tokens(20, 6, 3, seed=1, first=19)
    assert tokens.shape == (3, 13)
    assert (tokens[:, 0] == 19).all()
    assert torch.equal(tokens[:, 1:7], tokens[:, 7:])
    assert all(len(set(row[1:7].tolist())) == 6 for row in tokens)
    assert not torch.equal(tokens, repeated_tokens(20, 6, 3, seed=2, first=19))
    with refused("half = 21"):
        repeated_tokens(20, 21)


@torch.no_grad()
def test_scores_are_means_over_queries() -> None:
    model = decoder(sinks=True).double().eval()
    tokens = torch.randint(2, 9, (3, 10))
    found = head_scores(model, tokens)
    with capture(model) as seen:
        model(tokens)
    for layer, weights in enumerate(seen.weights.values()):
        for head in range(4):
            kinds: dict[str, list[float]] = {"previous": [], "duplicate": [], "induction": [], "sink": []}
            for row, text in enumerate(tokens.tolist()):
                for query in range(1, 10):
                    values: Tensor = weights[row, head, query]
                    kinds["previous"].append(float(values[query - 1]))
                    kinds["sink"].append(float(1 - values[1 : query + 1].sum()))
                    earlier = [key for key in range(query) if text[key] == text[query]]
                    if len(earlier) == 1:
                        kinds["duplicate"].append(float(values[earlier[0]]))
                        if earlier[0] + 1 < query:
                            kinds["induction"].append(float(values[earlier[0] + 1]))
            for kind, numbers in kinds.items():
                expected = sum(numbers) / len(numbers)
                assert float(getattr(found, kind)[layer, head]) == pytest.approx(expected, abs=1e-12)


@torch.no_grad()
def test_a_forced_induction_head_is_found() -> None:
    model, tokens = decoder().double().eval(), repeated_tokens(40, 8, 4)
    pattern = torch.zeros(16, 16, dtype=torch.double)
    pattern[range(8, 16), range(1, 9)] = 1
    pattern[:8, 0] = 1
    with intervene(model, put("weights", pattern, layers=2, heads=1)):
        found = head_scores(model, tokens)
    assert found.top("induction", 1) == [(2, 1, pytest.approx(1.0))]
    assert found.induction.flatten().sort().values[-2] < 0.5
    assert found.duplicate[2, 1] == 0
    assert math.isfinite(float(found.sink.sum()))


def test_texts_without_repetition_are_refused() -> None:
    with refused("no token returns"):
        head_scores(decoder(), torch.arange(10)[None])
