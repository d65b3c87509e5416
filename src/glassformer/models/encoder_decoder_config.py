"""What an encoder-decoder is made of, as data."""

from __future__ import annotations

from dataclasses import dataclass

from glassformer.errors import require, require_positive
from glassformer.layers.feedforward import Activation, require_activation
from glassformer.models.config_json import config_from_json, config_to_json
from glassformer.models.encoder_config import Positions


@dataclass(frozen=True)
class EncoderDecoderConfig:
    """What an :class:`~glassformer.models.encoder_decoder.EncoderDecoder` is made of. Checked when made.

    The defaults are the lookup course's model. The first transformer is ``source_positions="sinusoidal"``.

    Raises:
        InputError: A size that is impossible by itself or beside another.
    """

    vocab_size: int
    """Number of different source tokens."""
    hidden_dim: int
    """Width of both residual streams, a multiple of num_heads."""
    ff_dim: int
    """Width inside the feed-forward networks."""
    num_heads: int
    """Heads of every attention, each of width hidden_dim / num_heads."""
    num_encoder_layers: int
    """Blocks of the encoder."""
    num_decoder_layers: int
    """Blocks of the decoder."""
    max_source_len: int
    """Most positions (tokens or slots) of a source."""
    max_target_len: int
    """Longest target in tokens, the start token included."""
    target_vocab_size: int | None = None
    """Number of different target tokens; None: as many as source tokens."""
    fields_per_slot: int = 1
    """Source tokens that make one position together, each by a table of its own; 1: a position is a token."""
    source_positions: Positions = "none"
    """How positions enter the embedding of the source; "none": the order of the source means nothing."""
    target_positions: Positions = "sinusoidal"
    """How positions enter the embedding of the target."""
    activation: Activation = "relu"
    """Between the layers of the feed-forward networks."""
    norm_first: bool = False
    """LayerNorm before each part of a block instead of behind each sum."""
    final_norm: bool = False
    """One more LayerNorm behind the last block of the encoder and of the decoder."""
    norm_eps: float = 1e-5
    """Added to the variance in LayerNorm."""
    scale_embeddings: bool = True
    """Multiply token embeddings by sqrt(hidden_dim)."""
    dropout: float = 0.1
    """Probability in training of dropping a number of an embedding, of what a part adds, and inside feed-forward."""
    pad_id: int = 0
    """The token that fills up a batch, in sources and in targets."""

    def __post_init__(self) -> None:
        sizes = ["vocab_size", "hidden_dim", "ff_dim", "num_heads", "num_encoder_layers", "num_decoder_layers"]
        sizes += ["max_source_len", "max_target_len", "fields_per_slot"]
        require_positive(**{name: getattr(self, name) for name in sizes})
        if self.target_vocab_size is not None:
            require_positive(target_vocab_size=self.target_vocab_size)
        require(
            self.hidden_dim % self.num_heads == 0,
            f"hidden_dim = {self.hidden_dim} with num_heads = {self.num_heads}",
            "a multiple of num_heads",
            "Each head has hidden_dim / num_heads coordinates.",
        )
        require_activation(self.activation)
        for name in ("source_positions", "target_positions"):
            require(
                getattr(self, name) in ("sinusoidal", "learned", "none"),
                f"{name} = {getattr(self, name)!r}",
                "'sinusoidal', 'learned' or 'none'",
                "Without positions the order of the tokens means nothing.",
            )
        require(self.norm_eps > 0, f"norm_eps = {self.norm_eps}", "a number above 0", "torch uses 1e-5.")
        require(0 <= self.dropout < 1, f"dropout = {self.dropout}", "a probability in [0, 1)", "0 switches it off.")
        fewest = min(self.vocab_size, self.target_vocab)
        whole = isinstance(self.pad_id, int) and not isinstance(self.pad_id, bool)
        require(
            whole and 0 <= self.pad_id < fewest,
            f"pad_id = {self.pad_id!r}",
            f"a whole number in [0, {fewest}), a token of both vocabularies",
            "Reserve one token for padding.",
        )

    @property
    def target_vocab(self) -> int:
        """Number of different target tokens."""
        return self.vocab_size if self.target_vocab_size is None else self.target_vocab_size

    def to_json(self) -> str:
        """The configuration as a JSON object."""
        return config_to_json(self)

    @classmethod
    def from_json(cls, text: str) -> EncoderDecoderConfig:
        """The configuration that :meth:`to_json` wrote.

        Raises:
            InputError: Text that is no JSON object, or names a field that does not exist or misses one that must.
        """
        return config_from_json(cls, text)
