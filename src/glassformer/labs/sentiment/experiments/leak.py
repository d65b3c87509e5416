"""What a random split hides where texts repeat: a toy set in the course's form, split at random and by text."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from sklearn.model_selection import train_test_split

from glassformer.data.examples import leaked, normalized, split_by_text
from glassformer.data.sentiment import leaky_examples
from glassformer.labs.sentiment.experiments.counts import COURSE_TFIDF, TfidfClassifier
from glassformer.labs.sentiment.experiments.mini_transformer import COURSE_EPOCHS, SPLIT, train_course
from glassformer.observe.figures.style import BLACK, LINES, in_style, new_figure


@dataclass(frozen=True)
class LeakRun:
    """One split; accuracies on its validation examples, in [0, 1]."""

    seed: int
    num_validated: int
    num_seen: int  # of the validation examples, those whose text was trained on
    transformer: float
    tfidf: float


@dataclass(frozen=True)
class LeakResult:
    """The same examples, split at random ("leaky") and by text ("clean"); ``histories`` are those of the first seed."""

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

    With ten copies of each of 20 texts, a random split leaves a text out of training with a probability below
    ``0.2 ** 10``. By text, 4 of the 20 are held out, so that one split gives accuracies in quarters; only the mean over
    seeds says something.
    """
    examples = leaky_examples()
    labels = [example.label for example in examples]
    runs: dict[str, list[LeakRun]] = {"leaky": [], "clean": []}
    histories: dict[str, dict[str, list[float]]] = {}
    for seed in seeds:
        random = train_test_split(examples, test_size=0.2, random_state=seed, stratify=labels)
        for name, (train, held_out) in (("leaky", random), ("clean", split_by_text(examples, SPLIT, seed))):
            history = train_course(train, held_out, seed, epochs).history
            histories.setdefault(name, history)
            counted = TfidfClassifier(train, COURSE_TFIDF).probabilities([each.text for each in held_out]).argmax(1)
            tfidf = float((counted == [each.label for each in held_out]).mean())
            num_seen, accuracy = len(leaked(train, held_out)), history["val_acc"][-1] / 100
            runs[name].append(LeakRun(seed, len(held_out), num_seen, accuracy, tfidf))
    num_texts = len({normalized(example.text) for example in examples})
    return LeakResult(len(examples), num_texts, epochs, **runs, histories=histories)


@in_style
def draw_leak(leak: LeakResult) -> Figure:
    """Validation accuracy of every split, with the leak and without it, and the losses of one training of each."""
    figure, (accuracies, losses) = new_figure(11, 4, columns=2)
    columns = [(name, model) for name in ("leaky", "clean") for model in ("transformer", "tfidf")]
    for place, (name, model) in enumerate(columns):
        look = LINES[int(name == "clean")]
        values = 100 * np.array(leak.accuracies(name, model))
        # Runs of equal accuracy stand side by side.
        offsets = np.linspace(-0.28, 0.28, len(values)) if len(values) > 1 else np.zeros(1)
        accuracies.plot(place + offsets, values, linestyle="none", color=look["color"], marker=look["marker"])
        accuracies.hlines(values.mean(), place - 0.36, place + 0.36, color=BLACK, linewidth=1.6)
    accuracies.axhline(50, color="grey", linewidth=0.8, linestyle=":")
    splits, models = ("random split", "split by text"), ("MiniTransformer", "TF-IDF")
    accuracies.set_xticks(range(4), [f"{name},\n{model}" for name in splits for model in models], fontsize=9)
    accuracies.set(title="Validation accuracy by seed; black: mean, dotted: chance", ylabel="%", ylim=(-4, 104))
    for look, history, name in zip(LINES, leak.histories.values(), splits, strict=False):
        epochs = range(1, leak.epochs + 1)
        losses.plot(epochs, history["val_loss"], **look, label=f"{name}: validation")
        losses.plot(epochs, history["train_loss"], **look, alpha=0.45, lw=1.0, label=f"{name}: training")
    losses.set(title="Loss of the MiniTransformer, first seed", xlabel="epoch", ylabel="nats")
    losses.legend(fontsize=8)
    return figure
