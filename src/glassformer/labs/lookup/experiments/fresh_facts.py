"""Fresh facts in each encoding: how often models are right, where they look, and whether the order
matters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from glassformer.data.in_context_lookup import (
    Facts,
    Source,
    Split,
    bag_ceiling,
    encode,
    reordered,
    sample,
)
from glassformer.figures.style import BLACK, BLUE, SKY, in_style, line, new_figure
from glassformer.labs.lookup.experiments.course_runs import draw_bars
from glassformer.labs.run import Run
from glassformer.models.encoder_decoder import EncoderDecoder
from glassformer.observe.capture import capture
from glassformer.training.in_context_lookup import (
    MEASURING_SEED,
    InContextRecipe,
    build_model,
    train_in_context,
)

if TYPE_CHECKING:
    from glassformer.labs.lookup.experiments import Results


@dataclass(frozen=True)
class Lookup:
    """What a model does with contexts of so many facts; see :func:`measure_length`."""

    num_facts: int
    num_questions: int
    accuracy: float  # the share right, in [0, 1]
    sharpness: list[float]  # each head's weight on the positions that determine the answer


LENGTHS = (1, 2, 4, 8, 16, 32, 64, 128)
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
    lengths: list[Lookup]
    sharpness_before: list[float]  # of the untrained model, at the most facts trained on
    order: Order  # at the most facts trained on

    def at(self, num_facts: int) -> Lookup | None:
        """With so many facts; None where there are too few keys or values."""
        return next((length for length in self.lengths if length.num_facts == num_facts), None)


def measure(current: Run, recipe: InContextRecipe, seed: int) -> Answers:
    """Train the model of ``recipe`` and measure it at the lengths that its keys and values suffice
    for.
    """
    name = f"{recipe.directory}-{seed}"
    settings = current.settings

    def compute() -> Answers:
        print(f"fresh facts: {recipe.name}, seed {seed}, {recipe.steps:,} steps", flush=True)
        longest = recipe.data.max_facts
        few = min(1000, settings.num_questions)
        before = measure_length(build_model(recipe, seed).eval(), recipe, longest, few)
        model, _ = train_in_context(recipe, seed, current.out / "trainings" / name)
        lengths = [count for count in settings.lengths if count <= recipe.data.most_facts]
        return Answers(
            recipe=recipe,
            seed=seed,
            lengths=[
                measure_length(model, recipe, count, settings.num_questions) for count in lengths
            ],
            sharpness_before=before.sharpness,
            order=measure_order(model, recipe, longest, few),
        )

    return current.kept(name, Answers, compute)


@torch.no_grad()
def measure_length(
    model: EncoderDecoder,
    recipe: InContextRecipe,
    num_facts: int,
    num_questions: int,
    seed: int = 0,
) -> Lookup:
    """Ask questions about contexts of so many facts, from seeds that training does not use.

    Where training leaves pairings out, each pairing of these contexts is one of those. With more
    than 64 facts fewer questions are asked (256 at least), so that the time stays in bounds.
    Weights are those of the last cross-attention.
    """
    num_questions = min(num_questions, max(256, num_questions * 64 // num_facts))
    parts: dict[str, list[Tensor]] = defaultdict(list)
    name = f"decoder_layers.{len(model.decoder_layers) - 1}.cross_attention"
    for facts, source in contexts(recipe, num_facts, num_questions, seed):
        query = facts.query[:, None]
        answer = facts.answer[:, None]
        tokens = source.tokens
        with capture(model, [name]) as seen:
            logits = model(tokens, query, source.real)[:, -1]
        weights = seen.weights[name][:, :, -1]
        parts["accuracy"].append(logits.argmax(-1) == facts.answer)
        slots = tokens.dim() == 3
        if slots:
            on = tokens[..., 0] == query
        else:
            on = (tokens == query) | (tokens == answer)
        parts["sharpness"].append((weights * on[:, None]).sum(-1))
    mean = {name: torch.cat(values).double().mean(0) for name, values in parts.items()}
    return Lookup(num_facts, num_questions, float(mean["accuracy"]), mean["sharpness"].tolist())


@torch.no_grad()
def measure_order(
    model: EncoderDecoder,
    recipe: InContextRecipe,
    num_facts: int,
    num_questions: int,
    seed: int = 0,
) -> Order:
    """Ask the same questions about contexts and about the same contexts in another random order."""
    changed = 0
    largest = 0.0
    for facts, source in contexts(recipe, num_facts, num_questions, seed):
        moved = encode(reordered(facts, seed=seed + 1), recipe.encoding, seed=seed + 1)
        first = model(source.tokens, facts.query[:, None], source.real)[:, -1]
        second = model(moved.tokens, facts.query[:, None], moved.real)[:, -1]
        changed += int((first.argmax(-1) != second.argmax(-1)).sum())
        largest = max(largest, float((first - second).abs().max()))
    return Order(num_questions, changed, largest)


def contexts(
    recipe: InContextRecipe, num_facts: int, count: int, seed: int
) -> Iterator[tuple[Facts, Source]]:
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
    """Accuracy over the number of facts: the median over seeds, and their range."""
    figure, (ax,) = new_figure(8, 4.8)
    bag = results.encodings["bag"][0]
    facts = [length.num_facts for length in bag.lengths]
    best = [bag_ceiling(bag.recipe.data, count) for count in facts]
    ax.plot(facts, best, color=BLACK, linewidth=5, alpha=0.25, label="best possible for a bag")
    for series, (encoding, models) in enumerate(results.encodings.items()):
        counts = [length.num_facts for length in models[0].lengths]
        values = np.array([[length.accuracy for length in model.lengths] for model in models])
        look = {**line(series, len(counts)), "markevery": None}
        # The points of bag and positions lie on one another: large open markers around small ones.
        look |= (
            {"markersize": 9, "markerfacecolor": "none", "linestyle": "none"}
            if encoding == "bag"
            else {}
        )
        label = f"{NAMES[encoding]}, {models[0].recipe.data.num_keys} keys"
        ax.plot(counts, np.median(values, axis=0), label=label, **look)
        ax.fill_between(
            counts, values.min(0), values.max(0), color=look["color"], alpha=0.2, linewidth=0
        )
    ax.axvspan(
        1, bag.recipe.data.max_facts, color="#dddddd", linewidth=0, zorder=0, label="trained on"
    )
    ax.set(
        title="Answers from fresh facts",
        ylabel="share answered right",
        ylim=(0, 1.04),
        xlabel="facts in the context",
    )
    counts = [length.num_facts for length in results.encodings["slots"][0].lengths]
    ax.set_xscale("log", base=2)
    ax.set_xticks(counts, [str(count) for count in counts])
    ax.minorticks_off()
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
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
    ax.axhline(
        1 / trained.num_facts, color=BLACK, linestyle="--", linewidth=1, label="equal weights"
    )
    title = f"Weight on the right slot of {trained.num_facts} (seed {model.seed})"
    ax.set(title=title, ylabel="attention weight")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=3)
    return figure
