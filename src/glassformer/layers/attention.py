"""The single entry point of attention, :func:`attend`, and its watchers and editors."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor

from glassformer.errors import InputError, require_probability
from glassformer.kernels import attention as kernel
from glassformer.kernels.pattern import FULL, Pattern
from glassformer.layers.opened import all_entries, entries, opened


class Rewrite(NamedTuple):
    """A change of the scores or the weights of some heads, whose matrix is then in memory."""

    kind: Literal["scores", "weights"]
    heads: tuple[int, ...]
    function: Callable[[Tensor], Tensor | None]
    """Returns the new matrix [batch, head, query, key] of these heads from the old one.

    It is computed in float32 or wider, and must not change its argument.
    """
    may_keep: bool = False
    """The function may return None, which keeps the matrix."""


@dataclass(frozen=True, eq=False)
class Attended:
    """The arguments of one attention: those of :func:`attend`, and additions of editors.

    ``scale`` is a number here.
    """

    q: Float[Tensor, "batch head query head_dim"]
    k: Float[Tensor, "batch kv_head key head_dim"]
    v: Float[Tensor, "batch kv_head key value_dim"]
    scale: float
    pattern: Pattern = FULL
    key_weights: Float[Tensor, " head"] | None = None
    sinks: Float[Tensor, " head"] | None = None
    mask: Shaped[Tensor, "#batch #head #query key"] | None = None
    """A further restriction: booleans, True = may attend, or numbers that are added to the scores.

    Models of transformers pass numbers.
    """
    rewrites: tuple[Rewrite, ...] = ()
    cap: float | None = None
    forbidden: Shaped[Tensor, "#batch #head #query #key"] | None = None
    """Pairs that an editor forbids. They are part of the mask too.

    Rewritten weights may not differ from 0 there.
    """

    @property
    def group(self) -> int:
        """Query heads for each key-value head."""
        return self.q.shape[1] // self.k.shape[1]


Watcher = Callable[[Attended], None]
Editor = Callable[[Attended], Attended]


@dataclass(frozen=True, eq=False)
class Watching:
    """An open block of :func:`watching`."""

    watcher: Watcher


@dataclass(frozen=True, eq=False)
class Editing:
    """An open block of :func:`editing`."""

    editor: Editor


def watching(watcher: Watcher) -> AbstractContextManager[None]:
    """Call ``watcher`` with the arguments of each call of :func:`attend`, before it is computed.

    This applies to the ``with`` block and its thread. Calls in code that ``torch.compile`` has
    compiled are not watched.
    """
    return opened(Watching(watcher))


def editing(editor: Editor) -> AbstractContextManager[None]:
    """Replace the arguments of each call of :func:`attend` by what ``editor`` returns.

    Watchers see the new arguments. Editors of inner blocks come last. Blocks apply as those of
    :func:`watching`.
    """
    return opened(Editing(editor))


def attend(
    q: Float[Tensor, "batch head query head_dim"],
    k: Float[Tensor, "batch kv_head key head_dim"],
    v: Float[Tensor, "batch kv_head key value_dim"],
    pattern: Pattern = FULL,
    *,
    scale: float | None = None,
    cap: float | None = None,
    key_weights: Float[Tensor, " head"] | None = None,
    sinks: Float[Tensor, " head"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "batch head query value_dim"]:
    r"""Attention: each query's mean of the values, weighted by how well query and key agree.

    For head h, which reads key-value head g(h) = h // (num_heads / num_kv_heads)::

        scores[i, j]  = scale * key_weights[h] * q[h, i] . k[g, j]
        weights[i, j] = exp(scores[i, j]) / (exp(sinks[h]) + sum_j' exp(scores[i, j']))
        output[h, i]  = sum_j weights[i, j] * v[g, j]

    Scores are -inf where the pattern forbids. With a cap, allowed scores s become
    ``cap * tanh(s / cap)``. Without ``sinks`` the weights are the softmax. A query without an
    allowed key gives zeros.

    Args:
        q: Queries. With a causal pattern they are the last positions of the keys.
        k: Keys; ``kv_head`` divides ``head``, and consecutive query heads share a key-value head.
        v: Values. With a ``value_dim`` other than ``head_dim`` all weights are in memory: no fused
            kernel takes them.
        pattern: Which keys each query may attend to.
        scale: Factor on the scores; ``head_dim ** -0.5`` when None.
        cap: Bound of the scores, which no fused kernel has: the weights of some queries at a time
            are in memory, and with gradients those of all queries.
        key_weights: One factor per query head on its scores (weighted grouped-query attention).
        sinks: One logit per query head that takes part in the softmax and carries no value
            (gpt-oss).
        dropout: Probability of dropping a weight; the others are multiplied by
            ``1 / (1 - dropout)``. All weights are in memory if it is above 0.

    Example:
        >>> q, k, v = torch.randn(2, 8, 5, 16), torch.randn(2, 2, 5, 16), torch.randn(2, 2, 5, 16)
        >>> attend(q, k, v, Pattern(causal=True, window=3)).shape
        torch.Size([2, 8, 5, 16])

    Source: Vaswani et al. 2017 (scaled dot product); Ainslie et al. 2023 (grouped queries);
    Chinnakonduru and Mohapatra 2024, arXiv 2407.10855 (key weights); OpenAI 2025, gpt-oss model
    card (sinks); Beltagy et al. 2020 (windows); Gemma Team 2024, arXiv 2408.00118 (cap).
    """
    check_inputs(q, k, v, pattern, key_weights, sinks)
    require_probability(dropout=dropout)
    scale = q.shape[3] ** -0.5 if scale is None else scale
    if not torch.compiler.is_compiling() and all_entries() and is_observed():
        call = edited(Attended(q, k, v, scale, pattern, key_weights, sinks, cap=cap))
        for entry in entries(Watching):
            entry.watcher(call)
        return compute(call, dropout)
    return kernel.attention(
        _weighted(q, key_weights), k, v, pattern, scale, sinks, dropout, cap=cap
    )


def is_edited() -> bool:
    """Return whether this thread is in a block of :func:`editing`."""
    return bool(entries(Editing))


def editors() -> tuple[Editing, ...]:
    """Return the editors of this thread: results computed under others may differ."""
    return entries(Editing)


def is_observed() -> bool:
    """Return whether this thread is in a block of :func:`editing` or :func:`watching`."""
    return bool(entries(Editing) or entries(Watching))


def edited(call: Attended) -> Attended:
    """Return a call as the editors of this thread change it.

    It is the same object if there are no editors, or if they change nothing.
    """
    original = call
    for entry in entries(Editing):
        call = entry.editor(call)
    if any(rewrite.may_keep for rewrite in call.rewrites):
        call = _rewritten_once(call)
        if all(getattr(call, part.name) is getattr(original, part.name) for part in fields(call)):
            return original
    return call


def _rewritten_once(call: Attended) -> Attended:
    """Return a call whose rewrites have been computed.

    If a rewrite that may keep the matrix changes it, each rewrite of the result is a constant.
    Otherwise the result is the call without the rewrites that may keep the matrix.
    """
    masked = boolean_mask(call)
    constants: list[Rewrite] = []
    changes: list[Rewrite] = []

    def compute_and_record(rewrite: Rewrite, values: Tensor) -> Tensor | None:
        new = rewrite.function(values)
        if new is not None:
            constants.append(rewrite._replace(function=lambda _: new, may_keep=False))
            if rewrite.may_keep:
                changes.append(rewrite)
        return new

    recorded = [
        rewrite._replace(function=partial(compute_and_record, rewrite))
        for rewrite in masked.rewrites
    ]
    matrices(replace(masked, rewrites=tuple(recorded)), ())
    if changes:
        return replace(masked, rewrites=tuple(constants))
    certain = [rewrite for rewrite in call.rewrites if not rewrite.may_keep]
    return replace(call, rewrites=tuple(certain))


def boolean_mask(call: Attended) -> Attended:
    """Return a call whose mask is boolean.

    A mask of numbers forbids by -inf or the lowest number of its dtype. Other numbers, which it
    adds to the scores, become a rewrite of the scores.
    """
    if call.mask is None or call.mask.dtype == torch.bool:
        return call
    allowed = call.mask > torch.finfo(call.mask.dtype).min / 2
    bias = call.mask.masked_fill(~allowed, 0)
    call = replace(call, mask=allowed)
    if not bool(bias.any()):
        return call
    add_bias = Rewrite("scores", tuple(range(call.q.shape[1])), lambda scores: scores + bias)
    return replace(call, rewrites=(add_bias, *call.rewrites))


def compute(call: Attended, dropout: float = 0.0) -> Float[Tensor, "batch head query value_dim"]:
    """Return the output of an attention.

    The matrices of heads with rewritten scores or weights are in memory, those of others are not.
    """
    q = _weighted(call.q, call.key_weights)
    out = kernel.attention(
        q, call.k, call.v, call.pattern, call.scale, call.sinks, dropout, call.mask, call.cap
    )
    if call.rewrites:
        heads = sorted({head for rewrite in call.rewrites for head in rewrite.heads})
        weights = F.dropout(matrices(call, heads)[1], dropout)
        v = call.v[:, [head // call.group for head in heads]]
        index = torch.tensor(heads, device=out.device)
        out = out.index_copy(1, index, (weights @ v.to(weights.dtype)).to(out.dtype))
    return out


def matrices(call: Attended, heads: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return scores and weights [batch, head, query, key] of ``heads``, after the call's rewrites.

    They are in float32 or wider. Scores are -inf where the pattern or the mask forbids, whatever a
    rewrite returns there.
    """
    # A rewrite gets all its heads, also where only some of them are asked for.
    rewritten_heads = {head for rewrite in call.rewrites for head in rewrite.heads}
    chosen = sorted({*heads, *rewritten_heads})
    kv_heads = [head // call.group for head in chosen]
    q = _weighted(call.q, call.key_weights)[:, chosen]
    allowed = call.pattern.mask(q.shape[2], call.k.shape[2], q.device)
    scores = kernel.scores(q, call.k[:, kv_heads], call.scale, call.cap)
    if call.mask is not None:
        mask = _of_heads(call.mask, chosen)
        if mask.dtype == torch.bool:
            allowed = allowed & mask
        else:
            scores = scores + mask
    scores = scores.masked_fill(~allowed, -torch.inf)
    scores = _rewritten("scores", scores, call.rewrites, chosen).masked_fill(~allowed, -torch.inf)
    if call.sinks is None:
        sink = None
    else:
        sink = call.sinks[chosen].view(1, -1, 1)
    weights = kernel.weights_of_scores(scores, scores != -torch.inf, sink)  # NaN stays
    weights = _rewritten("weights", weights, call.rewrites, chosen)
    if call.forbidden is not None:
        _require_zeros(weights, _of_heads(call.forbidden, chosen))
    asked = [chosen.index(head) for head in heads]
    return scores[:, asked], weights[:, asked]


def _of_heads(mask: Tensor, heads: list[int]) -> Tensor:
    """Return the mask of these heads, or the one that all heads share."""
    if mask.shape[1] == 1:
        return mask
    return mask[:, heads]


def _require_zeros(weights: Tensor, forbidden: Tensor) -> None:
    """Refuse weights of forbidden keys that differ from 0."""
    if bool((forbidden & (weights != 0)).any()):
        raise InputError(
            got="an edit of weights that gives some to keys that are forbidden",
            expected="weights of 0 there",
            fix="Forbid other keys, or put 0 there.",
        )


def _rewritten(
    kind: str, values: Tensor, rewrites: Sequence[Rewrite], heads: Sequence[int]
) -> Tensor:
    for rewrite in rewrites:
        if rewrite.kind == kind:
            index = torch.tensor(
                [heads.index(head) for head in rewrite.heads], device=values.device
            )
            new = rewrite.function(values[:, index])
            if new is not None:
                values = values.index_copy(1, index, new)
    return values


def _weighted(q: Tensor, key_weights: Tensor | None) -> Tensor:
    """Return queries times their heads' key weights: ``w (q . k) = (w q) . k``."""
    if key_weights is None:
        return q
    return q * key_weights.to(q.dtype)[:, None, None]


def check_inputs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: Pattern,
    key_weights: Tensor | None,
    sinks: Tensor | None,
) -> None:
    """Raise :class:`InputError` if these arguments of :func:`attend` do not fit one another."""
    q_shape = q.shape
    k_shape = k.shape
    fits = len(q_shape) == len(k_shape) == v.dim() == 4 and k_shape[:3] == v.shape[:3]
    if (
        not fits
        or q_shape[0] != k_shape[0]
        or q_shape[3] != k_shape[3]
        or q_shape[2] < 1
        or k_shape[2] < 1
    ):
        raise InputError(
            got=f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}",
            expected=(
                "[batch, head, position, head_dim] with at least one position, k and v alike in "
                "all but the last"
            ),
            fix="Split heads before attending, and pass a token or more.",
        )
    if k_shape[1] < 1 or q_shape[1] % k_shape[1]:
        raise InputError(
            got=f"{q_shape[1]} query heads and {k_shape[1]} key-value heads",
            expected="key-value heads that divide the query heads",
            fix="Choose num_kv_heads among the divisors of num_heads.",
        )
    for name, per_head in (("key_weights", key_weights), ("sinks", sinks)):
        if per_head is not None and per_head.shape != (q_shape[1],):
            raise InputError(
                got=f"{name} of shape {list(per_head.shape)}",
                expected=f"one number per query head, [{q_shape[1]}]",
                fix=f"Make {name} as long as num_heads.",
            )
    pattern.check(q_shape[0], q_shape[2], k_shape[2])
