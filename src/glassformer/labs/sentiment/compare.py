"""The models of the table: each trained, measured on the same texts, and looked at in the same ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

from glassformer.data.examples import Example, SentimentData
from glassformer.errors import require, require_positive
from glassformer.labs.sentiment.baselines import BASELINES, TfidfRecipe, run_baseline
from glassformer.labs.sentiment.measured import Measured
from glassformer.labs.sentiment.recipes import FROM_MINILM, FROM_SCRATCH, PretrainedRecipe, ScratchRecipe
from glassformer.labs.sentiment.rivals import RIVALS, RivalRecipe, train_rival
from glassformer.labs.sentiment.training_runs import Epoch, train_recipe

Recipe: TypeAlias = TfidfRecipe | RivalRecipe | ScratchRecipe | PretrainedRecipe
Probabilities: TypeAlias = Float[np.ndarray, "text num_classes"]

NUM_BINS = 10


@dataclass(frozen=True)
class Contestant:
    """One model of the table, before it is trained.

    Attributes:
        recipe: How.
        seed: None where nothing is random.
    """

    recipe: Recipe
    seed: int | None

    @property
    def slug(self) -> str:
        """Its name as that of a file."""
        words = "".join(sign if sign.isalnum() else " " for sign in self.recipe.name.lower()).split()
        return "-".join([*words, *([] if self.seed is None else [str(self.seed)])])


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
        slug: The name of its files.
        encoder: Whether it is one of this project's encoders.
        measured: Its row of the table.
        kinds: Accuracy on reviews of each kind.
        bins: Its calibration on the test texts.
        epochs: Its training; none for a baseline.
    """

    slug: str
    encoder: bool
    measured: Measured
    kinds: dict[str, float]
    bins: list[Bin]
    epochs: list[Epoch]


def contestants(num_seeds: int, seed: int, *, pretrained: bool = True, short: bool = False) -> list[Contestant]:
    """All that are compared: word counts, what was used before, an encoder from scratch, and a pretrained one.

    Args:
        num_seeds: Trainings of each recipe that has something random.
        seed: The first of their seeds.
        pretrained: With the pretrained one.
        short: One epoch each.

    Raises:
        InputError: ``num_seeds`` below 1.
    """
    require_positive(num_seeds=num_seeds)
    trained: list[RivalRecipe | ScratchRecipe | PretrainedRecipe] = [*RIVALS, FROM_SCRATCH]
    if pretrained:
        trained.append(FROM_MINILM)
    if short:
        trained = [replace(recipe, training=recipe.training.shortened()) for recipe in trained]
    seeded = [Contestant(recipe, seed + number) for recipe in trained for number in range(num_seeds)]
    return [*(Contestant(recipe, None) for recipe in BASELINES), *seeded]


def compete(contestant: Contestant, data: SentimentData, kinds: Sequence[Example], directory: Path) -> ModelResult:
    """Train one, in ``directory`` where it takes long, and measure it.

    Args:
        contestant: Which.
        data: Its training, validation and test texts.
        kinds: Reviews of several kinds, which its training has not seen.
        directory: Keeps the run, and continues what is there.

    Raises:
        InputError: ``directory`` holds the run of another recipe, seed or data set.
        KeyboardInterrupt: The training was interrupted. What it did is saved.
    """
    recipe, seed = contestant.recipe, contestant.seed or 0
    epochs: list[Epoch] = []
    probabilities: Callable[[Sequence[str]], Probabilities]
    if isinstance(recipe, TfidfRecipe):
        baseline, measured = run_baseline(recipe, data)

        def probabilities(texts: Sequence[str]) -> Probabilities:
            return baseline.probabilities(texts, len(data.classes))

    else:
        model, measured, epochs = (
            train_rival(recipe, data, directory, seed)
            if isinstance(recipe, RivalRecipe)
            else train_recipe(recipe, data, directory, seed)
        )

        def probabilities(texts: Sequence[str]) -> Probabilities:
            return model.probabilities(texts).double().numpy()

    test = probabilities([example.text for example in data.test])
    return ModelResult(
        slug=contestant.slug,
        encoder=isinstance(recipe, ScratchRecipe | PretrainedRecipe),
        measured=measured,
        kinds=accuracy_by_kind(probabilities([example.text for example in kinds]), kinds),
        bins=reliability(test, [example.label for example in data.test]),
        epochs=epochs,
    )


def best_encoder(models: Sequence[ModelResult]) -> ModelResult:
    """Among the encoders, the recipe of the highest mean validation accuracy; of its seeds, the best by the same.

    Test accuracy has no part in the choice.

    Raises:
        InputError: No encoder among ``models``.
    """
    encoders = [model for model in models if model.encoder]
    require(len(encoders) > 0, "no encoder", "at least one trained encoder", "Train one.")

    def validation(model: ModelResult) -> tuple[float, float]:
        name = model.measured.name
        group = [each.measured.validation_accuracy for each in encoders if each.measured.name == name]
        return sum(group) / len(group), model.measured.validation_accuracy

    return max(encoders, key=validation)


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
