"""The course's attention, which also hands out its weights: a view on :func:`glassformer.layers.attention.attend`."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from glassformer.errors import InputError, require, require_positive
from glassformer.kernels.pattern import FULL, Pattern
from glassformer.layers.attention import attend
from glassformer.layers.grouped_query import GroupedQueryAttention
from glassformer.observe.exact_attention import attention_weights


def scaled_dot_product_attention(
    Q: Float[Tensor, "*batch query d_k"],
    K: Float[Tensor, "*batch key d_k"],
    V: Float[Tensor, "*batch key d_v"],
    mask: Tensor | None = None,
    dropout: nn.Dropout | None = None,
) -> tuple[Float[Tensor, "*batch query d_v"], Float[Tensor, "*batch query key"]]:
    """``softmax(Q K^T / sqrt(d_k)) V``, and the softmax.

    Args:
        Q: Queries, ``[batch, position, d_k]`` or ``[batch, head, position, d_k]``.
        K: Keys, with as many axes.
        V: Values, with as many axes.
        mask: True or 1 where a query (row) may attend to a key (column), False or 0 where not; any shape that
            broadcasts to ``[..., query, key]``. For padding that is ``real[:, None, None, :]`` with heads. One that
            differs from query to query is exact as well, and costs a copy of the keys for each.
        dropout: Drops weights while it is in training mode.

    Returns:
        The output, and the weights as they are before dropout. A query that may see no key gets zeros in both; in the
        course, whose forbidden scores are -1e9, it gets the mean of all values.

    Raises:
        InputError: Sizes that do not fit one another, or a mask of another shape or with other numbers than 0 and 1.

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.2.1.
    """
    require(
        Q.dim() == K.dim() == V.dim() and Q.dim() in (3, 4),
        f"Q {list(Q.shape)}, K {list(K.shape)}, V {list(V.shape)}",
        "[batch, position, width], or [batch, head, position, width], for all three",
        "Add a batch axis with Q[None].",
    )
    probability = dropout.p if dropout is not None and dropout.training else 0.0
    allowed = None if mask is None else _broadcast(as_allowed(mask), [*Q.shape[:-1], K.shape[-2]])
    if Q.dim() == 4:
        return _attend(Q, K, V, allowed, probability)
    single = None if allowed is None else allowed.unsqueeze(1)
    output, weights = _attend(Q.unsqueeze(1), K.unsqueeze(1), V.unsqueeze(1), single, probability)
    return output.squeeze(1), weights.squeeze(1)


class MultiHeadAttention(nn.Module):
    """Attention in ``num_heads`` heads side by side, each with its share of the width::

        output = W_o(heads of attention(W_q(x), W_k(x), W_v(x)) in a row)

    The four maps have biases, as in the course.

    Args:
        d_model: Width of input and output, a multiple of ``num_heads``.
        num_heads: Heads.
        dropout: Probability of dropping a weight in training.

    Attributes:
        d_k: Width of a head.

    Raises:
        InputError: Sizes below 1 or that do not divide.

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.2.2.
    """

    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.1) -> None:
        super().__init__()
        require_positive(d_model=d_model, num_heads=num_heads)
        require(
            d_model % num_heads == 0,
            f"d_model = {d_model} with num_heads = {num_heads}",
            "a multiple of num_heads",
            "Each head has d_model / num_heads coordinates.",
        )
        self.d_model, self.num_heads, self.d_k = d_model, num_heads, d_model // num_heads
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.W_o = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "batch position d_model"], mask: Tensor | None = None
    ) -> tuple[Float[Tensor, "batch position d_model"], Float[Tensor, "batch head position position"]]:
        """What every position gathers from the others, and the weights by which it does.

        Args:
            x: What attends to itself.
            mask: As for :func:`scaled_dot_product_attention`, to ``[batch, head, query, key]``.

        Raises:
            InputError: A mask that does not fit.
        """
        Q, K, V = (
            part(x).unflatten(-1, (self.num_heads, self.d_k)).transpose(1, 2) for part in (self.W_q, self.W_k, self.W_v)
        )
        heads, weights = scaled_dot_product_attention(Q, K, V, mask, self.dropout)
        return self.W_o(heads.transpose(1, 2).flatten(2)), weights

    def as_layer(self) -> GroupedQueryAttention:
        """The layer that computes the same output, with these very weights: training one trains the other."""
        with torch.device("meta"):  # no memory and no random numbers for what is replaced at once
            layer = GroupedQueryAttention(
                self.d_model, self.num_heads, self.d_k, causal=False, bias=True, dropout=self.dropout.p
            )
        layer.query, layer.key, layer.value, layer.output = self.W_q, self.W_k, self.W_v, self.W_o
        return layer.train(self.training)


def as_allowed(mask: Tensor) -> Bool[Tensor, "*shape"]:
    """A mask of the course as booleans: True where it is 1.

    Raises:
        InputError: Other numbers than 0 and 1.
    """
    if mask.dtype == torch.bool:
        return mask
    allowed = mask == 1
    require(
        bool((allowed | (mask == 0)).all()),
        "a mask with numbers other than 0 and 1",
        "True or 1 where attention is allowed, False or 0 where it is not",
        "Turn one that is added to the scores into booleans with mask == 0.",
    )
    return allowed


def _broadcast(allowed: Tensor, shape: list[int]) -> Tensor:
    """With as many axes as ``shape``, and 1 wherever it is the same along an axis."""
    try:
        fits = list(torch.broadcast_shapes(allowed.shape, shape)) == shape
    except RuntimeError:
        fits = False
    if not fits:
        raise InputError(
            f"a mask of shape {list(allowed.shape)}",
            f"one that broadcasts to {shape}",
            "Give a row for each query and a column for each key, and a 1 for what all share.",
        )
    return allowed[(None,) * (len(shape) - allowed.dim())]


def _attend(
    q: Tensor, k: Tensor, v: Tensor, allowed: Bool[Tensor, "#batch #head #query #key"] | None, dropout: float
) -> tuple[Tensor, Tensor]:
    batch, heads, queries = q.shape[:3]
    keys = k.shape[2]
    if allowed is None or allowed.shape[1] == allowed.shape[2] == 1:
        pattern = FULL if allowed is None else Pattern(key_padding=allowed[:, 0, 0].expand(-1, keys))
        return attend(q, k, v, pattern, dropout=dropout), attention_weights(q, k, pattern)
    # attend() knows no free mask, but a free padding of the keys of each text: so each query becomes one of its own.
    q = q.reshape(-1, 1, 1, q.shape[3])
    k, v = (x.unsqueeze(2).expand(-1, -1, queries, -1, -1).reshape(-1, 1, keys, x.shape[3]) for x in (k, v))
    pattern = Pattern(key_padding=allowed.expand(batch, heads, queries, keys).reshape(-1, keys))
    output, weights = attend(q, k, v, pattern, dropout=dropout), attention_weights(q, k, pattern)
    return output.view(batch, heads, queries, -1), weights.view(batch, heads, queries, keys)
