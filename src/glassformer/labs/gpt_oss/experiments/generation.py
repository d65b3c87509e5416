"""Continuations of a trained model under sampling rules, compared with the true sequences.

The module also compares predictions after one token and after a run of it, which attention without
sinks cannot tell apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from glassformer.data.bayes import optimal_predictions
from glassformer.data.recurrence import obeys_recurrence
from glassformer.figures.heat_maps import DIVERGING, write_values
from glassformer.figures.style import (
    BLACK,
    BLUE,
    GREEN,
    HATCHES,
    LINES,
    ORANGE,
    SKY,
    colour_map,
    in_style,
    new_figure,
)
from glassformer.generation.decoding import generate
from glassformer.generation.sampling import SamplingRule
from glassformer.labs.gpt_oss.experiments.models import MODELS, train_model
from glassformer.labs.gpt_oss.experiments.sequences import DATA, measured_of
from glassformer.labs.run import Run
from glassformer.models import Decoder

_NGRAM = 4


@dataclass(frozen=True)
class Behaviour:
    """Composition of continuations as shares in [0, 1]; see :func:`behaviour`."""

    rule: float
    """Share of steps that follow the hidden recurrence."""
    increment: float
    """Share of steps that do not, and are the previous token + 1."""
    neither: float
    """Share of the other steps."""
    repeated: float
    """Share of runs of four tokens that occurred earlier in the same continuation."""
    cycling: float
    """Share of continuations whose second half repeats itself, in two rounds or more."""
    errors: dict[str, float]
    """Standard errors of the five shares over the continuations."""

    def distance(self, other: Behaviour) -> float:
        """Return the total variation of rule, increment and neither, in [0, 1]."""
        parts = ("rule", "increment", "neither")
        return sum(abs(getattr(self, part) - getattr(other, part)) for part in parts) / 2

    def above(self, other: Behaviour, part: str) -> bool:
        """Return whether ``part`` exceeds that of ``other`` by more than two standard errors."""
        error = math.hypot(self.errors[part], other.errors[part])
        return getattr(self, part) - getattr(other, part) > 2 * error


def behaviour(
    sequences: Int64[Tensor, "batch length"],
    coefficients: Int64[Tensor, "batch order"],
    prompt_length: int,
    vocab_size: int,
) -> Behaviour:
    """Classify the steps after the first ``prompt_length`` tokens.

    ``coefficients`` are those of the generators of the sequences.
    """
    kinds = obeys_recurrence(
        sequences[:, prompt_length - coefficients.shape[1] :], coefficients, vocab_size
    )
    increment = kinds.increment & ~kinds.rule
    continuation = sequences[:, prompt_length:]
    rows = {
        "rule": kinds.rule.double().mean(dim=1),
        "increment": increment.double().mean(dim=1),
        "neither": (~kinds.rule & ~increment).double().mean(dim=1),
        "repeated": _repeated(continuation),
        "cycling": _cycles(continuation[:, continuation.shape[1] // 2 :]).double(),
    }
    errors = {
        name: float(row.std(correction=0)) / math.sqrt(len(row)) for name, row in rows.items()
    }
    return Behaviour(**{name: float(row.mean()) for name, row in rows.items()}, errors=errors)


def _repeated(continuation: Int64[Tensor, "batch length"]) -> Tensor:
    """Return for each row the share of runs of ``_NGRAM`` tokens that occurred earlier in it."""
    rows = continuation.unfold(1, _NGRAM, 1).tolist()
    shares = [1 - len({tuple(run) for run in row}) / len(row) for row in rows]
    return torch.tensor(shares, dtype=torch.float64)


def _cycles(ending: Int64[Tensor, "batch length"]) -> Tensor:
    """Return a mask of the rows that are two or more rounds of a cycle."""
    periods = range(1, ending.shape[1] // 2 + 1)
    is_cycle = [(ending[:, n:] == ending[:, :-n]).all(dim=1) for n in periods]
    return torch.stack(is_cycle).any(dim=0)


_SHOWN_LENGTH = 40
_SURE = 0.9
"""Probability of a token that fills the nucleus of the rules below."""

RULES: dict[str, SamplingRule] = {
    "greedy": SamplingRule(temperature=0.0),
    "temperature 0.5": SamplingRule(temperature=0.5),
    "temperature 1": SamplingRule(temperature=1.0),
    "temperature 1.5": SamplingRule(temperature=1.5),
    "top-p 0.9": SamplingRule(top_p=0.9),
    "temp. 1.5, top-p 0.9": SamplingRule(temperature=1.5, top_p=0.9),
}
"""Sampling rules that are compared."""


@dataclass(frozen=True)
class NextToken:
    """Distributions of a single next token."""

    by_rule: int
    """Token by the rule."""
    by_increment: int
    """Previous token + 1."""
    optimal: list[float]
    model: dict[str, list[float]]
    """The model's distribution under each sampling rule."""


@dataclass(frozen=True)
class Generation:
    """Continuations of sequences of held-out generators by a model."""

    model: str
    num_prompts: int
    prompt_length: int
    new_tokens: int
    true: Behaviour
    rules: dict[str, Behaviour]
    temperatures: list[float]
    top_ps: list[float]
    grid: list[list[Behaviour]]
    """Behaviour by temperature (rows) and top-p (columns)."""
    next_token: NextToken

    def closest(self) -> tuple[float, float, Behaviour]:
        """Return temperature, top-p and behaviour of the cell closest to the true sequences."""
        cells: list[tuple[float, float, Behaviour]] = []
        for temperature, row in zip(self.temperatures, self.grid, strict=True):
            for top_p, cell in zip(self.top_ps, row, strict=True):
                cells.append((temperature, top_p, cell))
        return min(cells, key=lambda cell: cell[2].distance(self.true))


def measure(run: Run) -> Generation:
    """Continue measured sequences with the model that the settings name."""
    settings = run.settings
    measured = measured_of(run)
    model, _ = train_model(run, settings.continued)
    prompt_length = settings.prompt_length
    sequences = measured.tokens[: settings.num_prompts, : prompt_length + settings.new_tokens]
    coefficients = measured.generators.coefficients[: settings.num_prompts]
    prompts = sequences[:, :prompt_length]

    def continued(rule: SamplingRule) -> Behaviour:
        seeded_rule = replace(rule, seed=run.seed)
        new = torch.tensor(generate(model, prompts, settings.new_tokens, rule=seeded_rule))
        continuations = torch.cat([prompts, new], dim=1)
        return behaviour(continuations, coefficients, prompt_length, DATA.vocab_size)

    return Generation(
        model=settings.continued,
        num_prompts=len(sequences),
        prompt_length=prompt_length,
        new_tokens=settings.new_tokens,
        true=behaviour(sequences, coefficients, prompt_length, DATA.vocab_size),
        rules={title: continued(rule) for title, rule in RULES.items()},
        temperatures=list(settings.temperatures),
        top_ps=list(settings.top_ps),
        grid=[
            [continued(SamplingRule(temperature=t, top_p=p)) for p in settings.top_ps]
            for t in settings.temperatures
        ],
        next_token=_next_token(run, model),
    )


@torch.no_grad()
def _next_token(run: Run, model: Decoder) -> NextToken:
    """Return distributions of a next token that the model is sure of.

    The first context is taken in which rule and increment differ and the rule's token has a
    probability of at least _SURE, or else the one with the largest probability.
    """
    measured = measured_of(run)
    contexts = measured.tokens[:, :_SHOWN_LENGTH]
    products = contexts[:, -DATA.order :] * measured.generators.coefficients
    by_rule = products.sum(dim=1) % DATA.vocab_size
    by_increment = (contexts[:, -1] + 1) % DATA.vocab_size
    probabilities = model(contexts)[:, -1].softmax(dim=-1)
    rule_probability = probabilities.gather(1, by_rule[:, None])[:, 0]
    rule_probability[by_rule == by_increment] = 0
    row = int(rule_probability.clamp(max=_SURE).argmax())
    context = contexts[row : row + 1]
    logits = model(context)[0, -1]
    return NextToken(
        by_rule=int(by_rule[row]),
        by_increment=int(by_increment[row]),
        optimal=optimal_predictions(context, DATA)[0, -1].tolist(),
        model={title: rule.distribution(logits).tolist() for title, rule in RULES.items()},
    )


@in_style
def draw_next_token(generation: Generation) -> Figure:
    """Draw distributions of a next token: the model's by sampling rule, and the optimal one."""
    shown = generation.next_token
    figure, panels = new_figure(10, 5, rows=2, columns=3, sharex=True, sharey=True)
    tokens = np.arange(len(shown.optimal))
    for axes, (title, probabilities) in zip(panels, shown.model.items(), strict=True):
        axes.bar(tokens, probabilities, color=SKY, edgecolor=BLACK, linewidth=0.5, label="model")
        axes.plot(
            tokens,
            shown.optimal,
            "_",
            color=BLACK,
            markersize=14,
            markeredgewidth=2,
            label="optimal",
        )
        for token, word in ((shown.by_rule, "rule"), (shown.by_increment, "+1")):
            top = max(probabilities[token], shown.optimal[token])
            axes.annotate(
                word, (token, top), xytext=(0, 4), textcoords="offset points", ha="center"
            )
        axes.set(title=title, ylim=(0, 1.12))
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    for axes in panels[3:]:
        axes.set(xlabel="next token", xticks=tokens)
    for axes in panels[::3]:
        axes.set_ylabel("probability")
    return figure


_KINDS = {"rule": "follows the rule", "increment": "previous + 1", "neither": "neither"}


@in_style
def draw_rules(generation: Generation) -> Figure:
    """Draw the composition and repetition of continuations, by sampling rule, and the true ones."""
    rows = {"true sequences": generation.true, **generation.rules}
    figure, (left, right) = new_figure(11, 4.4, columns=2, sharey=True)
    places = np.arange(len(rows))
    start = np.zeros(len(rows))
    style: dict[str, Any] = {"edgecolor": BLACK, "linewidth": 0.6}
    for (part, words), colour, hatch in zip(
        _KINDS.items(), (GREEN, SKY, ORANGE), ("", "///", "xxx"), strict=True
    ):
        shares = np.array([getattr(row, part) for row in rows.values()])
        left.barh(places, shares, 0.7, left=start, label=words, color=colour, hatch=hatch, **style)
        start += shares
    for offset, part, words, colour, hatch in (
        (-0.19, "repeated", "runs of 4 tokens seen before", BLUE, ""),
        (0.19, "cycling", "continuations that cycle", ORANGE, "///"),
    ):
        shares = np.array([getattr(row, part) for row in rows.values()])
        right.barh(places + offset, shares, 0.38, label=words, color=colour, hatch=hatch, **style)
    left.set_yticks(places, list(rows))
    left.invert_yaxis()
    left.set(title="What each generated step is", xlabel="share of steps", xlim=(0, 1))
    right.set(title="How much it repeats itself", xlabel="share", xlim=(0, 1))
    for axes, columns in ((left, 3), (right, 2)):
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=columns)
        axes.axhline(0.5, color=BLACK, linewidth=0.8)
        axes.grid(False, axis="y")
    return figure


@in_style
def draw_grid(generation: Generation) -> Figure:
    """Draw shares of rule, +1 and neither by temperature and top-p, relative to the true shares."""
    figure, panels = new_figure(10, 1.8 + 0.36 * len(generation.grid), columns=3, sharey=True)
    temperature, top_p, _ = generation.closest()
    column = generation.top_ps.index(top_p)
    row = generation.temperatures.index(temperature)
    top_p_names = [f"{top_p:g}" for top_p in generation.top_ps]
    for axes, (part, words) in zip(panels, _KINDS.items(), strict=True):
        shares = np.array([[getattr(cell, part) for cell in cells] for cells in generation.grid])
        true = getattr(generation.true, part)
        image = axes.imshow(
            shares - true, cmap=colour_map(DIVERGING), vmin=-0.3, vmax=0.3, aspect="auto"
        )
        write_values(axes, 100 * shares, image, largest=1)
        axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, linewidth=2))
        axes.set(title=f"{words} (true: {100 * true:.1f} %)", xlabel="top-p")
        axes.set_xticks(range(len(top_p_names)), top_p_names)
        axes.grid(False)
    temperatures = [f"{temperature:g}" for temperature in generation.temperatures]
    panels[0].set_yticks(range(len(temperatures)), temperatures)
    panels[0].set_ylabel("temperature")
    bar = figure.colorbar(
        image, ax=panels, shrink=0.9, format=lambda value, _: f"{100 * value:+.0f}"
    )
    bar.set_label("share minus true share, points")
    return figure


@dataclass(frozen=True)
class FirstTokens:
    """Predictions after a token, after two and after three of it."""

    token: int
    """Token after which the optimal prediction changes most."""
    predictions: dict[str, list[list[float]]]
    """Predictions after that token, of the optimum and of each model by name."""
    change: dict[str, float]
    """Largest change of a probability from one to three times, over all tokens."""


def measure_first_tokens(run: Run) -> FirstTokens:
    """Return predictions of the optimum and of the models that the settings compare."""
    runs = torch.arange(DATA.vocab_size)[:, None].expand(-1, 3)
    predictions = {"optimal": optimal_predictions(runs, DATA)}
    for name in run.settings.compared:
        model, _ = train_model(run, name)
        predictions[name] = model(runs).detach().double().softmax(dim=-1)
    changes = {
        name: (after_run[:, 2] - after_run[:, 0]).abs().amax(dim=-1)
        for name, after_run in predictions.items()
    }
    token = int(changes["optimal"].argmax())
    return FirstTokens(
        token=token,
        predictions={name: after_run[token].tolist() for name, after_run in predictions.items()},
        change={name: float(change.max()) for name, change in changes.items()},
    )


@in_style
def draw_first_tokens(first: FirstTokens) -> Figure:
    """Draw the distributions of the next token: a panel for the optimum and each model."""
    figure, panels = new_figure(
        3.6 * len(first.predictions), 3.4, columns=len(first.predictions), sharey=True
    )
    places = np.arange(DATA.vocab_size)
    for axes, (name, rows) in zip(panels, first.predictions.items(), strict=True):
        for number, row in enumerate(rows):
            label = "after " + " ".join([str(first.token)] * (number + 1))
            colour = LINES[number]["color"]
            hatch = HATCHES[number]
            axes.bar(
                places + 0.27 * (number - 1),
                row,
                0.27,
                label=label,
                color=colour,
                hatch=hatch,
                edgecolor=BLACK,
            )
        title = MODELS[name].title if name in MODELS else name
        axes.set(title=title, xlabel="next token", xticks=places)
    panels[0].set_ylabel("probability")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure
