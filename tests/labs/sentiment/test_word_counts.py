"""Word counts: TF-IDF written out, the choice by validation, and the accuracies known for SST-2."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sklearn")

from glassformer.data.examples import Example, SentimentData
from glassformer.data.sentiment import from_files
from glassformer.labs.sentiment import rivals
from glassformer.labs.sentiment.experiments.recipes import COURSE_TFIDF, FULL_TFIDF
from glassformer.labs.sentiment.rivals import TfidfClassifier, TfidfRecipe, fit_counts
from refusals import refused

TRAIN = tuple(
    Example(text, label)
    for text, label in [
        ("a good film", 1),
        ("good good acting", 1),
        ("the acting was bad", 0),
        ("a bad film and a bad plot", 0),
        ("fine plot", 1),
    ]
)
DATA = SentimentData(TRAIN, TRAIN[:3], (Example("good plot", 1), Example("bad acting", 0), Example("good bad", 0)))


def tfidf(train: list[str], texts: list[str]) -> np.ndarray:
    """The features of the docstring, in loops; terms in alphabetical order."""
    words = [re.findall(r"\w\w+", text) for text in train]
    terms = sorted({word for row in words for word in row})
    rows = []
    for text in texts:
        found = re.findall(r"\w\w+", text)
        row = [
            found.count(term) * (math.log((1 + len(train)) / (1 + sum(term in each for each in words))) + 1)
            for term in terms
        ]
        rows.append(np.array(row) / math.hypot(*row))
    return np.array(rows)


def test_probabilities_minimise_the_penalised_loss_on_tfidf_written_out() -> None:
    classifier = TfidfClassifier(TRAIN, TfidfRecipe("counts"))
    x, y = tfidf([e.text for e in TRAIN], [e.text for e in TRAIN]), np.array([e.label for e in TRAIN])
    weights, bias = np.zeros(x.shape[1]), 0.0
    for _ in range(20_000):  # plain gradient descent on |w|²/2 + sum of losses, scikit-learn's with C = 1
        excess = 1 / (1 + np.exp(-(x @ weights + bias))) - y
        weights, bias = weights - 0.1 * (weights + x.T @ excess), bias - 0.1 * excess.sum()
    texts = [e.text for e in DATA.test]
    expected = 1 / (1 + np.exp(-(tfidf([e.text for e in TRAIN], texts) @ weights + bias)))
    np.testing.assert_allclose(classifier.probabilities(texts)[:, 1], expected, atol=1e-3)
    assert classifier.num_parameters == x.shape[1] + 1


def test_the_courses_settings_leave_words_out() -> None:
    few = TfidfClassifier(TRAIN, TfidfRecipe("few", max_features=2))
    assert few.num_parameters == 3
    stopped = TfidfClassifier(TRAIN, TfidfRecipe("stopped", stop_words="english"))
    whole = TfidfClassifier(TRAIN, TfidfRecipe("whole"))
    assert whole.num_parameters - stopped.num_parameters == 3  # and, the, was
    pairs = TfidfClassifier(TRAIN, TfidfRecipe("pairs", max_ngram=2))
    assert pairs.num_parameters > whole.num_parameters


def test_validation_chooses_the_strength(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fake(TfidfClassifier):
        def __init__(self, train: object, recipe: TfidfRecipe, strength: float) -> None:
            self.strength = strength

        def probabilities(self, texts: list[str], num_classes: int = 2) -> np.ndarray:
            labels = [example.label for text in texts for example in TRAIN if example.text == text]
            return np.eye(2)[[label ^ (self.strength != 3.0) for label in labels]]

    monkeypatch.setattr(rivals, "TfidfClassifier", Fake)
    assert fit_counts(FULL_TFIDF, DATA)[1] == 3.0


def test_a_class_without_examples_has_probability_zero() -> None:
    found = TfidfClassifier(TRAIN, TfidfRecipe("counts")).probabilities(["good"], 3)
    assert found.shape == (1, 3)
    assert found[0, 2] == 0


@pytest.mark.parametrize(
    ("train", "message"),
    [(TRAIN[:2], r"2 examples of the classes \[1\]"), ((Example("!", 0), Example("?", 1)), "texts without a term")],
)
def test_what_cannot_be_learned_is_refused(train: tuple[Example, ...], message: str) -> None:
    with refused(message):
        TfidfClassifier(train, COURSE_TFIDF)


@pytest.mark.slow
def test_sst2_gives_the_known_accuracies(shared_data: Path) -> None:
    data = from_files(*(shared_data / f"sst2_{part}.tsv" for part in ("train", "dev", "test")))
    labels = [example.label for example in data.test]
    for recipe, expected in ((COURSE_TFIDF, 0.718), (FULL_TFIDF, 0.811)):
        classifier, _ = fit_counts(recipe, data)
        likely = classifier.probabilities([example.text for example in data.test]).argmax(1)
        assert (likely == labels).mean() == pytest.approx(expected, abs=0.002)
