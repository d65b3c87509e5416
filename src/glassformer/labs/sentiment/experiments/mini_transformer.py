"""The MiniTransformer in the course's sizes and settings: what it learns, how it embeds a text, what it attends to."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor, nn
from torch.utils.data import DataLoader

from glassformer.data.examples import CLASSES, Example, split_by_text
from glassformer.data.sentiment import reviews
from glassformer.data.tokenizer import CLS, split_words
from glassformer.figures.attention_maps import attention_grid, attention_map
from glassformer.figures.coloured_words import attention_rows
from glassformer.figures.heat_maps import panel
from glassformer.figures.style import in_style, new_figure
from glassformer.labs.sentiment.course import MiniTransformer
from glassformer.labs.sentiment.course_training import SentimentDataset, SimpleTokenizer, train_transformer
from glassformer.models.encoder import Encoder, EncoderConfig
from glassformer.modes import seeded
from glassformer.training.loaders import History

COURSE_MODEL: dict[str, Any] = {"d_model": 64, "num_heads": 8, "num_layers": 2, "d_ff": 256, "dropout": 0.1}
COURSE_LENGTH, COURSE_VOCABULARY = 32, 500
COURSE_EPOCHS, COURSE_BATCH, COURSE_RATE = 10, 16, 1e-3
SPLIT = (0.8, 0.2)  # to train on, and to validate on

SENTENCES = {
    "praise": "I love this wonderful film.",
    "blame": "This book is terrible and boring.",
    "both": "Great acting but a poor story.",
}
REPEATING, REPEATED = "A dull story with a wonderful cast.", "a"


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

    @property
    def favourites(self) -> list[tuple[str, float]]:
        """For each head of the last layer, the token of the largest weight, a mean over queries."""
        means = np.array(self.weights)[-1].mean(axis=1)
        return [(self.tokens[int(row.argmax())], float(row.max())) for row in means]


@dataclass(frozen=True)
class CourseResult:
    """Trained on plain reviews, and on reviews of all kinds, both split by text; read and drawn is the former.

    ``vectors`` are the first 16 coordinates ``[coordinate][token]`` of :data:`REPEATING` without and with positions,
    ``distance`` that of the two vectors of its repeated word once positions are added, over all coordinates.
    """

    config: EncoderConfig
    parts: dict[str, int]
    plain: CourseRun
    all_kinds: CourseRun | None
    readings: dict[str, Reading]
    vectors: list[list[list[float]]]
    distance: float


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


def measure_course(seed: int, epochs: int = COURSE_EPOCHS, *, all_kinds: bool = True) -> CourseResult:
    """Train on four fifths of the plain reviews and, if ``all_kinds``, of all reviews; read :data:`SENTENCES`."""
    train, held_out = split_by_text(plain_reviews(), SPLIT, seed)
    model, tokenizer, history = train_course(train, held_out, seed, epochs)
    plain, every = CourseRun(len(train), len(held_out), history), None
    if all_kinds:
        train, held_out = split_by_text(reviews(), SPLIT, seed)
        every = CourseRun(len(train), len(held_out), train_course(train, held_out, seed, epochs).history)
    parts = {"embeddings": model.embeddings, "blocks": model.transformer_blocks}
    parts |= {"last norm": model.ln_f, "classifier": model.classifier}
    with torch.no_grad():
        alone = model.embeddings.token_embedding(torch.tensor([tokenizer.words.encode(REPEATING)]))
        placed = model.embeddings.pos_encoding(alone)
    first, second = (place for place, word in enumerate(_words(REPEATING)) if word == REPEATED)
    return CourseResult(
        config=model.config,
        parts={name: sum(weight.numel() for weight in part.parameters()) for name, part in parts.items()},
        plain=plain,
        all_kinds=every,
        readings={name: _read(model, tokenizer, text) for name, text in SENTENCES.items()},
        vectors=[x[0, :, :16].double().T.numpy().round(4).tolist() for x in (alone, placed)],
        distance=float((placed[0, first] - placed[0, second]).norm()),
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


def _words(text: str) -> list[str]:
    return [CLS, *split_words(text)]


def _read(model: MiniTransformer, tokenizer: SimpleTokenizer, text: str) -> Reading:
    ids = tokenizer.words.encode(text)
    with torch.inference_mode():
        logits, weights = model(torch.tensor([ids]))
    probability, label = logits[0].softmax(-1).max(-1)
    seen = torch.cat(weights).double().numpy().round(4)
    return Reading(text, tokenizer.words.pieces(ids), int(label), float(probability), seen.tolist())


@in_style
def draw_embeddings(course: CourseResult) -> Figure:
    """A text's vectors without and with positions; the two columns of the repeated word are framed."""
    vectors, words = np.array(course.vectors), _words(REPEATING)
    places = [place for place, word in enumerate(words) if word == REPEATED]
    figure, axes = new_figure(10.5, 4.8, columns=2)
    titles = {"Token embeddings": 0.0, "Token + position embeddings": course.distance}
    largest = float(np.abs(vectors).max())
    for ax, (name, distance), shown in zip(axes, titles.items(), vectors, strict=True):
        image = panel(ax, shown, "", "token", limits=(-largest, largest), colormap="viridis", x_names=words)
        ax.set_box_aspect(None)
        ax.set_title(f"{name}\nfrom “{REPEATED}” to “{REPEATED}”: distance {distance:.2g}", loc="left")
        for place, (colour, size) in product(places, (("black", 5), ("white", 2))):
            frame = Rectangle((place - 0.5, -0.5), 1, len(shown), fill=False, ec=colour, lw=size, clip_on=False)
            ax.add_patch(frame)
    axes[0].set_ylabel(f"coordinate, the first {vectors.shape[1]} of {course.config.hidden_dim}")
    figure.colorbar(image, ax=axes, label="value")
    return figure


def outline(config: EncoderConfig) -> Encoder:
    """The encoder without memory for its weights, for diagrams."""
    with torch.device("meta"):
        return Encoder(config)


def draw_heads(reading: Reading) -> Figure:
    """All heads of all layers, four panels to a row."""
    weights = np.array(reading.weights)
    layers, heads, length, _ = weights.shape
    names = [f"Layer {layer + 1}, head {head + 1}" for layer in range(layers) for head in range(heads)]
    title = f"“{reading.text}”: {CLASSES[reading.label]}, {reading.probability:.1%}"
    return attention_grid(weights.reshape(-1, 4, length, length), reading.tokens, title=title, panel_names=names)


def draw_attention_example(reading: Reading) -> Figure:
    """One head with its weights in the cells."""
    title = "Last layer, head 1: each row sums to 1"
    return attention_map(np.array(reading.weights)[-1, 0], reading.tokens, title=title, largest=1.0)


def draw_attention_rows(reading: Reading) -> Figure:
    """What three words of the sentence with both attend to."""
    places = [_words(reading.text).index(word) for word in ("great", "but", "poor")]
    title = "What three words attend to, mean over the last layer's heads"
    return attention_rows(reading.tokens, np.array(reading.weights)[-1].mean(axis=0), places, title)
