"""The scrambling test: does the order of what a model reads change what it answers?"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.errors import require, require_positive

Predict = Callable[[Int[Tensor, "batch source *field"]], Float[Tensor, "batch *position vocab"]]
"""From sources to logits, every source on its own."""


@dataclass(frozen=True)
class ScrambledContext:
    """What happened to one context."""

    positions: int
    """Its real positions, which were put into other orders."""
    orders: int
    """Orders tried, the original one among them."""
    exhaustive: bool
    """Whether these were all the orders there are."""
    largest_change: float
    """The largest absolute difference of a logit from that of the original order."""
    changed_tokens: int
    """Most likely tokens that differ from those of the original order, over all orders and target positions."""
    decided_tokens: int
    """Most likely tokens that were compared: orders but the original one, times target positions."""
    worst_order: tuple[int, ...]
    """The order with the largest change: position i of it holds what stood at ``worst_order[i]``."""


@dataclass(frozen=True)
class Scrambling:
    """The result of :func:`scrambling_test`."""

    contexts: tuple[ScrambledContext, ...]
    """One for each context, in their order."""
    tolerance: float
    """The largest change of a logit that counts as none."""

    @property
    def largest_change(self) -> float:
        """The largest change of a logit in any context."""
        return max(context.largest_change for context in self.contexts)

    @property
    def changed_tokens(self) -> int:
        """Most likely tokens that changed, over all contexts."""
        return sum(context.changed_tokens for context in self.contexts)

    @property
    def orders(self) -> int:
        """Orders tried, over all contexts."""
        return sum(context.orders for context in self.contexts)

    @property
    def exhaustive(self) -> bool:
        """Whether every order of every context was tried."""
        return all(context.exhaustive for context in self.contexts)

    @property
    def holds(self) -> bool:
        """No most likely token changed, and no logit by more than ``tolerance``."""
        return self.changed_tokens == 0 and self.largest_change <= self.tolerance

    def __str__(self) -> str:
        which = "all orders" if self.exhaustive else "a sample of the orders"
        decided = sum(context.decided_tokens for context in self.contexts)
        lines = [
            f"{'holds' if self.holds else 'FAILS'}: {len(self.contexts)} contexts, {which}, {self.orders:,} in all",
            f"largest change of a logit {self.largest_change:.2g} (allowed {self.tolerance:.2g})",
            f"most likely tokens changed {self.changed_tokens:,} of {decided:,}",
        ]
        if not self.holds:
            worst = max(range(len(self.contexts)), key=lambda index: self.contexts[index].largest_change)
            lines.append(f"worst order, in context {worst}: {' '.join(map(str, self.contexts[worst].worst_order))}")
        return "\n".join(lines)


def scrambling_test(
    predict: Predict,
    source: Int[Tensor, "context source *field"],
    real: Bool[Tensor, "context source"] | None = None,
    max_orders: int = 5040,
    seed: int = 0,
    tolerance: float = 1e-5,
    batch_size: int = 512,
) -> Scrambling:
    """Put the positions of each context into other orders, and compare the logits with those of the original one.

    With n real positions all n! orders are tried if there are at most ``max_orders`` (5,040 = 7!), else ``max_orders``
    different ones, the original among them and the others drawn at random. Padding stays where it is; the fields of
    a slot stay together.

    Args:
        predict: From sources ``[batch, source]`` or ``[batch, source, field]`` to logits ``[batch, ..., vocab]``; a row
            of the result belongs to a row of the sources alone. Called without gradients; it must not draw at random
            (a model in evaluation mode).
        source: The contexts.
        real: True where a position is real; all are when None.
        max_orders: The most orders of each context, at least 2.
        seed: Of the random orders.
        tolerance: The largest change of a logit that counts as none, at least 0. Sums taken in another order differ by
            rounding.
        batch_size: Orders at a time.

    Raises:
        InputError: No context, no context with two different things to scramble, a mask that does not fit,
            ``max_orders`` below 2, a tolerance below 0, a batch size below 1; logits of another batch, or that are not
            finite; or other logits when asked the same again.
    """
    _check(source, real, max_orders, tolerance, batch_size)
    real = torch.ones(source.shape[:2], dtype=torch.bool) if real is None else real.cpu()
    require(
        any(
            bool((context[places.to(context.device)] != _first(context, places)).any())
            for context, places in zip(source, real, strict=True)
        ),
        "contexts that are the same in every order",
        "at least two different things in one of them",
        "Pass contexts whose real positions differ: of others the test says nothing.",
    )
    generator = torch.Generator().manual_seed(seed)
    contexts = []
    with torch.no_grad():
        for context, places in zip(source, real, strict=True):
            orders, exhaustive = _orders(places, max_orders, generator)
            contexts.append(_one_context(predict, context, orders, exhaustive, int(places.sum()), batch_size))
        found = Scrambling(tuple(contexts), tolerance)
        if not found.holds:
            _check_repeats(predict, source[:1])
    return found


def _first(context: Tensor, places: Tensor) -> Tensor:
    """What stands at the first real position; nothing if there is none."""
    return context[places.to(context.device)][:1]


def _orders(
    real: Bool[Tensor, " source"], max_orders: int, generator: torch.Generator
) -> tuple[Int[Tensor, "order source"], bool]:
    """Different orders of the real positions, the original one first, and whether these are all."""
    places = real.nonzero()[:, 0]
    count = len(places)
    exhaustive = count <= 20 and math.factorial(count) <= max_orders
    if exhaustive:
        drawn = torch.tensor(list(permutations(range(count))), dtype=torch.int64)  # the first is the original
    else:
        kept = {tuple(range(count)): None}
        while len(kept) < max_orders:
            kept[tuple(torch.randperm(count, generator=generator).tolist())] = None
        drawn = torch.tensor(list(kept))
    orders = torch.arange(len(real)).repeat(len(drawn), 1)
    orders[:, places] = places[drawn]
    return orders, exhaustive


def _one_context(
    predict: Predict, context: Tensor, orders: Tensor, exhaustive: bool, positions: int, batch_size: int
) -> ScrambledContext:
    original: Tensor | None = None
    largest, worst, changed, decided = 0.0, 0, 0, 0
    for start in range(0, len(orders), batch_size):
        chosen = orders[start : start + batch_size]
        logits = predict(context[chosen.to(context.device)])
        _check_logits(logits, len(chosen))
        original = logits[0].clone() if original is None else original
        change = (logits - original).abs().flatten(1).amax(1)
        tokens = logits.argmax(-1)
        changed += int((tokens != original.argmax(-1)).sum())
        decided += tokens.numel() - (tokens[0].numel() if start == 0 else 0)
        if float(change.max()) > largest:
            largest, worst = float(change.max()), start + int(change.argmax())
    order = tuple(orders[worst].tolist())
    return ScrambledContext(positions, len(orders), exhaustive, largest, changed, decided, order)


def _check(source: Tensor, real: Tensor | None, max_orders: int, tolerance: float, batch_size: int) -> None:
    require(
        source.dim() >= 2 and source.shape[0] >= 1 and source.shape[1] >= 1,
        f"source of shape {list(source.shape)}",
        "[context, position] or [context, slot, field], with at least one context and position",
        "Add a context axis with source[None].",
    )
    require(
        real is None or (real.shape == source.shape[:2] and real.dtype == torch.bool),
        "nothing" if real is None else f"real of shape {list(real.shape)} and dtype {real.dtype}",
        f"torch.bool and the shape {list(source.shape[:2])}",
        "Give True for each real position and False for each padding position.",
    )
    require_positive(max_orders=max_orders, batch_size=batch_size)
    require(max_orders >= 2, f"max_orders = {max_orders}", "at least 2", "The first is the original order.")
    require(tolerance >= 0, f"tolerance = {tolerance}", "a number of at least 0", "1e-5 suits float32.")


def _check_repeats(predict: Predict, source: Tensor) -> None:
    """Refuse a model that draws at random: it would seem to fail whatever the order."""
    difference = float((predict(source).clone() - predict(source)).abs().max())
    require(
        difference == 0,
        f"logits that differ by {difference:.2g} when the same source is read again",
        "a function of the source alone",
        "Call model.eval() first, so that nothing is dropped.",
    )


def _check_logits(logits: Tensor, batch: int) -> None:
    require(
        logits.dim() >= 2 and logits.shape[0] == batch,
        f"logits of shape {list(logits.shape)} for {batch} sources",
        f"[{batch}, ..., vocab]",
        "Let predict answer each row of its sources with one row.",
    )
    require(
        bool(logits.isfinite().all()),
        f"{int((~logits.isfinite()).sum())} logits that are not finite",
        "numbers",
        "Look for the first NaN in the model's forward pass.",
    )
