"""Fresh facts in each encoding: how often models are right, and which of two steps fails.

The cross-attention has to *find* the slot that holds the queried key, and what follows has to *read* the value from it.
Finding is measured by where the weight is largest, reading by letting the decoder see the right slot alone. Of the
scores three numbers are kept, averaged over heads: the *gap* is the right slot's score minus the mean of the others',
the *noise* their standard deviation, and the *margin* the right slot's score minus the largest of the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from glassformer.data.in_context_lookup import Facts, Source, Split, bag_ceiling, encode, reordered, sample
from glassformer.figures.style import BLACK, BLUE, ORANGE, RED, SKY, in_style, line, new_figure
from glassformer.labs.lookup.experiments.course_runs import draw_bars
from glassformer.labs.run import Run
from glassformer.models.encoder_decoder import EncoderDecoder
from glassformer.observe.capture import capture
from glassformer.training.in_context_lookup import MEASURING_SEED, InContextRecipe, build_model, train_in_context

if TYPE_CHECKING:
    from glassformer.labs.lookup.experiments import Results


@dataclass(frozen=True)
class Lookup:
    """What a model does with contexts of so many facts; see :func:`measure_length`.

    Shares are in [0, 1], of all questions; None is what the encoding or one fact lacks.
    """

    num_facts: int
    num_questions: int
    accuracy: float
    found: float | None  # the right slot has the largest weight, averaged over heads
    read: float | None  # right when the decoder sees the right slot alone
    sharpness: list[float]  # each head's weight on the positions that determine the answer
    gap: float | None
    noise: float | None
    margin: float | None


LENGTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
NAMES = {"slots": "slots", "bag": "bag of tokens", "positions": "tokens with positions"}
_PLACES_PER_BATCH = 16_384


@dataclass(frozen=True)
class Order:
    """The same contexts in another order."""

    num_questions: int
    answers_changed: int
    largest_change: float  # of a logit


@dataclass(frozen=True)
class Answers:
    """The model of a recipe and a seed."""

    recipe: InContextRecipe
    seed: int
    num_parameters: int
    lengths: list[Lookup]
    sharpness_before: list[float]  # of the untrained model, at the most facts trained on
    order: Order  # at the most facts trained on

    def at(self, num_facts: int) -> Lookup | None:
        """With so many facts; None where there are too few keys or values."""
        return next((length for length in self.lengths if length.num_facts == num_facts), None)


def measure(current: Run, recipe: InContextRecipe, seed: int) -> Answers:
    """Train the model of ``recipe`` and measure it at the lengths that its keys and values suffice for."""
    name, settings = f"{recipe.directory}-{seed}", current.settings

    def compute() -> Answers:
        print(f"fresh facts: {recipe.name}, seed {seed}, {recipe.steps:,} steps", flush=True)
        longest, few = recipe.data.max_facts, min(1000, settings.num_questions)
        before = measure_length(build_model(recipe, seed).eval(), recipe, longest, few)
        model, _ = train_in_context(recipe, seed, current.out / "trainings" / name)
        lengths = [count for count in settings.lengths if count <= recipe.data.most_facts]
        return Answers(
            recipe=recipe,
            seed=seed,
            num_parameters=sum(weight.numel() for weight in model.parameters()),
            lengths=[measure_length(model, recipe, count, settings.num_questions) for count in lengths],
            sharpness_before=before.sharpness,
            order=measure_order(model, recipe, longest, few),
        )

    return current.kept(name, Answers, compute)


@torch.no_grad()
def measure_length(
    model: EncoderDecoder, recipe: InContextRecipe, num_facts: int, num_questions: int, seed: int = 0
) -> Lookup:
    """Ask questions about contexts of so many facts, from seeds that training does not use.

    Where training leaves pairings out, each pairing of these contexts is one of those. With more than 64 facts fewer
    questions are asked (256 at least), so that the time stays in bounds. Weights are those of the last cross-attention,
    and a weight's logarithm stands for its score.
    """
    num_questions = min(num_questions, max(256, num_questions * 64 // num_facts))
    parts: dict[str, list[Tensor]] = defaultdict(list)
    name = f"decoder_layers.{len(model.decoder_layers) - 1}.cross_attention"
    for facts, source in contexts(recipe, num_facts, num_questions, seed):
        query, answer, tokens = facts.query[:, None], facts.answer[:, None], source.tokens
        with capture(model, [name]) as seen:
            memory = model.encode(tokens, source.real)
            logits = model.decode(query, memory, source.real)[:, -1]
        weights = seen.weights[name][:, :, -1]
        parts["accuracy"].append(logits.argmax(-1) == facts.answer)
        if tokens.dim() == 2:  # not slots
            on = (tokens == query) | (tokens == answer)
            parts["sharpness"].append((weights * on[:, None]).sum(-1))
            continue
        right = tokens[..., 0] == query
        parts["sharpness"].append(weights[right[:, None].expand_as(weights)].view(weights.shape[:2]))
        parts["found"].append(weights.mean(1).argmax(-1) == facts.place)
        parts["read"].append(model.decode(query, memory, right)[:, -1].argmax(-1) == facts.answer)
        if num_facts > 1:
            # Differences of scores are those of the weights' logarithms; the smallest are held above underflow.
            scores, is_right = weights.clamp(min=1e-30).log(), right[:, None].expand_as(weights)
            best = scores[is_right].view(weights.shape[:2])
            others = scores[~is_right].view(*weights.shape[:2], num_facts - 1)
            parts["gap"].append(best - others.mean(-1))
            parts["margin"].append(best - others.amax(-1))
            parts["variance"].append(others.var(-1, correction=min(1, num_facts - 2)))
    mean = {name: torch.cat(values).double().mean(0) for name, values in parts.items()}
    shares = {name: float(mean[name].mean()) if name in mean else None for name in ("found", "read", "gap", "margin")}
    noise = float(mean["variance"].sqrt().mean()) if num_facts > 2 and "variance" in mean else None
    accuracy, sharpness = float(mean["accuracy"]), mean["sharpness"].tolist()
    return Lookup(num_facts, num_questions, accuracy, sharpness=sharpness, noise=noise, **shares)


@torch.no_grad()
def measure_order(
    model: EncoderDecoder, recipe: InContextRecipe, num_facts: int, num_questions: int, seed: int = 0
) -> Order:
    """Ask the same questions about contexts and about the same contexts in another random order."""
    changed, largest = 0, 0.0
    for facts, source in contexts(recipe, num_facts, num_questions, seed):
        moved = encode(reordered(facts, seed=seed + 1), recipe.encoding, seed=seed + 1)
        first = model(source.tokens, facts.query[:, None], source.real)[:, -1]
        second = model(moved.tokens, facts.query[:, None], moved.real)[:, -1]
        changed += int((first.argmax(-1) != second.argmax(-1)).sum())
        largest = max(largest, float((first - second).abs().max()))
    return Order(num_questions, changed, largest)


def contexts(recipe: InContextRecipe, num_facts: int, count: int, seed: int) -> Iterator[tuple[Facts, Source]]:
    """Batches of questions about so many facts, from seeds that training does not use."""
    split: Split = "unseen" if recipe.asks_unseen else "all"
    seed += MEASURING_SEED + 1
    size = max(1, min(500, _PLACES_PER_BATCH // num_facts))
    for step, start in enumerate(range(0, count, size)):
        now = min(size, count - start)
        facts = sample(recipe.data, now, seed, split=split, step=step, num_facts=num_facts)
        yield facts, encode(facts, recipe.encoding, seed=seed, step=step)


def accuracies(models: Sequence[Answers], num_facts: int) -> list[float]:
    """Of each seed, where so many facts were measured."""
    return [length.accuracy for model in models if (length := model.at(num_facts)) is not None]


@in_style
def draw_accuracy(results: Results) -> Figure:
    """Accuracy over the number of facts: the encodings, and slots with keys enough for long contexts."""
    figure, axes = new_figure(11 if results.plain else 7, 4.8, columns=2 if results.plain else 1, sharey=True)
    bag = results.encodings["bag"][0]
    facts = [length.num_facts for length in bag.lengths]
    best = [bag_ceiling(bag.recipe.data, count) for count in facts]
    axes[0].plot(facts, best, color=BLACK, linewidth=5, alpha=0.25, label="best possible for a bag")
    # The points of bag and positions lie on one another: large open markers around small ones.
    for series, (encoding, models) in enumerate(results.encodings.items()):
        style = {"markersize": 9, "markerfacecolor": "none", "linestyle": "none"} if encoding == "bag" else {}
        _draw_seeds(axes[0], models, series, f"{NAMES[encoding]}, {models[0].recipe.data.num_keys} keys", **style)
    drawn = [results.encodings["slots"]]
    if results.plain:
        best_change = max([*results.changes, *results.combined], key=lambda model: model.lengths[-1].accuracy)
        drawn += [results.plain, [best_change]]
        for series, models in enumerate(drawn[1:], start=3):
            recipe = models[0].recipe
            _draw_seeds(axes[1], models, series, fill(f"slots, {recipe.data.num_keys:,} keys: {recipe.name}", 46))
            axes[1].axvline(recipe.data.max_facts, color=line(series, 2)["color"], linestyle=":", linewidth=1.6)
    axes[0].axvspan(1, bag.recipe.data.max_facts, color="#dddddd", linewidth=0, zorder=0, label="trained on")
    axes[0].set(title="Three encodings", ylabel="share answered right", ylim=(0, 1.04))
    axes[-1].set(title="Slots with more keys (dotted: longest trained on)") if results.plain else None
    for ax, models in zip(axes, (drawn[0], drawn[-1]), strict=False):
        _facts_axis(ax, [length.num_facts for length in models[0].lengths])
    return figure


@in_style
def draw_finding(results: Results) -> Figure:
    """What fails as facts become more, in slots: finding or reading; and the scores that finding rests on."""
    model = limited(results)[0]
    figure, axes = new_figure(10, 4.6, columns=2)
    panels: tuple[dict[str, Callable[[Lookup], float | None]], ...] = (
        {
            "answered right": lambda length: length.accuracy,
            "right slot has the largest weight": lambda length: length.found,
            "right when the decoder sees the right slot alone": lambda length: length.read,
            "weight on the right slot, mean over heads": lambda length: float(np.mean(length.sharpness)),
        },
        {
            "gap: right slot above the mean of the others": lambda length: length.gap,
            "margin: right slot above the largest of the others": lambda length: length.margin,
            "noise: standard deviation of the others": lambda length: length.noise,
        },
    )
    for ax, panel in zip(axes, panels, strict=True):
        for series, (label, value) in enumerate(panel.items()):
            points = [(each.num_facts, value(each)) for each in model.lengths if value(each) is not None]
            ax.plot(*zip(*points, strict=True), label=label, **{**line(series, len(points)), "markevery": None})
        ax.axvspan(1, model.recipe.data.max_facts, color="#dddddd", linewidth=0, zorder=0)
        _facts_axis(ax, [length.num_facts for length in model.lengths])
    name = f"{model.recipe.name}, seed {model.seed}"
    axes[0].set(title=f"Finding and reading ({name})", ylabel="share", ylim=(0, 1.04))
    axes[1].set(title=f"Scores, mean over heads ({name})", ylabel="score")
    axes[1].axhline(0, color=BLACK, linewidth=0.8)
    return figure


@in_style
def draw_slot_sharpness(results: Results) -> Figure:
    """Each head's weight on the slot of the queried key, before training and after."""
    model = results.encodings["slots"][0]
    trained = model.at(model.recipe.data.max_facts)
    assert trained is not None
    figure, (ax,) = new_figure(5.5, 3.8)
    draw_bars(ax, model.sharpness_before, "before training", SKY)
    draw_bars(ax, trained.sharpness, "after", BLUE)
    ax.axhline(1 / trained.num_facts, color=BLACK, linestyle="--", linewidth=1, label="equal weights")
    title = f"Weight on the right slot of {trained.num_facts} (seed {model.seed})"
    ax.set(title=title, ylabel="attention weight")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=3)
    return figure


@in_style
def draw_changes(results: Results) -> Figure | None:
    """Accuracy of the slots with one thing changed at a time, and above a line with several; the best at the top."""
    if not results.plain:
        return None

    def reach(models: Sequence[Answers]) -> float:
        return float(np.median([model.lengths[-1].accuracy for model in models]))

    singles = sorted([results.plain, *([model] for model in results.changes)], key=reach)
    groups = [*singles, *sorted(([model] for model in results.combined), key=reach)]
    figure, (ax,) = new_figure(8.5, 1.6 + 0.36 * len(groups))
    for count, color, marker in ((64, BLUE, "o"), (256, ORANGE, "D"), (1024, RED, "s")):
        for place, models in enumerate(groups):
            values = accuracies(models, count)
            label = f"{count:,} facts" if place == 0 else None
            ax.plot(
                values, [place] * len(values), linestyle="none", markersize=7, label=label, color=color, marker=marker
            )
    names = [models[0].recipe.name + (f" ({len(models)} seeds)" if len(models) > 1 else "") for models in groups]
    ax.set_yticks(range(len(groups)), [fill(name, 30) for name in names])
    ax.axhline(len(singles) - 0.5, color=BLACK, linewidth=0.8)
    title = "One thing changed at a time,\nabove the line several together"
    ax.set(title=title, xlabel="share answered right", xlim=(0, 1.02))
    ax.legend(loc="upper center", bbox_to_anchor=(0.4, -0.12 - 0.5 / len(groups)), ncols=3)
    return figure


def limited(results: Results) -> list[Answers]:
    """The slots, one for each seed, that were measured with the most facts."""
    return results.plain or results.encodings["slots"]


def _draw_seeds(ax: Axes, models: Sequence[Answers], series: int, label: str, **style: Any) -> None:
    """The median over seeds, and the range."""
    facts = [length.num_facts for length in models[0].lengths]
    values = np.array([[length.accuracy for length in model.lengths] for model in models])
    look = {**line(series, len(facts)), "markevery": None, **style}
    ax.plot(facts, np.median(values, axis=0), label=label, **look)
    ax.fill_between(facts, values.min(0), values.max(0), color=look["color"], alpha=0.2, linewidth=0)


def _facts_axis(ax: Axes, counts: Sequence[int]) -> None:
    ax.set_xscale("log", base=2)
    ax.set_xticks(counts, [f"{count:,}" for count in counts])
    ax.minorticks_off()
    ax.set_xlabel("facts in the context")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), fontsize=9)
