"""Distances between two heads: of their attention, their outputs and their circuits."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float

from glassformer.errors import InputError
from glassformer.handcraft.circuits import centred_scores, qk_between_places, values_at_places
from glassformer.handcraft.sequences import Block, SequenceSpace
from glassformer.handcraft.single_head import HeadWeights
from glassformer.kernels.attention import weights_of_scores
from glassformer.observe.attention_measures import divergence

_SCORES_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class HeadDistance:
    """Distances between two heads that do not depend on the basis of their weights.

    Queries are all letters of all sequences; CLS as a query is left out, since no task judges it.
    """

    attention_mean: float
    """Mean Jensen-Shannon divergence of the weights in bits: 0 if equal, 1 on other keys."""
    attention_max: float
    """Largest Jensen-Shannon divergence of the weights in bits."""
    output_max: float
    """Largest absolute difference of an output's entry."""
    qk_cosine: float
    """Cosine of the centred scores, independent of sharpness; see :func:`circuit_similarity`."""
    value_cosine: float
    """Cosine of the values of the places."""


def attention_weights(
    weights: HeadWeights, space: SequenceSpace, block: Block
) -> Float[np.ndarray, "sequence query key"]:
    """Return the head's attention in every sequence of ``block``, with zeros for padding."""
    return _weights(qk_between_places(weights, space), space, block)


def circuit_similarity(
    first: HeadWeights, second: HeadWeights, space: SequenceSpace
) -> tuple[float, float]:
    """Return the cosines, from -1 to 1, of two heads' QK circuits and of their value maps.

    The QK cosine compares :func:`~glassformer.handcraft.circuits.centred_scores` over the possible
    pairs whose query is a letter. It does not depend on the sharpness, a factor of all scores;
    queries with larger scores have more weight. The value cosine compares
    :func:`~glassformer.handcraft.circuits.values_at_places`. For zeros see :func:`cosine`.
    """
    if first.v_dim != second.v_dim:
        raise InputError(
            got=f"values of length {first.v_dim} and {second.v_dim}",
            expected="two heads with values of one length",
            fix="Compare heads for the same task.",
        )
    judged = slice(int(space.has_cls), None)
    scores = [np.nan_to_num(centred_scores(head, space)[judged]) for head in (first, second)]
    return cosine(*scores), cosine(values_at_places(first, space), values_at_places(second, space))


def head_distance(first: HeadWeights, second: HeadWeights, space: SequenceSpace) -> HeadDistance:
    """Return the distances between two heads over every sequence of ``space``.

    The heads may differ in qk_dim and pos_dim.
    """
    qk_cosine, value_cosine = circuit_similarity(first, second, space)
    scores = [qk_between_places(head, space) for head in (first, second)]
    values = [values_at_places(head, space) for head in (first, second)]
    size = max(1, _SCORES_AT_ONCE // space.num_positions**2)
    attention_sum = 0.0
    attention_max = 0.0
    output_max = 0.0
    num_queries = 0
    for block in space.blocks(size):
        place = space.place_of(block)
        letters = block.real.copy()
        letters[:, : int(space.has_cls)] = False
        weights = [_weights(table, space, block) for table in scores]
        divergences = divergence(*weights)[letters] / np.log(2)  # padding is NaN
        outputs = [weight @ value[place] for weight, value in zip(weights, values, strict=True)]
        differences = np.abs(outputs[0] - outputs[1])[letters]
        attention_sum = attention_sum + float(divergences.sum())
        attention_max = max(attention_max, float(divergences.max()))
        output_max = max(output_max, float(differences.max()))
        num_queries += len(divergences)
    return HeadDistance(
        attention_mean=attention_sum / num_queries,
        attention_max=attention_max,
        output_max=output_max,
        qk_cosine=qk_cosine,
        value_cosine=value_cosine,
    )


def _weights(
    scores: Float[np.ndarray, "place place"], space: SequenceSpace, block: Block
) -> Float[np.ndarray, "sequence query key"]:
    place = space.place_of(block)
    rows = scores[place[:, :, None], place[:, None, :]]
    weights = weights_of_scores(
        torch.from_numpy(rows), torch.from_numpy(block.real[:, None, :])
    ).numpy()
    return weights * block.real[:, :, None]


def cosine(first: Float[np.ndarray, "*entries"], second: Float[np.ndarray, "*entries"]) -> float:
    """Return the cosine of two arrays of equal shape, from -1 to 1.

    The cosine of two arrays of zeros is 1, and 0 if only one array is zero.
    """
    first = _scaled(first)
    second = _scaled(second)
    lengths = np.linalg.norm(first), np.linalg.norm(second)
    if not all(lengths):
        return float(lengths[0] == lengths[1])
    # Normalise first: the product of two long vectors could overflow.
    return float(np.clip(np.vdot(first / lengths[0], second / lengths[1]), -1.0, 1.0))


def _scaled(entries: np.ndarray) -> np.ndarray:
    """Divide an array by its largest magnitude; zeros stay zeros."""
    return entries / (np.abs(entries).max(initial=0.0) or 1.0)
