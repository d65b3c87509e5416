"""The effect of the source's order on the logits of an encoder-decoder."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.errors import InputError
from glassformer.explorer.loading.loaded_model import (
    LoadedEncoderDecoder,
    LoadedModel,
    of_kind,
    require_order,
)
from glassformer.explorer.messages import AskScramble, Scrambled
from glassformer.modes import evaluating
from glassformer.observe.scrambling import ScrambledContext, Scrambling, scrambling_test

MOST_ORDERS = 500
"""Largest number of orders to try: five units have 120, six 720."""
TOLERANCE = 1e-5
"""The largest change that is attributed to rounding, for logits of at most 1; in proportion for
larger ones.
"""

_PLACES_AT_ONCE = 8192


def scramble(loaded: LoadedModel, ask: AskScramble) -> Scrambled:
    """Read ``ask.source`` in the order ``ask.order``, or in all, and compare the logits with the
    given order's.
    """
    loaded = of_kind(LoadedEncoderDecoder, loaded, "scramble", "a model that reads a source")
    source, target = loaded.inputs(ask.source, ask.text)
    count = source.shape[1]
    if ask.order is not None:
        require_order(ask.order, count)

    def predict(
        sources: Int[Tensor, "batch place *field"],
    ) -> Float[Tensor, "batch position vocab"]:
        logits: Tensor = loaded.model(sources, target.expand(len(sources), -1))
        return logits

    with loaded.lock, torch.inference_mode(), evaluating(loaded.model):
        given = predict(source)
        tolerance = TOLERANCE * max(1.0, float(given.abs().max()))
        if ask.order is None:
            at_once = max(2, _PLACES_AT_ONCE // count)
            found = scrambling_test(
                predict, source, max_orders=MOST_ORDERS, tolerance=tolerance, batch_size=at_once
            )
        else:
            after = predict(source[:, ask.order])
            order = tuple(ask.order)
            finite = bool(given.isfinite().all() and after.isfinite().all())
            if not finite:
                raise InputError(
                    got="logits that are not finite",
                    expected="finite ones",
                    fix="Look for the first NaN in the forward pass.",
                )
            change = float((after - given).abs().max())
            changed = after.argmax(-1) != given.argmax(-1)
            context = ScrambledContext(
                count, 1, False, change, int(changed.sum()), changed.numel(), order
            )
            found = Scrambling((context,), tolerance)
    return Scrambled(
        orders=found.orders,
        exhaustive=found.exhaustive,
        largest_change=found.largest_change,
        changed_tokens=found.changed_tokens,
        tolerance=tolerance,
        holds=found.holds,
        worst=list(found.contexts[0].worst_order),
    )
