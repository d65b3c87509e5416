"""The layers of the course's GPT-OSS lab under its own names and signatures: thin doors to ``glassformer.layers``.

Two conventions differ from the rest of the project, and are translated here. The course's ``window_size`` counts the
*previous* tokens that a query sees; a :class:`~glassformer.kernels.pattern.Pattern` counts the query too, so it is one
more. And the course's attention layers make their own rotary embedding, while a decoder shares one among its layers.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.errors import require, require_positive
from glassformer.kernels.pattern import CAUSAL, Pattern
from glassformer.layers import experts, feedforward, grouped_query
from glassformer.layers.attention import attend
from glassformer.layers.cache import LayerCache
from glassformer.layers.experts import Router
from glassformer.layers.positions import RotaryEmbedding, Rotation

__all__ = [
    "GroupedQueryAttention",
    "MixtureOfExperts",
    "RotaryPositionalEmbedding",
    "Router",
    "SWAttention",
    "SwiGLUFeedForward",
    "calculate_attention",
    "calculate_sliding_attention",
]


class RotaryPositionalEmbedding(RotaryEmbedding):
    """The rotary embedding with the cosines and sines of ``max_seq_len`` positions computed in advance.

    Args:
        head_dim: Width of a head, even.
        max_seq_len: Number of positions; those of later ones are computed when they are needed.
        base: The slowest frequency is about 1 / base.

    Raises:
        InputError: As for :class:`~glassformer.layers.positions.RotaryEmbedding`, or ``max_seq_len`` below 1.

    Source: Su et al. 2021, arXiv 2104.09864.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, head_dim: int, max_seq_len: int = 2048, base: float = 10000.0) -> None:
        super().__init__(head_dim, base)
        require_positive(max_seq_len=max_seq_len)
        for name, table in zip(("cos", "sin"), super().rotation(max_seq_len), strict=True):
            self.register_buffer(name, table, persistent=False)

    def rotation(self, length: int, start: int = 0, device: torch.device | None = None) -> Rotation:
        """As there, from the tables where they reach."""
        stop = start + length
        if start < 0 or length < 1 or stop > len(self.cos):
            return super().rotation(length, start, device or self.cos.device)
        return self.cos[start:stop], self.sin[start:stop]


class SwiGLUFeedForward(feedforward.SwiGLU):
    """``output = down(silu(gate(x)) * up(x))``; the course's W1, V and W2 are gate, up and down.

    Args:
        hidden_dim: Width of input and output.
        inner_dim: Width inside.

    Raises:
        InputError: A size below 1.

    Source: Shazeer 2020, arXiv 2002.05202.
    """

    def __init__(self, hidden_dim: int, inner_dim: int) -> None:
        super().__init__(hidden_dim, inner_dim)


class MixtureOfExperts(experts.MixtureOfExperts):
    """SwiGLU experts of which each token passes through ``top_k``, weighted by a softmax over the chosen scores.

    Args:
        hidden_dim: Width of input and output.
        inner_dim: Width inside each expert.
        num_experts: Number of experts.
        top_k: Experts a token passes through.

    Raises:
        InputError: A size below 1, or ``top_k > num_experts``.

    Source: Jiang et al. 2024, arXiv 2401.04088.
    """

    def __init__(self, hidden_dim: int, inner_dim: int, num_experts: int = 8, top_k: int = 2) -> None:
        super().__init__(hidden_dim, inner_dim, num_experts, top_k)


def calculate_attention(
    q: Float[Tensor, "batch head position head_dim"],
    k: Float[Tensor, "batch kv_head position head_dim"],
    v: Float[Tensor, "batch kv_head position head_dim"],
    key_weights: Float[Tensor, " head"],
    rope: RotaryPositionalEmbedding,
    scale: float,
    device: torch.device,
    mask: Bool[Tensor, "query key"] | Float[Tensor, "query key"] | None = None,
) -> Float[Tensor, "batch head position head_dim"]:
    """Rotate queries and keys, then attend: ``softmax(scale * q (w k)^T + mask) v`` for every head.

    Args:
        q: Queries, not yet rotated.
        k: Keys, not yet rotated; consecutive query heads share a key-value head.
        v: Values.
        key_weights: The factor w of each query head on its keys.
        rope: Rotates queries and keys by their positions.
        scale: Factor on the scores, usually ``head_dim ** -0.5``.
        device: The device of ``q``. Part of the course's signature; masks are made where ``q`` lies.
        mask: Who (row) may see whom (column): True or 0 where allowed, False or -inf where not. None is causal.

    Raises:
        InputError: Sizes that do not fit one another, a mask of other numbers than 0 and -inf, or another ``device``.
    """
    _require_place(q, device)
    q, k = rope(q), rope(k)
    if mask is None:
        return attend(q, k, v, CAUSAL, scale=scale, key_weights=key_weights)
    allowed = _as_boolean(mask, q.shape[2])
    # attend() knows no free mask, but a free padding of keys for each text: so each query becomes a text of its own.
    batch, heads, length, head_dim = q.shape
    queries = q.transpose(1, 2).reshape(batch * length, heads, 1, head_dim)
    k, v = k.repeat_interleave(length, dim=0), v.repeat_interleave(length, dim=0)
    pattern = Pattern(key_padding=allowed.to(q.device).repeat(batch, 1))
    output = attend(queries, k, v, pattern, scale=scale, key_weights=key_weights)
    return output.view(batch, length, heads, head_dim).transpose(1, 2)


def calculate_sliding_attention(
    q: Float[Tensor, "batch head position head_dim"],
    k: Float[Tensor, "batch kv_head position head_dim"],
    v: Float[Tensor, "batch kv_head position head_dim"],
    key_weights: Float[Tensor, " head"],
    rope: RotaryPositionalEmbedding,
    scale: float,
    device: torch.device,
    window_size: int,
) -> Float[Tensor, "batch head position head_dim"]:
    """As :func:`calculate_attention`, each query seeing itself and the ``window_size`` tokens before it.

    Raises:
        InputError: Sizes that do not fit one another, ``window_size < 0``, or another ``device`` than that of ``q``.

    Source: Beltagy et al. 2020, "Longformer", arXiv 2004.05150.
    """
    _require_place(q, device)
    pattern = Pattern(causal=True, window=_window(window_size))
    return attend(rope(q), rope(k), v, pattern, scale=scale, key_weights=key_weights)


class _CourseAttention(grouped_query.GroupedQueryAttention):
    """Grouped-query attention with key weights that applies its own rotation if the caller passes none."""

    def __init__(
        self, hidden_dim: int, num_heads: int, head_dim: int, num_kv_heads: int | None, window: int | None
    ) -> None:
        super().__init__(hidden_dim, num_heads, head_dim, num_kv_heads, window=window, key_weights=True)
        self.rope = RotaryPositionalEmbedding(head_dim)

    def forward(
        self,
        x: Float[Tensor, "batch query hidden_dim"],
        source: Float[Tensor, "batch key hidden_dim"] | grouped_query.KeysAndValues | None = None,
        *,
        rotation: Rotation | None = None,
        key_padding: Bool[Tensor, "batch position"] | None = None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "batch query hidden_dim"]:
        """As the layer it is, and rotated by its own embedding unless a decoder passes the one its layers share."""
        if rotation is None and source is None:
            require(
                cache is None,
                "a cache without a rotation",
                "the rotation of the positions of x",
                "Pass rope.rotation(length, start).",
            )
            rotation = self.rope.rotation(x.shape[1])
        return super().forward(x, source, rotation=rotation, key_padding=key_padding, cache=cache)


class GroupedQueryAttention(_CourseAttention):
    """Causal grouped-query attention with rotary positions and a learned weight per head on its keys.

    Args:
        hidden_dim: Width of input and output.
        num_heads: Query heads.
        head_dim: Width of a head, even.
        num_kv_heads: Key-value heads, a divisor of ``num_heads``; None: as many as query heads.

    Raises:
        InputError: Sizes below 1 or that do not divide, or an odd ``head_dim``.

    Source: Ainslie et al. 2023, arXiv 2305.13245; Chinnakonduru and Mohapatra 2024, arXiv 2407.10855.
    """

    def __init__(self, hidden_dim: int, num_heads: int, head_dim: int, num_kv_heads: int | None = None) -> None:
        super().__init__(hidden_dim, num_heads, head_dim, num_kv_heads, window=None)


class SWAttention(_CourseAttention):
    """:class:`GroupedQueryAttention` in which each token sees itself and the ``window_size`` tokens before it.

    Args:
        hidden_dim: Width of input and output.
        num_heads: Query heads.
        head_dim: Width of a head, even.
        window_size: Previous tokens that a token sees.
        num_kv_heads: Key-value heads (the course's version has as many as query heads, which is what None gives).

    Raises:
        InputError: Sizes below 1 or that do not divide, an odd ``head_dim``, or ``window_size < 0``.

    Source: Beltagy et al. 2020, "Longformer", arXiv 2004.05150.
    """

    def __init__(
        self, hidden_dim: int, num_heads: int, head_dim: int, window_size: int, num_kv_heads: int | None = None
    ) -> None:
        super().__init__(hidden_dim, num_heads, head_dim, num_kv_heads, window=_window(window_size))
        self.window_size = window_size


def _window(window_size: int) -> int:
    """The course's count of previous tokens as a count of keys."""
    require(window_size >= 0, f"window_size = {window_size}", "0 or more previous tokens", "0 sees the token alone.")
    return window_size + 1


def _require_place(q: Tensor, device: torch.device) -> None:
    require(
        q.device.type == torch.device(device).type,
        f"q on {q.device} with device = {device}",
        "the device that q lies on",
        "Pass q.device.",
    )


def _as_boolean(mask: Tensor, length: int) -> Bool[Tensor, "query key"]:
    require(
        mask.shape == (length, length),
        f"a mask of shape {list(mask.shape)}",
        f"[position, position] = [{length}, {length}]",
        "Give a row for each query and a column for each key.",
    )
    if mask.dtype == torch.bool:
        return mask
    allowed = mask == 0
    require(
        bool((allowed | mask.isneginf()).all()),
        "a mask with numbers other than 0 and -inf",
        "0 where attention is allowed and -inf where it is not, or booleans",
        "Turn a matrix of ones and zeros into booleans with mask.bool().",
    )
    return allowed
