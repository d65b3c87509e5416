"""What counting words achieves: TF-IDF with logistic regression, as in the course and with all words."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from glassformer.data.examples import Example, SentimentData
from glassformer.errors import InputError, require, require_positive
from glassformer.labs.sentiment.measured import Measured, measure
from glassformer.labs.sentiment.text import require_class, require_texts


@dataclass(frozen=True)
class TfidfRecipe:
    """How a baseline is made.

    Attributes:
        name: For tables.
        max_features: How many of the most frequent terms count; None: all of them.
        stop_words: "english" leaves out scikit-learn's list of frequent words, "not" and "never" among them.
        max_ngram: Terms of up to this many neighbouring words.
        strengths: Inverse strengths of the penalty (scikit-learn's C) of which validation accuracy chooses; the first
            wins a tie.

    Raises:
        InputError: A size below 1, or strengths that are none or not above 0.
    """

    name: str
    max_features: int | None = None
    stop_words: str | None = None
    max_ngram: int = 1
    strengths: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        require_positive(max_ngram=self.max_ngram)
        if self.max_features is not None:
            require_positive(max_features=self.max_features)
        require(
            self.stop_words in (None, "english"),
            f"stop_words = {self.stop_words!r}",
            "'english' or None",
            "scikit-learn has a list for English alone.",
        )
        require(
            len(self.strengths) > 0 and min(self.strengths) > 0,
            f"strengths = {self.strengths}",
            "at least one number above 0",
            "1.0 is scikit-learn's own.",
        )


COURSE_TFIDF = TfidfRecipe("TF-IDF, 500 words", max_features=500, stop_words="english")
FULL_TFIDF = TfidfRecipe("TF-IDF, all words", strengths=(1.0, 3.0, 10.0))
BIGRAM_TFIDF = TfidfRecipe("TF-IDF, all words and pairs", max_ngram=2, strengths=(1.0, 3.0, 10.0))
BASELINES = (COURSE_TFIDF, FULL_TFIDF, BIGRAM_TFIDF)


class TfidfClassifier:
    """Logistic regression on TF-IDF: ``log(p / (1 - p)) = w · x + b`` for two classes, a softmax for more.

    ``x`` has, for each term t, count(t) · (ln((1 + n) / (1 + n_t)) + 1) with n training texts of which n_t hold t,
    scaled to length 1.

    Args:
        train: What to learn from.
        recipe: How. Its strengths must be one; :func:`run_baseline` chooses.

    Raises:
        InputError: Examples of fewer than two classes, a label that is no whole number from 0, texts without any term
            or that are no strings, or several strengths.

    Source: scikit-learn's ``TfidfVectorizer`` and ``LogisticRegression``.
    """

    def __init__(self, train: Sequence[Example], recipe: TfidfRecipe) -> None:
        labels = [require_class(example.label) for example in train]
        require_texts([example.text for example in train])
        require(
            len(set(labels)) >= 2,
            f"{len(train)} examples of the classes {sorted(set(labels))}",
            "at least two classes",
            "One class alone cannot be learned; check the labels.",
        )
        require(len(recipe.strengths) == 1, f"strengths = {recipe.strengths}", "one", "Choose with run_baseline.")
        self._vectorizer = TfidfVectorizer(
            max_features=recipe.max_features, stop_words=recipe.stop_words, ngram_range=(1, recipe.max_ngram)
        )
        try:
            features = self._vectorizer.fit_transform([example.text for example in train])
        except ValueError as error:
            fix = "Pass other texts, or keep the stop words."
            raise InputError(f"texts without a term: {error}", "at least one word of two letters", fix) from error
        self._regression = LogisticRegression(C=recipe.strengths[0], max_iter=1000).fit(features, labels)

    @property
    def num_parameters(self) -> int:
        """Weights and biases of the regression. The frequencies of the terms are counted, and come on top."""
        return int(self._regression.coef_.size + self._regression.intercept_.size)

    def probabilities(self, texts: Sequence[str], num_classes: int = 2) -> Float[np.ndarray, "text num_classes"]:
        """The probability of each class for each text; 0 for a class that training had no example of.

        Raises:
            InputError: No texts, one text instead of several, one that is no string, or fewer classes than training
                had.
        """
        require_texts(texts)
        require(len(texts) > 0, "no texts", "at least one", "Pass a list of texts.")
        highest = int(self._regression.classes_.max())
        require(
            highest < num_classes,
            f"num_classes = {num_classes} after training with the label {highest}",
            f"at least {highest + 1}",
            "Count all classes, also those of no text.",
        )
        found = np.zeros((len(texts), num_classes))
        found[:, self._regression.classes_] = self._regression.predict_proba(self._vectorizer.transform(texts))
        return found


def run_baseline(recipe: TfidfRecipe, data: SentimentData) -> tuple[TfidfClassifier, Measured]:
    """Train on ``data.train``, choose among the strengths by validation accuracy, and measure on the test examples.

    The time of training is that of all strengths together.

    Returns:
        The chosen classifier, and its row of the table.

    Raises:
        InputError: Training examples of fewer than two classes, or texts without any term.
    """
    begun = time.perf_counter()
    candidates = [
        TfidfClassifier(data.train, dataclasses.replace(recipe, strengths=(strength,))) for strength in recipe.strengths
    ]
    seconds = time.perf_counter() - begun
    labels = [example.label for example in data.validation]
    texts = [example.text for example in data.validation]
    validation = [
        float((candidate.probabilities(texts, len(data.classes)).argmax(1) == labels).mean())
        for candidate in candidates
    ]
    best = int(np.argmax(validation))

    def probabilities(texts: Sequence[str]) -> Float[Tensor, "text num_classes"]:
        return torch.from_numpy(candidates[best].probabilities(texts, len(data.classes)))

    measured = measure(
        recipe.name,
        None,
        data,
        probabilities,
        num_parameters=candidates[best].num_parameters,
        training_seconds=seconds,
        validation_accuracy=validation[best],
        choice=f"C = {recipe.strengths[best]:g}",
    )
    return candidates[best], measured
