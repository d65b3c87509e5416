"""The course's loop, against a bare loop of plain PyTorch that is written here."""

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
from glassformer.training import DivergedError
from refusals import refused

SIZES = {
    make_batch_identity: (3, 3, 3),
    make_batch_first: (3, 1, 3, 4, 4),
    make_batch_unique: (4, 8, 1, 4, 5),
}


def bare_loop(
    make_batch: Callable[[], tuple[Tensor, Tensor]],
    sizes: tuple[int, ...],
    remove_cls: bool,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer],
    loss_fn: nn.Module,
) -> tuple[nn.Module, list[float]]:
    """A head after 30 updates, and the loss of each."""
    model, losses = PytorchTransformer(*sizes), []
    stepper = optimizer(model)
    for _ in range(30):
        sequence, target = make_batch()
        loss = loss_fn(model(sequence)[int(remove_cls) :], target)
        stepper.zero_grad()
        loss.backward()
        stepper.step()
        losses.append(loss.item())
    return model, losses


def same_weights(first: nn.Module, second: nn.Module) -> None:
    torch.testing.assert_close(dict(first.state_dict()), dict(second.state_dict()), rtol=1e-5, atol=1e-6)


# The run-time check of annotations draws from Python's generator, as the course's batches do.
undisturbed = pytest.mark.usefixtures("without_type_checks")


@undisturbed
@pytest.mark.parametrize("make_batch", SIZES)
def test_it_makes_the_updates_of_a_bare_loop(
    make_batch: Callable[[], tuple[Tensor, Tensor]], capsys: pytest.CaptureFixture[str]
) -> None:
    sizes, remove_cls = SIZES[make_batch], make_batch is make_batch_unique
    model, loss = train_loop(
        make_batch, *sizes, remove_cls=remove_cls, num_epochs=30, lr=3e-2, log_interval=10, seed=227
    )
    state = random.getstate(), torch.get_rng_state()
    shown = capsys.readouterr().out
    set_random_seed(227)
    twin, losses = bare_loop(
        make_batch, sizes, remove_cls, lambda m: torch.optim.SGD(m.parameters(), lr=3e-2), nn.MSELoss()
    )
    same_weights(model, twin)
    assert loss == pytest.approx(losses[-1], rel=1e-5)
    assert shown.splitlines() == [f"Step {step}: loss {losses[step]:.6f}" for step in (0, 10, 20)]
    assert state[0] == random.getstate()
    assert torch.equal(state[1], torch.get_rng_state())


@undisturbed
def test_batches_may_draw_from_torch_too() -> None:
    def make_batch() -> tuple[Tensor, Tensor]:
        sequence = torch.randn(int(torch.randint(1, 5, ())), 2)
        return sequence, sequence[:, :1]

    model, _ = train_loop(make_batch, 2, 2, 1, num_epochs=30, seed=4)
    after = torch.rand(())
    set_random_seed(4)
    twin, _ = bare_loop(make_batch, (2, 2, 1), False, lambda m: torch.optim.SGD(m.parameters(), lr=3e-2), nn.MSELoss())
    same_weights(model, twin)
    assert torch.equal(after, torch.rand(()))


@undisturbed
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
def test_the_configurations_other_fields_count(
    config: TrainingConfig, optimizer: Callable[[nn.Module], torch.optim.Optimizer], loss_fn: nn.Module
) -> None:
    model, loss = train_loop(make_batch_identity, 3, 3, 3, num_epochs=30, lr=0.1, seed=1, config=config)
    set_random_seed(1)
    twin, losses = bare_loop(make_batch_identity, (3, 3, 3), False, optimizer, loss_fn)
    same_weights(model, twin)
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


@undisturbed
def test_bad_arguments_are_refused() -> None:
    with refused(anywhere="input_dim = 0"):
        train_loop(make_batch_identity, 0, 3, 3)
    with refused(r"shape \[\d, 3\] from make_batch"):
        train_loop(make_batch_identity, 4, 3, 3)
    with refused("target of shape", fix="v_dim or remove_cls"):
        train_loop(make_batch_unique, 4, 3, 1, 4, 5)
    with refused("num_epochs = 0"):
        train_loop(make_batch_identity, 3, 3, 3, num_epochs=0)
    with refused("seed = -1"):
        set_random_seed(-1)
    with refused("loss_fn = 'mae'"):
        TrainingConfig(loss_fn="mae")
    with refused("optimizer = 'muon'"):
        TrainingConfig(optimizer="muon")
    with refused("learning_rate = -1"):
        TrainingConfig(learning_rate=-1)


def test_a_training_that_diverges_says_so() -> None:
    with pytest.raises(DivergedError, match="learning rate"):
        train_loop(make_batch_identity, 3, 3, 3, num_epochs=2000, lr=1e6, seed=0)
