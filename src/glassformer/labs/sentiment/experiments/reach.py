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
from glassformer.models.encoder import Encoder
from glassformer.models.encoder_config import EncoderConfig
from glassformer.training.text_recipe import TrainingRecipe, fit

HEADS, FF_DIM = 8, 256
NUM_CLASSES, LETTERS = 4, ascii_lowercase[:16]
NOISE = LETTERS[NUM_CLASSES:]
RECURRENT = {"RNN": nn.RNN, "GRU": nn.GRU, "LSTM": nn.LSTM}
ENCODERS = {"encoder, 1 block": 1, "encoder, 2 blocks": 2}
TRAINED = ("GRU", "encoder, 1 block")
_BATCH = 16


@dataclass(frozen=True)
class Influence:
    """What inputs do to the last state of one network before training, by distance, means over seeds.

    ``norms`` are those of d(v . last state)/d(input) for random v; ``relative`` the same over that of the first
    distance above 0; ``per_step`` the factor of one step further back, from that distance to the last.
    """

    name: str
    norms: list[float]
    relative: list[float]
    per_step: float


@dataclass(frozen=True)
class Recalled:
    """One network trained to name the first token of a text, and its accuracy on new texts, in [0, 1]."""

    name: str
    length: int
    seed: int
    learning_rate: float
    accuracy: float


@dataclass(frozen=True)
class ReachResult:
    """Both experiments; distances count from the last position back, 0 is that position itself."""

    seeds: list[int]
    distances: list[int]
    influences: dict[str, Influence]
    updates: int
    chance: float
    recalled: list[Recalled]

    def accuracies(self, name: str, length: int, learning_rate: float) -> list[float]:
        """One for each seed."""
        key = name, length, learning_rate
        return [run.accuracy for run in self.recalled if (run.name, run.length, run.learning_rate) == key]


class Network(nn.Module):
    """A network over vectors: torch's recurrent layer, or encoder blocks over the vectors plus sinusoidal positions."""

    def __init__(self, name: str, length: int, width: int) -> None:
        super().__init__()
        if name in RECURRENT:
            self.body: nn.Module = RECURRENT[name](width, width, batch_first=True)
        else:
            # Vectors stand where token embeddings would.
            self.body = Encoder(EncoderConfig(1, ENCODERS[name], width, FF_DIM, HEADS, length, dropout=0.0))

    def forward(self, x: Float[Tensor, "batch position width"]) -> Float[Tensor, "batch width"]:
        """The state of the last position."""
        if not isinstance(self.body, Encoder):
            return self.body(x)[0][:, -1]
        assert self.body.positions is not None and self.body.final_norm is not None  # noqa: PT018
        x = self.body.positions(x)
        for block in self.body.layers:
            x = block(x)
        return self.body.final_norm(x[:, -1])


def measure_reach(
    distances: Sequence[int],
    seeds: Sequence[int],
    lengths: Sequence[int],
    updates: int = 300,
    rates: Sequence[float] = (3e-3, 2e-2),
    width: int = 64,
) -> ReachResult:
    """Measure the influence of inputs at ``distances``, and train on texts of ``lengths``.

    Influence is that before training, on 64 texts of standard normal inputs, in float64, with the initial weights of
    torch and of the library. ``distances`` rise from 0; the largest sets the length of the texts.

    A GRU and a one-block encoder of the same width are trained on texts whose first token is one of 4 and whose others
    are drawn from 12 different ones, 16 new texts an update. Both answer from the state of the *last* position, through
    a linear map. Each of ``rates`` is reached after a tenth of the updates and falls as a cosine. Accuracy is that on
    512 other texts.
    """
    near = next(place for place, distance in enumerate(distances) if distance > 0)
    influences = {}
    for name in (*RECURRENT, *ENCODERS):
        norms = np.mean([_influence(name, distances[-1] + 1, width, seed) for seed in seeds], axis=0)[list(distances)]
        relative = norms / norms[near]
        per_step = float(relative[-1] ** (1 / (distances[-1] - distances[near])))
        influences[name] = Influence(name, norms.tolist(), relative.tolist(), per_step)
    recalled = [
        Recalled(name, length, seed, rate, _recall(name, length, width, seed, updates, rate))
        for length in lengths
        for seed in seeds
        for rate in rates
        for name in TRAINED
    ]
    return ReachResult(list(seeds), list(distances), influences, updates, 1 / NUM_CLASSES, recalled)


def _influence(name: str, length: int, width: int, seed: int) -> Float64[np.ndarray, " distance"]:
    """The mean norm of the gradient for each distance, from a random direction of the last state for each text."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Network(name, length, width).double()
        x = torch.randn(64, length, width, dtype=torch.float64, requires_grad=True)
        direction = torch.randn(64, width, dtype=torch.float64)
        (gradient,) = torch.autograd.grad((network(x) * direction).sum(), x)
    return gradient.norm(dim=-1).mean(0).flip(0).numpy()


class _FirstToken(nn.Module):
    def __init__(self, name: str, length: int, width: int) -> None:
        super().__init__()
        network = Network(name, length, width)
        self.layers = nn.Sequential(nn.Embedding(len(LETTERS), width), network, nn.Linear(width, NUM_CLASSES))

    def forward(self, tokens: Tensor, real: Tensor) -> Tensor:
        return self.layers(tokens)  # all tokens are real: texts of a run are equally long


def _recall(name: str, length: int, width: int, seed: int, updates: int, rate: float) -> float:
    generator = random.Random(f"{seed} {length}")

    def texts(count: int) -> tuple[Example, ...]:
        firsts = [generator.randrange(NUM_CLASSES) for _ in range(count)]
        return tuple(
            Example(LETTERS[first] + "".join(generator.choices(NOISE, k=length - 1)), first) for first in firsts
        )

    held_out = texts(512)
    data = SentimentData(texts(_BATCH * updates), held_out, held_out, tuple(LETTERS[:NUM_CLASSES]))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _FirstToken(name, length, width)
    recipe = TrainingRecipe(epochs=1, batch_size=_BATCH, learning_rate=rate, weight_decay=0.0)
    epochs = fit(model, lambda text: [LETTERS.index(letter) for letter in text], 0, data, recipe, seed)
    return epochs[-1].validation_accuracy
