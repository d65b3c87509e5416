"""Training over DataLoaders, as the courses have it."""

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
"""Batches, gone through once an epoch; it knows how many they are."""

History: TypeAlias = dict[str, list[float]]

Measure: TypeAlias = Callable[
    [nn.Module, Batch], tuple[Float[Tensor, ""], Bool[Tensor, " example"]]
]
"""The mean loss of a batch, and which of its examples are answered right."""


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
    """Train ``model`` in place with AdamW at a constant rate, one update a batch, and print a line
    after each epoch.

    Random numbers (dropout, the loader's order) follow from ``torch.manual_seed``. Ctrl-C ends it
    after the update at hand, with the history of the epochs that were finished.

    Args:
        model: It ends in evaluation mode.
        train_loader: The batches to learn from.
        val_loader: Gone through after each epoch.
        named: A loader's batch as named tensors, a row for each example.
        measure: See :data:`Measure`. It is called in training mode on the first, in evaluation mode
            on the second.
        num_epochs: Passes over the training batches.
        learning_rate: Of AdamW; with a ``weight_decay`` of 0, that is Adam.
        weight_decay: On matrices.
        keep_best: End with the weights of the epoch whose validation loss is lowest, instead of the
            last one's.

    Returns:
        One number an epoch under ``train_loss`` and ``val_loss`` (in nats, the mean over batches of
        each batch's mean) and ``train_acc`` and ``val_acc`` (in [0, 1]). Those of training are
        taken as it goes on, before each update.
    """
    require_positive(num_epochs=num_epochs)
    steps = _length(train_loader, "train_loader")
    _length(val_loader, "val_loader")
    task = _LoaderTask(train_loader, val_loader, named, measure, steps, num_epochs)
    config = TrainingConfig(
        steps=num_epochs * steps,
        batch_size=getattr(train_loader, "batch_size", None)
        or 1,  # which the task leaves to the loader
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
        """The loader's next batch. The loop seeds torch for each step, so an epoch's order follows
        from its seed.
        """
        if step % self._steps == 0:
            self._batches = iter(self._train_loader)
        return self._named(next(self._batches))

    def count(self, batch: Batch) -> int:
        """Examples in ``batch``."""
        return len(next(iter(batch.values())))

    def loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        """The mean loss of ``batch``."""
        loss, right = self._measure(model, batch)
        self._seen.append((loss.detach(), right))
        return loss

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """The four numbers of the epoch that ends here."""
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
        print(
            "Epoch {}/{}: training loss {:.4f}, accuracy {:.2%}; validation loss {:.4f}, accuracy {:.2%}".format(
                len(self.history["val_loss"]), self._epochs, *numbers
            )
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
            f"a {name} without length",
            "one that knows its number of batches",
            "Pass a DataLoader or a list.",
        ) from error
    if not batches > 0:
        raise InputError(
            got=f"a {name} without a batch",
            expected="at least one batch",
            fix="Pass one that is not empty.",
        )
    return batches
