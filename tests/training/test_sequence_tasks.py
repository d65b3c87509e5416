import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from glassformer.layers.experts import balance_loss, collect_routing
from glassformer.models import Decoder, DecoderConfig
from glassformer.training import Batch, EpochBatches, Task, TrainingConfig, train
from glassformer.training.sequence_tasks import NextTokenTask, TargetTask, all_right, target_loss
from refusals import refused
from small_models import encoder_decoder

VOCAB_SIZE = 5
DENSE = DecoderConfig(VOCAB_SIZE, num_layers=2, hidden_dim=8, ff_dim=16, num_heads=2, head_dim=4)
BALANCED = DecoderConfig(
    VOCAB_SIZE,
    num_layers=2,
    hidden_dim=8,
    ff_dim=8,
    num_heads=2,
    head_dim=4,
    num_experts=4,
    balance_experts=True,
)


class Table(nn.Module):
    """Logits of the next token, looked up by the newest one."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.logits[tokens]


def cycles(count: int, length: int = 9) -> Tensor:
    """Sequences that count upwards modulo the vocabulary."""
    return (torch.arange(count)[:, None] + torch.arange(length)) % VOCAB_SIZE


def task(evaluation: Tensor | None = None, **options: object) -> NextTokenTask:
    batches = EpochBatches({"tokens": cycles(20)})
    return NextTokenTask(batches, cycles(7) if evaluation is None else evaluation, **options)


def test_it_is_a_task_and_hands_its_batches_on() -> None:
    assert isinstance(task(), Task)
    assert torch.equal(
        task().batch(3, 6)["tokens"], EpochBatches({"tokens": cycles(20)})(3, 6)["tokens"]
    )
    assert task().count(task().batch(0, 6)) == 6 * 8
    assert (task().metric, task().higher_is_better) == ("loss", False)
    accurate = task(metric="accuracy")
    assert (accurate.metric, accurate.higher_is_better, accurate.unit) == (
        "accuracy",
        True,
        "tokens",
    )


def test_loss_and_metrics_are_the_sums_written_out() -> None:
    torch.manual_seed(1)
    table = Table(torch.randn(VOCAB_SIZE, VOCAB_SIZE))
    tokens = torch.randint(VOCAB_SIZE, (7, 6))
    losses = []
    hits = []
    for row in tokens.tolist():
        for now, then in pairwise(row):
            scores = table.logits[now].tolist()
            losses.append(math.log(sum(map(math.exp, scores))) - scores[then])
            hits.append(scores[then] == max(scores))
    loss = sum(losses) / len(losses)
    assert task().loss(table, {"tokens": tokens}).item() == pytest.approx(loss, rel=1e-6)
    for evaluation_batch in (1, 3, 7, 100):
        metrics = task(tokens, evaluation_batch=evaluation_batch).evaluate(table)
        assert metrics == pytest.approx({"loss": loss, "accuracy": sum(hits) / len(hits)}, rel=1e-6)


def test_knowing_nothing_and_knowing_all() -> None:
    ignorant = Table(torch.zeros(VOCAB_SIZE, VOCAB_SIZE))
    perfect = Table(50 * torch.eye(VOCAB_SIZE).roll(1, dims=1))
    assert task().evaluate(ignorant)["loss"] == pytest.approx(math.log(VOCAB_SIZE))
    assert task().evaluate(perfect) == pytest.approx({"loss": 0.0, "accuracy": 1.0}, abs=1e-6)


# The check of annotations cannot be compiled.
@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    "wrap", [lambda model: model, lambda model: torch.compile(model, backend="eager")]
)
def test_the_balance_loss_is_added_with_its_weight(wrap: object) -> None:
    model = Decoder(BALANCED)
    batch = {"tokens": cycles(4)}
    plain = task().loss(wrap(model), batch)
    weighed = task(balance_weight=0.5).loss(wrap(model), batch)
    with collect_routing(model) as routings:
        model(batch["tokens"][:, :-1])
    assert (weighed - plain).item() == pytest.approx(0.5 * balance_loss(routings).item(), abs=1e-6)
    weighed.backward()
    assert model.layers[0].ffn.router.score.weight.grad.abs().sum() > 0
    model.eval()
    with torch.no_grad():
        assert task(balance_weight=0.5).evaluate(model) == task().evaluate(model)


def test_a_balance_that_the_model_does_not_compute_is_refused() -> None:
    with refused("no routings"):
        task(balance_weight=0.1).loss(
            Table(torch.zeros(VOCAB_SIZE, VOCAB_SIZE)), {"tokens": cycles(2)}
        )
    with refused("no routings"):
        task(balance_weight=0.1).loss(Decoder(DENSE), {"tokens": cycles(2)})


def test_a_decoder_learns_to_count() -> None:
    config = TrainingConfig(steps=60, batch_size=10, learning_rate=0.02, log_every=1)
    result = train(
        Decoder(BALANCED), task(metric="accuracy", balance_weight=0.01), config, progress=False
    )
    assert result.losses[0][1] > 1.0
    assert result.best.value == 1.0


@pytest.mark.parametrize(
    ("evaluation", "options", "message"),
    [
        (torch.zeros(0, 4, dtype=torch.long), {}, r"evaluation of shape \(0, 4\)"),
        (torch.zeros(3, 1, dtype=torch.long), {}, r"evaluation of shape \(3, 1\)"),
        (torch.zeros(3, dtype=torch.long), {}, r"evaluation of shape \(3,\)"),
        (cycles(2).int(), {}, "evaluation of torch.int32"),
        (torch.tensor([[1, 2, -100]]), {}, "evaluation of torch.int64, the smallest -100"),
        (cycles(2), {"metric": "los"}, "metric = 'los'"),
        (cycles(2), {"balance_weight": -1.0}, "balance_weight = -1.0"),
        (cycles(2), {"evaluation_batch": 0}, "evaluation_batch = 0"),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_impossible_arguments_are_refused(
    evaluation: Tensor, options: dict[str, object], message: str
) -> None:
    with refused(message):
        task(evaluation, **options)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"words": cycles(2)}, "'words'"),
        ({"tokens": cycles(2)[:, :1]}, r"a batch's tokens of shape \(2, 1\)"),
        ({"tokens": cycles(2) - 100}, "a batch's tokens of torch.int64, the smallest -100"),
    ],
)
def test_batches_of_something_else_are_refused(batch: Batch, message: str) -> None:
    with refused(message):
        NextTokenTask(lambda step, size: batch, cycles(2)).batch(0, 2)


EXAMPLES = {
    "source": torch.tensor([[3, 4, 0], [5, 6, 7], [4, 4, 4]]),
    "inputs": torch.tensor([[1, 3], [1, 5], [1, 0]]),
    "targets": torch.tensor([[3, 2], [5, 2], [4, 0]]),
}


def test_the_loss_is_the_mean_over_tokens_but_padding() -> None:
    logits = torch.randn(2, 3, 14)
    targets = torch.tensor([[7, 2, 0], [8, 9, 2]])
    terms = [
        -float(logits[row, place].log_softmax(-1)[token])
        for row in range(2)
        for place, token in enumerate(targets[row].tolist())
        if token
    ]
    assert math.isclose(float(target_loss(logits, targets)), sum(terms) / 5, rel_tol=1e-5)


def test_right_is_what_is_right_in_every_token() -> None:
    targets = torch.tensor([[7, 2, 0], [8, 9, 2]])
    logits = torch.nn.functional.one_hot(torch.tensor([[7, 2, 5], [8, 9, 2]]), 14).float()
    assert all_right(logits, targets).tolist() == [True, True]
    logits[1, 1] = logits[1, 0]
    assert all_right(logits, targets).tolist() == [True, False]


def test_it_is_a_task_that_a_model_learns() -> None:
    task = TargetTask(EpochBatches(EXAMPLES), EXAMPLES)
    model = encoder_decoder(
        vocab_size=8, hidden_dim=16, ff_dim=32, num_encoder_layers=1, num_decoder_layers=1
    )
    assert isinstance(task, Task)
    assert task.count(EXAMPLES) == 5
    with torch.no_grad():
        logits = model(EXAMPLES["source"], EXAMPLES["inputs"])
        expected = target_loss(logits, EXAMPLES["targets"])
        assert task.evaluate(model)["loss"] == pytest.approx(float(expected))
        assert float(task.loss(model, EXAMPLES)) == pytest.approx(float(expected))
        hidden = {**EXAMPLES, "source_real": torch.tensor([[True, False, False]] * 3)}
        assert float(task.loss(model, hidden)) != pytest.approx(float(expected))
    result = train(
        model, task, TrainingConfig(steps=60, batch_size=3, learning_rate=1e-2), progress=False
    )
    assert result.evaluations[-1][1]["accuracy"] == 1


def test_a_model_with_another_padding_than_the_loss_leaves_out_is_refused() -> None:
    task = TargetTask(EpochBatches(EXAMPLES), EXAMPLES)
    for measured in (lambda model: task.loss(model, EXAMPLES), task.evaluate):
        with refused("pad_id = 3", expected="0, which"):
            measured(encoder_decoder(vocab_size=8, pad_id=3))
