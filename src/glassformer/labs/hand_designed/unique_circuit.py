"""How a single head finds the tokens that occur once: by what it reads from CLS, from itself, and from repetitions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glassformer.handcraft.circuits import values_at_places
from glassformer.handcraft.single_head import HeadWeights
from glassformer.handcraft.tasks import Task
from glassformer.labs.hand_designed.distances import attention_weights


@dataclass(frozen=True)
class UniqueCircuit:
    """How a head solves unique, measured over every sequence.

    Of the positive parts ``weight · value`` of the outputs whose target is +1, ``cls_share`` comes from CLS. For each
    letter position, ``self_shares`` is the mean over repeated letters of the weight on itself, as a share of that and
    the mean weight on another occurrence: 0 excludes itself, 1/2 makes no difference. ``values`` are the mean values of
    CLS and of each letter position.
    """

    cls_share: float
    self_shares: list[float]
    values: list[float]


def unique_circuit(head: HeadWeights, task: Task) -> UniqueCircuit:
    """How ``head`` solves ``task``, which is :func:`~glassformer.handcraft.tasks.unique` or one like it."""
    block, counted, target = task.all_cases[:3]
    weights, at_places = attention_weights(head, task.space, block), values_at_places(head, task.space)[:, 0]
    values = np.where(block.real, at_places[task.space.place_of(block)], 0.0)
    positive = np.maximum(weights * values[:, None, :], 0.0)[counted & (target[..., 0] > 0)]
    tokens, itself = block.tokens, np.eye(block.tokens.shape[1], dtype=bool)
    other = (tokens[:, :, None] == tokens[:, None, :]) & counted[:, :, None] & counted[:, None, :] & ~itself
    again = other.any(axis=2)
    on_itself = np.einsum("sqq->sq", weights)
    on_other = (weights * other).sum(axis=2) / np.maximum(other.sum(axis=2), 1)
    share = np.divide(on_itself, on_itself + on_other, out=np.zeros_like(on_itself), where=on_itself + on_other > 0)
    positions = task.space.places[1]
    return UniqueCircuit(
        cls_share=float(positive[:, 0].sum() / max(positive.sum(), np.finfo(float).tiny)),
        self_shares=[float(share[again[:, i], i].mean()) for i in range(1, tokens.shape[1])],
        values=[float(at_places[positions == position].mean()) for position in range(task.space.num_positions)],
    )
