"""What the number of heads and the positions change: accuracy, and how attention is spread over a text."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch

from glassformer.classifier import Classifier
from glassformer.data.batches import TextBatches, in_length_order, pad
from glassformer.data.examples import Example, SentimentData
from glassformer.errors import require
from glassformer.labs.sentiment.recipes import FROM_SCRATCH, ScratchRecipe
from glassformer.labs.sentiment.training_runs import build_classifier
from glassformer.observe.attention_measures import distances, divergence, entropy
from glassformer.observe.capture import capture
from glassformer.training import train
from glassformer.training.classification import ClassificationTask

COUNTS = (1, 2, 4, 8)
_BATCH = 64


@dataclass(frozen=True)
class HeadSpread:
    """How one head spreads its attention, the mean over all queries of all held-out texts.

    Attributes:
        layer: From 0.
        head: From 0.
        entropy: Of a query's weights, in nats.
        distance: Of a key from its query in positions, weighted by attention.
    """

    layer: int
    head: int
    entropy: float
    distance: float


@dataclass(frozen=True)
class LayerDifference:
    """How different the heads of a layer are.

    Attributes:
        layer: From 0.
        divergence: The Jensen-Shannon divergence between the rows of two heads, in nats and so at most ln 2 = 0.693;
            the mean over pairs of heads and queries. 0 where there is one head.
    """

    layer: int
    divergence: float


@dataclass(frozen=True)
class HeadsRun:
    """One trained encoder.

    Attributes:
        num_heads: Of the same width together.
        positions: "sinusoidal" or "none".
        seed: Of weights, order and dropout.
        validation_accuracy: After the last step, in [0, 1].
        spreads: One for each head.
        differences: One for each layer.
    """

    num_heads: int
    positions: str
    seed: int
    validation_accuracy: float
    spreads: list[HeadSpread]
    differences: list[LayerDifference]


@dataclass(frozen=True)
class HeadsResult:
    """All runs.

    Attributes:
        hidden_dim: The width that heads share.
        uniform_entropy: The entropy of a head that sees all tokens of its text alike, in nats.
        uniform_distance: Its distance.
        num_validated: Texts in ``validation_accuracy``.
        by_count: One for each number of heads and seed, with the recipe's positions.
        by_positions: One for each kind of positions and seed, with the recipe's number of heads; those that are in
            ``by_count`` too were trained once.
    """

    hidden_dim: int
    uniform_entropy: float
    uniform_distance: float
    num_validated: int
    by_count: list[HeadsRun]
    by_positions: list[HeadsRun]

    def accuracy(self, num_heads: int) -> float:
        """The mean over seeds, with the recipe's positions."""
        return statistics.fmean(run.validation_accuracy for run in self.by_count if run.num_heads == num_heads)

    def accuracy_with(self, positions: str) -> float:
        """The mean over seeds, with the recipe's number of heads."""
        return statistics.fmean(run.validation_accuracy for run in self.by_positions if run.positions == positions)


def measure_heads(
    data: SentimentData,
    counts: Sequence[int] = COUNTS,
    seeds: Sequence[int] = (0, 1, 2),
    recipe: ScratchRecipe = FROM_SCRATCH,
) -> HeadsResult:
    """Train the recipe with other numbers of heads and other positions; look at the validation texts alone.

    Args:
        data: What to train and validate on. Its test part is left alone.
        counts: Numbers of heads, divisors of the recipe's width.
        seeds: One training each.
        recipe: What is varied.

    Raises:
        InputError: No counts or seeds, or a count that does not divide the width.
        KeyboardInterrupt: A training was interrupted.
    """
    require(
        len(counts) > 0 and len(seeds) > 0,
        f"counts = {tuple(counts)}, seeds = {tuple(seeds)}",
        "at least one of both",
        "Pass (1, 4) and (0,), for example.",
    )
    usual_heads, usual_positions = recipe.model["num_heads"], recipe.model["positions"]
    runs: dict[tuple[int, str, int], HeadsRun] = {}

    def run(num_heads: int, positions: str, seed: int) -> HeadsRun:
        key = num_heads, positions, seed
        if key not in runs:
            model = {**recipe.model, "num_heads": num_heads, "positions": positions}
            runs[key] = _run(dataclasses.replace(recipe, model=model), data, seed)
        return runs[key]

    by_count = [run(count, usual_positions, seed) for count in counts for seed in seeds]
    by_positions = [run(usual_heads, positions, seed) for positions in ("none", "sinusoidal") for seed in seeds]
    classifier = build_classifier(recipe, [example.text for example in data.train], data.classes, seeds[0])
    lengths = [len(row) for row in classifier.rows([example.text for example in data.validation])]
    return HeadsResult(
        hidden_dim=recipe.model["hidden_dim"],
        # Each query counts once, so a text of n tokens counts n times.
        uniform_entropy=float(_weighted([float(torch.tensor(n).log()) for n in lengths], lengths)),
        uniform_distance=float(_weighted([(n * n - 1) / (3 * n) for n in lengths], lengths)),
        num_validated=len(data.validation),
        by_count=by_count,
        by_positions=by_positions,
    )


def _run(recipe: ScratchRecipe, data: SentimentData, seed: int) -> HeadsRun:
    classifier = build_classifier(recipe, [example.text for example in data.train], data.classes, seed)

    def batches(examples: Sequence[Example]) -> TextBatches:
        rows = classifier.rows([example.text for example in examples])
        return TextBatches(rows, [example.label for example in examples], classifier.tokenizer.pad_id, seed=seed)

    task = ClassificationTask(
        batches(data.train),
        batches(data.validation),
        len(data.classes),
        word_dropout=recipe.training.word_dropout,
        label_smoothing=recipe.training.label_smoothing,
    )
    result = train(classifier.encoder, task, recipe.training.config(len(data.train), seed), progress=False)
    if result.ending == "interrupted":
        raise KeyboardInterrupt
    spreads, differences = _look(classifier, [example.text for example in data.validation])
    return HeadsRun(
        num_heads=recipe.model["num_heads"],
        positions=recipe.model["positions"],
        seed=seed,
        validation_accuracy=result.evaluations[-1][1]["accuracy"],
        spreads=spreads,
        differences=differences,
    )


@torch.inference_mode()
def _look(classifier: Classifier, texts: Sequence[str]) -> tuple[list[HeadSpread], list[LayerDifference]]:
    encoder, rows = classifier.encoder.eval(), classifier.rows(texts)
    layers, heads = encoder.config.num_layers, encoder.config.num_heads
    device = next(encoder.parameters()).device
    (entropies, apart), divergences = np.zeros((2, layers, heads)), np.zeros(layers)
    pairs = list(combinations(range(heads), 2))
    queries = sum(len(row) for row in rows)
    for chosen in in_length_order([len(row) for row in rows], _BATCH):
        tokens, real = (each.to(device) for each in pad([rows[index] for index in chosen], classifier.tokenizer.pad_id))
        counted = real.cpu().numpy()
        with torch.no_grad(), capture(encoder) as seen:
            encoder.hidden(tokens, real)
        for layer, weights in enumerate(seen.numpy("weights").values()):
            entropies[layer] += (entropy(weights) * counted[:, None]).sum((0, 2))
            apart[layer] += (distances(weights) * counted[:, None]).sum((0, 2))
            for one, other in pairs:
                divergences[layer] += (divergence(weights[:, one], weights[:, other]) * counted).sum() / len(pairs)
    spreads = [
        HeadSpread(layer, head, float(entropies[layer, head]) / queries, float(apart[layer, head]) / queries)
        for layer in range(layers)
        for head in range(heads)
    ]
    return spreads, [LayerDifference(layer, float(divergences[layer]) / queries) for layer in range(layers)]


def _weighted(values: Sequence[float], counts: Sequence[int]) -> float:
    return sum(value * count for value, count in zip(values, counts, strict=True)) / sum(counts)
