"""The configuration of an encoder."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from glassformer.config import Config, Count, Positive, Probability, Size, config
from glassformer.errors import require, require_heads
from glassformer.layers.options import EncoderActivation

Positions = Literal["sinusoidal", "learned", "none"]
"""How positions enter an embedding. With "none" the order of the tokens has no effect."""
Pooling = Literal["mean", "cls", "max"]


@config
class EncoderConfig(Config):
    """The parts of an :class:`~glassformer.models.encoder.Encoder`.

    The defaults are the course's encoder. BERT is ``final_norm=False, positions="learned", scale_embeddings=False,
    embedding_norm=True, token_types=2, norm_eps=1e-12, ff_dropout=0.0``.

    Raises:
        InputError: A field of another type, or a size that is impossible by itself or with another.
    """

    vocab_size: Size
    """Number of different tokens."""
    num_layers: Size
    """Number of blocks."""
    hidden_dim: Size
    """Width of the residual stream, a multiple of num_heads."""
    ff_dim: Size
    """Width inside the feed-forward network."""
    num_heads: Size
    """Heads, each of width hidden_dim / num_heads."""
    max_seq_len: Size = 512
    """Longest text in tokens."""
    num_classes: Annotated[int, Field(ge=2)] | None = None
    """Number of classes; None: no classification head."""
    activation: EncoderActivation = "gelu"
    """Between the layers of the feed-forward network."""
    norm_first: bool = False
    """Pre-norm: LayerNorm before each part of a block instead of after each residual addition."""
    norm_eps: Positive = 1e-5
    """Added to the variance in LayerNorm."""
    final_norm: bool = True
    """LayerNorm after the last block."""
    positions: Positions = "sinusoidal"
    """Kind of position embedding."""
    scale_embeddings: bool = True
    """Multiply token embeddings by sqrt(hidden_dim)."""
    embedding_norm: bool = False
    """LayerNorm on the embedding."""
    token_types: Count = 0
    """Number of segments that a token can belong to; 0: no segment embedding."""
    dropout: Probability = 0.1
    """Probability in training of dropping a number of the embedding, of what a part adds, and of the pooled vector."""
    attention_dropout: Probability = 0.0
    """Probability of dropping an attention weight in training."""
    ff_dropout: Probability | None = None
    """Probability of dropping a number inside the feed-forward network in training; None: as dropout."""
    pooling: Pooling = "mean"
    """How positions become one vector: their mean, the first one, or the maximum of each coordinate."""
    pad_id: Count = 0
    """The padding token."""

    def __post_init__(self) -> None:
        require_heads(self.num_heads, hidden_dim=self.hidden_dim)
        in_vocabulary = self.pad_id < self.vocab_size
        require(in_vocabulary, f"pad_id = {self.pad_id}", f"below vocab_size = {self.vocab_size}", "Reserve a token.")
