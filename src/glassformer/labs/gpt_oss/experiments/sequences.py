"""The sequences of the lab, and the highest accuracy that any model can expect on them."""

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
    """Accuracy of the Bayes-optimal predictor, counted on the same sequences as the models."""

    num_test: int
    num_measured: int
    test: float
    by_position: list[float]  # on the measured sequences
    without_runs: list[float]  # of a reader who cannot tell a first token from a run of it

    @property
    def mean(self) -> float:
        """Over all positions."""
        return mean(self.by_position)

    def gap(self, by_position: list[float], start: int = 0, stop: int | None = None) -> float:
        """What is lost at positions ``start`` ... ``stop - 1``, as a part of the mean over all
        positions.
        """
        lost = [best - reached for best, reached in zip(self.by_position, by_position, strict=True)]
        return sum(lost[start:stop]) / len(lost)


def split_of(run: Run) -> RecurrenceSplit:
    """Training sequences, and test sequences whose generators are held out."""
    return recurrence.make_split(
        DATA, num_train=run.settings.num_train, num_test=run.settings.num_test, seed=run.seed
    )


def measured_of(run: Run) -> RecurrenceBatch:
    """New sequences of the held-out generators, each generator as often as among the test
    sequences.
    """
    held_out = split_of(run).test.generators
    rows = torch.arange(run.settings.num_measured) % len(held_out)
    generators = Generators(held_out.initial[rows], held_out.coefficients[rows])
    rng = np.random.default_rng(mix_seed(run.seed, 1))
    return RecurrenceBatch(recurrence.sample_sequences(DATA, generators, rng), generators)


def measure(run: Run) -> Optimum:
    """The optimum on test and measured sequences, and without telling runs from first tokens."""
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
    """Accuracy of the optimal reader whose prediction after ``a`` is the one after ``a a``, ``a a
    a``, ...
    """
    inputs = tokens[:, :-1]
    targets = tokens[:, 1:]
    predictions = optimal_predictions(inputs, DATA)
    best = predictions.argmax(dim=-1)
    run = (inputs == inputs[:, :1]).long().cumprod(dim=1).bool()
    for token in range(DATA.vocab_size):
        here = run & (inputs == token)
        best[here] = predictions[here].sum(dim=0).argmax()
    return (best == targets).double().mean(dim=0)


def batches(tokens: Tensor, size: int = 250) -> list[tuple[Tensor, Tensor]]:
    """``tokens`` [sequence, seq_len + 1] as pairs (tokens, next tokens)."""
    return [(part[:, :-1], part[:, 1:]) for part in tokens.split(size)]
