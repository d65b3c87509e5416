"""Training compiled programs: their data, losses and accuracies."""

import pytest
import torch
from torch import nn

from glassformer.errors import InputError
from glassformer.programs import compile_program
from glassformer.programs.library import PROGRAMS, parity
from glassformer.programs.model import CompiledProgram
from glassformer.training import TrainingConfig, train
from glassformer.training.program_task import ProgramTask


def compiled() -> CompiledProgram:
    return compile_program(parity("1"), "01", 8, dtype=torch.float32)


def test_batches_are_the_programs_values() -> None:
    model = compiled()
    task = ProgramTask(model, 4, seed=3)
    lengths = set()
    for step in range(30):
        batch = task.batch(step, 5)
        assert all(torch.equal(batch[name], task.batch(step, 5)[name]) for name in batch)
        lengths.add(batch["tokens"].shape[1])
        for row, wanted in zip(batch["tokens"].tolist(), batch["wanted"].tolist(), strict=True):
            assert model.decode(wanted) == parity("1")(["01"[token] for token in row])
    assert lengths == {1, 2, 3, 4}
    assert not torch.equal(
        task.batch(0, 64)["tokens"][0], ProgramTask(model, 4, seed=4).batch(0, 64)["tokens"][0]
    )


def test_a_compiled_program_has_nothing_to_learn_and_a_broken_one_has() -> None:
    model = compiled()
    task = ProgramTask(model, 4)
    batch = task.batch(0, 16)
    assert task.loss(model, batch) < 1e-6  # float32
    assert task.evaluate(model) == {"accuracy": 1.0}
    assert [task.accuracy(model, length) for length in range(1, 9)] == [1.0] * 8
    with torch.no_grad():
        model.output.bias += 0.6
    assert task.loss(model, batch).item() == pytest.approx(0.36, abs=1e-5)
    assert task.accuracy(model, 4) == 0


def test_sequences_are_measured_on_the_device_of_the_model() -> None:
    class Elsewhere(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(1, device="meta"))

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            assert tokens.is_meta
            return torch.zeros(tokens.shape)

    assert 0 <= ProgramTask(compiled(), 4).accuracy(Elsewhere(), 3) < 1


def test_positions_without_a_value_are_left_out() -> None:
    """Of the gradient too; a model that gives NaN has no loss of 0."""
    example = PROGRAMS["detect"]
    model = compile_program(example.program, example.vocabulary, 4, dtype=torch.float32)
    task = ProgramTask(model, 4)
    batch = {"tokens": torch.tensor([[0, 1]]), "wanted": torch.tensor([[torch.nan, 7.0]])}
    assert task.count(batch) == 1
    loss = task.loss(model, batch)
    assert loss == (model(batch["tokens"])[0, 1] - 7).square()
    gradients = torch.autograd.grad(loss, [*model.parameters()], allow_unused=True)
    assert all(bool(each.isfinite().all()) for each in gradients if each is not None)
    with torch.no_grad():
        model.output.bias.fill_(torch.nan)
    assert task.loss(model, batch).isnan()


def test_the_trainer_takes_it() -> None:
    model = compiled()
    task = ProgramTask(compiled(), 4)
    with torch.no_grad():
        model.output.bias += 0.6
    config = TrainingConfig(
        steps=30, batch_size=16, learning_rate=0.03, weight_decay=0.0, log_every=30
    )
    result = train(model, task, config, progress=False)
    assert result.losses[-1][1] < 0.36  # that of the start


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError):
        ProgramTask(compiled(), 9)
    with pytest.raises(InputError):
        ProgramTask(compiled(), 2, seed=-1)
    numeric = compiled()
    numeric.codes = None
    with pytest.raises(InputError):
        ProgramTask(numeric, 2)
