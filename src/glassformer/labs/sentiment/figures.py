"""The lab's figures, drawn from its results and from the models that it trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from glassformer.classifier import Classifier
from glassformer.data.sentiment import reviews
from glassformer.data.tokenizer import CLS, split_words
from glassformer.labs.sentiment.baselines import BIGRAM_TFIDF
from glassformer.labs.sentiment.course_training import draw_attention_grid
from glassformer.labs.sentiment.growth import TAIL
from glassformer.labs.sentiment.leak import CourseTraining
from glassformer.labs.sentiment.looks import Look
from glassformer.labs.sentiment.pictures import (
    attention_example,
    embeddings_with_and_without_positions,
    norm_histograms,
    per_kind_bars,
    position_encoding,
    recurrent_and_parallel,
    reliability,
    training_curves,
)
from glassformer.labs.sentiment.results import Results
from glassformer.labs.sentiment.timeline import timeline
from glassformer.observe.figures.coloured_words import DIVERGING, attention_rows, coloured_text
from glassformer.observe.figures.complexity_curves import draw_complexity
from glassformer.observe.figures.diagrams import architecture, block
from glassformer.observe.figures.style import BLACK, LINES, in_style, line, new_figure, save_figure

SENTENCE = "The cat sat on the mat"
READ = "I love this film, but the plot is not good."
_QUERIES = ("love", "not", "good")


def draw_figures(results: Results, course: CourseTraining, classifier: Classifier, directory: Path) -> dict[str, Path]:
    """Draw every figure into ``directory`` as PNG and SVG; returns the PNG of each by name."""
    experiments = results.experiments
    # More than six lines in one picture cannot be told apart.
    trained = {name: results.median(name) for name in results.names if name != BIGRAM_TFIDF.name}
    words, weights = read(course, READ)
    lengths = experiments.growth.growths[0].lengths
    drawn = {
        "training": draw_training(results),
        "calibration": reliability({name: model.bins for name, model in trained.items()}),
        "kinds": per_kind_bars({name: model.kinds for name, model in trained.items()}, results.data.kinds),
        "leak": draw_leak(results),
        "norms": norm_histograms(5 * torch.randn(2, 10, 64, generator=torch.Generator().manual_seed(0)) + 10),
        "positions": position_encoding(),
        "embeddings": embeddings_with_and_without_positions(course.model, course.tokenizer, repeating()),
        "architecture": architecture(course.model.encoder),
        "block": block(course.model.encoder),
        "best-architecture": architecture(classifier.encoder),
        "course-training": training_curves(course.history, "The course's model on the reviews, none validated on"),
        "recurrent-and-parallel": recurrent_and_parallel(SENTENCE.split()),
        "attention-example": attention_example(words, weights[-1, 0], "Last layer, head 1"),
        "heads": draw_attention_grid(course.model, course.tokenizer, READ),
        "attention-rows": draw_queries(words, weights[-1].mean(axis=0)),
        "effects": draw_effects(results.asked.looks, classifier.classes),
        "complexity": draw_complexity(
            experiments.growth.growths, overtakes=experiments.growth.overtakes, tail=min(TAIL, len(lengths))
        ),
        "timeline": timeline(),
    }
    return {name: save_figure(figure, directory, name)[0] for name, figure in drawn.items()}


def read(course: CourseTraining, text: str) -> tuple[list[str], Float[np.ndarray, "layer head query key"]]:
    """The words of a text as the course's model reads them, ``<CLS>`` first, and all its attention weights."""
    ids = course.tokenizer.words.encode(text)
    course.model.eval()
    with torch.inference_mode():
        _, weights = course.model(torch.tensor([ids]))
    return course.tokenizer.words.pieces(ids), torch.stack([layer[0] for layer in weights]).numpy()


def draw_queries(words: list[str], weights: Float[np.ndarray, "query key"]) -> Figure:
    """What "love", "not" and "good" of :data:`READ` attend to, ``words`` and weights being what :func:`read` gave."""
    # By their places: a vocabulary may lack the words themselves.
    said = [CLS, *split_words(READ)]
    places = [said.index(word) for word in _QUERIES]
    return attention_rows(words, weights, places, "What three words attend to, mean over the last layer's heads")


def repeating() -> str:
    """The shortest review that ships with a word that comes twice, so that two places can be compared."""
    texts = [example.text for example in reviews() if _repeats(example.text)]
    return min(texts, key=len)


@in_style
def draw_training(results: Results) -> Figure:
    """Loss and validation accuracy by epoch, of the median seed of everything that was trained in epochs."""
    trained = [model for model in map(results.median, results.names) if model.epochs]
    figure, (losses, accuracies) = new_figure(11, 4, columns=2)
    for series, model in enumerate(trained):
        epochs = np.arange(1, len(model.epochs) + 1)
        style = {**LINES[series % len(LINES)], "markevery": 1}
        name = model.measured.name
        losses.plot(epochs, [epoch.validation_loss for epoch in model.epochs], label=f"{name}, validation", **style)
        losses.plot(epochs, [epoch.train_loss for epoch in model.epochs], **{**style, "alpha": 0.45, "linewidth": 1.0})
        accuracies.plot(epochs, [100 * epoch.validation_accuracy for epoch in model.epochs], label=name, **style)
    losses.set(title="Loss (pale: training, with dropout and hidden words)", xlabel="epoch", ylabel="nats")
    accuracies.set(title="Validation accuracy", xlabel="epoch", ylabel="%")
    for axes in (losses, accuracies):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(fontsize=8)
    return figure


@in_style
def draw_leak(results: Results) -> Figure:
    """Validation accuracy of every split, with the leak and without it, and the loss of one training of each."""
    leak = results.experiments.leak
    figure, (accuracies, losses) = new_figure(11, 4, columns=2)
    columns = [
        ("leaky", "transformer", "random split,\ncourse's model"),
        ("leaky", "tfidf", "random split,\nword counts"),
        ("clean", "transformer", "split by text,\ncourse's model"),
        ("clean", "tfidf", "split by text,\nword counts"),
    ]
    for place, (split, model, _) in enumerate(columns):
        style = LINES[0 if split == "leaky" else 1]
        runs = leak.leaky if split == "leaky" else leak.clean
        values = np.array([100 * getattr(run, model) for run in runs])
        # Runs of equal accuracy stand side by side.
        offsets = np.linspace(-0.28, 0.28, len(values)) if len(values) > 1 else np.zeros(1)
        accuracies.plot(place + offsets, values, linestyle="none", color=style["color"], marker=style["marker"])
        accuracies.hlines(values.mean(), place - 0.36, place + 0.36, color=BLACK, linewidth=1.6)
    accuracies.axhline(50, color="grey", linewidth=0.8, linestyle=":")
    accuracies.set_xticks(range(len(columns)), [words for _, _, words in columns], fontsize=9)
    accuracies.set(title="Validation accuracy by seed; black: mean", ylabel="%", ylim=(-4, 104))
    for series, (history, words) in enumerate(((leak.leaky_history, "random"), (leak.clean_history, "by text"))):
        epochs = np.arange(1, len(history["val_loss"]) + 1)
        style = {**line(series, len(epochs)), "markevery": 1}
        losses.plot(epochs, history["val_loss"], label=f"split {words}: validation", **style)
        losses.plot(
            epochs,
            history["train_loss"],
            label=f"split {words}: training",
            **{**style, "alpha": 0.45, "linewidth": 1.0},
        )
    losses.set(title="Loss of the course's model, first seed", xlabel="epoch", ylabel="nats")
    losses.legend(fontsize=8)
    return figure


@in_style
def draw_effects(looks: list[Look], classes: tuple[str, ...]) -> Figure:
    """Each text, its tokens coloured by what they do to its verdict, all on one scale."""
    figure, panels = new_figure(9.5, 0.85 * len(looks) + 0.7, rows=len(looks))
    largest = max(abs(effect) for look in looks for effect in look.effects)
    for ax, look in zip(panels, looks, strict=True):
        title = f"{classes[look.label]}, {100 * look.probability:.1f} %"
        coloured_text(look.tokens, look.effects, title, signed=True, ax=ax, largest=largest)
    scale = ScalarMappable(Normalize(-largest, largest), DIVERGING)
    label = "without the token the verdict is this much less probable; underlined: more probable"
    figure.colorbar(scale, ax=panels, orientation="horizontal", label=label, shrink=0.5, aspect=40)
    return figure


def _repeats(text: str) -> bool:
    words = text.lower().split()
    return len(words) <= 12 and len(set(words)) < len(words)
