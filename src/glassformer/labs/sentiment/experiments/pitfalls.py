"""Two faults that raise no error: a random split where texts repeat, and padding that is seen as if
it were text.

:class:`LeakResult` compares a random split of a toy set in the course's form with one by text;
:class:`PaddingResult` compares padding that is attended to and averaged over, as in the course,
with padding left out of both.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from sklearn.model_selection import train_test_split
from torch import nn

from glassformer.data.batches import pad
from glassformer.data.examples import leaked, normalized, split_by_text
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
    """One split; accuracies on its validation examples, in [0, 1]."""

    num_validated: int
    num_seen: int  # of the validation examples, those whose text was trained on
    transformer: float
    tfidf: float


@dataclass(frozen=True)
class LeakResult:
    """The same examples, split at random ("leaky") and by text ("clean"); ``histories`` are those
    of the first seed.
    """

    num_examples: int
    num_texts: int
    epochs: int
    leaky: list[LeakRun]
    clean: list[LeakRun]
    histories: dict[str, dict[str, list[float]]]

    def accuracies(self, split: str, model: str) -> list[float]:
        """Of "transformer" or "tfidf", one for each seed."""
        return [getattr(run, model) for run in getattr(self, split)]

    def mean(self, split: str, model: str) -> float:
        """Over seeds."""
        return statistics.fmean(self.accuracies(split, model))

    def error(self, split: str, model: str) -> float:
        """The standard error of that mean; at least two seeds."""
        return statistics.stdev(self.accuracies(split, model)) / len(self.leaky) ** 0.5


def measure_leak(seeds: Sequence[int], epochs: int = COURSE_EPOCHS) -> LeakResult:
    """Train with one split of each kind for each seed, a fifth validated on.

    With ten copies of each of 20 texts, a random split leaves a text out of training with a
    probability below ``0.2 ** 10``. By text, 4 of the 20 are held out, so that one split gives
    accuracies in quarters; only the mean over seeds says something.
    """
    examples = leaky_examples()
    labels = [example.label for example in examples]
    runs: dict[str, list[LeakRun]] = {"leaky": [], "clean": []}
    histories: dict[str, dict[str, list[float]]] = {}
    for seed in seeds:
        random = train_test_split(examples, test_size=0.2, random_state=seed, stratify=labels)
        for name, (train, held_out) in (
            ("leaky", random),
            ("clean", split_by_text(examples, SPLIT, seed)),
        ):
            history = train_course(train, held_out, seed, epochs).history
            histories.setdefault(name, history)
            counted = (
                TfidfClassifier(train, COURSE_TFIDF)
                .probabilities([each.text for each in held_out])
                .argmax(1)
            )
            tfidf = float((counted == [each.label for each in held_out]).mean())
            num_seen = len(leaked(train, held_out))
            accuracy = history["val_acc"][-1] / 100
            runs[name].append(LeakRun(len(held_out), num_seen, accuracy, tfidf))
    num_texts = len({normalized(example.text) for example in examples})
    return LeakResult(len(examples), num_texts, epochs, **runs, histories=histories)


@in_style
def draw_leak(leak: LeakResult) -> Figure:
    """Validation accuracy of every split, with the leak and without it, and the losses of one
    training of each.
    """
    figure, (accuracies, losses) = new_figure(11, 4, columns=2)
    columns = [(name, model) for name in ("leaky", "clean") for model in ("transformer", "tfidf")]
    for place, (name, model) in enumerate(columns):
        look = LINES[int(name == "clean")]
        values = 100 * np.array(leak.accuracies(name, model))
        # Runs of equal accuracy stand side by side.
        if len(values) > 1:
            offsets = np.linspace(-0.28, 0.28, len(values))
        else:
            offsets = np.zeros(1)
        accuracies.plot(
            place + offsets, values, linestyle="none", color=look["color"], marker=look["marker"]
        )
        accuracies.hlines(values.mean(), place - 0.36, place + 0.36, color=BLACK, linewidth=1.6)
    accuracies.axhline(50, color="grey", linewidth=0.8, linestyle=":")
    splits = ("random split", "split by text")
    models = ("MiniTransformer", "TF-IDF")
    accuracies.set_xticks(
        range(4), [f"{name},\n{model}" for name in splits for model in models], fontsize=9
    )
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
    """The same texts, padded to one length, against themselves without padding."""

    length: int
    largest_change: float  # of the probability of praise
    flipped: float  # the share of texts whose class changes


@dataclass(frozen=True)
class PaddingRun:
    """One model, trained in one way on rows of 32 and read in the same way."""

    way: str
    num_validated: int
    num_compared: int  # validation texts that fit the shortest length
    validation_accuracy: float  # on all validation texts, padded as in training
    padded: list[Padded]
    # the largest change of a probability between two orders of the texts, in batches of 8
    order_change: float


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


def measure_padding(
    seeds: Sequence[int], epochs: int = COURSE_EPOCHS, lengths: Sequence[int] = (16, 32, 64, 128)
) -> PaddingResult:
    """Train in both ways on the plain reviews, and change nothing but how far the held-out texts
    are padded.

    For each seed, a split by text and one training in each way. ``lengths`` rise.
    """
    return PaddingResult(
        COURSE_LENGTH, [_run(way, seed, epochs, lengths) for way in get_args(Way) for seed in seeds]
    )


def _run(way: Way, seed: int, epochs: int, lengths: Sequence[int]) -> PaddingRun:
    seen = way == "seen"
    train, held_out = split_by_text(plain_reviews(), SPLIT, seed)
    longest = max(*lengths, COURSE_LENGTH)
    model, tokenizer, history = train_course(
        train, held_out, seed, epochs, sees_padding=seen, max_length=longest
    )
    network = SeesPadding(model).eval() if seen else model.encoder
    rows = [tokenizer.words.encode(example.text, COURSE_LENGTH) for example in held_out]
    short = [index for index, row in enumerate(rows) if len(row) <= lengths[0]]
    chosen = [rows[index] for index in short]
    alone = np.concatenate([_positive(network, [row]) for row in chosen])
    padded = []
    for length in lengths:
        found = _positive(network, chosen, length)
        flipped = ((found > 0.5) != (alone > 0.5)).mean()
        padded.append(Padded(length, float(np.abs(found - alone).max()), float(flipped)))
    accuracy = history["val_acc"][-1] / 100
    order_change = _order_change(network, rows, seed)
    return PaddingRun(way, len(held_out), len(short), accuracy, padded, order_change)


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
def _positive(
    network: nn.Module, rows: Sequence[list[int]], length: int | None = None
) -> Float[np.ndarray, " text"]:
    """The probability of praise, of texts in one batch."""
    tokens, _ = pad(rows, PAD_ID, length)
    return network(tokens).double().softmax(-1)[:, -1].numpy()
