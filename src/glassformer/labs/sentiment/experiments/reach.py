"""How far back a network reaches: what a distant input does to the last state, and a task that needs such a token."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_lowercase

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from glassformer.data.examples import Example, SentimentData
from glassformer.labs.sentiment.experiments.recipes import TrainingRecipe, fit
from glassformer.models.encoder import Encoder, EncoderConfig
from glassformer.modes import seeded

WIDTH, RATES = 64, (3e-3, 2e-2)
NUM_CLASSES, LETTERS = 4, ascii_lowercase[:16]
NOISE = LETTERS[NUM_CLASSES:]
RECURRENT = {"RNN": nn.RNN, "GRU": nn.GRU, "LSTM": nn.LSTM}
ENCODERS = {"encoder, 1 block": 1, "encoder, 2 blocks": 2}
TRAINED = ("GRU", "encoder, 1 block")


@dataclass(frozen=True)
class Influence:
    """Mean norms of d(v . last state)/d(input) for random v before training, of three inputs."""

    last: float
    one_back: float
    far: float

    def per_step(self, distance: int) -> float:
        """The factor of one step further back, from one step to ``distance`` steps, where ``far`` was measured."""
        return (self.far / self.one_back) ** (1 / (distance - 1))


@dataclass(frozen=True)
class Recalled:
    """A network trained to name the first token of a text, and its accuracies on new texts by seed, in [0, 1]."""

    name: str
    learning_rate: float
    accuracies: list[float]


@dataclass(frozen=True)
class ReachResult:
    """Both experiments: the influence of inputs up to ``distance`` steps back by network, and what was recalled."""

    num_seeds: int
    distance: int
    influences: dict[str, Influence]
    length: int  # of the texts to recall the first token of
    updates: int
    chance: float
    recalled: list[Recalled]


class Network(nn.Module):
    """A network over vectors: torch's recurrent layer, or encoder blocks over the vectors plus sinusoidal positions."""

    def __init__(self, name: str, length: int) -> None:
        super().__init__()
        if name in RECURRENT:
            self.body: nn.Module = RECURRENT[name](WIDTH, WIDTH, batch_first=True)
        else:
            # Vectors stand where token embeddings would.
            self.body = Encoder(EncoderConfig(1, ENCODERS[name], WIDTH, 256, 8, length, dropout=0.0))

    def forward(self, x: Float[Tensor, "batch position width"]) -> Float[Tensor, "batch width"]:
        """The state of the last position."""
        if not isinstance(self.body, Encoder):
            return self.body(x)[0][:, -1]
        assert self.body.positions is not None and self.body.final_norm is not None  # noqa: PT018
        x = self.body.positions(x)
        for block in self.body.layers:
            x = block(x)
        return self.body.final_norm(x[:, -1])


def measure_reach(distance: int, seeds: Sequence[int], length: int, updates: int) -> ReachResult:
    """Measure the influence of inputs up to ``distance`` steps back, and train on texts of ``length`` tokens.

    Influence is that before training, on 64 texts of standard normal inputs, in float64, with the initial weights of
    torch and of the library; a mean over texts and seeds.

    A GRU and a one-block encoder of the same width are trained on texts whose first token is one of 4 and whose others
    are drawn from 12 different ones, 16 new texts an update. Both answer from the state of the *last* position, through
    a linear map. Each of two rates is reached after a tenth of the updates and falls as a cosine. Accuracy is that on
    512 other texts.
    """
    influences = {}
    for name in (*RECURRENT, *ENCODERS):
        norms = np.mean([_influence(name, distance + 1, seed) for seed in seeds], axis=0)
        influences[name] = Influence(*norms[[0, 1, distance]].tolist())
    recalled = [
        Recalled(name, rate, [_recall(name, length, seed, updates, rate) for seed in seeds])
        for name in TRAINED
        for rate in RATES
    ]
    return ReachResult(len(seeds), distance, influences, length, updates, 1 / NUM_CLASSES, recalled)


def _influence(name: str, length: int, seed: int) -> Float64[np.ndarray, " distance"]:
    """The mean norm of the gradient for each distance, from a random direction of the last state for each text."""
    with seeded(seed):
        network = Network(name, length).double()
        x = torch.randn(64, length, WIDTH, dtype=torch.float64, requires_grad=True)
        direction = torch.randn(64, WIDTH, dtype=torch.float64)
        (gradient,) = torch.autograd.grad((network(x) * direction).sum(), x)
    return gradient.norm(dim=-1).mean(0).flip(0).numpy()


class _FirstToken(nn.Module):
    def __init__(self, name: str, length: int) -> None:
        super().__init__()
        network = Network(name, length)
        self.layers = nn.Sequential(nn.Embedding(len(LETTERS), WIDTH), network, nn.Linear(WIDTH, NUM_CLASSES))

    def forward(self, tokens: Tensor, real: Tensor) -> Tensor:
        return self.layers(tokens)  # all tokens are real: texts of a run are equally long


def _recall(name: str, length: int, seed: int, updates: int, rate: float) -> float:
    generator = random.Random(f"{seed} {length}")

    def texts(count: int) -> tuple[Example, ...]:
        firsts = [generator.randrange(NUM_CLASSES) for _ in range(count)]
        return tuple(
            Example(LETTERS[first] + "".join(generator.choices(NOISE, k=length - 1)), first) for first in firsts
        )

    held_out = texts(512)
    data = SentimentData(texts(16 * updates), held_out, held_out, tuple(LETTERS[:NUM_CLASSES]))
    with seeded(seed):
        model = _FirstToken(name, length)
    recipe = TrainingRecipe(epochs=1, batch_size=16, learning_rate=rate, weight_decay=0.0)
    epochs = fit(model, lambda text: [LETTERS.index(letter) for letter in text], 0, data, recipe, seed)
    return epochs[-1].validation_accuracy
