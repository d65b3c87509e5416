r"""Bounds on the rounding of a head's output, for every way of computing it.

A *path* is a way of computing a head: by NumPy, by PyTorch alone or in padded batches, by fused
kernels, or by the page. Paths round differently. Take one query with keys j, exact scores s_j,
values v_j, weights w and output ``o = sum_j w_j v_j``, and a path with unit roundoff u. N
successive roundings change a sum by at most ``gamma(N, u)`` of its absolute terms. The errors are:

1. *Scores* off by at most ``gamma(2 inputs + qk_dim + 8 + 2 T, u) a_j``, a_j being the sum of
   absolute products of the score and T the number of
   :func:`~glassformer.handcraft.bounds.later_tiles`; exponentials are off by 40 u, and again by 42
   u for each later tile. So the weights are those of scores ``s_j + d_j`` with ``|d_j| <= D_j``.
   Where no score of a query has a product that is not 0, all are 0 on every path, and
   ``exp(0) = 1``: D_j is 0 then.
2. *Weights.* With w' proportional to ``w_j exp(d_j)``, the sum of these is between ``exp(-E)`` and
   ``exp(E)`` for ``E = ln(sum_j w_j exp(D_j))``, so ``w'_j / w_j`` differs from 1 by at most
   ``expm1(D_j + E)``. Both sum to 1, so for any c
   ``|sum_j (w'_j - w_j) v_j| <= sum_j expm1(D_j + E) w_j |v_j - c|``. Where D is large a second
   bound is smaller: with the key t of the largest score, both weights of another key are at most
   ``g_j = min(1, exp(s_j - s_t + D_j + D_t))``, so the sum is at most
   ``sum over j of g_j |v_j - v_t|``.
3. *Values* off by ``gamma(M, u)`` of the sum of their absolute products, with M additions and
   inexact products. A value that is one entry of Vm times 1 is exact.
4. *The output*: n products and additions, n - 1 for the sum of exponentials, at most 2 for the
   division, and 2 for each later tile: ``gamma(2 n + 1 + 2 T, u)`` of ``sum_j w'_j |v_j|``.

Numbers below the normal ones may be taken as 0, on each path. The tables are such a path, with the
unit roundoff of float64. The output of another path differs from the exact one by these errors, and
so does the output of the tables. The sum of both errors is a radius around the output of the
tables, within which are the exact output and the output of the other path. A verdict that is the
same for all outputs within that radius holds for all of them.

Source: Higham 2002, Accuracy and Stability of Numerical Algorithms, section 3.1 (sums and products
in any order) and 2.8 (underflow).
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from glassformer.handcraft.bounds import (
    FLOAT64_ROUNDOFF,
    PlaceTables,
    gamma,
    later_tiles,
    lost_below,
    smallest_normal,
)
from glassformer.handcraft.circuits import place_inputs
from glassformer.handcraft.sequences import SequenceSpace
from glassformer.handcraft.single_head import HeadWeights

_RADIUS_MARGIN = 1 + 2.0**-20
"""A factor that is larger than the rounding of sums of positive numbers in this module."""


class Computed(NamedTuple):
    """Outputs by the tables, and the largest distance to the exact ones and to other paths'."""

    outputs: Float[np.ndarray, "output v_dim"]
    radius: Float[np.ndarray, "output v_dim"]


class OutputRounding:
    """The rounding of the outputs of one head in one number format.

    Attributes:
        most: Largest distance of two paths' outputs for any sequence; infinite if unknown.
    """

    def __init__(
        self, head: HeadWeights, space: SequenceSpace, tables: PlaceTables, roundoff: float
    ) -> None:
        self._tables = tables
        self._roundoffs = (roundoff, FLOAT64_ROUNDOFF)
        self._tiny = smallest_normal(roundoff)
        self._scale = head.qk_dim**-0.5
        self._roundings_of_scores = 2 * len(head.Km) + head.qk_dim + 8
        self._head = head
        self._space = space
        self._sizes: _Sizes | None = None
        n = space.num_positions
        value = tables.largest[2] / n
        shift = tables.score_rounding / 2 + gamma(40, roundoff)
        with np.errstate(over="ignore", invalid="ignore"):
            moved = np.expm1(2 * np.float64(shift)) * 2 * value
            rounding = np.exp(2 * np.float64(shift)) * tables.value_rounding
            most = 2 * _RADIUS_MARGIN * float(moved + rounding)
        self.most = math.inf if math.isnan(most) else most

    def compute(
        self,
        query: Int[np.ndarray, " output"],
        keys: Int[np.ndarray, "output key"],
        real: Bool[np.ndarray, "output key"],
    ) -> Computed:
        """Compute the outputs of queries with some keys.

        Args:
            query: The place of each query.
            keys: The places of its keys, with padding.
            real: False in the padding.
        """
        if self._sizes is None:
            self._sizes = _Sizes.of(self._head, self._space, self._tiny, self._roundoffs)
        sizes = self._sizes
        rows = query[:, None]
        scores = np.where(real, self._tables.scores[rows, keys], -np.inf)
        values = np.where(real[:, :, None], self._tables.values[keys], 0.0)
        some = real[:, :, None] & sizes.some_value[keys]
        off_values = np.where(some, sizes.off_values[keys], 0.0)
        count = real.sum(axis=1)
        shift = np.zeros(keys.shape)
        for u in self._roundoffs:
            roundings = self._roundings_of_scores + 2 * later_tiles(count)[:, None]
            shift += gammas(roundings, u) * sizes.scores[rows, keys] + sizes.lost_scores[rows, keys]
            shift += off_exponentials(count, u)[:, None]
        products = np.where(real, sizes.products[rows, keys], False).any(axis=1, keepdims=True)
        shift = np.where(products & real, shift, 0.0)
        roundings_of_sums = 2 * count + 1 + 2 * later_tiles(count)
        of_path = gammas(roundings_of_sums, self._roundoffs[0])
        of_tables = gammas(roundings_of_sums, self._roundoffs[1])
        relative = of_path + of_tables
        outputs, radius = mean_of_values(scores, shift, values, off_values, relative, self._tiny)
        # Adding the radius to an output, or subtracting it, is rounded, too.
        rounding = np.where(radius > 0, 4 * FLOAT64_ROUNDOFF * np.abs(outputs), 0.0)
        return Computed(outputs, radius + rounding)


def mean_of_values(
    scores: Float[np.ndarray, "*query key"],
    shift: Float[np.ndarray, "*query key"],
    values: Float[np.ndarray, "*query key v_dim"],
    off_values: Float[np.ndarray, "*query key v_dim"],
    relative: Float[np.ndarray, "*query"],
    tiny: float,
) -> Computed:
    """Average values by the softmax of scores, and bound the rounding of that mean.

    Args:
        scores: Minus infinity for keys that take no part.
        shift: Largest distance of another path's score from these, exponentials included; 0 for
            keys that take no part.
        values: 0 for keys that take no part.
        off_values: Largest distance of another path's value from these.
        relative: Rounding of the sums, relative to the sum of the absolute terms.
        tiny: Smaller numbers may be taken as 0.
    """
    ahead = scores - scores.max(axis=-1, keepdims=True)
    weights = np.exp(ahead)
    weights /= weights.sum(axis=-1, keepdims=True)
    means = np.einsum("...k,...kv->...v", weights, values)
    first = scores.argmax(axis=-1)[..., None]
    top = np.take_along_axis(values, first[..., None], axis=-2)
    at_most = np.exp(ahead + shift + np.take_along_axis(shift, first, axis=-1))
    at_most = np.where(scores > -np.inf, np.minimum(1.0, at_most), 0.0)
    others = np.where(np.arange(scores.shape[-1]) == first, 0.0, at_most)
    factor = shift + np.log1p(np.einsum("...k,...k->...", weights, np.expm1(shift)))[..., None]
    distance = np.abs(values - means[..., None, :])
    by_ratio = np.einsum("...k,...kv->...v", weights * np.expm1(factor), distance)
    by_top = np.einsum("...k,...kv->...v", others, np.abs(values - top))
    moved = np.fmin(by_ratio, by_top)  # infinity times 0 is no number
    highest = np.fmin(at_most, weights * np.exp(factor))
    size = np.abs(values) + off_values
    of_values = np.einsum("...k,...kv->...v", highest, off_values)
    of_sums = relative[..., None] * np.einsum("...k,...kv->...v", highest, size)
    # Weights and products below the normal numbers, on the path and here.
    below = 4 * tiny * np.where(size > 0, 1 + size, 0.0).sum(axis=-2)
    radius = (moved + of_values + of_sums + below) * _RADIUS_MARGIN
    return Computed(means, np.where(np.isnan(radius), np.inf, radius))


class _Sizes(NamedTuple):
    """Sizes of scores and values, by which their rounding is bounded."""

    scores: Float[np.ndarray, "query key"]
    """The sum of absolute products of each score."""
    products: Bool[np.ndarray, "query key"]
    """True where a score has a product that is not 0."""
    lost_scores: Float[np.ndarray, "query key"]
    """The error of each score if numbers below the normal ones are taken as 0."""
    some_value: Bool[np.ndarray, "place v_dim"]
    """True where a value has a product that is not 0."""
    off_values: Float[np.ndarray, "place v_dim"]
    """Largest distance of a path's value from the value of the tables."""

    @classmethod
    def of(
        cls, head: HeadWeights, space: SequenceSpace, tiny: float, roundoffs: tuple[float, float]
    ) -> "_Sizes":
        """Compute the sizes for a head."""
        x = place_inputs(head, space)
        scale = head.qk_dim**-0.5
        some = (x != 0).astype(float)
        queries = np.abs(x) @ np.abs(head.Qm)
        keys = np.abs(x) @ np.abs(head.Km)
        some_query = some @ (head.Qm != 0) > 0
        some_key = some @ (head.Km != 0) > 0
        lost_query = lost_below(tiny, x, head.Qm)
        lost_key = lost_below(tiny, x, head.Km)
        lost = (
            lost_query @ keys.T
            + queries @ lost_key.T
            + lost_query @ lost_key.T
            + tiny * head.qk_dim
        )
        terms = some @ (head.Vm != 0)
        inexact = (some * (np.abs(x) != 1)) @ (head.Vm != 0)
        roundings = np.maximum(terms - 1, 0) + (inexact > 0)
        below = np.where(np.abs(head.Vm) < tiny, np.abs(head.Vm), 0.0)
        lost_values = np.where(roundings > 0, lost_below(tiny, x, head.Vm), np.abs(x) @ below)
        relative = sum(gammas(roundings, u) for u in roundoffs)
        return cls(
            scores=queries @ keys.T * scale,
            products=some_query.astype(float) @ some_key.T.astype(float) > 0,
            lost_scores=lost * scale,
            some_value=terms > 0,
            off_values=relative * (np.abs(x) @ np.abs(head.Vm)) + 2 * lost_values,
        )


def gammas(
    roundings: Int[np.ndarray, "..."] | Float[np.ndarray, "..."], roundoff: float
) -> Float[np.ndarray, "..."]:
    """Return :func:`~glassformer.handcraft.bounds.gamma` of arrays; infinite above 1."""
    total = roundings * roundoff
    return np.where(total <= 0.5, total / (1 - np.minimum(total, 0.5)), np.inf)


def off_exponentials(keys: Int[np.ndarray, "..."], roundoff: float) -> Float[np.ndarray, "..."]:
    """Return the relative error of exponentials where so many keys may be taken in tiles."""
    return gammas(np.asarray(40 + 42 * later_tiles(keys)), roundoff)
