"""The course's layers and model, under the course's names.

Attention is written out, as the course demands; other parts come from the library. The library's
:func:`~glassformer.layers.attention.attend` computes the same attention with PyTorch's fused kernel
and a cache. :meth:`Transformer.decoder` returns the model that uses it.
"""

import math
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from glassformer.errors import InputError
from glassformer.layers import experts, feedforward
from glassformer.layers.blocks import initialise
from glassformer.layers.experts import Router as Router
from glassformer.layers.positions import RotaryEmbedding, Rotation
from glassformer.models import Decoder, DecoderConfig

NORM_EPS = 1e-5


class SwiGLUFeedForward(feedforward.SwiGLU):
    """``down(silu(gate(x)) * up(x))``; the course's W1, V and W2 are gate, up and down."""

    def __init__(self, hidden_dim: int, inner_dim: int) -> None:
        super().__init__(hidden_dim, inner_dim)


class RotaryPositionalEmbedding(RotaryEmbedding):
    """The rotary embedding, with tables of cosines and sines for ``max_seq_len`` positions.

    Values of later positions are computed when needed.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, head_dim: int, max_seq_len: int = 2048, base: float = 10000.0) -> None:
        super().__init__(head_dim, base)
        for name, table in zip(("cos", "sin"), super().rotation(max_seq_len), strict=True):
            self.register_buffer(name, table, persistent=False)

    def rotation(self, length: int, start: int = 0, device: torch.device | None = None) -> Rotation:
        """Return cosines and sines of ``length`` positions from ``start`` on."""
        stop = start + length
        if start < 0 or length < 1 or stop > len(self.cos):
            return super().rotation(length, start, device or self.cos.device)
        return self.cos[start:stop], self.sin[start:stop]


def calculate_attention(
    q: Float[Tensor, "batch head position head_dim"],
    k: Float[Tensor, "batch kv_head position head_dim"],
    v: Float[Tensor, "batch kv_head position v_dim"],
    key_weights: Float[Tensor, " head"],
    rope: nn.Module,
    scale: float,
    device: torch.device,
    mask: Bool[Tensor, "query key"] | Float[Tensor, "query key"] | None = None,
) -> Float[Tensor, "batch head position v_dim"]:
    """Return ``softmax(scale * q (w k)^T + M) v`` for every head, with ``q`` and ``k`` rotated.

    Consecutive query heads share a key-value head. ``mask`` is M itself, or True where a query
    (row) may see a key (column). Default: a causal mask.
    """
    if mask is None:
        mask = _band(q.shape[2], q.shape[2], device)
    q = rope(q)
    k = rope(k)
    group = q.shape[1] // k.shape[1]
    k = k.repeat_interleave(group, dim=1)
    v = v.repeat_interleave(group, dim=1)
    scores = scale * (q @ (key_weights[:, None, None] * k).mT)
    if mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -math.inf)
    else:
        scores = scores + mask
    return scores.softmax(dim=-1) @ v


def calculate_sliding_attention(
    q: Float[Tensor, "batch head position head_dim"],
    k: Float[Tensor, "batch kv_head position head_dim"],
    v: Float[Tensor, "batch kv_head position v_dim"],
    key_weights: Float[Tensor, " head"],
    rope: nn.Module,
    scale: float,
    device: torch.device,
    window_size: int,
) -> Float[Tensor, "batch head position v_dim"]:
    """Return attention in which each token sees itself and the ``window_size`` tokens before it.

    See :func:`calculate_attention` for the other arguments.
    """
    mask = _band(q.shape[2], window_size, device)
    return calculate_attention(q, k, v, key_weights, rope, scale, device, mask)


def _band(length: int, window_size: int, device: torch.device) -> Bool[Tensor, "query key"]:
    """Return a mask: True for the query's own key and the ``window_size`` keys before it."""
    if window_size < 0:
        raise InputError(
            got=f"window_size = {window_size}",
            expected="0 or more previous tokens",
            fix="Pass 0 for a token that sees only itself.",
        )
    positions = torch.arange(length, device=device)
    distance = positions[:, None] - positions
    return (distance >= 0) & (distance <= window_size)


class GroupedQueryAttention(nn.Module):
    """Causal grouped-query attention with rotary positions and a learned key factor per head.

    Source: Ainslie et al. 2023, arXiv 2305.13245; Chinnakonduru and Mohapatra 2024, arXiv
    2407.10855.
    """

    def __init__(
        self, hidden_dim: int, num_heads: int, head_dim: int, num_kv_heads: int | None = None
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads or num_heads
        self.head_dim = head_dim
        if num_heads % self.num_kv_heads != 0:
            raise InputError(
                got=f"num_kv_heads = {num_kv_heads} with num_heads = {num_heads}",
                expected="a divisor of num_heads",
                fix="Change num_kv_heads: each serves an equal number of query heads.",
            )
        self.scale = head_dim**-0.5
        self.query = nn.Linear(hidden_dim, num_heads * head_dim, bias=False)
        self.key = nn.Linear(hidden_dim, self.num_kv_heads * head_dim, bias=False)
        self.value = nn.Linear(hidden_dim, self.num_kv_heads * head_dim, bias=False)
        self.output = nn.Linear(num_heads * head_dim, hidden_dim, bias=False)
        self.key_weights = nn.Parameter(torch.ones(num_heads))
        self.rope = RotaryPositionalEmbedding(head_dim)

    def forward(
        self, x: Float[Tensor, "batch position hidden_dim"]
    ) -> Float[Tensor, "batch position hidden_dim"]:
        """Project, attend in every head, join the heads, project."""
        q, k, v = (
            project(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        return self.output(self.attend(q, k, v).transpose(1, 2).flatten(2))

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor
    ) -> Float[Tensor, "batch head position head_dim"]:
        """Call :func:`calculate_attention` with the layer's weights."""
        return calculate_attention(q, k, v, self.key_weights, self.rope, self.scale, q.device)


class SWAttention(GroupedQueryAttention):
    """Grouped-query attention with a sliding window.

    Each token sees itself and the ``window_size`` tokens before it.

    Source: Beltagy et al. 2020, "Longformer", arXiv 2004.05150.
    """

    def __init__(
        self,
        hidden_dim: int,
        num_heads: int,
        head_dim: int,
        window_size: int,
        num_kv_heads: int | None = None,
    ) -> None:
        super().__init__(hidden_dim, num_heads, head_dim, num_kv_heads)
        self.window_size = window_size

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor
    ) -> Float[Tensor, "batch head position head_dim"]:
        """Call :func:`calculate_sliding_attention` with the layer's weights."""
        return calculate_sliding_attention(
            q, k, v, self.key_weights, self.rope, self.scale, q.device, self.window_size
        )


class MixtureOfExperts(experts.MixtureOfExperts):
    """SwiGLU experts with ``top_k`` experts for each token.

    Routing weights are a softmax over the scores of the selected experts.
    """

    def __init__(
        self, hidden_dim: int, inner_dim: int, num_experts: int = 8, top_k: int = 2
    ) -> None:
        super().__init__(hidden_dim, inner_dim, num_experts, top_k)


class TransformerBlock(nn.Module):
    """A pre-norm block: ``h = x + attention(norm(x))``, then ``h + ffn(norm(h))``."""

    def __init__(
        self,
        hidden_dim: int,
        ff_dim: int,
        num_heads: int,
        head_dim: int,
        use_sliding_window: bool = False,
        window_size: int = 128,
        use_moe: bool = False,
        num_experts: int = 8,
        top_k: int = 2,
        num_kv_heads: int | None = None,
    ) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(hidden_dim, eps=NORM_EPS)
        self.attention = GroupedQueryAttention(hidden_dim, num_heads, head_dim, num_kv_heads)
        if use_sliding_window:
            self.attention = SWAttention(hidden_dim, num_heads, head_dim, window_size, num_kv_heads)
        self.ffn_norm = nn.RMSNorm(hidden_dim, eps=NORM_EPS)
        self.ffn: nn.Module = SwiGLUFeedForward(hidden_dim, ff_dim)
        if use_moe:
            self.ffn = MixtureOfExperts(hidden_dim, ff_dim, num_experts, top_k)

    def forward(
        self, x: Float[Tensor, "batch position hidden_dim"]
    ) -> Float[Tensor, "batch position hidden_dim"]:
        """Pass ``x`` through the block."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.ffn(self.ffn_norm(x))


class Transformer(nn.Module):
    """The course's model.

    ``config`` is the configuration of the library's equivalent decoder. Initial weights have the
    same distribution as the decoder's.
    """

    def __init__(
        self,
        vocab_size: int,
        n_layers: int,
        hidden_dim: int,
        ff_dim: int,
        num_heads: int,
        head_dim: int,
        use_sliding_window_alternating: bool = False,
        window_size: int = 128,
        use_moe: bool = False,
        num_experts: int = 8,
        top_k: int = 2,
        num_kv_heads: int | None = None,
    ) -> None:
        super().__init__()
        sizes = hidden_dim, ff_dim, num_heads, head_dim
        options: Any = window_size, use_moe, num_experts, top_k, num_kv_heads
        # The library's window includes the query.
        window = window_size + 1 if use_sliding_window_alternating else None
        self.config = DecoderConfig(
            vocab_size,
            n_layers,
            *sizes,
            num_kv_heads,
            window=window,
            num_experts=num_experts if use_moe else None,
            top_k=top_k,
            key_weights=True,
        )
        self.embedding = nn.Embedding(vocab_size, hidden_dim)
        self.layers = nn.ModuleList()
        for layer in range(n_layers):
            has_window = use_sliding_window_alternating and layer % 2 == 1
            self.layers.append(TransformerBlock(*sizes, has_window, *options))
        self.final_norm = nn.RMSNorm(hidden_dim, eps=NORM_EPS)
        self.output_proj = nn.Linear(hidden_dim, vocab_size, bias=False)
        initialise(self, {"layers": 2 * n_layers})
        nn.init.normal_(self.embedding.weight, std=Decoder.EMBEDDING_STD)

    def forward(
        self, tokens: Int[Tensor, "batch position"]
    ) -> Float[Tensor, "batch position vocab"]:
        """Return logits of the token after each position."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output_proj(self.final_norm(x))

    def decoder(self) -> Decoder:
        """Return the library's decoder, which shares the weights."""
        decoder = Decoder(self.config)
        weights = {
            name.replace("output_proj.", "output."): weight
            for name, weight in self.named_parameters()
        }
        decoder.load_state_dict(weights, assign=True)
        return decoder
