"""A recipe for training any classifier of texts: an encoder, or a network that it is compared with."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from glassformer.data.examples import SentimentData, fingerprint
from glassformer.training.classification import ClassificationTask
from glassformer.training.config import TrainingConfig
from glassformer.training.loaders import train_in

_EVALUATIONS = 12
"""At most about as many in one training, however small the data set is."""


@dataclass(frozen=True)
class TrainingRecipe:
    """AdamW; the learning rate rises over the first tenth of the updates and then falls as a cosine."""

    epochs: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    betas: tuple[float, float] = (0.9, 0.99)
    word_dropout: float = 0.0
    label_smoothing: float = 0.0
    min_updates: int = 0  # small data sets are passed through more often than ``epochs``, until there are as many

    def config(self, num_examples: int, seed: int) -> TrainingConfig:
        """The configuration of the training loop for this many training texts."""
        per_epoch = -(-num_examples // self.batch_size)
        epochs = max(self.epochs, -(-self.min_updates // per_epoch))
        every = per_epoch * -(-epochs // _EVALUATIONS)
        return TrainingConfig(
            steps=epochs * per_epoch,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            betas=self.betas,
            warmup_steps=epochs * per_epoch // 10,
            eval_every=every,
            checkpoint_every=every,
            keep_checkpoints=1,
            seed=seed,
            log_every=max(1, per_epoch // 10),
        )


@dataclass(frozen=True)
class Epoch:
    """Where a training stood after so many passes."""

    epoch: int
    train_loss: float  # mean of the updates since the one before, with dropped words, dropout and smoothed labels
    validation_loss: float  # nats
    validation_accuracy: float


def fit(
    model: nn.Module,
    encode: Callable[[str], Sequence[int]],
    pad_id: int,
    data: SentimentData,
    training: TrainingRecipe,
    seed: int,
    directory: Path | None = None,
    description: Mapping[str, Any] | None = None,
) -> list[Epoch]:
    """Train ``model`` in place on ``data.train``; it ends in evaluation mode with the weights of the last update.

    Args:
        model: Called as ``model(tokens, real)``; returns logits.
        encode: The token ids of a text.
        pad_id: The token that fills up short rows.
        data: Nothing is chosen by its validation texts, and its test texts are not used.
        training: The recipe.
        seed: Of the order of the texts and of dropout.
        directory: Keeps the run, and continues what it holds; None keeps nothing.
        description: What else makes it this run, besides the texts and the seed.

    Raises:
        InputError: ``directory`` holds the run of another recipe, seed or data set.
        KeyboardInterrupt: The training was interrupted. Its checkpoint is kept.
    """
    task = ClassificationTask.of(
        data.train,
        data.validation,
        encode,
        pad_id,
        seed=seed,
        num_classes=len(data.classes),
        word_dropout=training.word_dropout,
        label_smoothing=training.label_smoothing,
    )
    config = training.config(len(data.train), seed)
    described = {**(description or {}), "texts": len(data.train), "fingerprint": fingerprint(data), "seed": seed}
    result = train_in(directory, model, task, config, described)
    per_epoch = -(-len(data.train) // training.batch_size)
    before, epochs = 0, []
    for step, evaluation in result.evaluations:
        if step > 0:
            losses = [loss for at, loss in result.losses if before < at <= step]
            loss = statistics.fmean(losses)
            epochs.append(Epoch(step // per_epoch, loss, evaluation["loss"], evaluation["accuracy"]))
            before = step
    return epochs
