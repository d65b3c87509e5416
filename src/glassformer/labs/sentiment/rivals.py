"""What was used before: a recurrent and a convolutional classifier, trained as the encoder from scratch is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from glassformer.classifier import predict
from glassformer.data.batches import TextBatches
from glassformer.data.examples import Example, SentimentData, fingerprint
from glassformer.data.tokenizer import MAX_LEN, WordTokenizer
from glassformer.errors import require, require_positive
from glassformer.kernels.embedding import look_up
from glassformer.labs.sentiment.measured import Measured, measure
from glassformer.labs.sentiment.recipes import FROM_SCRATCH, TrainingRecipe
from glassformer.labs.sentiment.training_runs import Epoch, epochs_of
from glassformer.models.tokens import check_tokens
from glassformer.training import train
from glassformer.training.classification import ClassificationTask

Kind = Literal["recurrent", "convolutional"]

EMBEDDING_DIM = 64
RECURRENT_DIM = 48
FILTERS, WIDTHS = 43, (3, 4, 5)
"""Such that all that is behind the embedding has about as many parameters as the encoder's block."""

DROPOUT = 0.4
VOCAB_SIZE = FROM_SCRATCH.vocab_size


@dataclass(frozen=True)
class RivalRecipe:
    """How one of them is trained.

    Attributes:
        name: For tables and directories.
        kind: Which network.
        training: How; as the encoder from scratch where nothing else is said.
    """

    name: str
    kind: Kind
    training: TrainingRecipe = FROM_SCRATCH.training


RIVALS = (RivalRecipe("GRU, both directions", "recurrent"), RivalRecipe("convolutions", "convolutional"))


class RecurrentClassifier(nn.Module):
    """A GRU in each direction over embedded tokens, and the mean of its states over real positions::

        logits = head(dropout(mean over real positions of [forward GRU(e), backward GRU(e)]))     e = dropout(embedding)

    Tokens that are not real are left out as if they were not there, in the middle of a text as well; so padding
    changes no prediction. A text without any gives the head's bias.

    Args:
        vocab_size: Number of different tokens.
        num_classes: Classes.
        embedding_dim: Width of an embedding.
        hidden_dim: Width of the state of each direction.
        dropout: Probability of dropping a number of the embedding and of the mean, in training.

    Shape: tokens ``[batch, position]`` to logits ``[batch, num_classes]``.

    Raises:
        InputError: A size below 1, or dropout outside [0, 1).

    Source: Cho et al. 2014, arXiv 1406.1078 (GRU); Schuster and Paliwal 1997, "Bidirectional Recurrent Neural
    Networks".
    """

    def __init__(
        self,
        vocab_size: int,
        num_classes: int = 2,
        embedding_dim: int = EMBEDDING_DIM,
        hidden_dim: int = RECURRENT_DIM,
        dropout: float = DROPOUT,
    ) -> None:
        super().__init__()
        _require_sizes(dropout, vocab_size, num_classes, embedding_dim=embedding_dim, hidden_dim=hidden_dim)
        self.embedding = nn.Embedding(vocab_size, embedding_dim)
        self.gru = nn.GRU(embedding_dim, hidden_dim, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * hidden_dim, num_classes)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, tokens: Int[Tensor, "batch position"], real: Bool[Tensor, "batch position"] | None = None
    ) -> Float[Tensor, "batch num_classes"]:
        """Scores of the classes, before softmax.

        Args:
            tokens: Token ids in [0, vocab_size).
            real: True where a token is real; all are when None.

        Raises:
            InputError: Tokens of another shape or outside the vocabulary, or ``real`` that does not fit.
        """
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

    Before and behind a text stand zeros, so that each real position has a response. Tokens that are not real are left
    out as in :class:`RecurrentClassifier`.

    Args:
        vocab_size: Number of different tokens.
        num_classes: Classes.
        embedding_dim: Width of an embedding.
        filters: Of each width.
        widths: Neighbouring tokens that a filter sees.
        dropout: Probability of dropping a number of the embedding and of the responses, in training.

    Shape: tokens ``[batch, position]`` to logits ``[batch, num_classes]``.

    Raises:
        InputError: A size below 1, no widths, or dropout outside [0, 1).

    Source: Kim 2014, "Convolutional Neural Networks for Sentence Classification", arXiv 1408.5882.
    """

    def __init__(
        self,
        vocab_size: int,
        num_classes: int = 2,
        embedding_dim: int = EMBEDDING_DIM,
        filters: int = FILTERS,
        widths: tuple[int, ...] = WIDTHS,
        dropout: float = DROPOUT,
    ) -> None:
        super().__init__()
        require(len(widths) > 0, "no widths", "at least one", "Kim has (3, 4, 5).")
        narrowest = min(widths)
        _require_sizes(
            dropout, vocab_size, num_classes, embedding_dim=embedding_dim, filters=filters, narrowest_width=narrowest
        )
        self.embedding = nn.Embedding(vocab_size, embedding_dim)
        self.convolutions = nn.ModuleList(nn.Conv1d(embedding_dim, filters, width) for width in widths)
        self.widths = widths
        self.head = nn.Linear(filters * len(widths), num_classes)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, tokens: Int[Tensor, "batch position"], real: Bool[Tensor, "batch position"] | None = None
    ) -> Float[Tensor, "batch num_classes"]:
        """Scores of the classes, before softmax. Arguments and errors as for :class:`RecurrentClassifier`."""
        tokens, real = _without_gaps(tokens, real)
        embedded = self.dropout(look_up(self.embedding, "tokens", tokens)) * real[..., None]
        channels, silent = embedded.transpose(1, 2), ~real[:, None]
        responses = []
        for width, convolution in zip(self.widths, self.convolutions, strict=True):
            response = convolution(F.pad(channels, ((width - 1) // 2, width // 2))).relu()
            # Responses are at least 0, so a text without real tokens gives zeros.
            responses.append(response.masked_fill(silent, 0.0).amax(-1))
        return self.head(self.dropout(torch.cat(responses, dim=-1)))


def build_rival(
    kind: Kind, vocab_size: int, num_classes: int, seed: int
) -> RecurrentClassifier | ConvolutionalClassifier:
    """A new network; its weights are drawn from ``seed``, and torch's generator is left alone.

    Embeddings are normal with standard deviation ``embedding_dim ** -0.5``, as the encoder's are before they are
    scaled. With torch's own, of deviation 1, words that are too rare to be learned stay loud, and the accuracy on
    SST-2's validation sentences is 5 to 9 points lower.

    Raises:
        InputError: An unknown kind, or a size below 1.
    """
    require(
        kind in get_args(Kind), f"kind = {kind!r}", " or ".join(map(repr, get_args(Kind))), "Choose one of the two."
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = (RecurrentClassifier if kind == "recurrent" else ConvolutionalClassifier)(vocab_size, num_classes)
        nn.init.normal_(model.embedding.weight, std=model.embedding.embedding_dim**-0.5)
    return model


@dataclass(frozen=True)
class Rival:
    """A trained network with its vocabulary: from text to classes."""

    model: RecurrentClassifier | ConvolutionalClassifier
    tokenizer: WordTokenizer

    def probabilities(self, texts: Sequence[str]) -> Float[Tensor, "text num_classes"]:
        """The probability of each class for each text, in the order of ``texts``.

        Raises:
            InputError: No texts, or one that is no string.
        """
        rows = [self.tokenizer.encode(text, MAX_LEN) for text in texts]
        return predict(self.model, rows, self.tokenizer.pad_id)


class TrainedRival(NamedTuple):
    """What :func:`train_rival` came to: the network, ready to predict, its row of the table, and its epochs."""

    rival: Rival
    measured: Measured
    epochs: list[Epoch]


def train_rival(recipe: RivalRecipe, data: SentimentData, directory: Path | None, seed: int) -> TrainedRival:
    """Train one, and measure. Weights are those of the last step; test texts are predicted once, after training.

    Args:
        recipe: Which, and how.
        data: Its vocabulary knows training texts only.
        directory: Keeps the run, and continues what is there; None keeps nothing.
        seed: Of weights, order and dropout.

    Raises:
        InputError: ``directory`` holds another run, or one on other texts.
        KeyboardInterrupt: The training was interrupted. What it did is saved, if there is a directory.
    """
    tokenizer = WordTokenizer.from_texts([example.text for example in data.train], VOCAB_SIZE)
    rival = Rival(build_rival(recipe.kind, tokenizer.vocab_size, len(data.classes), seed), tokenizer)

    def batches(examples: Sequence[Example]) -> TextBatches:
        rows = [tokenizer.encode(example.text, MAX_LEN) for example in examples]
        return TextBatches(rows, [example.label for example in examples], tokenizer.pad_id, seed=seed)

    task = ClassificationTask(
        batches(data.train),
        batches(data.validation),
        len(data.classes),
        word_dropout=recipe.training.word_dropout,
        label_smoothing=recipe.training.label_smoothing,
    )
    config = recipe.training.config(len(data.train), seed)
    result = train(
        rival.model,
        task,
        config,
        directory,
        resume=directory is not None and (Path(directory) / "config.json").exists(),
        description={
            "rival": recipe.kind,
            "texts": len(data.train),
            "fingerprint": fingerprint(data),
            "seed": seed,
        },
        progress=False,
    )
    if result.ending == "interrupted":
        raise KeyboardInterrupt
    rival.model.eval()
    measured = measure(
        recipe.name,
        seed,
        data,
        rival.probabilities,
        num_parameters=sum(weight.numel() for weight in rival.model.parameters()),
        training_seconds=result.seconds,
        validation_accuracy=result.evaluations[-1][1]["accuracy"],
    )
    return TrainedRival(rival, measured, epochs_of(result, config.eval_every))


def _without_gaps(tokens: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
    """Real tokens moved together to the front, in their order; the columns that no text needs cut off."""
    check_tokens(tokens, tokens.shape[-1], real=real, real_name="real")
    if real is None:
        return tokens, torch.ones_like(tokens, dtype=torch.bool)
    order = (~real).to(torch.uint8).argsort(dim=1, stable=True)
    longest = max(1, int(real.sum(1).max()))
    return tokens.gather(1, order)[:, :longest], real.gather(1, order)[:, :longest]


def _require_sizes(dropout: float, vocab_size: int, num_classes: int, **sizes: int) -> None:
    require_positive(vocab_size=vocab_size, num_classes=num_classes, **sizes)
    require(0 <= dropout < 1, f"dropout = {dropout}", "a probability in [0, 1)", "Use 0 to switch it off.")
