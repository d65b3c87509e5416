"""What encoders are compared with: counted words."""

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
    """Which terms count, and by how much their weights are penalised."""

    name: str
    max_features: int | None = (
        None  # the most frequent terms, equal ones in alphabetical order; None: all
    )
    stop_words: str | None = (
        None  # "english" leaves out scikit-learn's list, which contains "not" and "never"
    )
    max_ngram: int = 1  # terms of up to so many neighbouring words
    strengths: tuple[float, ...] = (
        1.0,
    )  # scikit-learn's C; validation accuracy chooses, the first wins a tie


class TfidfClassifier:
    """Logistic regression on TF-IDF: ``log(p / (1 - p)) = w · x + b`` for two classes, a softmax
    for more.

    ``x`` has, for each term t, count(t) · (ln((1 + n) / (1 + n_t)) + 1) with n training texts of
    which n_t hold t, scaled to length 1. Terms are made of the words of
    :func:`~glassformer.data.tokenizer.split_words`, which encoders read too; scikit-learn's own
    rule parts words at the vowel signs of Indic scripts and omits words of one letter. ``strength``
    is scikit-learn's C; the recipe's first when None.

    Source: scikit-learn's ``TfidfVectorizer`` and ``LogisticRegression``.
    """

    def __init__(
        self, train: Sequence[Example], recipe: TfidfRecipe, strength: float | None = None
    ) -> None:
        labels = [example.label for example in train]
        found = sorted(set(labels))
        if len(found) < 2:
            raise InputError(
                got=f"{len(train)} examples of the classes {found}",
                expected="at least two classes",
                fix="Add texts.",
            )
        texts = [each.text for each in train]
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
            fix = "Pass other texts, or keep the stop words."
            raise InputError(
                f"texts without a term: {error}", "at least one word that is no stop word", fix
            ) from error
        # max_features of the vectorizer itself breaks ties by an unstable sort, which differs
        # between machines.
        chosen = np.sort(np.argsort(-totals, kind="stable")[: recipe.max_features])
        self._vectorizer = TfidfVectorizer(
            vocabulary=counter.get_feature_names_out()[chosen], **options
        )
        features = self._vectorizer.fit_transform(texts)
        self._regression = LogisticRegression(C=strength or recipe.strengths[0], max_iter=1000).fit(
            features, labels
        )

    @property
    def num_parameters(self) -> int:
        """Weights and biases of the regression, without the terms' frequencies."""
        return int(self._regression.coef_.size + self._regression.intercept_.size)

    def probabilities(
        self, texts: Sequence[str], num_classes: int = 2
    ) -> Float[np.ndarray, "text num_classes"]:
        """The probability of each class for each text; 0 for a class that training had no example
        of.
        """
        found = np.zeros((len(texts), num_classes))
        found[:, self._regression.classes_] = self._regression.predict_proba(
            self._vectorizer.transform(texts)
        )
        return found


def _words(text: str) -> list[str]:
    return list(split_words(text))


def fit_counts(recipe: TfidfRecipe, data: SentimentData) -> tuple[TfidfClassifier, float]:
    """Train at each of the recipe's strengths; the classifier of the best validation accuracy, and
    its strength.
    """
    texts, labels = zip(
        *((example.text, example.label) for example in data.validation), strict=True
    )
    fitted = [TfidfClassifier(data.train, recipe, strength) for strength in recipe.strengths]
    right = [
        int((each.probabilities(texts, len(data.classes)).argmax(1) == labels).sum())
        for each in fitted
    ]
    best = int(np.argmax(right))
    return fitted[best], recipe.strengths[best]
