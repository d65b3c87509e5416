"""The task of encoder-decoders: its loss and accuracy written out, and a training that learns."""

from __future__ import annotations

import math

import pytest
import torch

from glassformer.models import EncoderDecoder, EncoderDecoderConfig
from glassformer.training import EpochBatches, Task, TrainingConfig, train
from glassformer.training.target import TargetTask, all_right, target_loss

CONFIG = EncoderDecoderConfig(
    vocab_size=8,
    hidden_dim=16,
    ff_dim=32,
    num_heads=2,
    num_encoder_layers=1,
    num_decoder_layers=1,
    max_source_len=4,
    max_target_len=2,
    dropout=0.0,
)
EXAMPLES = {
    "source": torch.tensor([[3, 4, 0], [5, 6, 7], [4, 4, 4]]),
    "inputs": torch.tensor([[1, 3], [1, 5], [1, 0]]),
    "targets": torch.tensor([[3, 2], [5, 2], [4, 0]]),
}


def test_the_loss_is_the_mean_over_tokens_but_padding() -> None:
    logits, targets = torch.randn(2, 3, 14), torch.tensor([[7, 2, 0], [8, 9, 2]])
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
    torch.manual_seed(0)
    task, model = TargetTask(EpochBatches(EXAMPLES), EXAMPLES), EncoderDecoder(CONFIG)
    assert isinstance(task, Task)
    assert task.count(EXAMPLES) == 5
    with torch.no_grad():
        logits = model(EXAMPLES["source"], EXAMPLES["inputs"])
        expected = target_loss(logits, EXAMPLES["targets"])
        assert task.evaluate(model)["loss"] == pytest.approx(float(expected))
        assert float(task.loss(model, EXAMPLES)) == pytest.approx(float(expected))
        hidden = {**EXAMPLES, "source_real": torch.tensor([[True, False, False]] * 3)}
        assert float(task.loss(model, hidden)) != pytest.approx(float(expected))
    result = train(model, task, TrainingConfig(steps=60, batch_size=3, learning_rate=1e-2), progress=False)
    assert result.evaluations[-1][1]["accuracy"] == 1
