"""Reach: gradients against the chain rule written out, and a task that only a network that reaches back can do."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from torch import nn

from glassformer.labs.sentiment.experiments import reach
from glassformer.labs.sentiment.experiments.reach import ENCODERS, RECURRENT, Network, Recalled, measure_reach


def test_the_influence_is_that_of_the_gradient_written_out() -> None:
    result = measure_reach(distances=(0, 1, 5), seeds=(2,), lengths=(), width=8)
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
    np.testing.assert_allclose(found.norms, [norms[0], norms[1], norms[5]], rtol=1e-9)
    np.testing.assert_allclose(found.relative, [norms[0] / norms[1], 1, norms[5] / norms[1]], rtol=1e-9)
    assert found.per_step == pytest.approx((norms[5] / norms[1]) ** 0.25)


def test_recurrent_networks_forget_and_encoders_do_not() -> None:
    result = measure_reach(distances=(0, 1, 16, 48), seeds=(0,), lengths=())
    assert list(result.influences) == [*RECURRENT, *ENCODERS]
    for name in RECURRENT:
        assert result.influences[name].relative[-1] < 1e-6
    for name in ENCODERS:
        assert 0.2 < result.influences[name].relative[-1] < 5
    assert json.loads(json.dumps(dataclasses.asdict(result))) == dataclasses.asdict(result)


def test_the_encoder_over_vectors_is_the_encoder() -> None:
    network = Network("encoder, 2 blocks", 5, 16).eval()
    encoder = network.body
    encoder.embedding = nn.Embedding(7, 16)
    tokens = torch.randint(1, 7, (3, 5))
    vectors = encoder.embedding(tokens) * 4.0  # sqrt(16)
    assert torch.allclose(network(vectors), encoder.hidden(tokens)[:, -1], atol=1e-6)


def test_short_texts_are_recalled() -> None:
    result = measure_reach(distances=(0, 1, 2), seeds=(0,), lengths=(4,), updates=60, width=16, rates=(0.02,))
    assert [(run.name, run.length) for run in result.recalled] == [("GRU", 4), ("encoder, 1 block", 4)]
    assert result.chance == 0.25
    for run in result.recalled:
        assert result.accuracies(run.name, 4, 0.02) == [run.accuracy]
        assert run.accuracy > 0.5
    assert reach._recall("GRU", 4, 16, 0, 60, 0.02) == result.recalled[0].accuracy
    runs = [Recalled("GRU", 4, seed, rate, rate + seed / 10) for seed in (0, 1) for rate in (0.1, 0.6)]
    twice = dataclasses.replace(result, recalled=runs)
    assert twice.accuracies("GRU", 4, 0.6) == pytest.approx([0.6, 0.7])
