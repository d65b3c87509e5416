"""What the residual stream predicts after each layer, and what each part of a model adds to a
logit.
"""

import re
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.errors import InputError
from glassformer.explorer import messages as m
from glassformer.explorer.answers.outcomes import outcomes_of
from glassformer.explorer.answers.runs import Runs
from glassformer.observe.capture import capture
from glassformer.observe.lens import FfnLogits, direct_logits, ffn_logits

MOST_POSITIONS = 64
"""Largest number of positions of a lens."""
MOST_LOGITS = 1 << 23
"""Largest number of logits that a lens holds at once."""

_PART = re.compile(
    r"(?:layer (\d+) )?(cross-attention )?(?:(head|expert) (\d+)|(?:[\w-]+ )?(embedding|ffn|bias|interventions))"
)


def lens(runs: Runs, ask: m.AskLens) -> m.Lens:
    """The likeliest outcome after each layer, and the target's probability."""
    outcomes = outcomes_of(runs, ask.ask, ask.place)
    readout = outcomes.readable("a lens")
    target = outcomes.chosen(ask.target)
    if outcomes.place is None:
        words = [""]
    else:
        words = outcomes.run.message.tokens
    if ask.first >= len(words):
        raise InputError(
            got=f"first = {ask.first}",
            expected=f"0 to {len(words) - 1}",
            fix="Name a position of the text.",
        )
    some = slice(ask.first, ask.first + MOST_POSITIONS)
    at_once = max(1, MOST_LOGITS // len(outcomes.before()))
    shares = readout.shares(outcomes.texts)
    rows = list[Tensor]()
    with torch.no_grad():
        queries = some if shares is None else None
        with (
            outcomes.at_leisure(),
            capture(
                outcomes.model,
                readout.names("block"),
                what=("embedding", "residual"),
                queries=queries,
            ) as seen,
        ):
            readout.run(outcomes.texts, -1)
        stages = torch.cat([record.values for record in seen.records], 1)
        pooled = stages.shape[1] // len(seen.records)
        for part in stages.split(at_once if shares is None else pooled, 1):
            with outcomes.at_leisure():
                rows.append(_summed_up(readout.logits(part, shares)[0], target).cpu())
    found = torch.cat(rows, 1).unflatten(1, (len(seen.records), -1)).transpose(0, 1)
    finite = bool(found.isfinite().all())
    if not finite:
        raise InputError(
            got="logits that are not finite",
            expected="finite ones",
            fix="Look for the first NaN in the forward pass.",
        )
    return m.Lens(
        target=target,
        name=outcomes.name(target),
        first=ask.first,
        stages=["embedding", *(f"layer {point.layer}" for point in readout.of("block"))],
        positions=words[some],
        names=[[outcomes.name(int(each)) for each in row[0].tolist()] for row in found],
        probabilities=[row[1].tolist() for row in found],
        targets=[row[2].tolist() for row in found],
    )


def _summed_up(
    logits: Float[Tensor, "position outcome"], target: int
) -> Float[Tensor, "3 position"]:
    """The likeliest outcome, its probability, and that of the target."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    best = wide.max(-1)
    total = wide.logsumexp(-1).double()
    return torch.stack(
        [best.indices.double(), (best.values - total).exp(), (wide[:, target] - total).exp()]
    )


def contributions(runs: Runs, ask: m.AskContributions) -> m.Contributions:
    """The logit of the target, or its difference from that of another, as the sum over the parts of
    the model.
    """
    outcomes = outcomes_of(runs, ask.ask, ask.place)
    pair = outcomes.compared(ask)
    outcomes.readable("contributions")
    place = -1 if outcomes.place is None else outcomes.place
    with outcomes.at_leisure():
        found = direct_logits(outcomes.model, outcomes.texts, pair.target, pair.other, query=place)
    return m.Contributions(
        **dict(pair),
        total=float(found.total[0]),
        parts=[
            _part(name, value, outcomes.own_part)
            for name, value in zip(found.names, found.values[:, 0].tolist(), strict=True)
        ],
    )


MOST_ADDED = 8
"""Number of tokens that are raised and lowered most, and of neurons."""


def ffn(runs: Runs, ask: m.AskFfn) -> m.Ffn:
    """What the feed-forward network of a layer adds to the logits."""
    outcomes = outcomes_of(runs, ask.ask, ask.place)
    target = outcomes.chosen(ask.target)
    outcomes.readable("a feed-forward network")
    place = -1 if outcomes.place is None else outcomes.place
    with outcomes.at_leisure():
        found = ffn_logits(outcomes.model, outcomes.texts, ask.layer, target, query=place)
    logits = found.logits[0].float()
    most = min(MOST_ADDED, len(logits))

    def named(order: Tensor) -> list[m.AddedLogit]:
        some = order[:most].tolist()
        return [
            m.AddedLogit(id=each, name=outcomes.name(each), value=float(logits[each]))
            for each in some
        ]

    return m.Ffn(
        layer=ask.layer,
        target=target,
        name=outcomes.name(target),
        value=float(logits[target]),
        raised=named(logits.argsort(descending=True, stable=True)),
        lowered=named(logits.argsort(stable=True)),
        neurons=_strongest(found),
    )


def _strongest(found: FfnLogits) -> list[m.Neuron] | None:
    """The neurons with the largest effects."""
    if found.activations is None or found.effects is None:
        return None
    activations = found.activations[0]
    effects = found.effects[0]
    order = effects.abs().argsort(descending=True, stable=True)[:MOST_ADDED].tolist()
    return [
        m.Neuron(number=each, activation=float(activations[each]), value=float(effects[each]))
        for each in order
    ]


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
