"""What the lab measured, as data: the report and the figures are made from this alone."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from glassformer.errors import InputError
from glassformer.files import write_text

Points = list[list[int | float]]
"""[step, value] pairs."""


@dataclass(frozen=True)
class ModelResult:
    """One trained model.

    ``losses`` are training losses in nats per token; ``evaluations`` are accuracies on the test sequences during
    training, the last of them after the last step; ``accuracy_by_position`` is measured on the new sequences.
    """

    name: str
    title: str
    fresh: bool
    num_parameters: int
    steps: int
    losses: Points
    evaluations: Points
    accuracy_by_position: list[float]

    @property
    def accuracy(self) -> float:
        """Mean accuracy over all positions of the new sequences."""
        return sum(self.accuracy_by_position) / len(self.accuracy_by_position)

    @property
    def test_accuracy(self) -> float:
        """Accuracy on the test sequences after training."""
        return self.evaluations[-1][1]


@dataclass(frozen=True)
class Behaviour:
    """What continuations are like; every number is a share in [0, 1].

    Attributes:
        rule: Steps that follow the hidden recurrence.
        increment: Steps that do not, and are the previous token + 1.
        neither: Steps that are neither.
        repeated: Runs of four tokens that the same continuation had before.
        cycling: Continuations whose second half repeats itself, in two rounds or more.
    """

    rule: float
    increment: float
    neither: float
    repeated: float
    cycling: float

    def distance(self, other: Behaviour) -> float:
        """Total variation between the two mixtures of rule, increment and neither, in [0, 1]."""
        mine, others = (self.rule, self.increment, self.neither), (other.rule, other.increment, other.neither)
        return sum(abs(a - b) for a, b in zip(mine, others, strict=True)) / 2


@dataclass(frozen=True)
class NextToken:
    """Distributions of one next token: the optimal one and the model's under several sampling rules."""

    context: list[int]
    by_rule: int
    by_increment: int
    optimal: list[float]
    model: dict[str, list[float]]


@dataclass(frozen=True)
class GenerationResult:
    """How one model continues sequences of held-out generators, beside how they really went on."""

    model: str
    num_prompts: int
    prompt_length: int
    new_tokens: int
    true: Behaviour
    rules: dict[str, Behaviour]
    temperatures: list[float]
    top_ps: list[float]
    grid: list[list[Behaviour]]
    next_token: NextToken

    def closest(self) -> tuple[float, float, Behaviour]:
        """Temperature, top-p and behaviour of the grid's cell that is nearest to the true sequences."""
        cells = [
            (temperature, top_p, self.grid[row][column])
            for row, temperature in enumerate(self.temperatures)
            for column, top_p in enumerate(self.top_ps)
        ]
        return min(cells, key=lambda cell: cell[2].distance(self.true))


@dataclass(frozen=True)
class Results:
    """All that one run of the lab measured.

    The optimum is that of the Bayes-optimal predictor, counted on the same sequences as the models: ``optimum_test`` on
    the test sequences, ``optimum_by_position`` on the new ones.
    """

    plan: str
    seed: int
    num_train: int
    num_test: int
    num_measured: int
    optimum_test: float
    optimum_by_position: list[float]
    models: list[ModelResult]
    generation: GenerationResult

    @property
    def optimum(self) -> float:
        """Mean optimal accuracy over all positions of the new sequences."""
        return sum(self.optimum_by_position) / len(self.optimum_by_position)

    def gap(self, model: ModelResult, start: int = 0, stop: int | None = None) -> float:
        """What ``model`` misses to the optimum at positions start ... stop - 1, as a part of the mean over all."""
        pairs = zip(self.optimum_by_position, model.accuracy_by_position, strict=True)
        return sum(best - reached for best, reached in list(pairs)[start:stop]) / len(self.optimum_by_position)

    def write(self, path: Path) -> None:
        """Write all of it to the file ``path`` as JSON."""
        models = [
            {**asdict(model), "accuracy": model.accuracy, "test_accuracy": model.test_accuracy} for model in self.models
        ]
        write_text(path, json.dumps({**asdict(self), "optimum": self.optimum, "models": models}, indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Results:
        """Read what :meth:`write` wrote.

        Raises:
            InputError: The file is missing or damaged.
        """
        try:
            values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            values.pop("optimum")
            values["models"] = [_model(model) for model in values["models"]]
            values["generation"] = _generation(values["generation"])
            return cls(**values)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(
                f"{path}, which cannot be read ({error})",
                "the results of a run of the lab",
                "Remove the file; with --resume the lab then measures again.",
            ) from error


def _model(values: dict[str, Any]) -> ModelResult:
    return ModelResult(**{name: value for name, value in values.items() if name not in ("accuracy", "test_accuracy")})


def _generation(values: dict[str, Any]) -> GenerationResult:
    rules = {name: Behaviour(**rule) for name, rule in values["rules"].items()}
    grid = [[Behaviour(**cell) for cell in row] for row in values["grid"]]
    made = {"true": Behaviour(**values["true"]), "next_token": NextToken(**values["next_token"])}
    return GenerationResult(**{**values, **made, "rules": rules, "grid": grid})
