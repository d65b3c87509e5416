"""One layer of an encoder: attention and feed-forward, each with a residual path, and a LayerNorm behind or before."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from glassformer.errors import require, require_positive
from glassformer.layers.grouped_query import GroupedQueryAttention


class EncoderBlock(nn.Module):
    """A transformer block with LayerNorm, behind each sum (``norm_first = False``, as first published and in BERT)::

        h      = attention_norm(x + dropout(attention(x)))
        output = ffn_norm(h + dropout(ffn(h)))

    or before each part (``norm_first = True``), which leaves the residual stream itself alone::

        h      = x + dropout(attention(attention_norm(x)))
        output = h + dropout(ffn(ffn_norm(h)))

    LayerNorm is ``(x - mean) / sqrt(var + norm_eps) * weight + bias`` over a position, with the mean square deviation
    (divided by hidden_dim) as ``var``. With the same weights this is :class:`torch.nn.TransformerEncoderLayer`.

    Args:
        attention: Its attention, in which every position may see every other: ``causal=False``.
        ffn: Its feed-forward network.
        hidden_dim: Width of the residual stream.
        norm_eps: Added to the variance before the root, above 0.
        norm_first: Norms before the parts instead of behind the sums.
        dropout: Probability of dropping a number of what each part adds, in training.

    Shape: ``[batch, position, hidden_dim]`` to the same.

    Raises:
        InputError: ``hidden_dim`` below 1, ``norm_eps`` of 0 or less, or dropout outside [0, 1).

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.1; Xiong et al. 2020, arXiv 2002.04745 (pre-norm); Ba et
    al. 2016, arXiv 1607.06450 (LayerNorm).
    """

    def __init__(
        self,
        attention: GroupedQueryAttention,
        ffn: nn.Module,
        hidden_dim: int,
        norm_eps: float = 1e-5,
        norm_first: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        require_positive(hidden_dim=hidden_dim)
        require(norm_eps > 0, f"norm_eps = {norm_eps}", "a number above 0", "torch uses 1e-5, BERT 1e-12.")
        require(0 <= dropout < 1, f"dropout = {dropout}", "a probability in [0, 1)", "Use 0 to switch it off.")
        self.attention = attention
        self.attention_norm = nn.LayerNorm(hidden_dim, eps=norm_eps)
        self.ffn = ffn
        self.ffn_norm = nn.LayerNorm(hidden_dim, eps=norm_eps)
        self.norm_first, self.dropout = norm_first, dropout

    def forward(
        self,
        x: Float[Tensor, "batch position hidden_dim"],
        *,
        key_padding: Bool[Tensor, "batch position"] | None = None,
    ) -> Float[Tensor, "batch position hidden_dim"]:
        """Pass ``x`` through the block; ``key_padding`` is True where a position is real and may be attended to."""
        if self.norm_first:
            x = x + self._dropped(self.attention(self.attention_norm(x), key_padding=key_padding))
            return x + self._dropped(self.ffn(self.ffn_norm(x)))
        x = self.attention_norm(x + self._dropped(self.attention(x, key_padding=key_padding)))
        return self.ffn_norm(x + self._dropped(self.ffn(x)))

    def _dropped(self, added: Tensor) -> Tensor:
        return F.dropout(added, self.dropout, self.training)
