"""What removing each head alone does to an outcome: estimated at once, then computed in slices
between other calls.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.errors import InputError
from glassformer.explorer import messages as m
from glassformer.explorer.answers.forward import KeptRun
from glassformer.explorer.answers.outcomes import Outcomes, outcomes_of
from glassformer.explorer.answers.runs import Runs
from glassformer.explorer.api import require_waiting
from glassformer.generation.language_model import count_weights
from glassformer.observe.sweep import Metric, Sweep, ablation_steps, attribution_sweep, patch_steps

SLICE = 1.0
"""Seconds after which a call returns what there is; it ends the forward pass that is under way."""
MOST_SWEPT = 1.6e13
"""Largest product of weights of blocks, tokens and heads that are removed exactly: a few minutes on
two cores.
"""
MOST_PATCHED = 6e13
"""The same for the places of a second text, of which a pass computes the later layers and positions
alone.
"""
MOST_HELD = 2e9
"""Largest size of what a backward pass holds, in bytes; without an estimate the last layers are
swept first.
"""

_TOKENS_AT_ONCE = 512
_BYTES_HELD = 96
"""For each number of the residual stream of each layer."""


@dataclass(eq=False)
class _Stack:
    """The heads of one stack: the metric without each, NaN while unknown, and whether it is more
    than an estimate.
    """

    told: m.Attention
    width: int
    """Numbers of all heads of a layer."""
    values: Float[Tensor, "layer head"]
    exact: Bool[Tensor, "layer head"]


@dataclass(eq=False)
class InSlices(ABC):
    """A sweep under way; what asks for it takes it further."""

    outcomes: Outcomes
    pair: m.Compared
    before: float | None = None
    """The log-odds of the run that is changed; None before the first step."""
    total: int = 0
    lock: Any = field(default_factory=threading.Lock)
    _steps: Iterator[None] | None = None

    def __post_init__(self) -> None:
        self.tokens = max(each.shape[1] for each in self.outcomes.run.inputs)
        self.weights = sum(
            count_weights(point.module) for point in self.outcomes.points if point.role == "block"
        )
        self._steps = self._all_steps()

    @abstractmethod
    def _all_steps(self) -> Iterator[None]: ...

    @property
    @abstractmethod
    def done(self) -> int:
        """How much is exact."""

    def advance(self, known: int | None) -> None:
        """Compute for a moment, and until more than ``known`` is done; None: until the first step."""
        begun = time.monotonic()
        with self.lock:
            while self._steps is not None:
                if known is None:
                    more = self.before is not None
                else:
                    more = self.done > known
                if more and (known is None or time.monotonic() >= begun + SLICE):
                    break
                require_waiting()
                with self.outcomes.at_leisure(self.before is None):
                    if next(self._steps, self) is self:
                        self._steps = None


@dataclass(eq=False)
class Sweeping(InSlices):
    """A sweep over all heads."""

    stacks: list[_Stack] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        run = self.outcomes.run
        for told in run.message.attentions:
            shape = (told.layers, told.heads)
            q = run.layers(told.part)[0].q
            values = torch.full(shape, torch.nan)
            exact = torch.zeros(shape, dtype=torch.bool)
            self.stacks.append(_Stack(told, q.shape[1] * q.shape[3], values, exact))
        heads = sum(stack.exact.numel() for stack in self.stacks)
        share = min(1.0, MOST_SWEPT / (self.weights * self.tokens * heads))
        self.layers = [max(1, int(share * stack.told.layers)) for stack in self.stacks]
        self.total = sum(
            most * stack.told.heads for most, stack in zip(self.layers, self.stacks, strict=True)
        )

    @property
    def done(self) -> int:
        """The number of heads whose effect is exact."""
        return min(self.total, sum(int(stack.exact.sum()) for stack in self.stacks))

    @property
    def size(self) -> int:
        """About how many bytes it holds."""
        held = sum(stack.told.layers * stack.width for stack in self.stacks)
        return (0 if self._steps is None else 32 * self.tokens * held) + 10_000

    def message(self) -> m.HeadSweep:
        """What is known."""
        assert self.before is not None
        return m.HeadSweep(
            **dict(self.pair),
            before=self.before,
            stacks=[
                m.SweptStack(
                    part=stack.told.part,
                    label=stack.told.label,
                    after=[
                        [each if each == each else None for each in row]
                        for row in stack.values.tolist()
                    ],
                    exact=stack.exact.tolist(),
                )
                for stack in self.stacks
            ],
            done=self.total if self._steps is None else self.done,
            total=self.total,
        )

    def _all_steps(self) -> Iterator[None]:
        model = self.outcomes.model
        texts = self.outcomes.texts
        place = self.outcomes.place
        metric = partial(_preference, self.pair)
        options: dict[str, Any] = {"logits": -1 if place is None else place}
        parts = [None if stack.told.part == "self" else stack.told.part for stack in self.stacks]
        for part, stack in zip(parts, self.stacks, strict=True):
            if stack.told.layers * stack.width * self.tokens * _BYTES_HELD <= MOST_HELD:
                with suppress(InputError):
                    found = attribution_sweep(model, None, texts, metric, part=part, **options)
                    stack.values = found.values.double().detach()
                    self.before = found.clean
                    yield
        at_once = max(1, _TOKENS_AT_ONCE // self.tokens)
        for part, stack, most in zip(parts, self.stacks, self.layers, strict=True):
            order = list(reversed(range(stack.told.layers)))
            if self.before is not None and bool(stack.values.isfinite().all()):
                largest = (stack.values - self.before).abs().amax(1)
                order = largest.argsort(descending=True).tolist()
            swept = order[:most]
            # Neighbouring layers are swept together, unless some of them are left out.
            options["batch_size"] = (
                at_once if most == stack.told.layers else min(at_once, stack.told.heads)
            )
            for sweep in ablation_steps(model, texts, metric, part=part, order=order, **options):
                self.before = sweep.clean
                stack.exact = sweep.values.isfinite()
                stack.values = torch.where(stack.exact, sweep.values, stack.values)
                yield
                if bool(stack.exact[swept].all()):
                    break


@dataclass(eq=False, kw_only=True)
class Patching(InSlices):
    """A sweep over layers and positions of a second text, with what the first has there."""

    second: KeptRun
    found: Sweep | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        layers = sum(point.role == "block" for point in self.outcomes.points)
        self.total = layers * self.tokens
        asked = self.weights * self.tokens * self.total
        if not asked <= MOST_PATCHED:
            raise InputError(
                got=f"{self.tokens} tokens",
                expected="texts whose places can be swept in minutes",
                fix="Shorten the texts.",
            )

    @property
    def done(self) -> int:
        """The number of places whose effect is known."""
        if self.found is None:
            return 0
        return int(self.found.values.isfinite().sum())

    def message(self) -> m.Patches:
        """What is known."""
        found = self.found
        assert found is not None
        assert found.corrupted is not None
        return m.Patches(
            **dict(self.pair),
            tokens=self.outcomes.run.message.tokens,
            second_tokens=self.second.message.tokens,
            first=found.clean,
            second=found.corrupted,
            patched=[
                [each if each == each else None for each in row] for row in found.values.tolist()
            ],
            done=self.total if self._steps is None else self.done,
            total=self.total,
        )

    def _all_steps(self) -> Iterator[None]:
        outcomes = self.outcomes
        metric = partial(_preference, self.pair)
        logits = -1 if outcomes.place is None else outcomes.place
        texts = (outcomes.texts, self.second.inputs[0])
        order = self._order(metric, logits)
        at_once = max(1, _TOKENS_AT_ONCE // self.tokens)
        for found in patch_steps(
            outcomes.model, *texts, metric, logits=logits, batch_size=at_once, order=order
        ):
            self.found = found
            self.before = found.corrupted
            yield

    def _order(self, metric: Metric, logits: int) -> list[int] | None:
        """The layers at which a place seems to bring back most come first; None where there is no
        estimate.
        """
        queries = self.outcomes.run.layers("self")[0].q
        width = queries.shape[1] * queries.shape[3]
        if self.total * width * _BYTES_HELD > MOST_HELD:
            return None
        texts = (self.outcomes.texts, self.second.inputs[0])
        try:
            estimate = attribution_sweep(
                self.outcomes.model, *texts, metric, site="residual", logits=logits
            )
        except InputError:
            return None
        assert estimate.corrupted is not None
        largest = (estimate.values - estimate.corrupted).abs().amax(1)
        order: list[int] = largest.argsort(descending=True, stable=True).tolist()
        return order


def patches(runs: Runs, ask: m.AskPatches) -> m.Patches:
    """The log-odds after a second text, with each place of the residual stream as in the first; see
    :func:`sweep`.
    """
    outcomes, pair = _asked(runs, ask)
    second = outcomes.other_text(runs, ask.second)
    run = outcomes.run
    name: Hashable = (
        "patches",
        run.message.run,
        second.message.run,
        run.stamp,
        outcomes.place,
        pair,
    )
    found: Patching | None = runs.derived.get(name)
    if found is None:
        found = Patching(outcomes, pair, second=second)
    found.advance(ask.done)
    runs.derived.put(name, found, 100_000 + 16 * found.total)
    return found.message()


def sweep(runs: Runs, ask: m.AskSweep) -> m.HeadSweep:
    """The log-odds of the target, or of it over the other outcome, without each head, as far as
    they are known.

    The first call gives an estimate from one gradient where that fits into memory, and each further
    one computes for a moment, the layers of the largest estimates first. Nothing is computed
    between the calls.
    """
    outcomes, pair = _asked(runs, ask)
    name: Hashable = ("sweep", outcomes.run.message.run, outcomes.run.stamp, outcomes.place, pair)
    found: Sweeping | None = runs.derived.get(name)
    if found is None:
        found = Sweeping(outcomes, pair)
    found.advance(ask.done)
    runs.derived.put(name, found, found.size)
    return found.message()


def _asked(runs: Runs, ask: m.AskSweep | m.AskPatches) -> tuple[Outcomes, m.Compared]:
    outcomes = outcomes_of(runs, ask.ask, ask.place)
    pair = outcomes.compared(ask)
    if pair.target == pair.other:
        raise InputError(
            got=f"target = other = {pair.target}",
            expected="two outcomes",
            fix="Change one.",
        )
    return outcomes, pair


def _preference(pair: m.Compared, logits: Float[Tensor, "one position outcome"]) -> Tensor:
    """``log(p / (1 - p))`` of the target at the last position, or ``log(p / q)`` with q of the
    other outcome.
    """
    wide = logits[:, -1].double()
    if pair.other is not None:
        return wide[:, pair.target] - wide[:, pair.other]
    others = wide.index_fill(1, torch.tensor(pair.target, device=wide.device), -torch.inf)
    return wide[:, pair.target] - others.logsumexp(-1)
