"""Compiled programs as the start of training: noise, training back, and the same networks trained from scratch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor, nn

from glassformer.figures.style import BLACK, LINES, in_style, new_figure
from glassformer.kernels.cross_entropy import cross_entropy
from glassformer.layers.blocks import initialise
from glassformer.models.decoder import Decoder
from glassformer.models.decoder_config import DecoderConfig
from glassformer.observe.interchange import agreement, exchange_in_program, most_agreeing, places
from glassformer.programs import compile_program, tokens
from glassformer.programs.adder import Adder, addition_texts
from glassformer.programs.language import Value, Variable
from glassformer.programs.library import count, follower, parity, sort
from glassformer.programs.model import CompiledProgram
from glassformer.training import Batch, TrainingConfig, mix_seed, train
from glassformer.training.program_task import ProgramTask

ALONE = "addition (Decoder)"
"""The adder's task for a network that is only trained."""
NAMES = ("count", "parity", "sort", "induction", "addition", ALONE)
"""What is measured."""
NOISE = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
"""Standard deviations of what is added to every weight."""
COMPILED, NOISY, BACK, SCRATCH = "compiled", "with noise", "trained back", "from scratch"
LEARNING_RATE = 1e-2
"""From scratch. Training back takes a tenth of the noise, so that a step moves no weight farther than that."""
BATCH_SIZE = 64
PAIRS = 256
"""Pairs of sequences between which variables are exchanged; half of them where a place is searched first."""
MOST_SEARCHED = 3
"""Coordinates of the largest variables whose place is searched."""


@dataclass(frozen=True)
class Network:
    """What a network does; lists begin with length 1."""

    start: str  # COMPILED, NOISY, BACK or SCRATCH
    seed: int
    by_length: list[float]  # share of sequences that are right at every position
    agreement: dict[str, float]  # of variables, in the coordinates that the compiler chose
    searched: dict[str, float]  # in the coordinates that agree most, found on other pairs


@dataclass(frozen=True)
class ProgramResult:
    """A program, and networks of the shape that it is compiled to."""

    name: str
    num_parameters: int
    trained_len: int
    max_len: int
    steps: int
    noise: dict[str, list[float]]  # by scale: the accuracy up to trained_len for each seed
    scale: float  # of the noise in NOISY; the least with which fewer than half of the sequences are right
    networks: list[Network]

    def of(self, start: str) -> list[Network]:
        """The networks with this start."""
        return [each for each in self.networks if each.start == start]

    def trained(self, start: str) -> float:
        """The mean accuracy on lengths that training has seen."""
        return mean(mean(each.by_length[: self.trained_len]) for each in self.of(start))

    def longer(self, start: str) -> float:
        """The mean accuracy on longer sequences."""
        return mean(mean(each.by_length[self.trained_len :]) for each in self.of(start))

    def agreements(self, start: str, searched: bool = False) -> dict[str, float]:
        """The mean agreement of each variable."""
        found = [each.searched if searched else each.agreement for each in self.of(start)]
        return {name: mean(each[name] for each in found) for name in found[0]} if found else {}


_EVALUATED = 256
"""Pairs of numbers of each length that an evaluation of the adder's task runs."""


class AdditionTask:
    """The digits of sums, after texts of :class:`~glassformer.programs.adder.Adder`; a task for ``train``.

        loss = mean over the digits of sums of -log p(digit | text and digits before)

    Each number of digits up to ``max_len`` is as often the longer number's limit as the others; digits above, up to
    ``num_digits``, are zeros.
    """

    metric, higher_is_better, unit = "accuracy", True, "digits"

    def __init__(self, num_digits: int, max_len: int, seed: int = 0) -> None:
        self.num_digits, self.max_len, self.seed = num_digits, max_len, seed

    def batch(self, step: int, size: int) -> Batch:
        """The texts of update ``step``, with their sums."""
        rng = np.random.default_rng(mix_seed(self.seed, step))
        most = 10 ** rng.integers(1, self.max_len + 1, (size, 1))
        return {"tokens": torch.from_numpy(addition_texts(rng.integers(0, most, (size, 2)), self.num_digits))}

    def count(self, batch: Batch) -> int:
        """Digits of sums."""
        return len(batch["tokens"]) * (self.num_digits + 1)

    def loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        """The loss above, in nats per digit."""
        logits, digits = self._read(model, batch["tokens"])
        return cross_entropy(logits.flatten(0, 1), digits.flatten())

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """ "accuracy": the mean of :meth:`accuracy` over all numbers of digits up to ``max_len``."""
        return {"accuracy": mean(self.accuracy(model, length) for length in range(1, self.max_len + 1))}

    @torch.no_grad()
    def accuracy(self, model: nn.Module, length: int) -> float:
        """The share of random pairs of numbers of this many digits whose sum is the most likely text.

        Each digit is predicted after the right ones; a sum has a wrong digit then if and only if it has without them.
        """
        rng = np.random.default_rng(mix_seed(self.seed, length, purpose="test"))
        pairs = rng.integers(10 ** (length - 1) if length > 1 else 0, 10**length, (_EVALUATED, 2))
        logits, digits = self._read(model, torch.from_numpy(addition_texts(pairs, self.num_digits)))
        return float((logits.argmax(-1) == digits).all(1).double().mean())

    def _read(self, model: nn.Module, tokens: Tensor) -> tuple[Tensor, Tensor]:
        first = 2 * self.num_digits + 3
        return model(tokens[:, :-1])[:, first - 1 :], tokens[:, first:]


@dataclass(frozen=True)
class _Case:
    name: str
    model: CompiledProgram | Adder | Decoder
    task: Callable[[int], ProgramTask | AdditionTask]  # of a seed
    trained_len: int
    max_len: int


def measure_program(name: str, steps: int, seeds: Sequence[int]) -> ProgramResult:
    """Add noise to a compiled program, train it back, and train its shape from scratch; once for each seed."""
    print(f"training networks for {name}", flush=True)
    case = _case(name)
    reached = range(1, case.trained_len + 1)
    noise: dict[float, list[float]] = {}
    networks: list[Network] = []
    scale = 0.0
    if name != ALONE:
        networks.append(_measured(case, case.model, COMPILED, 0))
        for each in NOISE:
            noisy = [(case.task(seed), _with_noise(case.model, each, seed)) for seed in seeds]
            noise[each] = [mean(task.accuracy(model, length) for length in reached) for task, model in noisy]
        scale = next((each for each, found in noise.items() if mean(found) < 0.5), NOISE[-1])
    for seed in seeds:
        if scale:
            model = _with_noise(case.model, scale, seed)
            networks.append(_measured(case, model, NOISY, seed))
            networks.append(_trained(case, model, BACK, seed, steps, scale / 10))
        networks.append(_trained(case, _from_scratch(case.model, seed), SCRATCH, seed, steps, LEARNING_RATE))
    size = sum(each.numel() for each in case.model.parameters())
    by_scale = {f"{each:g}": found for each, found in noise.items()}
    return ProgramResult(name, size, case.trained_len, case.max_len, steps, by_scale, scale, networks)


def _case(name: str) -> _Case:
    made: dict[str, tuple[Variable, Sequence[Value], int, bool]] = {
        "count": (count(tokens, "a"), "abc", 14, False),
        "parity": (parity("1"), "01", 14, False),
        "sort": (sort(), range(1, 5), 8, False),
        "induction": (follower(), "abc", 8, True),
    }
    if name in made:
        program, vocabulary, max_len, causal = made[name]
        model = compile_program(program, vocabulary, max_len, causal=causal, dtype=torch.float32)
        half = max_len // 2
        return _Case(name, model, lambda seed: ProgramTask(model, half, seed), half, max_len)
    config = DecoderConfig(10, num_layers=1, hidden_dim=32, ff_dim=64, num_heads=4, head_dim=8, rope_base=10.0)
    network = Adder(6) if name == "addition" else Decoder(config)
    return _Case(name, network.eval(), lambda seed: AdditionTask(6, 3, seed), 3, 6)


def _trained(case: _Case, model: nn.Module, start: str, seed: int, steps: int, rate: float) -> Network:
    config = TrainingConfig(steps=steps, batch_size=BATCH_SIZE, learning_rate=rate, weight_decay=0.0, log_every=steps)
    train(model, case.task(seed), config, progress=False)
    return _measured(case, model.eval(), start, seed)


@torch.no_grad()
def _with_noise(model: nn.Module, scale: float, seed: int) -> nn.Module:
    noisy, generator = copy.deepcopy(model), torch.Generator().manual_seed(mix_seed(seed, purpose="noise"))
    for weight in noisy.parameters():
        weight.add_(torch.randn(weight.shape, generator=generator), alpha=scale)
    return noisy


def _from_scratch(model: nn.Module, seed: int) -> nn.Module:
    new = copy.deepcopy(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(mix_seed(seed, purpose="weights"))
        initialise(new, {"layers": 2 * len(new.layers)})  # type: ignore[arg-type]
    return new


def _measured(case: _Case, model: nn.Module, start: str, seed: int) -> Network:
    task, known = case.task(seed), case.model
    by_length = [task.accuracy(model, length) for length in range(1, case.max_len + 1)]
    agreeing: dict[str, float] = {}
    searched: dict[str, float] = {}
    if isinstance(known, CompiledProgram) and isinstance(model, CompiledProgram):
        rng = np.random.default_rng(mix_seed(seed, purpose="pairs"))
        drawn = torch.from_numpy(rng.integers(0, len(known.domains.vocabulary), (2, 2, PAIRS // 2, case.trained_len)))
        for name, place in places(known).items():
            agreeing[name] = agreement(model, place, exchange_in_program(known, name, *drawn.flatten(1, 2)))
            if start == SCRATCH and len(place.coordinates) <= MOST_SEARCHED:
                seen, held_out = (exchange_in_program(known, name, *drawn[:, part]) for part in range(2))
                searched[name] = agreement(model, most_agreeing(model, len(place.coordinates), seen), held_out)
    return Network(start, seed, by_length, agreeing, searched)


@in_style
def draw_noise(results: Sequence[ProgramResult]) -> Figure:
    """The accuracy of compiled programs with noise of several scales, by program."""
    figure, (ax,) = new_figure(6.5, 3.8)
    for look, result in zip(LINES, (each for each in results if each.noise), strict=False):
        scales = [float(scale) for scale in result.noise]
        ax.plot(scales, [mean(found) for found in result.noise.values()], label=result.name, **look)
    ax.set(
        xscale="log", ylim=(-0.02, 1.02), xlabel="standard deviation of the noise", ylabel="accuracy, trained lengths"
    )
    ax.legend()
    return figure


@in_style
def draw_lengths(results: Sequence[ProgramResult]) -> Figure:
    """The accuracy by length of compiled and of trained networks, a panel for each program."""
    whole = [each for each in results if each.noise]
    figure, panels = new_figure(11, 3.2, columns=len(whole), sharey=True)
    other = next((each for each in results if not each.noise), None)
    for ax, result in zip(panels, whole, strict=True):
        shown = [(start, result.of(start)) for start in (COMPILED, BACK, SCRATCH)]
        if result.name == "addition" and other is not None:
            shown.append(("Decoder, from scratch", other.of(SCRATCH)))
        lengths = range(1, result.max_len + 1)
        for look, (label, networks) in zip(LINES, shown, strict=False):
            found = np.array([each.by_length for each in networks])
            ax.plot(lengths, found.mean(0), label=label, **look)
            ax.fill_between(lengths, found.min(0), found.max(0), color=look["color"], alpha=0.15, linewidth=0)
        ax.axvline(result.trained_len + 0.5, color=BLACK, linewidth=0.8, linestyle="--")
        ax.set(title=result.name, ylim=(-0.02, 1.02), xlabel="digits" if result.name == "addition" else "tokens")
    panels[0].set_ylabel("sequences that are right")
    figure.legend(*panels[-1].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


@in_style
def draw_variables(results: Sequence[ProgramResult]) -> Figure:
    """The agreement of exchanges of each variable with the program, in each network."""
    rows = [(each, name) for each in results for name in each.agreements(COMPILED)]
    figure, (ax,) = new_figure(8, 1.2 + 0.42 * len(rows))
    looks = [*((start, False) for start in (COMPILED, NOISY, BACK, SCRATCH)), (SCRATCH, True)]
    for look, (start, searched) in zip(LINES, looks, strict=False):
        points = [
            (found[name], row)
            for row, (result, name) in enumerate(rows)
            if name in (found := result.agreements(start, searched))
        ]
        label = f"{start}, best coordinates" if searched else start
        ax.plot(*zip(*points, strict=True), look["marker"], color=look["color"], label=label, markersize=6, alpha=0.8)
    ax.set_yticks(range(len(rows)), [f"{result.name}: {name}" for result, name in rows])
    ax.set(xlim=(-0.03, 1.03), ylim=(len(rows) - 0.5, -0.5), xlabel="exchanges that agree with the program")
    figure.legend(loc="outside lower center", ncols=3)
    return figure
