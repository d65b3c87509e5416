"""The table of models: all trained on the same texts and measured once on the test texts.

The models are also measured on reviews of each kind.
"""

import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from glassformer.checkpoints.hub import find_directory, minilm
from glassformer.classifier import ENCODER, load_classifier, save_classifier
from glassformer.data.examples import Example, SentimentData
from glassformer.errors import InputError
from glassformer.figures.style import BLACK, HATCHES, LINES, in_style, new_figure
from glassformer.labs.run import Run
from glassformer.labs.sentiment.experiments.recipes import (
    BASELINES,
    FROM_MINILM,
    FROM_SCRATCH,
    PretrainedRecipe,
    ScratchRecipe,
    one_thread,
    train_recipe,
)
from glassformer.labs.sentiment.sources import find_data, kind_examples
from glassformer.labs.sentiment.tfidf import TfidfRecipe, fit_counts
from glassformer.labs.wording import alike
from glassformer.training.classification import scores, wilson

Recipe: TypeAlias = TfidfRecipe | ScratchRecipe | PretrainedRecipe
Probabilities: TypeAlias = Float[np.ndarray, "text num_classes"]

NUM_BINS = 10


@dataclass(frozen=True)
class Bin:
    """Test texts whose predicted probability of the last class lies in one interval."""

    predicted: float
    """Mean predicted probability."""
    actual: float
    """Share of texts of the class."""
    count: int


@dataclass(frozen=True)
class ModelResult:
    """A trained model. Accuracies and the calibration error (15 bins) are in [0, 1]."""

    name: str
    seed: int | None
    """Seed, or None if the training is not random."""
    choice: str
    """Settings that were selected on the validation texts in this run."""
    encoder: bool
    num_parameters: int
    validation_accuracy: float
    test_accuracy: float
    test_loss: float
    """Cross-entropy in nats."""
    test_calibration_error: float
    kinds: dict[str, float]
    """Accuracy on reviews of each kind."""
    bins: list[Bin]
    """Calibration on the test texts."""

    @property
    def slug(self) -> str:
        """Name of the model's directory."""
        return slug(self.name, self.seed)


@dataclass(frozen=True)
class Models:
    """The texts, and one result for each recipe and seed."""

    data: str
    num_train: int
    num_validation: int
    num_test: int
    majority: float
    """Share of the more frequent class among the test texts."""
    kinds: dict[str, int]
    """Number of reviews of each kind."""
    missing: dict[str, str]
    """Reasons why models are not in the table."""
    rows: list[ModelResult]

    @property
    def names(self) -> list[str]:
        """Names of the models in the table's order."""
        return list(dict.fromkeys(row.name for row in self.rows))

    def of(self, name: str) -> list[ModelResult]:
        """Return the results of all seeds of a model."""
        return [row for row in self.rows if row.name == name]

    def median(self, name: str) -> ModelResult:
        """Return the result with the median test accuracy, the lower one of two in the middle."""
        rows = sorted(self.of(name), key=lambda row: row.test_accuracy)
        return rows[(len(rows) - 1) // 2]

    @property
    def medians(self) -> dict[str, ModelResult]:
        """Median result of each model."""
        return {name: self.median(name) for name in self.names}

    @property
    def counts(self) -> ModelResult:
        """Word-count model with the highest validation accuracy."""
        return max(
            (row for row in self.rows if row.seed is None), key=lambda row: row.validation_accuracy
        )

    def spread(self, name: str) -> float:
        """Return the difference of the highest and the lowest test accuracy among the seeds."""
        accuracies = [row.test_accuracy for row in self.of(name)]
        return max(accuracies) - min(accuracies)

    def alike(self, first: str, second: str) -> bool:
        """Return whether two medians differ by at most two standard errors or a spread of seeds."""
        accuracies = [self.median(name).test_accuracy for name in (first, second)]
        spread = max(self.spread(first), self.spread(second))
        return alike(accuracies[0], accuracies[1], self.num_test, spread)

    def compared(self, reference: str) -> dict[str, list[str]]:
        """Group the trained networks: "better" or "worse" than a model, or "alike"."""
        reference_accuracy = self.median(reference).test_accuracy
        groups: dict[str, list[str]] = {"better": [], "alike": [], "worse": []}
        for name, row in self.medians.items():
            if row.seed is None:
                continue
            if self.alike(name, reference):
                groups["alike"].append(name)
            elif row.test_accuracy > reference_accuracy:
                groups["better"].append(name)
            else:
                groups["worse"].append(name)
        return groups

    def beats_chance(self, name: str) -> bool:
        """Return whether the 95 % interval of the median lies above a constant answer."""
        return wilson(self.median(name).test_accuracy, self.num_test)[0] > self.majority

    @property
    def best_encoder(self) -> ModelResult:
        """Best seed of the best encoder recipe.

        The mean validation accuracy selects the recipe, and validation accuracy its seed.
        """

        def validation(row: ModelResult) -> tuple[float, float]:
            accuracies = [seed_row.validation_accuracy for seed_row in self.of(row.name)]
            return sum(accuracies) / len(accuracies), row.validation_accuracy

        return max((row for row in self.rows if row.encoder), key=validation)


def slug(name: str, seed: int | None) -> str:
    """Return a file name for a recipe and a seed."""
    words = "".join(char if char.isalnum() else " " for char in name.lower()).split()
    if seed is not None:
        words.append(str(seed))
    return "-".join(words)


def measure_models(run: Run) -> Models:
    """Train every recipe with every seed; ``run`` stores each result.

    Slow trainings are stored in ``trainings/``, and the best encoder in ``classifier/`` for
    ``glassformer classify``.
    """
    name, data = find_data(run.settings.data)
    kinds = kind_examples(data)
    missing = {}
    encoders: list[Recipe] = [FROM_SCRATCH]
    if run.settings.pretrained:
        try:
            find_directory(minilm())
            encoders.append(FROM_MINILM)
        except InputError as error:
            missing[FROM_MINILM.name] = str(error)
    trainings: list[tuple[Recipe, int | None]] = [(recipe, None) for recipe in BASELINES]
    seeds = range(run.seed, run.seed + run.settings.seeds)
    trainings += product(encoders, seeds)
    rows = []
    for recipe, seed in trainings:
        training = slug(recipe.name, seed)
        directory = run.out / "trainings" / training
        measure = partial(_measure_and_print, recipe, seed, data, kinds, directory)
        rows.append(run.kept(f"model-{training}", ModelResult, measure))
    table = Models(
        data=name,
        num_train=len(data.train),
        num_validation=len(data.validation),
        num_test=len(data.test),
        majority=max(Counter(example.label for example in data.test).values()) / len(data.test),
        kinds=dict(Counter(example.kind for example in kinds)),
        missing=missing,
        rows=rows,
    )
    classifier = run.out / "classifier"
    best = run.out / "trainings" / table.best_encoder.slug / ENCODER
    save_classifier(load_classifier(best), classifier)
    quoted = shlex.quote(str(classifier))
    print(f"  the best encoder: glassformer classify --run {quoted} TEXT", flush=True)
    return table


def _measure_and_print(
    recipe: Recipe, seed: int | None, data: SentimentData, kinds: Sequence[Example], directory: Path
) -> ModelResult:
    """Call :func:`measure_model` with one thread for small networks, and print its progress."""
    print(f"  {recipe.name}" if seed is None else f"  {recipe.name}, seed {seed}", flush=True)
    with nullcontext() if isinstance(recipe, PretrainedRecipe) else one_thread():
        return measure_model(recipe, seed, data, kinds, directory)


def measure_model(
    recipe: Recipe, seed: int | None, data: SentimentData, kinds: Sequence[Example], directory: Path
) -> ModelResult:
    """Train a model and measure it on the test texts and on ``kinds``.

    Encoders are stored in ``directory``.
    """
    choice = ""
    probabilities: Callable[[Sequence[str]], Any]
    if isinstance(recipe, TfidfRecipe):
        counts, strength = fit_counts(recipe, data)
        choice = f"C = {strength:g}"
        size = counts.num_parameters
        probabilities = partial(counts.probabilities, num_classes=len(data.classes))
    else:
        classifier = train_recipe(recipe, data, directory, seed or 0)
        size = sum(weight.numel() for weight in classifier.encoder.parameters())
        probabilities = classifier.probabilities

    def predicted(examples: Sequence[Example]) -> Tensor:
        return torch.as_tensor(probabilities([example.text for example in examples]))

    test = predicted(data.test)
    labels = _labels(data.test)
    test_scores = scores(test, labels)
    validation_scores = scores(predicted(data.validation), _labels(data.validation))
    return ModelResult(
        name=recipe.name,
        seed=seed,
        choice=choice,
        encoder=isinstance(recipe, ScratchRecipe | PretrainedRecipe),
        num_parameters=size,
        validation_accuracy=validation_scores["accuracy"],
        test_accuracy=test_scores["accuracy"],
        test_loss=test_scores["loss"],
        test_calibration_error=test_scores["calibration_error"],
        kinds=accuracy_by_kind(predicted(kinds).numpy(), kinds),
        bins=reliability(test.double().numpy(), labels.numpy()),
    )


def _labels(examples: Sequence[Example]) -> Tensor:
    return torch.tensor([example.label for example in examples])


def accuracy_by_kind(probabilities: Probabilities, examples: Sequence[Example]) -> dict[str, float]:
    """Return the accuracy on the examples of each kind."""
    right = probabilities.argmax(axis=1) == [example.label for example in examples]
    kinds = np.array([example.kind for example in examples])
    return {kind: float(right[kinds == kind].mean()) for kind in dict.fromkeys(kinds.tolist())}


def reliability(probabilities: Probabilities, labels: Sequence[int] | np.ndarray) -> list[Bin]:
    """Compare predicted and actual shares of the last class, for each tenth that has texts."""
    predicted = probabilities[:, -1]
    bins = np.minimum((predicted * NUM_BINS).astype(int), NUM_BINS - 1)
    actual = np.asarray(labels) == probabilities.shape[1] - 1
    results = []
    for number in np.unique(bins):
        rows = bins == number
        mean = float(predicted[rows].mean())
        share = float(actual[rows].mean())
        results.append(Bin(mean, share, int(rows.sum())))
    return results


@in_style
def draw_calibration(models: Sequence[ModelResult]) -> Figure:
    """Draw the share of positive texts by predicted probability, with 95 % intervals."""
    columns = min(2, len(models))
    rows = -(-len(models) // columns)
    figure, axes = new_figure(
        3.4 * columns + 0.6, 3.1 * rows, rows, columns, sharex=True, sharey=True
    )
    for place, ax in enumerate(axes):
        if place >= len(models):
            ax.set_axis_off()
            continue
        model = models[place]
        look = LINES[place % len(LINES)]
        predicted = np.array([group.predicted for group in model.bins])
        actual = np.array([group.actual for group in model.bins])
        low, high = np.array([wilson(group.actual, group.count) for group in model.bins]).T
        ax.plot([0, 1], [0, 1], color="#808080", lw=0.9)
        ax.errorbar(
            predicted, actual, (actual - low, high - actual), **look, elinewidth=0.9, capsize=2
        )
        ax.set_title(f"{model.name}\nerror {model.test_calibration_error:.3f}")
        ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        if place >= len(models) - columns:
            ax.tick_params(labelbottom=True)
            ax.set_xlabel("predicted probability of the positive class")
        ax.set_ylabel("share that is positive" if place % columns == 0 else "")
    return figure


@in_style
def draw_kinds(accuracies: Mapping[str, Mapping[str, float]], counts: Mapping[str, int]) -> Figure:
    """Draw the accuracies in [0, 1] of models on each kind of review, with 95 % intervals."""
    figure, (ax,) = new_figure(max(7.0, 0.35 * len(counts) * len(accuracies) + 3), 4.2)
    width = 0.8 / len(accuracies)
    sizes = list(counts.values())
    for series, (name, by_kind) in enumerate(accuracies.items()):
        values = np.array([by_kind[kind] for kind in counts])
        low, high = np.array(list(map(wilson, values.tolist(), sizes))).T
        places = np.arange(len(sizes)) + (series - (len(accuracies) - 1) / 2) * width
        colour = LINES[series]["color"]
        hatch = HATCHES[series]
        ax.bar(
            places, values, 0.92 * width, label=name, color=colour, hatch=hatch, edgecolor="white"
        )
        ax.errorbar(
            places,
            values,
            (values - low, high - values),
            fmt="none",
            ecolor=BLACK,
            elinewidth=1,
            capsize=2,
        )
    ax.axhline(0.5, color=BLACK, lw=1, ls=(0, (4, 3)), label="chance")
    ax.set_xticks(range(len(sizes)), [f"{kind}\n{count} reviews" for kind, count in counts.items()])
    ax.set(ylim=(0, 1.03), ylabel="accuracy", title="Accuracy by what the verdict rests on")
    ax.grid(False, axis="x")
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure
