"""Reach: gradients against the chain rule written out, and a task that only a network that reaches back can do."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from torch import nn

from glassformer.labs.sentiment.experiments import reach
from glassformer.labs.sentiment.experiments.reach import ENCODERS, RECURRENT, Network, measure_reach


def test_the_influence_is_that_of_the_gradient_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "WIDTH", 8)
    monkeypatch.setattr(reach, "TRAINED", ())
    result = measure_reach(distance=5, seeds=(2,), length=2, updates=0)
    torch.manual_seed(2)
    layer = nn.RNN(8, 8, batch_first=True).double()
    x = torch.randn(64, 6, 8, dtype=torch.float64)
    direction = torch.randn(64, 8, dtype=torch.float64)
    inside, state = layer.weight_ih_l0.detach(), layer.weight_hh_l0.detach()
    states = layer(x)[0].detach()
    # Back through h = tanh(W x + U h'): the error times 1 - h**2, then U (or W for the input).
    error, norms = direction, []
    for place in range(5, -1, -1):
        error = error * (1 - states[:, place] ** 2)
        norms.append(float((error @ inside).norm(dim=1).mean()))
        error = error @ state
    found = result.influences["RNN"]
    np.testing.assert_allclose([found.last, found.one_back, found.far], [norms[0], norms[1], norms[5]], rtol=1e-9)
    assert found.per_step(5) == pytest.approx((norms[5] / norms[1]) ** 0.25)


def test_recurrent_networks_forget_and_encoders_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "TRAINED", ())
    result = measure_reach(distance=48, seeds=(0,), length=2, updates=0)
    assert list(result.influences) == [*RECURRENT, *ENCODERS]
    relative = {name: each.far / each.one_back for name, each in result.influences.items()}
    assert all(relative[name] < 1e-6 for name in RECURRENT)
    assert all(0.2 < relative[name] < 5 for name in ENCODERS)
    assert json.loads(json.dumps(dataclasses.asdict(result))) == dataclasses.asdict(result)


def test_the_encoder_over_vectors_is_the_encoder() -> None:
    network = Network("encoder, 2 blocks", 5).eval()
    encoder = network.body
    encoder.embedding = nn.Embedding(7, 64)
    tokens = torch.randint(1, 7, (3, 5))
    vectors = encoder.embedding(tokens) * 8.0  # sqrt(64)
    assert torch.allclose(network(vectors), encoder.hidden(tokens)[:, -1], atol=1e-6)


def test_short_texts_are_recalled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "WIDTH", 16)
    monkeypatch.setattr(reach, "RATES", (0.02,))
    result = measure_reach(distance=2, seeds=(0, 1), length=4, updates=60)
    assert [(run.name, run.learning_rate) for run in result.recalled] == [("GRU", 0.02), ("encoder, 1 block", 0.02)]
    assert (result.chance, result.num_seeds) == (0.25, 2)
    assert all(len(run.accuracies) == 2 and min(run.accuracies) > 0.5 for run in result.recalled)
    assert reach._recall("GRU", 4, 0, 60, 0.02) == result.recalled[0].accuracies[0]
