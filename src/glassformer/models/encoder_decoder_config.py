"""The configuration of an encoder-decoder."""

from __future__ import annotations

from glassformer.config import Config, Count, Positive, Probability, Size, config
from glassformer.errors import require, require_heads
from glassformer.layers.options import EncoderActivation
from glassformer.models.encoder_config import Positions


@config
class EncoderDecoderConfig(Config):
    """The parts of an :class:`~glassformer.models.encoder_decoder.EncoderDecoder`.

    The defaults are the lookup course's model. The first transformer is ``source_positions="sinusoidal"``.

    Raises:
        InputError: A field of another type, or a size that is impossible by itself or with another.
    """

    vocab_size: Size
    """Number of different source tokens."""
    hidden_dim: Size
    """Width of both residual streams, a multiple of num_heads."""
    ff_dim: Size
    """Width inside the feed-forward networks."""
    num_heads: Size
    """Heads of every attention, each of width hidden_dim / num_heads."""
    num_encoder_layers: Size
    """Blocks of the encoder."""
    num_decoder_layers: Size
    """Blocks of the decoder."""
    max_source_len: Size
    """Most positions (tokens or slots) of a source."""
    max_target_len: Size
    """Longest target in tokens, the start token included."""
    target_vocab_size: Size | None = None
    """Number of different target tokens; None: as many as source tokens."""
    fields_per_slot: Size = 1
    """Source tokens per position, each with an embedding of its own; 1: a position is a token."""
    source_positions: Positions = "none"
    """Kind of position embedding of the source; "none": its order has no effect."""
    target_positions: Positions = "sinusoidal"
    """Kind of position embedding of the target."""
    activation: EncoderActivation = "relu"
    """Between the layers of the feed-forward networks."""
    norm_first: bool = False
    """Pre-norm: LayerNorm before each part of a block instead of after each residual addition."""
    final_norm: bool = False
    """LayerNorm after the last block of the encoder and of the decoder."""
    norm_eps: Positive = 1e-5
    """Added to the variance in LayerNorm."""
    scale_embeddings: bool = True
    """Multiply token embeddings by sqrt(hidden_dim)."""
    dropout: Probability = 0.1
    """Probability in training of dropping a number of an embedding, of what a part adds, and inside feed-forward."""
    pad_id: Count = 0
    """The padding token of sources and targets."""

    def __post_init__(self) -> None:
        require_heads(self.num_heads, hidden_dim=self.hidden_dim)
        fewest = min(self.vocab_size, self.target_vocab)
        inside = f"a number below {fewest}, a token of both vocabularies"
        require(self.pad_id < fewest, f"pad_id = {self.pad_id}", inside, "Reserve one token for padding.")

    @property
    def target_vocab(self) -> int:
        """Number of different target tokens."""
        return self.vocab_size if self.target_vocab_size is None else self.target_vocab_size
