"""What the residual stream predicts after each layer, and what each part of a model adds to a logit."""

from __future__ import annotations

import re
from typing import Any, cast

import torch

from glassformer.errors import InputError, require
from glassformer.explorer import messages as m
from glassformer.explorer.answers.outcomes import outcomes_of, readout_of
from glassformer.explorer.answers.runs import Runs
from glassformer.explorer.loading.loaded_model import LoadedDecoder, LoadedModel
from glassformer.modes import evaluating
from glassformer.observe.capture import capture
from glassformer.observe.lens import direct_logits

MOST_POSITIONS = 64
"""Largest number of positions of a lens."""
MOST_LOGITS = 1 << 25
"""Largest number of logits of a lens."""

_PART = re.compile(r"(?:layer (\d+) )?(?:(head|expert) (\d+)|(?:\w+ )?(embedding|ffn|bias))")


@torch.no_grad()
def lens(runs: Runs, loaded: LoadedModel, ask: m.AskLens) -> m.Lens:
    """The likeliest outcome after each layer, and the target's probability.

    Raises:
        InputError: A model or a text without such an output, or a model whose logits are no linear map of the normed
            stream.
    """
    outcomes = outcomes_of(runs, loaded, ask.ask)
    readout, target = readout_of(loaded), outcomes.chosen(ask.target)
    if readout is None:
        got = f"a lens of {outcomes.loaded.card.name!r}"
        raise InputError(got, "a model whose logits are a linear map of the normed stream", "Use another view.")
    words = [""] if outcomes.place is None else outcomes.run.message.tokens
    require(ask.first < len(words), f"first = {ask.first}", f"0 to {len(words) - 1}", "Name a position of the text.")
    blocks = [point for point in outcomes.points if point.role == "block" and not point.source]
    room = MOST_LOGITS // (len(outcomes.before()) * (len(blocks) + 1))
    some = slice(ask.first, ask.first + min(MOST_POSITIONS, max(1, room)))
    with outcomes.loaded.lock, evaluating(outcomes.model):
        with capture(outcomes.model, modules=[point.name for point in blocks], what=("embedding", "residual")) as seen:
            outcomes.logits()
        found = []
        for record in seen.records:
            stream = record.values if readout.pool is not None else record.values[:, some]
            found.append(readout.logits(stream)[0].double().softmax(-1).cpu())
    best = [each.max(-1) for each in found]
    finite = all(bool(each.isfinite().all()) for each in found)
    require(finite, "logits that are not finite", "finite ones", "Look for the first NaN in the forward pass.")
    return m.Lens(
        target=target,
        name=outcomes.name(target),
        first=ask.first,
        stages=["embedding", *(f"layer {point.layer}" for point in blocks)],
        positions=words[some],
        names=[[outcomes.name(each) for each in row.indices.tolist()] for row in best],
        probabilities=[row.values.tolist() for row in best],
        targets=[each[:, target].tolist() for each in found],
    )


def contributions(runs: Runs, loaded: LoadedModel, ask: m.AskContributions) -> m.Contributions:
    """The logit of the target, or its difference from that of another, as the sum over the parts of the model.

    Raises:
        InputError: A model or a text without such an output, or a model that is no pre-norm decoder.
    """
    outcomes = outcomes_of(runs, loaded, ask.ask, ask.place)
    target = outcomes.chosen(ask.target)
    other = None if ask.other is None else outcomes.chosen(ask.other, "other")
    if not isinstance(loaded, LoadedDecoder):
        raise InputError(f"contributions of {loaded.card.name!r}", "a decoder", "Use another view.")
    assert outcomes.place is not None
    with loaded.lock, evaluating(loaded.model):
        found = direct_logits(loaded.model, outcomes.run.inputs[0], target, other, query=outcomes.place)
    return m.Contributions(
        target=target,
        name=outcomes.name(target),
        other=other,
        other_name=None if other is None else outcomes.name(other),
        total=float(found.total[0]),
        parts=[_part(name, value) for name, value in zip(found.names, found.values[:, 0].tolist(), strict=True)],
    )


def _part(name: str, value: float) -> m.Contribution:
    found = _PART.fullmatch(name)
    assert found is not None
    layer, numbered, number, kind = found.groups()
    return m.Contribution(
        name=name,
        kind=cast(Any, numbered or kind),
        layer=None if layer is None else int(layer),
        number=None if number is None else int(number),
        value=value,
    )
