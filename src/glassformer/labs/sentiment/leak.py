"""What a random split hides where texts repeat: the course's toy set, with validated texts trained on and without."""

from __future__ import annotations

import contextlib
import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

import torch
from jaxtyping import Float, Int
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from glassformer.data.examples import CLASSES, Example, leaked, normalized, split_by_text
from glassformer.data.sentiment import leaky_examples
from glassformer.errors import require
from glassformer.labs.loaders import History
from glassformer.labs.sentiment.baselines import COURSE_TFIDF, TfidfClassifier
from glassformer.labs.sentiment.course import MiniTransformer
from glassformer.labs.sentiment.course_training import SentimentDataset, SimpleTokenizer, train_transformer

COURSE_MODEL: dict[str, Any] = {"d_model": 64, "num_heads": 8, "num_layers": 2, "d_ff": 256, "dropout": 0.1}
COURSE_LENGTH, COURSE_VOCABULARY = 32, 500
COURSE_EPOCHS, COURSE_BATCH, COURSE_RATE = 10, 16, 1e-3
"""The course's settings."""

HELD_OUT = 0.2


class CourseTraining(NamedTuple):
    """A model that was trained as in the course, ready to predict; its tokenizer; its numbers after each epoch."""

    model: MiniTransformer
    tokenizer: SimpleTokenizer
    history: History


@dataclass(frozen=True)
class LeakRun:
    """One split.

    Attributes:
        seed: Of the split, the weights and the order of batches.
        num_trained: Training examples.
        num_validated: Validation examples.
        num_seen: Of these, how many have a text that was trained on.
        transformer: The MiniTransformer's validation accuracy after the last epoch, in [0, 1].
        tfidf: That of TF-IDF with logistic regression.
    """

    seed: int
    num_trained: int
    num_validated: int
    num_seen: int
    transformer: float
    tfidf: float


@dataclass(frozen=True)
class LeakResult:
    """The same examples, split in two ways.

    Attributes:
        num_examples: How many there are.
        num_texts: How many of their texts are different.
        epochs: Passes over the training examples.
        leaky: Split at random, one run for each seed.
        clean: Split so that no validated text was trained on.
        leaky_history: The first seed's training, as the course's loop records it: losses in nats and accuracies in
            percent, one number an epoch, under ``train_loss``, ``train_acc``, ``val_loss`` and ``val_acc``.
        clean_history: The same for the other split.
    """

    num_examples: int
    num_texts: int
    epochs: int
    leaky: list[LeakRun]
    clean: list[LeakRun]
    leaky_history: dict[str, list[float]]
    clean_history: dict[str, list[float]]

    def mean(self, split: Literal["leaky", "clean"], model: Literal["transformer", "tfidf"]) -> float:
        """The mean accuracy over seeds, in [0, 1]."""
        return statistics.fmean(getattr(run, model) for run in getattr(self, split))


class SeesPadding(nn.Module):
    """A MiniTransformer as the course runs it: padding is attended to, and is part of the mean.

    Args:
        model: Whose weights it uses; training one trains the other.
    """

    def __init__(self, model: MiniTransformer) -> None:
        super().__init__()
        self.encoder = model.encoder

    def forward(self, input_ids: Int[Tensor, "batch position"]) -> Float[Tensor, "batch num_classes"]:
        """Scores of the classes, before softmax."""
        return self.encoder(input_ids, torch.ones_like(input_ids, dtype=torch.bool))


def measure_leak(seeds: Sequence[int] = tuple(range(10)), epochs: int = COURSE_EPOCHS) -> LeakResult:
    """Train on :func:`~glassformer.data.sentiment.leaky_examples`, split at random as in the course and by text.

    A fifth is validated on, stratified by label: 40 of 200 examples. With ten copies of each of 20 texts, a random
    split leaves a text out of training with a probability below ``0.2 ** 10``. By text, 4 of the 20 are held out, so
    that one split gives accuracies in quarters; only the mean over seeds says something.

    Args:
        seeds: One split and one training of each kind for each.
        epochs: Passes over the training examples.

    Raises:
        InputError: No seeds, or what :func:`~glassformer.labs.sentiment.exercises.train_transformer` refuses.
    """
    require(len(seeds) > 0, "no seeds", "at least one", "Pass (0,), for example.")
    examples = leaky_examples()
    runs: dict[str, list[LeakRun]] = {"leaky": [], "clean": []}
    histories: dict[str, History] = {}
    for seed in seeds:
        labels = [example.label for example in examples]
        random = train_test_split(examples, test_size=HELD_OUT, random_state=seed, stratify=labels)
        for name, (train, held_out) in (
            ("leaky", random),
            ("clean", split_by_text(examples, (1 - HELD_OUT, HELD_OUT), seed)),
        ):
            _, _, history = train_course(train, held_out, seed, epochs)
            histories.setdefault(name, history)
            runs[name].append(
                LeakRun(
                    seed=seed,
                    num_trained=len(train),
                    num_validated=len(held_out),
                    num_seen=len(leaked(train, held_out)),
                    transformer=history["val_acc"][-1] / 100,
                    tfidf=_tfidf_accuracy(train, held_out),
                )
            )
    return LeakResult(
        num_examples=len(examples),
        num_texts=len({normalized(example.text) for example in examples}),
        epochs=epochs,
        leaky=runs["leaky"],
        clean=runs["clean"],
        leaky_history=histories["leaky"],
        clean_history=histories["clean"],
    )


def train_course(
    train: Sequence[Example],
    held_out: Sequence[Example],
    seed: int,
    epochs: int = COURSE_EPOCHS,
    *,
    sees_padding: bool = False,
    max_length: int = COURSE_LENGTH,
) -> CourseTraining:
    """Train a MiniTransformer with the course's settings, in silence; torch's generator is left alone.

    The vocabulary knows training texts only; rows are filled up to 32 tokens.

    Args:
        train: What to learn from.
        held_out: What ``val_loss`` and ``val_acc`` are measured on.
        seed: Of the weights, the order and the dropout.
        epochs: Passes.
        sees_padding: Train it as :class:`SeesPadding`.
        max_length: Longest text that the model can read afterwards.

    Raises:
        InputError: No texts, or no epochs.
        KeyboardInterrupt: The training was interrupted.
    """
    tokenizer = SimpleTokenizer(COURSE_VOCABULARY)
    tokenizer.build_vocab([example.text for example in train])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = MiniTransformer(
            vocab_size=len(tokenizer.vocab), max_length=max_length, num_classes=len(CLASSES), **COURSE_MODEL
        )
        trained: nn.Module = SeesPadding(model) if sees_padding else model
        with contextlib.redirect_stdout(io.StringIO()):
            history = train_transformer(
                trained, _loader(train, tokenizer, True), _loader(held_out, tokenizer, False), epochs, COURSE_RATE
            )
    if len(history["val_acc"]) < epochs:
        raise KeyboardInterrupt
    return CourseTraining(model.eval(), tokenizer, history)


def _loader(examples: Sequence[Example], tokenizer: SimpleTokenizer, shuffle: bool) -> DataLoader[Any]:
    texts, labels = [example.text for example in examples], [example.label for example in examples]
    # By its behaviour a data set, though of no class of torch's.
    rows = cast("Dataset[Any]", SentimentDataset(texts, labels, tokenizer, COURSE_LENGTH))
    return DataLoader(rows, COURSE_BATCH, shuffle=shuffle)


def _tfidf_accuracy(train: Sequence[Example], held_out: Sequence[Example]) -> float:
    found = TfidfClassifier(train, COURSE_TFIDF).probabilities([example.text for example in held_out])
    return float((found.argmax(1) == [example.label for example in held_out]).mean())
