"""The effect of the source's order on the logits of an encoder-decoder."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.errors import require
from glassformer.explorer.loading.loaded_model import LoadedEncoderDecoder, LoadedModel, of_kind, require_order
from glassformer.explorer.messages import AskScramble, Scrambled
from glassformer.modes import evaluating
from glassformer.observe.scrambling import ScrambledContext, Scrambling, scrambling_test

MOST_ORDERS = 500
"""Largest number of orders to try: five units have 120, six 720."""
TOLERANCE = 1e-5
"""The largest change that is attributed to rounding, for logits of at most 1; in proportion for larger ones."""

_PLACES_AT_ONCE = 8192


def scramble(loaded: LoadedModel, ask: AskScramble) -> Scrambled:
    """Read ``ask.source`` in the order ``ask.order``, or in all, and compare the logits with the given order's."""
    loaded = of_kind(LoadedEncoderDecoder, loaded, "scramble", "a model that reads a source")
    source, target = loaded.source_tokens(ask.source), loaded.target(ask.text)
    count = source.shape[1]
    if ask.order is not None:
        require_order(ask.order, count)

    def predict(sources: Int[Tensor, "batch place *field"]) -> Float[Tensor, "batch position vocab"]:
        logits: Tensor = loaded.model(sources, target.expand(len(sources), -1))
        return logits

    with loaded.lock, torch.inference_mode(), evaluating(loaded.model):
        given = predict(source)
        tolerance = TOLERANCE * max(1.0, float(given.abs().max()))
        if ask.order is not None:
            found = Scrambling((_one_order(given, predict(source[:, ask.order]), ask.order),), tolerance)
        else:
            at_once = max(2, _PLACES_AT_ONCE // count)
            found = scrambling_test(predict, source, max_orders=MOST_ORDERS, tolerance=tolerance, batch_size=at_once)
    return Scrambled(
        orders=found.orders,
        exhaustive=found.exhaustive,
        largest_change=found.largest_change,
        changed_tokens=found.changed_tokens,
        tolerance=tolerance,
        holds=found.holds,
        worst=list(found.contexts[0].worst_order),
    )


def _one_order(
    before: Float[Tensor, "one position vocab"], after: Float[Tensor, "one position vocab"], order: Sequence[int]
) -> ScrambledContext:
    finite = bool(before.isfinite().all() and after.isfinite().all())
    require(finite, "logits that are not finite", "finite ones", "Look for the first NaN in the model's forward pass.")
    change = float((after - before).abs().max())
    changed = after.argmax(-1) != before.argmax(-1)
    return ScrambledContext(len(order), 1, False, change, int(changed.sum()), changed.numel(), tuple(order))
