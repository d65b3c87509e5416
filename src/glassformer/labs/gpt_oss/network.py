"""The course's TransformerBlock and Transformer: a thin view on :class:`~glassformer.models.decoder.Decoder`."""

from __future__ import annotations

from torch import nn

from glassformer.labs.gpt_oss.parts import GroupedQueryAttention, MixtureOfExperts, SWAttention, SwiGLUFeedForward
from glassformer.layers.blocks import Block
from glassformer.models import Decoder, DecoderConfig

NORM_EPS = 1e-5


class TransformerBlock(Block):
    """A pre-norm block: ``h = x + attention(norm(x))``, then ``h + ffn(norm(h))``.

    Args:
        hidden_dim: Width of the residual stream.
        ff_dim: Width inside the feed-forward network or each expert.
        num_heads: Query heads.
        head_dim: Width of a head, even.
        use_sliding_window: Windowed attention instead of full causal attention.
        window_size: Previous tokens that a token sees, with a window.
        use_moe: A mixture of experts instead of one feed-forward network.
        num_experts: Number of experts, with a mixture.
        top_k: Experts a token passes through, with a mixture.
        num_kv_heads: Key-value heads; None: as many as query heads.

    Raises:
        InputError: A size that is impossible by itself or beside another.

    Source: Xiong et al. 2020, arXiv 2002.04745 (pre-norm).
    """

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
        attention: GroupedQueryAttention | SWAttention
        if use_sliding_window:
            attention = SWAttention(hidden_dim, num_heads, head_dim, window_size, num_kv_heads)
        else:
            attention = GroupedQueryAttention(hidden_dim, num_heads, head_dim, num_kv_heads)
        ffn: nn.Module
        if use_moe:
            ffn = MixtureOfExperts(hidden_dim, ff_dim, num_experts, top_k)
        else:
            ffn = SwiGLUFeedForward(hidden_dim, ff_dim)
        super().__init__(hidden_dim, attention, ffn, NORM_EPS)


class Transformer(Decoder):
    """The course's model: a :class:`~glassformer.models.decoder.Decoder` with key weights, built of the course's parts.

    It has the weights, the names of weights, the initialisation, the cache and the logits of the decoder that its
    ``config`` describes; only the classes of its layers are the course's.

    Args:
        vocab_size: Number of different tokens.
        n_layers: Number of blocks.
        hidden_dim: Width of the residual stream.
        ff_dim: Width inside the feed-forward network or each expert.
        num_heads: Query heads.
        head_dim: Width of a head, even.
        use_sliding_window_alternating: Windowed attention in layers 1, 3, 5, ...
        window_size: Previous tokens that a token sees in a windowed layer.
        use_moe: A mixture of experts in every layer.
        num_experts: Number of experts, with mixtures.
        top_k: Experts a token passes through, with mixtures.
        num_kv_heads: Key-value heads; None: as many as query heads.

    Shape: tokens ``[batch, position]`` to logits ``[batch, position, vocab]``.

    Raises:
        InputError: A size that is impossible by itself or beside another.
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
        blocks = [
            TransformerBlock(
                hidden_dim,
                ff_dim,
                num_heads,
                head_dim,
                use_sliding_window_alternating and layer % 2 == 1,
                window_size,
                use_moe,
                num_experts,
                top_k,
                num_kv_heads,
            )
            for layer in range(n_layers)
        ]
        config = DecoderConfig(
            vocab_size=vocab_size,
            num_layers=n_layers,
            hidden_dim=hidden_dim,
            ff_dim=ff_dim,
            num_heads=num_heads,
            head_dim=head_dim,
            num_kv_heads=num_kv_heads,
            window=window_size + 1 if use_sliding_window_alternating else None,
            windowed_layers="odd",
            num_experts=num_experts if use_moe else None,
            top_k=top_k,
            key_weights=True,
            norm_eps=NORM_EPS,
        )
        super().__init__(config)
        self.layers = nn.ModuleList(blocks)
        self.reset_parameters()

    @property
    def output_proj(self) -> nn.Linear:
        """The projection to the vocabulary, under the course's name."""
        return self.output
