"""Sweep over all heads, or all places of a second text, and measure what each does to an outcome.

A sweep is estimated at once, then computed in slices between other calls.
"""

import math
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
"""Seconds after which a call returns what is known, once the current forward pass has ended."""
MOST_SWEPT = 1.6e13
"""Largest product of block weights, tokens and heads for which heads are removed exactly.

It takes a few minutes on two cores.
"""
MOST_PATCHED = 6e13
"""Largest product of block weights, tokens and places for which places are patched.

It is larger than ``MOST_SWEPT`` because a pass computes only the later layers and positions.
"""
MOST_HELD = 2e9
"""Largest memory of a backward pass in bytes.

If more is needed, there is no estimate, and the last layers are swept first.
"""

_TOKENS_AT_ONCE = 512
_BYTES_HELD = 96
"""Bytes that a backward pass holds for each number of the residual stream of each layer."""


@dataclass(eq=False)
class _Stack:
    """Results for the heads of one stack of attention."""

    attention: m.Attention
    width: int
    """Number of heads times head_dim."""
    values: Float[Tensor, "layer head"]
    """Metric without each head; NaN while unknown."""
    exact: Bool[Tensor, "layer head"]
    """True where the value is exact, False where it is an estimate."""


@dataclass(eq=False)
class InSlices(ABC):
    """A sweep under way. Each call that asks for it computes a part of it."""

    outcomes: Outcomes
    pair: m.Compared
    before: float | None = None
    """Log-odds of the run that is changed; None before the first step."""
    total: int = 0
    lock: Any = field(default_factory=threading.Lock)
    _steps: Iterator[None] | None = None

    def __post_init__(self) -> None:
        self.tokens = max(tensor.shape[1] for tensor in self.outcomes.run.inputs)
        self.weights = sum(
            count_weights(point.module) for point in self.outcomes.points if point.role == "block"
        )
        self._steps = self._all_steps()

    @abstractmethod
    def _all_steps(self) -> Iterator[None]: ...

    @property
    @abstractmethod
    def done(self) -> int:
        """Number of exact values."""

    def advance(self, known: int | None) -> None:
        """Compute for a moment, and until more than ``known`` values are done.

        If ``known`` is None, compute until the first step has ended.
        """
        start = time.monotonic()
        with self.lock:
            while self._steps is not None:
                if known is None:
                    advanced = self.before is not None
                else:
                    advanced = self.done > known
                if advanced and (known is None or time.monotonic() >= start + SLICE):
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
        for attention in run.message.attentions:
            shape = (attention.layers, attention.heads)
            q = run.layers(attention.part)[0].q
            values = torch.full(shape, torch.nan)
            exact = torch.zeros(shape, dtype=torch.bool)
            self.stacks.append(_Stack(attention, q.shape[1] * q.shape[3], values, exact))
        heads = sum(stack.exact.numel() for stack in self.stacks)
        share = min(1.0, MOST_SWEPT / (self.weights * self.tokens * heads))
        self.layers = [max(1, int(share * stack.attention.layers)) for stack in self.stacks]
        self.total = sum(
            num_layers * stack.attention.heads
            for num_layers, stack in zip(self.layers, self.stacks, strict=True)
        )

    @property
    def done(self) -> int:
        """Number of heads whose effect is exact."""
        return min(self.total, sum(int(stack.exact.sum()) for stack in self.stacks))

    @property
    def size(self) -> int:
        """Approximate size of the sweep in bytes."""
        if self._steps is None:
            return 10_000
        numbers = sum(stack.attention.layers * stack.width for stack in self.stacks)
        return 32 * self.tokens * numbers + 10_000

    def message(self) -> m.HeadSweep:
        """Return what is known."""
        assert self.before is not None
        stacks = [
            m.SweptStack(
                part=stack.attention.part,
                label=stack.attention.label,
                after=_without_nan(stack.values),
                exact=stack.exact.tolist(),
            )
            for stack in self.stacks
        ]
        return m.HeadSweep(
            **dict(self.pair),
            before=self.before,
            stacks=stacks,
            done=self.total if self._steps is None else self.done,
            total=self.total,
        )

    def _all_steps(self) -> Iterator[None]:
        model = self.outcomes.model
        texts = self.outcomes.texts
        place = self.outcomes.place
        metric = partial(_preference, self.pair)
        options: dict[str, Any] = {"logits": -1 if place is None else place}
        parts = [
            None if stack.attention.part == "self" else stack.attention.part
            for stack in self.stacks
        ]
        for part, stack in zip(parts, self.stacks, strict=True):
            if stack.attention.layers * stack.width * self.tokens * _BYTES_HELD <= MOST_HELD:
                with suppress(InputError):
                    estimate = attribution_sweep(model, None, texts, metric, part=part, **options)
                    stack.values = estimate.values.double().detach()
                    self.before = estimate.clean
                    yield
        batch_size = max(1, _TOKENS_AT_ONCE // self.tokens)
        for part, stack, num_swept in zip(parts, self.stacks, self.layers, strict=True):
            num_layers = stack.attention.layers
            order = list(reversed(range(num_layers)))
            if self.before is not None and bool(stack.values.isfinite().all()):
                largest = (stack.values - self.before).abs().amax(1)
                order = largest.argsort(descending=True).tolist()
            swept_layers = order[:num_swept]
            # Neighbouring layers are swept together, unless some of them are left out.
            options["batch_size"] = batch_size
            if num_swept < num_layers:
                options["batch_size"] = min(batch_size, stack.attention.heads)
            for sweep in ablation_steps(model, texts, metric, part=part, order=order, **options):
                self.before = sweep.clean
                stack.exact = sweep.values.isfinite()
                stack.values = torch.where(stack.exact, sweep.values, stack.values)
                yield
                if bool(stack.exact[swept_layers].all()):
                    break


@dataclass(eq=False, kw_only=True)
class Patching(InSlices):
    """A sweep that gives a second text, at each layer and position, the first text's stream."""

    second: KeptRun
    latest: Sweep | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        layers = sum(point.role == "block" for point in self.outcomes.points)
        self.total = layers * self.tokens
        cost = self.weights * self.tokens * self.total
        if cost > MOST_PATCHED:
            raise InputError(
                got=f"{self.tokens} tokens",
                expected="texts whose places can be swept in minutes",
                fix="Shorten the texts.",
            )

    @property
    def done(self) -> int:
        """Number of places whose effect is known."""
        if self.latest is None:
            return 0
        return int(self.latest.values.isfinite().sum())

    def message(self) -> m.Patches:
        """Return what is known."""
        sweep = self.latest
        assert sweep is not None
        assert sweep.corrupted is not None
        return m.Patches(
            **dict(self.pair),
            tokens=self.outcomes.run.message.tokens,
            second_tokens=self.second.message.tokens,
            first=sweep.clean,
            second=sweep.corrupted,
            patched=_without_nan(sweep.values),
            done=self.total if self._steps is None else self.done,
            total=self.total,
        )

    def _all_steps(self) -> Iterator[None]:
        outcomes = self.outcomes
        metric = partial(_preference, self.pair)
        logits = -1 if outcomes.place is None else outcomes.place
        texts = (outcomes.texts, self.second.inputs[0])
        order = self._order(metric, logits)
        batch_size = max(1, _TOKENS_AT_ONCE // self.tokens)
        for sweep in patch_steps(
            outcomes.model, *texts, metric, logits=logits, batch_size=batch_size, order=order
        ):
            self.latest = sweep
            self.before = sweep.corrupted
            yield

    def _order(self, metric: Metric, logits: int) -> list[int] | None:
        """Return the layers in the order of their largest estimated effect.

        Return None if there is no estimate.
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
    """Return the log-odds after a second text with each place of the stream as in the first.

    They are computed as :func:`sweep` computes its own.
    """
    outcomes, pair = _asked(runs, ask)
    second = outcomes.other_text(runs, ask.second)
    run = outcomes.run
    key: Hashable = (
        "patches",
        run.message.run,
        second.message.run,
        run.stamp,
        outcomes.place,
        pair,
    )
    sweeping: Patching | None = runs.derived.get(key)
    if sweeping is None:
        sweeping = Patching(outcomes, pair, second=second)
    sweeping.advance(ask.done)
    runs.derived.put(key, sweeping, 100_000 + 16 * sweeping.total)
    return sweeping.message()


def sweep(runs: Runs, ask: m.AskSweep) -> m.HeadSweep:
    """Return the log-odds of the target without each head, as far as they are known.

    If the request names another outcome, they are the log-odds of the target over that outcome. The
    first call gives an estimate from one gradient if it fits into memory. Each further call
    computes for a moment, the layers of the largest estimates first. Nothing is computed between
    the calls.
    """
    outcomes, pair = _asked(runs, ask)
    key: Hashable = ("sweep", outcomes.run.message.run, outcomes.run.stamp, outcomes.place, pair)
    sweeping: Sweeping | None = runs.derived.get(key)
    if sweeping is None:
        sweeping = Sweeping(outcomes, pair)
    sweeping.advance(ask.done)
    runs.derived.put(key, sweeping, sweeping.size)
    return sweeping.message()


def _without_nan(values: Float[Tensor, "layer column"]) -> list[list[float | None]]:
    return [[None if math.isnan(value) else value for value in row] for row in values.tolist()]


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
    """Return ``log(p / (1 - p))`` of the target at the last position.

    With another outcome of probability q, return ``log(p / q)``.
    """
    wide = logits[:, -1].double()
    if pair.other is not None:
        return wide[:, pair.target] - wide[:, pair.other]
    others = wide.index_fill(1, torch.tensor(pair.target, device=wide.device), -torch.inf)
    return wide[:, pair.target] - others.logsumexp(-1)
