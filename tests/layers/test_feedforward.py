import math
from typing import Any

import pytest
import torch
from torch import nn

from glassformer.layers.feedforward import MLP, Clamp, SwiGLU, swiglu
from refusals import refused


def test_plain_swiglu() -> None:
    gate = torch.randn(3, 5)
    up = torch.randn(3, 5)
    torch.testing.assert_close(swiglu(gate, up), gate / (1 + torch.exp(-gate)) * up)


def test_clamped_swiglu_by_hand() -> None:
    """Beyond the limit 7 the gate is cut above only, the other factor on both sides; and it gets +
    1.
    """
    gate = torch.tensor([1.0, 100.0, -2.0, 1.0])
    up = torch.tensor([0.5, 2.0, -100.0, 100.0])

    def glu(x: float) -> float:
        return x * torch.sigmoid(torch.tensor(1.702 * x)).item()

    expected = torch.tensor([glu(1.0) * 1.5, glu(7.0) * 3.0, glu(-2.0) * -6.0, glu(1.0) * 8.0])
    torch.testing.assert_close(swiglu(gate, up, Clamp()), expected)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("clamp", [None, Clamp()])
def test_the_network(bias: bool, clamp: Clamp | None) -> None:
    network = SwiGLU(6, 10, bias=bias, clamp=clamp)
    x = torch.randn(2, 3, 6)
    expected = network.down(swiglu(network.gate(x), network.up(x), clamp))
    assert torch.equal(network(x), expected)
    assert all(
        (module.bias is not None) == bias
        for module in network.modules()
        if isinstance(module, nn.Linear)
    )
    assert network.gate.weight.shape == network.up.weight.shape == (10, 6)


def test_its_inputs_stay_as_they_are() -> None:
    gate = torch.randn(3, 5)
    up = torch.randn(3, 5)
    before = gate.clone(), up.clone()
    swiglu(gate, up)
    swiglu(gate, up, Clamp(limit=0.1))
    assert torch.equal(gate, before[0])
    assert torch.equal(up, before[1])


# Two layers without a gate


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_the_plain_network_is_its_formula(activation: Any) -> None:
    network = MLP(3, 5, activation).double()
    x = torch.randn(2, 4, 3, dtype=torch.float64)
    inside = x @ network.up.weight.mT + network.up.bias
    inside = (
        inside.clamp(min=0)
        if activation == "relu"
        else inside * (1 + torch.erf(inside / math.sqrt(2))) / 2
    )
    torch.testing.assert_close(network(x), inside @ network.down.weight.mT + network.down.bias)


def test_the_plain_network_drops_between_its_layers_in_training_only() -> None:
    network = MLP(4, 2000, dropout=0.25)
    with torch.no_grad():
        network.up.bias.fill_(1.0)
        network.up.weight.zero_()
        network.down.weight.fill_(1 / 2000)
        network.down.bias.zero_()
    x = torch.zeros(50, 4)
    assert network.eval()(x).std() < 1e-6
    dropped = network.train()(x)[:, 0]
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.01)
    assert dropped.std().item() == pytest.approx((0.25 / 0.75 / 2000) ** 0.5, rel=0.4)


# Calls that cannot be


@pytest.mark.parametrize("network", [SwiGLU, MLP])
def test_impossible_sizes_are_refused(network: Any) -> None:
    for arguments, message in (
        ((0, 4), "hidden_dim = 0"),
        ((4.0, 4), r"hidden_dim = 4\.0"),
        ((4, -1), "ff_dim = -1"),
        ((4, 2.5), r"ff_dim = 2\.5"),
    ):
        with refused(message):
            network(*arguments)
    with refused("activation = 'tanh'"):
        network(4, 4, activation="tanh")
    with refused("input of width 5", expected="hidden_dim = 4"):
        network(4, 8)(torch.zeros(2, 5))


def test_impossible_options_are_refused() -> None:
    with refused("'gelu' with a clamp"):
        SwiGLU(4, 4, activation="gelu", clamp=Clamp())
    with refused(r"limit = 0\.0"):
        Clamp(limit=0.0)
    with refused(r"dropout = 1\.0"):
        MLP(4, 4, dropout=1.0)
