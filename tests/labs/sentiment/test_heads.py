"""Heads: spreads against loops, every model trained once."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
import torch

from glassformer.data.examples import Example, SentimentData
from glassformer.labs.sentiment.experiments.heads import measure_heads
from glassformer.labs.sentiment.experiments.recipes import FROM_SCRATCH, TrainingRecipe, build_classifier
from glassformer.labs.sentiment.experiments.word_probes import attention_spread
from glassformer.observe.capture import capture

THINGS = ("film", "book", "soup", "phone", "song", "play")
TRAIN = tuple(
    Example(f"a {word} {thing}{' .' * index}", label)
    for index, thing in enumerate(THINGS)
    for word, label in (("good", 1), ("bad", 0))
)
DATA = SentimentData(TRAIN, TRAIN[::3], TRAIN[:1])
TINY = dataclasses.replace(
    FROM_SCRATCH,
    training=TrainingRecipe(2, 4, 0.01, 0.0),
    model={**FROM_SCRATCH.model, "num_layers": 2, "hidden_dim": 16, "ff_dim": 16, "num_heads": 2},
)


def jensen_shannon(p: np.ndarray, q: np.ndarray) -> float:
    """As the mean of both divergences from the mixture, in a loop."""
    halves = [x * math.log(2 * x / (one + other)) for one, other in zip(p, q, strict=True) for x in (one, other) if x]
    return sum(halves) / 2


def test_spreads_and_divergences_are_means_over_queries() -> None:
    classifier = build_classifier(TINY, [example.text for example in TRAIN], DATA.classes, seed=0)
    rows = classifier.rows([example.text for example in DATA.validation])
    classifier.encoder.eval()
    found = attention_spread(classifier, rows)
    entropies, between = np.zeros((2, 2)), np.zeros(2)
    for row in rows:  # one text at a time, without padding
        tokens = torch.tensor([row])
        with torch.no_grad(), capture(classifier.encoder, what=("q", "k")) as seen:
            classifier.encoder.hidden(tokens, tokens >= 0)
        for layer, (q, k) in enumerate(zip(seen.last("q").values(), seen.last("k").values(), strict=True)):
            weights = (q[0] @ k[0].mT / math.sqrt(q.shape[-1])).softmax(-1)
            for query in range(len(row)):
                both = weights[:, query].double().numpy()
                between[layer] += jensen_shannon(*both)
                for head, row_weights in enumerate(both):
                    entropies[layer, head] -= sum(w * math.log(w) for w in row_weights)
    queries = sum(map(len, rows))
    np.testing.assert_allclose(found[0], entropies.ravel() / queries, rtol=1e-5)
    np.testing.assert_allclose(found[1], between / queries, rtol=1e-3)


def test_every_model_is_trained_once_and_the_test_part_is_left_alone() -> None:
    result = measure_heads(DATA, counts=(1, 2), seeds=(0,), recipe=TINY)
    assert [(run.num_heads, run.positions) for run in result.runs] == [(1, "none"), (2, "none"), (2, "sinusoidal")]
    assert (result.num_heads, result.positions) == (2, "none")
    one, two, placed = result.runs
    assert one.divergences == [0.0, 0.0]
    assert all(each > 0 for each in two.divergences)
    assert len(two.entropies) == 4
    assert result.accuracy() == result.accuracy(2) == two.validation_accuracy
    assert result.accuracy(positions="sinusoidal") == placed.validation_accuracy
    # A head that sees n tokens alike has the entropy ln n.
    lengths = [3 + THINGS.index(example.text.split()[2]) + 1 for example in DATA.validation]
    assert result.uniform_entropy == pytest.approx(sum(n * math.log(n) for n in lengths) / sum(lengths))
    assert json.loads(json.dumps(dataclasses.asdict(result))) == dataclasses.asdict(result)
    other = dataclasses.replace(DATA, test=(Example("something else altogether", 0),))
    assert measure_heads(other, counts=(1, 2), seeds=(0,), recipe=TINY) == result
