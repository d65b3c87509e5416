"""What a model predicts after one token and after a run of it, which attention without sinks cannot tell apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.figure import Figure

from glassformer.data.bayes import optimal_predictions
from glassformer.figures.style import BLACK, HATCHES, LINES, in_style, new_figure
from glassformer.labs.gpt_oss.experiments.models import MODELS, train_model
from glassformer.labs.gpt_oss.experiments.sequences import DATA
from glassformer.labs.run import Run

_OPTIMAL = "optimal"


@dataclass(frozen=True)
class FirstTokens:
    """Predictions after one, two and three times the same token."""

    token: int  # the one after which the optimal prediction changes most
    predictions: dict[str, list[list[float]]]  # after that token: of the optimum, and of each model by name
    change: dict[str, float]  # largest change of a probability from one to three times, over all tokens


@torch.no_grad()
def measure(run: Run) -> FirstTokens:
    """Predictions of the optimum and of the models that the settings compare."""
    runs = torch.arange(DATA.vocab_size)[:, None].expand(-1, 3)
    found = {_OPTIMAL: optimal_predictions(runs, DATA)}
    for name in run.settings.compared:
        found[name] = train_model(run, name)[0](runs).double().softmax(dim=-1)
    changes = {name: (each[:, 2] - each[:, 0]).abs().amax(dim=-1) for name, each in found.items()}
    token = int(changes[_OPTIMAL].argmax())
    return FirstTokens(
        token=token,
        predictions={name: each[token].tolist() for name, each in found.items()},
        change={name: float(change.max()) for name, change in changes.items()},
    )


@in_style
def draw(first: FirstTokens) -> Figure:
    """The distributions of the next token, one panel for the optimum and one for each model."""
    figure, panels = new_figure(3.6 * len(first.predictions), 3.4, columns=len(first.predictions), sharey=True)
    places = np.arange(DATA.vocab_size)
    for axes, (name, rows) in zip(panels, first.predictions.items(), strict=True):
        for number, row in enumerate(rows):
            label = "after " + " ".join([str(first.token)] * (number + 1))
            colour, hatch = LINES[number]["color"], HATCHES[number]
            axes.bar(places + 0.27 * (number - 1), row, 0.27, label=label, color=colour, hatch=hatch, edgecolor=BLACK)
        title = MODELS[name].title if name in MODELS else name
        axes.set(title=title, xlabel="next token", xticks=places)
    panels[0].set_ylabel("probability")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure
