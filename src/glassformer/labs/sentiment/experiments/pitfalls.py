"""Two faults that raise no error: a random split of repeated texts, and padding seen as text.

:class:`LeakResult` compares a random split of a toy set in the course's form with a split by text.
:class:`PaddingResult` compares the course's model, which attends to padding and averages over it,
with a model that leaves padding out.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from sklearn.model_selection import train_test_split
from torch import nn

from glassformer.data.batches import pad
from glassformer.data.examples import Example, leaked, normalized, split_by_text
from glassformer.data.sentiment import leaky_examples
from glassformer.data.tokenizer import PAD_ID
from glassformer.figures.style import BLACK, LINES, in_style, new_figure
from glassformer.labs.sentiment.experiments.mini_transformer import (
    COURSE_EPOCHS,
    COURSE_LENGTH,
    SPLIT,
    SeesPadding,
    plain_reviews,
    train_course,
)
from glassformer.labs.sentiment.experiments.recipes import COURSE_TFIDF
from glassformer.labs.sentiment.tfidf import TfidfClassifier

Way = Literal["seen", "left out"]


@dataclass(frozen=True)
class LeakRun:
    """A split, with two models' accuracies in [0, 1] on its validation examples."""

    num_validated: int
    num_seen: int
    """Number of validation examples whose text is also a training text."""
    transformer: float
    tfidf: float


@dataclass(frozen=True)
class LeakResult:
    """Runs on the same examples, split at random ("leaky") and by text ("clean")."""

    num_examples: int
    num_texts: int
    epochs: int
    leaky: list[LeakRun]
    clean: list[LeakRun]
    histories: dict[str, dict[str, list[float]]]
    """Histories of the first seed, by split."""

    def accuracies(self, split: str, model: str) -> list[float]:
        """Return the accuracies of "transformer" or "tfidf", one for each seed."""
        return [getattr(run, model) for run in getattr(self, split)]

    def mean(self, split: str, model: str) -> float:
        """Return the mean accuracy over seeds."""
        return statistics.fmean(self.accuracies(split, model))

    def error(self, split: str, model: str) -> float:
        """Return the standard error of the mean accuracy; needs at least two seeds."""
        return statistics.stdev(self.accuracies(split, model)) / len(self.leaky) ** 0.5


def measure_leak(seeds: Sequence[int], epochs: int = COURSE_EPOCHS) -> LeakResult:
    """Train with one split of each kind for each seed; a fifth of the examples is for validation.

    Each of 20 texts has ten copies: a random split leaves a text out of training with a probability
    below ``0.2 ** 10``. A split by text holds out 4 texts, so that its accuracies are multiples of
    a quarter; only the mean over seeds is meaningful.
    """
    examples = leaky_examples()
    labels = [example.label for example in examples]
    runs: dict[str, list[LeakRun]] = {"leaky": [], "clean": []}
    histories: dict[str, dict[str, list[float]]] = {}
    for seed in seeds:
        splits = {
            "leaky": train_test_split(examples, test_size=0.2, random_state=seed, stratify=labels),
            "clean": split_by_text(examples, SPLIT, seed),
        }
        for name, (train, held_out) in splits.items():
            history = train_course(train, held_out, seed, epochs).history
            histories.setdefault(name, history)
            accuracy = history["val_acc"][-1] / 100
            tfidf = _tfidf_accuracy(train, held_out)
            num_seen = len(leaked(train, held_out))
            runs[name].append(LeakRun(len(held_out), num_seen, accuracy, tfidf))
    num_texts = len({normalized(example.text) for example in examples})
    return LeakResult(len(examples), num_texts, epochs, **runs, histories=histories)


def _tfidf_accuracy(train: Sequence[Example], held_out: Sequence[Example]) -> float:
    classifier = TfidfClassifier(train, COURSE_TFIDF)
    probabilities = classifier.probabilities([example.text for example in held_out])
    labels = [example.label for example in held_out]
    return float((probabilities.argmax(1) == labels).mean())


@in_style
def draw_leak(leak: LeakResult) -> Figure:
    """Draw the validation accuracies of all splits, and the losses of one training of each kind."""
    figure, (accuracies, losses) = new_figure(11, 4, columns=2)
    columns = product(("leaky", "clean"), ("transformer", "tfidf"))
    for place, (name, model) in enumerate(columns):
        look = LINES[int(name == "clean")]
        values = 100 * np.array(leak.accuracies(name, model))
        # Side by side, so that runs of equal accuracy do not overlap.
        offsets = np.zeros(1)
        if len(values) > 1:
            offsets = np.linspace(-0.28, 0.28, len(values))
        accuracies.plot(
            place + offsets, values, linestyle="none", color=look["color"], marker=look["marker"]
        )
        accuracies.hlines(values.mean(), place - 0.36, place + 0.36, color=BLACK, linewidth=1.6)
    accuracies.axhline(50, color="grey", linewidth=0.8, linestyle=":")
    splits = ("random split", "split by text")
    models = ("MiniTransformer", "TF-IDF")
    labels = [f"{name},\n{model}" for name, model in product(splits, models)]
    accuracies.set_xticks(range(4), labels, fontsize=9)
    accuracies.set(
        title="Validation accuracy by seed; black: mean, dotted: chance", ylabel="%", ylim=(-4, 104)
    )
    for look, history, name in zip(LINES, leak.histories.values(), splits, strict=False):
        epochs = range(1, leak.epochs + 1)
        losses.plot(epochs, history["val_loss"], **look, label=f"{name}: validation")
        losses.plot(
            epochs, history["train_loss"], **look, alpha=0.45, lw=1.0, label=f"{name}: training"
        )
    losses.set(title="Loss of the MiniTransformer, first seed", xlabel="epoch", ylabel="nats")
    losses.locator_params(axis="x", integer=True)
    losses.legend(fontsize=8)
    return figure


@dataclass(frozen=True)
class Padded:
    """Changes of predictions when texts are padded to ``length`` instead of not padded."""

    length: int
    largest_change: float
    """Largest change of the probability of a positive verdict."""
    flipped: float
    """Share of texts whose class changes."""


@dataclass(frozen=True)
class PaddingRun:
    """A model that is trained on rows of 32 tokens, and read, with padding seen or left out."""

    way: str
    num_validated: int
    num_compared: int
    """Number of validation texts that fit the shortest length."""
    validation_accuracy: float
    """Accuracy on all validation texts, padded as in training."""
    padded: list[Padded]
    order_change: float
    """Largest change of a probability between two orders of the texts, in batches of 8."""


@dataclass(frozen=True)
class PaddingResult:
    """Runs with padding seen and with padding left out, over seeds."""

    trained_length: int
    runs: list[PaddingRun]

    def of(self, way: Way) -> list[PaddingRun]:
        """Return the runs with padding "seen" or "left out"."""
        return [run for run in self.runs if run.way == way]

    def largest_change(self, way: Way) -> float:
        """Return the largest change over seeds, lengths and texts."""
        changes = chain.from_iterable(run.padded for run in self.of(way))
        return max(change.largest_change for change in changes)


def measure_padding(
    seeds: Sequence[int], epochs: int = COURSE_EPOCHS, lengths: Sequence[int] = (16, 32, 64, 128)
) -> PaddingResult:
    """Train with padding seen and left out, then vary only the padding of held-out texts.

    Each seed has a split of the plain reviews by text, and a training of each kind. ``lengths``
    must rise.
    """
    pairs = product(get_args(Way), seeds)
    return PaddingResult(COURSE_LENGTH, [_run(way, seed, epochs, lengths) for way, seed in pairs])


def _run(way: Way, seed: int, epochs: int, lengths: Sequence[int]) -> PaddingRun:
    seen = way == "seen"
    train, held_out = split_by_text(plain_reviews(), SPLIT, seed)
    longest = max(*lengths, COURSE_LENGTH)
    model, tokenizer, history = train_course(
        train, held_out, seed, epochs, sees_padding=seen, max_length=longest
    )
    network = SeesPadding(model).eval() if seen else model.encoder
    rows = [tokenizer.words.encode(example.text, COURSE_LENGTH) for example in held_out]
    short_rows = [row for row in rows if len(row) <= lengths[0]]
    unpadded = np.concatenate([_positive(network, [row]) for row in short_rows])
    padded = []
    for length in lengths:
        probabilities = _positive(network, short_rows, length)
        largest_change = float(np.abs(probabilities - unpadded).max())
        flipped = float(((probabilities > 0.5) != (unpadded > 0.5)).mean())
        padded.append(Padded(length, largest_change, flipped))
    accuracy = history["val_acc"][-1] / 100
    order_change = _order_change(network, rows, seed)
    return PaddingRun(way, len(held_out), len(short_rows), accuracy, padded, order_change)


def _order_change(network: nn.Module, rows: Sequence[list[int]], seed: int) -> float:
    """Compare the original order with a random one; each batch is padded to its longest text."""
    orders = [np.arange(len(rows)), np.random.default_rng(seed).permutation(len(rows))]
    probabilities = np.empty((2, len(rows)))
    for row, order in zip(probabilities, orders, strict=True):
        for start in range(0, len(order), 8):
            batch = order[start : start + 8]
            row[batch] = _positive(network, [rows[index] for index in batch])
    return float(np.abs(probabilities[0] - probabilities[1]).max())


@torch.inference_mode()
def _positive(
    network: nn.Module, rows: Sequence[list[int]], length: int | None = None
) -> Float[np.ndarray, " text"]:
    """Return the probabilities of the positive class for a batch of texts."""
    tokens, _ = pad(rows, PAD_ID, length)
    return network(tokens).double().softmax(-1)[:, -1].numpy()
