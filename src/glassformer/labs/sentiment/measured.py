"""The rows of the table of results: what a model cost, and what it can do."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.data.examples import SentimentData
from glassformer.errors import require
from glassformer.training.classification import scores

_COLUMNS = (
    "model",
    "seed",
    "parameters",
    "training",
    "prediction",
    "validation",
    "test",
    "macro F1",
    "test loss",
    "calibration error",
)


@dataclass(frozen=True)
class Measured:
    """One row of the table: a model, what it cost, and what it can do. Accuracies and F1 are in [0, 1].

    Attributes:
        name: The recipe.
        seed: None where nothing is random.
        choice: What was chosen on the validation examples in this run, if anything.
        num_parameters: Trained numbers.
        training_seconds: Spent in updates, without evaluations; for a baseline, in fitting.
        prediction_seconds: For all test texts, tokenizing included.
        num_tested: How many they are.
        validation_accuracy: Fraction of validation texts with the right class.
        test_accuracy: The same for test texts.
        test_macro_f1: See :func:`~glassformer.training.classification.scores`.
        test_loss: In nats.
        test_calibration_error: With 15 bins.
    """

    name: str
    seed: int | None
    choice: str
    num_parameters: int
    training_seconds: float
    prediction_seconds: float
    num_tested: int
    validation_accuracy: float
    test_accuracy: float
    test_macro_f1: float
    test_loss: float
    test_calibration_error: float


def measure(
    name: str,
    seed: int | None,
    data: SentimentData,
    probabilities: Callable[[Sequence[str]], Float[Tensor, "text num_classes"]],
    *,
    num_parameters: int,
    training_seconds: float,
    validation_accuracy: float,
    choice: str = "",
) -> Measured:
    """The row of a trained model: it predicts the test texts, once, and is timed.

    Args:
        name: As in the row, like the others.
        seed: See there.
        data: Its test part is predicted.
        probabilities: Of each class, from texts.
        num_parameters: See there.
        training_seconds: See there.
        validation_accuracy: Measured already, since something may have been chosen by it.
        choice: See there.
    """
    begun = time.perf_counter()
    predicted = probabilities([example.text for example in data.test])
    seconds = time.perf_counter() - begun
    test = scores(predicted, torch.tensor([example.label for example in data.test]))
    return Measured(
        name=name,
        seed=seed,
        choice=choice,
        num_parameters=num_parameters,
        training_seconds=training_seconds,
        prediction_seconds=seconds,
        num_tested=len(data.test),
        validation_accuracy=validation_accuracy,
        test_accuracy=test["accuracy"],
        test_macro_f1=test["macro_f1"],
        test_loss=test["loss"],
        test_calibration_error=test["calibration_error"],
    )


def median_row(rows: Sequence[Measured]) -> Measured:
    """The row of the median test accuracy among seeds; of an even number, the lower one in the middle.

    Raises:
        InputError: No rows, or rows of different recipes.
    """
    names = sorted({row.name for row in rows})
    require(len(names) == 1, f"rows of {names}", "at least one row, all of one recipe", "Pass one recipe's rows.")
    return sorted(rows, key=lambda row: row.test_accuracy)[(len(rows) - 1) // 2]


def table(rows: Sequence[Measured]) -> str:
    """The rows as a Markdown table; for each recipe of several seeds the row of the median test accuracy, with the
    medians of the times, which have nothing to do with it."""
    lines = ["| " + " | ".join(_COLUMNS) + " |", "|" + "---|" * len(_COLUMNS)]
    for name in dict.fromkeys(row.name for row in rows):
        group = [row for row in rows if row.name == name]
        lines += [_line(row, "-" if row.seed is None else str(row.seed)) for row in group]
        if len(group) > 1:
            times = {
                field: statistics.median(getattr(row, field) for row in group)
                for field in ("training_seconds", "prediction_seconds")
            }
            lines.append(_line(dataclasses.replace(median_row(group), **times), "median"))
    return "\n".join(lines) + "\n"


def _line(row: Measured, seed: str) -> str:
    name = f"{row.name}, {row.choice}" if row.choice else row.name
    cells = (
        name,
        seed,
        f"{row.num_parameters:,}",
        f"{row.training_seconds:.1f} s",
        f"{row.prediction_seconds:.2f} s",
        f"{100 * row.validation_accuracy:.1f} %",
        f"{100 * row.test_accuracy:.1f} %",
        f"{row.test_macro_f1:.3f}",
        f"{row.test_loss:.3f}",
        f"{row.test_calibration_error:.3f}",
    )
    return "| " + " | ".join(cells) + " |"
