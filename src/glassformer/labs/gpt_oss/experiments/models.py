"""The models of the lab: how each is trained, and its accuracy at every position compared with the
optimum.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
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
"""The course's model, as arguments of Transformer."""

BATCH = 128

_MUON = TrainingConfig(
    # the course's budget: 8 epochs of 79 batches, of which the last of each epoch holds 16
    # sequences
    steps=632,
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
"""Two trainings of one model, of normally distributed accuracy, differ by more than this many times
the range of three others in 5 % of cases.
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
"""Muon for the matrices inside the network and AdamW for the rest; AdamW alone is cheaper in short
trainings.
"""

COURSE_RECIPE = "AdamW, course"
"""The course's train() with AdamW at 0.01, over the training sequences in the order in which they
stand.
"""


@dataclass(frozen=True)
class Model:
    """One model and how it is trained."""

    title: str
    recipe: str = "Muon"
    sequences: Literal["fixed", "new", "new, all"] = (
        "fixed"  # new ones at every step, of all generators or the others
    )
    changes: dict[str, Any] = field(
        default_factory=dict
    )  # to the library's configuration of the course's model
    seeds: int = 1


_GROUPED = {"num_kv_heads": 2}
_WINDOW = {"window": 17}  # 16 tokens and the query
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
"""Values by step."""


@dataclass(frozen=True)
class Trained:
    """One training; accuracies are of the test sequences while it trains, and of the measured ones
    by position.
    """

    num_parameters: int
    steps: int
    losses: Points
    evaluations: Points
    by_position: list[float]

    @property
    def accuracy(self) -> float:
        """Over all positions of the measured sequences."""
        return wording.mean(self.by_position)


Seeds = list[Trained]
"""The trainings of one model, one for each seed."""


def measure(run: Run) -> dict[str, Seeds]:
    """Train and measure every model of the settings."""

    def one(name: str, number: int) -> Trained:
        return run.kept(f"model-{name}-{number}", Trained, lambda: _trained(run, name, number))

    most = run.settings.most_seeds
    return {
        name: [one(name, number) for number in range(min(MODELS[name].seeds, most))]
        for name in run.settings.models
    }


def _trained(run: Run, name: str, number: int) -> Trained:
    print(f"{MODELS[name].title}, seed {run.seed + number}", flush=True)
    model: nn.Module
    if MODELS[name].recipe == COURSE_RECIPE:
        model, losses, evaluations = train_course(run, run.seed + number)
    else:
        model, result = train_model(run, name, number)
        losses = result.losses
        evaluations = [(step, found["accuracy"]) for step, found in result.evaluations]
    return Trained(
        num_parameters=sum(weight.numel() for weight in model.parameters()),
        steps=evaluations[-1][0],
        losses=losses,
        evaluations=evaluations,
        by_position=calc_per_token_acc(model, batches(measured_of(run).tokens)).tolist(),
    )


def train_course(run: Run, seed: int) -> tuple[Transformer, Points, Points]:
    """The course's own training: its model, optimizer, train() and budget; losses and test
    accuracies by step.
    """
    split = split_of(run)
    loader = batches(split.train.tokens, BATCH)
    test = batches(split.test.tokens)
    evaluated = []
    with seeded(seed):
        model = Transformer(**COURSE_MODEL)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = train_by_course(
        model,
        optimizer,
        loader,
        lambda _, model: evaluated.append(float(eval_acc(model, test))),
        run.settings.epochs,
    )
    ends = [epoch * len(loader) for epoch in range(len(evaluated))]
    return model, list(zip(ends[1:], losses, strict=True)), list(zip(ends, evaluated, strict=True))


def train_model(run: Run, name: str, number: int = 0) -> tuple[Decoder, TrainingResult]:
    """Train a model, in a run directory of its own, or load it if that is done."""
    made = MODELS[name]
    seed = run.seed + number
    split = split_of(run)
    with torch.device("meta"):
        config = replace(Transformer(**COURSE_MODEL).config, **made.changes)
    with seeded(seed):
        model = Decoder(config)
    if made.sequences == "new, all":
        held_out = None
    else:
        held_out = split.test.generators

    def new(step: int, size: int) -> Batch:
        return {"tokens": fresh_batch(DATA, size, seed=seed, step=step, excluded=held_out).tokens}

    source: Callable[[int, int], Batch] = new
    if made.sequences == "fixed":
        source = EpochBatches({"tokens": split.train.tokens}, seed=seed)
    task = NextTokenTask(source, split.test.tokens, metric="accuracy", evaluation_batch=250)
    directory = run.out / "trainings" / (name if number == 0 else f"{name}-{number}")
    description = {
        "model": asdict(config),
        "data": {
            "kind": "recurrence",
            **asdict(DATA),
        },  # the explorer and the command line open such runs
        "sequences": made.sequences,
        "seed": seed,
    }
    recipe = replace(run.settings.recipes[made.recipe], seed=seed)
    return model, train_in(directory, model, task, recipe, description)


RANGES = ((0, 1), (1, 2), (2, 3), (3, 6), (6, 12), (12, 32), (32, None))
"""The positions that the figure and the table of losses put together: start and stop."""


@in_style
def draw_accuracy(optimum: Optimum, models: dict[str, Seeds], reported: str) -> Figure:
    """Accuracy of the reported and of the best model at each position, and a map of what every
    model loses.
    """
    figure, (above, below) = new_figure(
        9, 4.6 + 0.28 * len(models), rows=2, height_ratios=(8, 1.2 + len(models))
    )
    ranked = sorted(models, key=lambda name: models[name][0].accuracy)
    above.plot(
        optimum.by_position,
        color=BLACK,
        linewidth=2.4,
        label=f"optimal ({optimum.mean:.4f})",
        zorder=1,
    )
    for series, name in enumerate(dict.fromkeys((reported, ranked[-1]))):
        found = models[name][0]
        label = f"{MODELS[name].title} ({found.accuracy:.4f})"
        above.plot(found.by_position, label=label, **line(series, len(found.by_position)))
    title = "Accuracy of the next token at each position"
    above.set(
        title=title,
        xlabel="position in the sequence",
        ylabel="accuracy",
        ylim=(0, 1),
        xlim=(-0.5, 63.5),
    )
    above.legend(loc="lower right", title="mean over positions")
    gaps = 100 * (
        np.array(optimum.by_position) - [found[0].by_position for found in models.values()]
    )
    lost = np.stack([gaps[:, start:stop].mean(axis=1) for start, stop in RANGES], axis=1)
    image = below.imshow(
        lost, cmap=colour_map("Oranges"), norm=PowerNorm(0.5, 0, 20, clip=True), aspect="auto"
    )
    write_values(below, lost.round(2), image)
    names = [str(start) if stop == start + 1 else f"{start} to {(stop or len(optimum.by_position)) - 1}"
             for start, stop in RANGES]  # fmt: skip
    below.set_xticks(range(len(names)), names)
    below.set_yticks(range(len(models)), [MODELS[name].title for name in models])
    below.set(
        title="What is lost to the optimum, in percentage points",
        xlabel="positions, mean over each range",
    )
    below.grid(False)
    return figure


_CURVES = ("quick", "course", "base", "long-fixed", "long-new", "long-all", "long-sinks")
"""The models whose training is drawn; the variants' curves lie on that of the base."""


@in_style
def draw_training(optimum: Optimum, models: dict[str, Seeds]) -> Figure:
    """Test accuracy by step, in one panel for each length of training, all in one scale; every seed
    is a line.
    """
    shown = {name: models[name] for name in _CURVES if name in models}
    lengths = sorted({seeds[0].steps for seeds in shown.values()})
    figure, panels = new_figure(2 + 4 * len(lengths), 4, columns=len(lengths), sharey=True)
    for axes, steps in zip(panels, lengths, strict=True):
        here = [(name, seeds) for name, seeds in shown.items() if seeds[0].steps == steps]
        for series, (name, seeds) in enumerate(here):
            for number, found in enumerate(seeds):
                points = [point for point in found.evaluations if point[0]]  # not before training
                style = line(series, len(points)) | (
                    {"alpha": 0.35} if number else {"label": MODELS[name].title}
                )
                axes.plot(*zip(*points, strict=True), **style)
        axes.axhline(optimum.test, color=BLACK, linewidth=1.6, linestyle=":", label="optimum")
        axes.set(title=f"{steps:,} steps", xlabel="step")
        axes.legend(loc="lower right", fontsize=9)
    ends = [found.evaluations[-1][1] for seeds in shown.values() for found in seeds]
    lowest = min(ends) - 0.15 if len(lengths) > 1 else None  # a single curve is shown whole
    panels[0].set(ylabel="accuracy on the test sequences", ylim=(lowest, optimum.test + 0.02))
    return figure
