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

    # Jensen-Shannon divergence of the weights over the queries, in bits: 0 the same, 1 elsewhere
    attention_mean: float
    attention_max: float
    output_max: float  # the largest absolute difference of an output's entry
    qk_cosine: (
        float  # of the centred scores; independent of the sharpness, see :func:`circuit_similarity`
    )
    value_cosine: float  # of the values of the places


def attention_weights(
    weights: HeadWeights, space: SequenceSpace, block: Block
) -> Float[np.ndarray, "sequence query key"]:
    """The head's attention in every sequence of ``block``; zeros in the rows and columns of the
    padding.
    """
    return _weights(qk_between_places(weights, space), space, block)


def circuit_similarity(
    first: HeadWeights, second: HeadWeights, space: SequenceSpace
) -> tuple[float, float]:
    """Cosines, from -1 to 1, of the two heads' QK circuits and of their value maps.

    QK: of :func:`~glassformer.handcraft.circuits.centred_scores` over the possible pairs whose
    query is a letter. A factor on all scores, the sharpness, does not change it, but a query whose
    scores are larger counts more. Values: of
    :func:`~glassformer.handcraft.circuits.values_at_places`. The cosine of two zero tables is 1, of
    one zero table 0.
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
    """The distances between two heads, which may differ in qk_dim and pos_dim, over every sequence
    of ``space``.
    """
    qk_cosine, value_cosine = circuit_similarity(first, second, space)
    scores = [qk_between_places(head, space) for head in (first, second)]
    values = [values_at_places(head, space) for head in (first, second)]
    size = max(1, _SCORES_AT_ONCE // space.num_positions**2)
    total = 0.0
    largest = 0.0
    largest_output = 0.0
    num_queries = 0
    for block in space.blocks(size):
        place = space.place_of(block)
        letters = block.real.copy()
        letters[:, : int(space.has_cls)] = False
        weights = [_weights(table, space, block) for table in scores]
        apart = divergence(*weights)[letters] / np.log(2)  # padding is NaN
        outputs = [weight @ value[place] for weight, value in zip(weights, values, strict=True)]
        total = total + float(apart.sum())
        largest = max(largest, float(apart.max()))
        largest_output = max(largest_output, float(np.abs(outputs[0] - outputs[1])[letters].max()))
        num_queries += len(apart)
    return HeadDistance(
        attention_mean=total / num_queries,
        attention_max=largest,
        output_max=largest_output,
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
    """Of the entries of two arrays of one shape, from -1 to 1; 1 for two arrays of zeros, 0 for
    one.
    """
    first, second = (each / (np.abs(each).max(initial=0.0) or 1.0) for each in (first, second))
    lengths = np.linalg.norm(first), np.linalg.norm(second)
    if not all(lengths):
        return float(lengths[0] == lengths[1])
    # Normalised first: the product of two long vectors could overflow.
    return float(np.clip(np.vdot(first / lengths[0], second / lengths[1]), -1.0, 1.0))
