r"""The outputs of a transformer for listed sequences, and how far another way of computing them may
be from these.

Every number is kept with a radius. In another order of sums, alone or in a batch, in the dtype of
the weights or exactly, it is no further than that from the number here, which is computed in
float64. Both kinds of rounding are in
the radius: ``gamma(N, u)`` of the sum of absolute terms with the unit roundoff u of the weights,
and with that of float64 (:mod:`glassformer.handcraft.rounding`). Numbers whose terms could overflow
have an infinite radius.

A ReLU moves errors on. Two units that make a step, ``relu(z + b) - relu(z + c)``, are read
together: the step is monotone in z, so its ends bound it, and on its flat parts an error of z adds
nothing. Two units that are the negative of each other are linear, ``relu(z) - relu(-z) = z``, and
what they erase from the stream leaves no error.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from glassformer.handcraft.bounds import FLOAT64_ROUNDOFF
from glassformer.handcraft.rounding import gammas, later_tiles, mean_of_values, off_exponentials
from glassformer.programs.checker import Affine, LayerWeights, Network

Array = Float[np.ndarray, "..."]

_NUMBERS_AT_ONCE = 1 << 19
_OWN = 1 + 2.0**-30
"""More than the rounding of sums of radii."""


class Ball(NamedTuple):
    """Numbers, and how far those of another path, and the exact ones, may be from them."""

    middle: Array
    radius: Array

    @property
    def size(self) -> Array:
        """The largest absolute values."""
        return np.abs(self.middle) + self.radius

    def at(self, columns: slice) -> "Ball":
        """Some of the numbers of each position."""
        return Ball(self.middle[..., columns], self.radius[..., columns])


def outputs_within(
    network: Network, sequences: Int[np.ndarray, "sequence position"], causal: bool
) -> Ball:
    """The outputs ``[sequence, position]`` of every sequence, with their radii."""
    length = sequences.shape[1]
    in_heads = max((length * len(layer.value.bias) for layer in network.layers), default=0)
    in_units = max(
        (len(layer.up.bias) for layer in network.layers if layer.up is not None), default=0
    )
    step = max(1, _NUMBERS_AT_ONCE // (length * (in_heads + in_units + network.embedding.shape[1])))
    units = [_units(layer) for layer in network.layers]
    with np.errstate(all="ignore"):
        parts = [
            _outputs(network, units, sequences[start : start + step], causal)
            for start in range(0, len(sequences), step)
        ]
    return Ball(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _outputs(
    network: Network,
    units: Sequence["_Units"],
    sequences: Int[np.ndarray, "sequence position"],
    causal: bool,
) -> Ball:
    length = sequences.shape[1]
    tokens = network.embedding[sequences]
    places = network.positions[:length]
    x = _sum(
        network,
        Ball(tokens, np.zeros_like(tokens)),
        Ball(np.broadcast_to(places, tokens.shape), np.zeros_like(tokens)),
    )
    if causal:
        seen = np.tri(length, dtype=bool)
    else:
        seen = np.ones((length, length), dtype=bool)
    for layer, units_of_layer in zip(network.layers, units, strict=True):
        x = _sum(network, x, _linear(network, _attention(network, x, layer, seen), layer.output))
        x = _functions(network, x, layer, units_of_layer)
    output = _linear(network, x, network.output)
    return Ball(output.middle[..., 0], output.radius[..., 0])


def _relative(network: Network, roundings: Array | Int[np.ndarray, "..."]) -> Array:
    """Rounding relative to the sum of absolute terms, of another path and of this one."""
    return np.asarray(gammas(roundings, network.roundoff) + gammas(roundings, FLOAT64_ROUNDOFF))


def _rounded(network: Network, sizes: Array, map: Affine) -> Array:
    """The rounding of a linear map of numbers of these sizes."""
    weight = np.abs(map.weight)
    bias = np.abs(map.bias)
    tiny = network.smallest
    count = (weight != 0).sum(axis=1) + (bias != 0) + 1
    terms = sizes @ weight.T + bias
    # Factors, products and sums below the normal numbers may be taken as 0.
    off = _relative(network, count) * terms + tiny * (weight.sum(axis=1) + 2 * count)
    lost = np.where(weight < tiny, weight, 0.0)
    if lost.any():
        off = off + sizes @ lost.T
    off = np.where(terms < network.largest / 4, off, np.inf)  # NaN as well
    return np.where(terms == 0, 0.0, off)


def _linear(network: Network, x: Ball, map: Affine) -> Ball:
    radius = x.radius @ np.abs(map.weight).T + _rounded(network, x.size, map)
    return Ball(x.middle @ map.weight.T + map.bias, radius * _OWN)


def _sum(network: Network, x: Ball, y: Ball) -> Ball:
    """A sum; adding 0 rounds nothing."""
    sizes = x.size
    others = y.size
    rounding = _relative(network, np.array(1)) * (sizes + others) + network.smallest
    radius = x.radius + y.radius + np.where((sizes > 0) & (others > 0), rounding, 0.0)
    return Ball(x.middle + y.middle, radius * _OWN)


def _attention(
    network: Network, x: Ball, layer: LayerWeights, seen: Bool[np.ndarray, "query key"]
) -> Ball:
    q, k, v = (_linear(network, x, each) for each in (layer.query, layer.key, layer.value))
    size, wide = (each.middle.shape[-1] // layer.num_heads for each in (q, v))
    means = [
        _head(
            network,
            q.at(slice(head * size, (head + 1) * size)),
            k.at(slice(head * size, (head + 1) * size)),
            v.at(slice(head * wide, (head + 1) * wide)),
            seen,
            None if layer.sinks is None else float(layer.sinks[head]),
        )
        for head in range(layer.num_heads)
    ]
    return Ball(*(np.concatenate(each, axis=-1) for each in zip(*means, strict=True)))


def _head(
    network: Network,
    q: Ball,
    k: Ball,
    v: Ball,
    seen: Bool[np.ndarray, "query key"],
    sink: float | None,
) -> Ball:
    """What a head gives at each query."""
    dim = q.middle.shape[-1]
    length = q.middle.shape[1]
    scale = dim**-0.5
    tiny = network.smallest
    across = lambda queries, keys: np.einsum("sqd,skd->sqk", queries, keys)  # noqa: E731
    scores = across(q.middle, k.middle) * scale
    products = across(q.size, k.size) * scale
    off = (across(q.radius, k.size) + across(np.abs(q.middle), k.radius)) * scale
    # Products, their sums, and queries or keys that are scaled before.
    terms = across((q.size > 0).astype(float), (k.size > 0).astype(float))
    off = off + np.where(products > 0, _relative(network, terms + 2) * products + tiny * dim, 0.0)
    values, off_values = v
    keys = length
    if sink is not None:  # one more key, of value 0
        ends = (*scores.shape[:2], 1)
        scores = np.concatenate([scores, np.full(ends, sink)], axis=-1)
        products = np.concatenate([products, np.full(ends, abs(sink))], axis=-1)
        off = np.concatenate([off, np.zeros(ends)], axis=-1)
        seen = np.concatenate([seen, np.ones((length, 1), dtype=bool)], axis=1)
        values, off_values = (
            np.pad(each, ((0, 0), (0, 1), (0, 0))) for each in (values, off_values)
        )
        keys += 1
    # Roundings of a whole score: its scale, a factor of base, and the largest score, which each
    # tile subtracts.
    size = np.abs(scores) + off
    size = size + np.where(seen, size, 0.0).max(axis=-1, keepdims=True)
    off = off + _relative(network, np.array(8 + 2 * later_tiles(keys))) * size
    # Scores that are 0 on every path have exponentials of 1.
    exponentials = sum(
        off_exponentials(np.array(keys), u) for u in (network.roundoff, FLOAT64_ROUNDOFF)
    )
    some = np.where(seen, products > 0, False).any(axis=-1, keepdims=True)
    off = np.where(seen & some, off + exponentials, 0.0)
    off = np.where(np.isnan(off), np.inf, off)
    scores = np.where(seen, scores, -np.inf)
    shape = (*scores.shape, values.shape[-1])
    of_queries, off_queries = (
        np.where(seen[..., None], np.broadcast_to(each[:, None], shape), 0.0)
        for each in (values, off_values)
    )
    relative = _relative(network, np.array(2 * keys + 3 + 2 * later_tiles(keys)))
    return Ball(
        *mean_of_values(
            scores, off, of_queries, off_queries, np.full(scores.shape[:2], relative), tiny
        )
    )


def _functions(network: Network, x: Ball, layer: LayerWeights, units: "_Units") -> Ball:
    """The stream after the ReLU network."""
    if layer.up is None or layer.down is None:
        return x
    up = layer.up
    down = layer.down
    hidden = x.middle @ up.weight.T + up.bias
    moved = x.radius @ np.abs(up.weight).T
    off = _rounded(network, x.size, up)
    active = np.maximum(hidden + moved + off, 0.0)
    weight = np.abs(down.weight)
    added = _rounded(network, active, down)
    added = added + off @ weight.T  # each unit's own rounding
    if len(units.single):
        added = added + moved[..., units.single] @ weight[:, units.single].T
    first, second = units.steps
    starts, falls = (Ball(hidden[..., each], moved[..., each]) for each in (first, second))

    def step(sign: float) -> Array:
        return np.maximum(starts.middle + sign * starts.radius, 0.0) - np.maximum(
            falls.middle + sign * falls.radius, 0.0
        )

    here = step(0.0)
    risen = np.maximum(np.abs(step(1.0) - here), np.abs(here - step(-1.0)))
    risen = risen + 8 * FLOAT64_ROUNDOFF * (active[..., first] + active[..., second])
    added = added + risen @ weight[:, first].T
    # What pairs that are the negative of each other add is linear, together with the stream.
    carried = np.eye(x.middle.shape[-1]) + down.weight[:, units.linear] @ up.weight[units.linear]
    middle = x.middle + np.maximum(hidden, 0.0) @ down.weight.T + down.bias
    radius = x.radius @ np.abs(carried).T + added
    terms = x.size + active @ weight.T + np.abs(down.bias)
    radius = radius + np.where(terms > x.size, _relative(network, np.array(2)) * terms, 0.0)
    return Ball(middle, radius * _OWN)


class _Units(NamedTuple):
    """Units of a ReLU network: pairs that make steps, the first ones of pairs that are linear, and
    all others.
    """

    steps: tuple[Int[np.ndarray, " pair"], Int[np.ndarray, " pair"]]
    linear: Int[np.ndarray, " pair"]
    single: Int[np.ndarray, " unit"]


def _units(layer: LayerWeights) -> _Units:
    """The units of a layer, which has none without a ReLU network."""
    if layer.up is None or layer.down is None:
        none = np.array([], dtype=np.int64)
        return _Units((none, none), none, none)
    up = layer.up.weight
    bias = layer.up.bias[:, None]
    down = layer.down.weight.T
    units = list(range(len(bias)))
    linear, units = _matched(units, np.hstack([up, bias, down]), np.hstack([-up, -bias, -down]))
    steps, units = _matched(units, np.hstack([up, down]), np.hstack([up, -down]))
    first, second = np.array(steps, dtype=np.int64).reshape(-1, 2).T
    return _Units(
        (first, second),
        np.array([unit for unit, _ in linear], dtype=np.int64),
        np.array(units, dtype=np.int64),
    )


def _matched(
    units: list[int],
    rows: Float[np.ndarray, "unit number"],
    partner_rows: Float[np.ndarray, "unit number"],
) -> tuple[list[tuple[int, int]], list[int]]:
    """Pairs of units of which the second wants the row of the first, and the units without a
    partner.
    """
    rows, partner_rows = rows + 0.0, partner_rows + 0.0  # turns -0 into 0
    pairs = []
    waiting = dict[bytes, list[int]]()
    for unit in units:
        partners = waiting.get(partner_rows[unit].tobytes())
        if partners:
            pairs.append((partners.pop(), unit))
        else:
            waiting.setdefault(rows[unit].tobytes(), []).append(unit)
    return pairs, sorted(unit for alone in waiting.values() for unit in alone)
