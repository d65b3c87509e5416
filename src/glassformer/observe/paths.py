"""Path patching: what one head or feed-forward network tells another one directly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from glassformer.errors import require
from glassformer.observe.capture import capture
from glassformer.observe.edits import patch, put
from glassformer.observe.hook_points import HookPoint, Selection, select
from glassformer.observe.intervene import intervene
from glassformer.observe.lens import added_by_heads
from glassformer.observe.resume import Metric, Runner
from glassformer.observe.sweep import Sweep, prepared


class Sender(NamedTuple):
    """A part that writes into the residual stream."""

    layer: int
    head: int | None = None
    """None: the feed-forward network or the mixture of experts of the layer."""


class Receiver(NamedTuple):
    """A part that reads the residual stream."""

    layer: int
    head: int
    """For keys and values, a key-value head."""
    reads: Literal["q", "k", "v"] = "q"


@torch.no_grad()
def path_patch(
    model: nn.Module,
    clean: Tensor | Mapping[str, Any],
    corrupted: Tensor | Mapping[str, Any],
    metric: Metric,
    sender: Sender,
    receiver: Receiver | Literal["logits"],
    *,
    logits: Selection = -1,
) -> Sweep:
    """Run the corrupted texts, in which one receiver reads the clean output of one sender.

    Everything else that the receiver reads is as corrupted, so that only the direct path through the residual stream
    counts; what follows the receiver is computed anew. The final norm of ``"logits"`` is computed with the new stream.

    Args:
        model: A pre-norm decoder of glassformer or of ``transformers``; others as for
            :func:`~glassformer.observe.sweep.patch_sweep`.
        clean: See there.
        corrupted: See there.
        metric: See there.
        sender: In an earlier layer than the receiver; heads also in the layers before.
        receiver: A head's queries, keys or values; or the logits.
        logits: See there.

    Returns:
        A sweep over this one path.

    Raises:
        InputError: As there; a sender that does not come before the receiver; a model that is not pre-norm.

    Source: Goldowsky-Dill et al. 2023, "Localizing Model Behavior with Path Patching", arXiv 2304.05969; Wang et al.
    2022, arXiv 2211.00593.
    """
    runner, given = Runner(model, metric, logits), prepared(clean, corrupted)
    blocks = runner.blocks
    require(
        not runner.memory
        and all(point.pre_norm and point.between is not None for point in blocks)
        and not any(point.post_norm for point in runner.points),
        f"{type(model).__name__}",
        "a pre-norm model without norms after its parts, which are not parallel",
        "Use a pre-norm decoder.",
    )
    last = len(blocks)
    at = last if receiver == "logits" else select("receiver layer", receiver.layer, last)[0]
    (start,) = select("sender layer", sender.layer, last)
    require(start < at, f"a sender in layer {start} and a receiver in {at}", "an earlier sender", "Swap them.")
    source = next(
        point
        for point in runner.points
        if point.layer == start and point.role == ("ffn" if sender.head is None else "attention")
    )
    kinds = ["ffn" if sender.head is None else "heads", "residual" if at == last else "residual_before"]
    with capture(model, what=kinds) as ours:
        best = runner.run(given[0])
    with capture(model, what=kinds) as theirs:
        worst = runner.run(given[1])
    change = _written(source, sender, ours.last(kinds[0])) - _written(source, sender, theirs.last(kinds[0]))
    target = blocks[at - 1] if at == last else blocks[at]
    stream = theirs.last(kinds[1])[target.name] + change
    if receiver == "logits":
        edit = put("residual", stream, layers=at - 1)
    else:
        new = put("residual_before", stream, layers=at)
        with intervene(model, new), capture(model, what=receiver.reads, layers=at) as seen:
            runner.run(given[1])
        edit = patch(receiver.reads, seen, layers=at, heads=receiver.head)
    with intervene(model, edit):
        found = runner.run(given[1])
    values = found.double().mean()[None]
    return Sweep(values, ("layer",), (start,), float(best.double().mean()), float(worst.double().mean()))


def _written(source: HookPoint, sender: Sender, values: Mapping[str, Tensor]) -> Tensor:
    """What the sender adds to the residual stream, [batch, position, dim]."""
    if sender.head is None:
        return values[source.name]
    (head,) = select("sender head", sender.head, source.heads)
    heads = values[source.name].transpose(1, 2)
    return added_by_heads(source.merged, heads.flatten(0, 1))[:, head].unflatten(0, heads.shape[:2])
