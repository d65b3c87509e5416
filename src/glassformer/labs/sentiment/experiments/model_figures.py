"""Figures of trained classifiers: their training, calibration, and accuracy by kind of review."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from glassformer.labs.sentiment.experiments.models import ModelResult
from glassformer.observe.figures.style import BLACK, HATCHES, LINES, in_style, new_figure
from glassformer.training.classification import wilson


@in_style
def draw_training(models: Sequence[ModelResult]) -> Figure:
    """Loss and validation accuracy by epoch of everything that was trained in epochs."""
    figure, (losses, accuracies) = new_figure(11, 4, columns=2)
    for look, model in zip(LINES, (model for model in models if model.epochs), strict=False):
        epochs = [epoch.epoch for epoch in model.epochs]
        losses.plot(epochs, [epoch.validation_loss for epoch in model.epochs], label=model.name, **look)
        losses.plot(epochs, [epoch.train_loss for epoch in model.epochs], **look, alpha=0.45, linewidth=1.0)
        accuracies.plot(epochs, [100 * epoch.validation_accuracy for epoch in model.epochs], label=model.name, **look)
    losses.set(title="Validation loss (pale: training loss, with dropout)", xlabel="epoch", ylabel="nats")
    accuracies.set(title="Validation accuracy, median seed", xlabel="epoch", ylabel="%")
    for axes in (losses, accuracies):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(fontsize=8)
    return figure


@in_style
def draw_calibration(models: Sequence[ModelResult]) -> Figure:
    """A panel for each model: the share of positive texts by predicted probability, with 95 % intervals."""
    columns = min(3, len(models))
    rows = -(-len(models) // columns)
    figure, axes = new_figure(3.4 * columns + 0.6, 3.1 * rows, rows, columns, sharex=True, sharey=True)
    for place, ax in enumerate(axes):
        if place >= len(models):
            ax.set_axis_off()
            continue
        model, look = models[place], LINES[place % len(LINES)]
        predicted, actual = np.array([(each.predicted, each.actual) for each in model.bins]).T
        low, high = np.array([wilson(each.actual, each.count) for each in model.bins]).T
        ax.plot([0, 1], [0, 1], color="#808080", lw=0.9)
        ax.errorbar(predicted, actual, (actual - low, high - actual), **look, elinewidth=0.9, capsize=2)
        ax.set_title(f"{model.name}\nerror {model.test_calibration_error:.3f}")
        ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        if place >= len(models) - columns:
            ax.tick_params(labelbottom=True)
            ax.set_xlabel("predicted probability of the positive class")
        ax.set_ylabel("share that is positive" if place % columns == 0 else "")
    return figure


@in_style
def draw_kinds(accuracies: Mapping[str, Mapping[str, float]], counts: Mapping[str, int]) -> Figure:
    """Accuracy in [0, 1] of several models on each kind of review, with 95 % intervals (:func:`wilson`)."""
    figure, (ax,) = new_figure(max(7.0, 0.35 * len(counts) * len(accuracies) + 3), 4.2)
    width, sizes = 0.8 / len(accuracies), list(counts.values())
    for series, (name, by_kind) in enumerate(accuracies.items()):
        values = np.array([by_kind[kind] for kind in counts])
        low, high = np.array([wilson(*each) for each in zip(values.tolist(), sizes, strict=True)]).T
        places = np.arange(len(sizes)) + (series - (len(accuracies) - 1) / 2) * width
        colour, hatch = LINES[series]["color"], HATCHES[series]
        ax.bar(places, values, 0.92 * width, label=name, color=colour, hatch=hatch, edgecolor="white")
        ax.errorbar(places, values, (values - low, high - values), fmt="none", ecolor=BLACK, elinewidth=1, capsize=2)
    ax.axhline(0.5, color=BLACK, lw=1, ls=(0, (4, 3)), label="chance")
    ax.set_xticks(range(len(sizes)), [f"{kind}\n{count} reviews" for kind, count in counts.items()])
    ax.set(ylim=(0, 1.03), ylabel="accuracy", title="Accuracy by what the verdict rests on")
    ax.grid(False, axis="x")
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure
