"""What the lab measured, as data: the report and the figures are made from this, and from the models that it kept."""

from __future__ import annotations

from dataclasses import dataclass

from glassformer.labs.sentiment.compare import ModelResult
from glassformer.labs.sentiment.growth import GrowthResult
from glassformer.labs.sentiment.heads import HeadsResult
from glassformer.labs.sentiment.leak import LeakResult
from glassformer.labs.sentiment.looks import Look
from glassformer.labs.sentiment.measured import median_row
from glassformer.labs.sentiment.norms import NormResult
from glassformer.labs.sentiment.padding import PaddingResult
from glassformer.labs.sentiment.probes import PairResult, ProbeResult
from glassformer.labs.sentiment.reach import ReachResult


@dataclass(frozen=True)
class DataSummary:
    """The texts that the table is about.

    Attributes:
        name: Of the data set.
        num_train: Training examples.
        num_validation: Validation examples.
        num_test: Test examples.
        majority: The share of test examples of the most frequent class: what a constant answer gets right.
        kinds: How many reviews of each kind the models were asked about besides.
    """

    name: str
    num_train: int
    num_validation: int
    num_test: int
    majority: float
    kinds: dict[str, int]


@dataclass(frozen=True)
class CourseRun:
    """The course's model, trained on the reviews that ship.

    Attributes:
        num_parameters: Of all its parts together.
        parts: Of its embeddings, its blocks and its classifier.
        history: As the course's loop records it.
    """

    num_parameters: int
    parts: dict[str, int]
    history: dict[str, list[float]]


@dataclass(frozen=True)
class Experiments:
    """What was measured beside the table of models."""

    leak: LeakResult
    padding: PaddingResult
    norms: NormResult
    reach: ReachResult
    heads: HeadsResult
    growth: GrowthResult


@dataclass(frozen=True)
class Asked:
    """What the best encoder said.

    Attributes:
        model: Its name.
        words: Texts that differ in one word that should not matter.
        pairs: Pairs of texts that differ in what should.
        looks: Single texts, with the effect of each token.
    """

    model: str
    words: ProbeResult
    pairs: PairResult
    looks: list[Look]


@dataclass(frozen=True)
class Results:
    """All that one run of the lab measured.

    Attributes:
        plan: "full" or "quick".
        seed: Of everything.
        data: The texts.
        models: One for each recipe and seed.
        missing: Why a model of the plan is not among them, by its name.
        course: The course's training, without its leak.
        experiments: The rest.
        asked: What the best encoder said.
    """

    plan: str
    seed: int
    data: DataSummary
    models: list[ModelResult]
    missing: dict[str, str]
    course: CourseRun
    experiments: Experiments
    asked: Asked

    @property
    def names(self) -> list[str]:
        """The models' names, each once, in the table's order."""
        return list(dict.fromkeys(model.measured.name for model in self.models))

    def median(self, name: str) -> ModelResult:
        """The model of this name whose test accuracy is the median among its seeds."""
        group = [model for model in self.models if model.measured.name == name]
        row = median_row([model.measured for model in group])
        return next(model for model in group if model.measured == row)
