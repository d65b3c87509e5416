"""What the sentiment lab trains on real sentences, as data: the one place where it is decided."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from glassformer.data.examples import SentimentData
from glassformer.data.sentiment import read_examples
from glassformer.errors import require_positive
from glassformer.models.encoder_config import EncoderConfig, Pooling
from glassformer.training import TrainingConfig


@dataclass(frozen=True)
class TrainingRecipe:
    """How an encoder is trained; the learning rate rises over the first tenth of the steps and then falls as a cosine.

    Attributes:
        epochs: Passes over the training texts.
        batch_size: Texts per update.
        learning_rate: AdamW's peak learning rate.
        weight_decay: Of matrices, embeddings included.
        betas: AdamW's decay rates.
        word_dropout: Probability that a word is hidden, in training.
        label_smoothing: Part of the target that is spread over all classes.
        min_updates: With so few texts that ``epochs`` passes are fewer updates than this, there are more passes.

    Raises:
        InputError: ``epochs`` below 1; the rest is checked where it is used.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    betas: tuple[float, float] = (0.9, 0.99)
    word_dropout: float = 0.0
    label_smoothing: float = 0.0
    min_updates: int = 0

    def __post_init__(self) -> None:
        require_positive(epochs=self.epochs, batch_size=self.batch_size)

    def shortened(self) -> TrainingRecipe:
        """One pass, or 100 updates where that is more: to see that it runs."""
        return dataclasses.replace(self, epochs=1, min_updates=min(self.min_updates, 100))

    def config(self, num_examples: int, seed: int) -> TrainingConfig:
        """The configuration of the training loop for this many training texts: one evaluation each epoch."""
        steps_per_epoch = -(-num_examples // self.batch_size)
        steps = max(self.epochs, -(-self.min_updates // steps_per_epoch)) * steps_per_epoch
        return TrainingConfig(
            steps=steps,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            betas=self.betas,
            warmup_steps=steps // 10,
            eval_every=steps_per_epoch,
            checkpoint_every=steps_per_epoch,
            keep_checkpoints=1,
            seed=seed,
            log_every=max(1, steps_per_epoch // 10),
        )


@dataclass(frozen=True)
class ScratchRecipe:
    """An encoder from random weights, and a vocabulary from the training texts.

    Attributes:
        name: For tables and directories.
        training: How it is trained.
        tokenizer: Words, or parts of them.
        vocab_size: Ids at most. A word that is too rare for it is unknown, and so the unknown word is learned as well.
        model: Arguments of :class:`EncoderConfig` besides vocab_size and num_classes.
    """

    name: str
    training: TrainingRecipe
    tokenizer: Literal["words", "wordpiece", "bpe"]
    vocab_size: int
    model: dict[str, Any]

    def encoder_config(self, vocab_size: int, num_classes: int, pad_id: int) -> EncoderConfig:
        """The encoder for a vocabulary."""
        return EncoderConfig(vocab_size=vocab_size, num_classes=num_classes, pad_id=pad_id, **self.model)


@dataclass(frozen=True)
class PretrainedRecipe:
    """A pretrained encoder with its own vocabulary and a new head, all of whose weights are trained on.

    Attributes:
        name: For tables and directories.
        training: How it is trained.
        dropout: As in :class:`EncoderConfig`.
        pooling: As in :class:`EncoderConfig`.
        source: A directory or the name of a model on the hub; None: :func:`~glassformer.checkpoints.hub.minilm`.
    """

    name: str
    training: TrainingRecipe
    dropout: float = 0.1
    pooling: Pooling = "mean"
    source: str | None = None


FROM_SCRATCH = ScratchRecipe(
    name="encoder from scratch",
    training=TrainingRecipe(6, 64, 3e-3, 0.1, word_dropout=0.4, label_smoothing=0.1, min_updates=300),
    tokenizer="words",
    vocab_size=8000,
    model={
        "num_layers": 1,
        "hidden_dim": 64,
        "ff_dim": 128,
        "num_heads": 4,
        "max_seq_len": 128,
        "norm_first": True,
        "positions": "none",
        "dropout": 0.4,
    },
)
"""Chosen on SST-2's validation sentences alone; it has so many to train on that ``min_updates`` has no part."""

FROM_MINILM = PretrainedRecipe(
    name="encoder from MiniLM",
    training=TrainingRecipe(3, 32, 5e-5, 0.01, betas=(0.9, 0.999), label_smoothing=0.1, min_updates=50),
)
"""All-MiniLM-L6-v2, six layers of width 384. Chosen on SST-2's validation sentences alone."""


def sst2(directory: Path | str) -> SentimentData:
    """SST-2's sentences as published (6,920, 872 and 1,821) from the files ``sst2_train.tsv``, ``_dev`` and ``_test``.

    Four training sentences also stand in the validation or test part. They stay here, for comparison with others;
    :func:`~glassformer.data.sentiment.from_files` drops them.

    Raises:
        InputError: A file that is missing or damaged.
    """
    train, validation, test = (read_examples(Path(directory) / f"sst2_{part}.tsv") for part in ("train", "dev", "test"))
    return SentimentData(train, validation, test)
