"""The encoder: every position sees every other; a text becomes a vector or scores of classes."""

from __future__ import annotations

import pkgutil
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn

from glassformer.config import Config, Count, Positive, Probability, Size, config
from glassformer.errors import InputError
from glassformer.kernels.pattern import unless_all
from glassformer.layers.blocks import initialise, run_stack
from glassformer.layers.embedding import check_tokens, look_up
from glassformer.layers.options import EncoderActivation
from glassformer.layers.positions import SinusoidalPositions
from glassformer.models.block_config import Attention, FeedForward, Norms
from glassformer.models.building import build_block

Positions = Literal["sinusoidal", "learned", "none"]
"""Kinds of position embedding. With "none" the order of the tokens has no effect."""
Pooling = Literal["mean", "cls", "max"]


@config
class EncoderConfig(Config):
    """The parts of an :class:`~glassformer.models.encoder.Encoder`.

    The defaults are the course's encoder. BERT is ``final_norm=False, positions="learned",
    scale_embeddings=False, embedding_norm=True, token_types=2, norm_eps=1e-12, ff_dropout=0.0``.
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
    """Probability in training of dropping a number of the embedding, of what a part adds, and of
    the pooled vector.
    """
    attention_dropout: Probability = 0.0
    """Probability of dropping an attention weight in training."""
    ff_dropout: Probability | None = None
    """Probability of dropping a number inside the feed-forward network in training; None: as
    dropout.
    """
    pooling: Pooling = "mean"
    """How positions become one vector: their mean, the first one, or the maximum of each
    coordinate.
    """
    pad_id: Count = 0
    """The padding token."""

    def __post_init__(self) -> None:
        # A part checks its fields when it is created.
        _parts = (self.attention, self.network, self.norms)
        if self.pad_id >= self.vocab_size:
            raise InputError(
                got=f"pad_id = {self.pad_id}",
                expected=f"below vocab_size = {self.vocab_size}",
                fix="Reserve a token of the vocabulary for padding.",
            )

    @property
    def attention(self) -> Attention:
        """Attention of every block."""
        return Attention.sharing(self.hidden_dim, self.num_heads, self.attention_dropout)

    @property
    def network(self) -> FeedForward:
        """Feed-forward network of every block."""
        if self.ff_dropout is None:
            dropout = self.dropout
        else:
            dropout = self.ff_dropout
        return FeedForward(self.ff_dim, self.activation, dropout=dropout)

    @property
    def norms(self) -> Norms:
        """Norms of every block."""
        return Norms(self.norm_eps, "layer", "before" if self.norm_first else "sum")


def make_positions(kind: Positions, width: int, length: int) -> nn.Module | None:
    """Return the position embedding of an encoder or a decoder."""
    if kind == "none":
        return None
    if kind == "sinusoidal":
        return SinusoidalPositions(width, length)
    return nn.Embedding(length, width)


class Encoder(nn.Module):
    """An encoder-only transformer.

    It is an embedding with positions, blocks, a pooled vector and a classification head.

    Texts of a batch are padded with ``pad_id`` on the *right*, since positions count from the first
    column. No token attends to padding, and the pooled vector does not contain it, so it changes no
    prediction.

    Initialisation: see :func:`~glassformer.layers.blocks.initialise`; embeddings are normal such
    that they enter the residual stream with a size of about 1, or ``hidden_dim ** -0.5`` where a
    norm follows; the head is normal with standard deviation ``HEAD_STD``, so that initial
    predictions are close to uniform.

    Shape: tokens ``[batch, position]`` to logits ``[batch, num_classes]``.

    Source: Vaswani et al. 2017, arXiv 1706.03762; Devlin et al. 2018, arXiv 1810.04805 (BERT).
    """

    HEAD_STD = 0.02

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        width = config.hidden_dim
        self.embedding = nn.Embedding(config.vocab_size, width)
        self.positions = make_positions(config.positions, width, config.max_seq_len)
        self.token_types: nn.Embedding | None = None
        if config.token_types:
            self.token_types = nn.Embedding(config.token_types, width)
        self.embedding_norm: nn.LayerNorm | None = None
        if config.embedding_norm:
            self.embedding_norm = nn.LayerNorm(width, eps=config.norm_eps)
        self.layers = nn.ModuleList(
            build_block(
                width,
                config.attention,
                config.network,
                config.norms,
                causal=False,
                dropout=config.dropout,
            )
            for _ in range(config.num_layers)
        )
        self.final_norm: nn.LayerNorm | None = None
        if config.final_norm:
            self.final_norm = nn.LayerNorm(width, eps=config.norm_eps)
        self.classifier: nn.Linear | None = None
        if config.num_classes is not None:
            self.classifier = nn.Linear(width, config.num_classes)
        self.reset_parameters()

    @classmethod
    def from_pretrained(cls, source: str | Path, **options: Any) -> Encoder:
        """Load an encoder from a directory or from the Hugging Face hub.

        A model on the hub is named as ``"sentence-transformers/all-MiniLM-L6-v2"``. Options are
        those of :func:`glassformer.checkpoints.bert.load_encoder`.
        """
        encoder: Encoder = pkgutil.resolve_name("glassformer.checkpoints.bert:load_encoder")(
            source, **options
        )
        return encoder

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw all weights anew from torch's generator."""
        config = self.config
        initialise(self, {"layers": 2 * config.num_layers})
        if not config.embedding_norm:
            tables = [self.positions, self.token_types]
            if not config.scale_embeddings:
                tables.append(self.embedding)
            for table in tables:
                if isinstance(table, nn.Embedding):
                    nn.init.normal_(table.weight)
        if self.classifier is not None:
            nn.init.normal_(self.classifier.weight, std=self.HEAD_STD)

    def forward(
        self,
        tokens: Int[Tensor, "batch position"],
        real: Bool[Tensor, "batch position"] | None = None,
        *,
        types: Int[Tensor, "batch position"] | None = None,
    ) -> Float[Tensor, "batch num_classes"]:
        """Return scores of the classes, before softmax. Arguments are those of :meth:`hidden`."""
        classifier = self.classifier
        if classifier is None:
            raise InputError(
                got="an encoder without a classification head",
                expected="num_classes in its configuration",
                fix="Build or load it with num_classes, or call hidden() and pool() for vectors.",
            )
        if real is None:
            real = tokens != self.config.pad_id
        pooled = self.pool(self.hidden(tokens, real, types=types), real)
        return classifier(F.dropout(pooled, self.config.dropout, self.training))

    def hidden(
        self,
        tokens: Int[Tensor, "batch position"],
        real: Bool[Tensor, "batch position"] | None = None,
        *,
        types: Int[Tensor, "batch position"] | None = None,
    ) -> Float[Tensor, "batch position hidden_dim"]:
        """Return the residual stream after the last block and the final norm, if there is one.

        Args:
            tokens: Token ids in [0, vocab_size).
            real: True where a token is real, False for padding; ``tokens != pad_id`` when None. The
                output at padding is meaningless.
            types: The segment of each token, in [0, token_types); 0 for all when None.
        """
        check_tokens(tokens, self.config.max_seq_len, real=real, real_name="real")
        if types is not None:
            self._check_types(types, tokens)
        key_padding = unless_all(tokens != self.config.pad_id if real is None else real)
        x = self._embed(tokens, types)
        return run_stack(self.layers, self.final_norm, x, key_padding=key_padding)

    def pool(
        self,
        hidden: Float[Tensor, "batch position hidden_dim"],
        real: Bool[Tensor, "batch position"] | None = None,
    ) -> Float[Tensor, "batch hidden_dim"]:
        """Return one vector for each text from the result of :meth:`hidden`.

        It depends on ``config.pooling``::

            mean   sum over real positions of hidden / number of real positions
            max    the maximum of each coordinate over real positions
            cls    hidden of the first position

        All positions are real when ``real`` is None. A text without any real position gives zeros
        by ``mean`` and ``max``.
        """
        if self.config.pooling == "cls":
            return hidden[:, 0]
        if self.config.pooling == "mean":
            if real is None:
                return hidden.mean(1)
            wide = torch.promote_types(hidden.dtype, torch.float32)
            share = real.to(wide) / real.sum(1, keepdim=True).clamp(min=1)
            return torch.einsum("bp,bph->bh", share.to(hidden.dtype), hidden)
        if real is None:
            return hidden.amax(1)
        largest = hidden.masked_fill(~real[..., None], -torch.inf).amax(1)
        return largest.masked_fill(~real.any(1, keepdim=True), 0.0)

    def _embed(self, tokens: Tensor, types: Tensor | None) -> Tensor:
        config = self.config
        x = look_up(self.embedding, "tokens", tokens)
        if config.scale_embeddings:
            x = x * config.hidden_dim**0.5
        added: Tensor | None = None
        if isinstance(self.positions, nn.Embedding):
            added = self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        elif self.positions is not None:
            x = self.positions(x)
        if self.token_types is not None:
            if types is None:
                segment = self.token_types(tokens.new_zeros(1))
            else:
                segment = look_up(self.token_types, "types", types)
            if added is None:
                added = segment
            else:
                added = added + segment
        if added is not None:
            x = x + added
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        return F.dropout(x, config.dropout, self.training)

    def _check_types(self, types: Tensor, tokens: Tensor) -> None:
        if self.token_types is None:
            raise InputError(
                got="types for an encoder with token_types = 0",
                expected="none",
                fix="Omit types, or make the model with token_types.",
            )
        if types.shape != tokens.shape or types.dtype not in (torch.int64, torch.int32):
            raise InputError(
                got=f"types of shape {list(types.shape)} and dtype {types.dtype}",
                expected=f"int64 or int32 and the shape of the tokens, {list(tokens.shape)}",
                fix="Give each token the number of its segment.",
            )
