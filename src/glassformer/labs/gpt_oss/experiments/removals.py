"""Which heads and experts a model needs: each is taken out in two ways, and the accuracy is measured again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Int64
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from glassformer.data.bayes import optimal_predictions
from glassformer.figures.style import BLACK, LINES, in_style, new_figure
from glassformer.labs import wording
from glassformer.labs.gpt_oss.experiments.models import MODELS, train_model
from glassformer.labs.gpt_oss.experiments.sequences import DATA, measured_of
from glassformer.labs.run import Run
from glassformer.models import Decoder
from glassformer.observe.capture import capture
from glassformer.observe.edits import Edit, mean, zero
from glassformer.observe.intervene import intervene

SETTLED = 12
"""From this position on, accuracies are compared between states that are new in the sequence and those that return."""


@dataclass(frozen=True)
class Accuracy:
    """The share of next tokens that are predicted, in [0, 1]."""

    by_position: list[float]
    new: float  # from SETTLED on, after a state (the last two tokens) that the sequence did not have before
    returning: float  # and after one that it had

    @property
    def mean(self) -> float:
        """Over all positions."""
        return wording.mean(self.by_position)

    @property
    def ranges(self) -> list[float]:
        """Over positions 0 to 2, 3 to 11, and 12 on."""
        return [wording.mean(self.by_position[start:stop]) for start, stop in ((0, 3), (3, SETTLED), (SETTLED, None))]


@dataclass(frozen=True)
class Cost:
    """The accuracy that is lost without a part, at all positions and from SETTLED on."""

    mean: float
    error: float  # the standard error of the mean over sequences
    new: float
    returning: float


@dataclass(frozen=True)
class Part:
    """A head or an expert."""

    layer: int
    number: int
    zeroed: Cost  # its output is 0
    replaced: Cost  # a head gives its mean output; an expert's tokens go to the experts that the router ranks next
    use: float  # a head's attention on what followed this state before; an expert's share of all choices


@dataclass(frozen=True)
class Removals:
    """One trained model without each of its heads and experts."""

    seed: int
    intact: Accuracy
    heads: list[Part]
    experts: list[Part]
    without_head: Accuracy  # the one whose zeroing costs most
    without_expert: Accuracy | None

    def layers(self, kind: str, way: str = "zeroed") -> list[float]:
        """The mean cost of a layer's parts; ``kind`` is "heads" or "experts", ``way`` "zeroed" or "replaced"."""
        costs: dict[int, list[float]] = {}
        for part in getattr(self, kind):
            costs.setdefault(part.layer, []).append(getattr(part, way).mean)
        return [wording.mean(each) for each in costs.values()]


@dataclass(frozen=True)
class Removed:
    """The trainings of one model, one for each seed, and the optimum on the same sequences."""

    model: str
    num_sequences: int
    optimum: Accuracy
    seeds: list[Removals]


def costliest(parts: list[Part]) -> Part:
    """The part whose zeroing costs most."""
    return max(parts, key=lambda part: part.zeroed.mean)


def measure(run: Run) -> Removed:
    """Take each head and expert out of the settings' model."""
    name, tokens = run.settings.removed, measured_of(run).tokens[: run.settings.num_removed]

    def one(number: int) -> Removals:
        print(f"{MODELS[name].title}, seed {run.seed + number}: without each head and expert", flush=True)
        return removals(train_model(run, name, number)[0], tokens, run.seed + number)

    return Removed(
        model=name,
        num_sequences=len(tokens),
        optimum=_accuracy(optimal_predictions(tokens[:, :-1], DATA).argmax(-1) == tokens[:, 1:], returns(tokens)),
        seeds=[
            run.kept(f"removals-{number}", Removals, partial(one, number))
            for number in range(min(MODELS[name].seeds, run.settings.most_seeds))
        ],
    )


@torch.no_grad()
def removals(model: Decoder, tokens: Int64[Tensor, "batch emitted"], seed: int) -> Removals:
    """Take each head and expert out of ``model``, which predicts the tokens of each sequence after the first."""
    inputs, again, config = tokens[:, :-1], returns(tokens), model.config
    kinds = ["heads", "weights", *(["choices"] if config.num_experts else [])]
    with capture(model, what=kinds) as seen:
        model(inputs)
    weights, choices = list(seen.weights.values()), list(seen.last("choices").values())
    followed = _same(inputs).roll(1, dims=2)  # the tokens after earlier occurrences of a position's state
    intact = _hits(model, tokens)

    def cost(edit: Edit) -> Cost:
        lost = intact.double() - _hits(model, tokens, edit).double()
        late, back = lost[:, SETTLED:], again[:, SETTLED:]
        error = float(lost.mean(1).std()) / len(lost) ** 0.5
        return Cost(float(lost.mean()), error, float(late[~back].mean()), float(late[back].mean()))

    heads = [
        Part(
            layer,
            head,
            cost(zero("heads", layers=layer, heads=head)),
            cost(mean("heads", seen, layers=layer, heads=head)),
            float((weights[layer][:, head] * followed).sum(-1)[:, SETTLED:][again[:, SETTLED:]].mean()),
        )
        for layer in range(config.num_layers)
        for head in range(config.num_heads)
    ]
    experts = []
    for layer, chosen in enumerate(choices):
        for expert in range(config.num_experts or 0):
            where = {"layers": layer, "experts": expert}
            use = float((chosen == expert).double().mean())
            zeroed = cost(zero("experts", **where)) if use else Cost(0.0, 0.0, 0.0, 0.0)
            experts.append(Part(layer, expert, zeroed, cost(zero("router", **where)), use))

    def without(parts: list[Part], edit: Callable[[Part], Edit]) -> Accuracy:
        return _accuracy(_hits(model, tokens, edit(costliest(parts))), again)

    return Removals(
        seed,
        _accuracy(intact, again),
        heads,
        experts,
        without(heads, lambda part: zero("heads", layers=part.layer, heads=part.number)),
        without(experts, lambda part: zero("experts", layers=part.layer, experts=part.number)) if experts else None,
    )


def returns(tokens: Int64[Tensor, "batch emitted"]) -> Bool[Tensor, "batch position"]:
    """Where a state, the last two tokens up to a position, occurred before in its sequence."""
    return _same(tokens[:, :-1]).any(-1)


def _same(inputs: Tensor) -> Bool[Tensor, "batch query key"]:
    """Which earlier positions have the state of a position; position 0 has none."""
    states = inputs[:, :-1] * DATA.vocab_size + inputs[:, 1:]
    same = torch.zeros(*inputs.shape, inputs.shape[1], dtype=torch.bool)
    same[:, 1:, 1:] = (states[:, :, None] == states[:, None]).tril(-1)
    return same


def _hits(model: Decoder, tokens: Tensor, *edits: Edit) -> Bool[Tensor, "batch position"]:
    with intervene(model, *edits):
        return model(tokens[:, :-1]).argmax(-1) == tokens[:, 1:]


def _accuracy(hits: Tensor, again: Tensor) -> Accuracy:
    late, back = hits[:, SETTLED:].double(), again[:, SETTLED:]
    return Accuracy(hits.double().mean(0).tolist(), float(late[~back].mean()), float(late[back].mean()))


@in_style
def draw(removed: Removed) -> Figure:
    """What each head and expert costs, by layer and seed, and accuracy by position without the costliest."""
    kinds = ["heads", "experts"] if removed.seeds[0].experts else ["heads"]
    figure, axes = new_figure(1 + 5 * len(kinds), 7.6, rows=2, columns=len(kinds), sharey="row")
    for kind, above, below in zip(kinds, axes, axes[len(kinds) :], strict=False):
        _draw_costs(above, removed.seeds, kind)
        below.plot(removed.optimum.by_position, color=BLACK, linewidth=2.4, label="optimal", zorder=1)
        for series, found in enumerate(removed.seeds):
            part = costliest(getattr(found, kind))
            without = found.without_head if kind == "heads" else found.without_expert
            assert without is not None
            style = {**LINES[series], "marker": ""}
            below.plot(found.intact.by_position, **style, alpha=0.4)
            label = f"seed {found.seed}, without {kind[:-1]} {part.number + 1} of layer {part.layer + 1}"
            below.plot(without.by_position, label=label, **style)
        title = f"Without the costliest {kind[:-1]} (pale: intact)"
        below.set(title=title, xlabel="position in the sequence", ylim=(0, 1), xlim=(-0.5, 63.5))
        below.legend(loc="lower right", fontsize=9)
    axes[0].set_ylabel("accuracy lost, percentage points")
    axes[len(kinds)].set_ylabel("accuracy")
    return figure


def _draw_costs(ax: Axes, seeds: list[Removals], kind: str) -> None:
    """A point for each part: filled if zeroed, open if replaced, with two standard errors."""
    for series, found in enumerate(seeds):
        for ways, fill, words in (("zeroed", "full", ""), ("replaced", "none", ", replaced")):
            costs = [(part.layer, getattr(part, ways)) for part in getattr(found, kind)]
            places = [layer + 1 + 0.22 * (series - (len(seeds) - 1) / 2) + (0.08 if words else 0) for layer, _ in costs]
            ax.errorbar(
                places,
                [100 * cost.mean for _, cost in costs],
                [200 * cost.error for _, cost in costs],
                label=f"seed {found.seed}{words}",
                **{**LINES[series], "linestyle": "none", "fillstyle": fill, "markersize": 5, "elinewidth": 0.8},
            )
    ax.axhline(0, color=BLACK, linewidth=0.8)
    ax.set_xticks(range(1, len(seeds[0].layers(kind)) + 1))
    ax.set(title=f"What each of the {kind} costs", xlabel="layer")
    ax.legend(fontsize=9)
