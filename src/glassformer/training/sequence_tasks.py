"""Tasks of models that write tokens: each next token of a sequence, or a target for a source."""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from glassformer.errors import InputError, require_positive
from glassformer.kernels.cross_entropy import cross_entropy
from glassformer.layers.experts import balance_loss, collect_routing
from glassformer.training.checkpoint import plain_model
from glassformer.training.task import Batch

PAD = 0


class NextTokenTask:
    """Predicting each token of a sequence from those before it.

    This is a task for :func:`glassformer.training.train`.

        loss = mean over positions of -log p(token t+1 | tokens 0 ... t)
               + balance_weight · balance_loss

    The second part is the model's load-balancing loss. It is computed for each share of a batch
    separately. So with it the gradient depends a little on the number of processes and
    micro-batches.

    Args:
        batches: ``batches(step, size)`` is ``{"tokens": int64 [example, length + 1]}``, a pure
            function of both: :class:`~glassformer.training.task.EpochBatches`, for example.
        evaluation: Sequences for ``evaluate``.
        metric: Metric that selects the best model: "loss" (lower is better) or "accuracy" (higher).
        balance_weight: Weight of the load-balancing loss; above 0 the model needs experts.
        evaluation_batch: Evaluation sequences in one forward pass.

    Source: Bengio et al. 2003, "A Neural Probabilistic Language Model", section 2 (the loss without
    its second part).
    """

    unit = "tokens"

    def __init__(
        self,
        batches: Callable[[int, int], Batch],
        evaluation: Int64[Tensor, "example position"],
        *,
        metric: Literal["loss", "accuracy"] = "loss",
        balance_weight: float = 0.0,
        evaluation_batch: int = 32,
    ) -> None:
        _require_sequences(evaluation, "evaluation")
        if metric not in ("loss", "accuracy"):
            raise InputError(
                got=f"metric = {metric!r}",
                expected="'loss' or 'accuracy'",
                fix="Choose one of them.",
            )
        if not balance_weight >= 0:
            raise InputError(
                got=f"balance_weight = {balance_weight}",
                expected="a number of at least 0",
                fix="The Switch Transformer uses 0.01; 0 leaves the balance alone.",
            )
        require_positive(evaluation_batch=evaluation_batch)
        self._batches = batches
        self._evaluation = evaluation
        self._evaluation_batch = evaluation_batch
        self._balance_weight = balance_weight
        self.metric = metric
        self.higher_is_better = metric == "accuracy"

    def batch(self, step: int, size: int) -> Batch:
        """Return the sequences of update ``step``."""
        batch = self._batches(step, size)
        if "tokens" not in batch:
            raise InputError(
                got=f"a batch of {sorted(batch)}",
                expected="'tokens' in it",
                fix="Name the sequences 'tokens'.",
            )
        _require_sequences(batch["tokens"], "a batch's tokens")
        return batch

    def count(self, batch: Batch) -> int:
        """Return the number of predicted tokens in ``batch``."""
        return batch["tokens"][:, 1:].numel()

    def loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        """Return the loss above, in nats per token."""
        if self._balance_weight == 0:
            return _next_token_loss(model, batch["tokens"])
        with collect_routing(model) as routings:
            loss = _next_token_loss(model, batch["tokens"])
        return loss + self._balance_weight * balance_loss(routings)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return "loss" in nats per token, without balance, and "accuracy" on the evaluation data.

        Accuracy is the fraction of tokens that were the most likely one, in [0, 1].
        """
        device = next(model.parameters()).device
        loss = 0.0
        hits = 0
        for part in self._evaluation.split(self._evaluation_batch):
            tokens = part.to(device)
            logits = model(tokens[:, :-1]).flatten(0, 1)
            targets = tokens[:, 1:].flatten()
            loss += F.cross_entropy(logits.float(), targets, reduction="sum").item()
            hits += int((logits.argmax(dim=-1) == targets).sum())
        count = self._evaluation[:, 1:].numel()
        return {"loss": loss / count, "accuracy": hits / count}


def _next_token_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    return cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def _require_sequences(tokens: Tensor, name: str) -> None:
    if tokens.ndim != 2 or len(tokens) < 1 or tokens.shape[1] < 2:
        raise InputError(
            got=f"{name} of shape {tuple(tokens.shape)}",
            expected="[example, position] with at least one example and two positions",
            fix="A sequence needs a token to read and one to predict.",
        )
    if tokens.dtype != torch.int64 or not (tokens >= 0).all():
        raise InputError(
            got=f"{name} of {tokens.dtype}, the smallest {tokens.min().item()}",
            expected="int64 of at least 0",
            fix="Every token is predicted: the loss leaves out no label such as -100.",
        )


class TargetTask:
    """Predicting each token of a target from a source and the tokens before it.

    A task for :func:`glassformer.training.train`, whose loss is :func:`target_loss`. Targets are
    padded with 0.

    Args:
        batches: ``batches(step, size)`` is a pure function of both. It returns a dictionary with
            "source" ``[example, position(, field)]``, and "inputs" and "targets"
            ``[example, target]``. "source_real" is added if padding is not marked by 0. The decoder
            reads "inputs": the targets shifted right after a start token, or a query.
        evaluation: Examples for ``evaluate``, with the same names.

    Source: Vaswani et al. 2017, arXiv 1706.03762.
    """

    metric = "loss"
    higher_is_better = False
    unit = "tokens"

    def __init__(self, batches: Callable[[int, int], Batch], evaluation: Batch) -> None:
        self._batches = batches
        self._evaluation = evaluation

    def batch(self, step: int, size: int) -> Batch:
        """Return the examples of update ``step``."""
        return self._batches(step, size)

    def count(self, batch: Batch) -> int:
        """Return the number of target tokens in ``batch``, without padding."""
        return int((batch["targets"] != PAD).sum())

    def loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        """Return the loss above, in nats per token."""
        return target_loss(_logits(model, batch), batch["targets"])

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return "loss", and "accuracy": the share of examples that are :func:`all_right`."""
        device = next(model.parameters()).device
        batch = {name: tensor.to(device) for name, tensor in self._evaluation.items()}
        logits = _logits(model, batch)
        right = all_right(logits, batch["targets"]).double().mean()
        return {"loss": float(target_loss(logits, batch["targets"])), "accuracy": float(right)}


def target_loss(
    logits: Float[Tensor, "batch target vocab"], targets: Int64[Tensor, "batch target"]
) -> Float[Tensor, ""]:
    """Return the mean of ``-log p(token)`` over all target tokens except padding, in nats."""
    return cross_entropy(logits.flatten(0, 1), targets.flatten(), ignored=PAD)


def all_right(
    logits: Float[Tensor, "batch target vocab"], targets: Int64[Tensor, "batch target"]
) -> Bool[Tensor, " batch"]:
    """Return whether every target token except padding is the most likely one."""
    return ((logits.argmax(-1) == targets) | (targets == PAD)).all(-1)


def _logits(model: nn.Module, batch: Batch) -> Float[Tensor, "batch target vocab"]:
    pad = getattr(getattr(plain_model(model), "config", None), "pad_id", PAD)
    if pad != PAD:
        raise InputError(
            got=f"a model with pad_id = {pad}",
            expected=f"{PAD}, which the loss leaves out of targets",
            fix=f"Make the model with pad_id = {PAD}.",
        )
    return model(batch["source"], batch["inputs"], batch.get("source_real"))
