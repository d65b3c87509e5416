import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from training_toys import ToyModel

from glassformer.kernels import orthogonal
from glassformer.training import TrainingConfig
from glassformer.training.optim import (
    Muon,
    build_optimizers,
    learning_rate_factor,
    muon_weights,
    set_learning_rates,
)
from refusals import refused

BLOCK_MATRICES = {"blocks.0.weight", "blocks.1.weight"}


def names_in(model: nn.Module, weights: list[torch.Tensor]) -> set[str]:
    return {
        name
        for name, weight in model.named_parameters()
        if any(weight is other for other in weights)
    }


@pytest.mark.parametrize("tied", [False, True])
def test_muon_takes_the_matrices_of_blocks_only(tied: bool) -> None:
    assert muon_weights(ToyModel(tied=tied)) == BLOCK_MATRICES


@pytest.mark.parametrize(
    ("optimizer", "classes"), [("adamw", ["AdamW"]), ("muon", ["Muon", "AdamW"]), ("sgd", ["SGD"])]
)
@pytest.mark.parametrize("tied", [False, True])
def test_every_weight_is_updated_by_one_optimizer(
    optimizer: str, classes: list[str], tied: bool
) -> None:
    model = ToyModel(tied=tied)
    optimizers = build_optimizers(model, TrainingConfig(optimizer=optimizer))
    updated = [
        id(weight)
        for each in optimizers
        for group in each.param_groups
        for weight in group["params"]
    ]
    assert sorted(updated) == sorted(id(weight) for weight in model.parameters())
    assert [type(each).__name__ for each in optimizers] == classes


def test_decay_and_rates_of_each_kind() -> None:
    model = ToyModel()
    config = TrainingConfig(
        optimizer="muon", learning_rate=0.5, muon_learning_rate=0.25, weight_decay=0.125
    )
    muon, adamw = build_optimizers(model, config)
    matrices, vectors = adamw.param_groups
    assert names_in(model, muon.param_groups[0]["params"]) == BLOCK_MATRICES
    assert names_in(model, matrices["params"]) == {"embedding.weight", "head.weight"}
    assert names_in(model, vectors["params"]) == {
        "blocks.0.bias",
        "blocks.1.bias",
        "norm.weight",
        "norm.bias",
    }
    assert (
        muon.param_groups[0]["weight_decay"],
        matrices["weight_decay"],
        vectors["weight_decay"],
    ) == (
        0.125,
        0.125,
        0.0,
    )
    set_learning_rates([muon, adamw], 0.5)
    assert [muon.param_groups[0]["lr"], matrices["lr"], vectors["lr"]] == [0.125, 0.25, 0.25]
    set_learning_rates([muon, adamw], 0.5)
    assert matrices["lr"] == 0.25, "the factor is of the peak, not of the last rate"


@pytest.mark.parametrize(
    ("optimizer", "kind", "options"),
    [
        ("adamw", torch.optim.AdamW, {"betas": (0.9, 0.99)}),
        ("sgd", torch.optim.SGD, {"momentum": 0.5}),
    ],
)
def test_it_is_pytorchs_without_decay_of_vectors(
    optimizer: str, kind: Any, options: dict[str, Any]
) -> None:
    ours = nn.Linear(2, 1)
    theirs = nn.Linear(2, 1)
    theirs.load_state_dict(ours.state_dict())
    config = TrainingConfig(optimizer=optimizer, learning_rate=0.1, weight_decay=0.25, **options)
    (mine,) = build_optimizers(ours, config)
    groups = [
        {"params": [theirs.weight], "weight_decay": 0.25},
        {"params": [theirs.bias], "weight_decay": 0.0},
    ]
    peer = kind(groups, lr=0.1, **options)
    for _ in range(3):
        for weight, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            weight.grad = torch.randn(weight.shape)
            other.grad = weight.grad.clone()
        mine.step()
        peer.step()
    for weight, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(weight, other, rtol=1e-5, atol=1e-6)


def test_frozen_weights_stay_out() -> None:
    model = ToyModel()
    model.embedding.requires_grad_(False)
    model.blocks[0].requires_grad_(False)
    muon, adamw = build_optimizers(model, TrainingConfig(optimizer="muon"))
    updated = [
        weight
        for each in (muon, adamw)
        for group in each.param_groups
        for weight in group["params"]
    ]
    assert not names_in(model, updated) & {"embedding.weight", "blocks.0.weight", "blocks.0.bias"}


def test_models_that_cannot_be_optimized_are_refused() -> None:
    with refused("without trainable weights"):
        build_optimizers(nn.ReLU(), TrainingConfig())
    with refused(fix='Use optimizer="adamw"'):
        build_optimizers(nn.Embedding(3, 2), TrainingConfig(optimizer="muon"))


def test_the_course_of_the_rate() -> None:
    config = TrainingConfig(steps=14, warmup_steps=4, final_lr_fraction=0.1)
    factors = [learning_rate_factor(step, config) for step in range(14)]
    assert factors[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert factors[9] == pytest.approx(0.55), (
        "half of the cosine lies half-way between peak and end"
    )
    assert factors[13] == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi * 0.9)) / 2)


@given(
    steps=st.integers(1, 300),
    warmup=st.integers(0, 300),
    final=st.floats(0, 1),
    schedule=st.sampled_from(["constant", "cosine"]),
)
def test_the_rate_rises_then_never_rises_again(
    steps: int, warmup: int, final: float, schedule: str
) -> None:
    warmup = min(warmup, steps)
    config = TrainingConfig(
        steps=steps, warmup_steps=warmup, final_lr_fraction=final, schedule=schedule
    )
    factors = [learning_rate_factor(step, config) for step in range(steps)]
    assert all(0 < factor <= 1 for factor in factors)
    assert factors[:warmup] == sorted(factors[:warmup])
    assert factors[warmup:] == sorted(factors[warmup:], reverse=True)
    assert max(factors) == 1


def test_a_step_outside_the_run_is_refused() -> None:
    for step in (-1, 5):
        with refused(f"step = {step}"):
            learning_rate_factor(step, TrainingConfig(steps=5))


@pytest.mark.parametrize("shape", [(8, 8), (6, 10), (10, 6), (200, 120)])
def test_muon_is_that_of_pytorch(shape: tuple[int, int]) -> None:
    """Whose products are in bfloat16: it has three digits."""
    start = [torch.randn(shape) for _ in range(3)]
    grads = [[torch.randn(shape) for _ in range(3)] for _ in range(4)]

    def trained(kind: type[torch.optim.Muon], **options: Any) -> list[torch.Tensor]:
        weights = [nn.Parameter(each.clone()) for each in start]
        muon = kind(weights, lr=0.1, weight_decay=0.5, **options)
        for step in grads:
            for weight, grad in zip(
                weights[1:], step[1:], strict=True
            ):  # the first never has a gradient
                weight.grad = grad.clone()
            muon.step()
        return [weight.detach() for weight in weights]

    for got, expected in zip(trained(Muon), trained(torch.optim.Muon), strict=True):
        torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)
    for other in (
        {"ns_steps": 2},
        {"adjust_lr_fn": "match_rms_adamw"},
        {"eps": 0.5},
        {"ns_coefficients": (2.0, -1.5, 0.5)},
    ):
        for got, expected in zip(
            trained(Muon, **other), trained(torch.optim.Muon, **other), strict=True
        ):
            assert torch.equal(got, expected)


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("shape", [(1, 5, 9), (3, 9, 5), (2, 130, 130)])
def test_orthogonalised_matrices(
    shape: tuple[int, int, int], slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The singular vectors stay, and the values come near 1."""
    monkeypatch.setattr(orthogonal, "slow_bfloat16", lambda: slow)
    left, _, right = torch.linalg.svd(torch.randn(shape), full_matrices=False)
    values = torch.linspace(0.1, 1.0, min(shape[1:]))
    found = left.mT @ orthogonal.orthogonalised((left * values) @ right).float() @ right.mT
    on_diagonal = found.diagonal(dim1=1, dim2=2)
    assert ((on_diagonal > 0.6) & (on_diagonal < 1.3)).all()
    torch.testing.assert_close(found, torch.diag_embed(on_diagonal), rtol=0, atol=0.05)
