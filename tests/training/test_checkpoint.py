import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from training_toys import ToyModel, ToyTask

from glassformer.errors import InputError
from glassformer.training import TrainingConfig
from glassformer.training.checkpoint import (
    load_optimizers,
    load_weights,
    named_tensors,
    save_optimizers,
    save_weights,
)
from glassformer.training.optim import build_optimizers
from refusals import refused


def trained(
    optimizer: str = "adamw", *, tied: bool = False, momentum: float = 0.0
) -> tuple[nn.Module, list]:
    model = ToyModel(tied=tied)
    optimizers = build_optimizers(model, TrainingConfig(optimizer=optimizer, momentum=momentum))
    take(model, optimizers, range(3))
    return model, optimizers


def take(model: nn.Module, optimizers: list, steps: range) -> None:
    task = ToyTask()
    for step in steps:
        task.loss(model, task.batch(step, 8)).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize(
    ("optimizer", "momentum"), [("adamw", 0.0), ("muon", 0.0), ("sgd", 0.0), ("sgd", 0.9)]
)
@pytest.mark.parametrize("tied", [False, True])
def test_training_goes_on_from_what_was_saved(
    tmp_path: Path, optimizer: str, momentum: float, tied: bool
) -> None:
    model, optimizers = trained(optimizer, tied=tied, momentum=momentum)
    save_weights(model, tmp_path)
    save_optimizers(model, optimizers, tmp_path)
    take(model, optimizers, range(3, 6))

    again = ToyModel(seed=1, tied=tied)
    load_weights(again, tmp_path)
    fresh = build_optimizers(again, TrainingConfig(optimizer=optimizer, momentum=momentum))
    load_optimizers(again, fresh, tmp_path)
    take(again, fresh, range(3, 6))
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True)
    )


def test_a_tied_weight_is_stored_once(tmp_path: Path) -> None:
    save_weights(ToyModel(tied=True), tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert "embedding.weight" in stored
    assert "head.weight" not in stored
    again = ToyModel(seed=1, tied=True)
    load_weights(again, tmp_path)
    assert again.head.weight is again.embedding.weight
    assert torch.equal(again.head.weight, stored["embedding.weight"])


def test_buffers_are_stored_and_transposed_weights_too(tmp_path: Path) -> None:
    model = nn.BatchNorm1d(3)
    model(torch.randn(5, 3))
    model.weight = nn.Parameter(torch.arange(6.0).reshape(2, 3).t()[:, 0])
    save_weights(model, tmp_path)
    again = nn.BatchNorm1d(3)
    load_weights(again, tmp_path)
    assert int(again.num_batches_tracked) == 1
    assert torch.equal(again.running_mean, model.running_mean)
    assert torch.equal(again.weight, torch.tensor([0.0, 1.0, 2.0]))


def test_names_are_those_of_the_plain_model(tmp_path: Path) -> None:
    model = ToyModel()
    compiled = torch.compile(model, backend="eager")
    assert list(named_tensors(compiled)) == list(model.state_dict())
    model.blocks[0] = torch.compile(model.blocks[0], backend="eager")
    assert list(named_tensors(model)) == list(ToyModel().state_dict())


def test_a_process_that_does_not_write_leaves_no_file(tmp_path: Path) -> None:
    model, optimizers = trained()
    save_weights(model, tmp_path, write=False)
    save_optimizers(model, optimizers, tmp_path, write=False)
    assert not list(tmp_path.iterdir())


def test_files_hold_no_pickle(tmp_path: Path) -> None:
    model, optimizers = trained("muon")
    save_optimizers(model, optimizers, tmp_path)
    raw = (tmp_path / "optimizer.safetensors").read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    assert "blocks.0.weight.momentum_buffer" in header
    assert "embedding.weight.exp_avg_sq" in header


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda stored: stored.pop("norm.bias"), "without the tensor 'norm.bias'"),
        (lambda stored: stored.update(extra=torch.zeros(1)), "with the unknown tensor 'extra'"),
        (lambda stored: stored.update({"norm.bias": torch.zeros(3)}), "'norm.bias' of shape (3,)"),
        (lambda stored: stored.update({"norm.bias": torch.zeros(8).double()}), "torch.float64"),
    ],
)
def test_weights_of_another_model_are_refused_and_change_nothing(
    tmp_path: Path, change, message: str
) -> None:
    model = ToyModel()
    stored = {name: tensor + 1 for name, tensor in model.state_dict().items()}
    change(stored)
    save_file(stored, tmp_path / "model.safetensors")
    with pytest.raises(InputError) as error:
        load_weights(model, tmp_path)
    assert message in str(error.value)
    assert str(tmp_path / "model.safetensors") in str(error.value)
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), ToyModel().parameters(), strict=True)
    )


def test_missing_files_are_named(tmp_path: Path) -> None:
    model, optimizers = trained()
    with refused(r"no file .*model\.safetensors", fix="a run.s best/"):
        load_weights(model, tmp_path)
    with refused(r"no file .*optimizer\.safetensors"):
        load_optimizers(model, optimizers, tmp_path)


def test_a_weight_without_gradients_has_no_state(tmp_path: Path) -> None:
    model = ToyModel()
    optimizers = build_optimizers(model, TrainingConfig())
    model.head.weight.sum().backward()
    optimizers[0].step()
    save_optimizers(model, optimizers, tmp_path)
    fresh = build_optimizers(model, TrainingConfig())
    load_optimizers(model, fresh, tmp_path)
    assert list(fresh[0].state) == [model.head.weight]


def test_state_of_other_weights_is_refused(tmp_path: Path) -> None:
    model, optimizers = trained()
    save_file({"elsewhere.exp_avg": torch.zeros(2)}, tmp_path / "optimizer.safetensors")
    with refused(r"'elsewhere\.exp_avg'"):
        load_optimizers(model, optimizers, tmp_path)
    save_file({"norm.bias.exp_avg": torch.zeros(8)}, tmp_path / "optimizer.safetensors")
    with refused(r"with \['exp_avg'\] for a weight"):
        load_optimizers(model, optimizers, tmp_path)
    save_file({"norm.bias.exp_avg": torch.zeros(2)}, tmp_path / "optimizer.safetensors")
    with refused(r"'norm\.bias\.exp_avg' of shape \(2,\)"):
        load_optimizers(model, optimizers, tmp_path)
    save_optimizers(model, optimizers, tmp_path)
    model.embedding.requires_grad_(False)
    with refused(r"a run that updates \['embedding\.weight'\]"):
        load_optimizers(model, build_optimizers(model, TrainingConfig()), tmp_path)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_state_that_is_not_finite_is_refused(tmp_path: Path, number: float) -> None:
    """It would become weights of the next checkpoint."""
    model, optimizers = trained()
    save_optimizers(model, optimizers, tmp_path)
    stored = load_file(tmp_path / "optimizer.safetensors")
    for name in ("norm.bias.exp_avg", "norm.bias.exp_avg_sq"):
        spoilt = {**stored, name: torch.full_like(stored[name], number)}
        save_file(spoilt, tmp_path / "optimizer.safetensors")
        if name.endswith("sq") and number == float("inf"):  # squares overflow before gradients do
            load_optimizers(model, optimizers, tmp_path)
            continue
        with refused(rf"optimizer\.safetensors with '{name}' that is infinite or NaN"):
            load_optimizers(model, optimizers, tmp_path)
