"""The course's functions around the model: training over loaders, greedy decoding, the key heat map.

They are what the course asks for and no more. The lab itself trains with :mod:`glassformer.labs.lookup.course`, whose
runs can be continued.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import matplotlib.pyplot as plt
import torch
from jaxtyping import Float, Int, Int64
from matplotlib.figure import Figure
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.utils.data import DataLoader

from glassformer.data.lookup import ID_TO_TOKEN
from glassformer.errors import InputError, require, require_positive
from glassformer.labs.lookup.course import all_right, decode, target_loss
from glassformer.labs.lookup.course_data import LEARNING_RATE, NUM_EPOCHS, LookupBatch
from glassformer.labs.lookup.network import CrossAttentionLookupModel
from glassformer.observe.figures.attention_maps import cross_attention
from glassformer.training import Batch, TrainingConfig, load_weights, train

Batches: TypeAlias = DataLoader | Sequence[LookupBatch]
"""Batches of :func:`~glassformer.labs.lookup.course_data.collate_fn`."""

History: TypeAlias = dict[str, list[float]]


def train_model(
    model: CrossAttentionLookupModel,
    train_loader: Batches,
    val_loader: Batches,
    num_epochs: int = NUM_EPOCHS,
    learning_rate: float = LEARNING_RATE,
) -> History:
    """Minimise the cross-entropy of ``model``, in place, and keep the weights with the lowest validation loss.

    The loop is :func:`glassformer.training.train`, with Adam at a constant rate; a line is printed after each epoch.
    Random numbers (dropout, the loader's order) follow from ``torch.manual_seed``. Ctrl-C ends it after the update at
    hand; the best weights so far are kept.

    Args:
        model: It ends with the best weights, in evaluation mode.
        train_loader: Gone through once an epoch, one update a batch.
        val_loader: Gone through after each epoch.
        num_epochs: Passes over the training batches.
        learning_rate: Of Adam.

    Returns:
        One number an epoch under ``loss`` (in nats, the mean over batches of each batch's mean) and ``accuracy`` (the
        share of examples all of whose tokens are right, in [0, 1]), both on the validation batches.

    Raises:
        InputError: No batch, tokens outside the vocabulary, or a number out of range.
        DivergedError: The loss or its gradient became NaN or infinite.
    """
    require_positive(num_epochs=num_epochs)
    steps = _length(train_loader, "train_loader")
    _length(val_loader, "val_loader")
    task = _LoaderTask(train_loader, val_loader, steps)
    config = TrainingConfig(
        steps=num_epochs * steps,
        batch_size=getattr(train_loader, "batch_size", None) or 1,  # which the task leaves to the loader
        learning_rate=learning_rate,
        weight_decay=0.0,
        betas=(0.9, 0.999),
        schedule="constant",
        clip_norm=None,
        eval_every=steps,
        log_every=steps,
        seed=int(torch.randint(2**31, ())),
    )
    network = model.network
    with TemporaryDirectory() as directory:
        train(network, task, config, directory, progress=False)
        if task.history["loss"]:
            load_weights(network, Path(directory) / "best")
    model.eval()
    return task.history


def greedy_decode(
    model: CrossAttentionLookupModel, enc_input: Int[Tensor, "batch source"], max_len: int
) -> Int64[Tensor, "batch token"]:
    """The tokens that the model writes for each context, always the most likely one; ``[SOS]`` is not among them.

    A text ends with ``[EOS]`` and holds ``[PAD]`` from there on. Decoding stops when all texts have ended, and after
    ``max_len`` tokens whatever they hold. Keys and values are kept between steps.

    Args:
        model: The course's; it is used in evaluation mode and left in the mode it was in.
        enc_input: The contexts; ``[PAD]`` in them is not read.
        max_len: From 1 to the model's ``max_seq_len``.

    Raises:
        InputError: ``max_len`` out of range, an empty context or one of ``[PAD]`` alone, one longer than
            ``max_seq_len``, or unknown tokens.
    """
    empty = (enc_input == model.network.config.pad_id).all(-1)
    require(
        enc_input.shape[-1] == 0 or not bool(empty.any()),
        f"{int(empty.sum())} contexts that hold [PAD] alone",
        "a token to read in each",
        "Leave empty contexts out.",
    )
    return decode(model.network, enc_input, max_len)


def plot_cross_attention(
    attention_matrix: Float[Tensor, "*head target source"] | ArrayLike,
    enc_tokens: Sequence[str] | Sequence[int] | Tensor,
    dec_tokens: Sequence[str] | Sequence[int] | Tensor,
) -> None:
    """Show :func:`draw_cross_attention` with pyplot.

    Raises:
        InputError: As there.
    """
    figure = draw_cross_attention(attention_matrix, enc_tokens, dec_tokens)
    plt.show()
    if not plt.isinteractive():
        plt.close(figure)


def draw_cross_attention(
    attention_matrix: Float[Tensor, "*head target source"] | ArrayLike,
    enc_tokens: Sequence[str] | Sequence[int] | Tensor,
    dec_tokens: Sequence[str] | Sequence[int] | Tensor,
) -> Figure:
    """Where the decoder looks, as a pyplot figure: what it has read so far downwards, the context from left to right.

    Args:
        attention_matrix: Weights ``[target, source]``, or ``[head, target, source]`` for a panel for each head.
        enc_tokens: The context, as words or as the course's tokens.
        dec_tokens: The target, likewise.

    Raises:
        InputError: No matrix, numbers that are not finite, tokens without a word, or as many as fit no matrix.
    """
    weights = torch.as_tensor(attention_matrix).detach().cpu().double()
    require(
        weights.dim() in (2, 3) and weights.numel() > 0,
        f"attention weights of shape {list(weights.shape)}",
        "[target, source] or [head, target, source]",
        "Take one example out of the batch.",
    )
    one_head = weights.dim() == 2
    return cross_attention(
        (weights[None] if one_head else weights).numpy(),
        _words(enc_tokens),
        _words(dec_tokens),
        head_names=("",) if one_head else (),
        figure=plt.figure(),
    )


class _LoaderTask:
    """Writing targets as the course counts it: a :class:`~glassformer.training.task.Task` over two loaders."""

    metric, higher_is_better, unit = "loss", False, "examples"

    def __init__(self, train_loader: Batches, val_loader: Batches, steps: int) -> None:
        self._train_loader, self._val_loader, self._steps = train_loader, val_loader, steps
        self._batches: Iterator[LookupBatch] = iter(())
        self.history: History = {"loss": [], "accuracy": []}

    def batch(self, step: int, size: int) -> Batch:
        """The loader's next batch. The loop seeds torch for each step, so an epoch's order follows from its seed."""
        if step % self._steps == 0:
            self._batches = iter(self._train_loader)
        return _named(next(self._batches))

    def count(self, batch: Batch) -> int:
        """Examples in ``batch``."""
        return len(batch["targets"])

    def loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        """The mean of ``-log p(token)`` over target tokens."""
        return target_loss(_logits(model, batch), batch["targets"])

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """The two numbers of the epoch that ends here."""
        device = next(model.parameters()).device
        losses, right = [], []
        for loaded in self._val_loader:
            batch = {name: tensor.to(device) for name, tensor in _named(loaded).items()}
            logits = _logits(model, batch)
            losses.append(target_loss(logits, batch["targets"]))
            right.append(all_right(logits, batch["targets"]))
        numbers = {"loss": float(torch.stack(losses).mean()), "accuracy": float(torch.cat(right).double().mean())}
        for name, number in numbers.items():
            self.history[name].append(number)
        epoch = len(self.history["loss"])
        print(f"Epoch {epoch}: validation loss {numbers['loss']:.4f}, validation accuracy {numbers['accuracy']:.2%}")
        return numbers


def _named(batch: LookupBatch) -> Batch:
    """A batch of the course with its masks as the house has them."""
    enc_inputs, dec_inputs, dec_targets, src_padding_mask, tgt_padding_mask = batch
    return {
        "source": enc_inputs,
        "inputs": dec_inputs,
        "targets": dec_targets,
        "source_real": ~src_padding_mask,
        "inputs_real": ~tgt_padding_mask,
    }


def _logits(model: nn.Module, batch: Batch) -> Tensor:
    return model(batch["source"], batch["inputs"], batch["source_real"], batch["inputs_real"])


def _words(tokens: Sequence[str] | Sequence[int] | Tensor) -> list[str]:
    listed: list[str | int] = tokens.tolist() if isinstance(tokens, Tensor) else list(tokens)
    unknown = [token for token in listed if not isinstance(token, str) and token not in ID_TO_TOKEN]
    require(
        not unknown,
        f"tokens without a word: {unknown}",
        f"words, or tokens in [0, {len(ID_TO_TOKEN)})",
        "Pass the words themselves for another vocabulary.",
    )
    return [token if isinstance(token, str) else ID_TO_TOKEN[token] for token in listed]


def _length(loader: Batches, name: str) -> int:
    try:
        batches = len(loader)
    except TypeError as error:
        raise InputError(
            f"a {name} without length", "one that knows its number of batches", "Pass a DataLoader or a list."
        ) from error
    require(batches > 0, f"a {name} without a batch", "at least one batch", "Pass one that is not empty.")
    return batches
