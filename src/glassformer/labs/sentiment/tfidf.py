"""Baseline for encoders: logistic regression on counted words."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from glassformer.data.examples import Example, SentimentData
from glassformer.data.tokenizer import split_words
from glassformer.errors import InputError


@dataclass(frozen=True)
class TfidfRecipe:
    """The terms of a TF-IDF model, and the penalty of its weights."""

    name: str
    max_features: int | None = None
    """Number of terms, the most frequent first, ties in alphabetical order. None: all terms."""
    stop_words: str | None = None
    """"english" leaves out the words of scikit-learn's list, which contains "not" and "never"."""
    max_ngram: int = 1
    """Largest number of neighbouring words in a term."""
    strengths: tuple[float, ...] = (1.0,)
    """Values of scikit-learn's C. The best validation accuracy selects one; the first wins ties."""


class TfidfClassifier:
    """Logistic regression on TF-IDF.

    The model is ``log(p / (1 - p)) = w · x + b`` for two classes, and a softmax for more. For each
    term t, ``x`` has count(t) · (ln((1 + n) / (1 + n_t)) + 1), where n_t of the n training texts
    contain t; ``x`` is scaled to length 1. Terms consist of the words of
    :func:`~glassformer.data.tokenizer.split_words`, which encoders also read: scikit-learn's own
    rule splits words at the vowel signs of Indic scripts and omits words of one letter.

    Args:
        train: Training examples of at least two classes.
        recipe: Terms of the model.
        strength: scikit-learn's C. Default: the recipe's first.

    Source: scikit-learn's ``TfidfVectorizer`` and ``LogisticRegression``.
    """

    def __init__(
        self, train: Sequence[Example], recipe: TfidfRecipe, strength: float | None = None
    ) -> None:
        labels = [example.label for example in train]
        classes = sorted(set(labels))
        if len(classes) < 2:
            raise InputError(
                got=f"{len(train)} examples of the classes {classes}",
                expected="at least two classes",
                fix="Add texts of another class.",
            )
        texts = [example.text for example in train]
        options: dict[str, Any] = {
            "stop_words": recipe.stop_words,
            "ngram_range": (1, recipe.max_ngram),
            "tokenizer": _words,
            "token_pattern": None,
            "lowercase": False,
        }
        counter = CountVectorizer(**options)
        try:
            totals = counter.fit_transform(texts).sum(axis=0).A1
        except ValueError as error:
            raise InputError(
                got=f"texts without a term: {error}",
                expected="at least one word that is no stop word",
                fix="Pass other texts, or keep the stop words.",
            ) from error
        # Not the vectorizer's max_features, which breaks ties by an unstable sort: the result
        # would differ between machines.
        most_frequent = np.sort(np.argsort(-totals, kind="stable")[: recipe.max_features])
        terms = counter.get_feature_names_out()[most_frequent]
        self._vectorizer = TfidfVectorizer(vocabulary=terms, **options)
        features = self._vectorizer.fit_transform(texts)
        regression = LogisticRegression(C=strength or recipe.strengths[0], max_iter=1000)
        self._regression = regression.fit(features, labels)

    @property
    def num_parameters(self) -> int:
        """Number of weights and biases of the regression, without the terms' frequencies."""
        return int(self._regression.coef_.size + self._regression.intercept_.size)

    def probabilities(
        self, texts: Sequence[str], num_classes: int = 2
    ) -> Float[np.ndarray, "text num_classes"]:
        """Return class probabilities; 0 for a class without a training example."""
        probabilities = np.zeros((len(texts), num_classes))
        features = self._vectorizer.transform(texts)
        probabilities[:, self._regression.classes_] = self._regression.predict_proba(features)
        return probabilities


def _words(text: str) -> list[str]:
    return list(split_words(text))


def fit_counts(recipe: TfidfRecipe, data: SentimentData) -> tuple[TfidfClassifier, float]:
    """Train at each strength; return the classifier of the best validation accuracy, and its C."""
    texts = [example.text for example in data.validation]
    labels = [example.label for example in data.validation]
    classifiers = [TfidfClassifier(data.train, recipe, strength) for strength in recipe.strengths]
    num_right = []
    for classifier in classifiers:
        predicted = classifier.probabilities(texts, len(data.classes)).argmax(1)
        num_right.append(int((predicted == labels).sum()))
    best = int(np.argmax(num_right))
    return classifiers[best], recipe.strengths[best]
