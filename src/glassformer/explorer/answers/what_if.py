"""The output of a model with heads removed, edges of attention forbidden, the stream steered, or
experts replaced.
"""

from collections.abc import Iterator, Sequence
from functools import partial
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
"""Number of listed outcomes that are the likeliest before."""
ALSO_AFTER = 8
"""Number of outcomes that are listed since they are the likeliest after."""
MOST_MASKED = 1 << 27
"""Largest number of weights of a layer among which edges can be forbidden: the mask is made in
float32 first.
"""

_LABELS = {"self": "", "encoder": "encoder, ", "decoder": "decoder, ", "cross": "cross-attention, "}


def whatif(runs: Runs, ask: m.AskWhatIf) -> m.WhatIf:
    """The output of a run with and without the changes of ``ask``."""
    outcomes = outcomes_of(runs, ask.ask, ask.place)
    before = outcomes.before().softmax(-1)
    target = outcomes.chosen(ask.target)
    changes = list(_changes(runs, outcomes, ask))
    if changes:
        after = outcomes.after([edit for edits, _ in changes for edit in edits]).softmax(-1)
    else:
        after = before
    named = [target, *([] if ask.other is None else [outcomes.chosen(ask.other, "other")])]
    if ask.steer is not None:
        named += [each for each in (ask.steer.toward, ask.steer.away) if each is not None]
    listed = set(before.topk(min(MOST_OUTCOMES, len(before))).indices.tolist())
    listed |= {*after.topk(min(ALSO_AFTER, len(after))).indices.tolist(), *named}
    both = torch.maximum(before, after)
    rest = torch.ones(len(before), dtype=torch.bool).index_fill(
        0, torch.tensor(sorted(listed)), False
    )
    return m.WhatIf(
        kind="class" if outcomes.place is None else "token",
        place=outcomes.place,
        target=target,
        outcomes=[
            m.Outcome(
                id=each,
                name=outcomes.name(each),
                before=float(before[each]),
                after=float(after[each]),
            )
            for each in sorted(listed, key=lambda each: (-float(both[each]), each))
        ],
        rest=int(rest.sum()),
        rest_before=float(before[rest].sum()),
        rest_after=float(after[rest].sum()),
        distance=float((before - after).abs().sum() / 2),
        changes=[words for _, told in changes for words in told],
        offers=_offers(outcomes),
    )


def edits_of(runs: Runs, ask: m.Ask, loaded: LoadedModel) -> list[Edit]:
    """The edits of a run's changes."""
    assert ask.changes is not None
    outcomes = outcomes_of(runs, ask.model_copy(update={"changes": None}), None, loaded)
    return [edit for edits, _ in _changes(runs, outcomes, ask.changes) for edit in edits]


def _offers(outcomes: Outcomes) -> list[m.Offer]:
    read = outcomes.readout is not None
    pre_norm = all(block.pre_norm for block in of_kind(outcomes.points, BlockPoint))
    there: dict[m.Offer, bool] = {
        "heads": True,
        "edges": True,
        "steer": read,
        "experts": len(outcomes.run.routed) > 0,
        "sweep": True,
        "lens": read,
        "contributions": read and pre_norm,
    }
    return [offer for offer, exists in there.items() if exists]


def _changes(
    runs: Runs, outcomes: Outcomes, ask: m.Changes
) -> Iterator[tuple[list[Edit], list[str]]]:
    """The edits of each kind of change, and the changes in words."""
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


def _removed(outcomes: Outcomes, asked: m.RemovedHead) -> tuple[list[Edit], list[str]]:
    point = outcomes.attention(asked.part, asked.layer, "a removed head")
    _require_below("a removed head: head", asked.head, point.heads)
    words = f"{_LABELS[asked.part]}layer {asked.layer}, head {asked.head} removed"
    return [zero("heads", modules=[point.name], heads=asked.head)], [words]


def _forbidden(outcomes: Outcomes, asked: list[m.ForbiddenEdge]) -> tuple[list[Edit], list[str]]:
    edges: dict[str, list[m.ForbiddenEdge]] = {}
    for edge in asked:
        first = outcomes.attention(edge.part, edge.layer or 0, "a forbidden edge")
        if edge.head is not None:
            _require_below("a forbidden edge: head", edge.head, first.heads)
        for point in outcomes.attentions(edge.part) if edge.layer is None else [first]:
            edges.setdefault(point.name, []).append(edge)
    words = [_edge_in_words(outcomes, edge) for edge in asked]
    # One mask for all edges of an attention.
    edits = [
        MaskEdit("scores", partial(_masked, some), modules=[name]) for name, some in edges.items()
    ]
    return list[Edit](edits), words


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
    (stack,) = (each for each in run.attentions if each.part == edge.part)
    _require_below("a forbidden edge: query", edge.query, stack.queries)
    _require_below("a forbidden edge: key", edge.key, stack.keys)
    cells = stack.heads * stack.queries * stack.keys
    if not cells <= MOST_MASKED:
        raise InputError(
            got=f"a forbidden edge among {cells:,} of a layer",
            expected=f"at most {MOST_MASKED:,}",
            fix="Shorten the text.",
        )
    texts = {"tokens": run.tokens, "source": run.source or []}
    query = texts[stack.queries_are][edge.query]
    key = texts[stack.keys_are][edge.key]
    if edge.layer is None:
        layer = "every layer"
    else:
        layer = f"layer {edge.layer}"
    head = "every head" if edge.head is None else f"head {edge.head}"
    return f"{_LABELS[edge.part]}{layer}, {head}: {query} ({edge.query}) may not attend to {key} ({edge.key})"


def _steered(outcomes: Outcomes, asked: m.Steering) -> tuple[list[Edit], list[str]]:
    readout = outcomes.readable("steering")
    blocks = {point.layer: point for point in readout.of("block")}
    _require_below("the steering: layer", asked.layer, len(blocks))
    toward = outcomes.chosen(asked.toward, "toward")
    if asked.away is None:
        away = None
    else:
        away = outcomes.chosen(asked.away, "away")
    if toward == away:
        raise InputError(
            got=f"the steering: toward = away = {toward}",
            expected="two outcomes",
            fix="Change one.",
        )
    direction = _direction(readout, toward, away)

    def steered(values: Tensor) -> Tensor:
        lengths = values.norm(dim=-1, keepdim=True)
        return values + asked.strength * lengths.median(1, keepdim=True).values * direction.to(
            values
        )

    words = (
        f"steered after layer {asked.layer} by {asked.strength:g} toward {outcomes.name(toward)}"
    )
    words += "" if away is None else f" and away from {outcomes.name(away)}"
    return [change("residual", steered, modules=[blocks[asked.layer].name])], [words]


def _direction(readout: Readout, toward: int, away: int | None) -> Float[Tensor, " hidden"]:
    """The unit vector that raises one logit most, or its difference from another."""
    rows = readout.output.weight.detach().float()
    found = rows[toward] if away is None else rows[toward] - rows[away]
    weight = getattr(readout.norm, "weight", None)
    found = found if weight is None else found * weight.detach().float()
    return found / found.norm().clamp_min(1e-30)


def _replaced(outcomes: Outcomes, asked: m.ReplacedExpert) -> tuple[list[Edit], list[str]]:
    what = "a replaced expert"
    routers = {point.layer: point for point in of_kind(outcomes.points, MixturePoint)}
    if asked.layer not in routers:
        raise InputError(
            got=f"{what}: layer = {asked.layer}",
            expected=f"one of layers {sorted(routers)}" if routers else "a model with experts",
            fix="See the call 'experts'.",
        )
    point = routers[asked.layer]
    _require_below(f"{what}: expert", asked.expert, point.experts)
    words = f"layer {asked.layer}: expert {asked.expert}"
    if asked.instead is None:
        return [zero("router", modules=[point.name], experts=asked.expert)], [f"{words} forbidden"]
    _require_below(f"{what}: instead", asked.instead, point.experts)
    if asked.instead == asked.expert:
        raise InputError(
            got=f"{what} that stays",
            expected="another expert",
            fix="Change instead.",
        )
    old = asked.expert
    new = asked.instead
    chosen = next(
        each.choices.shape[1] for each in outcomes.run.routed if each.layer == asked.layer
    )

    def redirected(values: Tensor) -> Tensor:
        share = values[..., old]
        least = values.topk(chosen).values[..., -1]
        moved = torch.where(share >= least, share, 0.0)
        replaced = values.clone()
        replaced[..., old] = 0.0
        replaced[..., new] += moved
        return replaced

    return [change("router", redirected, modules=[point.name])], [
        f"{words} replaced by {asked.instead}"
    ]


def _patched(runs: Runs, outcomes: Outcomes, asked: m.PatchedPlace) -> tuple[list[Edit], list[str]]:
    other = outcomes.other_text(runs, asked.text)
    blocks = [point for point in outcomes.points if point.role == "block"]
    _require_below("a patch: layer", asked.layer, len(blocks))
    _require_below("a patch: position", asked.position, len(other.message.tokens))
    where: dict[str, Any] = {"modules": [blocks[asked.layer].name]}
    with (
        outcomes.loaded.lock,
        evaluating(outcomes.model),
        capture(outcomes.model, what="residual", **where) as seen,
    ):
        logits_of(outcomes.loaded, other.inputs)
    words = f"after layer {asked.layer} at {outcomes.run.message.tokens[asked.position]} ({asked.position}): "
    words += f"as for {other.message.tokens[asked.position]} in the other text"
    return [patch("residual", seen, queries=asked.position, **where)], [words]


def _require_below(name: str, index: int, count: int) -> None:
    if not index < count:
        raise InputError(
            got=f"{name} = {index}",
            expected=f"0 to {count - 1}",
            fix="Count from 0.",
        )
