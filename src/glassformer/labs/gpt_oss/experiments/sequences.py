"""The lab's sequences, and the accuracy of the Bayes-optimal predictor on them."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from glassformer.data import recurrence
from glassformer.data.bayes import optimal_accuracy, optimal_predictions
from glassformer.data.recurrence import (
    Generators,
    RecurrenceBatch,
    RecurrenceConfig,
    RecurrenceSplit,
)
from glassformer.labs.run import Run
from glassformer.labs.wording import mean
from glassformer.training import mix_seed

DATA = RecurrenceConfig(order=2, vocab_size=7, next_prob=0.1, seq_len=64)
"""The course's sequences."""


@dataclass(frozen=True)
class Optimum:
    """Accuracy of the Bayes-optimal predictor, measured on the same sequences as the models."""

    num_test: int
    num_measured: int
    test: float
    """Accuracy on the test sequences."""
    by_position: list[float]
    """Accuracy by position on the measured sequences."""
    without_runs: list[float]
    """Accuracy by position of a predictor that cannot tell a first token from a run of it."""

    @property
    def mean(self) -> float:
        """Mean accuracy over all positions."""
        return mean(self.by_position)

    def gap(self, by_position: list[float], start: int = 0, stop: int | None = None) -> float:
        """Return the part of the mean accuracy that is lost from ``start`` to ``stop - 1``."""
        lost = [best - reached for best, reached in zip(self.by_position, by_position, strict=True)]
        return sum(lost[start:stop]) / len(lost)


def split_of(run: Run) -> RecurrenceSplit:
    """Return training sequences, and test sequences whose generators are held out."""
    return recurrence.make_split(
        DATA, num_train=run.settings.num_train, num_test=run.settings.num_test, seed=run.seed
    )


def measured_of(run: Run) -> RecurrenceBatch:
    """Draw new sequences of the held-out generators, in turn."""
    held_out = split_of(run).test.generators
    rows = torch.arange(run.settings.num_measured) % len(held_out)
    generators = Generators(held_out.initial[rows], held_out.coefficients[rows])
    rng = np.random.default_rng(mix_seed(run.seed, 1))
    return RecurrenceBatch(recurrence.sample_sequences(DATA, generators, rng), generators)


def measure(run: Run) -> Optimum:
    """Measure the optimum on test and measured sequences, and without recognising runs."""
    test = split_of(run).test
    tokens = measured_of(run).tokens
    return Optimum(
        num_test=len(test.tokens),
        num_measured=len(tokens),
        test=float(optimal_accuracy(test.tokens, DATA).measured.mean()),
        by_position=optimal_accuracy(tokens, DATA).measured.tolist(),
        without_runs=_without_runs(tokens).tolist(),
    )


def _without_runs(tokens: Tensor) -> Tensor:
    """Return the best accuracy with the same prediction after ``a``, ``a a``, ``a a a``, ..."""
    inputs = tokens[:, :-1]
    targets = tokens[:, 1:]
    predictions = optimal_predictions(inputs, DATA)
    best = predictions.argmax(dim=-1)
    in_first_run = (inputs == inputs[:, :1]).long().cumprod(dim=1).bool()
    for token in range(DATA.vocab_size):
        places = in_first_run & (inputs == token)
        best[places] = predictions[places].sum(dim=0).argmax()
    return (best == targets).double().mean(dim=0)


def batches(tokens: Tensor, size: int = 250) -> list[tuple[Tensor, Tensor]]:
    """Split ``tokens`` [sequence, seq_len + 1] into pairs (tokens, next tokens)."""
    return [(part[:, :-1], part[:, 1:]) for part in tokens.split(size)]
