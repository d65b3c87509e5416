"""What padding does to predictions: the course's way, which sees it, beside the way that leaves it out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import nn

from glassformer.data.batches import pad
from glassformer.data.examples import Example, split_by_text
from glassformer.data.sentiment import reviews
from glassformer.data.tokenizer import PAD_ID
from glassformer.errors import InputError, require
from glassformer.labs.sentiment.leak import COURSE_EPOCHS, COURSE_LENGTH, HELD_OUT, SeesPadding, train_course

Way = Literal["seen", "left out"]
"""Padding is attended to and averaged over, as in the course; or neither."""

LENGTHS = (16, 32, 64, 128)
_BATCH = 8


@dataclass(frozen=True)
class FilledUp:
    """The same texts, filled up to one length, against themselves without any padding.

    Attributes:
        length: Tokens and padding together.
        largest_change: Of the probability of "positive", over texts; in [0, 1].
        mean_change: The mean of its absolute value.
        flipped: The share of texts that are now given the other class.
        accuracy: The share that is given its own class.
    """

    length: int
    largest_change: float
    mean_change: float
    flipped: float
    accuracy: float


@dataclass(frozen=True)
class PaddingRun:
    """One model, trained and read in one way on rows of 32.

    Attributes:
        way: What is done with padding, in training as in prediction: "seen" or "left out".
        seed: Of the split and the training.
        validation_accuracy: On all held-out texts, filled up as in training.
        unpadded_accuracy: On those texts that fit the shortest length, without padding.
        filled: On the same ones, for each length.
        order_change: The largest change of a probability when all held-out texts come in another order, in batches of
            8 that are filled up to their longest text: in the given order against a random one.
    """

    way: str
    seed: int
    validation_accuracy: float
    unpadded_accuracy: float
    filled: list[FilledUp]
    order_change: float


@dataclass(frozen=True)
class PaddingResult:
    """Both ways, over seeds.

    Attributes:
        trained_length: What rows were filled up to in training.
        num_trained: Training texts.
        num_validated: Held-out texts.
        num_compared: How many of them fit the shortest length, with the first seed.
        runs: All of "seen", then all of "left out".
    """

    trained_length: int
    num_trained: int
    num_validated: int
    num_compared: int
    runs: list[PaddingRun]

    def of(self, way: Way) -> list[PaddingRun]:
        """The runs of one way."""
        return [run for run in self.runs if run.way == way]

    def largest_change(self, way: Way) -> float:
        """Over seeds, lengths and texts."""
        return max(filled.largest_change for run in self.of(way) for filled in run.filled)


def measure_padding(
    seeds: Sequence[int] = (0, 1, 2),
    lengths: Sequence[int] = LENGTHS,
    epochs: int = COURSE_EPOCHS,
    examples: Sequence[Example] | None = None,
) -> PaddingResult:
    """Train the course's model in both ways, and change nothing but how far its texts are filled up.

    Args:
        seeds: For each, a split by text (a fifth is held out) and one training in each way.
        lengths: What texts are filled up to, in rising order.
        epochs: Passes over the training texts.
        examples: The texts; None: :func:`~glassformer.data.sentiment.reviews`.

    Raises:
        InputError: No seeds, lengths that do not rise, or no held-out text that fits the first of them.
    """
    require(len(seeds) > 0, "no seeds", "at least one", "Pass (0,), for example.")
    require(
        len(lengths) > 0 and list(lengths) == sorted(set(lengths)),
        f"lengths = {tuple(lengths)}",
        "at least one, in rising order",
        "Pass (16, 32), for example.",
    )
    examples = reviews() if examples is None else examples
    found, sizes = [], []
    for way in get_args(Way):
        for seed in seeds:
            train, held_out = split_by_text(examples, (1 - HELD_OUT, HELD_OUT), seed)
            run, compared = _run(way, train, held_out, seed, epochs, lengths)
            found.append(run)
            sizes.append((len(train), len(held_out), compared))
    return PaddingResult(COURSE_LENGTH, *sizes[0], found)


def _run(
    way: Way, train: Sequence[Example], held_out: Sequence[Example], seed: int, epochs: int, lengths: Sequence[int]
) -> tuple[PaddingRun, int]:
    model, tokenizer, history = train_course(
        train, held_out, seed, epochs, sees_padding=way == "seen", max_length=max(*lengths, COURSE_LENGTH)
    )
    network = SeesPadding(model).eval() if way == "seen" else model.encoder
    rows = [tokenizer.words.encode(example.text, COURSE_LENGTH) for example in held_out]
    short = [index for index, row in enumerate(rows) if len(row) <= lengths[0]]
    if not short:
        raise InputError(
            f"held-out texts of at least {min(map(len, rows))} tokens with lengths[0] = {lengths[0]}",
            "a text that fits",
            "Pass larger lengths.",
        )
    chosen, labels = [rows[index] for index in short], np.array([held_out[index].label for index in short])
    alone = np.concatenate([_positive(network, [row]) for row in chosen])
    filled = []
    for length in lengths:
        probability = _positive(network, chosen, length)
        change = np.abs(probability - alone)
        filled.append(
            FilledUp(
                length=length,
                largest_change=float(change.max()),
                mean_change=float(change.mean()),
                flipped=float(((probability > 0.5) != (alone > 0.5)).mean()),
                accuracy=float(((probability > 0.5) == labels).mean()),
            )
        )
    run = PaddingRun(
        way=way,
        seed=seed,
        validation_accuracy=history["val_acc"][-1] / 100,
        unpadded_accuracy=float(((alone > 0.5) == labels).mean()),
        filled=filled,
        order_change=_order_change(network, rows, seed),
    )
    return run, len(short)


def _order_change(network: nn.Module, rows: Sequence[list[int]], seed: int) -> float:
    orders = [np.arange(len(rows)), np.random.default_rng(seed).permutation(len(rows))]
    both = np.empty((2, len(rows)))
    for found, order in zip(both, orders, strict=True):
        for start in range(0, len(order), _BATCH):
            batch = order[start : start + _BATCH]
            found[batch] = _positive(network, [rows[index] for index in batch])
    return float(np.abs(both[0] - both[1]).max())


@torch.inference_mode()
def _positive(network: nn.Module, rows: Sequence[list[int]], length: int | None = None) -> Float[np.ndarray, " text"]:
    """The probability of the last class, of texts in one batch."""
    tokens, _ = pad(rows, PAD_ID, length)
    return network(tokens).double().softmax(-1)[:, -1].numpy()
