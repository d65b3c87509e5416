"""The lab's models: their training, and their accuracy at each position."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, Literal

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from torch import nn

from glassformer.data.recurrence import fresh_batch
from glassformer.figures.heat_maps import write_values
from glassformer.figures.style import BLACK, colour_map, in_style, line, new_figure
from glassformer.labs import wording
from glassformer.labs.gpt_oss.course import Transformer
from glassformer.labs.gpt_oss.course_training import calc_per_token_acc, eval_acc
from glassformer.labs.gpt_oss.course_training import train as train_by_course
from glassformer.labs.gpt_oss.experiments.sequences import (
    DATA,
    Optimum,
    batches,
    measured_of,
    split_of,
)
from glassformer.labs.run import Run
from glassformer.models import Decoder
from glassformer.modes import seeded
from glassformer.training import Batch, EpochBatches, NextTokenTask, TrainingConfig, TrainingResult
from glassformer.training.loop import train_in

COURSE_MODEL: dict[str, Any] = {
    "vocab_size": 7, "n_layers": 4, "hidden_dim": 64, "ff_dim": 128, "num_heads": 4, "head_dim": 16,
}  # fmt: skip
"""Arguments of Transformer for the course's model."""

BATCH = 128

_MUON = TrainingConfig(
    steps=632,  # the course's budget: 8 epochs of 79 batches
    batch_size=BATCH,
    optimizer="muon",
    learning_rate=1e-2,
    muon_learning_rate=0.02,
    weight_decay=0.0,
    betas=(0.9, 0.98),
    warmup_steps=50,
    eval_every=79,
    checkpoint_every=158,
    keep_checkpoints=1,
)
SPREADS = 3.2
"""Limit for a difference of two trainings, in ranges of three others.

If accuracy is normally distributed over seeds, 5 % of the differences exceed it.
"""

RECIPES: dict[str, TrainingConfig] = {
    "Muon": _MUON,
    "Muon, long": replace(
        _MUON, steps=5000, warmup_steps=100, eval_every=500, checkpoint_every=500
    ),
    "AdamW, quick": TrainingConfig(
        steps=1200, batch_size=16, learning_rate=5e-3, warmup_steps=50, eval_every=200
    ),
}
"""Training settings: Muon for inner matrices with AdamW for the rest, or AdamW alone.

AdamW alone is cheaper in short trainings.
"""

COURSE_RECIPE = "AdamW, course"
"""The course's train() with AdamW at 0.01, over the training sequences in their stored order."""


@dataclass(frozen=True)
class Model:
    """A model of the lab and its training."""

    title: str
    recipe: str = "Muon"
    sequences: Literal["fixed", "new", "new, all"] = "fixed"
    """Fixed sequences, or new ones in every step: without the held-out generators, or of all."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Changes to the library's configuration of the course's model."""
    seeds: int = 1


_GROUPED = {"num_kv_heads": 2}
_WINDOW = {"window": 17}  # 16 earlier tokens and the query
_MIXTURE = {"num_experts": 4, "top_k": 2}
_ALL = {**_GROUPED, **_WINDOW, **_MIXTURE}

MODELS = {
    "course": Model("course's model, AdamW", COURSE_RECIPE, seeds=3),
    "base": Model("course's model, Muon", seeds=3),
    "grouped-heads": Model("grouped heads", changes=_GROUPED),
    "sliding-window": Model("sliding window", changes=_WINDOW),
    "mixture-of-experts": Model("mixture of experts", changes=_MIXTURE),
    "all-together": Model("all three", changes=_ALL),
    "long-fixed": Model("long, same sequences", "Muon, long"),
    "long-new": Model("long, new sequences", "Muon, long", "new"),
    "long-all": Model("long, all generators", "Muon, long", "new, all"),
    "long-sinks": Model("long, all generators, sinks", "Muon, long", "new, all", {"sinks": True}),
    "quick": Model("course's model, short", "AdamW, quick"),
}


Points = list[tuple[int, float]]
"""Pairs of a step and a value."""


@dataclass(frozen=True)
class Trained:
    """Measurements of a training."""

    num_parameters: int
    steps: int
    losses: Points
    evaluations: Points
    """Accuracy on the test sequences during training."""
    by_position: list[float]
    """Accuracy by position on the measured sequences, after training."""

    @property
    def accuracy(self) -> float:
        """Mean accuracy over all positions of the measured sequences."""
        return wording.mean(self.by_position)


Seeds = list[Trained]
"""Trainings of a model with different seeds."""


def measure(run: Run) -> dict[str, Seeds]:
    """Train and measure every model of the settings."""

    def seeds(name: str) -> Seeds:
        count = min(MODELS[name].seeds, run.settings.most_seeds)
        return [
            run.kept(f"model-{name}-{number}", Trained, partial(_trained, run, name, number))
            for number in range(count)
        ]

    return {name: seeds(name) for name in run.settings.models}


def _trained(run: Run, name: str, number: int) -> Trained:
    print(f"{MODELS[name].title}, seed {run.seed + number}", flush=True)
    model: nn.Module
    if MODELS[name].recipe == COURSE_RECIPE:
        model, losses, evaluations = train_course(run, run.seed + number)
    else:
        model, result = train_model(run, name, number)
        losses = result.losses
        evaluations = [(step, metrics["accuracy"]) for step, metrics in result.evaluations]
    return Trained(
        num_parameters=sum(weight.numel() for weight in model.parameters()),
        steps=evaluations[-1][0],
        losses=losses,
        evaluations=evaluations,
        by_position=calc_per_token_acc(model, batches(measured_of(run).tokens)).tolist(),
    )


def train_course(run: Run, seed: int) -> tuple[Transformer, Points, Points]:
    """Train with the course's model, optimizer, train() and budget.

    Returns the model, and losses and test accuracies by step.
    """
    split = split_of(run)
    loader = batches(split.train.tokens, BATCH)
    test = batches(split.test.tokens)
    accuracies: list[float] = []
    with seeded(seed):
        model = Transformer(**COURSE_MODEL)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = train_by_course(
        model,
        optimizer,
        loader,
        lambda _, model: accuracies.append(float(eval_acc(model, test))),
        run.settings.epochs,
    )
    steps = [epoch * len(loader) for epoch in range(len(accuracies))]
    loss_points = list(zip(steps[1:], losses, strict=True))
    return model, loss_points, list(zip(steps, accuracies, strict=True))


def train_model(run: Run, name: str, number: int = 0) -> tuple[Decoder, TrainingResult]:
    """Train a model in its own run directory, or load it if the training is finished."""
    setup = MODELS[name]
    seed = run.seed + number
    split = split_of(run)
    with torch.device("meta"):
        config = replace(Transformer(**COURSE_MODEL).config, **setup.changes)
    with seeded(seed):
        model = Decoder(config)
    held_out = None if setup.sequences == "new, all" else split.test.generators

    def new_sequences(step: int, size: int) -> Batch:
        return {"tokens": fresh_batch(DATA, size, seed=seed, step=step, excluded=held_out).tokens}

    source: Callable[[int, int], Batch] = new_sequences
    if setup.sequences == "fixed":
        source = EpochBatches({"tokens": split.train.tokens}, seed=seed)
    task = NextTokenTask(source, split.test.tokens, metric="accuracy", evaluation_batch=250)
    directory = run.out / "trainings" / (name if number == 0 else f"{name}-{number}")
    description = {
        "model": asdict(config),
        "data": {"kind": "recurrence", **asdict(DATA)},  # for the explorer and the command line
        "sequences": setup.sequences,
        "seed": seed,
    }
    recipe = replace(run.settings.recipes[setup.recipe], seed=seed)
    return model, train_in(directory, model, task, recipe, description)


RANGES = ((0, 1), (1, 2), (2, 3), (3, 6), (6, 12), (12, 32), (32, None))
"""Ranges of positions (start, stop) in the figure and the table of losses."""


@in_style
def draw_accuracy(optimum: Optimum, models: dict[str, Seeds], reported: str) -> Figure:
    """Draw accuracy by position of the reported and the best model, and every model's losses."""
    figure, (curves, table) = new_figure(
        9, 4.6 + 0.28 * len(models), rows=2, height_ratios=(8, 1.2 + len(models))
    )
    _draw_by_position(curves, optimum, models, reported)
    _draw_losses(table, optimum, models)
    return figure


def _draw_by_position(
    axes: Axes, optimum: Optimum, models: dict[str, Seeds], reported: str
) -> None:
    axes.plot(
        optimum.by_position,
        color=BLACK,
        linewidth=2.4,
        label=f"optimal ({optimum.mean:.4f})",
        zorder=1,
    )
    ranked = sorted(models, key=lambda name: models[name][0].accuracy)
    for series, name in enumerate(dict.fromkeys((reported, ranked[-1]))):
        trained = models[name][0]
        label = f"{MODELS[name].title} ({trained.accuracy:.4f})"
        axes.plot(trained.by_position, label=label, **line(series, len(trained.by_position)))
    axes.set(
        title="Accuracy of the next token at each position",
        xlabel="position in the sequence",
        ylabel="accuracy",
        ylim=(0, 1),
        xlim=(-0.5, 63.5),
    )
    axes.legend(loc="lower right", title="mean over positions")


def _draw_losses(axes: Axes, optimum: Optimum, models: dict[str, Seeds]) -> None:
    by_position = [seeds[0].by_position for seeds in models.values()]
    gaps = 100 * (np.array(optimum.by_position) - by_position)
    lost = np.stack([gaps[:, start:stop].mean(axis=1) for start, stop in RANGES], axis=1)
    image = axes.imshow(
        lost, cmap=colour_map("Oranges"), norm=PowerNorm(0.5, 0, 20, clip=True), aspect="auto"
    )
    write_values(axes, lost.round(2), image)
    names = []
    for start, stop in RANGES:
        last = (stop or len(optimum.by_position)) - 1
        names.append(str(start) if stop == start + 1 else f"{start} to {last}")
    axes.set_xticks(range(len(names)), names)
    axes.set_yticks(range(len(models)), [MODELS[name].title for name in models])
    axes.set(
        title="What is lost to the optimum, in percentage points",
        xlabel="positions, mean over each range",
    )
    axes.grid(False)


_CURVES = ("quick", "course", "base", "long-fixed", "long-new", "long-all", "long-sinks")
"""Models whose training is drawn; the curves of the base model's variants would cover its own."""


@in_style
def draw_training(optimum: Optimum, models: dict[str, Seeds]) -> Figure:
    """Draw test accuracy by step: a panel for each length of training, a line for each seed."""
    shown = {name: models[name] for name in _CURVES if name in models}
    lengths = sorted({seeds[0].steps for seeds in shown.values()})
    figure, panels = new_figure(2 + 4 * len(lengths), 4, columns=len(lengths), sharey=True)
    for axes, steps in zip(panels, lengths, strict=True):
        names = [name for name, seeds in shown.items() if seeds[0].steps == steps]
        for series, name in enumerate(names):
            for number, trained in enumerate(shown[name]):
                points = [point for point in trained.evaluations if point[0]]  # after step 0
                style = line(series, len(points))
                style |= {"alpha": 0.35} if number else {"label": MODELS[name].title}
                axes.plot(*zip(*points, strict=True), **style)
        axes.axhline(optimum.test, color=BLACK, linewidth=1.6, linestyle=":", label="optimum")
        axes.set(title=f"{steps:,} steps", xlabel="step")
        axes.legend(loc="lower right", fontsize=9)
    lowest = None  # a single curve is shown whole
    if len(lengths) > 1:
        trainings = list(chain(*shown.values()))
        lowest = min(trained.evaluations[-1][1] for trained in trainings) - 0.15
    panels[0].set(ylabel="accuracy on the test sequences", ylim=(lowest, optimum.test + 0.02))
    return figure
