"""The single entry point of attention: :func:`attend`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.errors import InputError, require, require_probability
from glassformer.kernels import attention as kernel
from glassformer.kernels.pattern import FULL, Pattern


@dataclass(frozen=True, eq=False)
class Attended:
    """The arguments of one call of :func:`attend`, with ``scale`` filled in."""

    q: Float[Tensor, "batch head query head_dim"]
    k: Float[Tensor, "batch kv_head key head_dim"]
    v: Float[Tensor, "batch kv_head key value_dim"]
    scale: float
    pattern: Pattern = FULL
    key_weights: Float[Tensor, " head"] | None = None
    sinks: Float[Tensor, " head"] | None = None


Watcher = Callable[[Attended], None]
_watchers: ContextVar[tuple[Watcher, ...]] = ContextVar("watchers", default=())


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Call ``watcher`` with the arguments of each call of :func:`attend`, before it is computed.

    Within the ``with`` block and its thread. Calls in code that ``torch.compile`` has compiled are not watched.
    """
    token = _watchers.set((*_watchers.get(), watcher))
    try:
        yield
    finally:
        _watchers.reset(token)


def attend(
    q: Float[Tensor, "batch head query head_dim"],
    k: Float[Tensor, "batch kv_head key head_dim"],
    v: Float[Tensor, "batch kv_head key value_dim"],
    pattern: Pattern = FULL,
    *,
    scale: float | None = None,
    key_weights: Float[Tensor, " head"] | None = None,
    sinks: Float[Tensor, " head"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "batch head query value_dim"]:
    r"""Attention: each query's mean of the values, weighted by how well query and key agree.

    For head h, which reads key-value head g(h) = h // (num_heads / num_kv_heads)::

        scores[i, j]  = scale * key_weights[h] * q[h, i] . k[g, j]      -inf where the pattern forbids
        weights[i, j] = exp(scores[i, j]) / (exp(sinks[h]) + sum_j' exp(scores[i, j']))
        output[h, i]  = sum_j weights[i, j] * v[g, j]

    Without ``sinks`` that is the softmax. A query without an allowed key gives zeros.

    Args:
        q: Queries. With a causal pattern they are the last positions of the keys.
        k: Keys; ``kv_head`` divides ``head``, and consecutive query heads share a key-value head.
        v: Values. With a ``value_dim`` other than ``head_dim`` all weights are in memory: no fused kernel takes them.
        pattern: Which keys each query may attend to.
        scale: Factor on the scores; ``head_dim ** -0.5`` when None.
        key_weights: One factor per query head on its scores (weighted grouped-query attention).
        sinks: One logit per query head that takes part in the softmax and carries no value (gpt-oss).
        dropout: Probability of dropping a weight; the others are multiplied by ``1 / (1 - dropout)``. All weights are
            in memory if it is above 0.

    Raises:
        InputError: Sizes that do not fit one another, a pattern that does not fit them, or dropout outside [0, 1).

    Source: Vaswani et al. 2017 (scaled dot product); Ainslie et al. 2023 (grouped queries); Chinnakonduru and
    Mohapatra 2024, arXiv 2407.10855 (key weights); OpenAI 2025, gpt-oss model card (sinks); Beltagy et al. 2020
    (windows).
    """
    check_inputs(q, k, v, pattern, key_weights, sinks)
    require_probability(dropout=dropout)
    scale = q.shape[3] ** -0.5 if scale is None else scale
    if not torch.compiler.is_compiling():
        for watcher in _watchers.get():
            watcher(Attended(q, k, v, scale, pattern, key_weights, sinks))
    # w (q . k) = (w q) . k, and q is the smaller of the two.
    weighted = q if key_weights is None else q * key_weights.to(q.dtype)[:, None, None]
    return kernel.attention(weighted, k, v, pattern, scale, sinks, dropout)


def check_inputs(
    q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, key_weights: Tensor | None, sinks: Tensor | None
) -> None:
    """Raise :class:`InputError` if these arguments of :func:`attend` do not fit one another."""
    fits = q.dim() == k.dim() == v.dim() == 4 and k.shape[:3] == v.shape[:3] and q.shape[::3] == k.shape[::3]
    if not fits or q.shape[2] < 1 or k.shape[2] < 1:  # formatting takes longer than all checks
        raise InputError(
            f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}",
            "[batch, head, position, head_dim] with at least one position, k and v alike in all but the last",
            "Split heads before attending, and pass a token or more.",
        )
    require(
        k.shape[1] >= 1 and q.shape[1] % k.shape[1] == 0,
        f"{q.shape[1]} query heads and {k.shape[1]} key-value heads",
        "key-value heads that divide the query heads",
        "Choose num_kv_heads among the divisors of num_heads.",
    )
    for name, per_head in (("key_weights", key_weights), ("sinks", sinks)):
        if per_head is not None and per_head.shape != (q.shape[1],):
            raise InputError(
                f"{name} of shape {list(per_head.shape)}",
                f"one number per query head, [{q.shape[1]}]",
                f"Make {name} as long as num_heads.",
            )
    pattern.check(q.shape[0], q.shape[2], k.shape[2])
