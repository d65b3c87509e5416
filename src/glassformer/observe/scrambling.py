"""The scrambling test: does the order of a model's source change its predictions?"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.errors import InputError, require_positive

Predict = Callable[[Int[Tensor, "batch source *field"]], Float[Tensor, "batch *position vocab"]]
"""From sources to logits, each source independently."""


@dataclass(frozen=True)
class ScrambledContext:
    """The result for one context."""

    positions: int  # real ones, which were permuted
    orders: int  # tried, the original one included
    exhaustive: bool  # whether all orders were tried
    largest_change: float  # of a logit, absolute
    changed_tokens: int  # most likely tokens that changed, over all orders and target positions
    decided_tokens: (
        int  # those that were compared: orders other than the original, times target positions
    )
    worst_order: tuple[
        int, ...
    ]  # with the largest change: position i holds the original's position worst_order[i]


@dataclass(frozen=True, repr=False)
class Scrambling:
    """The result of :func:`scrambling_test`."""

    contexts: tuple[ScrambledContext, ...]
    tolerance: float  # the largest change of a logit that is attributed to rounding

    @property
    def largest_change(self) -> float:
        """The largest change of a logit in any context."""
        return max(context.largest_change for context in self.contexts)

    @property
    def changed_tokens(self) -> int:
        """Most likely tokens that changed, over all contexts."""
        return sum(context.changed_tokens for context in self.contexts)

    @property
    def decided_tokens(self) -> int:
        """Most likely tokens that were compared, over all contexts."""
        return sum(context.decided_tokens for context in self.contexts)

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

    def __repr__(self) -> str:
        if self.exhaustive:
            which = "all orders"
        else:
            which = "a sample of the orders"
        lines = [
            f"{'holds' if self.holds else 'FAILS'}: {len(self.contexts)} contexts, {which}, "
            f"{self.orders:,} in all",
            f"largest change of a logit {self.largest_change:.2g} (allowed {self.tolerance:.2g})",
            f"most likely tokens changed {self.changed_tokens:,} of {self.decided_tokens:,}",
        ]
        if not self.holds:
            worst = max(
                range(len(self.contexts)), key=lambda index: self.contexts[index].largest_change
            )
            lines.append(
                f"worst order, in context {worst}: "
                f"{' '.join(map(str, self.contexts[worst].worst_order))}"
            )
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
    """Permute the positions of each context, and compare the logits with those of the original
    order.

    With n real positions all n! orders are tried if they are at most ``max_orders`` (5,040 = 7!),
    otherwise
    ``max_orders`` different ones: the original and random others. Padding stays in place, and so do
    the fields within a slot.

    Args:
        predict: From sources ``[batch, source]`` or ``[batch, source, field]`` to logits ``[batch,
            ..., vocab]``; each row of the result depends on its source only. Called without gradients; must be deterministic, such as a
            model in evaluation mode.
        real: True at real positions; all are real when None.
        max_orders: The most orders of each context, at least 2.
        tolerance: The largest change of a logit that is attributed to rounding, at least 0.
        batch_size: Orders in one call of ``predict``.
    """
    got = f"source of shape {list(source.shape)}"
    expected = (
        "[context, position] or [context, slot, field], with at least one context and position"
    )
    if not (source.dim() >= 2 and min(source.shape[:2]) >= 1):
        raise InputError(
            got=got,
            expected=expected,
            fix="Add a context axis with source[None].",
        )
    if real is None:
        real = torch.ones(source.shape[:2], dtype=torch.bool)
    else:
        real = real.cpu()
    fits = real.shape == source.shape[:2]
    got = f"real of shape {list(real.shape)} and dtype {real.dtype}"
    expected = f"torch.bool and the shape {list(source.shape[:2])}"
    fix = "Pass True for each real position."
    if not fits or real.dtype != torch.bool:
        raise InputError(
            got=got,
            expected=expected,
            fix=fix,
        )
    require_positive(max_orders=max_orders, batch_size=batch_size)
    if not max_orders >= 2:
        raise InputError(
            got=f"max_orders = {max_orders}",
            expected="at least 2",
            fix="One order is the original.",
        )
    if not tolerance >= 0:
        raise InputError(
            got=f"tolerance = {tolerance}",
            expected="a number of at least 0",
            fix="Use 1e-5 in float32.",
        )
    contents = [
        context[places.to(context.device)] for context, places in zip(source, real, strict=True)
    ]
    differ = any(bool((each != each[:1]).any()) for each in contents)
    got = "contexts that are the same in every order"
    if not differ:
        raise InputError(
            got=got,
            expected="two different real positions in one of them",
            fix="Pass contexts whose real positions differ.",
        )
    generator = torch.Generator().manual_seed(seed)
    contexts = []
    with torch.no_grad():
        for context, places in zip(source, real, strict=True):
            orders, exhaustive = _orders(places, max_orders, generator)
            contexts.append(
                _one_context(predict, context, orders, exhaustive, int(places.sum()), batch_size)
            )
        result = Scrambling(tuple(contexts), tolerance)
        if not result.holds:
            difference = float((predict(source[:1]).clone() - predict(source[:1])).abs().max())
            got = f"logits that differ by {difference:.2g} when the same source is read again"
            fix = "Call model.eval() first to switch dropout off."
            if difference != 0:
                raise InputError(
                    got=got,
                    expected="a deterministic function of the source",
                    fix=fix,
                )
    return result


def _orders(
    real: Bool[Tensor, " source"], max_orders: int, generator: torch.Generator
) -> tuple[Int[Tensor, "order source"], bool]:
    """Different orders of the real positions, the original one first, and whether they are all
    orders.
    """
    places = real.nonzero()[:, 0]
    count = len(places)
    exhaustive = count <= 20 and math.factorial(count) <= max_orders
    if exhaustive:
        drawn = torch.tensor(
            list(permutations(range(count))), dtype=torch.int64
        )  # the first is the original
    else:
        kept = {tuple(range(count)): None}
        while len(kept) < max_orders:
            kept[tuple(torch.randperm(count, generator=generator).tolist())] = None
        drawn = torch.tensor(list(kept))
    orders = torch.arange(len(real)).repeat(len(drawn), 1)
    orders[:, places] = places[drawn]
    return orders, exhaustive


def _one_context(
    predict: Predict,
    context: Tensor,
    orders: Tensor,
    exhaustive: bool,
    positions: int,
    batch_size: int,
) -> ScrambledContext:
    original: Tensor | None = None
    largest = 0.0
    worst = 0
    changed = 0
    decided = 0
    for start in range(0, len(orders), batch_size):
        chosen = orders[start : start + batch_size]
        logits = predict(context[chosen.to(context.device)])
        if not logits.dim() >= 2 or logits.shape[0] != len(chosen):
            raise InputError(
                got=f"logits of shape {list(logits.shape)} for {len(chosen)} sources",
                expected=f"[{len(chosen)}, ..., vocab]",
                fix="Return one row of logits for each source.",
            )
        infinite = int((~logits.isfinite()).sum())
        if infinite != 0:
            raise InputError(
                got=f"{infinite} logits that are not finite",
                expected="finite numbers",
                fix="Check the model for NaN.",
            )
        original = logits[0].clone() if original is None else original
        change = (logits - original).abs().flatten(1).amax(1)
        tokens = logits.argmax(-1)
        changed += int((tokens != original.argmax(-1)).sum())
        decided += tokens.numel() - (tokens[0].numel() if start == 0 else 0)
        if float(change.max()) > largest:
            largest = float(change.max())
            worst = start + int(change.argmax())
    order = tuple(orders[worst].tolist())
    return ScrambledContext(positions, len(orders), exhaustive, largest, changed, decided, order)
