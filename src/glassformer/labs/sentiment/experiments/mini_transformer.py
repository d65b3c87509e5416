"""Training of the MiniTransformer with the course's settings, with padding seen or left out."""

import contextlib
import io
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.data import DataLoader

from glassformer.data.examples import CLASSES, Example
from glassformer.data.sentiment import reviews
from glassformer.labs.loaders import History
from glassformer.labs.sentiment.course import MiniTransformer
from glassformer.labs.sentiment.course_training import (
    SentimentDataset,
    SimpleTokenizer,
    train_transformer,
)
from glassformer.modes import seeded

COURSE_MODEL: dict[str, Any] = {
    "d_model": 64,
    "num_heads": 8,
    "num_layers": 2,
    "d_ff": 256,
    "dropout": 0.1,
}
COURSE_LENGTH = 32
COURSE_VOCABULARY = 500
COURSE_EPOCHS = 10
COURSE_BATCH = 16
COURSE_RATE = 1e-3
SPLIT = (0.8, 0.2)
"""Shares of the training and validation examples."""


class CourseTraining(NamedTuple):
    """A trained model in evaluation mode, its tokenizer, and the history of its training."""

    model: MiniTransformer
    tokenizer: SimpleTokenizer
    history: History


class SeesPadding(nn.Module):
    """The course's MiniTransformer, which attends to padding and averages over it."""

    def __init__(self, model: MiniTransformer) -> None:
        super().__init__()
        self.encoder = model.encoder

    def forward(
        self, input_ids: Int[Tensor, "batch position"]
    ) -> Float[Tensor, "batch num_classes"]:
        """Return the logits of the classes."""
        return self.encoder(input_ids, torch.ones_like(input_ids, dtype=torch.bool))


def plain_reviews() -> tuple[Example, ...]:
    """Return the 240 short reviews without negation, contrast or irony."""
    return tuple(example for example in reviews() if example.kind == "plain")


def train_course(
    train: Sequence[Example],
    held_out: Sequence[Example],
    seed: int,
    epochs: int = COURSE_EPOCHS,
    *,
    sees_padding: bool = False,
    max_length: int = COURSE_LENGTH,
) -> CourseTraining:
    """Train a MiniTransformer with the course's settings, without output.

    The vocabulary has words of the training texts only. Rows are padded to 32 tokens. The state of
    torch's random generator is preserved.

    Args:
        train: Training examples.
        held_out: Validation examples.
        seed: Seed of the training.
        epochs: Number of epochs.
        sees_padding: If True, the model is trained as :class:`SeesPadding`.
        max_length: Longest text that the model can read.
    """
    tokenizer = SimpleTokenizer(COURSE_VOCABULARY)

    def loader(examples: Sequence[Example]) -> DataLoader[Any]:
        texts = [example.text for example in examples]
        labels = [example.label for example in examples]
        rows = SentimentDataset(texts, labels, tokenizer, COURSE_LENGTH)
        return DataLoader(rows, COURSE_BATCH, shuffle=examples is train)

    with seeded(seed), contextlib.redirect_stdout(io.StringIO()):
        tokenizer.build_vocab([example.text for example in train])
        sizes = {
            "vocab_size": len(tokenizer.vocab),
            "max_length": max_length,
            "num_classes": len(CLASSES),
        }
        model = MiniTransformer(**sizes, **COURSE_MODEL)
        trained = SeesPadding(model) if sees_padding else model
        history = train_transformer(trained, loader(train), loader(held_out), epochs, COURSE_RATE)
    if len(history["val_acc"]) < epochs:
        raise KeyboardInterrupt
    return CourseTraining(model.eval(), tokenizer, history)
