"""The course's functions around the model: training by epochs, and a count of operations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.data import DataLoader

from glassformer.errors import InputError, require, require_positive
from glassformer.labs.sentiment.network import MiniTransformer
from glassformer.models.encoder_config import EncoderConfig
from glassformer.observe.complexity import complexity
from glassformer.training import Batch, TrainingConfig, train

Batches: TypeAlias = DataLoader | Sequence[Mapping[str, Tensor]]
"""Batches ``{"input_ids": [batch, position], "labels": [batch]}``, as a DataLoader of the course's data set gives."""

History: TypeAlias = dict[str, list[float]]


def train_transformer(
    model: nn.Module,
    train_loader: Batches,
    val_loader: Batches,
    num_epochs: int = 5,
    learning_rate: float = 1e-3,
) -> History:
    """Minimise the cross-entropy of ``model``, in place, and print a line after each epoch.

    The loop is :func:`glassformer.training.train`, with AdamW at a constant rate and a weight decay of 0.01 that acts
    on matrices alone; the course hints at Adam, where the decay is part of the gradient. Random numbers (dropout, the
    loader's order) follow from ``torch.manual_seed``. Ctrl-C ends it after the update at hand, with the history of the
    epochs that were finished.

    Args:
        model: A :class:`~glassformer.labs.sentiment.network.MiniTransformer`, or any module that maps ``input_ids`` to
            logits ``[batch, class]``, alone or first in a tuple. It ends in evaluation mode.
        train_loader: Gone through once an epoch, one update a batch.
        val_loader: Gone through after each epoch.
        num_epochs: Passes over the training batches.
        learning_rate: Of AdamW.

    Returns:
        One number an epoch under ``train_loss``, ``train_acc``, ``val_loss`` and ``val_acc``. Losses are in nats, the
        mean over batches of each batch's mean. Accuracies are in percent of all examples. Those of training are taken
        as it goes on, with dropout, before each update.

    Raises:
        InputError: No batch, labels that are no class of the model, one class alone to learn from, or a number out of
            range.
        DivergedError: The loss or its gradient became NaN or infinite.
    """
    require_positive(num_epochs=num_epochs)
    steps = _length(train_loader, "train_loader")
    _length(val_loader, "val_loader")
    _require_two_classes(train_loader)
    task = _EpochTask(train_loader, val_loader, steps, num_epochs)
    config = TrainingConfig(
        steps=num_epochs * steps,
        batch_size=getattr(train_loader, "batch_size", None) or 1,  # which the task leaves to the loader
        learning_rate=learning_rate,
        weight_decay=0.01,
        betas=(0.9, 0.999),
        schedule="constant",
        clip_norm=None,
        eval_every=steps,
        log_every=steps,
        seed=int(torch.randint(2**31, ())),
    )
    # The encoder has the same weights, and does not compute the attention weights, which are not used here.
    train(model.encoder if isinstance(model, MiniTransformer) else model, task, config, progress=False)
    model.eval()
    return task.history


def analyze_complexity(d_model: int, sequence_length: int, num_heads: int, d_ff: int) -> dict[str, int]:
    """Operations of one block over one text: the course's count and the executed ones.

    The course counts one product each for attention and the feed-forward network, without the factor 2 for a
    multiplication with its addition and without projections::

        attention             sequence_length ** 2 * d_model
        feedforward           sequence_length * d_model * d_ff
        total                 their sum

    That is a quarter of the executed operations, see :func:`~glassformer.observe.complexity.complexity`, so the length
    at which one overtakes the other, d_ff, is right. The course's memory, ``sequence_length ** 2 * num_heads`` numbers,
    is that of attention weights, which need not be stored. Executed are::

        executed_projections  8 sequence_length d_model ** 2
        executed_attention    4 sequence_length ** 2 d_model
        executed_feedforward  4 sequence_length d_model d_ff
        executed_total        their sum

    Raises:
        InputError: A size below 1, or ``d_model`` that is no multiple of ``num_heads``.
    """
    config = EncoderConfig(vocab_size=1, num_layers=1, hidden_dim=d_model, ff_dim=d_ff, num_heads=num_heads)
    executed = complexity(config, 1, sequence_length).operations
    attention, feedforward = sequence_length**2 * d_model, sequence_length * d_model * d_ff
    return {
        "attention": attention,
        "feedforward": feedforward,
        "total": attention + feedforward,
        "executed_projections": executed.projections,
        "executed_attention": executed.attention,
        "executed_feedforward": executed.feed_forward,
        "executed_total": executed.total,
    }


class _EpochTask:
    """Classification as the course counts it: a :class:`~glassformer.training.task.Task` over two loaders."""

    metric, higher_is_better, unit = "val_acc", True, "examples"

    def __init__(self, train_loader: Batches, val_loader: Batches, steps: int, epochs: int) -> None:
        self._train_loader, self._val_loader, self._steps, self._epochs = train_loader, val_loader, steps, epochs
        self._batches: Iterator[Mapping[str, Tensor]] = iter(())
        self._seen = _Tally()
        self.history: History = {name: [] for name in ("train_loss", "train_acc", "val_loss", "val_acc")}

    def batch(self, step: int, size: int) -> Batch:
        """The loader's next batch. The loop seeds torch for each step, so an epoch's order follows from its seed."""
        if step % self._steps == 0:
            self._batches = iter(self._train_loader)
        return _checked(next(self._batches))

    def count(self, batch: Batch) -> int:
        """Examples in ``batch``."""
        return len(batch["labels"])

    def loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        """The mean of ``-log p(label)``."""
        return self._seen.add(*_predict(model, batch))

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """The four numbers of the epoch that ends here."""
        device = next(model.parameters()).device
        held_out = _Tally()
        for batch in self._val_loader:
            place = {name: tensor.to(device) for name, tensor in _checked(batch).items()}
            held_out.add(*_predict(model, place))
        numbers = (*self._seen.means(), *held_out.means())
        self._seen = _Tally()
        for values, number in zip(self.history.values(), numbers, strict=True):
            values.append(number)
        print(
            "Epoch {}/{}: train loss {:.4f}, train accuracy {:.2f} %, validation loss {:.4f}, "
            "validation accuracy {:.2f} %".format(len(self.history["val_acc"]), self._epochs, *numbers)
        )
        return dict(zip(self.history, numbers, strict=True))


class _Tally:
    """Losses and hits of some batches."""

    def __init__(self) -> None:
        self._losses: list[Tensor] = []
        self._hits: list[Tensor] = []

    def add(self, logits: Float[Tensor, "batch num_classes"], labels: Int[Tensor, " batch"]) -> Float[Tensor, ""]:
        """Count a batch; returns its mean loss."""
        loss = F.cross_entropy(logits, labels)
        self._losses.append(loss.detach())
        self._hits.append(logits.argmax(-1) == labels)
        return loss

    def means(self) -> tuple[float, float]:
        """The mean over batches of the loss, and the accuracy in percent of all examples."""
        return float(torch.stack(self._losses).mean()), 100 * float(torch.cat(self._hits).double().mean())


def _predict(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Logits and labels."""
    output = model(batch["input_ids"])
    logits, labels = output[0] if isinstance(output, tuple) else output, batch["labels"]
    lowest, highest, classes = int(labels.min()), int(labels.max()), logits.shape[-1]
    require(
        lowest >= 0 and highest < classes,
        f"labels from {lowest} to {highest}",
        f"classes from 0 to {classes - 1}",
        "Make the model with num_classes for all labels, and number them from 0.",
    )
    return logits, labels


def _checked(batch: Mapping[str, Tensor]) -> Batch:
    for name in ("input_ids", "labels"):
        require(name in batch, f"a batch of {sorted(batch)}", f"{name!r} in it", "Load a SentimentDataset.")
    return {name: batch[name] for name in ("input_ids", "labels")}


def _require_two_classes(loader: Batches) -> None:
    found: set[int] = set()
    with torch.random.fork_rng(devices=[]):  # a shuffling loader draws from torch's generator
        for batch in loader:
            found.update(_checked(batch)["labels"].unique().tolist())
            if len(found) > 1:
                return
    raise InputError(
        f"a train_loader with examples of class {min(found, default=None)} alone",
        "at least two classes",
        "One class alone cannot be learned; check the labels.",
    )


def _length(loader: Batches, name: str) -> int:
    try:
        batches = len(loader)
    except TypeError as error:
        raise InputError(
            f"a {name} without length", "one that knows its number of batches", "Pass a DataLoader or a list."
        ) from error
    require(batches > 0, f"a {name} without a batch", "at least one batch", "Pass one that is not empty.")
    return batches
