"""The effect of the source's order on the logits of an encoder-decoder."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.errors import require
from glassformer.explorer.loading.loaded_model import LoadedEncoderDecoder, LoadedModel, require_order, wrong_kind
from glassformer.explorer.messages import AskScramble, Scrambled
from glassformer.modes import evaluating
from glassformer.observe.scrambling import scrambling_test

MOST_ORDERS = 500
"""Largest number of orders to try: five units have 120, six 720."""
TOLERANCE = 1e-5
"""The largest change that is attributed to rounding, for logits of at most 1; in proportion for larger ones."""

_PLACES_AT_ONCE = 8192


def scramble(loaded: LoadedModel, ask: AskScramble) -> Scrambled:
    """Read ``ask.source`` in the order ``ask.order``, or in all, and compare the logits with those of the given order.

    Raises:
        InputError: A model of another kind; a source or text that it cannot read; fewer than two different units; an
            order that is not a permutation of the source.
    """
    if not isinstance(loaded, LoadedEncoderDecoder):
        raise wrong_kind(loaded, "scramble", "a model that reads a source")
    source, target = loaded.source_tokens(ask.source), loaded.target(ask.text)
    count = source.shape[1]
    assert count == len(ask.source), "one place for each unit"
    if ask.order is not None:
        require_order(ask.order, count)

    def predict(sources: Int[Tensor, "batch place *field"]) -> Float[Tensor, "batch position vocab"]:
        logits: Tensor = loaded.model(sources, target.expand(len(sources), -1))
        return logits

    with loaded.lock, torch.inference_mode(), evaluating(loaded.model):
        given = predict(source)
        tolerance = TOLERANCE * max(1.0, float(given.abs().max()))
        if ask.order is not None:
            return _one_order(given, predict(source[:, ask.order]), ask.order, tolerance)
        at_once = max(2, _PLACES_AT_ONCE // count)
        found = scrambling_test(predict, source, max_orders=MOST_ORDERS, tolerance=tolerance, batch_size=at_once)
    (context,) = found.contexts
    return Scrambled(
        orders=context.orders,
        exhaustive=context.exhaustive,
        largest_change=context.largest_change,
        changed_tokens=context.changed_tokens,
        tolerance=tolerance,
        holds=found.holds,
        worst=list(context.worst_order),
    )


def _one_order(
    before: Float[Tensor, "one position vocab"],
    after: Float[Tensor, "one position vocab"],
    order: Sequence[int],
    tolerance: float,
) -> Scrambled:
    finite = bool(before.isfinite().all() and after.isfinite().all())
    require(finite, "logits that are not finite", "finite ones", "Look for the first NaN in the model's forward pass.")
    change = float((after - before).abs().max())
    changed = int((after.argmax(-1) != before.argmax(-1)).sum())
    return Scrambled(
        orders=1,
        exhaustive=False,
        largest_change=change,
        changed_tokens=changed,
        tolerance=tolerance,
        holds=changed == 0 and change <= tolerance,
        worst=list(order),
    )
