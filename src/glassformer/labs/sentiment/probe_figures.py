"""Figures of text classifiers: how they were trained, and what each token does to their verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from glassformer.figures.coloured_words import DIVERGING, coloured_text
from glassformer.figures.style import BLACK, in_style, line, new_figure
from glassformer.labs.sentiment.word_probes import Look


@in_style
def draw_training_curves(history: Mapping[str, Sequence[float]], title: str = "") -> Figure:
    """Loss and accuracy by epoch, with the epoch of the lowest validation loss.

    ``history`` has one number an epoch under ``train_loss`` and ``val_loss`` in nats, and under ``train_acc`` and
    ``val_acc`` in percent.
    """
    epochs, best = len(history["val_loss"]), int(np.argmin(history["val_loss"])) + 1
    figure, axes = new_figure(10, 4, columns=2)
    for ax, kind, unit in ((axes[0], "loss", "loss, nats"), (axes[1], "acc", "accuracy, %")):
        for series, (part, name) in enumerate((("train", "training"), ("val", "validation"))):
            ax.plot(range(1, epochs + 1), history[f"{part}_{kind}"], **line(series, epochs), label=name)
        ax.axvline(best, color=BLACK, lw=0.9, ls=":", label=f"lowest validation loss, epoch {best}")
        ax.set(xlabel="epoch", ylabel=unit)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes[1].legend(loc="lower right")
    figure.suptitle(title, fontsize=11, fontweight="bold")
    return figure


@in_style
def draw_effects(looks: Sequence[Look], classes: Sequence[str]) -> Figure:
    """Each text, its tokens coloured by what they do to its verdict; effects below half a percent are drawn as 0."""
    figure, panels = new_figure(7.5, 0.85 * len(looks) + 0.9, rows=len(looks))
    largest = max(abs(effect) for look in looks for effect in look.effects)
    for ax, look in zip(panels, looks, strict=True):
        title = f"{classes[look.label]}, {100 * look.probability:.1f} %"
        effects = [effect if abs(effect) >= 0.005 else 0.0 for effect in look.effects]
        coloured_text(look.tokens, effects, title, signed=True, ax=ax, largest=largest)
    label = "drop of the verdict's probability without the token; underlined: it rises"
    scale = ScalarMappable(Normalize(-largest, largest), DIVERGING)
    figure.colorbar(scale, ax=panels, orientation="horizontal", label=label, shrink=0.7, aspect=40)
    figure.suptitle("What the verdict loses without each token", fontsize=11, fontweight="bold")
    return figure
