"""Every derivative of every model agrees with that of the definitions: grad, gradgrad, torch.func."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad, gradgradcheck
from torch.func import functional_call, grad, hessian, jacrev, jvp, vjp, vmap
from torch.utils.checkpoint import checkpoint

from glassformer import kernels
from glassformer.kernels.options import Clamp
from glassformer.kernels.pattern import Pattern
from glassformer.layers.attention import attend
from glassformer.models import (
    Decoder,
    DecoderConfig,
    Encoder,
    EncoderConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
)

# Annotations name axes that transforms add or remove.
pytestmark = pytest.mark.usefixtures("without_type_checks")

SIZES = {
    "vocab_size": 7,
    "num_layers": 2,
    "hidden_dim": 8,
    "ff_dim": 6,
    "num_heads": 4,
    "head_dim": 4,
}
DECODERS = {
    "dense": {},
    "windowed": {"window": 2, "windowed_layers": "all"},
    "sinks": {"sinks": True, "key_weights": True},
    "grouped": {"num_kv_heads": 2, "rope_layout": "interleaved"},
    "experts": {"num_experts": 3, "ff_bias": True, "clamp": Clamp()},
    "everything": {
        "window": 2,
        "sinks": True,
        "num_kv_heads": 2,
        "num_experts": 3,
        "attention_bias": True,
    },
}
NAMES = (*DECODERS, "encoder", "encoder-decoder")

Loss = Callable[[dict[str, Tensor], Tensor], Tensor]


def make(name: str, dtype: torch.dtype = torch.float64) -> tuple[Loss, dict[str, Tensor], Tensor]:
    """A loss of weights and one text, the weights, and three texts."""
    torch.manual_seed(0)
    model: nn.Module
    if name == "encoder":
        sizes = {key: value for key, value in SIZES.items() if key != "head_dim"}
        model = Encoder(EncoderConfig(**sizes, num_classes=3, dropout=0.0))
    elif name == "encoder-decoder":
        shared = {key: SIZES[key] for key in ("vocab_size", "hidden_dim", "ff_dim", "num_heads")}
        blocks = {
            "num_encoder_layers": 1,
            "num_decoder_layers": 1,
            "max_source_len": 8,
            "max_target_len": 8,
        }
        model = EncoderDecoder(EncoderDecoderConfig(**shared, **blocks, dropout=0.0))
    else:
        model = Decoder(DecoderConfig(**SIZES, **DECODERS[name]))
    model = model.to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    direction = torch.randn(7, dtype=dtype)

    def loss(weights: dict[str, Tensor], tokens: Tensor) -> Tensor:
        inputs = (tokens[None], tokens[None]) if name == "encoder-decoder" else (tokens[None],)
        out = functional_call(model, weights, inputs)
        return (out @ direction[: out.shape[-1]]).tanh().sum()

    weights = {key: value.detach() for key, value in model.named_parameters()}
    return loss, weights, torch.randint(1, 7, (3, 5))


def close(got: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert got.keys() == expected.keys()
    for key in got:
        torch.testing.assert_close(got[key], expected[key], rtol=1e-9, atol=1e-9)


def gradient(
    loss: Loss, weights: dict[str, Tensor], tokens: Tensor, vector: dict[str, Tensor] | None = None
) -> dict:
    """By backward passes without any transform; with a vector the Hessian's product with it."""
    weights = {key: value.clone().requires_grad_() for key, value in weights.items()}
    inputs = list(weights.values())
    first = torch.autograd.grad(loss(weights, tokens), inputs, create_graph=vector is not None)
    if vector is not None:
        along = sum((one * two).sum() for one, two in zip(first, vector.values(), strict=True))
        first = torch.autograd.grad(along, inputs, materialize_grads=True)
    return dict(zip(weights, first, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_value_gradient_and_hessian_product_are_those_of_the_definitions(name: str) -> None:
    loss, weights, texts = make(name)
    vector = {key: torch.randn_like(value) for key, value in weights.items()}
    with kernels.plain():
        value = loss(weights, texts[0])
        first = gradient(loss, weights, texts[0])
        second = gradient(loss, weights, texts[0], vector)
    torch.testing.assert_close(loss(weights, texts[0]), value, rtol=1e-9, atol=1e-9)
    close(gradient(loss, weights, texts[0]), first)
    close(gradient(loss, weights, texts[0], vector), second)


@pytest.mark.parametrize("name", NAMES)
def test_transforms_agree_with_backward_passes(name: str) -> None:
    """vmap(grad), jvp, jacrev, and a Hessian-vector product as jvp of grad."""
    loss, weights, texts = make(name)
    vector = {key: torch.randn_like(value) for key, value in weights.items()}
    first = [gradient(loss, weights, text) for text in texts]
    each = vmap(grad(loss), in_dims=(None, 0))(weights, texts)
    close(each, {key: torch.stack([one[key] for one in first]) for key in weights})
    close(jacrev(loss)(weights, texts[0]), first[0])
    _, along = jvp(lambda changed: loss(changed, texts[0]), (weights,), (vector,))
    expected = sum((first[0][key] * vector[key]).sum() for key in weights)
    torch.testing.assert_close(along, expected, rtol=1e-9, atol=1e-9)
    _, product = jvp(lambda changed: grad(loss)(changed, texts[0]), (weights,), (vector,))
    close(product, gradient(loss, weights, texts[0], vector))
    _, pullback = vjp(lambda changed: loss(changed, texts[0]), weights)
    close(pullback(torch.ones((), dtype=torch.float64))[0], first[0])


@pytest.mark.parametrize("sunk", [False, True])
def test_second_derivatives_of_attention_to_a_longer_source(sunk: bool) -> None:
    q, k, v = (
        torch.randn(1, 2, length, 4, dtype=torch.float64, requires_grad=True)
        for length in (3, 5, 5)
    )
    sinks = torch.randn(2, dtype=torch.float64, requires_grad=True) if sunk else None
    assert gradgradcheck(
        lambda q, k, v, sinks: attend(q, k, v, sinks=sinks), (q, k, v, sinks), fast_mode=True
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_forward_pass_unpacks_nothing_that_it_saved(dtype: torch.dtype) -> None:
    """Activation checkpointing computes anew what is unpacked, so that one unpacked in the forward
    pass would fail.
    """
    inputs = [torch.randn(2, 2, 5, 4, dtype=dtype, requires_grad=True) for _ in range(3)]

    def unpack(tensor: Tensor) -> Tensor:
        pytest.fail("a saved tensor was unpacked in the forward pass")

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
        attend(*inputs, pattern=Pattern(causal=True))
    expected = torch.autograd.grad(attend(*inputs).square().sum(), inputs)
    again = checkpoint(attend, *inputs, use_reentrant=False)
    for got, wanted in zip(
        torch.autograd.grad(again.square().sum(), inputs), expected, strict=True
    ):
        torch.testing.assert_close(got, wanted)


def test_second_derivatives_through_a_checkpoint() -> None:
    inputs = [torch.randn(1, 2, 5, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]

    def second(out: Tensor) -> tuple[Tensor, ...]:
        first = torch.autograd.grad(out.square().sum(), inputs, create_graph=True)
        return torch.autograd.grad(sum(each.square().sum() for each in first), inputs)

    expected = second(attend(*inputs, pattern=Pattern(causal=True)))
    got = second(checkpoint(attend, *inputs, pattern=Pattern(causal=True), use_reentrant=False))
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_hessian_and_forward_mode() -> None:
    loss, weights, texts = make("everything")
    name = "layers.1.ffn_norm.weight"
    rest = {key: value for key, value in weights.items() if key != name}

    def of(value: Tensor) -> Tensor:
        return loss({**rest, name: value}, texts[0])

    matrix = hessian(of)(weights[name])
    vector = torch.randn_like(weights[name])
    everything = {key: torch.zeros_like(value) for key, value in weights.items()} | {name: vector}
    expected = gradient(loss, weights, texts[0], everything)[name]
    torch.testing.assert_close(matrix @ vector, expected, rtol=1e-9, atol=1e-9)
    with forward_ad.dual_level():
        out = of(forward_ad.make_dual(weights[name], vector))
        along = forward_ad.unpack_dual(out).tangent
    torch.testing.assert_close(
        along, gradient(loss, weights, texts[0])[name] @ vector, rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("name", ["windowed", "everything", "experts"])
def test_second_derivatives_in_float32(name: str) -> None:
    loss, weights, texts = make(name, torch.float32)
    vector = {key: torch.randn_like(value) for key, value in weights.items()}
    with kernels.plain():
        expected = gradient(loss, weights, texts[0], vector)
    got = gradient(loss, weights, texts[0], vector)
    for key in weights:
        near = 1e-5 * max(float(each.abs().max()) for each in expected.values())
        torch.testing.assert_close(got[key], expected[key], rtol=1e-5, atol=near)
