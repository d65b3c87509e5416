"""Writing a target for a source: the task of all encoder-decoders, for examples from anywhere."""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from glassformer.kernels.cross_entropy import cross_entropy
from glassformer.training.task import Batch

PAD = 0


class TargetTask:
    """Predicting each token of a target from a source and the tokens before it.

    A task for :func:`glassformer.training.train`, whose loss is :func:`target_loss`. Targets are padded with 0.

    Args:
        batches: ``batches(step, size)`` is ``{"source": [example, position(, field)], "inputs": [example, target],
            "targets": [example, target]}``, and "source_real" where padding is not what equals 0; a pure function of
            both. "inputs" are what the decoder reads: the targets shifted right after a start token, or a query.
        evaluation: The examples on which ``evaluate`` measures, named in the same way.

    Source: Vaswani et al. 2017, arXiv 1706.03762.
    """

    metric, higher_is_better, unit = "loss", False, "tokens"

    def __init__(self, batches: Callable[[int, int], Batch], evaluation: Batch) -> None:
        self._batches, self._evaluation = batches, evaluation

    def batch(self, step: int, size: int) -> Batch:
        """The examples of update ``step``."""
        return self._batches(step, size)

    def count(self, batch: Batch) -> int:
        """Target tokens in ``batch``, padding left out."""
        return int((batch["targets"] != PAD).sum())

    def loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        """The loss above, in nats per token."""
        return target_loss(_logits(model, batch), batch["targets"])

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """On the evaluation examples: "loss", and "accuracy", the share that is :func:`all_right`."""
        device = next(model.parameters()).device
        batch = {name: tensor.to(device) for name, tensor in self._evaluation.items()}
        logits = _logits(model, batch)
        right = all_right(logits, batch["targets"]).double().mean()
        return {"loss": float(target_loss(logits, batch["targets"])), "accuracy": float(right)}


def target_loss(
    logits: Float[Tensor, "batch target vocab"], targets: Int64[Tensor, "batch target"]
) -> Float[Tensor, ""]:
    """The mean of ``-log p(token)`` over all target tokens but padding, in nats."""
    return cross_entropy(logits.flatten(0, 1), targets.flatten(), ignored=PAD)


def all_right(
    logits: Float[Tensor, "batch target vocab"], targets: Int64[Tensor, "batch target"]
) -> Bool[Tensor, " batch"]:
    """Whether every target token but padding is the most likely one."""
    return ((logits.argmax(-1) == targets) | (targets == PAD)).all(-1)


def _logits(model: nn.Module, batch: Batch) -> Float[Tensor, "batch target vocab"]:
    return model(batch["source"], batch["inputs"], batch.get("source_real"))
