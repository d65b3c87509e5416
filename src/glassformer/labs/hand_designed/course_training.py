"""The course's training loop under its own name: one sequence a step, plain SGD, the mean squared error.

The updates are made by :func:`glassformer.training.train`, the same numbers as a bare loop gives.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from glassformer import training
from glassformer.errors import InputError, require, require_positive
from glassformer.handcraft.single_head import SingleHead
from glassformer.training import Batch

MakeBatch = Callable[[], tuple[Tensor, Tensor]]
"""Makes one sequence ``[position, input_dim]`` and what is wanted of it, ``[position, v_dim]``."""

_Loss = Callable[[Tensor, Tensor], Tensor]
_LOSSES: dict[str, _Loss] = {"mse": F.mse_loss, "cross_entropy": F.cross_entropy}


@dataclass(frozen=True)
class TrainingConfig:
    """How :func:`train_loop` trains; the course's fields and defaults.

    Args:
        num_epochs: Updates, each on one sequence.
        learning_rate: Of every update.
        log_interval: Updates between two printed lines.
        optimizer: "sgd", or "adam", whose moments decay by 0.9 and 0.999.
        momentum: Of SGD.
        weight_decay: Pull of the weights to zero, times the learning rate.
        loss_fn: "mse", the mean over all entries of (output - target)^2, or "cross_entropy" between the softmax of an
            output and its target, in nats.

    Raises:
        InputError: A value out of its range.
    """

    num_epochs: int = 10_001
    learning_rate: float = 3e-2
    log_interval: int = 1000
    optimizer: Literal["sgd", "adam"] = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    loss_fn: Literal["mse", "cross_entropy"] = "mse"

    def __post_init__(self) -> None:
        require(
            self.optimizer in ("sgd", "adam"),
            f"optimizer = {self.optimizer!r}",
            "'sgd' or 'adam'",
            "Pass one of these.",
        )
        require(
            self.loss_fn in _LOSSES,
            f"loss_fn = {self.loss_fn!r}",
            f"one of {', '.join(map(repr, _LOSSES))}",
            "Pass one of these.",
        )
        self.shared()

    def shared(self) -> training.TrainingConfig:
        """The same, for the shared training loop.

        Raises:
            InputError: A number out of its range.
        """
        require_positive(num_epochs=self.num_epochs, log_interval=self.log_interval)
        return training.TrainingConfig(
            steps=self.num_epochs,
            batch_size=1,
            learning_rate=self.learning_rate,
            optimizer="sgd" if self.optimizer == "sgd" else "adamw",
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            betas=(0.9, 0.999),
            schedule="constant",
            clip_norm=None,
            log_every=self.log_interval,
        )


TRAIN_CONFIG = TrainingConfig()
"""The course's defaults."""


def set_random_seed(seed: int = 42) -> None:
    """Start the global random generators of Python, NumPy and PyTorch (on every device) from ``seed``.

    Raises:
        InputError: ``seed`` is no whole number in [0, 2^32), which is what NumPy takes.
    """
    require(
        isinstance(seed, int) and not isinstance(seed, bool) and 0 <= seed < 2**32,
        f"seed = {seed!r}",
        "a whole number of at least 0 and below 2^32",
        "Pass 42, for example.",
    )
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the course draws from the global generator
    torch.manual_seed(seed)


def train_loop(
    make_batch: MakeBatch,
    input_dim: int,
    qk_dim: int,
    v_dim: int,
    pos_dim: int | None = None,
    max_seq_len: int | None = None,
    remove_cls: bool = False,
    num_epochs: int = TRAIN_CONFIG.num_epochs,
    lr: float = TRAIN_CONFIG.learning_rate,
    log_interval: int = TRAIN_CONFIG.log_interval,
    seed: int | None = None,
    *,
    config: TrainingConfig = TRAIN_CONFIG,
) -> tuple[SingleHead, float]:
    """Train a new head on one sequence a step; prints the loss of every ``log_interval``-th step, from step 0 on.

    Args:
        make_batch: Makes a sequence and its target; called once a step.
        input_dim: Length of an input vector.
        qk_dim: Length of keys and queries.
        v_dim: Length of an output.
        pos_dim: Length of a position's vector; None for a head without positions.
        max_seq_len: The longest sequence of a head with positions, that of CLS counted.
        remove_cls: Leave the first output away, which belongs to CLS, before comparing with the target.
        num_epochs: Updates.
        lr: Learning rate.
        log_interval: Updates between two printed lines.
        seed: For :func:`set_random_seed`, before anything is drawn; None leaves the generators as they are.
        config: Optimizer, momentum, weight decay and loss. The other fields give way to the arguments above.

    Returns:
        The trained head, and the loss of the last update, measured before it.

    Raises:
        InputError: A size below 1, or a sequence or a target whose shape does not fit.
        DivergedError: The loss became NaN or infinite.
        KeyboardInterrupt: Interrupted by Ctrl-C.
    """
    plan = TrainingConfig(
        num_epochs, lr, log_interval, config.optimizer, config.momentum, config.weight_decay, config.loss_fn
    )
    if seed is not None:
        set_random_seed(seed)
    head = SingleHead(input_dim, qk_dim, v_dim, pos_dim, max_seq_len)
    task = _CourseTask(make_batch, input_dim, v_dim, remove_cls, log_interval, _LOSSES[plan.loss_fn])
    if training.train(head, task, plan.shared(), progress=False).ending == "interrupted":
        raise KeyboardInterrupt
    # The shared loop leaves the caller's generator alone; in the course it has moved on with every batch.
    torch.set_rng_state(task.generator_state)
    return head, task.last_loss


class _CourseTask:
    """The course's batches and its loss, as a task for the shared training loop.

    ``make_batch`` draws from global generators, so a batch depends on those before it: such a run cannot be resumed.
    """

    metric = "loss"
    higher_is_better = False
    unit = "sequences"

    def __init__(
        self, make_batch: MakeBatch, input_dim: int, v_dim: int, remove_cls: bool, log_interval: int, loss: _Loss
    ) -> None:
        self._make_batch, self._input_dim, self._v_dim = make_batch, input_dim, v_dim
        self._first, self._log_interval, self._loss = int(remove_cls), log_interval, loss
        self._step = 0
        self.last_loss = 0.0
        self.generator_state = torch.get_rng_state()

    def batch(self, step: int, size: int) -> Batch:
        """One sequence with its target, drawn from the generators as the caller left them."""
        # The loop seeds torch's generator for every step, and would repeat or reorder what make_batch draws from it.
        own = torch.get_rng_state()
        torch.set_rng_state(self.generator_state)
        sequence, target = self._make_batch()
        self.generator_state = torch.get_rng_state()
        torch.set_rng_state(own)
        self._require_fitting(sequence, target)
        self._step = step
        return {"sequence": sequence[None], "target": target[None]}

    def count(self, batch: Batch) -> int:
        """Sequences."""
        return len(batch["sequence"])

    def loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        """The loss over all outputs of the sequence; prints it where a line is due."""
        outputs = model(batch["sequence"])[:, self._first :]
        loss = self._loss(outputs.flatten(0, 1), batch["target"].flatten(0, 1))
        self.last_loss = loss.item()
        if self._step % self._log_interval == 0:
            print(f"Step {self._step}: loss {self.last_loss:.6f}")
        return loss

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """The loss of the last batch: the course measures nothing else while it trains."""
        return {"loss": self.last_loss}

    def _require_fitting(self, sequence: Tensor, target: Tensor) -> None:
        if sequence.dim() != 2 or sequence.shape[1] != self._input_dim:
            raise InputError(
                f"a sequence of shape {list(sequence.shape)} from make_batch",
                f"[position, {self._input_dim}]",
                "Change make_batch, or pass its vectors' length as input_dim.",
            )
        wanted = [len(sequence) - self._first, self._v_dim]
        require(
            list(target.shape) == wanted,
            f"a target of shape {list(target.shape)} from make_batch",
            f"{wanted}, a row for each output" + (" but that of CLS" if self._first else ""),
            "Change make_batch, v_dim or remove_cls.",
        )
