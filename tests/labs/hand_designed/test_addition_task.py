"""Training adders: their texts, losses and accuracies."""

from __future__ import annotations

import numpy as np
import torch

from glassformer.labs.hand_designed.addition_task import AdditionTask
from glassformer.programs.adder import Adder
from glassformer.training import TrainingConfig, train
from refusals import refused


def test_accuracy_of_an_adder_is_that_of_its_sums() -> None:
    task, model = AdditionTask(6, 3, seed=1), Adder(6)
    assert task.evaluate(model) == {"accuracy": 1.0}
    assert task.accuracy(model, 6) == 1
    with torch.no_grad():
        model.layers[0].ffn.up.bias[0] += 0.9
    numbers = task.batch(0, 200)["tokens"].numpy()
    places = 10 ** np.arange(6)
    pairs = np.stack([numbers[:, 1:7] @ places, numbers[:, 8:14] @ places], axis=1)
    assert (pairs < 1000).all()
    logits = model(torch.from_numpy(numbers))[:, 14:-1].argmax(-1).numpy()
    forced = (logits == numbers[:, 15:]).all(1)
    assert 0 < forced.mean() < 1
    assert (forced == (model.add(pairs) == pairs.sum(1))).all()


def test_the_trainer_takes_it() -> None:
    result = train(Adder(6), AdditionTask(6, 2), TrainingConfig(steps=2, batch_size=4), progress=False)
    assert result.step == 2


def test_bad_input_is_refused() -> None:
    with refused("max_len = 7"):
        AdditionTask(6, 7)
    with refused("seed = -1"):
        AdditionTask(6, 3, seed=-1)
