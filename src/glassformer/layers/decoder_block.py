"""One layer of an encoder-decoder's decoder: masked self-attention, cross-attention, feed-forward."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from glassformer.errors import require, require_positive
from glassformer.layers.cache import LayerCache
from glassformer.layers.grouped_query import GroupedQueryAttention, KeysAndValues


class CrossBlock(nn.Module):
    """A transformer block that reads its own stream and a memory, LayerNorm behind each sum (``norm_first = False``)::

        h      = self_attention_norm(x + dropout(self_attention(x)))
        g      = cross_attention_norm(h + dropout(cross_attention(h, memory)))
        output = ffn_norm(g + dropout(ffn(g)))

    or before each part (``norm_first = True``), which leaves the residual stream itself alone::

        h      = x + dropout(self_attention(self_attention_norm(x)))
        g      = h + dropout(cross_attention(cross_attention_norm(h), memory))
        output = g + dropout(ffn(ffn_norm(g)))

    With the same weights this is :class:`torch.nn.TransformerDecoderLayer`.

    Args:
        self_attention: From each position to itself and earlier ones: ``causal=True``.
        cross_attention: From each position to all of the memory: ``causal=False``.
        ffn: Its feed-forward network.
        hidden_dim: Width of the residual stream and of the memory.
        norm_eps: Added to the variance before the root, above 0.
        norm_first: Norms before the parts instead of behind the sums.
        dropout: Probability of dropping a number of what each part adds, in training.

    Shape: ``[batch, position, hidden_dim]`` to the same.

    Raises:
        InputError: A self-attention that is not causal or a cross-attention that is, ``hidden_dim`` below 1,
            ``norm_eps`` of 0 or less, or dropout outside [0, 1).

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.1; Xiong et al. 2020, arXiv 2002.04745 (pre-norm).
    """

    def __init__(
        self,
        self_attention: GroupedQueryAttention,
        cross_attention: GroupedQueryAttention,
        ffn: nn.Module,
        hidden_dim: int,
        norm_eps: float = 1e-5,
        norm_first: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        require_positive(hidden_dim=hidden_dim)
        require(
            self_attention.pattern.causal and not cross_attention.pattern.causal,
            f"self-attention with causal = {self_attention.pattern.causal} and cross-attention with causal = "
            f"{cross_attention.pattern.causal}",
            "True and False",
            "A target sees none of its own future, and all of the source.",
        )
        require(norm_eps > 0, f"norm_eps = {norm_eps}", "a number above 0", "torch uses 1e-5.")
        require(0 <= dropout < 1, f"dropout = {dropout}", "a probability in [0, 1)", "Use 0 to switch it off.")
        self.self_attention = self_attention
        self.self_attention_norm = nn.LayerNorm(hidden_dim, eps=norm_eps)
        self.cross_attention = cross_attention
        self.cross_attention_norm = nn.LayerNorm(hidden_dim, eps=norm_eps)
        self.ffn = ffn
        self.ffn_norm = nn.LayerNorm(hidden_dim, eps=norm_eps)
        self.norm_first, self.dropout = norm_first, dropout

    def forward(
        self,
        x: Float[Tensor, "batch position hidden_dim"],
        memory: Float[Tensor, "batch source hidden_dim"] | KeysAndValues,
        *,
        key_padding: Bool[Tensor, "batch seen"] | None = None,
        memory_padding: Bool[Tensor, "batch source"] | None = None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "batch position hidden_dim"]:
        """Pass ``x`` through the block.

        Args:
            x: The residual stream.
            memory: What the cross-attention reads, or what ``cross_attention.keys_and_values`` made of it.
            key_padding: True where a position of the target is real; with a cache, for all positions so far.
            memory_padding: True where a position of the memory is real.
            cache: Keys and values of earlier positions of the target; those of ``x`` are added to it.
        """
        if self.norm_first:
            normed = self.self_attention_norm(x)
            x = x + self._dropped(self.self_attention(normed, key_padding=key_padding, cache=cache))
            normed = self.cross_attention_norm(x)
            x = x + self._dropped(self.cross_attention(normed, memory, key_padding=memory_padding))
            return x + self._dropped(self.ffn(self.ffn_norm(x)))
        own = self.self_attention(x, key_padding=key_padding, cache=cache)
        x = self.self_attention_norm(x + self._dropped(own))
        read = self.cross_attention(x, memory, key_padding=memory_padding)
        x = self.cross_attention_norm(x + self._dropped(read))
        return self.ffn_norm(x + self._dropped(self.ffn(x)))

    def _dropped(self, added: Tensor) -> Tensor:
        return F.dropout(added, self.dropout, self.training)
