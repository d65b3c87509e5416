"""What an encoder is made of, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from glassformer.errors import require, require_positive
from glassformer.layers.feedforward import Activation, require_activation
from glassformer.models.config_json import config_from_json, config_to_json

Positions = Literal["sinusoidal", "learned", "none"]
Pooling = Literal["mean", "cls", "max"]


@dataclass(frozen=True)
class EncoderConfig:
    """What an :class:`~glassformer.models.encoder.Encoder` is made of. Checked when made; JSON both ways.

    The defaults are the course's encoder. BERT is ``final_norm=False, positions="learned", scale_embeddings=False,
    embedding_norm=True, token_types=2, norm_eps=1e-12, ff_dropout=0.0``.

    Raises:
        InputError: A size that is impossible by itself or beside another.
    """

    vocab_size: int
    """Number of different tokens."""
    num_layers: int
    """Number of blocks."""
    hidden_dim: int
    """Width of the residual stream, a multiple of num_heads."""
    ff_dim: int
    """Width inside the feed-forward network."""
    num_heads: int
    """Heads, each of width hidden_dim / num_heads."""
    max_seq_len: int = 512
    """Longest text in tokens."""
    num_classes: int | None = None
    """Classes to tell apart; None: no classification head."""
    activation: Activation = "gelu"
    """Between the layers of the feed-forward network."""
    norm_first: bool = False
    """LayerNorm before each part of a block instead of behind each sum."""
    norm_eps: float = 1e-5
    """Added to the variance in LayerNorm."""
    final_norm: bool = True
    """One more LayerNorm behind the last block."""
    positions: Positions = "sinusoidal"
    """How positions enter the embedding."""
    scale_embeddings: bool = True
    """Multiply token embeddings by sqrt(hidden_dim)."""
    embedding_norm: bool = False
    """LayerNorm on the embedding."""
    token_types: int = 0
    """Number of different segments that a token can belong to; 0: no embedding of segments."""
    dropout: float = 0.1
    """Probability in training of dropping a number of the embedding, of what a part adds, and of the pooled vector."""
    attention_dropout: float = 0.0
    """Probability of dropping an attention weight in training."""
    ff_dropout: float | None = None
    """Probability of dropping a number inside the feed-forward network in training; None: as dropout."""
    pooling: Pooling = "mean"
    """What is made of a text's positions: their mean, the first one, or the largest of each coordinate."""
    pad_id: int = 0
    """The token that fills up a batch."""

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "num_layers", "hidden_dim", "ff_dim", "num_heads", "max_seq_len")
        require_positive(**{name: getattr(self, name) for name in sizes})
        require(
            self.hidden_dim % self.num_heads == 0,
            f"hidden_dim = {self.hidden_dim} with num_heads = {self.num_heads}",
            "a multiple of num_heads",
            "Each head has hidden_dim / num_heads coordinates.",
        )
        if self.num_classes is not None:
            require_positive(num_classes=self.num_classes)
            require(
                self.num_classes >= 2,
                f"num_classes = {self.num_classes}",
                "at least 2, or None for no head",
                "With one class there is nothing to decide.",
            )
        require_activation(self.activation)
        require(self.norm_eps > 0, f"norm_eps = {self.norm_eps}", "a number above 0", "torch uses 1e-5, BERT 1e-12.")
        require(
            self.positions in ("sinusoidal", "learned", "none"),
            f"positions = {self.positions!r}",
            "'sinusoidal', 'learned' or 'none'",
            "The first transformer has sinusoidal positions, BERT learned ones.",
        )
        require(
            self.pooling in ("mean", "cls", "max"),
            f"pooling = {self.pooling!r}",
            "'mean', 'cls' or 'max'",
            "Sentence encoders mostly take the mean.",
        )
        for name, lowest, highest in (("token_types", 0, None), ("pad_id", 0, self.vocab_size - 1)):
            number = getattr(self, name)
            whole = isinstance(number, int) and not isinstance(number, bool)
            require(
                whole and number >= lowest and (highest is None or number <= highest),
                f"{name} = {number!r}",
                f"a whole number of at least {lowest}" + ("" if highest is None else f" and at most {highest}"),
                "BERT has token_types = 2 and pad_id = 0.",
            )
        for name in ("dropout", "attention_dropout", "ff_dropout"):
            probability = getattr(self, name)
            require(
                (probability is None and name == "ff_dropout") or 0 <= probability < 1,
                f"{name} = {probability}",
                "a probability in [0, 1)",
                "0 switches it off.",
            )

    def to_json(self) -> str:
        """The configuration as a JSON object."""
        return config_to_json(self)

    @classmethod
    def from_json(cls, text: str) -> EncoderConfig:
        """The configuration that :meth:`to_json` wrote.

        Raises:
            InputError: Text that is no JSON object, or names a field that does not exist or misses one that must.
        """
        return config_from_json(cls, text)
