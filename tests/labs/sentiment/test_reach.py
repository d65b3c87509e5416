"""Reach: gradients against finite differences, and a task that only a network that reaches far can do."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from torch import nn

from glassformer.labs.sentiment import reach
from glassformer.labs.sentiment.reach import Recalled, measure_reach
from refusals import refused


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
    found = result.influences[0]
    assert (found.name, found.steps) == ("RNN", 6)
    np.testing.assert_allclose(found.norms, [norms[0], norms[1], norms[5]], rtol=1e-9)
    np.testing.assert_allclose(found.relative, [norms[0] / norms[1], 1, norms[5] / norms[1]], rtol=1e-9)
    assert found.per_step == pytest.approx((norms[5] / norms[1]) ** 0.25)


def test_recurrent_networks_forget_and_encoders_do_not() -> None:
    result = measure_reach(distances=(0, 1, 16, 48), seeds=(0,), lengths=())
    by_name = {each.name: each for each in result.influences}
    assert list(by_name) == ["RNN", "GRU", "LSTM", "encoder, 1 block", "encoder, 2 blocks"]
    for name in ("RNN", "GRU", "LSTM"):
        assert by_name[name].relative[-1] < 1e-6
        assert by_name[name].steps == result.length == 49
    for blocks, name in ((1, "encoder, 1 block"), (2, "encoder, 2 blocks")):
        assert 0.2 < by_name[name].relative[-1] < 5
        assert by_name[name].steps == blocks
    assert json.loads(json.dumps(dataclasses.asdict(result))) == dataclasses.asdict(result)


def test_the_encoder_read_from_vectors_is_the_encoder() -> None:
    encoder = reach._encoder(16, 5, 2, vocab_size=7).eval()
    tokens = torch.randint(1, 7, (3, 5))
    vectors = encoder.embedding(tokens) * 4.0  # sqrt(16)
    assert torch.allclose(reach._from_vectors(encoder, vectors), encoder.hidden(tokens), atol=1e-6)


def test_short_texts_are_recalled_and_the_same_again() -> None:
    assert reach._recall("GRU", 16, 4, 0, 2, 0.01) == reach._recall("GRU", 16, 4, 0, 2, 0.01)
    result = measure_reach(distances=(0, 1, 2), seeds=(0,), lengths=(4,), updates=40, width=16, rates=(0.02,))
    assert [(run.name, run.steps) for run in result.recalled] == [("GRU", 4), ("encoder, 1 block", 1)]
    assert result.chance == 0.25
    for run in result.recalled:
        assert result.accuracy(run.name, 4) == run.accuracy > 0.5
    twice = dataclasses.replace(
        result, recalled=[Recalled("GRU", 4, seed, rate, rate + seed / 10, 4) for seed in (0, 1) for rate in (0.1, 0.6)]
    )
    assert twice.accuracy("GRU", 4) == pytest.approx(0.65)
    assert twice.accuracy("GRU", 4, 0.1) == pytest.approx(0.15)


def test_texts_start_with_a_class_and_go_on_with_noise() -> None:
    task = reach._FirstToken(length=9, seed=0)
    tokens = task.batch(3, 200)["tokens"]
    assert set(tokens[:, 0].tolist()) == set(range(4))
    assert set(tokens[:, 1:].flatten().tolist()) == set(range(4, 16))
    assert torch.equal(tokens, task.batch(3, 200)["tokens"])
    assert not torch.equal(tokens, task.batch(4, 200)["tokens"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seeds": ()}, "no seeds"),
        ({"distances": (0, 1)}, "distances ="),
        ({"distances": (4, 1, 2)}, "distances ="),
        ({"distances": (-1, 1, 2)}, "distances ="),
        ({"lengths": (1,)}, "lengths ="),
        ({"updates": 0}, "updates = 0"),
    ],
)
def test_impossible_requests_are_refused(arguments: dict[str, object], message: str) -> None:
    with refused(message):
        measure_reach(**arguments)
