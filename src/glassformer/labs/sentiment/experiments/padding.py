"""What padding does to predictions: attended to and averaged over, as in the course, against left out of both."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import nn

from glassformer.data.batches import pad
from glassformer.data.examples import split_by_text
from glassformer.data.tokenizer import PAD_ID
from glassformer.labs.sentiment.experiments.mini_transformer import (
    COURSE_EPOCHS,
    COURSE_LENGTH,
    SPLIT,
    SeesPadding,
    plain_reviews,
    train_course,
)

Way = Literal["seen", "left out"]


@dataclass(frozen=True)
class Padded:
    """The same texts, padded to one length, against themselves without padding."""

    length: int
    largest_change: float  # of the probability of praise
    flipped: float  # the share of texts whose class changes
    accuracy: float


@dataclass(frozen=True)
class PaddingRun:
    """One model, trained in one way on rows of 32 and read in the same way."""

    way: str
    seed: int
    num_validated: int
    num_compared: int  # validation texts that fit the shortest length
    validation_accuracy: float  # on all validation texts, padded as in training
    padded: list[Padded]
    order_change: float  # the largest change of a probability between two orders of the texts, in batches of 8


@dataclass(frozen=True)
class PaddingResult:
    """Both ways, over seeds."""

    trained_length: int
    runs: list[PaddingRun]

    def of(self, way: Way) -> list[PaddingRun]:
        """The runs of one way."""
        return [run for run in self.runs if run.way == way]

    def largest_change(self, way: Way) -> float:
        """Over seeds, lengths and texts."""
        return max(padded.largest_change for run in self.of(way) for padded in run.padded)

    def mean(self, way: Way, what: Literal["flipped", "accuracy"]) -> dict[int, float]:
        """Over seeds, for each length."""
        by_length = zip(*(run.padded for run in self.of(way)), strict=True)
        return {same[0].length: statistics.fmean(getattr(each, what) for each in same) for same in by_length}


def measure_padding(
    seeds: Sequence[int], epochs: int = COURSE_EPOCHS, lengths: Sequence[int] = (16, 32, 64, 128)
) -> PaddingResult:
    """Train in both ways on the plain reviews, and change nothing but how far the held-out texts are padded.

    For each seed, a split by text and one training in each way. ``lengths`` rise.
    """
    return PaddingResult(COURSE_LENGTH, [_run(way, seed, epochs, lengths) for way in get_args(Way) for seed in seeds])


def _run(way: Way, seed: int, epochs: int, lengths: Sequence[int]) -> PaddingRun:
    seen = way == "seen"
    train, held_out = split_by_text(plain_reviews(), SPLIT, seed)
    longest = max(*lengths, COURSE_LENGTH)
    model, tokenizer, history = train_course(train, held_out, seed, epochs, sees_padding=seen, max_length=longest)
    network = SeesPadding(model).eval() if seen else model.encoder
    rows = [tokenizer.words.encode(example.text, COURSE_LENGTH) for example in held_out]
    short = [index for index, row in enumerate(rows) if len(row) <= lengths[0]]
    chosen, labels = [rows[index] for index in short], np.array([held_out[index].label for index in short])
    alone = np.concatenate([_positive(network, [row]) for row in chosen])
    padded = []
    for length in lengths:
        found = _positive(network, chosen, length)
        flipped, right = ((found > 0.5) != (alone > 0.5)).mean(), ((found > 0.5) == labels).mean()
        padded.append(Padded(length, float(np.abs(found - alone).max()), float(flipped), float(right)))
    accuracy, order_change = history["val_acc"][-1] / 100, _order_change(network, rows, seed)
    return PaddingRun(way, seed, len(held_out), len(short), accuracy, padded, order_change)


def _order_change(network: nn.Module, rows: Sequence[list[int]], seed: int) -> float:
    """The given order against a random one, each batch padded to its longest text."""
    orders = [np.arange(len(rows)), np.random.default_rng(seed).permutation(len(rows))]
    both = np.empty((2, len(rows)))
    for found, order in zip(both, orders, strict=True):
        for start in range(0, len(order), 8):
            batch = order[start : start + 8]
            found[batch] = _positive(network, [rows[index] for index in batch])
    return float(np.abs(both[0] - both[1]).max())


@torch.inference_mode()
def _positive(network: nn.Module, rows: Sequence[list[int]], length: int | None = None) -> Float[np.ndarray, " text"]:
    """The probability of praise, of texts in one batch."""
    tokens, _ = pad(rows, PAD_ID, length)
    return network(tokens).double().softmax(-1)[:, -1].numpy()
