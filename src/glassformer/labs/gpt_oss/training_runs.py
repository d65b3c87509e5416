"""Training the lab's models: the recurrence as a task for the training loop, one run directory for each model."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.data.recurrence import RecurrenceConfig, RecurrenceSplit, fresh_batch
from glassformer.errors import require
from glassformer.labs.gpt_oss.exercises import eval_acc
from glassformer.labs.gpt_oss.network import Transformer
from glassformer.labs.gpt_oss.plan import COURSE_MODEL, Experiment
from glassformer.training import Batch, EpochBatches, TrainingConfig, TrainingResult, train

_EVALUATION_BATCH = 250


class RecurrenceTask:
    """Predicting the next token of recurrence sequences; a task for :func:`glassformer.training.train`.

    Args:
        data: The recurrence.
        split: Training sequences, and the test sequences on which ``evaluate`` measures.
        fresh: Draw new sequences at every step, from all generators. A model that never meets some generators learns
            that they do not exist, and pays for it where they are asked for; no sequence is met twice either way.
        seed: Seed of the order of the training sequences, or of the new ones.

    Raises:
        InputError: A negative seed, or sequences of another length than the recurrence's.
    """

    metric = "accuracy"
    higher_is_better = True
    unit = "tokens"

    def __init__(self, data: RecurrenceConfig, split: RecurrenceSplit, *, fresh: bool = False, seed: int = 0) -> None:
        for part in split:
            require(
                part.tokens.shape[1] == data.seq_len + 1,
                f"sequences of {part.tokens.shape[1]} tokens",
                f"seq_len + 1 = {data.seq_len + 1} tokens",
                "Pass the configuration that the sequences were made with.",
            )
        self._data, self._split, self._fresh, self._seed = data, split, fresh, seed
        self._epochs = EpochBatches({"tokens": split.train.tokens}, seed=seed)

    def batch(self, step: int, size: int) -> Batch:
        """``{"tokens": [batch, seq_len + 1]}``, the sequences of update ``step``."""
        if not self._fresh:
            return self._epochs(step, size)
        return {"tokens": fresh_batch(self._data, size, seed=self._seed, step=step).tokens}

    def count(self, batch: Batch) -> int:
        """Predicted tokens in ``batch``."""
        return batch["tokens"][:, 1:].numel()

    def loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        """Mean of ``-log p(next token)`` over all positions, in nats."""
        tokens = batch["tokens"]
        return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Accuracy on the test sequences."""
        return {"accuracy": float(eval_acc(model, batches(self._split.test.tokens)))}


def batches(tokens: Tensor) -> list[tuple[Tensor, Tensor]]:
    """``tokens`` [sequence, seq_len + 1] as pairs (tokens, next tokens) small enough for one forward pass."""
    return [(part[:, :-1], part[:, 1:]) for part in tokens.split(_EVALUATION_BATCH)]


def build_model(experiment: Experiment, seed: int) -> Transformer:
    """The model of ``experiment`` with its initial weights, which are drawn from ``seed``."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Transformer(**{**COURSE_MODEL, **experiment.model})


def train_model(
    experiment: Experiment,
    config: TrainingConfig,
    data: RecurrenceConfig,
    split: RecurrenceSplit,
    directory: Path,
    seed: int,
) -> tuple[Transformer, TrainingResult]:
    """Train the model of ``experiment`` in the run ``directory``, going on with what is there; nothing is done twice.

    Returns:
        The model after its last step, and what its training came to.

    Raises:
        InputError: ``directory`` holds the run of another configuration.
        KeyboardInterrupt: The training was interrupted. What it did is saved.
    """
    model = build_model(experiment, seed)
    task = RecurrenceTask(data, split, fresh=experiment.fresh, seed=seed)
    description = {"model": {**COURSE_MODEL, **experiment.model}, "fresh": experiment.fresh, "seed": seed}
    begun = (directory / "config.json").exists()
    result = train(model, task, config, directory, resume=begun, description=description)
    if result.ending == "interrupted":
        raise KeyboardInterrupt
    return model, result
