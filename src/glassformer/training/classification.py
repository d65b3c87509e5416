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

        loss = mean over texts of  -sum_c target_c log p(c)
        target_c = (1 - s) [c = label] + s / num_classes

    with ``s = label_smoothing``. In training, each token except the first of a text is dropped with
    probability ``word_dropout``: it is masked as padding.

    Args:
        train: Batches of the training texts.
        held_out: Texts for ``evaluate``.
        metric: The one of :func:`scores` that selects the best model.
        label_smoothing: Part of the target that is spread over all classes.
        word_dropout: Probability of dropping a token. torch's generator draws, which training seeds
            at each step.
        evaluation_batch: Texts in one forward pass of ``evaluate``.

    Source: Szegedy et al. 2015, arXiv 1512.00567, section 7 (label smoothing); Iyyer et al. 2015,
    "Deep Unordered Composition Rivals Syntactic Methods for Text Classification", section 4
    (word dropout).
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
        if num_classes < 2:
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
            if highest >= num_classes:
                raise InputError(
                    got=f"the label {highest} in {name} with num_classes = {num_classes}",
                    expected=f"labels from 0 to {num_classes - 1}",
                    fix="Raise num_classes, or correct the labels.",
                )
        if (train.labels == train.labels[0]).all():
            raise InputError(
                got=f"{len(train)} texts to learn from, all of class {int(train.labels[0])}",
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
        """Return the task of labelled texts; ``seed`` decides their order.

        ``options`` are further arguments of the class.
        """

        def batches(examples: Sequence[Example]) -> TextBatches:
            texts = [encode(example.text) for example in examples]
            labels = [example.label for example in examples]
            return TextBatches(texts, labels, pad_id, seed=seed)

        return cls(batches(train), batches(held_out), **options)

    def batch(self, step: int, size: int) -> Batch:
        """Return the batch of update ``step``: "tokens", "real" and "labels".

        Their shapes are [batch, position], [batch, position] and [batch].
        """
        return self._train(step, size)

    def count(self, batch: Batch) -> int:
        """Return the number of texts in ``batch``."""
        return len(batch["labels"])

    def loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        """Return the loss above, in nats per text; only a model in training mode drops tokens."""
        tokens = batch["tokens"]
        real = batch["real"]
        if model.training and self._word_dropout > 0:
            dropped = torch.rand(tokens.shape, device=tokens.device) < self._word_dropout
            # The first token stands for the whole text, and every text keeps at least one.
            dropped[:, 0] = False
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
        """Return the :func:`scores` on the held-out texts."""
        held_out = self._held_out
        predictions = predict(model, held_out.rows, held_out.pad_id, self._evaluation_batch)
        return scores(predictions, held_out.labels)


def scores(
    probabilities: Float[Tensor, "text num_classes"], labels: Int64[Tensor, " text"]
) -> dict[str, float]:
    """Return the metrics of predictions.

    * ``accuracy``: the fraction of texts whose most likely class is the label;
    * ``macro_f1``: the mean over classes of F1 = 2 hits / (predicted + actual); 0 for a class that
      is neither predicted nor actual;
    * ``loss``: the mean of -log p(label), in nats;
    * ``calibration_error``: see :func:`calibration_error`.
    """
    calibration = calibration_error(probabilities, labels)
    predicted = probabilities.argmax(-1)
    hits = predicted == labels
    classes = torch.arange(probabilities.shape[1])[:, None]
    predicted_count = (predicted == classes).sum(1)
    actual_count = (labels == classes).sum(1)
    class_hits = (hits & (labels == classes)).sum(1)
    f1 = 2 * class_hits / (predicted_count + actual_count).clamp(min=1)
    # A probability that float32 rounds to 0 would make the mean infinite, so that such runs could
    # not be told apart.
    smallest = torch.finfo(probabilities.dtype).tiny
    label_probabilities = probabilities.gather(1, labels[:, None]).clamp(min=smallest)
    return {
        "accuracy": float(hits.double().mean()),
        "macro_f1": float(f1.double().mean()),
        "loss": float(-label_probabilities.double().log().mean()),
        "calibration_error": calibration,
    }


def calibration_error(
    probabilities: Float[Tensor, "text num_classes"],
    labels: Int64[Tensor, " text"],
    bins: int = BINS,
) -> float:
    """Return the expected calibration error of predictions, in [0, 1]::

        sum over bins of  n_bin / n * |accuracy in the bin - mean confidence in the bin|

    It measures how far confidence is from accuracy. Confidence is the probability of the most
    likely class; the bins are intervals ``(i, i + 1] / bins``.

    Source: Guo et al. 2017, "On Calibration of Modern Neural Networks", arXiv 1706.04599,
    equation 3.
    """
    require_positive(bins=bins)
    if not 0 < len(labels) == len(probabilities):
        raise InputError(
            got=f"{len(probabilities)} predictions for {len(labels)} labels",
            expected="one prediction per label, and at least one",
            fix="Predict the texts that the labels belong to.",
        )
    lowest, highest = (int(label) for label in labels.aminmax())
    if lowest < 0 or highest >= probabilities.shape[1]:
        raise InputError(
            got=f"labels from {lowest} to {highest} with {probabilities.shape[1]} classes",
            expected="one class for each label",
            fix="Correct the labels.",
        )
    confidence, predicted = probabilities.double().max(-1)
    # The sum of (right - confidence) over a bin is n_bin times the difference of the two means.
    excess = (predicted == labels).double() - confidence
    index = (confidence * bins).ceil().long().clamp(1, bins) - 1
    bin_sums = torch.zeros(bins, dtype=torch.float64).index_add_(0, index, excess)
    return float(bin_sums.abs().sum() / len(labels))


def wilson(share: float, count: int, z: float = 1.959964) -> tuple[float, float]:
    """Return the 95 % interval of a probability, given its ``share`` in ``count`` trials.

    ``(share + z² / 2n ± z sqrt(share (1 - share) / n + z² / 4n²)) / (1 + z² / n)``

    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference".
    """
    middle = share + z * z / (2 * count)
    scale = 1 + z * z / count
    half = z * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    # At shares of 0 and 1, rounding could put the end on the wrong side.
    lower = max(0.0, min(share, (middle - half) / scale))
    upper = min(1.0, max(share, (middle + half) / scale))
    return lower, upper
