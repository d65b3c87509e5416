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

    positions: int
    """Number of real positions, which were permuted."""
    orders: int
    """Number of orders that were tried, with the original one."""
    exhaustive: bool
    """True if all orders were tried."""
    largest_change: float
    """Largest absolute change of a logit."""
    changed_tokens: int
    """Number of most likely tokens that changed, over all orders and target positions."""
    decided_tokens: int
    """Number of compared tokens: orders other than the original, times target positions."""
    worst_order: tuple[int, ...]
    """Order with the largest change: position i holds the original's position worst_order[i]."""


@dataclass(frozen=True, repr=False)
class Scrambling:
    """The result of :func:`scrambling_test`."""

    contexts: tuple[ScrambledContext, ...]
    tolerance: float
    """Largest change of a logit that is attributed to rounding."""

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
        """True if every order of every context was tried."""
        return all(context.exhaustive for context in self.contexts)

    @property
    def holds(self) -> bool:
        """True if no most likely token changed, and no logit by more than ``tolerance``."""
        return self.changed_tokens == 0 and self.largest_change <= self.tolerance

    def __repr__(self) -> str:
        verdict = "holds" if self.holds else "FAILS"
        which = "all orders" if self.exhaustive else "a sample of the orders"
        lines = [
            f"{verdict}: {len(self.contexts)} contexts, {which}, {self.orders:,} in all",
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
    """Permute the positions of each context, and compare its logits with the original ones.

    With n real positions all n! orders are tried if they are at most ``max_orders`` (5,040 = 7!).
    Otherwise ``max_orders`` different orders are tried: the original and random others. Padding
    stays in place, and so do the fields within a slot.

    Args:
        predict: Maps sources ``[batch, source]`` or ``[batch, source, field]`` to logits
            ``[batch, ..., vocab]``; each row of the result depends on its source only. It is called
            without gradients, and must be deterministic, such as a model in evaluation mode.
        source: The contexts.
        real: True at real positions; all are real when None.
        max_orders: Most orders of each context, at least 2.
        seed: Seed of the random orders.
        tolerance: Largest change of a logit that is attributed to rounding, at least 0.
        batch_size: Number of orders in one call of ``predict``.
    """
    if source.dim() < 2 or min(source.shape[:2]) < 1:
        raise InputError(
            got=f"source of shape {list(source.shape)}",
            expected=(
                "[context, position] or [context, slot, field], with at least one context and "
                "position"
            ),
            fix="Add a context axis with source[None].",
        )
    if real is None:
        real = torch.ones(source.shape[:2], dtype=torch.bool)
    real = real.cpu()
    _check_request(source, real, max_orders, tolerance, batch_size)
    generator = torch.Generator().manual_seed(seed)
    contexts: list[ScrambledContext] = []
    with torch.no_grad():
        for context, is_real in zip(source, real, strict=True):
            orders, exhaustive = _orders(is_real, max_orders, generator)
            num_real = int(is_real.sum())
            contexts.append(
                _one_context(predict, context, orders, exhaustive, num_real, batch_size)
            )
        result = Scrambling(tuple(contexts), tolerance)
        if not result.holds:
            _check_deterministic(predict, source[:1])
    return result


def _check_request(
    source: Tensor, real: Tensor, max_orders: int, tolerance: float, batch_size: int
) -> None:
    """Refuse arguments that do not fit, and contexts that no order changes."""
    if real.shape != source.shape[:2] or real.dtype != torch.bool:
        raise InputError(
            got=f"real of shape {list(real.shape)} and dtype {real.dtype}",
            expected=f"torch.bool and the shape {list(source.shape[:2])}",
            fix="Pass True for each real position.",
        )
    require_positive(max_orders=max_orders, batch_size=batch_size)
    if max_orders < 2:
        raise InputError(
            got=f"max_orders = {max_orders}",
            expected="at least 2",
            fix="One order is the original.",
        )
    if not tolerance >= 0:  # refuses NaN too
        raise InputError(
            got=f"tolerance = {tolerance}",
            expected="a number of at least 0",
            fix="Use 1e-5 in float32.",
        )
    for context, is_real in zip(source, real, strict=True):
        contents = context[is_real.to(context.device)]
        if bool((contents != contents[:1]).any()):
            return
    raise InputError(
        got="contexts that are the same in every order",
        expected="two different real positions in one of them",
        fix="Pass contexts whose real positions differ.",
    )


def _check_deterministic(predict: Predict, source: Tensor) -> None:
    """Refuse a function that returns other logits when it reads the same source again."""
    difference = float((predict(source).clone() - predict(source)).abs().max())
    if difference != 0:
        raise InputError(
            got=f"logits that differ by {difference:.2g} when the same source is read again",
            expected="a deterministic function of the source",
            fix="Call model.eval() first to switch dropout off.",
        )


def _orders(
    real: Bool[Tensor, " source"], max_orders: int, generator: torch.Generator
) -> tuple[Int[Tensor, "order source"], bool]:
    """Return different orders of the real positions, and whether they are all orders.

    The original order is the first one.
    """
    places = real.nonzero()[:, 0]
    count = len(places)
    exhaustive = count <= 20 and math.factorial(count) <= max_orders
    if exhaustive:
        different = list(permutations(range(count)))  # the first is the original
    else:
        drawn = {tuple(range(count)): None}
        while len(drawn) < max_orders:
            drawn[tuple(torch.randperm(count, generator=generator).tolist())] = None
        different = list(drawn)
    permuted = torch.tensor(different, dtype=torch.int64)
    orders = torch.arange(len(real)).repeat(len(permuted), 1)
    orders[:, places] = places[permuted]
    return orders, exhaustive


def _one_context(
    predict: Predict,
    context: Tensor,
    orders: Tensor,
    exhaustive: bool,
    positions: int,
    batch_size: int,
) -> ScrambledContext:
    """Return the result for one context."""
    original: Tensor | None = None
    largest = 0.0
    worst = 0
    changed = 0
    decided = 0
    for start in range(0, len(orders), batch_size):
        batch = orders[start : start + batch_size]
        logits = predict(context[batch.to(context.device)])
        _check_logits(logits, len(batch))
        if original is None:
            original = logits[0].clone()
        change = (logits - original).abs().flatten(1).amax(1)
        tokens = logits.argmax(-1)
        changed += int((tokens != original.argmax(-1)).sum())
        decided += tokens.numel()
        if start == 0:  # the original order
            decided -= tokens[0].numel()
        if float(change.max()) > largest:
            largest = float(change.max())
            worst = start + int(change.argmax())
    order = tuple(orders[worst].tolist())
    return ScrambledContext(positions, len(orders), exhaustive, largest, changed, decided, order)


def _check_logits(logits: Tensor, count: int) -> None:
    """Refuse logits that do not have a row for each of ``count`` sources, NaN and infinity."""
    if logits.dim() < 2 or logits.shape[0] != count:
        raise InputError(
            got=f"logits of shape {list(logits.shape)} for {count} sources",
            expected=f"[{count}, ..., vocab]",
            fix="Return one row of logits for each source.",
        )
    infinite = int((~logits.isfinite()).sum())
    if infinite != 0:
        raise InputError(
            got=f"{infinite} logits that are not finite",
            expected="finite numbers",
            fix="Check the model for NaN.",
        )
