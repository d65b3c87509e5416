"""Text classification: the task of encoders, and metrics of their predictions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from glassformer.classifier import predict
from glassformer.data.batches import TextBatches
from glassformer.data.examples import Example
from glassformer.errors import InputError, require_positive, require_probability
from glassformer.training.task import Batch

Metric = Literal["accuracy", "macro_f1", "loss", "calibration_error"]

BINS = 15
"""Bins of the calibration error, as in Guo et al."""


class ClassificationTask:
    """Predicting the class of a text; a task for :func:`glassformer.training.train`.

        loss = mean over texts of  -sum_c target_c log p(c),   target = (1 - s) [c = label] + s /
        num_classes

    with ``s = label_smoothing``. In training, each token but the first of a text is dropped with
    probability
    ``word_dropout``: it counts as padding, which nothing sees.

    Args:
        train: The texts to learn from, in batches.
        held_out: The texts on which ``evaluate`` measures.
        metric: Which of :func:`scores` decides what model is the best.
        label_smoothing: Part of the target that is spread over all classes.
        word_dropout: Probability of dropping a token. Drawn from torch's generator, which training
            seeds at each step.
        evaluation_batch: Texts in one forward pass of ``evaluate``.

    Source: Szegedy et al. 2015, arXiv 1512.00567, section 7 (label smoothing); Iyyer et al. 2015,
    "Deep Unordered Composition Rivals Syntactic Methods for Text Classification", section 4 (word
    dropout).
    """

    unit = "texts"

    def __init__(
        self,
        train: TextBatches,
        held_out: TextBatches,
        num_classes: int = 2,
        *,
        metric: Metric = "accuracy",
        label_smoothing: float = 0.0,
        word_dropout: float = 0.0,
        evaluation_batch: int = 64,
    ) -> None:
        require_positive(evaluation_batch=evaluation_batch)
        if not num_classes >= 2:
            raise InputError(
                got=f"num_classes = {num_classes}",
                expected="at least 2",
                fix="With one there is nothing to decide.",
            )
        metrics = get_args(Metric)
        if metric not in metrics:
            raise InputError(
                got=f"metric = {metric!r}",
                expected=" or ".join(map(repr, metrics)),
                fix="Choose one of them.",
            )
        for name, texts in (("train", train), ("held_out", held_out)):
            highest = int(texts.labels.max())
            fits = highest < num_classes
            got = f"the label {highest} in {name} with num_classes = {num_classes}"
            if not fits:
                raise InputError(
                    got=got,
                    expected=f"labels from 0 to {num_classes - 1}",
                    fix="Raise num_classes, or correct the labels.",
                )
        got = f"{len(train)} texts to learn from, all of class {int(train.labels[0])}"
        if not bool((train.labels != train.labels[0]).any()):
            raise InputError(
                got=got,
                expected="at least two classes",
                fix="One class alone cannot be learned; check the labels.",
            )
        require_probability(label_smoothing=label_smoothing, word_dropout=word_dropout)
        self._train = train
        self._held_out = held_out
        self._num_classes = num_classes
        self._label_smoothing = label_smoothing
        self._word_dropout = word_dropout
        self._evaluation_batch = evaluation_batch
        self.metric: str = metric
        self.higher_is_better = metric in ("accuracy", "macro_f1")

    @classmethod
    def of(
        cls,
        train: Sequence[Example],
        held_out: Sequence[Example],
        encode: Callable[[str], Sequence[int]],
        pad_id: int,
        *,
        seed: int = 0,
        **options: Any,
    ) -> ClassificationTask:
        """The task of labelled texts, whose order follows from ``seed``; options are further
        arguments of the class.
        """
        learned, measured = (
            TextBatches(
                [encode(each.text) for each in part],
                [each.label for each in part],
                pad_id,
                seed=seed,
            )
            for part in (train, held_out)
        )
        return cls(learned, measured, **options)

    def batch(self, step: int, size: int) -> Batch:
        """``{"tokens": [batch, position], "real": [batch, position], "labels": [batch]}`` of update
        ``step``.
        """
        return self._train(step, size)

    def count(self, batch: Batch) -> int:
        """Texts in ``batch``."""
        return len(batch["labels"])

    def loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        """The loss above, in nats per text; tokens are dropped only if ``model`` is in training
        mode.
        """
        tokens = batch["tokens"]
        real = batch["real"]
        if model.training and self._word_dropout > 0:
            dropped = torch.rand(tokens.shape, device=tokens.device) < self._word_dropout
            dropped[:, 0] = (
                # the first token stands for the whole text, and so no text is left without any
                False
            )
            real = real & ~dropped
        logits = model(tokens, real)
        if logits.shape[-1] != self._num_classes:
            raise InputError(
                got=(
                    f"a model of {logits.shape[-1]} classes for a task with num_classes = "
                    f"{self._num_classes}"
                ),
                expected="the same number",
                fix="Make the model with num_classes for all labels.",
            )
        return F.cross_entropy(logits, batch["labels"], label_smoothing=self._label_smoothing)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """:func:`scores` on the held-out texts."""
        held_out = self._held_out
        return scores(
            predict(model, held_out.rows, held_out.pad_id, self._evaluation_batch), held_out.labels
        )


def scores(
    probabilities: Float[Tensor, "text num_classes"], labels: Int64[Tensor, " text"]
) -> dict[str, float]:
    """How good predictions are.

    * ``accuracy``: the fraction of texts whose most likely class is theirs;
    * ``macro_f1``: the mean over classes of F1 = 2 hits / (predicted + actual); 0 for a class of
      neither;
    * ``loss``: the mean of -log p(label), in nats;
    * ``calibration_error``: see :func:`calibration_error`.
    """
    calibration = calibration_error(probabilities, labels)
    predicted = probabilities.argmax(-1)
    hits = predicted == labels
    classes = torch.arange(probabilities.shape[1])[:, None]
    found = (predicted == classes).sum(1)
    actual = (labels == classes).sum(1)
    f1 = 2 * (hits & (labels == classes)).sum(1) / (found + actual).clamp(min=1)
    # A probability that float32 rounds to 0 would make the mean infinite, and two such runs equally
    # bad.
    chosen = probabilities.gather(1, labels[:, None]).clamp(
        min=torch.finfo(probabilities.dtype).tiny
    )
    return {
        "accuracy": float(hits.double().mean()),
        "macro_f1": float(f1.double().mean()),
        "loss": float(-chosen.double().log().mean()),
        "calibration_error": calibration,
    }


def calibration_error(
    probabilities: Float[Tensor, "text num_classes"],
    labels: Int64[Tensor, " text"],
    bins: int = BINS,
) -> float:
    """The expected calibration error: how far confidence is from the rate of being right, in [0,
    1]::

        sum over bins of  n_bin / n * |accuracy in the bin - mean confidence in the bin|

    Confidence is the probability of the most likely class; the bins are intervals ``(i, i + 1] /
    bins``.

    Source: Guo et al. 2017, "On Calibration of Modern Neural Networks", arXiv 1706.04599, equation
    3.
    """
    require_positive(bins=bins)
    fits = len(probabilities) == len(labels) > 0
    got = f"{len(probabilities)} predictions for {len(labels)} labels"
    if not fits:
        raise InputError(
            got=got,
            expected="one prediction per label, and at least one",
            fix="Predict the texts that the labels belong to.",
        )
    lowest, highest = (int(label) for label in labels.aminmax())
    got = f"labels from {lowest} to {highest} with {probabilities.shape[1]} classes"
    if not (lowest >= 0 and highest < probabilities.shape[1]):
        raise InputError(
            got=got,
            expected="one class for each label",
            fix="Correct the labels.",
        )
    confidence, predicted = probabilities.double().max(-1)
    # (right - confidence), summed over a bin, is n_bin times the difference of the two means.
    excess = (predicted == labels).double() - confidence
    index = (confidence * bins).ceil().long().clamp(1, bins) - 1
    return float(
        torch.zeros(bins, dtype=torch.float64).index_add_(0, index, excess).abs().sum()
        / len(labels)
    )


def wilson(share: float, count: int, z: float = 1.959964) -> tuple[float, float]:
    """The 95 % interval of a probability of which ``share`` was seen in ``count`` trials.

    ``(share + z² / 2n ± z sqrt(share (1 - share) / n + z² / 4n²)) / (1 + z² / n)``

    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference".
    """
    middle = share + z * z / (2 * count)
    scale = 1 + z * z / count
    half = z * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    # At shares of 0 and 1, rounding could put the end on the wrong side.
    return max(0.0, min(share, (middle - half) / scale)), min(
        1.0, max(share, (middle + half) / scale)
    )
