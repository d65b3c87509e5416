"""Training as labs do it: a run directory is continued."""

from pathlib import Path

import pytest
import torch
from torch import nn

from glassformer.training import EpochBatches, TargetTask, TrainingConfig
from glassformer.training.loop import train_in
from refusals import refused

BATCH = {
    "source": torch.tensor([[3, 4]]),
    "inputs": torch.tensor([[1]]),
    "targets": torch.tensor([[2]]),
}


class Constant(nn.Module):
    """The same logits for every target token."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(5))

    def forward(
        self, source: torch.Tensor, inputs: torch.Tensor, real: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self.logits.expand(*inputs.shape, 5)


def test_a_run_is_continued_where_it_stands(tmp_path: Path) -> None:
    task = TargetTask(EpochBatches(BATCH), BATCH)
    config = TrainingConfig(steps=4, batch_size=1)
    models = []
    for directory in (tmp_path / "run", tmp_path / "run", None):
        models.append(Constant())
        result = train_in(directory, models[-1], task, config, {"sizes": (1, 2)})
        assert result.step == 4
        assert not models[-1].training
    assert torch.equal(models[0].logits, models[1].logits)
    assert torch.equal(models[0].logits, models[2].logits)
    with refused("description|sizes"):
        train_in(tmp_path / "run", Constant(), task, config, {"sizes": (1, 3)})


def test_an_interrupted_training_stops_the_lab(tmp_path: Path) -> None:
    class Interrupted(TargetTask):
        def batch(self, step, size):
            if step == 2:
                import os
                import signal

                os.kill(os.getpid(), signal.SIGINT)
            return super().batch(step, size)

    config = TrainingConfig(steps=4, batch_size=1)
    with pytest.raises(KeyboardInterrupt):
        train_in(tmp_path / "run", Constant(), Interrupted(EpochBatches(BATCH), BATCH), config, {})
    assert (
        train_in(
            tmp_path / "run", Constant(), TargetTask(EpochBatches(BATCH), BATCH), config, {}
        ).step
        == 4
    )
