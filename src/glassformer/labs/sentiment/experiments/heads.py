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
from glassformer.data.batches import in_length_order, pad
from glassformer.data.examples import SentimentData
from glassformer.labs.sentiment.experiments.recipes import FROM_SCRATCH, ScratchRecipe, train_recipe
from glassformer.observe.attention_measures import divergence, entropy
from glassformer.observe.capture import capture


@dataclass(frozen=True)
class HeadsRun:
    """One trained encoder, and its attention on the validation texts, means over all queries.

    ``entropies`` are of each head, layer by layer; ``divergences`` of each layer: Jensen-Shannon, of the rows of two
    heads. Both in nats.
    """

    num_heads: int
    positions: str
    validation_accuracy: float
    entropies: list[float]
    divergences: list[float]


@dataclass(frozen=True)
class HeadsResult:
    """Runs with other numbers of heads and other positions"""

    hidden_dim: int
    num_heads: int  # of the recipe, as the positions
    positions: str
    num_validated: int
    uniform_entropy: float  # of a head that sees all tokens of its text alike
    runs: list[HeadsRun]

    def of(self, num_heads: int | None = None, positions: str | None = None) -> list[HeadsRun]:
        """The runs of all seeds; None is the recipe's."""
        key = num_heads or self.num_heads, positions or self.positions
        return [run for run in self.runs if (run.num_heads, run.positions) == key]

    def accuracy(self, num_heads: int | None = None, positions: str | None = None) -> float:
        """The mean over seeds."""
        return statistics.fmean(run.validation_accuracy for run in self.of(num_heads, positions))


def measure_heads(
    data: SentimentData, counts: Sequence[int], seeds: Sequence[int], recipe: ScratchRecipe = FROM_SCRATCH
) -> HeadsResult:
    """Train the recipe with other numbers of heads and other positions; the test part is left alone."""
    usual, positions = recipe.model["num_heads"], recipe.model["positions"]
    other = "sinusoidal" if positions == "none" else "none"
    tried = list(dict.fromkeys([*((count, positions) for count in counts), (usual, positions), (usual, other)]))
    runs, lengths = [], [1]
    for count, kind in tried:
        for seed in seeds:
            model = {**recipe.model, "num_heads": count, "positions": kind}
            classifier, epochs = train_recipe(dataclasses.replace(recipe, model=model), data, None, seed)
            rows = classifier.rows([example.text for example in data.validation])
            lengths = [len(row) for row in rows]
            accuracy = epochs[-1].validation_accuracy
            runs.append(HeadsRun(count, kind, accuracy, *attention_spread(classifier, rows)))
    return HeadsResult(
        hidden_dim=recipe.model["hidden_dim"],
        num_heads=usual,
        positions=positions,
        num_validated=len(data.validation),
        # Each query counts once, so a text of n tokens counts n times.
        uniform_entropy=float(np.average(np.log(lengths), weights=lengths)),
        runs=runs,
    )


@torch.no_grad()
def attention_spread(classifier: Classifier, rows: Sequence[list[int]]) -> tuple[list[float], list[float]]:
    """Entropies and divergences, as in :class:`HeadsRun`, of a classifier in texts with the token ids ``rows``."""
    encoder = classifier.encoder
    layers, heads = encoder.config.num_layers, encoder.config.num_heads
    entropies, divergences = np.zeros((layers, heads)), np.zeros(layers)
    pairs, queries = list(combinations(range(heads), 2)), sum(map(len, rows))
    for chosen in in_length_order([len(row) for row in rows], 64):
        tokens, real = pad([rows[index] for index in chosen], classifier.tokenizer.pad_id)
        with capture(encoder) as seen:
            encoder.hidden(tokens, real)
        counted = real.numpy()
        for layer, weights in enumerate(seen.numpy("weights").values()):
            entropies[layer] += (entropy(weights) * counted[:, None]).sum((0, 2))
            for one, other in pairs:
                divergences[layer] += (divergence(weights[:, one], weights[:, other]) * counted).sum() / len(pairs)
    return (entropies / queries).ravel().tolist(), (divergences / queries).tolist()
