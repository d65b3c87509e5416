"""Attention weights as tiles, rows and measures, computed on demand from the queries and keys of a
run.

No matrix is ever held whole: it is computed in *bands* of rows. Of each head an *overview* is kept:
the matrix at level ``COARSE``, where a cell is the largest of 4 x 4 weights, all coarser levels,
and the measures of one pass over the head. Finer tiles are cut from bands, the last few of which
are cached, since neighbouring tiles share them.
"""

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

_FEW = 64
"""Rows that are computed at a time, so that they stay in the processor's cache. A multiple of 4."""

_passing = threading.Lock()
"""Held during a pass over a head: concurrent passes would compete for the cores and take the memory
of all.
"""


class Overview(NamedTuple):
    """A summary of one head; without finite weights only ``levels`` is meaningful, where a cell of
    NaN is NaN.
    """

    levels: tuple[Float[np.ndarray, "_ _"], ...]
    """The matrix at the levels ``COARSE``, ``COARSE + 1`` and so on to a single cell."""
    thumbnail: Float[np.ndarray, "_ _"]
    """The largest weight of each of at most ``THUMBNAIL`` x ``THUMBNAIL`` parts."""
    entropy: float
    """Mean over the queries, in nats; this and the next are 0 if no query has any weight."""
    distance: float
    """Mean distance from a query to its keys, by weight."""
    sink: float
    shares: Float[np.ndarray, " key"]
    """The mean weight of each key, of the queries that see more than one."""
    passed: Float[np.ndarray, " key"] | None
    """The mean share of what is passed on; None where it is unknown."""
    finite: bool


def weights(runs: Runs, ask: AskTile) -> Float[np.ndarray, "row column"]:
    """The requested tile, in float32."""
    kept = runs.of(ask.run)
    stack = kept.layers(ask.part)
    given = stack[_require_index("layer", ask.layer, len(stack))]
    _require_index("head", ask.head, given.q.shape[1])
    queries = given.q.shape[2]
    keys = given.k.shape[2]
    deepest = max(queries, keys, 2) - 1
    if not ask.level <= deepest.bit_length():
        raise InputError(
            got=f"level = {ask.level} of a matrix of {queries} x {keys}",
            expected=f"0 to {deepest.bit_length()}",
            fix="The highest level has one cell.",
        )
    rows, columns = (-(-count // 2**ask.level) for count in (queries, keys))
    if not (ask.row * TILE < rows and ask.column * TILE < columns):
        raise InputError(
            got=f"tile ({ask.row}, {ask.column}) of {rows} x {columns} cells at level {ask.level}",
            expected=f"up to ({(rows - 1) // TILE}, {(columns - 1) // TILE})",
            fix="Ask for tiles within the matrix.",
        )
    across = slice(ask.column * TILE, (ask.column + 1) * TILE)
    if ask.level >= COARSE:
        (overview,) = _overviews(runs, kept, ask, [ask.head])
        return overview.levels[ask.level - COARSE][ask.row * TILE : (ask.row + 1) * TILE, across]
    name = ("band", kept.stamp, ask.model_copy(update={"column": 0}))
    band = runs.derived.get(name)
    if band is None:
        first = ask.row * TILE << ask.level
        some = range(first, min(queries, first + (TILE << ask.level)))
        sizes = None
        if ask.passed:
            sizes = _sizes(kept, ask.part, ask.layer)
        band = np.concatenate([whole[0] for *_, whole in _few_rows(given, [ask.head], some, sizes)])
        for _ in range(ask.level):
            band = halved(band)
        runs.derived.put(name, band, band.nbytes)
    return cast(np.ndarray, band[:, across])


def rows(runs: Runs, ask: AskRows) -> Float[np.ndarray, "layer head key"]:
    """The attention weights of one query in all layers and heads, unless ``ask`` names one, in
    float32.
    """
    kept = runs.of(ask.run)
    stack = kept.layers(ask.part)
    _require_index("query", ask.query, stack[0].q.shape[2])
    layers: Sequence[int]
    if ask.layer is None:
        layers = range(len(stack))
    else:
        layers = [_require_index("layer", ask.layer, len(stack))]
    count = stack[0].q.shape[1]
    heads: Sequence[int]
    if ask.head is None:
        heads = range(count)
    else:
        heads = [_require_index("head", ask.head, count)]
    found = []
    for layer in layers:
        sizes = _sizes(kept, ask.part, layer) if ask.passed else None
        ((*_, whole),) = _few_rows(stack[layer], heads, range(ask.query, ask.query + 1), sizes)
        found.append(whole[:, 0])
    return np.stack(found)


def _sizes(kept: KeptRun, part: Part, layer: int) -> Float[np.ndarray, "head key"]:
    found = kept.sizes[part][layer]
    if found is None:
        got = f"sizes of the values of {kept.message.ask.model!r}, whose output projection is not linear"
        raise InputError(got, "a linear projection", "Ask for weights.")
    return found


def _overviews(runs: Runs, kept: KeptRun, ask: AskTile, heads: Sequence[int]) -> list[Overview]:
    """The overviews of some heads of a layer, from one pass over those that are not cached."""
    names = {
        head: ("overview", ask.run, kept.stamp, ask.part, ask.layer, head, ask.passed)
        for head in heads
    }
    with _passing:
        require_waiting()
        found: dict[int, Any] = {head: runs.derived.get(name) for head, name in names.items()}
        missing = [head for head in heads if found[head] is None]
        if missing:
            given = kept.layers(ask.part)[ask.layer]
            sizes: np.ndarray | None
            if ask.passed:
                sizes = _sizes(kept, ask.part, ask.layer)
            else:
                sizes = kept.sizes[ask.part][ask.layer]
            causal = any(each.causal for each in kept.message.attentions if each.part == ask.part)
            found |= zip(missing, _pass(given, missing, ask, causal, sizes), strict=True)
            for head in missing:
                size = (
                    sum(level.nbytes for level in found[head].levels) + found[head].thumbnail.nbytes
                )
                runs.derived.put(names[head], found[head], size + 2 * found[head].shares.nbytes)
    return [found[head] for head in heads]


def halved(
    matrix: Float[np.ndarray, "*head row column"],
) -> Float[np.ndarray, "*head half_row half_column"]:
    """The next coarser level: the maximum of each 2 x 2 cells, or fewer at an odd edge."""
    rows, columns = matrix.shape[-2:]
    if rows % 2 or columns % 2:
        edges = [(0, 0)] * (matrix.ndim - 2)
        matrix = np.pad(matrix, (*edges, (0, rows % 2), (0, columns % 2)), mode="edge")
    tall = np.maximum(matrix[..., 0::2, :], matrix[..., 1::2, :])
    return np.maximum(tall[..., 0::2], tall[..., 1::2])


def _pass(
    given: Attended,
    heads: Sequence[int],
    ask: AskTile,
    causal: bool,
    sizes: Float[np.ndarray, "all_heads key"] | None,
) -> list[Overview]:
    cross = ask.part == "cross"
    queries = given.q.shape[2]
    keys = given.k.shape[2]
    row_edges = _edges(queries)
    column_edges = _edges(keys)
    thumbnails = np.zeros((len(heads), len(row_edges), len(column_edges)), np.float32)
    coarse = []
    entropies = []
    spans = []
    sinks = []
    alone = int(causal)  # the first query sees one key
    sums = np.zeros((2, len(heads), keys))
    for some, first, seen, whole in _few_rows(given, heads, range(queries)):
        several = slice(max(0, alone - some.start), None)
        sums[0] += whole[:, several].sum(1, dtype=np.float64)
        if sizes is not None:
            portions = _portions(whole, sizes[list(heads)])
            sums[1] += portions[:, several].sum(1, dtype=np.float64)
            whole = portions if ask.passed else whole
        entropies.append(entropy(seen))
        if not cross:
            spans.append(distances(seen, np.arange(some.start, some.stop) - first))
        sinks.append(np.maximum(0.0, 1.0 - seen.sum(-1, dtype=np.float64)))
        parts = np.maximum.reduceat(whole, column_edges, axis=2)
        rows = np.searchsorted(row_edges, np.asarray(some), side="right") - 1
        np.maximum.at(thumbnails.swapaxes(0, 1), rows, parts.swapaxes(0, 1))
        for _ in range(COARSE):
            whole = halved(whole)
        coarse.append(whole)
    levels = [np.concatenate(coarse, 1)]
    while max(levels[-1].shape[1:]) > 1:
        levels.append(halved(levels[-1]))
    bits = np.concatenate(entropies, 1)
    shares = np.concatenate(sinks, 1)
    return [
        Overview(
            # Copies, since a head that stays in the cache must not keep the others.
            tuple(level[at].copy() for level in levels),
            thumbnails[at].copy(),
            _mean(bits[at]),
            0.0 if cross else _mean(np.concatenate([each[at] for each in spans])),
            _mean(shares[at]) if given.sinks is not None else 0.0,
            sums[0, at] / max(1, queries - alone),
            None if sizes is None else sums[1, at] / max(1, queries - alone),
            bool(np.isfinite(levels[-1][at]).all()),
        )
        for at in range(len(heads))
    ]


def _few_rows(
    given: Attended,
    heads: Sequence[int],
    queries: range,
    sizes: Float[np.ndarray, "all_heads key"] | None = None,
) -> Iterator[
    tuple[range, int, Float[np.ndarray, "head query seen"], Float[np.ndarray, "head query key"]]
]:
    """Rows, ``_FEW`` at a time: the first key that they may see, their weights from there, and for
    all keys.

    With ``sizes``, the last are the shares of the products of weights and sizes.
    """
    for start in range(queries.start, queries.stop, _FEW):
        some = range(start, min(queries.stop, start + _FEW))
        found = exact_rows(given, heads, some, ["weights"])
        assert found.weights is not None
        seen = found.weights[0].float().cpu().numpy()
        whole = np.zeros((len(heads), len(some), given.k.shape[2]), np.float32)
        whole[..., found.first : found.first + seen.shape[2]] = seen
        yield (
            some,
            found.first,
            seen,
            whole if sizes is None else _portions(whole, sizes[list(heads)]),
        )


def _portions(
    weights: Float[np.ndarray, "head query key"], sizes: Float[np.ndarray, "head key"]
) -> Float[np.ndarray, "head query key"]:
    """The share of each key in the sum over keys of weight times size; 0 where the sum is, or the
    weight.
    """
    is_read = weights != 0
    products = np.multiply(weights, sizes[:, None], out=np.zeros_like(weights), where=is_read)
    sums = products.sum(-1, keepdims=True)
    return np.divide(products, sums, out=np.zeros_like(products), where=is_read & (sums != 0))


def _edges(count: int) -> np.ndarray:
    """The starts of at most ``THUMBNAIL`` parts of nearly equal size."""
    parts = min(count, THUMBNAIL)
    return np.arange(parts) * count // parts


def _most_read(of: Overview) -> int:
    return int((of.shares >= of.shares.max() - 1e-4).argmax())  # of those about as large the first


def _passed(of: Overview) -> float | None:
    assert of.passed is not None
    share = float(of.passed[_most_read(of)])
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
    """Mean entropy, distance and sink weight of every head, the key that most of its attention
    rests on, and its thumbnail, from one pass over each head.

    Entropy and distance are those of :mod:`glassformer.observe.attention_measures`: of each row
    divided by its sum, so that the sink is excluded. A head whose queries see no key has 0 in all,
    one with weights that are not finite None and an empty thumbnail.
    """
    run = runs.of(ask.run)
    stack = run.layers(ask.part)
    heads = range(stack[0].q.shape[1])
    lock = runs.model(run.message.ask.model).lock
    found = list[list[Overview]]()
    for layer in range(len(stack)):
        with lock:  # what a reader waits for computes first
            pass
        found.append(
            _overviews(runs, run, AskTile(run=ask.run, part=ask.part, layer=layer, head=0), heads)
        )

    def where_finite(value: Callable[[Overview], Any], otherwise: Any = None) -> list[list[Any]]:
        return [[value(each) if each.finite else otherwise for each in row] for row in found]

    return Measures(
        entropy=where_finite(lambda each: each.entropy / math.log(2)),
        distance=None if ask.part == "cross" else where_finite(lambda each: each.distance),
        sink=where_finite(lambda each: each.sink)
        if any(given.sinks is not None for given in stack)
        else None,
        most_read=where_finite(lambda each: _most_read(each), 0),
        on_one=where_finite(lambda each: float(each.shares.max())),
        passed=None
        if any(each.passed is None for row in found for each in row)
        else where_finite(_passed),
        # A thumbnail's colours resolve fewer than four digits.
        thumbnails=where_finite(lambda each: each.thumbnail.round(4).tolist(), []),
    )
