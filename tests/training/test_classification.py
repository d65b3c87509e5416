"""Classification: the loss, the dropping of words, predictions in order, and what is measured of
them.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from glassformer.classifier import predict
from glassformer.data.batches import TextBatches
from glassformer.data.examples import Example
from glassformer.models.encoder import Encoder, EncoderConfig
from glassformer.training import Task, TrainingConfig, train
from glassformer.training.classification import (
    ClassificationTask,
    calibration_error,
    scores,
    wilson,
)
from refusals import refused

ROWS = [[2, 5], [2, 6, 3, 4], [2, 7, 5], [2], [2, 6, 6, 6, 6]]
LABELS = [0, 1, 0, 1, 1]


def texts(rows: list[list[int]] = ROWS, labels: list[int] = LABELS) -> TextBatches:
    return TextBatches(rows, labels, pad_id=0)


def task(**options: object) -> ClassificationTask:
    return ClassificationTask(texts(), texts(), **options)


def test_examples_and_a_tokenizer_make_the_same_task() -> None:
    examples = [
        Example(" ".join(map(str, row)), label) for row, label in zip(ROWS, LABELS, strict=True)
    ]
    made = ClassificationTask.of(
        examples,
        examples[:2],
        lambda text: [int(word) for word in text.split()],
        0,
        seed=3,
        metric="loss",
    )
    expected = TextBatches(ROWS, LABELS, 0, seed=3)
    assert made.metric == "loss"
    for name, values in made.batch(1, 2).items():
        assert torch.equal(values, expected(1, 2)[name])


def encoder(**options: object) -> Encoder:
    sizes = {
        "vocab_size": 8,
        "num_layers": 1,
        "hidden_dim": 8,
        "ff_dim": 16,
        "num_heads": 2,
        "num_classes": 2,
    }
    return Encoder(EncoderConfig(**{**sizes, "dropout": 0.0, **options}))


class Recorder(nn.Module):
    """Gives logits (0, mean of the real tokens), and keeps what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, tokens: Tensor, real: Tensor) -> Tensor:
        self.tokens = tokens
        self.real = real
        mean = (tokens * real).sum(1) / real.sum(1)
        return torch.stack((torch.zeros_like(mean), mean), dim=1)


def test_it_is_a_task_and_hands_its_batches_on() -> None:
    assert isinstance(task(), Task)
    batch = task().batch(3, 2)
    assert {name: tensor.tolist() for name, tensor in batch.items()} == {
        name: tensor.tolist() for name, tensor in texts()(3, 2).items()
    }
    assert task().count(batch) == len(batch["labels"])
    assert (task().metric, task().higher_is_better, task().unit) == ("accuracy", True, "texts")
    assert not task(metric="loss").higher_is_better
    assert task(metric="macro_f1").higher_is_better


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_is_the_sum_written_out(smoothing: float) -> None:
    batch = texts().gather(range(5))
    losses = []
    for row, label in zip(ROWS, LABELS, strict=True):
        mean = sum(row) / len(row)
        log_p = [-math.log(1 + math.exp(mean)), mean - math.log(1 + math.exp(mean))]
        losses.append(-(1 - smoothing) * log_p[label] - smoothing / 2 * sum(log_p))
    loss = task(label_smoothing=smoothing).loss(Recorder(), batch)
    assert loss.item() == pytest.approx(sum(losses) / 5, rel=1e-5)


def test_dropped_words_become_invisible_and_the_first_token_stays() -> None:
    rows = [[2] + [5] * 400] * 5
    batch = texts(rows).gather(range(4)) | {}
    batch["real"][0, 300:] = False
    model = Recorder()
    task(word_dropout=0.3).loss(model, batch)
    gone = batch["real"] & ~model.real
    rate = gone[:, 1:].float().sum() / (batch["real"].sum() - 4)
    assert 0.25 < rate < 0.35  # 1,500 draws: four standard deviations are 0.047
    assert not gone[:, 0].any()
    assert not (model.real & ~batch["real"]).any()
    assert torch.equal(model.tokens, batch["tokens"])


def test_words_are_dropped_in_training_only_and_by_torchs_generator() -> None:
    batch = texts().gather(range(5))
    drops = task(word_dropout=0.5)
    model = Recorder().eval()
    drops.loss(model, batch)
    assert torch.equal(model.real, batch["real"])
    model.train()
    seen = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drops.loss(model, batch)
        seen.append(model.real.tolist())
    assert seen[0] == seen[1] != seen[2]


def test_evaluation_measures_the_held_out_texts() -> None:
    model = encoder().eval()
    held_out = texts(ROWS[:3], [1, 1, 0])
    measured = ClassificationTask(texts(), held_out, evaluation_batch=2).evaluate(model)
    assert measured == scores(predict(model, ROWS[:3], 0), torch.tensor([1, 1, 0]))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), count=st.integers(1, 40), classes=st.integers(2, 4))
def test_scores_are_scikit_learns(seed: int, count: int, classes: int) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(seed)
    probabilities = rng.dirichlet(np.ones(classes), count)
    labels = rng.integers(classes, size=count)
    measured = scores(torch.from_numpy(probabilities), torch.from_numpy(labels))
    predicted = probabilities.argmax(1)
    assert measured["accuracy"] == pytest.approx(metrics.accuracy_score(labels, predicted))
    every = list(range(classes))
    f1 = metrics.f1_score(labels, predicted, labels=every, average="macro", zero_division=0)
    assert measured["macro_f1"] == pytest.approx(f1)
    assert measured["loss"] == pytest.approx(metrics.log_loss(labels, probabilities, labels=every))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), count=st.integers(1, 60), bins=st.integers(1, 20))
def test_the_calibration_error_is_the_sum_over_bins_in_a_loop(
    seed: int, count: int, bins: int
) -> None:
    rng = np.random.default_rng(seed)
    probabilities = rng.dirichlet(np.ones(3), count)
    labels = rng.integers(3, size=count)
    total = 0.0
    for index in range(bins):
        inside = [
            row
            for row in range(count)
            if index / bins < max(probabilities[row]) <= (index + 1) / bins
        ]
        if inside:
            right = np.mean([probabilities[row].argmax() == labels[row] for row in inside])
            confidence = np.mean([max(probabilities[row]) for row in inside])
            total += len(inside) / count * abs(right - confidence)
    error = calibration_error(torch.from_numpy(probabilities), torch.from_numpy(labels), bins)
    assert error == pytest.approx(total, abs=1e-12)


def test_known_values_of_the_scores() -> None:
    sure = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    measured = scores(sure, torch.tensor([0, 0, 1, 1]))
    assert measured["accuracy"] == 0.75
    assert measured["calibration_error"] == 0.25
    assert measured["macro_f1"] == pytest.approx((4 / 5 + 2 / 3) / 2)
    # One of four is thought impossible: as improbable as float32 can say.
    assert measured["loss"] == pytest.approx(
        -math.log(torch.finfo(torch.float32).tiny) / 4, rel=1e-6
    )


def test_an_encoder_learns_to_find_a_word() -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = [length for length in range(2, 9) for _ in range(5)]
    rows = [
        [2, *torch.randint(3, 8, (length,), generator=generator).tolist()] for length in lengths
    ]
    labels = [int(7 in row) for row in rows]
    both = texts(rows, labels)
    finds = ClassificationTask(both, both, word_dropout=0.05, label_smoothing=0.05)
    config = TrainingConfig(steps=150, batch_size=16, learning_rate=0.01, eval_every=50)
    result = train(encoder(hidden_dim=16), finds, config, progress=False)
    assert result.best.value >= 0.97
    assert max(labels.count(0), labels.count(1)) / len(labels) < 0.7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_classes": 1}, "num_classes = 1"),
        ({"metric": "acuracy"}, "metric = 'acuracy'"),
        ({"label_smoothing": 1.0}, "label_smoothing = 1.0"),
        ({"word_dropout": -0.1}, "word_dropout = -0.1"),
        ({"evaluation_batch": 0}, "evaluation_batch = 0"),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_impossible_arguments_are_refused(options: dict[str, object], message: str) -> None:
    with refused(message):
        task(**options)


def test_one_class_alone_is_refused() -> None:
    with refused("3 texts to learn from, all of class 1", expected="at least two classes"):
        ClassificationTask(texts(ROWS[:3], [1, 1, 1]), texts())
    ClassificationTask(texts(), texts(ROWS[:3], [1, 1, 1]))


def test_a_model_of_other_classes_or_a_shorter_reach_is_refused_in_training() -> None:
    config = TrainingConfig(steps=1, batch_size=5)
    three = texts(ROWS, [2, 1, 0, 0, 1])
    for model, chosen, message in (
        (
            encoder(),
            ClassificationTask(three, three, 3),
            "a model of 2 classes for a task with num_classes = 3",
        ),
        (encoder(num_classes=3), task(), "a model of 3 classes for a task with num_classes = 2"),
        (encoder(num_classes=None), task(), "without a classification head"),
        (encoder(max_seq_len=4), task(), "5 positions"),
        (encoder(vocab_size=6), task(), "tokens from 0 to 7"),
    ):
        with refused(message):
            train(model, chosen, config, progress=False)


def test_labels_that_are_no_classes_are_refused() -> None:
    with refused("the label 2 in held_out with num_classes = 2"):
        ClassificationTask(texts(), texts(ROWS, [0, 1, 2, 0, 1]))


@pytest.mark.parametrize(
    ("count", "labels", "message"),
    [
        (3, [0, 1], "3 predictions for 2 labels"),
        (0, [], "0 predictions for 0 labels"),
        (2, [0, 2], "labels from 0 to 2 with 2 classes"),
        (2, [-1, 0], "labels from -1 to 0"),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_predictions_that_do_not_fit_the_labels_are_refused(
    count: int, labels: list[int], message: str
) -> None:
    probabilities = torch.full((count, 2), 0.5)
    classes = torch.tensor(labels, dtype=torch.int64)
    for measure in (scores, calibration_error):
        with refused(message):
            measure(probabilities, classes)


def test_nothing_to_predict_is_refused() -> None:
    with refused("no texts"):
        predict(encoder(), [], 0)
    with refused("bins = 0"):
        calibration_error(torch.full((1, 2), 0.5), torch.tensor([0]), bins=0)


@given(count=st.integers(1, 10_000), share=st.floats(0, 1))
def test_wilsons_interval_is_where_the_score_test_stops(count: int, share: float) -> None:
    low, high = wilson(share, count)
    assert 0 <= low <= share <= high <= 1
    for p in (low, high):
        if 1e-9 < p < 1 - 1e-9 and p != share:
            assert abs(share - p) / math.sqrt(p * (1 - p) / count) == pytest.approx(
                1.959964, rel=1e-4
            )


def test_known_intervals() -> None:
    # Brown, Cai and DasGupta 2001
    assert wilson(0.5, 10) == pytest.approx((0.2366, 0.7634), abs=5e-5)
    assert wilson(0.0, 20) == pytest.approx((0, 0.1611), abs=5e-5)
