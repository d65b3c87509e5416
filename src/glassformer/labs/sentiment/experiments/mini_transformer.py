"""The MiniTransformer in the course's sizes and settings: what it learns, how it embeds a text, what it attends to."""

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.utils.data import DataLoader

from glassformer.data.examples import CLASSES, Example, split_by_text
from glassformer.data.sentiment import reviews
from glassformer.figures.attention_maps import attention_grid
from glassformer.labs.loaders import History
from glassformer.labs.sentiment.course import MiniTransformer
from glassformer.labs.sentiment.course_training import SentimentDataset, SimpleTokenizer, train_transformer
from glassformer.labs.wording import percent
from glassformer.models.encoder import EncoderConfig
from glassformer.modes import seeded

COURSE_MODEL: dict[str, Any] = {"d_model": 64, "num_heads": 8, "num_layers": 2, "d_ff": 256, "dropout": 0.1}
COURSE_LENGTH, COURSE_VOCABULARY = 32, 500
COURSE_EPOCHS, COURSE_BATCH, COURSE_RATE = 10, 16, 1e-3
SPLIT = (0.8, 0.2)  # to train on, and to validate on

SENTENCE = "Superb cast, but a dull story."


@dataclass(frozen=True)
class CourseRun:
    """One training; losses in nats and accuracies in percent, one number an epoch."""

    num_trained: int
    num_validated: int
    history: dict[str, list[float]]

    @property
    def accuracy(self) -> float:
        """Of the validation texts after the last epoch, in [0, 1]."""
        return self.history["val_acc"][-1] / 100


@dataclass(frozen=True)
class Reading:
    """What the trained model makes of one sentence; ``weights[layer][head][query][key]``."""

    text: str
    tokens: list[str]
    label: int
    probability: float
    weights: list[list[list[list[float]]]]

    def most_read(self) -> list[str]:
        """The tokens that some head gives over half of its weight, mean over queries."""
        read = (np.array(self.weights).mean(2) > 0.5).any((0, 1))
        return [token for token, often in zip(self.tokens, read, strict=True) if often]


@dataclass(frozen=True)
class CourseResult:
    """Trained on plain reviews, split by text."""

    config: EncoderConfig
    parts: dict[str, int]
    plain: CourseRun
    reading: Reading


class CourseTraining(NamedTuple):
    """A trained model in evaluation mode, its tokenizer, and its numbers after each epoch."""

    model: MiniTransformer
    tokenizer: SimpleTokenizer
    history: History


class SeesPadding(nn.Module):
    """A MiniTransformer as the course computes it: padding is attended to, and is part of the mean."""

    def __init__(self, model: MiniTransformer) -> None:
        super().__init__()
        self.encoder = model.encoder

    def forward(self, input_ids: Int[Tensor, "batch position"]) -> Float[Tensor, "batch num_classes"]:
        """Scores of the classes, before softmax."""
        return self.encoder(input_ids, torch.ones_like(input_ids, dtype=torch.bool))


def plain_reviews() -> tuple[Example, ...]:
    """The 240 short reviews whose verdict is in their words, without negation, contrast or irony."""
    return tuple(example for example in reviews() if example.kind == "plain")


def measure_course(seed: int, epochs: int = COURSE_EPOCHS) -> CourseResult:
    """Train on four fifths of the plain reviews, and read :data:`SENTENCE`."""
    train, held_out = split_by_text(plain_reviews(), SPLIT, seed)
    model, tokenizer, history = train_course(train, held_out, seed, epochs)
    parts = {"embeddings": model.embeddings, "blocks": model.transformer_blocks}
    parts |= {"last norm": model.ln_f, "classifier": model.classifier}
    return CourseResult(
        config=model.config,
        parts={name: sum(weight.numel() for weight in part.parameters()) for name, part in parts.items()},
        plain=CourseRun(len(train), len(held_out), history),
        reading=_read(model, tokenizer, SENTENCE),
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

    The vocabulary knows training texts only; rows are padded to 32 tokens. ``max_length`` is the longest text that the
    model can read afterwards; with ``sees_padding`` it is trained as :class:`SeesPadding`.
    """
    tokenizer = SimpleTokenizer(COURSE_VOCABULARY)

    def loader(examples: Sequence[Example]) -> DataLoader[Any]:
        texts, labels = [example.text for example in examples], [example.label for example in examples]
        rows = SentimentDataset(texts, labels, tokenizer, COURSE_LENGTH)
        return DataLoader(rows, COURSE_BATCH, shuffle=examples is train)

    with seeded(seed), contextlib.redirect_stdout(io.StringIO()):
        tokenizer.build_vocab([example.text for example in train])
        sizes = {"vocab_size": len(tokenizer.vocab), "max_length": max_length, "num_classes": len(CLASSES)}
        model = MiniTransformer(**sizes, **COURSE_MODEL)
        trained = SeesPadding(model) if sees_padding else model
        history = train_transformer(trained, loader(train), loader(held_out), epochs, COURSE_RATE)
    if len(history["val_acc"]) < epochs:
        raise KeyboardInterrupt
    return CourseTraining(model.eval(), tokenizer, history)


def _read(model: MiniTransformer, tokenizer: SimpleTokenizer, text: str) -> Reading:
    ids = tokenizer.words.encode(text)
    with torch.inference_mode():
        logits, weights = model(torch.tensor([ids]))
    probability, label = logits[0].softmax(-1).max(-1)
    seen = torch.cat(weights).double().numpy().round(4)
    return Reading(text, tokenizer.words.pieces(ids), int(label), float(probability), seen.tolist())


def draw_heads(reading: Reading) -> Figure:
    """All heads of all layers, four panels to a row."""
    weights = np.array(reading.weights)
    layers, heads, length, _ = weights.shape
    names = [f"Layer {layer + 1}, head {head + 1}" for layer in range(layers) for head in range(heads)]
    title = f"“{reading.text}”: {CLASSES[reading.label]}, {percent(reading.probability)}"
    return attention_grid(weights.reshape(-1, 4, length, length), reading.tokens, title=title, panel_names=names)
