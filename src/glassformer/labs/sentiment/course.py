"""The course's layers and its MiniTransformer, under the course's names.

Attention is written out, because it returns its weights. ``MiniTransformer.encoder`` is an
:class:`~glassformer.models.encoder.Encoder` that shares the model's weights. It computes the same
logits with the fused kernel; training, storage and measurements use it.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from glassformer.errors import InputError, require_above_zero, require_heads, require_positive
from glassformer.kernels.pattern import unless_all
from glassformer.layers.blocks import Block
from glassformer.layers.embedding import check_tokens, look_up
from glassformer.layers.feedforward import MLP, Linear
from glassformer.layers.grouped_query import GroupedQueryAttention
from glassformer.layers.positions import SinusoidalPositions
from glassformer.models.encoder import Encoder, EncoderConfig


class TokenEmbedding(nn.Module):
    """``sqrt(d_model) * embedding[token]`` (Vaswani et al. 2017, arXiv 1706.03762, section 3.4)."""

    def __init__(self, vocab_size: int, d_model: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.d_model = d_model

    def forward(self, x: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch d_model"]:
        """Look up the tokens."""
        return look_up(self.embedding, "tokens", x) * self.d_model**0.5


class PositionalEncoding(SinusoidalPositions):
    """Sinusoidal positions, see :class:`~glassformer.layers.positions.SinusoidalPositions`."""

    def __init__(self, d_model: int, max_length: int = 512) -> None:
        super().__init__(d_model, max_length)

    @property
    def pe(self) -> Float[Tensor, "max_length d_model"]:
        """Table of the position vectors."""
        return self.table


class TransformerEmbeddings(nn.Module):
    """``dropout(token_embedding(tokens) + positions)``."""

    def __init__(
        self, vocab_size: int, d_model: int, max_length: int = 512, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.token_embedding = TokenEmbedding(vocab_size, d_model)
        self.pos_encoding = PositionalEncoding(d_model, max_length)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, input_ids: Int[Tensor, "batch position"]
    ) -> Float[Tensor, "batch position d_model"]:
        """Embed the tokens at their positions."""
        return self.dropout(self.pos_encoding(self.token_embedding(input_ids)))


def scaled_dot_product_attention(
    Q: Float[Tensor, "*batch query d_k"],
    K: Float[Tensor, "*batch key d_k"],
    V: Float[Tensor, "*batch key d_v"],
    mask: Tensor | None = None,
    dropout: nn.Dropout | None = None,
) -> tuple[Float[Tensor, "*batch query d_v"], Float[Tensor, "*batch query key"]]:
    """Return ``dropout(weights) V`` and ``weights = softmax(Q K^T / sqrt(d_k))``.

    Args:
        Q: Queries.
        K: Keys.
        V: Values.
        mask: True or 1 where a query (row) may attend to a key (column), False or 0 elsewhere. Any
            shape that broadcasts to ``[..., query, key]``; for padding with heads,
            ``real[:, None, None, :]``. A query without an allowed key gets zeros; in the course it
            gets the mean of all values.
        dropout: Applied to the weights. The returned weights are without dropout.

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.2.1.
    """
    scores = Q @ K.transpose(-2, -1) / Q.shape[-1] ** 0.5
    if mask is None:
        weights = scores.softmax(-1)
    else:
        masked = ~as_allowed(mask)
        scores = scores.masked_fill(masked, torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1).masked_fill(masked, 0.0)
    return (weights if dropout is None else dropout(weights)) @ V, weights


class MultiHeadAttention(nn.Module):
    """``W_o(heads)`` with ``heads = attention(W_q(x), W_k(x), W_v(x))``, each of width ``d_k``."""

    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.1) -> None:
        super().__init__()
        require_positive(d_model=d_model, num_heads=num_heads)
        require_heads(num_heads, d_model=d_model)
        self.d_model = d_model
        self.num_heads = num_heads
        self.d_k = d_model // num_heads
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.W_o = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "batch position d_model"], mask: Tensor | None = None
    ) -> tuple[
        Float[Tensor, "batch position d_model"], Float[Tensor, "batch head position position"]
    ]:
        """Return output and weights; for ``mask`` see :func:`scaled_dot_product_attention`."""
        Q, K, V = (
            project(x).unflatten(-1, (self.num_heads, self.d_k)).transpose(1, 2)
            for project in (self.W_q, self.W_k, self.W_v)
        )
        heads, weights = scaled_dot_product_attention(Q, K, V, mask, self.dropout)
        return self.W_o(heads.transpose(1, 2).flatten(2)), weights


class LayerNorm(nn.Module):
    """The course's layer normalization, for comparison with torch's, which the models use.

    The formula is ``gamma * (x - mean) / (std + eps) + beta`` with the unbiased deviation,
    ``std ** 2 = sum (x - mean) ** 2 / (features - 1)``. Torch divides by ``sqrt(var + 1e-5)`` with
    ``var = sum (x - mean) ** 2 / features``.

    Source: Ba et al. 2016, arXiv 1607.06450; the variant with the unbiased deviation: Rush et al.
    2018, "The Annotated Transformer".
    """

    def __init__(self, features: int, eps: float = 1e-6) -> None:
        super().__init__()
        if features < 2:
            raise InputError(
                got=f"features = {features}",
                expected="at least 2",
                fix="Use more features: a single number has no deviation from its mean.",
            )
        require_above_zero(eps=eps)
        self.gamma = nn.Parameter(torch.ones(features))
        self.beta = nn.Parameter(torch.zeros(features))
        self.eps = eps

    def forward(self, x: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch features"]:
        """Normalise each position separately."""
        mean = x.mean(-1, keepdim=True)
        std = x.std(-1, keepdim=True)
        return self.gamma * (x - mean) / (std + self.eps) + self.beta


class FeedForward(nn.Module):
    """``linear2(dropout(relu(linear1(x))))``, the same at every position."""

    def __init__(self, d_model: int, d_ff: int, dropout: float = 0.1) -> None:
        super().__init__()
        require_positive(d_model=d_model, d_ff=d_ff)
        self.linear1 = Linear(d_model, d_ff)
        self.linear2 = Linear(d_ff, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Apply the network to each position separately."""
        return self.linear2(self.dropout(self.linear1(x).relu()))


class TransformerBlock(nn.Module):
    """A post-norm block, with torch's LayerNorm::

    h      = norm1(x + dropout(attention(x)))
    output = norm2(h + dropout(feed_forward(h)))
    """

    def __init__(self, d_model: int, num_heads: int, d_ff: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(d_model, num_heads, dropout)
        self.feed_forward = FeedForward(d_model, d_ff, dropout)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "batch position d_model"], mask: Tensor | None = None
    ) -> tuple[
        Float[Tensor, "batch position d_model"], Float[Tensor, "batch head position position"]
    ]:
        """Return output and weights; for ``mask`` see :func:`scaled_dot_product_attention`."""
        attended, weights = self.attention(x, mask)
        x = self.norm1(x + self.dropout(attended))
        return self.norm2(x + self.dropout(self.feed_forward(x))), weights

    def as_layer(self) -> Block:
        """Return the library's block with shared weights and the same output."""
        course_attention = self.attention
        d_model = course_attention.d_model
        d_ff = self.feed_forward.linear1.out_features
        with torch.device("meta"):  # the modules are replaced: no memory, no random numbers
            attention = GroupedQueryAttention(
                d_model,
                course_attention.num_heads,
                course_attention.d_k,
                causal=False,
                bias=True,
                dropout=course_attention.dropout.p,
            )
            ffn = MLP(d_model, d_ff, "relu", self.feed_forward.dropout.p)
            layer = Block(
                d_model,
                attention,
                ffn,
                self.norm1.eps,
                norm="layer",
                norm_place="sum",
                dropout=self.dropout.p,
            )
        attention.query = course_attention.W_q
        attention.key = course_attention.W_k
        attention.value = course_attention.W_v
        attention.output = course_attention.W_o
        ffn.up = self.feed_forward.linear1
        ffn.down = self.feed_forward.linear2
        layer.attention_norm = self.norm1
        layer.ffn_norm = self.norm2
        return layer.train(self.training)


class MiniTransformer(nn.Module):
    """The course's classifier: embeddings, blocks, a norm, the mean over positions, a linear head.

    Unlike the course's model, it leaves padding (id 0) out of attention and of the mean; the course
    computes the result for ``attention_mask = torch.ones_like(input_ids)``. Initial weights are
    drawn as for the :class:`~glassformer.models.encoder.Encoder` of ``config``.
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        num_heads: int,
        num_layers: int,
        d_ff: int,
        max_length: int,
        num_classes: int,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.embeddings = TransformerEmbeddings(vocab_size, d_model, max_length, dropout)
        blocks = (TransformerBlock(d_model, num_heads, d_ff, dropout) for _ in range(num_layers))
        self.transformer_blocks = nn.ModuleList(blocks)
        self.ln_f = nn.LayerNorm(d_model)
        self.classifier = nn.Linear(d_model, num_classes)
        self.dropout = nn.Dropout(dropout)
        sizes = (vocab_size, num_layers, d_model, d_ff, num_heads, max_length, num_classes)
        self.config = EncoderConfig(
            *sizes, activation="relu", dropout=dropout, attention_dropout=dropout
        )
        self.encoder.reset_parameters()

    def forward(
        self, input_ids: Int[Tensor, "batch position"], attention_mask: Tensor | None = None
    ) -> tuple[
        Float[Tensor, "batch num_classes"], list[Float[Tensor, "batch head position position"]]
    ]:
        """Return logits, and the attention weights of each block.

        ``attention_mask`` is ``[batch, position]``, True or 1 where a token is real. Default:
        ``input_ids != 0``.
        """
        if attention_mask is None:
            real = input_ids != self.config.pad_id
        else:
            real = as_allowed(attention_mask)
        check_tokens(input_ids, self.config.max_seq_len, real=real, real_name="attention_mask")
        masked = unless_all(real)
        x = self.embeddings(input_ids)
        attention_weights = []
        for block in self.transformer_blocks:
            x, weights = block(x, None if masked is None else masked[:, None, None, :])
            attention_weights.append(weights)
        share = real / real.sum(1, keepdim=True).clamp(min=1)
        pooled = (self.ln_f(x) * share[..., None]).sum(1)
        return self.classifier(self.dropout(pooled)), attention_weights

    @property
    def encoder(self) -> Encoder:
        """The library's encoder with shared weights and the same logits."""
        with torch.device("meta"):
            encoder = Encoder(self.config)
        encoder.embedding = self.embeddings.token_embedding.embedding
        encoder.positions = self.embeddings.pos_encoding
        encoder.layers = nn.ModuleList(
            block.as_layer()
            for block in self.transformer_blocks
            if isinstance(block, TransformerBlock)
        )
        encoder.final_norm = self.ln_f
        encoder.classifier = self.classifier
        return encoder.train(self.training)


def as_allowed(mask: Tensor) -> Bool[Tensor, "*shape"]:
    """Convert a mask of booleans, or of 0 and 1, to booleans; refuse an additive mask."""
    allowed = mask.bool()
    if not bool((allowed == mask).all()):
        raise InputError(
            got="a mask with numbers other than 0 and 1",
            expected="True or 1 where attention is allowed, False or 0 where it is not",
            fix="Convert a mask that is added to the scores to booleans: mask == 0.",
        )
    return allowed
