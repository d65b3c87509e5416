"""The course's layers other than attention, under its own names: thin doors to ``glassformer.layers``."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.errors import InputError, require, require_positive
from glassformer.layers.feedforward import MLP
from glassformer.layers.sinusoids import SinusoidalPositions


class TokenEmbedding(nn.Module):
    """``sqrt(d_model) * embedding[token]`` for every token.

    Args:
        vocab_size: Number of different tokens.
        d_model: Width of a position.

    Shape: tokens ``[...]`` to ``[..., d_model]``.

    Raises:
        InputError: A size below 1.

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.4.
    """

    def __init__(self, vocab_size: int, d_model: int) -> None:
        super().__init__()
        require_positive(vocab_size=vocab_size, d_model=d_model)
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.d_model = d_model

    def forward(self, x: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch d_model"]:
        """Look up the tokens.

        Raises:
            InputError: A token outside the vocabulary.
        """
        try:
            return self.embedding(x) * self.d_model**0.5
        except IndexError as error:
            raise InputError(
                f"tokens from {int(x.min())} to {int(x.max())}",
                f"tokens in [0, {self.embedding.num_embeddings})",
                "Use the tokenizer whose vocabulary the model was made for.",
            ) from error


class PositionalEncoding(SinusoidalPositions):
    """Adds sines and cosines of the position, see :class:`~glassformer.layers.sinusoids.SinusoidalPositions`.

    Args:
        d_model: Width of a position.
        max_length: Positions to compute.

    Raises:
        InputError: A size below 1.
    """

    def __init__(self, d_model: int, max_length: int = 512) -> None:
        require_positive(d_model=d_model, max_length=max_length)
        super().__init__(d_model, max_length)

    @property
    def pe(self) -> Float[Tensor, "max_length d_model"]:
        """What is added, ``[position, d_model]``, under the course's name."""
        return self.table


class TransformerEmbeddings(nn.Module):
    """``dropout(token_embedding(tokens) + positions)``.

    Args:
        vocab_size: Number of different tokens.
        d_model: Width of a position.
        max_length: Longest text in tokens.
        dropout: Probability of dropping a number in training.

    Shape: tokens ``[batch, position]`` to ``[batch, position, d_model]``.

    Raises:
        InputError: A size below 1.
    """

    def __init__(self, vocab_size: int, d_model: int, max_length: int = 512, dropout: float = 0.1) -> None:
        super().__init__()
        self.token_embedding = TokenEmbedding(vocab_size, d_model)
        self.pos_encoding = PositionalEncoding(d_model, max_length)
        self.dropout = nn.Dropout(dropout)

    def forward(self, input_ids: Int[Tensor, "batch position"]) -> Float[Tensor, "batch position d_model"]:
        """Embed the tokens where they stand.

        Raises:
            InputError: A token outside the vocabulary, or a text longer than ``max_length``.
        """
        return self.dropout(self.pos_encoding(self.token_embedding(input_ids)))


class LayerNorm(nn.Module):
    """The course's own layer normalisation, to compare with torch's::

        output = gamma * (x - mean) / (std + eps) + beta        std ** 2 = sum (x - mean) ** 2 / (features - 1)

    torch's divides by ``sqrt(var + eps)`` with ``var = sum (x - mean) ** 2 / features`` and ``eps = 1e-5``, and is what
    all models here use. At equal gamma and beta = 0 the course's output is that of torch times ::

        sqrt(var + eps of torch) / (std + eps)

    which for inputs of ordinary size is sqrt((features - 1) / features): 0.992 for 64 features, 0.9987 for 384. A model
    can undo a constant factor with gamma. For deviations below about 0.003 it is no constant any more: torch's output
    fades to 0 with them, the course's keeps its size down to deviations of about 1e-6.

    Args:
        features: Width of a position, at least 2.
        eps: Added to the standard deviation, above 0.

    Shape: ``[..., features]`` to the same.

    Raises:
        InputError: One feature, whose deviation from itself is unknown, or ``eps`` of 0 or less.

    Source: Ba et al. 2016, arXiv 1607.06450; the variant with the unbiased deviation: Rush et al. 2018, "The Annotated
    Transformer".
    """

    def __init__(self, features: int, eps: float = 1e-6) -> None:
        super().__init__()
        require_positive(features=features)
        require(features >= 2, f"features = {features}", "at least 2", "One number has no deviation from its mean.")
        require(eps > 0, f"eps = {eps}", "a number above 0", "The course uses 1e-6.")
        self.gamma = nn.Parameter(torch.ones(features))
        self.beta = nn.Parameter(torch.zeros(features))
        self.eps = eps

    def forward(self, x: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch features"]:
        """Normalise every position on its own."""
        mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
        return self.gamma * (x - mean) / (std + self.eps) + self.beta


class FeedForward(MLP):
    """``linear2(dropout(relu(linear1(x))))``, see :class:`~glassformer.layers.feedforward.MLP`.

    Args:
        d_model: Width of input and output.
        d_ff: Width inside.
        dropout: Probability of dropping a number inside in training.

    Raises:
        InputError: A size below 1, or dropout outside [0, 1).

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.3.
    """

    def __init__(self, d_model: int, d_ff: int, dropout: float = 0.1) -> None:
        require_positive(d_model=d_model, d_ff=d_ff)
        super().__init__(d_model, d_ff, "relu", dropout)

    @property
    def linear1(self) -> nn.Linear:
        """The first layer, under the course's name."""
        return self.up

    @property
    def linear2(self) -> nn.Linear:
        """The second layer, under the course's name."""
        return self.down
