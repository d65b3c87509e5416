"""Compute a model's output with changes.

Changes remove heads, forbid edges of attention, steer the residual stream, replace experts or patch
a place of the stream.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.errors import InputError
from glassformer.explorer import messages as m
from glassformer.explorer.answers.forward import logits_of
from glassformer.explorer.answers.outcomes import Outcomes, outcomes_of
from glassformer.explorer.answers.runs import Runs
from glassformer.explorer.loading.loaded_model import LoadedModel
from glassformer.modes import evaluating
from glassformer.observe.capture import capture
from glassformer.observe.edits import Edit, Labels, MaskEdit, change, patch, zero
from glassformer.observe.hook_points import BlockPoint, HookPoint, MixturePoint, of_kind
from glassformer.observe.lens import Readout

MOST_OUTCOMES = 64
"""Number of listed outcomes that are the likeliest before the changes."""
ALSO_AFTER = 8
"""Number of outcomes that are listed because they are the likeliest after the changes."""
MOST_MASKED = 1 << 27
"""Largest number of weights of a layer for which edges can be forbidden: the mask is in float32."""

Edited = tuple[list[Edit], list[str]]
"""Edits of a model, and their descriptions."""

_LABELS = {"self": "", "encoder": "encoder, ", "decoder": "decoder, ", "cross": "cross-attention, "}


def whatif(runs: Runs, ask: m.AskWhatIf) -> m.WhatIf:
    """Return the output of a run with and without the changes of ``ask``."""
    outcomes = outcomes_of(runs, ask.ask, ask.place)
    before = outcomes.before().softmax(-1)
    target = outcomes.chosen(ask.target)
    changes = list(_changes(runs, outcomes, ask))
    after = before
    if changes:
        after = outcomes.after(list(_edits(changes))).softmax(-1)
    named_outcomes = [target]
    if ask.other is not None:
        named_outcomes.append(outcomes.chosen(ask.other, "other"))
    if ask.steer is not None:
        steered = (ask.steer.toward, ask.steer.away)
        named_outcomes += [outcome for outcome in steered if outcome is not None]
    listed = set(before.topk(min(MOST_OUTCOMES, len(before))).indices.tolist())
    listed |= {*after.topk(min(ALSO_AFTER, len(after))).indices.tolist(), *named_outcomes}
    largest = torch.maximum(before, after)
    rest = torch.ones(len(before), dtype=torch.bool)
    rest[sorted(listed)] = False
    return m.WhatIf(
        kind="class" if outcomes.place is None else "token",
        place=outcomes.place,
        target=target,
        outcomes=[
            m.Outcome(
                id=outcome,
                name=outcomes.name(outcome),
                before=float(before[outcome]),
                after=float(after[outcome]),
            )
            for outcome in sorted(listed, key=lambda outcome: (-float(largest[outcome]), outcome))
        ],
        rest=int(rest.sum()),
        rest_before=float(before[rest].sum()),
        rest_after=float(after[rest].sum()),
        distance=float((before - after).abs().sum() / 2),
        changes=list(chain.from_iterable(descriptions for _, descriptions in changes)),
        offers=_offers(outcomes),
    )


def edits_of(runs: Runs, ask: m.Ask, loaded: LoadedModel) -> list[Edit]:
    """Return the edits of a run's changes."""
    assert ask.changes is not None
    outcomes = outcomes_of(runs, ask.model_copy(update={"changes": None}), None, loaded)
    return list(_edits(_changes(runs, outcomes, ask.changes)))


def _edits(changes: Iterable[Edited]) -> Iterator[Edit]:
    return chain.from_iterable(edits for edits, _ in changes)


def _offers(outcomes: Outcomes) -> list[m.Offer]:
    readable = outcomes.readout is not None
    pre_norm = all(block.pre_norm for block in of_kind(outcomes.points, BlockPoint))
    possible: dict[m.Offer, bool] = {
        "heads": True,
        "edges": True,
        "steer": readable,
        "experts": len(outcomes.run.routed) > 0,
        "sweep": True,
        "lens": readable,
        "contributions": readable and pre_norm,
    }
    return [offer for offer, is_possible in possible.items() if is_possible]


def _changes(runs: Runs, outcomes: Outcomes, ask: m.Changes) -> Iterator[Edited]:
    """Yield the edits of each change, and their descriptions."""
    for head in ask.removed:
        yield _removed(outcomes, head)
    if ask.forbidden:
        yield _forbidden(outcomes, ask.forbidden)
    if ask.steer is not None:
        yield _steered(outcomes, ask.steer)
    for swap in ask.swaps:
        yield _replaced(outcomes, swap)
    if ask.patch is not None:
        yield _patched(runs, outcomes, ask.patch)


def _removed(outcomes: Outcomes, removed: m.RemovedHead) -> Edited:
    point = outcomes.attention(removed.part, removed.layer, "a removed head")
    _require_below("a removed head: head", removed.head, point.heads)
    words = f"{_LABELS[removed.part]}layer {removed.layer}, head {removed.head} removed"
    return [zero("heads", modules=[point.name], heads=removed.head)], [words]


def _forbidden(outcomes: Outcomes, forbidden: list[m.ForbiddenEdge]) -> Edited:
    edges: dict[str, list[m.ForbiddenEdge]] = {}
    for edge in forbidden:
        first = outcomes.attention(edge.part, edge.layer or 0, "a forbidden edge")
        if edge.head is not None:
            _require_below("a forbidden edge: head", edge.head, first.heads)
        points = [first]
        if edge.layer is None:
            points = outcomes.attentions(edge.part)
        for point in points:
            edges.setdefault(point.name, []).append(edge)
    words = [_edge_in_words(outcomes, edge) for edge in forbidden]
    edits: list[Edit] = []
    for name, point_edges in edges.items():  # one mask for all edges of an attention
        edits.append(MaskEdit("scores", partial(_masked, point_edges), modules=[name]))
    return edits, words


def _masked(
    edges: Sequence[m.ForbiddenEdge], scores: Tensor, point: HookPoint, labels: Labels
) -> Tensor:
    masked = scores.clone()
    for edge in edges:
        heads = slice(None) if edge.head is None else edge.head
        masked[:, heads, edge.query, edge.key] = -torch.inf
    return masked


def _edge_in_words(outcomes: Outcomes, edge: m.ForbiddenEdge) -> str:
    run = outcomes.run.message
    (stack,) = (stack for stack in run.attentions if stack.part == edge.part)
    _require_below("a forbidden edge: query", edge.query, stack.queries)
    _require_below("a forbidden edge: key", edge.key, stack.keys)
    cells = stack.heads * stack.queries * stack.keys
    if cells > MOST_MASKED:
        raise InputError(
            got=f"a forbidden edge among {cells:,} of a layer",
            expected=f"at most {MOST_MASKED:,}",
            fix="Shorten the text.",
        )
    texts = {"tokens": run.tokens, "source": run.source or []}
    query = texts[stack.queries_are][edge.query]
    key = texts[stack.keys_are][edge.key]
    layer = "every layer" if edge.layer is None else f"layer {edge.layer}"
    head = "every head" if edge.head is None else f"head {edge.head}"
    return (
        f"{_LABELS[edge.part]}{layer}, {head}: "
        f"{query} ({edge.query}) may not attend to {key} ({edge.key})"
    )


def _steered(outcomes: Outcomes, steering: m.Steering) -> Edited:
    readout = outcomes.readable("steering")
    blocks = {point.layer: point for point in readout.of("block")}
    _require_below("the steering: layer", steering.layer, len(blocks))
    toward = outcomes.chosen(steering.toward, "toward")
    away = None
    if steering.away is not None:
        away = outcomes.chosen(steering.away, "away")
    if toward == away:
        raise InputError(
            got=f"the steering: toward = away = {toward}",
            expected="two outcomes",
            fix="Change one.",
        )
    direction = _direction(readout, toward, away)

    def steered(values: Tensor) -> Tensor:
        lengths = values.norm(dim=-1, keepdim=True)
        typical_length = lengths.median(1, keepdim=True).values
        return values + steering.strength * typical_length * direction.to(values)

    description = f"steered after layer {steering.layer} by {steering.strength:g} "
    description += f"toward {outcomes.name(toward)}"
    if away is not None:
        description += f" and away from {outcomes.name(away)}"
    return [change("residual", steered, modules=[blocks[steering.layer].name])], [description]


def _direction(readout: Readout, toward: int, away: int | None) -> Float[Tensor, " hidden"]:
    """Return the unit vector that raises one logit most, or its difference from another."""
    rows = readout.output.weight.detach().float()
    direction = rows[toward]
    if away is not None:
        direction = direction - rows[away]
    weight = getattr(readout.norm, "weight", None)
    if weight is not None:
        direction = direction * weight.detach().float()
    return direction / direction.norm().clamp_min(1e-30)


def _replaced(outcomes: Outcomes, swap: m.ReplacedExpert) -> Edited:
    subject = "a replaced expert"
    routers = {point.layer: point for point in of_kind(outcomes.points, MixturePoint)}
    if swap.layer not in routers:
        raise InputError(
            got=f"{subject}: layer = {swap.layer}",
            expected=f"one of layers {sorted(routers)}" if routers else "a model with experts",
            fix="See the call 'experts'.",
        )
    point = routers[swap.layer]
    _require_below(f"{subject}: expert", swap.expert, point.experts)
    words = f"layer {swap.layer}: expert {swap.expert}"
    if swap.instead is None:
        return [zero("router", modules=[point.name], experts=swap.expert)], [f"{words} forbidden"]
    _require_below(f"{subject}: instead", swap.instead, point.experts)
    if swap.instead == swap.expert:
        raise InputError(
            got=f"{subject} that stays",
            expected="another expert",
            fix="Change instead.",
        )
    old = swap.expert
    new = swap.instead
    num_choices = next(
        routed.choices.shape[1] for routed in outcomes.run.routed if routed.layer == swap.layer
    )

    def redirected(values: Tensor) -> Tensor:
        share = values[..., old]
        least = values.topk(num_choices).values[..., -1]
        moved = torch.where(share >= least, share, 0.0)
        replaced = values.clone()
        replaced[..., old] = 0.0
        replaced[..., new] += moved
        return replaced

    edit = change("router", redirected, modules=[point.name])
    return [edit], [f"{words} replaced by {swap.instead}"]


def _patched(runs: Runs, outcomes: Outcomes, place: m.PatchedPlace) -> Edited:
    other = outcomes.other_text(runs, place.text)
    blocks = [point for point in outcomes.points if point.role == "block"]
    _require_below("a patch: layer", place.layer, len(blocks))
    _require_below("a patch: position", place.position, len(other.message.tokens))
    where: dict[str, Any] = {"modules": [blocks[place.layer].name]}
    with (
        outcomes.loaded.lock,
        evaluating(outcomes.model),
        capture(outcomes.model, what="residual", **where) as stream,
    ):
        logits_of(outcomes.loaded, other.inputs)
    token = outcomes.run.message.tokens[place.position]
    other_token = other.message.tokens[place.position]
    words = f"after layer {place.layer} at {token} ({place.position}): "
    words += f"as for {other_token} in the other text"
    return [patch("residual", stream, queries=place.position, **where)], [words]


def _require_below(name: str, index: int, count: int) -> None:
    if index >= count:
        raise InputError(
            got=f"{name} = {index}",
            expected=f"0 to {count - 1}",
            fix="Count from 0.",
        )
