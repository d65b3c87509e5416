"""The table of models: each trained on the same texts, measured once on the test texts, and on
reviews of each kind.
"""

import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
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
    """Test texts whose probability of the last class lies in one interval: its mean, and how many
    are of the class.
    """

    predicted: float
    actual: float
    count: int


@dataclass(frozen=True)
class ModelResult:
    """One trained model. Accuracies and the calibration error (with 15 bins) are in [0, 1], the
    loss in nats.
    """

    name: str
    seed: int | None  # None where nothing is random
    choice: str  # what was chosen on the validation texts in this run
    encoder: bool
    num_parameters: int
    validation_accuracy: float
    test_accuracy: float
    test_loss: float
    test_calibration_error: float
    kinds: dict[str, float]  # accuracy on reviews of each kind
    bins: list[Bin]  # calibration on the test texts

    @property
    def slug(self) -> str:
        """The name of its directory."""
        return slug(self.name, self.seed)


@dataclass(frozen=True)
class Models:
    """The texts, and one result for each recipe and seed."""

    data: str
    num_train: int
    num_validation: int
    num_test: int
    majority: float  # the share of the more frequent class among the test texts
    kinds: dict[str, int]  # reviews of each kind
    missing: dict[str, str]  # why a model is not in the table
    rows: list[ModelResult]

    @property
    def names(self) -> list[str]:
        """The models' names in the table's order."""
        return list(dict.fromkeys(row.name for row in self.rows))

    def of(self, name: str) -> list[ModelResult]:
        """The results of all seeds."""
        return [row for row in self.rows if row.name == name]

    def median(self, name: str) -> ModelResult:
        """The one of the median test accuracy; of an even number of seeds, the lower one in the
        middle.
        """
        rows = sorted(self.of(name), key=lambda row: row.test_accuracy)
        return rows[(len(rows) - 1) // 2]

    @property
    def medians(self) -> dict[str, ModelResult]:
        """The median result of each name."""
        return {name: self.median(name) for name in self.names}

    @property
    def counts(self) -> ModelResult:
        """The word counts of the highest validation accuracy."""
        return max(
            (row for row in self.rows if row.seed is None), key=lambda row: row.validation_accuracy
        )

    def spread(self, name: str) -> float:
        """The highest less the lowest test accuracy among the seeds."""
        found = [row.test_accuracy for row in self.of(name)]
        return max(found) - min(found)

    def alike(self, first: str, second: str) -> bool:
        """Whether two medians differ by at most two standard errors of a difference, or what
        either's seeds do.
        """
        one = self.median(first)
        other = self.median(second)
        seeds = max(self.spread(first), self.spread(second))
        return alike(one.test_accuracy, other.test_accuracy, self.num_test, seeds)

    def compared(self, reference: str) -> dict[str, list[str]]:
        """The trained networks that do "better" than the model of that name, "worse", or "alike"."""
        groups: dict[str, list[str]] = {"better": [], "alike": [], "worse": []}
        for name, row in self.medians.items():
            if row.seed is not None:
                better = row.test_accuracy > self.median(reference).test_accuracy
                groups[
                    "alike" if self.alike(name, reference) else "better" if better else "worse"
                ].append(name)
        return groups

    def beats_chance(self, name: str) -> bool:
        """Whether the 95 % interval of the median test accuracy lies above the accuracy of a
        constant answer.
        """
        return wilson(self.median(name).test_accuracy, self.num_test)[0] > self.majority

    @property
    def best_encoder(self) -> ModelResult:
        """Of the encoders, the recipe of the highest mean validation accuracy; of its seeds, the
        best by the same.
        """

        def validation(row: ModelResult) -> tuple[float, float]:
            group = [each.validation_accuracy for each in self.of(row.name)]
            return sum(group) / len(group), row.validation_accuracy

        return max((row for row in self.rows if row.encoder), key=validation)


def slug(name: str, seed: int | None) -> str:
    """The name of a file for a recipe and a seed."""
    words = "".join(sign if sign.isalnum() else " " for sign in name.lower()).split()
    return "-".join([*words, *([] if seed is None else [str(seed)])])


def measure_models(run: Run) -> Models:
    """Train every recipe at every seed of ``run``, which keeps each, in ``trainings/`` where it
    takes long.

    The best encoder is kept as ``classifier/`` too, for ``glassformer classify``.
    """
    name, data = find_data(run.settings.data)
    kinds = kind_examples(data)
    missing = {}
    trained: list[Recipe] = [FROM_SCRATCH]
    if run.settings.pretrained:
        try:
            find_directory(minilm())
            trained.append(FROM_MINILM)
        except InputError as error:
            missing[FROM_MINILM.name] = str(error)
    entered: list[tuple[Recipe, int | None]] = [(recipe, None) for recipe in BASELINES]
    entered += [
        (recipe, run.seed + number) for recipe in trained for number in range(run.settings.seeds)
    ]
    rows = []
    for recipe, seed in entered:
        place = slug(recipe.name, seed)

        def measured(
            recipe: Recipe = recipe, seed: int | None = seed, place: str = place
        ) -> ModelResult:
            print(f"  {recipe.name}{'' if seed is None else f', seed {seed}'}", flush=True)
            with nullcontext() if isinstance(recipe, PretrainedRecipe) else one_thread():
                return measure_model(recipe, seed, data, kinds, run.out / "trainings" / place)

        rows.append(run.kept(f"model-{place}", ModelResult, measured))
    found = Models(
        data=name,
        num_train=len(data.train),
        num_validation=len(data.validation),
        num_test=len(data.test),
        majority=max(Counter(example.label for example in data.test).values()) / len(data.test),
        kinds=dict(Counter(example.kind for example in kinds)),
        missing=missing,
        rows=rows,
    )
    kept = run.out / "classifier"
    save_classifier(
        load_classifier(run.out / "trainings" / found.best_encoder.slug / ENCODER), kept
    )
    print(
        f"  the best encoder: glassformer classify --run {shlex.quote(str(kept))} TEXT", flush=True
    )
    return found


def measure_model(
    recipe: Recipe, seed: int | None, data: SentimentData, kinds: Sequence[Example], directory: Path
) -> ModelResult:
    """Train one, in ``directory`` where it takes long, and measure it on the test texts and on
    ``kinds``.
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
    measured = scores(test, labels)
    return ModelResult(
        name=recipe.name,
        seed=seed,
        choice=choice,
        encoder=isinstance(recipe, ScratchRecipe | PretrainedRecipe),
        num_parameters=size,
        validation_accuracy=scores(predicted(data.validation), _labels(data.validation))[
            "accuracy"
        ],
        test_accuracy=measured["accuracy"],
        test_loss=measured["loss"],
        test_calibration_error=measured["calibration_error"],
        kinds=accuracy_by_kind(predicted(kinds).numpy(), kinds),
        bins=reliability(test.double().numpy(), labels.numpy()),
    )


def _labels(examples: Sequence[Example]) -> Tensor:
    return torch.tensor([example.label for example in examples])


def accuracy_by_kind(probabilities: Probabilities, examples: Sequence[Example]) -> dict[str, float]:
    """The share of examples of each kind whose most likely class is theirs."""
    right = probabilities.argmax(axis=1) == [example.label for example in examples]
    kinds = np.array([example.kind for example in examples])
    return {kind: float(right[kinds == kind].mean()) for kind in dict.fromkeys(kinds.tolist())}


def reliability(probabilities: Probabilities, labels: Sequence[int] | np.ndarray) -> list[Bin]:
    """How often texts are of the last class whose probability of it is about p, for each tenth of p
    that has texts.
    """
    chosen = probabilities[:, -1]
    index = np.minimum((chosen * NUM_BINS).astype(int), NUM_BINS - 1)
    actual = np.asarray(labels) == probabilities.shape[1] - 1
    return [
        Bin(
            float(chosen[index == place].mean()),
            float(actual[index == place].mean()),
            int((index == place).sum()),
        )
        for place in np.unique(index)
    ]


@in_style
def draw_calibration(models: Sequence[ModelResult]) -> Figure:
    """A panel for each model: the share of positive texts by predicted probability, with 95 %
    intervals.
    """
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
        predicted, actual = np.array([(each.predicted, each.actual) for each in model.bins]).T
        low, high = np.array([wilson(each.actual, each.count) for each in model.bins]).T
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
    """Accuracy in [0, 1] of several models on each kind of review, with 95 % intervals
    (:func:`wilson`).
    """
    figure, (ax,) = new_figure(max(7.0, 0.35 * len(counts) * len(accuracies) + 3), 4.2)
    width = 0.8 / len(accuracies)
    sizes = list(counts.values())
    for series, (name, by_kind) in enumerate(accuracies.items()):
        values = np.array([by_kind[kind] for kind in counts])
        low, high = np.array([wilson(*each) for each in zip(values.tolist(), sizes, strict=True)]).T
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
