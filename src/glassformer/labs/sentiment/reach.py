"""How far back a network reaches: what a distant input does to the last state, and a task that needs such a token."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from glassformer.errors import require, require_positive
from glassformer.models.encoder import Encoder
from glassformer.models.encoder_config import EncoderConfig
from glassformer.training import Batch, TrainingConfig, mix_seed, train

DISTANCES = (0, 1, 2, 4, 8, 16, 32, 64, 128, 255)
LENGTHS = (8, 32, 128)
WIDTH, HEADS, FF_DIM = 64, 8, 256
NUM_CLASSES, NUM_NOISE = 4, 12
RATES = (3e-3, 2e-2)
"""At the lower one a GRU does not find the first of 16 tokens in 300 updates; at the higher one it does."""

_TEXTS, _BATCH, _HELD_OUT = 64, 16, 512

States = Callable[[Float[Tensor, "batch position width"]], Float[Tensor, "batch position width"]]


@dataclass(frozen=True)
class Influence:
    """What inputs do to the last state of one network before training.

    Attributes:
        name: The network.
        norms: For each distance, the mean over seeds, texts and directions v of the norm of d(v . last state)/d(input).
        relative: ``norms`` over that of the first distance above 0.
        per_step: By what factor one step further back changes it, between the first distance above 0 and the last.
        steps: What must be computed one after the other for the longest text: its length, or the number of blocks.
    """

    name: str
    norms: list[float]
    relative: list[float]
    per_step: float
    steps: int


@dataclass(frozen=True)
class Recalled:
    """One network trained to tell the first token of a text.

    Attributes:
        name: "GRU" or "encoder, 1 block".
        length: Tokens in a text.
        seed: Of weights and texts.
        learning_rate: The peak.
        accuracy: On new texts after all updates, in [0, 1].
        steps: What must be computed one after the other for one text.
    """

    name: str
    length: int
    seed: int
    learning_rate: float
    accuracy: float
    steps: int


@dataclass(frozen=True)
class ReachResult:
    """Both experiments.

    Attributes:
        distances: From the last position back; 0 is the last position itself.
        length: Of the texts whose influence is measured.
        influences: One for each network.
        updates: In the training of each of ``recalled``.
        chance: The accuracy of guessing.
        recalled: For each length, seed and learning rate, both networks.
    """

    distances: list[int]
    length: int
    influences: list[Influence]
    updates: int
    chance: float
    recalled: list[Recalled]

    def accuracy(self, name: str, length: int, learning_rate: float | None = None) -> float:
        """The mean over seeds; at the better of the learning rates when None."""
        runs = [run for run in self.recalled if (run.name, run.length) == (name, length)]
        rates = {run.learning_rate for run in runs} if learning_rate is None else {learning_rate}
        return max(statistics.fmean(run.accuracy for run in runs if run.learning_rate == rate) for rate in rates)


def measure_reach(
    distances: Sequence[int] = DISTANCES,
    seeds: Sequence[int] = (0,),
    lengths: Sequence[int] = LENGTHS,
    updates: int = 300,
    width: int = WIDTH,
    rates: Sequence[float] = RATES,
) -> ReachResult:
    """Measure the influence of inputs at ``distances``, and train on texts of ``lengths``.

    Influence is that before training, on inputs that are standard normal, in float64. The networks are torch's RNN
    (tanh), GRU and LSTM with one layer and torch's initial weights, and the project's encoder with one and two blocks,
    8 heads and sinusoidal positions.

    Trained are a GRU and a one-block encoder of the same width on texts whose first token is one of 4 and whose others
    are drawn from 12 different ones. Both answer from the state of the *last* position, through a linear map, and both
    are trained at all ``rates``: which of them seems to reach further depends on that.

    Args:
        distances: From 0, in rising order; the largest sets the length of the texts.
        seeds: Of weights, inputs and texts.
        lengths: Of the texts to train on, at least 2.
        updates: Of each training, 16 texts each.
        width: Of states and embeddings, a multiple of 8.
        rates: Peak learning rates; they rise over a tenth of the updates and fall as a cosine.

    Raises:
        InputError: No seeds, distances that do not rise or of which fewer than two are above 0, or a length below 2.
        KeyboardInterrupt: A training was interrupted.
    """
    require(len(seeds) > 0, "no seeds", "at least one", "Pass (0,), for example.")
    above = [distance for distance in distances if distance > 0]
    require(
        list(distances) == sorted(set(distances)) and min(distances, default=0) >= 0 and len(above) >= 2,
        f"distances = {tuple(distances)}",
        "numbers from 0 in rising order, two of them above 0",
        "Pass (0, 1, 8, 64), for example.",
    )
    require(min(lengths, default=2) >= 2, f"lengths = {tuple(lengths)}", "at least 2 each", "Add some noise.")
    require_positive(updates=updates)
    length = distances[-1] + 1
    influences = []
    for name, build, steps in _networks(width, length):
        norms = np.mean([_influence(build, width, length, seed) for seed in seeds], axis=0)[list(distances)]
        first, last = norms[distances.index(above[0])], norms[-1]
        influences.append(
            Influence(
                name=name,
                norms=norms.tolist(),
                relative=(norms / first).tolist(),
                per_step=float((last / first) ** (1 / (above[-1] - above[0]))),
                steps=steps,
            )
        )
    recalled = [
        Recalled(name, each, seed, rate, _recall(name, width, each, seed, updates, rate), each if name == "GRU" else 1)
        for each in lengths
        for seed in seeds
        for rate in rates
        for name in ("GRU", "encoder, 1 block")
    ]
    return ReachResult(list(distances), length, influences, updates, 1 / NUM_CLASSES, recalled)


def _networks(width: int, length: int) -> list[tuple[str, Callable[[], States], int]]:
    """Name, constructor and sequential steps."""

    def recurrent(kind: type[nn.RNN | nn.GRU | nn.LSTM]) -> Callable[[], States]:
        def build() -> States:
            layer = kind(width, width, batch_first=True).double()
            return lambda x: layer(x)[0]

        return build

    def encoder(blocks: int) -> Callable[[], States]:
        def build() -> States:
            network = _encoder(width, length, blocks).double().eval()
            return lambda x: _from_vectors(network, x)

        return build

    kinds = (("RNN", nn.RNN), ("GRU", nn.GRU), ("LSTM", nn.LSTM))
    return [
        *((name, recurrent(kind), length) for name, kind in kinds),
        ("encoder, 1 block", encoder(1), 1),
        ("encoder, 2 blocks", encoder(2), 2),
    ]


def _encoder(width: int, length: int, blocks: int, vocab_size: int = 1) -> Encoder:
    return Encoder(EncoderConfig(vocab_size, blocks, width, FF_DIM, HEADS, length, dropout=0.0))


def _from_vectors(encoder: Encoder, x: Tensor) -> Tensor:
    """The states over vectors that stand where token embeddings would."""
    assert encoder.positions is not None and encoder.final_norm is not None  # noqa: PT018
    x = encoder.positions(x)
    for block in encoder.layers:
        x = block(x)
    return encoder.final_norm(x)


def _influence(build: Callable[[], States], width: int, length: int, seed: int) -> Float64[np.ndarray, " distance"]:
    """The mean norm of the gradient for each distance, from a random direction of the last state for each text."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        states = build()
        x = torch.randn(_TEXTS, length, width, dtype=torch.float64, requires_grad=True)
        direction = torch.randn(_TEXTS, width, dtype=torch.float64)
        (gradient,) = torch.autograd.grad((states(x)[:, -1] * direction).sum(), x)
    return gradient.norm(dim=-1).mean(0).flip(0).numpy()


class _FromLast(nn.Module):
    """Tokens to the classes of the first one, by the state of the last position."""

    def __init__(self, name: str, width: int, length: int) -> None:
        super().__init__()
        self.encoder, self.gru = None, None
        if name == "GRU":
            self.embedding = nn.Embedding(NUM_CLASSES + NUM_NOISE, width)
            self.gru = nn.GRU(width, width, batch_first=True)
        else:
            self.encoder = _encoder(width, length, 1, NUM_CLASSES + NUM_NOISE)
        self.head = nn.Linear(width, NUM_CLASSES)

    def forward(self, tokens: Int64[Tensor, "batch position"]) -> Float[Tensor, "batch num_classes"]:
        """Scores of the classes, before softmax."""
        if self.gru is not None:
            return self.head(self.gru(self.embedding(tokens))[0][:, -1])
        assert self.encoder is not None
        # No token fills up; by itself the encoder would take number 0 for padding.
        return self.head(self.encoder.hidden(tokens, torch.ones_like(tokens, dtype=torch.bool))[:, -1])


class _FirstToken:
    """Telling the first token: a :class:`~glassformer.training.task.Task`."""

    metric, higher_is_better, unit = "accuracy", True, "texts"

    def __init__(self, length: int, seed: int) -> None:
        self._length, self._seed = length, seed

    def batch(self, step: int, size: int) -> Batch:
        """New texts; -1 is the step of those that are held out."""
        generator = torch.Generator().manual_seed(mix_seed(self._seed, self._length, step + 1))
        tokens = torch.randint(NUM_CLASSES, NUM_CLASSES + NUM_NOISE, (size, self._length), generator=generator)
        tokens[:, 0] = torch.randint(NUM_CLASSES, (size,), generator=generator)
        return {"tokens": tokens}

    def count(self, batch: Batch) -> int:
        return len(batch["tokens"])

    def loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        return F.cross_entropy(model(batch["tokens"]), batch["tokens"][:, 0])

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        tokens = self.batch(-1, _HELD_OUT)["tokens"].to(next(model.parameters()).device)
        return {"accuracy": float((model(tokens).argmax(-1) == tokens[:, 0]).double().mean())}


def _recall(name: str, width: int, length: int, seed: int, updates: int, rate: float) -> float:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _FromLast(name, width, length)
    config = TrainingConfig(
        steps=updates,
        batch_size=_BATCH,
        learning_rate=rate,
        warmup_steps=updates // 10,
        log_every=updates,
        seed=seed,
    )
    result = train(model, _FirstToken(length, seed), config, progress=False)
    if result.ending == "interrupted":
        raise KeyboardInterrupt
    return result.evaluations[-1][1]["accuracy"]
