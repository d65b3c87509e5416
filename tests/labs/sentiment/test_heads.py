"""Heads: spreads against loops, runs shared between tables."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
import torch

from glassformer.data.examples import Example, SentimentData
from glassformer.labs.sentiment import heads
from glassformer.labs.sentiment.heads import measure_heads
from glassformer.labs.sentiment.recipes import FROM_SCRATCH, TrainingRecipe
from glassformer.labs.sentiment.training_runs import build_classifier
from glassformer.observe.capture import capture
from glassformer.training import TrainingResult
from refusals import refused

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


def test_spreads_and_differences_are_means_over_queries() -> None:
    classifier = build_classifier(TINY, [example.text for example in TRAIN], DATA.classes, seed=0)
    texts = [example.text for example in DATA.validation]
    spreads, differences = heads._look(classifier, texts)
    entropies, distances, between = np.zeros((2, 2)), np.zeros((2, 2)), np.zeros(2)
    queries = 0
    for row in classifier.rows(texts):  # one text at a time, without padding
        tokens = torch.tensor([row])
        queries += len(row)
        with torch.no_grad(), capture(classifier.encoder, what=("q", "k")) as seen:
            classifier.encoder.hidden(tokens, tokens >= 0)
        for layer, (q, k) in enumerate(zip(seen.last("q").values(), seen.last("k").values(), strict=True)):
            weights = (q[0] @ k[0].mT / math.sqrt(q.shape[-1])).softmax(-1)
            for query in range(len(row)):
                rows = weights[:, query].double().numpy()
                between[layer] += jensen_shannon(*rows)
                for head, row_weights in enumerate(rows):
                    entropies[layer, head] -= sum(w * math.log(w) for w in row_weights)
                    distances[layer, head] += sum(w * abs(key - query) for key, w in enumerate(row_weights))
    for spread in spreads:
        assert spread.entropy == pytest.approx(entropies[spread.layer, spread.head] / queries, rel=1e-5)
        assert spread.distance == pytest.approx(distances[spread.layer, spread.head] / queries, rel=1e-5)
    for difference in differences:
        assert difference.divergence == pytest.approx(between[difference.layer] / queries, rel=1e-3)


def test_what_is_in_both_tables_is_trained_once(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = []
    run = heads._run
    monkeypatch.setattr(heads, "_run", lambda recipe, *rest: trained.append(recipe.model) or run(recipe, *rest))
    result = measure_heads(DATA, counts=(1, 2), seeds=(0,), recipe=TINY)
    assert [(each["num_heads"], each["positions"]) for each in trained] == [
        (1, "none"),
        (2, "none"),
        (2, "sinusoidal"),
    ]
    assert [(each.num_heads, each.positions) for each in result.by_positions] == [(2, "none"), (2, "sinusoidal")]
    one, two = result.by_count
    assert [each.divergence for each in one.differences] == [0.0, 0.0]
    assert all(each.divergence > 0 for each in two.differences)
    assert len(two.spreads) == 4
    assert result.accuracy(2) == result.accuracy_with("none") == two.validation_accuracy
    # A head that sees n tokens alike: entropy ln n, and distances in a double loop.
    lengths = [3 + THINGS.index(example.text.split()[2]) + 1 for example in DATA.validation]
    assert result.uniform_entropy == pytest.approx(sum(n * math.log(n) for n in lengths) / sum(lengths))
    apart = sum(abs(i - j) / n for n in lengths for i in range(n) for j in range(n))
    assert result.uniform_distance == pytest.approx(apart / sum(lengths))
    assert json.loads(json.dumps(dataclasses.asdict(result))) == dataclasses.asdict(result)


def test_the_test_part_is_left_alone() -> None:
    other = dataclasses.replace(DATA, test=(Example("something else altogether", 0),))
    one, same = (measure_heads(data, counts=(2,), seeds=(0,), recipe=TINY) for data in (DATA, other))
    assert one == same


def test_impossible_requests_are_refused() -> None:
    with refused(expected="at least one of both"):
        measure_heads(DATA, counts=())
    with refused("num_heads = 3"):
        measure_heads(DATA, counts=(3,), seeds=(0,), recipe=TINY)


def test_ctrl_c_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = TrainingResult(step=1, ending="interrupted", history=[], best=None, seconds=0.0, directory=None)
    monkeypatch.setattr(heads, "train", lambda *arguments, **options: stopped)
    with pytest.raises(KeyboardInterrupt):
        measure_heads(DATA, counts=(1,), seeds=(0,), recipe=TINY)
