"""One layer of a decoder: attention and feed-forward, each behind a norm and beside a residual path."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor, nn

from glassformer.layers.cache import LayerCache, SlotCache
from glassformer.layers.grouped_query import GroupedQueryAttention
from glassformer.layers.norms import RMSNorm
from glassformer.layers.positions import Rotation


class Block(nn.Module):
    """A pre-norm transformer block::

        h      = x + attention(attention_norm(x))
        output = h + ffn(ffn_norm(h))

    Args:
        hidden_dim: Width of the residual stream.
        attention: Its attention.
        ffn: Its feed-forward network, dense or a mixture of experts.
        norm_eps: Added to the mean square before the root, in both RMS norms.

    Source: Xiong et al. 2020, arXiv 2002.04745 (pre-norm); Zhang and Sennrich 2019, arXiv 1910.07467 (RMSNorm).
    """

    def __init__(self, hidden_dim: int, attention: GroupedQueryAttention, ffn: nn.Module, norm_eps: float) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(hidden_dim, norm_eps)
        self.attention = attention
        self.ffn_norm = RMSNorm(hidden_dim, norm_eps)
        self.ffn = ffn

    def forward(
        self,
        x: Float[Tensor, "batch position hidden_dim"],
        *,
        rotation: Rotation | None = None,
        key_padding: Bool[Tensor, "batch key"] | None = None,
        cache: LayerCache | SlotCache | None = None,
    ) -> Float[Tensor, "batch position hidden_dim"]:
        """One step of the residual stream; arguments as for the attention."""
        x = x + self.attention(self.attention_norm(x), rotation=rotation, key_padding=key_padding, cache=cache)
        return x + self.ffn(self.ffn_norm(x))
