r"""Upper bounds on the error of a head's outputs, from its scores and values alone.

One query, its keys j with scores s_j and values v_j, and the target t. The keys S are wanted, the
others U are not. The weights w are the softmax of s; restricted to S they are p = w_S / w(S). For
each coordinate::

    sum_j w_j v_j - t  =  w(S) (sum_S p_j v_j - t)  +  sum_U w_j (v_j - t)

1. *Leakage.* With the margin ``m = max_S s - max_U s``, the wanted keys' exponentials add up to at
   least ``exp(max_S s)`` and the others' to at most ``|U| exp(max_U s)``, so
   ``w(U) <= |U| e^-m / (1 + |U| e^-m)``. With n keys this is below ``(n - 1) e^-m``.
2. *Unevenness.* Equal scores within S give the plain mean. If they spread over
   ``d = max_S s - min_S s``, the total variation between p and uniform weights is at most
   ``tanh(d / 4)``: with a share a of the keys at the top score and the rest at the lowest it is
   ``a (1 - a)(e^d - 1) / (1 + a (e^d - 1))``, which is largest at ``a = 1 / (1 + e^(d/2))``. A
   mean moves by at most the total variation times the range of the values.

Together, with the error of an even mean ``r = |mean_S v - t|``::

    |error| <= r + tanh(d / 4) range_S(v) + w(U) max_U |v - t|

*Rounding.* With unit roundoff u, N successive roundings change a sum, in any order, by at most
``gamma(N, u) = N u / (1 - N u)`` times the sum of its absolute terms (Higham 2002, section 3.1).
Let A be the largest sum of absolute products in a score, B the largest in a value. Exponentials are
taken to be exact to 20 units in the last place (40 u), as PyTorch's fast float32 exponential is;
factors, products and sums below the normal numbers may be taken as 0. Fused kernels take keys in
tiles, of 32 keys at least: each tile after the first multiplies both sums by an exponential.

- A score takes ``inputs`` roundings each for key and query, ``qk_dim`` for their product, and at
  most 8 for the scale and the subtraction of the maximum. Each tile after the first subtracts two
  maxima more, and its exponential and two products act as an error of the earlier tiles' scores.
  With T such tiles the error of a difference of two scores is at most
  ``2 gamma(2 inputs + qk_dim + 8 + 2 T) A + 2 gamma(42 T)`` in the head (with its u), and again in
  the float64 tables used here: m shrinks and d grows by the sum of both.
- An output takes ``inputs`` roundings for a value, n - 1 for the sum of the exponentials, n for the
  weighted sum, 40 for the exponentials and at most 8 for the rest: ``gamma(2 n + inputs + 48) B``
  in the head, and again in the tables, where the mean of n differences ``v - t``, each within 2 B
  of that mean, takes the 2 n.
- The other float64 operations have an error proportional to the bound; it is multiplied by
  ``1 + gamma(2 n + inputs + 48)``.

*Pairs instead of sequences.* A score depends on the query's place and the key's place (a place is a
token at a position), and so do tiers and values. For each query place and each tier that can be the
highest one in its sequence, let S be any of the tier's places and U any n - 1 of lower tiers. The
bound over all of these covers every sequence without listing them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from glassformer.errors import InputError
from glassformer.handcraft.circuits import place_inputs, possible_pairs
from glassformer.handcraft.description import Description
from glassformer.handcraft.sequences import SequenceSpace
from glassformer.handcraft.single_head import HeadWeights
from glassformer.handcraft.tasks import Queries
from glassformer.layers.blocks import Block, is_watched
from glassformer.layers.feedforward import MLP, Linear, NoFeedForward, SwiGLU
from glassformer.layers.grouped_query import GroupedQueryAttention
from glassformer.layers.norms import RMSNorm
from glassformer.layers.positions import RotaryEmbedding

_NUMBERS_AT_ONCE = 1 << 15
_REBUILD = "Compile, build or load it again."
FLOAT64_ROUNDOFF = float(np.finfo(np.float64).eps) / 2


class Bound(NamedTuple):
    """The consequences of a head's scores and values."""

    margin: float
    """Smallest lead of a query's best wanted score over its best unwanted one; infinite if none."""
    error: float
    """Largest distance of an output from its target."""


@dataclass(frozen=True, eq=False)
class PlaceTables:
    """The scores of all pairs of places and the values of all places, with their rounding errors.

    Attributes:
        score_rounding: Largest rounding error of a difference of two scores, in the head and in
            these tables.
        value_rounding: Largest rounding error of an output, apart from that of its scores.
        bound_rounding: Largest relative rounding error of a bound computed from these tables.
        largest: The largest sums of absolute products in a query or key, in a score before it is
            scaled, and in a sum of all values.
    """

    scores: Float[np.ndarray, "query key"]
    values: Float[np.ndarray, "place v_dim"]
    score_rounding: float
    value_rounding: float
    bound_rounding: float
    largest: tuple[float, float, float]

    @classmethod
    def of(cls, head: HeadWeights, space: SequenceSpace, roundoff: float) -> PlaceTables:
        """Return the tables of a head that runs with this unit roundoff, for all places."""
        x = place_inputs(head, space)
        scale = 1 / math.sqrt(head.qk_dim)
        n = space.num_positions
        tiny = smallest_normal(roundoff)
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            scores = (x @ head.Qm) @ (x @ head.Km).T * scale
            query_sums = np.abs(x) @ np.abs(head.Qm)
            key_sums = np.abs(x) @ np.abs(head.Km)
            largest_product = float(query_sums.max(axis=0) @ key_sums.max(axis=0))
            values = x @ head.Vm
            largest_value = float((np.abs(x) @ np.abs(head.Vm)).max())
            lost_query = lost_below(tiny, x, head.Qm).max(axis=0)
            lost_key = lost_below(tiny, x, head.Km).max(axis=0)
            lost = float(
                lost_query @ key_sums.max(axis=0)
                + query_sums.max(axis=0) @ lost_key
                + lost_query @ lost_key
            )
            lost_value = float(lost_below(tiny, x, head.Vm).max()) + tiny * n * (1 + largest_value)
        largest_vector = float(np.maximum(query_sums.max(), key_sums.max()))
        inputs = x.shape[1]
        largest_score = largest_product * scale
        tiles = later_tiles(n)
        in_score = 2 * inputs + head.qk_dim + 8 + 2 * tiles
        in_output = 2 * n + inputs + 48

        def both(roundings: int) -> float:
            """Return the relative rounding in the head and in these tables."""
            return gamma(roundings, roundoff) + gamma(roundings, FLOAT64_ROUNDOFF)

        in_one_score = (
            both(in_score) * largest_score
            + gamma(42 * tiles, roundoff)
            + scale * (lost + tiny * head.qk_dim)
        )
        return cls(
            scores,
            values,
            score_rounding=2 * in_one_score,
            value_rounding=both(in_output) * largest_value + lost_value,
            bound_rounding=gamma(in_output, FLOAT64_ROUNDOFF),
            largest=(largest_vector, largest_product, largest_value * n),
        )

    def bound(self, margins: Sequence[float], errors: Sequence[float]) -> Bound:
        """Return the smallest margin and the largest error, rounding included.

        NaN stays NaN, so that it proves nothing.
        """
        error = float(np.max(errors)) * (1 + self.bound_rounding) + self.value_rounding
        return Bound(float(np.min(margins)), error)


_KINDS = (
    *(nn.ModuleList, nn.Identity, nn.Linear, nn.Embedding, Linear, RMSNorm, RotaryEmbedding),
    *(Block, GroupedQueryAttention, NoFeedForward, MLP, SwiGLU),
)
"""Modules whose computation the proofs follow."""


def require_as_built(
    model: nn.Module, kind: type[nn.Module], most: float = math.inf, like: nn.Module | None = None
) -> None:
    """Refuse a model that may compute anything but a ``kind`` with its weights.

    Every proof about a model calls it first.

    Args:
        most: The largest absolute value of a weight.
        like: A new model of the same sizes, whose modules have the expected settings.

    Raises:
        InputError: Another class of the model or of a module in it, or other settings; a hook or an
            edit, dropout, an embedding that changes its rows; a weight that is not finite, or above
            ``most``. All are named.
    """
    _require_modules(model, kind)
    if is_watched(model):
        raise InputError(
            got="a model with hooks, or within edits",
            expected="the model alone",
            fix="Verify it outside.",
        )
    if like is not None:
        _require_settings(model, kind, like)
    _require_weights(model, most)


def _require_modules(model: nn.Module, kind: type[nn.Module]) -> None:
    """Refuse modules of other classes, dropout, and embeddings that change their rows."""
    if type(model) is not kind:
        raise InputError(
            got=f"a model of type {type(model).__name__}",
            expected=kind.__name__,
            fix=_REBUILD,
        )
    for name, module in model.named_modules():
        if module is not model and type(module) not in _KINDS:
            raise InputError(
                got=f"{name} of type {type(module).__name__}",
                expected="modules as they were built",
                fix=_REBUILD,
            )
        drops = module.training and getattr(module, "dropout", 0.0) > 0
        if drops or getattr(module, "max_norm", None) is not None:
            raise InputError(
                got=f"{name} with dropout, or with max_norm",
                expected="neither of these",
                fix="Call model.eval().",
            )


def _require_settings(model: nn.Module, kind: type[nn.Module], like: nn.Module) -> None:
    """Refuse a model whose modules have other settings than those of ``like``."""
    expected = {name: _settings(module) for name, module in like.named_modules()}
    settings = {name: _settings(module) for name, module in model.named_modules()}
    names = settings.keys() | expected.keys()
    changed = sorted(name for name in names if settings.get(name) != expected.get(name))
    if changed:
        raise InputError(
            got=f"settings of {', '.join(name or 'the model' for name in changed[:3])}",
            expected=f"those of a new {kind.__name__}",
            fix=_REBUILD,
        )


def _require_weights(model: nn.Module, most: float) -> None:
    """Refuse weights that are not finite, or larger than ``most``."""
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise InputError(
                got=f"{name} with numbers that are not finite",
                expected="finite weights",
                fix=_REBUILD,
            )
        size = float(tensor.abs().max()) if tensor.numel() else 0.0
        if not (size <= most):
            raise InputError(
                got=f"{name} with numbers up to {size:.3g}",
                expected=f"at most {most:g}",
                fix=_REBUILD,
            )


def _settings(module: nn.Module) -> dict[str, str]:
    """Return what a module computes with besides parameters and buffers, in words.

    Values such as patterns are compared by these words, because they have no equality.
    """
    of_every_module = vars(nn.Module())
    settings = {"type": repr(type(module))}
    for name, value in vars(module).items():
        if name not in of_every_module:
            settings[name] = repr(value.tolist() if isinstance(value, Tensor) else value)
    return settings


def gamma(roundings: int, roundoff: float) -> float:
    """Return the largest relative effect of so many roundings in a row: ``N u / (1 - N u)``.

    It is infinite if N u reaches 1.
    """
    total = roundings * roundoff
    return total / (1 - total) if total < 1 else math.inf


def smallest_normal(roundoff: float) -> float:
    """Return the smallest normal number of float64, or of float32 if the roundoff is larger."""
    if roundoff <= FLOAT64_ROUNDOFF:
        return float(np.finfo(np.float64).tiny)
    return float(np.finfo(np.float32).tiny)


def later_tiles(keys: Any) -> Any:
    """Return the number of tiles after the first, where a fused kernel takes 32 keys at a time."""
    return (keys - 1) // 32


def lost_below(
    tiny: float, x: Float[np.ndarray, "place inputs"], matrix: Float[np.ndarray, "inputs columns"]
) -> Float[np.ndarray, "place columns"]:
    """Return the error of ``x @ matrix`` if numbers below ``tiny`` are taken as 0.

    The numbers are factors, products and sums.
    """
    x = np.abs(x)
    matrix = np.abs(matrix)
    below_x = np.where(x < tiny, x, 0.0)
    below_matrix = np.where(matrix < tiny, matrix, 0.0)
    return x @ below_matrix + below_x @ matrix + tiny * (len(matrix) + 1)


def leakage(
    margin: Float[np.ndarray, "..."], others: Int[np.ndarray, "..."]
) -> Float[np.ndarray, "..."]:
    """Return the largest joint weight of ``others`` keys, all at least ``margin`` below one."""
    with np.errstate(divide="ignore", over="ignore"):
        return np.asarray(1 / (1 + np.exp(margin) / others))


def bound_of_queries(tables: PlaceTables, queries: Queries) -> Bound:
    """Return the bound for listed queries, from the scores of each."""
    # Pieces that stay in the processor's cache.
    step = max(1, _NUMBERS_AT_ONCE // (len(queries.keys) * len(queries.target)))
    margins = []
    errors = []
    for start in range(0, len(queries.place), step):
        piece = Queries(*(array[..., start : start + step] for array in queries))
        margin, error = _margin_and_error(tables, piece)
        margins.append(margin)
        errors.append(error)
    return tables.bound(margins, errors)


def _margin_and_error(tables: PlaceTables, queries: Queries) -> tuple[float, float]:
    """Return the smallest margin and the largest error of some queries."""
    place, keys, selected, others, target = queries
    scores = tables.scores.ravel().take(place * len(tables.scores) + keys)
    best = np.where(selected, scores, -np.inf).max(axis=0)
    worst = np.where(selected, scores, np.inf).min(axis=0)
    margin = best - np.where(others, scores, -np.inf).max(axis=0)
    spread = best - worst
    leaked = leakage(margin - tables.score_rounding, others.sum(axis=0))
    uneven = np.tanh((spread + tables.score_rounding) / 4)
    # Products with 0 and 1 leave out keys faster than np.where does.
    difference = tables.values.T.take(keys, axis=1) - target[:, None]
    on_selected = difference * selected.astype(float)
    missed = np.abs(on_selected.sum(axis=1)) / selected.sum(axis=0)
    # Unwanted keys count as 0 here: a mean that is missed lies to one side of it, and the range
    # only grows.
    span = on_selected.max(axis=1) - on_selected.min(axis=1)
    distance = np.abs(difference * others.astype(float)).max(axis=1)
    return float(margin.min()), float((missed + uneven * span + leaked * distance).max())


@np.errstate(over="ignore", invalid="ignore")
def bound_of_pairs(tables: PlaceTables, description: Description) -> Bound:
    """Return the bound for every sequence of the description's space, from pairs of places.

    The module's docstring has the proof.
    """
    ideal = description.place_values
    values = tables.values
    rounding = tables.score_rounding
    others = np.array(description.space.num_positions - 1)
    margins = []
    errors = []
    for case in tier_cases(description.space, description.table.tiers, tables.scores):
        selected = values[case.selected]
        lower = values[case.lower]
        missed = np.abs(selected - ideal[case.selected]).max(axis=0)
        span = selected.max(axis=0) - selected.min(axis=0)
        low = ideal[case.selected].min(axis=0)
        high = ideal[case.selected].max(axis=0)
        above = lower.max(axis=0, initial=-np.inf) - low
        below = high - lower.min(axis=0, initial=np.inf)
        distance = np.maximum(np.maximum(above, below), 0.0)
        leaked = leakage(case.margin - rounding, others)
        uneven = np.tanh((case.spread + rounding) / 4)
        margins.append(float(case.margin.min()))
        errors.append(float((missed + uneven[:, None] * span + leaked[:, None] * distance).max()))
    return tables.bound(margins, errors)


class TierCase(NamedTuple):
    """Some query places that have the same tier as their highest.

    Attributes:
        selected: The places of the tier.
        lower: The places of lower tiers.
        margin: The lowest score of the tier less the highest of lower tiers, for each query;
            infinite if there are no lower ones.
        spread: The highest score of the tier less its lowest, for each query.
    """

    queries: Int[np.ndarray, " query"]
    selected: Bool[np.ndarray, " place"]
    lower: Bool[np.ndarray, " place"]
    margin: Float[np.ndarray, " query"]
    spread: Float[np.ndarray, " query"]


def tier_cases(
    space: SequenceSpace,
    tiers: Int[np.ndarray, "query key"],
    scores: Float[np.ndarray, "query key"],
) -> Iterator[TierCase]:
    """Yield every tier that can be the highest one of a judged query.

    Queries with the same tiers for all keys are in one case.
    """
    possible = possible_pairs(space)
    highest = np.where(possible, scores, -np.inf)
    lowest = np.where(possible, scores, np.inf)
    floors = lowest_best_tier(space, tiers)
    groups: dict[bytes, list[int]] = {}
    for query in range(int(space.has_cls), len(tiers)):
        groups.setdefault(tiers[query].tobytes(), []).append(query)
    for group in groups.values():
        row = tiers[group[0]]
        for tier in np.unique(row).tolist():
            selected = row == tier
            lower = row < tier
            queries = np.array([query for query in group if floors[query] <= tier], dtype=np.int64)
            queries = queries[possible[np.ix_(queries, selected)].any(axis=1)]
            if not len(queries):
                continue
            top = highest[np.ix_(queries, selected)].max(axis=1)
            bottom = lowest[np.ix_(queries, selected)].min(axis=1)
            below = highest[np.ix_(queries, lower)].max(axis=1, initial=-np.inf)
            yield TierCase(queries, selected, lower, bottom - below, top - bottom)


def lowest_best_tier(
    space: SequenceSpace, tiers: Int[np.ndarray, "query key"]
) -> Int[np.ndarray, " query"]:
    """Return a tier that some key of each query's sequence is sure to reach.

    The other letters of the sequence do not matter: a query meets itself, CLS where there is one,
    and some letter at every earlier position.
    """
    _, positions = space.places
    first = int(space.has_cls)
    certain = np.diagonal(tiers)
    if space.has_cls:
        certain = np.maximum(certain, tiers[:, 0])
    worst = tiers[:, first:].reshape(len(tiers), space.max_len, len(space.letters)).min(axis=2)
    before = np.arange(first, space.num_positions) < positions[:, None]
    return np.asarray(np.maximum(certain, np.where(before, worst, -1).max(axis=1)))
