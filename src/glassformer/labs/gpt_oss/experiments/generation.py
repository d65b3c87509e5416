"""How a trained model continues sequences under each sampling rule, compared with the true
continuations.

And what it predicts after one token and after a run of it, which attention without sinks cannot
tell apart.
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
    """What continuations are made of, see :func:`behaviour`; every number is a share in [0, 1]."""

    rule: float  # steps that follow the hidden recurrence
    increment: float  # steps that do not, and are the previous token + 1
    neither: float  # steps that are neither
    repeated: float  # runs of four tokens that the same continuation had before
    cycling: float  # continuations whose second half repeats itself, in two rounds or more
    errors: dict[str, float]  # the standard error of each of these over the continuations

    def distance(self, other: Behaviour) -> float:
        """Total variation between the two mixtures of rule, increment and neither, in [0, 1]."""
        return (
            sum(
                abs(getattr(self, name) - getattr(other, name))
                for name in ("rule", "increment", "neither")
            )
            / 2
        )

    def above(self, other: Behaviour, part: str) -> bool:
        """Whether ``part`` is larger than in ``other``, by more than two standard errors of the
        difference.
        """
        error = math.hypot(self.errors[part], other.errors[part])
        return getattr(self, part) - getattr(other, part) > 2 * error


def behaviour(
    sequences: Int64[Tensor, "batch length"],
    coefficients: Int64[Tensor, "batch order"],
    prompt_length: int,
    vocab_size: int,
) -> Behaviour:
    """What the steps after the first ``prompt_length`` tokens are, for generators with these
    ``coefficients``.
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
    """The share of runs of ``_NGRAM`` tokens that occurred before in the same row, for each row."""
    rows = continuation.unfold(1, _NGRAM, 1).tolist()
    return torch.tensor(
        [1 - len({tuple(run) for run in row}) / len(row) for row in rows], dtype=torch.float64
    )


def _cycles(ending: Int64[Tensor, "batch length"]) -> Tensor:
    """Which rows are two or more rounds of one cycle."""
    rounds = [
        (ending[:, n:] == ending[:, :-n]).all(dim=1) for n in range(1, ending.shape[1] // 2 + 1)
    ]
    return torch.stack(rounds).any(dim=0)


_SHOWN_LENGTH = 40
_SURE = 0.9
"""The nucleus of the rules below keeps nothing beside a token of this probability."""

RULES: dict[str, SamplingRule] = {
    "greedy": SamplingRule(temperature=0.0),
    "temperature 0.5": SamplingRule(temperature=0.5),
    "temperature 1": SamplingRule(temperature=1.0),
    "temperature 1.5": SamplingRule(temperature=1.5),
    "top-p 0.9": SamplingRule(top_p=0.9),
    "temp. 1.5, top-p 0.9": SamplingRule(temperature=1.5, top_p=0.9),
}
"""The ways of choosing a token that are compared."""


@dataclass(frozen=True)
class NextToken:
    """Distributions of one next token: the optimal one and the model's under several sampling
    rules.
    """

    by_rule: int
    by_increment: int
    optimal: list[float]
    model: dict[str, list[float]]


@dataclass(frozen=True)
class Generation:
    """How one model continues sequences of held-out generators."""

    model: str
    num_prompts: int
    prompt_length: int
    new_tokens: int
    true: Behaviour
    rules: dict[str, Behaviour]
    temperatures: list[float]
    top_ps: list[float]
    grid: list[list[Behaviour]]  # a row for each temperature
    next_token: NextToken

    def closest(self) -> tuple[float, float, Behaviour]:
        """Temperature, top-p and behaviour of the cell of the grid that is nearest to the true
        sequences.
        """
        cells = [
            (temperature, top_p, cell)
            for temperature, row in zip(self.temperatures, self.grid, strict=True)
            for top_p, cell in zip(self.top_ps, row, strict=True)
        ]
        return min(cells, key=lambda cell: cell[2].distance(self.true))


def measure(run: Run) -> Generation:
    """Continue measured sequences with the settings' model."""
    settings = run.settings
    measured = measured_of(run)
    name = run.settings.continued
    model = train_model(run, name)[0]
    sequences = measured.tokens[
        : settings.num_prompts, : settings.prompt_length + settings.new_tokens
    ]
    coefficients = measured.generators.coefficients[: settings.num_prompts]

    def continued(rule: SamplingRule) -> Behaviour:
        prompts = sequences[:, : settings.prompt_length]
        new = torch.tensor(
            generate(model, prompts, settings.new_tokens, rule=replace(rule, seed=run.seed))
        )
        return behaviour(
            torch.cat([prompts, new], dim=1), coefficients, settings.prompt_length, DATA.vocab_size
        )

    return Generation(
        model=name,
        num_prompts=len(sequences),
        prompt_length=settings.prompt_length,
        new_tokens=settings.new_tokens,
        true=behaviour(sequences, coefficients, settings.prompt_length, DATA.vocab_size),
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
    """The first next token at which rule and increment differ and the model is sure of the rule,
    under each rule.
    """
    measured = measured_of(run)
    contexts = measured.tokens[:, :_SHOWN_LENGTH]
    by_rule = (contexts[:, -DATA.order :] * measured.generators.coefficients).sum(
        dim=1
    ) % DATA.vocab_size
    by_increment = (contexts[:, -1] + 1) % DATA.vocab_size
    chances = model(contexts)[:, -1].softmax(dim=-1).gather(1, by_rule[:, None])[:, 0]
    chances[by_rule == by_increment] = 0
    row = int(chances.clamp(max=_SURE).argmax())
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
    """The model's distribution of one next token under several sampling rules, with the optimal one
    as marks.
    """
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
    """Continuations under each sampling rule and the true ones: what their steps are, and how they
    repeat.
    """
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
    for side, part, words in (
        (-1, "repeated", "runs of 4 tokens seen before"),
        (1, "cycling", "continuations that cycle"),
    ):
        shares = np.array([getattr(row, part) for row in rows.values()])
        colour, hatch = (BLUE, "") if side < 0 else (ORANGE, "///")
        right.barh(
            places + side * 0.19, shares, 0.38, label=words, color=colour, hatch=hatch, **style
        )
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
    """Shares of rule, +1 and neither over temperature and top-p; colours compare them with the true
    sequences.
    """
    figure, panels = new_figure(10, 1.8 + 0.36 * len(generation.grid), columns=3, sharey=True)
    closest = generation.closest()[:2]
    box = generation.top_ps.index(closest[1]), generation.temperatures.index(closest[0])
    for axes, (part, words) in zip(panels, _KINDS.items(), strict=True):
        shares = np.array([[getattr(cell, part) for cell in row] for row in generation.grid])
        true = getattr(generation.true, part)
        image = axes.imshow(
            shares - true, cmap=colour_map(DIVERGING), vmin=-0.3, vmax=0.3, aspect="auto"
        )
        write_values(axes, 100 * shares, image, largest=1)
        axes.add_patch(Rectangle((box[0] - 0.5, box[1] - 0.5), 1, 1, fill=False, linewidth=2))
        axes.set(title=f"{words} (true: {100 * true:.1f} %)", xlabel="top-p")
        axes.set_xticks(
            range(len(generation.top_ps)), [f"{top_p:g}" for top_p in generation.top_ps]
        )
        axes.grid(False)
    panels[0].set_yticks(
        range(len(generation.grid)), [f"{value:g}" for value in generation.temperatures]
    )
    panels[0].set_ylabel("temperature")
    bar = figure.colorbar(
        image, ax=panels, shrink=0.9, format=lambda value, _: f"{100 * value:+.0f}"
    )
    bar.set_label("share minus true share, points")
    return figure


@dataclass(frozen=True)
class FirstTokens:
    """Predictions after one, two and three times the same token."""

    token: int  # the one after which the optimal prediction changes most
    predictions: dict[
        str, list[list[float]]
    ]  # after that token: of the optimum, and of each model by name
    change: dict[
        str, float
    ]  # largest change of a probability from one to three times, over all tokens


def measure_first_tokens(run: Run) -> FirstTokens:
    """Predictions of the optimum and of the models that the settings compare."""
    runs = torch.arange(DATA.vocab_size)[:, None].expand(-1, 3)
    found = {"optimal": optimal_predictions(runs, DATA)}
    for name in run.settings.compared:
        found[name] = train_model(run, name)[0](runs).detach().double().softmax(dim=-1)
    changes = {name: (each[:, 2] - each[:, 0]).abs().amax(dim=-1) for name, each in found.items()}
    token = int(changes["optimal"].argmax())
    return FirstTokens(
        token=token,
        predictions={name: each[token].tolist() for name, each in found.items()},
        change={name: float(change.max()) for name, change in changes.items()},
    )


@in_style
def draw_first_tokens(first: FirstTokens) -> Figure:
    """The distributions of the next token, one panel for the optimum and one for each model."""
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
