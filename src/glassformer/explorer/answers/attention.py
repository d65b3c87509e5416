"""Compute attention weights as tiles, rows and measures from the queries and keys of a run.

A matrix is never held whole: it is computed in *bands* of rows. Each head has an *overview*: the
matrix at level ``COARSE``, where a cell is the largest of 4 x 4 weights, all coarser levels, and
the measures of one pass over the head. Finer tiles are cut from bands. The last few bands are
cached, since neighbouring tiles share them.
"""

import itertools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from jaxtyping import Float

from glassformer.errors import InputError
from glassformer.explorer.answers.forward import KeptRun
from glassformer.explorer.answers.runs import Runs
from glassformer.explorer.api import UnknownName, require_waiting
from glassformer.explorer.messages import (
    THUMBNAIL,
    TILE,
    AskMeasures,
    AskRows,
    AskTile,
    Measures,
    Part,
)
from glassformer.layers.attention import Attended
from glassformer.observe.attention_measures import distances, entropy
from glassformer.observe.exact_attention import exact_rows

COARSE = 2
"""The finest level of an overview."""

_BLOCK = 64
"""Number of rows computed at a time, which fit in the processor's cache. A multiple of 4."""

_passing = threading.Lock()
"""Lock held during a pass over a head.

Concurrent passes would compete for the cores, and their memory would add up.
"""


class Overview(NamedTuple):
    """Summary of one head. If its weights are not finite, only ``levels`` is meaningful."""

    levels: tuple[Float[np.ndarray, "_ _"], ...]
    """Matrix at the levels ``COARSE``, ``COARSE + 1`` and so on to a single cell."""
    thumbnail: Float[np.ndarray, "_ _"]
    """Largest weight of each of at most ``THUMBNAIL`` x ``THUMBNAIL`` parts."""
    entropy: float
    """Mean over the queries, in nats; 0 if no query has any weight."""
    distance: float
    """Mean distance from a query to its keys, by weight; 0 if no query has any weight."""
    sink: float
    shares: Float[np.ndarray, " key"]
    """Mean weight of each key, over the queries that see more than one key."""
    passed: Float[np.ndarray, " key"] | None
    """Mean share of each key in what is passed on; None if unknown."""
    finite: bool


def weights(runs: Runs, ask: AskTile) -> Float[np.ndarray, "row column"]:
    """Return the requested tile in float32."""
    run = runs.of(ask.run)
    stack = run.layers(ask.part)
    layer = stack[_require_index("layer", ask.layer, len(stack))]
    _require_index("head", ask.head, layer.q.shape[1])
    queries = layer.q.shape[2]
    keys = layer.k.shape[2]
    deepest = max(queries, keys, 2) - 1
    if ask.level > deepest.bit_length():
        raise InputError(
            got=f"level = {ask.level} of a matrix of {queries} x {keys}",
            expected=f"0 to {deepest.bit_length()}",
            fix="The highest level has one cell.",
        )
    rows, columns = (-(-count // 2**ask.level) for count in (queries, keys))
    if ask.row * TILE >= rows or ask.column * TILE >= columns:
        raise InputError(
            got=f"tile ({ask.row}, {ask.column}) of {rows} x {columns} cells at level {ask.level}",
            expected=f"up to ({(rows - 1) // TILE}, {(columns - 1) // TILE})",
            fix="Ask for tiles within the matrix.",
        )
    column_slice = slice(ask.column * TILE, (ask.column + 1) * TILE)
    if ask.level >= COARSE:
        (overview,) = _overviews(runs, run, ask, [ask.head])
        row_slice = slice(ask.row * TILE, (ask.row + 1) * TILE)
        return overview.levels[ask.level - COARSE][row_slice, column_slice]
    key = ("band", run.stamp, ask.model_copy(update={"column": 0}))
    band = runs.derived.get(key)
    if band is None:
        first = ask.row * TILE << ask.level
        queries_read = range(first, min(queries, first + (TILE << ask.level)))
        sizes = None
        if ask.passed:
            sizes = _sizes(run, ask.part, ask.layer)
        blocks = _row_blocks(layer, [ask.head], queries_read, sizes)
        band = np.concatenate([cells[0] for *_, cells in blocks])
        for _ in range(ask.level):
            band = halved(band)
        runs.derived.put(key, band, band.nbytes)
    return cast(np.ndarray, band[:, column_slice])


def rows(runs: Runs, ask: AskRows) -> Float[np.ndarray, "layer head key"]:
    """Return the attention weights of one query in float32.

    They cover all layers and heads, unless ``ask`` names a layer or a head.
    """
    run = runs.of(ask.run)
    stack = run.layers(ask.part)
    _require_index("query", ask.query, stack[0].q.shape[2])
    layers: Sequence[int]
    if ask.layer is None:
        layers = range(len(stack))
    else:
        layers = [_require_index("layer", ask.layer, len(stack))]
    num_heads = stack[0].q.shape[1]
    heads: Sequence[int]
    if ask.head is None:
        heads = range(num_heads)
    else:
        heads = [_require_index("head", ask.head, num_heads)]
    layer_rows = []
    for layer in layers:
        sizes = None
        if ask.passed:
            sizes = _sizes(run, ask.part, layer)
        ((*_, row_weights),) = _row_blocks(
            stack[layer], heads, range(ask.query, ask.query + 1), sizes
        )
        layer_rows.append(row_weights[:, 0])
    return np.stack(layer_rows)


def _sizes(run: KeptRun, part: Part, layer: int) -> Float[np.ndarray, "head key"]:
    sizes = run.sizes[part][layer]
    if sizes is None:
        model = run.message.ask.model
        raise InputError(
            got=f"sizes of the values of {model!r}, whose output projection is not linear",
            expected="a linear projection",
            fix="Ask for weights.",
        )
    return sizes


def _overviews(runs: Runs, run: KeptRun, ask: AskTile, heads: Sequence[int]) -> list[Overview]:
    """Return the overviews of some heads of a layer; one pass computes those not in the cache."""
    names = {
        head: ("overview", ask.run, run.stamp, ask.part, ask.layer, head, ask.passed)
        for head in heads
    }
    with _passing:
        require_waiting()
        overviews: dict[int, Any] = {head: runs.derived.get(name) for head, name in names.items()}
        missing = [head for head in heads if overviews[head] is None]
        if missing:
            layer = run.layers(ask.part)[ask.layer]
            sizes: np.ndarray | None
            if ask.passed:
                sizes = _sizes(run, ask.part, ask.layer)
            else:
                sizes = run.sizes[ask.part][ask.layer]
            causal = any(
                attention.causal
                for attention in run.message.attentions
                if attention.part == ask.part
            )
            overviews |= zip(missing, _pass(layer, missing, ask, causal, sizes), strict=True)
            for head in missing:
                overview = overviews[head]
                size = sum(level.nbytes for level in overview.levels)
                size += overview.thumbnail.nbytes + 2 * overview.shares.nbytes
                runs.derived.put(names[head], overview, size)
    return [overviews[head] for head in heads]


def halved(
    matrix: Float[np.ndarray, "*head row column"],
) -> Float[np.ndarray, "*head half_row half_column"]:
    """Return the next coarser level: the maximum of each 2 x 2 cells, or fewer at an odd edge."""
    rows, columns = matrix.shape[-2:]
    if rows % 2 or columns % 2:
        edges = [(0, 0)] * (matrix.ndim - 2)
        matrix = np.pad(matrix, (*edges, (0, rows % 2), (0, columns % 2)), mode="edge")
    tall = np.maximum(matrix[..., 0::2, :], matrix[..., 1::2, :])
    return np.maximum(tall[..., 0::2], tall[..., 1::2])


def _pass(
    layer: Attended,
    heads: Sequence[int],
    ask: AskTile,
    causal: bool,
    sizes: Float[np.ndarray, "all_heads key"] | None,
) -> list[Overview]:
    """Compute the overviews of some heads in one pass over the rows of their matrices."""
    cross = ask.part == "cross"
    queries = layer.q.shape[2]
    keys = layer.k.shape[2]
    row_edges = _edges(queries)
    column_edges = _edges(keys)
    thumbnails = np.zeros((len(heads), len(row_edges), len(column_edges)), np.float32)
    coarse = []
    entropies = []
    spans = []
    sinks = []
    alone = int(causal)  # the first query sees one key
    sums = np.zeros((2, len(heads), keys))
    for block, first_key, block_weights, cells in _row_blocks(layer, heads, range(queries)):
        several = slice(max(0, alone - block.start), None)
        sums[0] += cells[:, several].sum(1, dtype=np.float64)
        if sizes is not None:
            portions = _portions(cells, sizes[list(heads)])
            sums[1] += portions[:, several].sum(1, dtype=np.float64)
            if ask.passed:
                cells = portions
        entropies.append(entropy(block_weights))
        if not cross:
            spans.append(distances(block_weights, np.arange(block.start, block.stop) - first_key))
        sinks.append(np.maximum(0.0, 1.0 - block_weights.sum(-1, dtype=np.float64)))
        part_maxima = np.maximum.reduceat(cells, column_edges, axis=2)
        rows = np.searchsorted(row_edges, np.asarray(block), side="right") - 1
        np.maximum.at(thumbnails.swapaxes(0, 1), rows, part_maxima.swapaxes(0, 1))
        for _ in range(COARSE):
            cells = halved(cells)
        coarse.append(cells)
    levels = [np.concatenate(coarse, 1)]
    while max(levels[-1].shape[1:]) > 1:
        levels.append(halved(levels[-1]))
    nats = np.concatenate(entropies, 1)
    sink_weights = np.concatenate(sinks, 1)
    counted = max(1, queries - alone)
    overviews = []
    for index in range(len(heads)):
        distance = 0.0
        if not cross:
            distance = _mean(np.concatenate([span[index] for span in spans]))
        overviews.append(
            Overview(
                # Copies, since a head that stays in the cache must not keep the others.
                levels=tuple(level[index].copy() for level in levels),
                thumbnail=thumbnails[index].copy(),
                entropy=_mean(nats[index]),
                distance=distance,
                sink=0.0 if layer.sinks is None else _mean(sink_weights[index]),
                shares=sums[0, index] / counted,
                passed=None if sizes is None else sums[1, index] / counted,
                finite=bool(np.isfinite(levels[-1][index]).all()),
            )
        )
    return overviews


def _row_blocks(
    layer: Attended,
    heads: Sequence[int],
    queries: range,
    sizes: Float[np.ndarray, "all_heads key"] | None = None,
) -> Iterator[
    tuple[range, int, Float[np.ndarray, "head query seen"], Float[np.ndarray, "head query key"]]
]:
    """Yield ``_BLOCK`` rows at a time.

    A block has its queries, the first key that they may see, their weights from that key on, and
    their cells for all keys. A cell is a weight or, with ``sizes``, the share of a key in the sum
    of weights times sizes.
    """
    for start in range(queries.start, queries.stop, _BLOCK):
        block = range(start, min(queries.stop, start + _BLOCK))
        computed = exact_rows(layer, heads, block, ["weights"])
        assert computed.weights is not None
        weights = computed.weights[0].float().cpu().numpy()
        cells = np.zeros((len(heads), len(block), layer.k.shape[2]), np.float32)
        cells[..., computed.first : computed.first + weights.shape[2]] = weights
        if sizes is not None:
            cells = _portions(cells, sizes[list(heads)])
        yield block, computed.first, weights, cells


def _portions(
    weights: Float[np.ndarray, "head query key"], sizes: Float[np.ndarray, "head key"]
) -> Float[np.ndarray, "head query key"]:
    """Return the share of each key in the sum over keys of weight times size.

    A share is 0 where the weight or the sum is 0.
    """
    is_read = weights != 0
    products = np.multiply(weights, sizes[:, None], out=np.zeros_like(weights), where=is_read)
    sums = products.sum(-1, keepdims=True)
    return np.divide(products, sums, out=np.zeros_like(products), where=is_read & (sums != 0))


def _edges(count: int) -> np.ndarray:
    """Return the starts of at most ``THUMBNAIL`` parts of nearly equal size."""
    parts = min(count, THUMBNAIL)
    return np.arange(parts) * count // parts


def _most_read(overview: Overview) -> int:
    """Return the key with the largest mean weight; the first one if several are about as large."""
    return int((overview.shares >= overview.shares.max() - 1e-4).argmax())


def _passed(overview: Overview) -> float | None:
    assert overview.passed is not None
    share = float(overview.passed[_most_read(overview)])
    return share if math.isfinite(share) else None


def _mean(values: Float[np.ndarray, " query"]) -> float:
    counted = values[~np.isnan(values)]
    return float(counted.mean()) if counted.size else 0.0


def _require_index(name: str, index: int, count: int) -> int:
    if not 0 <= index < count:
        raise UnknownName(
            f"{name} = {index}", f"0 to {count - 1}", "See the attentions of the run."
        )
    return index


def measures(runs: Runs, ask: AskMeasures) -> Measures:
    """Return the measures of every head, from one pass over each head.

    They are the mean entropy, distance and sink weight, the key with most of the attention, and the
    thumbnail. :mod:`glassformer.observe.attention_measures` defines entropy and distance on rows
    divided by their sums, so that the sink is excluded. A head whose queries see no key has 0
    everywhere. A head whose weights are not finite has None and an empty thumbnail.
    """
    run = runs.of(ask.run)
    stack = run.layers(ask.part)
    heads = range(stack[0].q.shape[1])
    lock = runs.model(run.message.ask.model).lock
    overviews = list[list[Overview]]()
    for layer in range(len(stack)):
        with lock:  # let a request that holds the model finish first
            pass
        overviews.append(
            _overviews(runs, run, AskTile(run=ask.run, part=ask.part, layer=layer, head=0), heads)
        )

    def where_finite(value: Callable[[Overview], Any], otherwise: Any = None) -> list[list[Any]]:
        return [
            [value(overview) if overview.finite else otherwise for overview in layer_overviews]
            for layer_overviews in overviews
        ]

    distance = None
    if ask.part != "cross":
        distance = where_finite(lambda overview: overview.distance)
    sink = None
    if any(layer.sinks is not None for layer in stack):
        sink = where_finite(lambda overview: overview.sink)
    passed = None
    if all(overview.passed is not None for overview in itertools.chain(*overviews)):
        passed = where_finite(_passed)
    return Measures(
        entropy=where_finite(lambda overview: overview.entropy / math.log(2)),
        distance=distance,
        sink=sink,
        most_read=where_finite(_most_read, 0),
        on_one=where_finite(lambda overview: float(overview.shares.max())),
        passed=passed,
        # A thumbnail's colours resolve fewer than four digits.
        thumbnails=where_finite(lambda overview: overview.thumbnail.round(4).tolist(), []),
    )
