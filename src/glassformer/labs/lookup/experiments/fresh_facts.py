"""Models on fresh facts in each encoding: accuracy, attention, and effect of the order."""

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
    """Measurements on contexts of ``num_facts`` facts; see :func:`measure_length`."""

    num_facts: int
    num_questions: int
    accuracy: float
    """Share of right answers, in [0, 1]."""
    sharpness: list[float]
    """Each head's weight on the positions that determine the answer."""


LENGTHS = (1, 2, 4, 8, 16, 32, 64, 128)
NAMES = {"slots": "slots", "bag": "bag of tokens", "positions": "tokens with positions"}
_PLACES_PER_BATCH = 16_384


@dataclass(frozen=True)
class Order:
    """Changes of answers when the same contexts are in another order."""

    num_questions: int
    answers_changed: int
    largest_change: float
    """Largest change of a logit."""


@dataclass(frozen=True)
class Answers:
    """Measurements of a trained model."""

    recipe: InContextRecipe
    seed: int
    lengths: list[Lookup]
    sharpness_before: list[float]
    """Sharpness of the untrained model, with the largest number of facts in training."""
    order: Order
    """Effect of the order, with the largest number of facts in training."""

    def at(self, num_facts: int) -> Lookup | None:
        """Return the measurements with ``num_facts`` facts, or None."""
        return next((length for length in self.lengths if length.num_facts == num_facts), None)


def measure(current: Run, recipe: InContextRecipe, seed: int) -> Answers:
    """Train the model of ``recipe`` and measure it.

    Lengths for which it has too few keys or values are left out.
    """
    name = f"{recipe.directory}-{seed}"
    settings = current.settings

    def compute() -> Answers:
        print(f"fresh facts: {recipe.name}, seed {seed}, {recipe.steps:,} steps", flush=True)
        max_facts = recipe.data.max_facts
        num_questions = min(1000, settings.num_questions)
        untrained = build_model(recipe, seed).eval()
        before = measure_length(untrained, recipe, max_facts, num_questions)
        model, _ = train_in_context(recipe, seed, current.out / "trainings" / name)
        lengths = [
            measure_length(model, recipe, count, settings.num_questions)
            for count in settings.lengths
            if count <= recipe.data.most_facts
        ]
        order = measure_order(model, recipe, max_facts, num_questions)
        return Answers(recipe, seed, lengths, before.sharpness, order)

    return current.kept(name, Answers, compute)


@torch.no_grad()
def measure_length(
    model: EncoderDecoder,
    recipe: InContextRecipe,
    num_facts: int,
    num_questions: int,
    seed: int = 0,
) -> Lookup:
    """Ask questions about contexts of ``num_facts`` facts, from seeds that training does not use.

    If training holds out pairings, all pairings of these contexts are held-out ones. With more than
    64 facts, fewer questions are asked (at least 256) to limit the time. Sharpness is measured in
    the last cross-attention.
    """
    num_questions = min(num_questions, max(256, num_questions * 64 // num_facts))
    parts: dict[str, list[Tensor]] = defaultdict(list)
    name = f"decoder_layers.{len(model.decoder_layers) - 1}.cross_attention"
    for facts, source in contexts(recipe, num_facts, num_questions, seed):
        query = facts.query[:, None]
        answer = facts.answer[:, None]
        tokens = source.tokens
        with capture(model, [name]) as captured:
            logits = model(tokens, query, source.real)[:, -1]
        weights = captured.weights[name][:, :, -1]
        parts["accuracy"].append(logits.argmax(-1) == facts.answer)
        if tokens.dim() == 3:  # slots
            is_relevant = tokens[..., 0] == query
        else:
            is_relevant = (tokens == query) | (tokens == answer)
        parts["sharpness"].append((weights * is_relevant[:, None]).sum(-1))
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
    """Ask the same questions about contexts, and about these contexts in another random order."""
    changed = 0
    largest = 0.0
    for facts, source in contexts(recipe, num_facts, num_questions, seed):
        scrambled = encode(reordered(facts, seed=seed + 1), recipe.encoding, seed=seed + 1)
        query = facts.query[:, None]
        logits = model(source.tokens, query, source.real)[:, -1]
        new_logits = model(scrambled.tokens, query, scrambled.real)[:, -1]
        changed += int((logits.argmax(-1) != new_logits.argmax(-1)).sum())
        largest = max(largest, float((logits - new_logits).abs().max()))
    return Order(num_questions, changed, largest)


def contexts(
    recipe: InContextRecipe, num_facts: int, count: int, seed: int
) -> Iterator[tuple[Facts, Source]]:
    """Yield batches of questions about ``num_facts`` facts, from seeds not used in training."""
    split: Split = "unseen" if recipe.asks_unseen else "all"
    seed += MEASURING_SEED + 1
    size = max(1, min(500, _PLACES_PER_BATCH // num_facts))
    for step, start in enumerate(range(0, count, size)):
        batch_size = min(size, count - start)
        facts = sample(recipe.data, batch_size, seed, split=split, step=step, num_facts=num_facts)
        yield facts, encode(facts, recipe.encoding, seed=seed, step=step)


def accuracies(models: Sequence[Answers], num_facts: int) -> list[float]:
    """Return the accuracy of each seed for which ``num_facts`` was measured."""
    lengths = [model.at(num_facts) for model in models]
    return [length.accuracy for length in lengths if length is not None]


@in_style
def draw_accuracy(results: Results) -> Figure:
    """Draw the accuracy by number of facts: median and range over seeds."""
    figure, (ax,) = new_figure(8, 4.8)
    bag = results.encodings["bag"][0]
    facts = [length.num_facts for length in bag.lengths]
    best = [bag_ceiling(bag.recipe.data, count) for count in facts]
    ax.plot(facts, best, color=BLACK, linewidth=5, alpha=0.25, label="best possible for a bag")
    for series, (encoding, models) in enumerate(results.encodings.items()):
        counts = [length.num_facts for length in models[0].lengths]
        values = np.array([[length.accuracy for length in model.lengths] for model in models])
        look = {**line(series, len(counts)), "markevery": None}
        if encoding == "bag":  # large open markers, because those of positions lie inside
            look |= {"markersize": 9, "markerfacecolor": "none", "linestyle": "none"}
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
    """Draw each head's weight on the slot of the queried key, before and after training."""
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
