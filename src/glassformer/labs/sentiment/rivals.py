"""What encoders are compared with: counted words, a recurrent and a convolutional network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from glassformer.data.examples import Example, SentimentData
from glassformer.errors import InputError, require
from glassformer.layers.embedding import check_tokens, look_up


class RecurrentClassifier(nn.Module):
    """A GRU in each direction over embedded tokens, and the mean of its states over real positions::

        logits = head(dropout(mean over real positions of [forward GRU(e), backward GRU(e)]))     e = dropout(embedding)

    Tokens that are not real are removed, also within a text. A text without real tokens gives the head's bias.

    Source: Cho et al. 2014, arXiv 1406.1078 (GRU); Schuster and Paliwal 1997, "Bidirectional Recurrent Neural
    Networks".
    """

    def __init__(
        self, vocab_size: int, num_classes: int, embedding_dim: int = 64, hidden_dim: int = 48, dropout: float = 0.4
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embedding_dim)
        self.gru = nn.GRU(embedding_dim, hidden_dim, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * hidden_dim, num_classes)
        self.dropout = nn.Dropout(dropout)
        nn.init.normal_(self.embedding.weight, std=embedding_dim**-0.5)

    def forward(
        self, tokens: Int[Tensor, "batch position"], real: Bool[Tensor, "batch position"]
    ) -> Float[Tensor, "batch num_classes"]:
        """Logits; ``real`` is True where a token is real."""
        tokens, real = _without_gaps(tokens, real)
        embedded = self.dropout(look_up(self.embedding, "tokens", tokens))
        # Packed, the backward direction starts at each text's own last token.
        lengths = real.sum(1).clamp(min=1).cpu()
        packed = pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.gru(packed)[0], batch_first=True, total_length=tokens.shape[1])
        share = real / real.sum(1, keepdim=True).clamp(min=1)
        return self.head(self.dropout(torch.einsum("bp,bph->bh", share.to(states.dtype), states)))


class ConvolutionalClassifier(nn.Module):
    """Filters over 3, 4 and 5 neighbouring tokens, and the largest response of each::

        logits = head(dropout([max over real positions of relu(conv_w(e)) for w in widths]))    e = dropout(embedding)

    A text is padded with zero vectors, so that each real position has a response. Tokens that are not real are removed.

    Source: Kim 2014, "Convolutional Neural Networks for Sentence Classification", arXiv 1408.5882.
    """

    def __init__(
        self,
        vocab_size: int,
        num_classes: int,
        embedding_dim: int = 64,
        filters: int = 43,
        widths: tuple[int, ...] = (3, 4, 5),
        dropout: float = 0.4,
    ) -> None:
        super().__init__()
        self.embedding, self.widths = nn.Embedding(vocab_size, embedding_dim), widths
        self.convolutions = nn.ModuleList(nn.Conv1d(embedding_dim, filters, width) for width in widths)
        self.head = nn.Linear(filters * len(widths), num_classes)
        self.dropout = nn.Dropout(dropout)
        nn.init.normal_(self.embedding.weight, std=embedding_dim**-0.5)

    def forward(
        self, tokens: Int[Tensor, "batch position"], real: Bool[Tensor, "batch position"]
    ) -> Float[Tensor, "batch num_classes"]:
        """Logits; ``real`` is True where a token is real."""
        tokens, real = _without_gaps(tokens, real)
        embedded = self.dropout(look_up(self.embedding, "tokens", tokens)) * real[..., None]
        channels, responses = embedded.transpose(1, 2), []
        for width, convolution in zip(self.widths, self.convolutions, strict=True):
            response = convolution(F.pad(channels, ((width - 1) // 2, width // 2))).relu()
            # Responses are at least 0, so a text without real tokens gives zeros.
            responses.append(response.masked_fill(~real[:, None], 0.0).amax(-1))
        return self.head(self.dropout(torch.cat(responses, dim=-1)))


def _without_gaps(tokens: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """Real tokens moved together to the front, in their order; the columns that no text needs cut off."""
    check_tokens(tokens, tokens.shape[-1], real=real, real_name="real")
    order = (~real).to(torch.uint8).argsort(dim=1, stable=True)
    longest = max(1, int(real.sum(1).max()))
    return tokens.gather(1, order)[:, :longest], real.gather(1, order)[:, :longest]


@dataclass(frozen=True)
class TfidfRecipe:
    """Which terms count, and by how much their weights are penalised."""

    name: str
    max_features: int | None = None  # the most frequent terms; None: all
    stop_words: str | None = None  # "english" leaves out scikit-learn's list, which contains "not" and "never"
    max_ngram: int = 1  # terms of up to so many neighbouring words
    strengths: tuple[float, ...] = (1.0,)  # scikit-learn's C; validation accuracy chooses, the first wins a tie


class TfidfClassifier:
    """Logistic regression on TF-IDF: ``log(p / (1 - p)) = w · x + b`` for two classes, a softmax for more.

    ``x`` has, for each term t, count(t) · (ln((1 + n) / (1 + n_t)) + 1) with n training texts of which n_t hold t,
    scaled to length 1. ``strength`` is scikit-learn's C; the recipe's first when None.

    Source: scikit-learn's ``TfidfVectorizer`` and ``LogisticRegression``.
    """

    def __init__(self, train: Sequence[Example], recipe: TfidfRecipe, strength: float | None = None) -> None:
        labels = [example.label for example in train]
        found = sorted(set(labels))
        require(len(found) >= 2, f"{len(train)} examples of the classes {found}", "at least two classes", "Add texts.")
        self._vectorizer = TfidfVectorizer(
            max_features=recipe.max_features, stop_words=recipe.stop_words, ngram_range=(1, recipe.max_ngram)
        )
        try:
            features = self._vectorizer.fit_transform([example.text for example in train])
        except ValueError as error:
            fix = "Pass other texts, or keep the stop words."
            raise InputError(f"texts without a term: {error}", "at least one word of two letters", fix) from error
        self._regression = LogisticRegression(C=strength or recipe.strengths[0], max_iter=1000).fit(features, labels)

    @property
    def num_parameters(self) -> int:
        """Weights and biases of the regression, without the terms' frequencies."""
        return int(self._regression.coef_.size + self._regression.intercept_.size)

    def probabilities(self, texts: Sequence[str], num_classes: int = 2) -> Float[np.ndarray, "text num_classes"]:
        """The probability of each class for each text; 0 for a class that training had no example of."""
        found = np.zeros((len(texts), num_classes))
        found[:, self._regression.classes_] = self._regression.predict_proba(self._vectorizer.transform(texts))
        return found


def fit_counts(recipe: TfidfRecipe, data: SentimentData) -> tuple[TfidfClassifier, float]:
    """Train at each of the recipe's strengths; the classifier of the best validation accuracy, and its strength."""
    texts, labels = zip(*((example.text, example.label) for example in data.validation), strict=True)
    fitted = [TfidfClassifier(data.train, recipe, strength) for strength in recipe.strengths]
    right = [int((each.probabilities(texts, len(data.classes)).argmax(1) == labels).sum()) for each in fitted]
    best = int(np.argmax(right))
    return fitted[best], recipe.strengths[best]
