"""The course's encoder-decoder under its own names: the parts of ``glassformer.layers``, composed as the course says.

Layers are the house's own with the course's constructors. Masks are translated where they enter: the course marks
padding with True, the house what is real. :attr:`CrossAttentionLookupModel.network` is the
:class:`~glassformer.models.encoder_decoder.EncoderDecoder` with the same weights, which is what is trained, decoded
with and looked into.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from glassformer.data.lookup import PAD
from glassformer.errors import require, require_positive
from glassformer.kernels.embedding import look_up
from glassformer.layers.blocks import CrossBlock, EncoderBlock
from glassformer.layers.feedforward import MLP
from glassformer.layers.grouped_query import GroupedQueryAttention
from glassformer.layers.sinusoids import SinusoidalPositions
from glassformer.models.encoder_decoder import EncoderDecoder
from glassformer.models.encoder_decoder_config import EncoderDecoderConfig
from glassformer.models.tokens import check_tokens


class MultiHeadAttention(GroupedQueryAttention):
    """Attention in ``num_heads`` heads side by side: a
    :class:`~glassformer.layers.grouped_query.GroupedQueryAttention` in which no heads share keys.

    ``forward(x)`` is self-attention, ``forward(x, source)`` cross-attention; ``key_padding`` is True where a key is
    real.

    Args:
        d_model: Width of input and output, a multiple of ``num_heads``.
        num_heads: Heads.
        masked: Each position sees itself and earlier ones only.

    Raises:
        InputError: Sizes below 1 or that do not divide.

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.2.2.
    """

    def __init__(self, d_model: int, num_heads: int, *, masked: bool = False) -> None:
        require_positive(d_model=d_model, num_heads=num_heads)
        require(
            d_model % num_heads == 0,
            f"d_model = {d_model} with num_heads = {num_heads}",
            "a multiple of num_heads",
            "Each head has d_model / num_heads coordinates.",
        )
        super().__init__(d_model, num_heads, d_model // num_heads, causal=masked, bias=True)


class PositionWiseFeedForward(MLP):
    """``down(dropout(relu(up(x))))``, see :class:`~glassformer.layers.feedforward.MLP`.

    Args:
        d_model: Width of input and output.
        d_ff: Width inside.
        dropout: Probability of dropping a number inside in training.

    Raises:
        InputError: A size below 1, or dropout outside [0, 1).
    """

    def __init__(self, d_model: int, d_ff: int, dropout: float = 0.1) -> None:
        require_positive(d_model=d_model, d_ff=d_ff)
        super().__init__(d_model, d_ff, "relu", dropout)


class EncoderLayer(EncoderBlock):
    """Self-attention, then feed-forward, a norm behind each sum; no positions anywhere.

    Args:
        d_model: Width of a position, a multiple of ``num_heads``.
        num_heads: Heads.
        d_ff: Width inside the feed-forward network.
        dropout: Probability of dropping a number in training.

    Raises:
        InputError: Sizes below 1 or that do not divide, or dropout outside [0, 1).
    """

    def __init__(self, d_model: int, num_heads: int, d_ff: int, dropout: float = 0.1) -> None:
        feed_forward = PositionWiseFeedForward(d_model, d_ff, dropout)
        super().__init__(MultiHeadAttention(d_model, num_heads), feed_forward, d_model, dropout=dropout)


class DecoderLayer(CrossBlock):
    """Masked self-attention, cross-attention, then feed-forward, a norm behind each sum; arguments as
    :class:`EncoderLayer`.

    Raises:
        InputError: As there.
    """

    def __init__(self, d_model: int, num_heads: int, d_ff: int, dropout: float = 0.1) -> None:
        super().__init__(
            MultiHeadAttention(d_model, num_heads, masked=True),
            MultiHeadAttention(d_model, num_heads),
            PositionWiseFeedForward(d_model, d_ff, dropout),
            d_model,
            dropout=dropout,
        )


class Encoder(nn.Module):
    """Token embeddings times ``sqrt(d_model)``, then ``num_layers`` :class:`EncoderLayer`; what it reads is a set.

    Args:
        vocab_size: Number of different tokens; 0 is padding.
        d_model: Width of a position, a multiple of ``num_heads``.
        num_heads: Heads.
        num_layers: Layers.
        d_ff: Width inside the feed-forward networks.
        max_seq_len: Most tokens of a context.
        dropout: Probability of dropping a number in training.

    Raises:
        InputError: Sizes below 1 or that do not divide, or dropout outside [0, 1).
    """

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
        require_positive(vocab_size=vocab_size, num_layers=num_layers, max_seq_len=max_seq_len)
        self.layers = nn.ModuleList(EncoderLayer(d_model, num_heads, d_ff, dropout) for _ in range(num_layers))
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.dropout = nn.Dropout(dropout)
        self.max_seq_len = max_seq_len

    def forward(
        self, enc_input: Int[Tensor, "batch source"], src_padding_mask: Bool[Tensor, "batch source"] | None = None
    ) -> Float[Tensor, "batch source d_model"]:
        """What the decoder reads: one vector for each token.

        Args:
            enc_input: The context.
            src_padding_mask: True where it is padding; ``enc_input == 0`` when None.

        Raises:
            InputError: An empty context, one longer than ``max_seq_len``, unknown tokens, or a mask that does not fit.
        """
        check_tokens(enc_input, self.max_seq_len, name="enc_input")
        real = _real("src_padding_mask", src_padding_mask, enc_input)
        x = self.dropout(look_up(self.embedding, "enc_input", enc_input) * self.embedding.embedding_dim**0.5)
        for layer in self.layers:
            x = layer(x, key_padding=real)
        return x


class Decoder(nn.Module):
    """Token embeddings times ``sqrt(d_model)`` plus sinusoidal positions, then ``num_layers`` :class:`DecoderLayer`.

    Arguments and errors as for :class:`Encoder`.
    """

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
        require_positive(vocab_size=vocab_size, num_layers=num_layers, max_seq_len=max_seq_len)
        self.layers = nn.ModuleList(DecoderLayer(d_model, num_heads, d_ff, dropout) for _ in range(num_layers))
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.pos_encoding = SinusoidalPositions(d_model, max_seq_len)
        self.dropout = nn.Dropout(dropout)
        self.max_seq_len = max_seq_len

    def forward(
        self,
        dec_input: Int[Tensor, "batch target"],
        enc_output: Float[Tensor, "batch source d_model"],
        src_padding_mask: Bool[Tensor, "batch source"] | None = None,
        tgt_padding_mask: Bool[Tensor, "batch target"] | None = None,
    ) -> Float[Tensor, "batch target d_model"]:
        """One vector for each position of the target.

        Args:
            dec_input: The target so far, which begins with ``[SOS]``.
            enc_output: What the encoder made of the context.
            src_padding_mask: True where the context is padding; nowhere when None.
            tgt_padding_mask: True where the target is padding; ``dec_input == 0`` when None.

        Raises:
            InputError: An empty target, one longer than ``max_seq_len``, unknown tokens, or a mask that does not fit.
        """
        check_tokens(dec_input, self.max_seq_len, name="dec_input")
        real = _real("tgt_padding_mask", tgt_padding_mask, dec_input)
        read = None
        if src_padding_mask is not None:
            read = _real("src_padding_mask", src_padding_mask, enc_output[..., 0])
        embedded = look_up(self.embedding, "dec_input", dec_input) * self.embedding.embedding_dim**0.5
        x = self.dropout(self.pos_encoding(embedded))
        for layer in self.layers:
            x = layer(x, enc_output, key_padding=real, memory_padding=read)
        return x


class CrossAttentionLookupModel(nn.Module):
    """The course's model: :class:`Encoder`, :class:`Decoder`, and a projection to logits.

    It is the :class:`~glassformer.models.encoder_decoder.EncoderDecoder` that its ``config`` describes, with the
    course's names of parts, initialised alike.

    Args:
        vocab_size: Number of different tokens; 0 is padding.
        d_model: Width of a position, a multiple of ``num_heads``.
        num_heads: Heads of each attention.
        num_layers: Layers of the encoder, and as many of the decoder.
        d_ff: Width inside the feed-forward networks.
        max_seq_len: Longest context, and longest target with ``[SOS]``, in tokens.
        dropout: Probability of dropping a number in training.

    Raises:
        InputError: Sizes below 1 or that do not divide, or dropout outside [0, 1).

    Source: Vaswani et al. 2017, arXiv 1706.03762, without its positions in the encoder.
    """

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
        sizes = (vocab_size, d_model, num_heads, num_layers, d_ff, max_seq_len, dropout)
        self.encoder, self.decoder = Encoder(*sizes), Decoder(*sizes)
        self.projection = nn.Linear(d_model, vocab_size)
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
        self.network.reset_parameters()

    def forward(
        self,
        enc_input: Int[Tensor, "batch source"],
        dec_input: Int[Tensor, "batch target"],
        src_padding_mask: Bool[Tensor, "batch source"] | None = None,
        tgt_padding_mask: Bool[Tensor, "batch target"] | None = None,
    ) -> Float[Tensor, "batch target vocab_size"]:
        """Logits of the token after each position of ``dec_input``.

        Args:
            enc_input: The context.
            dec_input: The target, shifted right behind ``[SOS]``.
            src_padding_mask: True where the context is padding; ``enc_input == 0`` when None.
            tgt_padding_mask: True where the target is padding; ``dec_input == 0`` when None.

        Raises:
            InputError: What :class:`Encoder` and :class:`Decoder` refuse.
        """
        memory = self.encoder(enc_input, src_padding_mask)
        src_padding_mask = enc_input == PAD if src_padding_mask is None else src_padding_mask
        return self.projection(self.decoder(dec_input, memory, src_padding_mask, tgt_padding_mask))

    @property
    def network(self) -> EncoderDecoder:
        """The encoder-decoder that computes the same logits, with these very weights: training one trains the other."""
        with torch.device("meta"):  # no memory and no random numbers for what is replaced at once
            network = EncoderDecoder(self.config)
        network.source_embeddings = nn.ModuleList([self.encoder.embedding])
        network.encoder_layers, network.decoder_layers = self.encoder.layers, self.decoder.layers
        network.target_embedding, network.target_positions = self.decoder.embedding, self.decoder.pos_encoding
        network.output = self.projection
        return network.train(self.training)


def _real(name: str, mask: Tensor | None, tokens: Tensor) -> Bool[Tensor, "batch position"] | None:
    """Where a token is real; None if all are, which spares the mask."""
    require(
        mask is None or (mask.shape == tokens.shape and mask.dtype == torch.bool),
        "nothing" if mask is None else f"{name} of shape {list(mask.shape)} and dtype {mask.dtype}",
        f"torch.bool and the shape {list(tokens.shape)}",
        "Give True for each padding token and False for each real one, as collate_fn does.",
    )
    real = tokens != PAD if mask is None else ~mask
    return None if bool(real.all()) else real
