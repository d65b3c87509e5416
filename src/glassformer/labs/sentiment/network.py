"""The course's TransformerBlock and MiniTransformer, and the :class:`~glassformer.models.encoder.Encoder` that each is.

The course's classes hand out attention weights beside their results. The encoder with the same weights does not, and
is what is trained, stored and measured: ``MiniTransformer.encoder``.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.errors import require
from glassformer.labs.sentiment.attention import MultiHeadAttention, as_allowed
from glassformer.labs.sentiment.parts import FeedForward, TransformerEmbeddings
from glassformer.layers.blocks import EncoderBlock
from glassformer.models.encoder import Encoder
from glassformer.models.encoder_config import EncoderConfig


class TransformerBlock(nn.Module):
    """A post-norm block::

        h      = norm1(x + dropout(attention(x)))
        output = norm2(h + dropout(feed_forward(h)))

    The norms are torch's.

    Args:
        d_model: Width of input and output, a multiple of ``num_heads``.
        num_heads: Heads.
        d_ff: Width inside the feed-forward network.
        dropout: Probability of dropping a number in training: of attention weights, inside the feed-forward network,
            and of what the two add.

    Raises:
        InputError: Sizes below 1 or that do not divide, or dropout outside [0, 1).

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.1.
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
    ) -> tuple[Float[Tensor, "batch position d_model"], Float[Tensor, "batch head position position"]]:
        """The output, and the weights of the attention; ``mask`` as for :class:`MultiHeadAttention`."""
        gathered, weights = self.attention(x, mask)
        x = self.norm1(x + self.dropout(gathered))
        return self.norm2(x + self.dropout(self.feed_forward(x))), weights

    def as_layer(self) -> EncoderBlock:
        """The layer that computes the same output, with these very weights: training one trains the other."""
        attention, width = self.attention.as_layer(), self.attention.d_model
        with torch.device("meta"):
            layer = EncoderBlock(attention, self.feed_forward, width, self.norm1.eps, dropout=self.dropout.p)
        layer.attention_norm, layer.ffn_norm = self.norm1, self.norm2
        layer.training = self.training
        return layer


class MiniTransformer(nn.Module):
    """The course's classifier: embeddings, blocks, a last norm, the mean over positions, a linear head.

    It is the :class:`~glassformer.models.encoder.Encoder` that its ``config`` describes, with the course's names of
    parts: post-norm, ReLU, sinusoidal positions, initialised alike. Unlike the course's, it leaves padding out, both of
    attention and of the mean; ``attention_mask = torch.ones_like(input_ids)`` gives what the course computes.

    Args:
        vocab_size: Number of different tokens; 0 is padding.
        d_model: Width of a position, a multiple of ``num_heads``.
        num_heads: Heads.
        num_layers: Blocks.
        d_ff: Width inside the feed-forward networks.
        max_length: Longest text in tokens.
        num_classes: Classes, at least 2.
        dropout: Probability of dropping a number in training: of the embedding, of attention weights, inside the
            feed-forward networks, of what parts add, and of the mean.

    Raises:
        InputError: A size that is impossible by itself or beside another.

    Source: Vaswani et al. 2017, arXiv 1706.03762.
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
        self.config = EncoderConfig(
            vocab_size=vocab_size,
            num_layers=num_layers,
            hidden_dim=d_model,
            ff_dim=d_ff,
            num_heads=num_heads,
            max_seq_len=max_length,
            num_classes=num_classes,
            activation="relu",
            dropout=dropout,
            attention_dropout=dropout,
        )
        self.encoder.reset_parameters()

    def forward(
        self, input_ids: Int[Tensor, "batch position"], attention_mask: Tensor | None = None
    ) -> tuple[Float[Tensor, "batch num_classes"], list[Float[Tensor, "batch head position position"]]]:
        """The scores of the classes, before softmax, and the attention weights of each block.

        Args:
            input_ids: Tokens; behind those of short texts stands padding.
            attention_mask: ``[batch, position]``, True or 1 where a token is real; ``input_ids != 0`` when None.

        Raises:
            InputError: Tokens outside the vocabulary, too many of them, or a mask of another shape.
        """
        require(
            input_ids.dim() == 2 and input_ids.numel() > 0,
            f"input_ids of shape {list(input_ids.shape)}",
            "[batch, position] with at least one of each",
            "Add a batch axis with input_ids[None].",
        )
        real = input_ids != self.config.pad_id if attention_mask is None else as_allowed(attention_mask)
        require(
            real.shape == input_ids.shape,
            f"an attention_mask of shape {list(real.shape)}",
            f"that of input_ids, {list(input_ids.shape)}",
            "Give a 1 for each real token and a 0 for each padding token.",
        )
        mask = None if bool(real.all()) else real[:, None, None, :]
        x = self.embeddings(input_ids)
        attention_weights = []
        for block in self.transformer_blocks:
            x, weights = block(x, mask)
            attention_weights.append(weights)
        share = real / real.sum(1, keepdim=True).clamp(min=1)
        pooled = (self.ln_f(x) * share[..., None]).sum(1)
        return self.classifier(self.dropout(pooled)), attention_weights

    @property
    def encoder(self) -> Encoder:
        """The encoder that computes the same logits, with these very weights: training one trains the other."""
        with torch.device("meta"):
            encoder = Encoder(self.config)
        encoder.embedding = self.embeddings.token_embedding.embedding
        encoder.positions = self.embeddings.pos_encoding
        encoder.layers = nn.ModuleList(
            block.as_layer() for block in self.transformer_blocks if isinstance(block, TransformerBlock)
        )
        encoder.final_norm, encoder.classifier = self.ln_f, self.classifier
        return encoder.train(self.training)
