"""The seed's encoder-decoder under the seed's names, built from ``glassformer.layers``.

Masks are inverted on entry: the seed marks padding with True, the library marks real tokens.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from glassformer.data.lookup import PAD
from glassformer.errors import require_heads, require_positive
from glassformer.kernels.pattern import unless_all
from glassformer.layers.blocks import Block
from glassformer.layers.embedding import check_tokens, look_up
from glassformer.layers.feedforward import MLP
from glassformer.layers.grouped_query import GroupedQueryAttention
from glassformer.layers.positions import SinusoidalPositions
from glassformer.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig

_NORM_EPS = 1e-5
"""Number added to the variance in LayerNorm, torch's default."""


class MultiHeadAttention(GroupedQueryAttention):
    """Self-attention in ``forward(x)``, cross-attention in ``forward(x, source)``.

    With ``masked`` it is causal.
    """

    def __init__(self, d_model: int, num_heads: int, *, masked: bool = False) -> None:
        require_positive(d_model=d_model, num_heads=num_heads)
        require_heads(num_heads, d_model=d_model)
        super().__init__(d_model, num_heads, d_model // num_heads, causal=masked, bias=True)


class PositionWiseFeedForward(MLP):
    """``down(dropout(relu(up(x))))``."""

    def __init__(self, d_model: int, d_ff: int, dropout: float = 0.1) -> None:
        super().__init__(d_model, d_ff, "relu", dropout)


class EncoderLayer(Block):
    """Self-attention, then feed-forward, each followed by Add & Norm; no positions."""

    def __init__(self, d_model: int, num_heads: int, d_ff: int, dropout: float = 0.1) -> None:
        feed_forward = PositionWiseFeedForward(d_model, d_ff, dropout)
        super().__init__(
            d_model,
            MultiHeadAttention(d_model, num_heads),
            feed_forward,
            _NORM_EPS,
            norm="layer",
            norm_place="sum",
            dropout=dropout,
        )


class DecoderLayer(Block):
    """Masked self-attention, cross-attention, then feed-forward, each followed by Add & Norm."""

    def __init__(self, d_model: int, num_heads: int, d_ff: int, dropout: float = 0.1) -> None:
        self_attention = MultiHeadAttention(d_model, num_heads, masked=True)
        cross_attention = MultiHeadAttention(d_model, num_heads)
        super().__init__(
            d_model,
            self_attention,
            PositionWiseFeedForward(d_model, d_ff, dropout),
            _NORM_EPS,
            cross=cross_attention,
            norm="layer",
            norm_place="sum",
            dropout=dropout,
        )


class _Stack(nn.Module):
    """Scaled token embeddings, sinusoidal positions if ``positions``, and ``num_layers`` layers."""

    layer: type[EncoderLayer] | type[DecoderLayer]
    positions = False

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        num_heads: int,
        num_layers: int,
        d_ff: int,
        max_seq_len: int,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            self.layer(d_model, num_heads, d_ff, dropout) for _ in range(num_layers)
        )
        self.embedding = nn.Embedding(vocab_size, d_model)
        if self.positions:
            self.pos_encoding = SinusoidalPositions(d_model, max_seq_len)
        self.dropout = nn.Dropout(dropout)
        self.max_seq_len = max_seq_len

    def embed(self, name: str, tokens: Tensor) -> Tensor:
        """Return embeddings times ``sqrt(d_model)``; errors call the tokens ``name``."""
        check_tokens(tokens, self.max_seq_len, name=name)
        return look_up(self.embedding, name, tokens) * self.embedding.embedding_dim**0.5


class Encoder(_Stack):
    """Embeddings without positions, then :class:`EncoderLayer`: the input is read as a set."""

    layer = EncoderLayer

    def forward(
        self,
        enc_input: Int[Tensor, "batch source"],
        src_padding_mask: Bool[Tensor, "batch source"] | None = None,
    ) -> Float[Tensor, "batch source d_model"]:
        """Return a vector for each token. Without a mask, padding is ``enc_input == 0``."""
        x = self.dropout(self.embed("enc_input", enc_input))
        for layer in self.layers:
            x = layer(x, key_padding=_real(enc_input, src_padding_mask))
        return x


class Decoder(_Stack):
    """Embeddings plus sinusoidal positions, then :class:`DecoderLayer`."""

    layer = DecoderLayer
    positions = True

    def forward(
        self,
        dec_input: Int[Tensor, "batch target"],
        enc_output: Float[Tensor, "batch source d_model"],
        src_padding_mask: Bool[Tensor, "batch source"] | None = None,
        tgt_padding_mask: Bool[Tensor, "batch target"] | None = None,
    ) -> Float[Tensor, "batch target d_model"]:
        """Return a vector for each target position.

        Without ``src_padding_mask``, the context has no padding. Without ``tgt_padding_mask``,
        padding is ``dec_input == 0``.
        """
        x = self.dropout(self.pos_encoding(self.embed("dec_input", dec_input)))
        memory_real = None if src_padding_mask is None else unless_all(~src_padding_mask)
        for layer in self.layers:
            real = _real(dec_input, tgt_padding_mask)
            x = layer(x, enc_output, key_padding=real, memory_padding=memory_real)
        return x


class CrossAttentionLookupModel(nn.Module):
    """The seed's model: :class:`Encoder`, :class:`Decoder`, and a projection to logits."""

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        num_heads: int,
        num_layers: int,
        d_ff: int,
        max_seq_len: int,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.config = EncoderDecoderConfig(
            vocab_size=vocab_size,
            hidden_dim=d_model,
            ff_dim=d_ff,
            num_heads=num_heads,
            num_encoder_layers=num_layers,
            num_decoder_layers=num_layers,
            max_source_len=max_seq_len,
            max_target_len=max_seq_len,
            dropout=dropout,
            pad_id=PAD,
        )
        sizes = (vocab_size, d_model, num_heads, num_layers, d_ff, max_seq_len, dropout)
        self.encoder = Encoder(*sizes)
        self.decoder = Decoder(*sizes)
        self.projection = nn.Linear(d_model, vocab_size)
        self.network.reset_parameters()

    def forward(
        self,
        enc_input: Int[Tensor, "batch source"],
        dec_input: Int[Tensor, "batch target"],
        src_padding_mask: Bool[Tensor, "batch source"] | None = None,
        tgt_padding_mask: Bool[Tensor, "batch target"] | None = None,
    ) -> Float[Tensor, "batch target vocab_size"]:
        """Return logits of the token after each position; without masks, token 0 is padding."""
        memory = self.encoder(enc_input, src_padding_mask)
        if src_padding_mask is None:
            src_padding_mask = enc_input == PAD
        return self.projection(self.decoder(dec_input, memory, src_padding_mask, tgt_padding_mask))

    @property
    def network(self) -> EncoderDecoder:
        """The library's encoder-decoder with shared weights and the same logits."""
        with torch.device("meta"):  # the modules are replaced: no memory, no random numbers
            network = EncoderDecoder(self.config)
        network.source_embeddings = nn.ModuleList([self.encoder.embedding])
        network.encoder_layers = self.encoder.layers
        network.decoder_layers = self.decoder.layers
        network.target_embedding = self.decoder.embedding
        network.target_positions = self.decoder.pos_encoding
        network.output = self.projection
        return network.train(self.training)


def _real(tokens: Tensor, padding: Tensor | None) -> Bool[Tensor, "batch position"] | None:
    return unless_all(tokens != PAD if padding is None else ~padding)
