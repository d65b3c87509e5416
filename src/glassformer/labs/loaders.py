"""Training over DataLoaders, for the training functions of the courses."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.utils.data import DataLoader

from glassformer.errors import InputError, require_positive
from glassformer.training import Batch, TrainingConfig, load_weights, train

Loader: TypeAlias = DataLoader | Sequence[Any]
"""Batches of an epoch; ``len(loader)`` is their number."""

History: TypeAlias = dict[str, list[float]]

Measure: TypeAlias = Callable[
    [nn.Module, Batch], tuple[Float[Tensor, ""], Bool[Tensor, " example"]]
]
"""Returns the mean loss of a batch, and which of its examples are answered right."""


def train_epochs(
    model: nn.Module,
    train_loader: Loader,
    val_loader: Loader,
    *,
    named: Callable[[Any], Batch],
    measure: Measure,
    num_epochs: int,
    learning_rate: float,
    weight_decay: float = 0.0,
    keep_best: bool = False,
) -> History:
    """Train ``model`` in place with AdamW, one update for each batch, and print a line per epoch.

    Random numbers (dropout, the loader's order) follow from ``torch.manual_seed``. Ctrl-C ends the
    training after the current update and returns the history of the finished epochs.

    Args:
        model: The model, which ends in evaluation mode.
        train_loader: Training batches.
        val_loader: Validation batches, read after each epoch.
        named: Converts a loader's batch to named tensors with a row for each example.
        measure: See :data:`Measure`. It is called in training mode on training batches, and in
            evaluation mode on validation batches.
        num_epochs: Number of passes over the training batches.
        learning_rate: Constant learning rate. With a ``weight_decay`` of 0, AdamW is Adam.
        weight_decay: Weight decay of matrices.
        keep_best: If True, the model ends with the weights of the epoch with the lowest validation
            loss, otherwise with the weights of the last epoch.

    Returns:
        One number for each epoch under ``train_loss`` and ``val_loss`` (in nats, the mean over
        batches of each batch's mean) and ``train_acc`` and ``val_acc`` (in [0, 1]). Training
        numbers are measured before each update.
    """
    require_positive(num_epochs=num_epochs)
    steps = _length(train_loader, "train_loader")
    _length(val_loader, "val_loader")
    task = _LoaderTask(train_loader, val_loader, named, measure, steps, num_epochs)
    config = TrainingConfig(
        steps=num_epochs * steps,
        # The task ignores it: the loader makes the batches.
        batch_size=getattr(train_loader, "batch_size", None) or 1,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        betas=(0.9, 0.999),
        schedule="constant",
        clip_norm=None,
        eval_every=steps,
        log_every=steps,
        seed=int(torch.randint(2**31, ())),
    )
    if keep_best:
        with TemporaryDirectory() as directory:
            train(model, task, config, directory, progress=False)
            if task.history["val_loss"]:
                load_weights(model, Path(directory) / "best")
    else:
        train(model, task, config, progress=False)
    model.eval()
    return task.history


class _LoaderTask:
    """A :class:`~glassformer.training.task.Task` over two loaders."""

    metric = "val_loss"
    higher_is_better = False
    unit = "examples"

    def __init__(
        self,
        train_loader: Loader,
        val_loader: Loader,
        named: Callable[[Any], Batch],
        measure: Measure,
        steps: int,
        epochs: int,
    ) -> None:
        self._train_loader = train_loader
        self._val_loader = val_loader
        self._named = named
        self._measure = measure
        self._steps = steps
        self._epochs = epochs
        self._batches: Iterator[Any] = iter(())
        self._seen: list[tuple[Tensor, Tensor]] = []
        self.history: History = {
            name: [] for name in ("train_loss", "train_acc", "val_loss", "val_acc")
        }

    def batch(self, step: int, size: int) -> Batch:
        """Return the loader's next batch; an epoch's order follows from the loop's seed."""
        if step % self._steps == 0:
            self._batches = iter(self._train_loader)
        return self._named(next(self._batches))

    def count(self, batch: Batch) -> int:
        """Count the examples in ``batch``."""
        return len(next(iter(batch.values())))

    def loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        """Return the mean loss of ``batch``."""
        loss, right = self._measure(model, batch)
        self._seen.append((loss.detach(), right))
        return loss

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Print and return the four numbers of the epoch that ends here."""
        device = next(model.parameters()).device
        batches = (self._named(loaded) for loaded in self._val_loader)
        held_out = [
            self._measure(model, {name: tensor.to(device) for name, tensor in batch.items()})
            for batch in batches
        ]
        numbers = (*_means(self._seen), *_means(held_out))
        self._seen = []
        for values, number in zip(self.history.values(), numbers, strict=True):
            values.append(number)
        train_loss, train_acc, val_loss, val_acc = numbers
        print(
            f"Epoch {len(self.history['val_loss'])}/{self._epochs}: "
            f"training loss {train_loss:.4f}, accuracy {train_acc:.2%}; "
            f"validation loss {val_loss:.4f}, accuracy {val_acc:.2%}"
        )
        return dict(zip(self.history, numbers, strict=True))


def _means(batches: Sequence[tuple[Tensor, Tensor]]) -> tuple[float, float]:
    losses, right = zip(*batches, strict=True)
    return float(torch.stack(losses).mean()), float(torch.cat(right).double().mean())


def _length(loader: Loader, name: str) -> int:
    try:
        batches = len(loader)
    except TypeError as error:
        raise InputError(
            got=f"a {name} without length",
            expected="a loader that knows its number of batches",
            fix="Pass a DataLoader or a list.",
        ) from error
    if batches == 0:
        raise InputError(
            got=f"a {name} without a batch",
            expected="at least one batch",
            fix="Pass a loader that is not empty.",
        )
    return batches
