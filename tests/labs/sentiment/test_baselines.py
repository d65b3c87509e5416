"""The baselines: TF-IDF written out, the choice by validation, and the accuracies known for SST-2."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sklearn")

from glassformer.data.examples import Example, SentimentData
from glassformer.data.sentiment import from_files
from glassformer.labs.sentiment import baselines
from glassformer.labs.sentiment.baselines import COURSE_TFIDF, FULL_TFIDF, TfidfClassifier, TfidfRecipe, run_baseline
from glassformer.labs.sentiment.recipes import sst2
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
    right_for = 3.0

    class Fake(TfidfClassifier):
        def __init__(self, train: object, recipe: TfidfRecipe) -> None:
            self.strength = recipe.strengths[0]

        @property
        def num_parameters(self) -> int:
            return int(self.strength)

        def probabilities(self, texts: list[str], num_classes: int = 2) -> np.ndarray:
            labels = [example.label for text in texts for example in TRAIN if example.text == text]
            wrong = 0 if self.strength == right_for else 1
            return np.eye(2)[[label ^ wrong for label in labels or [0] * len(texts)]]

    monkeypatch.setattr(baselines, "TfidfClassifier", Fake)
    _, row = run_baseline(FULL_TFIDF, DATA)
    assert (row.choice, row.validation_accuracy, row.num_parameters) == ("C = 3", 1.0, 3)


def test_a_class_without_examples_has_probability_zero() -> None:
    data = dataclasses.replace(DATA, classes=("negative", "positive", "neutral"))
    found = TfidfClassifier(TRAIN, TfidfRecipe("counts")).probabilities(["good"], 3)
    assert found.shape == (1, 3)
    assert found[0, 2] == 0
    assert run_baseline(COURSE_TFIDF, data)[1].num_tested == 3


@pytest.mark.parametrize(
    ("train", "recipe", "message"),
    [
        (TRAIN[:2], TfidfRecipe("one class"), r"2 examples of the classes \[1\]"),
        ((Example("!", 0), Example("?", 1)), TfidfRecipe("no words"), "texts without a term"),
        (TRAIN, FULL_TFIDF, "strengths ="),
        ((*TRAIN, Example("odd", -1)), TfidfRecipe("below 0"), "the label -1"),
    ],
)
def test_what_cannot_be_learned_is_refused(train: tuple[Example, ...], recipe: TfidfRecipe, message: str) -> None:
    with refused(message):
        TfidfClassifier(train, recipe)


@pytest.mark.usefixtures("without_type_checks")
def test_examples_that_are_none_are_refused() -> None:
    for odd, message in ((Example("odd", 0.5), r"the label 0\.5"), (Example(None, 1), "of type NoneType")):  # type: ignore[arg-type]
        with refused(message):
            TfidfClassifier((*TRAIN, odd), TfidfRecipe("odd"))


@pytest.mark.parametrize(
    ("texts", "num_classes", "message"),
    [
        ([], 2, "no texts"),
        ([None], 2, "of type NoneType"),
        (["good", b"bad"], 2, "of type bytes"),
        ("good", 2, "one text"),
        (["good"], 1, "num_classes = 1 after training with the label 1"),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_what_cannot_be_predicted_is_refused(texts: list[str], num_classes: int, message: str) -> None:
    with refused(message):
        TfidfClassifier(TRAIN, TfidfRecipe("counts")).probabilities(texts, num_classes)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_features": 0}, "max_features = 0"),
        ({"max_ngram": 0}, "max_ngram = 0"),
        ({"stop_words": "german"}, "stop_words = 'german'"),
        ({"strengths": ()}, "strengths ="),
        ({"strengths": (1.0, 0.0)}, "strengths ="),
    ],
)
def test_impossible_recipes_are_refused(fields: dict[str, object], message: str) -> None:
    with refused(message):
        TfidfRecipe("wrong", **fields)


@pytest.mark.slow
def test_sst2_gives_the_known_accuracies(shared_data: Path) -> None:
    whole = sst2(shared_data)
    few, every = (run_baseline(recipe, whole)[1] for recipe in (COURSE_TFIDF, FULL_TFIDF))
    assert few.test_accuracy == pytest.approx(0.718, abs=0.002)
    assert every.test_accuracy == pytest.approx(0.811, abs=0.002)
    assert few.num_parameters == 501
    files = [shared_data / f"sst2_{part}.tsv" for part in ("train", "dev", "test")]
    _, without_repeats = run_baseline(FULL_TFIDF, from_files(*files))
    assert without_repeats.test_accuracy == pytest.approx(every.test_accuracy, abs=0.005)
