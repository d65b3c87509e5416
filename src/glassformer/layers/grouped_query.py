"""Grouped-query attention: the projections around :func:`~glassformer.layers.attention.attend`."""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from glassformer.errors import (
    InputError,
    require_groups,
    require_positive,
    require_probability,
)
from glassformer.kernels.options import Layout
from glassformer.kernels.pattern import Pattern
from glassformer.kernels.rotation import Rotation, require_layout, rotate
from glassformer.layers.attention import attend
from glassformer.layers.cache import KeysAndValues, LayerCache
from glassformer.layers.feedforward import Linear
from glassformer.layers.norms import RMSNorm


class GroupedQueryAttention(nn.Module):
    """Multi-head attention in which groups of query heads share keys and values::

        q, k, v = heads of query(x), key(source), value(source)
        q, k    = query_norm(q), key_norm(k)           if there are norms
        q, k    = rotated q, rotated k                 if positions are given
        output  = output(concatenated attend(q, k, v))

    ``num_kv_heads = num_heads`` is ordinary multi-head attention, 1 is multi-query attention.

    Args:
        hidden_dim: Width of input and output.
        num_heads: Query heads.
        head_dim: Width of a head; ``num_heads * head_dim`` need not be ``hidden_dim``.
        num_kv_heads: Key-value heads, a divisor of ``num_heads``; ``num_heads`` when None.
        causal: Each position sees itself and earlier ones only.
        window: Keys a query sees at most, itself included; needs ``causal``.
        bias: Give the four projections biases; ``"qkv"``: all but the output.
        key_weights: A learned factor per query head on its scores, 1 at first.
        sinks: A learned logit per query head that takes part in the softmax and carries no value, 0
            at first.
        dropout: Probability of dropping an attention weight in training.
        layout: Layout of the rotation that is given to :meth:`forward`.
        scale: Factor on the scores; ``head_dim ** -0.5`` when None.
        cap: Scores become ``cap * tanh(scores / cap)``, see
            :func:`~glassformer.layers.attention.attend`.
        qk_norm: RMSNorm of queries and keys: of each ``"head"`` with the same weight, or of
            ``"all"`` heads together.
        norm_eps: Added to the mean square in these norms.

    Source: Ainslie et al. 2023, "GQA", arXiv 2305.13245; Chinnakonduru and Mohapatra 2024, arXiv
    2407.10855; Henry et al. 2020, arXiv 2010.04245 (norms of queries and keys).
    """

    def __init__(
        self,
        hidden_dim: int,
        num_heads: int,
        head_dim: int,
        num_kv_heads: int | None = None,
        *,
        causal: bool = True,
        window: int | None = None,
        bias: bool | Literal["qkv"] = False,
        key_weights: bool = False,
        sinks: bool = False,
        dropout: float = 0.0,
        layout: Layout = "half-split",
        scale: float | None = None,
        cap: float | None = None,
        qk_norm: Literal["head", "all"] | None = None,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        if num_kv_heads is None:
            num_kv_heads = num_heads
        require_positive(
            hidden_dim=hidden_dim, num_heads=num_heads, head_dim=head_dim, num_kv_heads=num_kv_heads
        )
        require_groups(num_heads, num_kv_heads)
        require_probability(dropout=dropout)
        require_layout(layout)
        self.pattern = Pattern(causal, window)
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.dropout = dropout
        self.layout = layout
        self.scale = scale
        self.cap = cap
        query_width = num_heads * head_dim
        key_width = num_kv_heads * head_dim
        self.query: nn.Linear = Linear(hidden_dim, query_width, bias=bool(bias))
        self.key: nn.Linear = Linear(hidden_dim, key_width, bias=bool(bias))
        self.value: nn.Linear = Linear(hidden_dim, key_width, bias=bool(bias))
        self.output: nn.Linear = Linear(query_width, hidden_dim, bias=bias is True)
        self.query_norm: RMSNorm | None = None
        self.key_norm: RMSNorm | None = None
        if qk_norm == "head":
            self.query_norm = RMSNorm(head_dim, norm_eps)
            self.key_norm = RMSNorm(head_dim, norm_eps)
        elif qk_norm is not None:
            self.query_norm = RMSNorm(query_width, norm_eps)
            self.key_norm = RMSNorm(key_width, norm_eps)
        self.key_weights = nn.Parameter(torch.ones(num_heads)) if key_weights else None
        self.sinks = nn.Parameter(torch.zeros(num_heads)) if sinks else None

    def forward(
        self,
        x: Float[Tensor, "batch query hidden_dim"],
        source: Float[Tensor, "batch key hidden_dim"] | KeysAndValues | None = None,
        *,
        rotation: Rotation | None = None,
        key_padding: Bool[Tensor, "batch seen"] | None = None,
        cache: LayerCache | None = None,
        last: int | None = None,
    ) -> Float[Tensor, "batch last hidden_dim"]:
        """Attend from ``x`` to ``source``, or to ``x`` itself.

        Args:
            x: Input of the queries.
            source: Input of keys and values in cross-attention, or the result of
                :meth:`keys_and_values` for it; ``x`` when None.
            rotation: Cosines and sines of the positions of ``x``, for self-attention.
            key_padding: True where a key is real; with a cache, for all positions so far.
            cache: Keys and values of earlier positions; those of ``x`` are added to it.
            last: Positions at the end of ``x`` that attend; all of them when None.
        """
        if source is not None and (rotation is not None or cache is not None):
            raise InputError(
                got="a source with a rotation or a cache",
                expected="cross-attention without either",
                fix="Leave both out: rotation and cache belong to self-attention.",
            )
        queries = x if last is None else x[:, -last:]
        q = self._heads(self.query(queries), self.num_heads, self.query_norm)
        if isinstance(source, tuple):
            k, v = source
        else:
            k, v = self.keys_and_values(x if source is None else source)
        if rotation is not None:
            q = rotate(q, _last_positions(rotation, last), self.layout)
            k = rotate(k, rotation, self.layout)
        if cache is not None:
            dtype = cache.keys.dtype  # that of projections under autocast may differ
            q = q.to(dtype)
            k, v = cache.append(k.to(dtype), v.to(dtype))
            if key_padding is not None:
                key_padding = key_padding[:, cache.positions(x.shape[1])]
        pattern = self.pattern
        if key_padding is not None:
            pattern = Pattern(pattern.causal, pattern.window, key_padding)
        heads = attend(
            q,
            k,
            v,
            pattern,
            scale=self.scale,
            cap=self.cap,
            key_weights=self.key_weights,
            sinks=self.sinks,
            dropout=self.dropout if self.training else 0.0,
        )
        return self.output(heads.transpose(1, 2).flatten(2))

    def keys_and_values(self, source: Float[Tensor, "batch key hidden_dim"]) -> KeysAndValues:
        """Return keys and values of ``source``, which decoding steps can share.

        They can be passed to :meth:`forward` as ``source``.
        """
        k = self._heads(self.key(source), self.num_kv_heads, self.key_norm)
        v = self._heads(self.value(source), self.num_kv_heads)
        return k, v

    def _heads(self, projected: Tensor, heads: int, norm: RMSNorm | None = None) -> Tensor:
        if norm is not None:
            # The norm has as many weights as a head, or as all heads together.
            projected = norm(projected.unflatten(-1, (-1, norm.weight.shape[0]))).flatten(-2)
        return projected.view(*projected.shape[:-1], heads, self.head_dim).transpose(1, 2)


def _last_positions(rotation: tuple[Tensor, Tensor], count: int | None) -> tuple[Tensor, Tensor]:
    """Return the rotation of the last ``count`` positions; of all when None."""
    if count is None:
        return rotation
    cos, sin = rotation
    return cos[..., -count:, :], sin[..., -count:, :]
