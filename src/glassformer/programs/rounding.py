r"""The outputs of a transformer for listed sequences, with bounds on their rounding.

Every number is computed in float64 and has a radius. In another order of sums, alone or in a batch,
in the dtype of the weights or exactly, it is no further than the radius from the number here. Both
kinds of rounding are in the radius: ``gamma(N, u)`` of the sum of absolute terms with the unit
roundoff u of the weights, and with that of float64 (:mod:`glassformer.handcraft.rounding`). Numbers
whose terms could overflow have an infinite radius.

A ReLU moves errors on. Two units that make a step, ``relu(z + b) - relu(z + c)``, are read
together: the step is monotone in z, so its ends bound it, and on its flat parts an error of z adds
nothing. Two units that are the negative of each other are linear, ``relu(z) - relu(-z) = z``, and
a number that they erase from the stream leaves no error.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from glassformer.handcraft.bounds import FLOAT64_ROUNDOFF
from glassformer.handcraft.rounding import gammas, later_tiles, mean_of_values, off_exponentials
from glassformer.programs.checker import Affine, LayerWeights, Network

Array = Float[np.ndarray, "..."]

_NUMBERS_AT_ONCE = 1 << 19
_RADIUS_MARGIN = 1 + 2.0**-30
"""A factor that is larger than the rounding of sums of radii."""


class Ball(NamedTuple):
    """Numbers, and the largest distance to the exact ones and to those of another path."""

    middle: Array
    radius: Array

    @property
    def size(self) -> Array:
        """The largest absolute values."""
        return np.abs(self.middle) + self.radius

    def at(self, columns: slice) -> "Ball":
        """Return some of the numbers of each position."""
        return Ball(self.middle[..., columns], self.radius[..., columns])


def outputs_within(
    network: Network,
    sequences: Int[np.ndarray, "sequence position"],
    causal: bool,
) -> Ball:
    """Return the outputs ``[sequence, position]`` of every sequence, with their radii."""
    length = sequences.shape[1]
    in_heads = 0
    in_units = 0
    for layer in network.layers:
        in_heads = max(in_heads, length * len(layer.value.bias))
        if layer.up is not None:
            in_units = max(in_units, len(layer.up.bias))
    numbers_per_token = in_heads + in_units + network.embedding.shape[1]
    step = max(1, _NUMBERS_AT_ONCE // (length * numbers_per_token))
    units = [_units(layer) for layer in network.layers]
    with np.errstate(all="ignore"):
        parts = [
            _outputs(network, units, sequences[start : start + step], causal)
            for start in range(0, len(sequences), step)
        ]
    return Ball(
        middle=np.concatenate([part.middle for part in parts]),
        radius=np.concatenate([part.radius for part in parts]),
    )


def _outputs(
    network: Network,
    units: Sequence["_Units"],
    sequences: Int[np.ndarray, "sequence position"],
    causal: bool,
) -> Ball:
    """Return the outputs of sequences that fit into memory at once."""
    length = sequences.shape[1]
    token_rows = network.embedding[sequences]
    position_rows = np.broadcast_to(network.positions[:length], token_rows.shape)
    zeros = np.zeros_like(token_rows)
    x = _sum(network, Ball(token_rows, zeros), Ball(position_rows, zeros))
    if causal:
        seen = np.tri(length, dtype=bool)
    else:
        seen = np.ones((length, length), dtype=bool)
    for layer, units_of_layer in zip(network.layers, units, strict=True):
        heads = _attention(network, x, layer, seen)
        x = _sum(network, x, _linear(network, heads, layer.output))
        x = _functions(network, x, layer, units_of_layer)
    output = _linear(network, x, network.output)
    return Ball(output.middle[..., 0], output.radius[..., 0])


def _relative(network: Network, roundings: Array | Int[np.ndarray, "..."]) -> Array:
    """Return rounding relative to the sum of absolute terms, of another path and of this one."""
    of_network = gammas(roundings, network.roundoff)
    of_float64 = gammas(roundings, FLOAT64_ROUNDOFF)
    return np.asarray(of_network + of_float64)


def _rounded(network: Network, sizes: Array, map: Affine) -> Array:
    """Return the rounding of a linear map of numbers of these sizes."""
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
    """Return a linear map of ``x``."""
    middle = x.middle @ map.weight.T + map.bias
    radius = x.radius @ np.abs(map.weight).T + _rounded(network, x.size, map)
    return Ball(middle, radius * _RADIUS_MARGIN)


def _sum(network: Network, x: Ball, y: Ball) -> Ball:
    """Return a sum; adding 0 rounds nothing."""
    x_size = x.size
    y_size = y.size
    rounding = _relative(network, np.array(1)) * (x_size + y_size) + network.smallest
    rounded = (x_size > 0) & (y_size > 0)
    radius = x.radius + y.radius + np.where(rounded, rounding, 0.0)
    return Ball(x.middle + y.middle, radius * _RADIUS_MARGIN)


def _attention(
    network: Network,
    x: Ball,
    layer: LayerWeights,
    seen: Bool[np.ndarray, "query key"],
) -> Ball:
    """Return the outputs of a layer's heads, one after the other."""
    q = _linear(network, x, layer.query)
    k = _linear(network, x, layer.key)
    v = _linear(network, x, layer.value)
    qk_dim = q.middle.shape[-1] // layer.num_heads
    v_dim = v.middle.shape[-1] // layer.num_heads
    means = []
    for head in range(layer.num_heads):
        qk_columns = slice(head * qk_dim, (head + 1) * qk_dim)
        v_columns = slice(head * v_dim, (head + 1) * v_dim)
        sink = None
        if layer.sinks is not None:
            sink = float(layer.sinks[head])
        mean = _head(
            network,
            q.at(qk_columns),
            k.at(qk_columns),
            v.at(v_columns),
            seen,
            sink,
        )
        means.append(mean)
    return Ball(
        middle=np.concatenate([mean.middle for mean in means], axis=-1),
        radius=np.concatenate([mean.radius for mean in means], axis=-1),
    )


def _head(
    network: Network,
    q: Ball,
    k: Ball,
    v: Ball,
    seen: Bool[np.ndarray, "query key"],
    sink: float | None,
) -> Ball:
    """Return the output of a head at each query."""
    length = q.middle.shape[1]
    scores, off, products = _scores(network, q, k)
    values, off_values = v
    keys = length
    if sink is not None:  # one more key, of value 0
        ends = (*scores.shape[:2], 1)
        scores = np.concatenate([scores, np.full(ends, sink)], axis=-1)
        products = np.concatenate([products, np.full(ends, abs(sink))], axis=-1)
        off = np.concatenate([off, np.zeros(ends)], axis=-1)
        seen = np.concatenate([seen, np.ones((length, 1), dtype=bool)], axis=1)
        one_more_key = ((0, 0), (0, 1), (0, 0))
        values = np.pad(values, one_more_key)
        off_values = np.pad(off_values, one_more_key)
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
    seen_values = np.where(
        seen[..., None],
        np.broadcast_to(values[:, None], shape),
        0.0,
    )
    off_seen_values = np.where(
        seen[..., None],
        np.broadcast_to(off_values[:, None], shape),
        0.0,
    )
    relative = _relative(network, np.array(2 * keys + 3 + 2 * later_tiles(keys)))
    means, off_means = mean_of_values(
        scores,
        off,
        seen_values,
        off_seen_values,
        np.full(scores.shape[:2], relative),
        network.smallest,
    )
    return Ball(means, off_means)


def _scores(network: Network, q: Ball, k: Ball) -> tuple[Array, Array, Array]:
    """Return the scores of all queries and keys, their radii, and sums of absolute products."""
    dim = q.middle.shape[-1]
    scale = dim**-0.5
    tiny = network.smallest
    across = lambda queries, keys: np.einsum("sqd,skd->sqk", queries, keys)  # noqa: E731
    scores = across(q.middle, k.middle) * scale
    products = across(q.size, k.size) * scale
    off = (across(q.radius, k.size) + across(np.abs(q.middle), k.radius)) * scale
    # Products, their sums, and queries or keys that are scaled before.
    terms = across((q.size > 0).astype(float), (k.size > 0).astype(float))
    off = off + np.where(
        products > 0,
        _relative(network, terms + 2) * products + tiny * dim,
        0.0,
    )
    return scores, off, products


def _functions(network: Network, x: Ball, layer: LayerWeights, units: "_Units") -> Ball:
    """Return the stream after the ReLU network."""
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
    rising = Ball(hidden[..., first], moved[..., first])
    falling = Ball(hidden[..., second], moved[..., second])

    def step(sign: float) -> Array:
        """Return the steps where their inputs move by their radius."""
        rise = np.maximum(rising.middle + sign * rising.radius, 0.0)
        fall = np.maximum(falling.middle + sign * falling.radius, 0.0)
        return rise - fall

    here = step(0.0)
    moved_steps = np.maximum(np.abs(step(1.0) - here), np.abs(here - step(-1.0)))
    both_active = active[..., first] + active[..., second]
    moved_steps = moved_steps + 8 * FLOAT64_ROUNDOFF * both_active
    added = added + moved_steps @ weight[:, first].T
    # Pairs that are the negative of each other are linear, together with the stream.
    carried = np.eye(x.middle.shape[-1]) + down.weight[:, units.linear] @ up.weight[units.linear]
    middle = x.middle + np.maximum(hidden, 0.0) @ down.weight.T + down.bias
    radius = x.radius @ np.abs(carried).T + added
    terms = x.size + active @ weight.T + np.abs(down.bias)
    radius = radius + np.where(
        terms > x.size,
        _relative(network, np.array(2)) * terms,
        0.0,
    )
    return Ball(middle, radius * _RADIUS_MARGIN)


class _Units(NamedTuple):
    """The units of a ReLU network by their role."""

    steps: tuple[Int[np.ndarray, " pair"], Int[np.ndarray, " pair"]]
    """Pairs of units that make steps."""
    linear: Int[np.ndarray, " pair"]
    """The first unit of each pair that is linear."""
    single: Int[np.ndarray, " unit"]
    """All other units."""


def _units(layer: LayerWeights) -> _Units:
    """Return the units of a layer, which has none without a ReLU network."""
    if layer.up is None or layer.down is None:
        none = np.array([], dtype=np.int64)
        return _Units((none, none), none, none)
    up = layer.up.weight
    bias = layer.up.bias[:, None]
    down = layer.down.weight.T
    units = list(range(len(bias)))
    rows = np.hstack([up, bias, down])
    negatives = np.hstack([-up, -bias, -down])
    linear, units = _matched(units, rows, negatives)
    steps, units = _matched(
        units,
        np.hstack([up, down]),
        np.hstack([up, -down]),
    )
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
    """Return pairs of units, and the units without a partner.

    The row of a pair's first unit is the partner row of the second.
    """
    # Adding 0 turns -0 into 0.
    rows = rows + 0.0
    partner_rows = partner_rows + 0.0
    pairs = []
    waiting = dict[bytes, list[int]]()
    for unit in units:
        partners = waiting.get(partner_rows[unit].tobytes())
        if partners:
            pairs.append((partners.pop(), unit))
        else:
            waiting.setdefault(rows[unit].tobytes(), []).append(unit)
    alone = itertools.chain.from_iterable(waiting.values())
    return pairs, sorted(alone)
