"""The models of the table: each trained, measured on the same texts, and looked at in the same ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from jaxtyping import Float

from glassformer.data.examples import Example, SentimentData
from glassformer.errors import require_positive
from glassformer.labs.sentiment.baselines import TfidfRecipe, run_baseline
from glassformer.labs.sentiment.measured import Measured
from glassformer.labs.sentiment.recipes import PretrainedRecipe, ScratchRecipe
from glassformer.labs.sentiment.training_runs import Epoch, train_recipe

Probabilities = Float[np.ndarray, "text num_classes"]

NUM_BINS = 10


@dataclass(frozen=True)
class Bin:
    """Test texts whose probability of the last class lies in one interval.

    Attributes:
        predicted: The mean of these probabilities.
        actual: The share of them that are of this class.
        count: How many they are.
    """

    predicted: float
    actual: float
    count: int


@dataclass(frozen=True)
class ModelResult:
    """One trained model.

    Attributes:
        measured: Its row of the table.
        kinds: Accuracy on reviews of each kind.
        bins: Its calibration on the test texts.
        epochs: Its training; none for a baseline.
    """

    measured: Measured
    kinds: dict[str, float]
    bins: list[Bin]
    epochs: list[Epoch] = field(default_factory=list)


def baseline_result(recipe: TfidfRecipe, data: SentimentData, kinds: Sequence[Example]) -> ModelResult:
    """TF-IDF with logistic regression."""
    classifier, measured = run_baseline(recipe, data)

    def probabilities(texts: Sequence[str]) -> Probabilities:
        return classifier.probabilities(texts, len(data.classes))

    return _look(measured, probabilities, data, kinds)


def encoder_result(
    recipe: ScratchRecipe | PretrainedRecipe,
    data: SentimentData,
    kinds: Sequence[Example],
    directory: Path,
    seed: int,
) -> ModelResult:
    """An encoder that is trained in ``directory``, or was.

    Raises:
        InputError: ``directory`` holds the run of another recipe, seed or data set.
        KeyboardInterrupt: The training was interrupted. What it did is saved.
    """
    classifier, measured, epochs = train_recipe(recipe, data, directory, seed)

    def probabilities(texts: Sequence[str]) -> Probabilities:
        return classifier.probabilities(texts).double().numpy()

    return _look(measured, probabilities, data, kinds, epochs)


def accuracy_by_kind(probabilities: Probabilities, examples: Sequence[Example]) -> dict[str, float]:
    """The share of examples of each kind whose most likely class is theirs."""
    right = probabilities.argmax(axis=1) == [example.label for example in examples]
    kinds = np.array([example.kind for example in examples])
    return {kind: float(right[kinds == kind].mean()) for kind in dict.fromkeys(kinds.tolist())}


def reliability(probabilities: Probabilities, labels: Sequence[int], num_bins: int = NUM_BINS) -> list[Bin]:
    """How often texts are of the last class whose probability of it is about p, for ``num_bins`` intervals of p.

    Intervals without a text are left out.

    Raises:
        InputError: ``num_bins`` below 1.
    """
    require_positive(num_bins=num_bins)
    chosen = probabilities[:, -1]
    index = np.minimum((chosen * num_bins).astype(int), num_bins - 1)
    actual = np.asarray(labels) == probabilities.shape[1] - 1
    return [
        Bin(float(chosen[index == place].mean()), float(actual[index == place].mean()), int((index == place).sum()))
        for place in np.unique(index)
    ]


def _look(
    measured: Measured,
    probabilities: Callable[[Sequence[str]], Probabilities],
    data: SentimentData,
    kinds: Sequence[Example],
    epochs: list[Epoch] | None = None,
) -> ModelResult:
    test = probabilities([example.text for example in data.test])
    by_kind = accuracy_by_kind(probabilities([example.text for example in kinds]), kinds)
    return ModelResult(measured, by_kind, reliability(test, [example.label for example in data.test]), epochs or [])
