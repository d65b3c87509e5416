"""Apply the logit lens and direct logit attribution to a run."""

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

MOST_ADDED = 8
"""Number of tokens that are raised and lowered most, and of neurons."""

_PART = re.compile(
    r"(?:layer (\d+) )?(cross-attention )?"
    r"(?:(head|expert) (\d+)|(?:[\w-]+ )?(embedding|ffn|bias|interventions))"
)


def lens(runs: Runs, ask: m.AskLens) -> m.Lens:
    """Return the likeliest outcome after each layer, and the target's probability."""
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
    positions = slice(ask.first, ask.first + MOST_POSITIONS)
    positions_at_once = max(1, MOST_LOGITS // len(outcomes.before()))
    batch_shares = readout.shares(outcomes.texts)
    blocks = list[Tensor]()
    with torch.no_grad():
        stream = capture(
            outcomes.model,
            readout.names("block"),
            what=("embedding", "residual"),
            queries=positions if batch_shares is None else None,
        )
        with outcomes.at_leisure(), stream as captured:
            readout.run(outcomes.texts, -1)
        stages = torch.cat([record.values for record in captured.records], 1)
        pooled = stages.shape[1] // len(captured.records)
        block_size = positions_at_once if batch_shares is None else pooled
        for block in stages.split(block_size, 1):
            with outcomes.at_leisure():
                logits = readout.logits(block, batch_shares)[0]
                blocks.append(_likeliest_and_target(logits, target).cpu())
    stage_rows = torch.cat(blocks, 1).unflatten(1, (len(captured.records), -1)).transpose(0, 1)
    if not stage_rows.isfinite().all():
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
        positions=words[positions],
        names=[[outcomes.name(int(outcome)) for outcome in row[0].tolist()] for row in stage_rows],
        probabilities=[row[1].tolist() for row in stage_rows],
        targets=[row[2].tolist() for row in stage_rows],
    )


def _likeliest_and_target(
    logits: Float[Tensor, "position outcome"], target: int
) -> Float[Tensor, "3 position"]:
    """Return the likeliest outcome, its probability, and the probability of the target."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    best = wide.max(-1)
    total = wide.logsumexp(-1).double()
    return torch.stack(
        [best.indices.double(), (best.values - total).exp(), (wide[:, target] - total).exp()]
    )


def contributions(runs: Runs, ask: m.AskContributions) -> m.Contributions:
    """Return the target's logit as a sum over the parts of the model.

    If the request names another outcome, its logit is subtracted.
    """
    outcomes = outcomes_of(runs, ask.ask, ask.place)
    pair = outcomes.compared(ask)
    outcomes.readable("contributions")
    place = -1 if outcomes.place is None else outcomes.place
    with outcomes.at_leisure():
        logits = direct_logits(outcomes.model, outcomes.texts, pair.target, pair.other, query=place)
    values = logits.values[:, 0].tolist()
    parts = [
        _part(name, value, outcomes.own_part)
        for name, value in zip(logits.names, values, strict=True)
    ]
    return m.Contributions(**dict(pair), total=float(logits.total[0]), parts=parts)


def ffn(runs: Runs, ask: m.AskFfn) -> m.Ffn:
    """Return what the feed-forward network of a layer adds to the logits."""
    outcomes = outcomes_of(runs, ask.ask, ask.place)
    target = outcomes.chosen(ask.target)
    outcomes.readable("a feed-forward network")
    place = -1 if outcomes.place is None else outcomes.place
    with outcomes.at_leisure():
        effects = ffn_logits(outcomes.model, outcomes.texts, ask.layer, target, query=place)
    logits = effects.logits[0].float()
    most = min(MOST_ADDED, len(logits))

    def added(order: Tensor) -> list[m.AddedLogit]:
        return [
            m.AddedLogit(id=outcome, name=outcomes.name(outcome), value=float(logits[outcome]))
            for outcome in order[:most].tolist()
        ]

    return m.Ffn(
        layer=ask.layer,
        target=target,
        name=outcomes.name(target),
        value=float(logits[target]),
        raised=added(logits.argsort(descending=True, stable=True)),
        lowered=added(logits.argsort(stable=True)),
        neurons=_strongest(effects),
    )


def _strongest(network: FfnLogits) -> list[m.Neuron] | None:
    """Return the neurons with the largest effects; None for a network without neurons."""
    if network.activations is None or network.effects is None:
        return None
    activations = network.activations[0]
    effects = network.effects[0]
    order = effects.abs().argsort(descending=True, stable=True)[:MOST_ADDED].tolist()
    return [
        m.Neuron(number=neuron, activation=float(activations[neuron]), value=float(effects[neuron]))
        for neuron in order
    ]


def _part(name: str, value: float, own_part: m.Part) -> m.Contribution:
    matched = _PART.fullmatch(name)
    assert matched is not None
    layer, cross, numbered_kind, number, other_kind = matched.groups()
    part: m.Part | None = None
    if numbered_kind == "head":
        part = own_part if cross is None else "cross"
    return m.Contribution(
        name=name,
        kind=cast(Any, numbered_kind or other_kind),
        part=part,
        layer=None if layer is None else int(layer),
        number=None if number is None else int(number),
        value=value,
    )
