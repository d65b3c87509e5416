"""The course's loop, against one in plain PyTorch that is written here."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from glassformer.labs.hand_designed import (
    PytorchTransformer,
    TrainingConfig,
    make_batch_first,
    make_batch_identity,
    make_batch_unique,
    set_random_seed,
    train_loop,
)
from refusals import refused

SIZES = {
    make_batch_identity: (3, 3, 3),
    make_batch_first: (3, 1, 3, 4, 4),
    make_batch_unique: (4, 8, 1, 4, 5),
}

# The run-time check of annotations draws from Python's generator, as the course's batches do.
pytestmark = pytest.mark.usefixtures("without_type_checks")


def plain_loop(
    make_batch: Callable[[], tuple[Tensor, Tensor]],
    sizes: tuple[int, ...],
    remove_cls: bool,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer],
    loss_fn: nn.Module,
) -> tuple[nn.Module, list[float]]:
    """A head after 30 updates by autograd of the formula, and the loss of each."""
    model, losses = PytorchTransformer(*sizes), []
    stepper = optimizer(model)
    for _ in range(30):
        x, target = make_batch()
        if model.pos is not None:
            x = torch.cat([x, model.pos.weight[: len(x)]], dim=1)
        q, k, v = model.Qm(x), model.Km(x), model.Vm(x)
        output = (q @ k.T / q.shape[1] ** 0.5).softmax(dim=1) @ v
        loss = loss_fn(output[int(remove_cls) :], target)
        stepper.zero_grad()
        loss.backward()
        stepper.step()
        losses.append(loss.item())
    return model, losses


def same_weights(first: nn.Module, second: nn.Module) -> None:
    torch.testing.assert_close(dict(first.state_dict()), dict(second.state_dict()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make_batch", SIZES)
def test_it_makes_the_updates_of_a_plain_loop(
    make_batch: Callable[[], tuple[Tensor, Tensor]], capsys: pytest.CaptureFixture[str]
) -> None:
    sizes, remove_cls = SIZES[make_batch], make_batch is make_batch_unique
    model, loss = train_loop(
        make_batch, *sizes, remove_cls=remove_cls, num_epochs=30, lr=3e-2, log_interval=10, seed=227
    )
    shown = capsys.readouterr().out.split()
    set_random_seed(227)
    other, losses = plain_loop(
        make_batch, sizes, remove_cls, lambda m: torch.optim.SGD(m.parameters(), lr=3e-2), nn.MSELoss()
    )
    same_weights(model, other)
    assert loss == pytest.approx(losses[-1], rel=1e-4)
    assert shown[1::4] == ["0:", "10:", "20:"]
    assert [float(number) for number in shown[3::4]] == pytest.approx([losses[i] for i in (0, 10, 20)], abs=2e-6)


@pytest.mark.parametrize(
    ("config", "optimizer", "loss_fn"),
    [
        (
            TrainingConfig(momentum=0.5, weight_decay=0.1),
            lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.5, weight_decay=0.1),
            nn.MSELoss(),
        ),
        (
            TrainingConfig(optimizer="adam", loss_fn="cross_entropy"),
            lambda m: torch.optim.Adam(m.parameters(), lr=0.1),
            nn.CrossEntropyLoss(),
        ),
    ],
)
def test_the_other_fields_of_the_configuration_count(
    config: TrainingConfig, optimizer: Callable[[nn.Module], torch.optim.Optimizer], loss_fn: nn.Module
) -> None:
    model, loss = train_loop(make_batch_identity, 3, 3, 3, num_epochs=30, lr=0.1, seed=1, config=config)
    set_random_seed(1)
    other, losses = plain_loop(make_batch_identity, (3, 3, 3), False, optimizer, loss_fn)
    same_weights(model, other)
    assert loss == pytest.approx(losses[-1], rel=1e-4)


def test_a_seed_starts_all_three_generators() -> None:
    drawn = []
    for _ in range(2):
        set_random_seed(7)
        drawn.append((random.random(), np.random.rand(), torch.rand(()).item()))  # noqa: NPY002
    assert drawn[0] == drawn[1]
    set_random_seed()
    assert random.random() == random.Random(42).random()


def test_defaults_are_the_courses() -> None:
    assert TrainingConfig() == TrainingConfig(10_001, 3e-2, 1000, "sgd", 0.0, 0.0, "mse")


def test_bad_arguments_are_refused() -> None:
    with refused(anywhere="input_dim = 0"):
        train_loop(make_batch_identity, 0, 3, 3)
    with refused(r"seq of shape \[\d, 3\]"):
        train_loop(make_batch_identity, 4, 3, 3)
    with refused("target of shape", fix="v_dim or remove_cls"):
        train_loop(make_batch_unique, 4, 3, 1, 4, 5)
    with refused("lr = 1000000", fix="Lower lr"):
        train_loop(make_batch_identity, 3, 3, 3, num_epochs=2000, lr=1e6, seed=0)
