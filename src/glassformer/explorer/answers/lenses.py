"""What the residual stream predicts after each layer, and what each part of a model adds to a logit."""

from __future__ import annotations

import re
from typing import Any, cast

from glassformer.errors import require
from glassformer.explorer import messages as m
from glassformer.explorer.answers.outcomes import outcomes_of
from glassformer.explorer.answers.runs import Runs
from glassformer.explorer.loading.loaded_model import LoadedModel
from glassformer.modes import evaluating
from glassformer.observe.lens import direct_logits, logit_lens

MOST_POSITIONS = 64
"""Largest number of positions of a lens."""
MOST_LOGITS = 1 << 25
"""Largest number of logits of a lens."""

_PART = re.compile(r"(?:layer (\d+) )?(cross-attention )?(?:(head|expert) (\d+)|(?:[\w-]+ )?(embedding|ffn|bias))")


def lens(runs: Runs, loaded: LoadedModel, ask: m.AskLens) -> m.Lens:
    """The likeliest outcome after each layer, and the target's probability.

    Raises:
        InputError: A model or a text without such an output, or a model whose logits are no linear map of the normed
            stream.
    """
    outcomes = outcomes_of(runs, loaded, ask.ask)
    readout, target = outcomes.readable("a lens"), outcomes.chosen(ask.target)
    words = [""] if outcomes.place is None else outcomes.run.message.tokens
    require(ask.first < len(words), f"first = {ask.first}", f"0 to {len(words) - 1}", "Name a position of the text.")
    layers = [point.layer for point in readout.of("block")]
    room = MOST_LOGITS // (len(outcomes.before()) * (len(layers) + 1))
    some = slice(ask.first, ask.first + min(MOST_POSITIONS, max(1, room)))
    with outcomes.loaded.lock, evaluating(outcomes.model):
        found = logit_lens(outcomes.model, outcomes.texts, queries=None if outcomes.place is None else some)
    shares = found[:, 0].double().softmax(-1)
    finite = bool(shares.isfinite().all())
    require(finite, "logits that are not finite", "finite ones", "Look for the first NaN in the forward pass.")
    best = shares.max(-1)
    return m.Lens(
        target=target,
        name=outcomes.name(target),
        first=ask.first,
        stages=["embedding", *(f"layer {layer}" for layer in layers)],
        positions=words[some],
        names=[[outcomes.name(each) for each in row] for row in best.indices.tolist()],
        probabilities=best.values.tolist(),
        targets=shares[..., target].tolist(),
    )


def contributions(runs: Runs, loaded: LoadedModel, ask: m.AskContributions) -> m.Contributions:
    """The logit of the target, or its difference from that of another, as the sum over the parts of the model.

    Raises:
        InputError: A model or a text without such an output, post-norm blocks, or logits that are no linear map of
            the stream.
    """
    outcomes = outcomes_of(runs, loaded, ask.ask, ask.place)
    target = outcomes.chosen(ask.target)
    other = None if ask.other is None else outcomes.chosen(ask.other, "other")
    outcomes.readable("contributions")
    place = -1 if outcomes.place is None else outcomes.place
    with outcomes.loaded.lock, evaluating(outcomes.model):
        found = direct_logits(outcomes.model, outcomes.texts, target, other, query=place)
    return m.Contributions(
        target=target,
        name=outcomes.name(target),
        other=other,
        other_name=None if other is None else outcomes.name(other),
        total=float(found.total[0]),
        parts=[
            _part(name, value, outcomes.own_part)
            for name, value in zip(found.names, found.values[:, 0].tolist(), strict=True)
        ],
    )


def _part(name: str, value: float, own: m.Part) -> m.Contribution:
    found = _PART.fullmatch(name)
    assert found is not None
    layer, cross, numbered, number, kind = found.groups()
    return m.Contribution(
        name=name,
        kind=cast(Any, numbered or kind),
        part=None if numbered != "head" else own if cross is None else "cross",
        layer=None if layer is None else int(layer),
        number=None if number is None else int(number),
        value=value,
    )
