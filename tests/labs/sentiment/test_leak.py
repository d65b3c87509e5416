"""The leak: counted by hand, hidden by a random split, and absent from a split by text."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from matplotlib.figure import Figure

pytest.importorskip("sklearn")

from glassformer.data.sentiment import leaky_examples
from glassformer.labs.sentiment.experiments.pitfalls import LeakResult, LeakRun, draw_leak, measure_leak


@pytest.fixture(scope="module")
def result() -> LeakResult:
    return measure_leak(seeds=(3,), epochs=1)


def test_the_counts_are_those_of_the_set(result: LeakResult) -> None:
    copies = Counter(example.text for example in leaky_examples())
    assert (result.num_examples, result.num_texts) == (sum(copies.values()), len(copies)) == (200, 20)
    for run in (*result.leaky, *result.clean):
        assert run.num_validated == 40
    assert result.leaky[0].num_seen == 40
    assert result.clean[0].num_seen == 0
    # Four texts are held out, and their ten copies are judged alike.
    assert (4 * result.clean[0].transformer).is_integer()
    assert (4 * result.clean[0].tfidf).is_integer()
    assert result.mean("leaky", "tfidf") == 1.0
    assert all(len(values) == 1 for values in result.histories["leaky"].values())
    assert result.histories["clean"]["val_acc"][-1] == pytest.approx(100 * result.clean[0].transformer)
    assert json.loads(json.dumps(dataclasses.asdict(result))) == dataclasses.asdict(result)


def test_the_figure_shows_every_split(result: LeakResult, check_readable: Callable[[Figure], None]) -> None:
    accuracies = [0.25, 0.5, 0.5, 1.0]
    clean = [LeakRun(40, 0, share, 1 - share) for share in accuracies]
    several = dataclasses.replace(result, clean=clean, leaky=result.leaky * 4)
    assert several.mean("clean", "transformer") == 0.5625
    assert several.error("clean", "tfidf") == pytest.approx(statistics.stdev(accuracies) / 2)
    figure = draw_leak(several)
    check_readable(figure)
    points = [np.asarray(drawn.get_ydata(), dtype=float) for drawn in figure.axes[0].lines[:4]]
    np.testing.assert_allclose(points[2], [25, 50, 50, 100])
    np.testing.assert_allclose(points[3], [75, 50, 50, 0])


@pytest.mark.slow
def test_the_leak_makes_a_model_perfect_that_is_not() -> None:
    result = measure_leak(seeds=(0,))
    assert result.mean("leaky", "transformer") == 1.0
    assert result.mean("clean", "transformer") < 0.9
