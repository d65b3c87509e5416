"""The table of models: medians, comparisons that know the noise, accuracy by kind, calibration by
hand, figures.
"""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgb

from glassformer.data.examples import Example, SentimentData
from glassformer.labs.sentiment.experiments.models import (
    ModelResult,
    Models,
    accuracy_by_kind,
    draw_calibration,
    draw_kinds,
    measure_model,
    reliability,
    slug,
)
from glassformer.labs.sentiment.experiments.recipes import FROM_SCRATCH, TrainingRecipe
from glassformer.labs.sentiment.tfidf import TfidfRecipe
from readable import check_readable

TEXTS = [
    Example(f"{word} {number}", label)
    for number in range(6)
    for word, label in (("good", 1), ("bad", 0))
]
SHORT = TrainingRecipe(2, 8, 0.01, 0.0)
DATA = SentimentData(tuple(TEXTS[:8]), tuple(TEXTS[8:10]), tuple(TEXTS[10:]))
KINDS = (Example("good", 1), Example("bad", 0, "irony"), Example("good", 0, "irony"))


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=40))
def test_reliability_counts_every_text_once(pairs: list[tuple[float, bool]]) -> None:
    chosen = np.array([p for p, _ in pairs])
    actual = [int(label) for _, label in pairs]
    bins = reliability(np.stack([1 - chosen, chosen], axis=1), actual)
    assert sum(each.count for each in bins) == len(pairs)
    assert sum(each.count * each.predicted for each in bins) == pytest.approx(chosen.sum())
    assert sum(each.count * each.actual for each in bins) == pytest.approx(sum(actual))
    assert len(bins) <= 10
    assert [each.predicted for each in bins] == sorted(each.predicted for each in bins)


def test_bins_by_hand() -> None:
    chosen = np.array([0.05, 0.15, 0.12, 1.0])
    low, middle, high = reliability(np.stack([1 - chosen, chosen], axis=1), [0, 1, 0, 1])
    assert (low.predicted, low.actual, low.count) == (pytest.approx(0.05), 0.0, 1)
    assert (middle.predicted, middle.actual, middle.count) == (pytest.approx(0.135), 0.5, 2)
    assert (high.predicted, high.actual, high.count) == (1.0, 1.0, 1)


def test_accuracy_by_kind() -> None:
    probabilities = np.array([[0.1, 0.9], [0.8, 0.2], [0.4, 0.6]])
    assert accuracy_by_kind(probabilities, KINDS) == {"plain": 1.0, "irony": 0.5}


def test_encoders_are_trained_and_measured(tmp_path: Path) -> None:
    recipe = dataclasses.replace(FROM_SCRATCH, training=SHORT)
    found = measure_model(recipe, 1, DATA, KINDS, tmp_path)
    assert (found.name, found.seed, found.encoder) == (recipe.name, 1, True)
    assert set(found.kinds) == {"plain", "irony"}
    assert sum(each.count for each in found.bins) == len(DATA.test)
    assert measure_model(recipe, 1, DATA, KINDS, tmp_path) == found


def test_word_counts_are_measured(tmp_path: Path) -> None:
    found = measure_model(TfidfRecipe("words", strengths=(10.0,)), None, DATA, KINDS, tmp_path)
    assert (found.seed, found.choice, found.test_accuracy) == (None, "C = 10", 1.0)
    assert found.kinds == {"plain": 1.0, "irony": 0.5}
    assert list(tmp_path.iterdir()) == []


def models(num_test: int = 1000, **accuracies: list[float]) -> Models:
    """Models of these names and test accuracies, "counts" without a seed; validation accuracies are
    the same.
    """
    row = ModelResult("", None, "", True, 10, 0.5, 0.5, 0.5, 0.1, {"plain": 0.5}, [])
    rows = [
        dataclasses.replace(
            row,
            name=name,
            seed=None if name == "counts" else seed,
            encoder=name != "counts",
            test_accuracy=value,
            validation_accuracy=value,
        )
        for name, values in accuracies.items()
        for seed, value in enumerate(values)
    ]
    return Models("texts", 10, 10, num_test, 0.5, {"plain": 10}, {}, rows)


def test_the_median_is_the_row_in_the_middle() -> None:
    found = models(one=[0.83, 0.80, 0.81], two=[0.83, 0.80], three=[0.7])
    assert {name: row.seed for name, row in found.medians.items()} == {
        "one": 2,
        "two": 1,
        "three": 0,
    }
    assert found.spread("one") == pytest.approx(0.03)


def test_comparisons_know_the_noise() -> None:
    found = models(counts=[0.80], same=[0.81], better=[0.9], worse=[0.7], wide=[0.8, 0.89, 0.9])
    assert found.compared("counts") == {
        "better": ["better"],
        "alike": ["same", "wide"],
        "worse": ["worse"],
    }
    assert found.beats_chance("worse")
    assert not models(num_test=30, one=[0.6]).beats_chance("one")
    assert not models(num_test=3, one=[1.0]).beats_chance("one")


def test_the_best_encoder_is_chosen_by_validation() -> None:
    found = models(counts=[0.99], one=[0.9, 0.8], other=[0.7, 0.91])
    assert found.best_encoder.slug == "one-0"
    assert found.counts.name == "counts"
    assert slug("TF-IDF, all words", 3) == "tf-idf-all-words-3"


ACCURACIES = {"words": {"plain": 0.9, "irony": 0.2}, "encoder": {"plain": 1.0, "irony": 0.5}}
COUNTS = {"plain": 40, "irony": 10}


def drawn(name: str, sharp: bool) -> ModelResult:
    rng = np.random.default_rng(0)
    probability = rng.random(400)
    labels = (rng.random(400) < probability).astype(int)
    p = np.where(probability > 0.5, 0.97, 0.02) if sharp else probability
    bins = reliability(np.stack([1 - p, p], 1), labels)
    return ModelResult(name, 0, "", True, 9, 0.8, 0.8, 0.4, 0.031, ACCURACIES["words"], bins)


DRAWN = [drawn("honest", False), drawn("sure", True)]


def test_calibration_shows_share_against_probability() -> None:
    figure = draw_calibration(DRAWN)
    check_readable(figure)
    for ax, each in zip(figure.axes, DRAWN, strict=True):
        np.testing.assert_array_equal(ax.lines[0].get_data(), [[0, 1], [0, 1]])
        points = np.asarray(ax.containers[0][0].get_data())
        np.testing.assert_array_equal(
            points, [[b.predicted for b in each.bins], [b.actual for b in each.bins]]
        )
        assert ax.get_title(loc="left") == f"{each.name}\nerror 0.031"
    assert len(draw_calibration([*DRAWN, DRAWN[0]]).axes) == 4


def test_bars_are_the_accuracies_in_groups() -> None:
    figure = draw_kinds(ACCURACIES, COUNTS)
    check_readable(figure)
    (ax,) = figure.axes
    bars = [container for container in ax.containers if not hasattr(container, "has_yerr")]
    assert [[bar.get_height() for bar in container] for container in bars] == [
        [0.9, 0.2],
        [1.0, 0.5],
    ]
    assert [container.get_label() for container in bars] == ["words", "encoder"]
    middles = [[bar.get_x() + bar.get_width() / 2 for bar in container] for container in bars]
    np.testing.assert_allclose(np.mean(middles, axis=0), [0, 1], atol=1e-12)
    assert [label.get_text() for label in ax.get_xticklabels()] == [
        "plain\n40 reviews",
        "irony\n10 reviews",
    ]
    looks = {(to_rgb(container[0].get_facecolor()), container[0].get_hatch()) for container in bars}
    assert len({hatch for _, hatch in looks}) == len({colour for colour, _ in looks}) == 2
