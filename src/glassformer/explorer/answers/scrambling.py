"""Measure how the source's order changes the logits of an encoder-decoder."""

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
"""Largest change that is attributed to rounding, for logits of at most 1.

It grows in proportion to larger logits.
"""

_PLACES_AT_ONCE = 8192
"""Largest number of source positions in a batch."""


def scramble(loaded: LoadedModel, ask: AskScramble) -> Scrambled:
    """Compare the logits of a source with those of another order, or of all orders."""
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
        before = predict(source)
        tolerance = TOLERANCE * max(1.0, float(before.abs().max()))
        if ask.order is None:
            batch_size = max(2, _PLACES_AT_ONCE // count)
            effect = scrambling_test(
                predict, source, max_orders=MOST_ORDERS, tolerance=tolerance, batch_size=batch_size
            )
        else:
            after = predict(source[:, ask.order])
            order = tuple(ask.order)
            if not (before.isfinite().all() and after.isfinite().all()):
                raise InputError(
                    got="logits that are not finite",
                    expected="finite ones",
                    fix="Look for the first NaN in the forward pass.",
                )
            change = float((after - before).abs().max())
            changed = after.argmax(-1) != before.argmax(-1)
            context = ScrambledContext(
                count, 1, False, change, int(changed.sum()), changed.numel(), order
            )
            effect = Scrambling((context,), tolerance)
    return Scrambled(
        orders=effect.orders,
        exhaustive=effect.exhaustive,
        largest_change=effect.largest_change,
        changed_tokens=effect.changed_tokens,
        tolerance=tolerance,
        holds=effect.holds,
        worst=list(effect.contexts[0].worst_order),
    )
