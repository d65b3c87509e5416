"""The course's layers and model: against the formulas head by head, and against the library."""

import inspect
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from glassformer.errors import InputError
from glassformer.generation.decoding import generate
from glassformer.labs import gpt_oss as lab
from glassformer.layers.attention import watching
from glassformer.layers.positions import RotaryEmbedding
from glassformer.models.decoder import Decoder
from refusals import refused

CPU = torch.device("cpu")


def rotated(x: Tensor, base: float = 10000.0) -> Tensor:
    """Rotary embedding as multiplication of complex numbers, half-split."""
    half = x.shape[-1] // 2
    angles = torch.outer(torch.arange(x.shape[-2]), base ** (-torch.arange(half) / half))
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(
        torch.ones_like(angles), angles
    )
    return torch.cat([turned.real, turned.imag], dim=-1)


def by_hand(
    q: Tensor, k: Tensor, v: Tensor, key_weights: Tensor, scale: float, mask: Tensor
) -> Tensor:
    """The course's seven steps, head by head."""
    output = torch.empty_like(q)
    q = rotated(q)
    k = rotated(k)
    for head in range(q.shape[1]):
        group = head // (q.shape[1] // k.shape[1])
        scores = scale * q[:, head] @ (key_weights[head] * k[:, group]).mT
        output[:, head] = scores.masked_fill(~mask, -math.inf).softmax(-1) @ v[:, group]
    return output


def band(length: int, window_size: int | None = None) -> Tensor:
    distance = torch.arange(length)[:, None] - torch.arange(length)
    return (distance >= 0) & (distance <= (length if window_size is None else window_size))


def inputs(length: int, heads: int = 4, kv_heads: int = 2, head_dim: int = 8) -> tuple[Tensor, ...]:
    make = [torch.randn(2, count, length, head_dim) for count in (heads, kv_heads, kv_heads)]
    return (*make, torch.randn(heads))


@settings(max_examples=50, deadline=None)
@given(
    length=st.integers(1, 9),
    seed=st.integers(0, 99),
    kv_heads=st.sampled_from([1, 2, 4]),
    kind=st.sampled_from(["causal", "boolean", "additive"]),
)
def test_attention_is_the_courses_formula_with_any_mask(
    length: int, seed: int, kv_heads: int, kind: str
) -> None:
    torch.manual_seed(seed)
    q, k, v, weights = inputs(length, kv_heads=kv_heads)
    mask = (torch.rand(length, length) < 0.5) | torch.eye(length, dtype=torch.bool)
    mask = band(length) if kind == "causal" else mask
    added = torch.zeros(length, length).masked_fill(~mask, -math.inf)
    given = {"causal": None, "boolean": mask, "additive": added}[kind]
    found = lab.calculate_attention(
        q, k, v, weights, lab.RotaryPositionalEmbedding(8), 0.3, CPU, given
    )
    torch.testing.assert_close(found, by_hand(q, k, v, weights, 0.3, mask), atol=1e-5, rtol=1e-5)


@settings(max_examples=25, deadline=None)
@given(length=st.integers(1, 12), window_size=st.integers(0, 14))
def test_a_window_sees_the_token_and_as_many_before_it(length: int, window_size: int) -> None:
    q, k, v, weights = inputs(length)
    rope = lab.RotaryPositionalEmbedding(8)
    found = lab.calculate_sliding_attention(q, k, v, weights, rope, 0.3, CPU, window_size)
    torch.testing.assert_close(
        found, by_hand(q, k, v, weights, 0.3, band(length, window_size)), atol=1e-5, rtol=1e-5
    )


def test_rotary_tables_are_computed_in_advance_and_change_nothing() -> None:
    short = lab.RotaryPositionalEmbedding(8, 4)
    x = torch.randn(1, 2, 6, 8)
    assert short.cos.shape == short.sin.shape == (4, 4)
    assert torch.equal(short(x), RotaryEmbedding(8)(x))
    assert torch.equal(short(x[:, :, :2], 2), RotaryEmbedding(8)(x[:, :, :2], 2))
    assert short.state_dict() == {}


def test_no_fused_kernel_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", None)
    with watching(lambda attended: pytest.fail("the library's attention was called")):
        lab.SWAttention(8, 2, 4, 2)(torch.randn(1, 5, 8))


SIZES = {
    "vocab_size": 11,
    "n_layers": 4,
    "hidden_dim": 16,
    "ff_dim": 24,
    "num_heads": 4,
    "head_dim": 4,
}
WINDOW = {"use_sliding_window_alternating": True, "window_size": 3}
MIXTURE = {"use_moe": True, "num_experts": 3, "top_k": 2}
VARIANTS = [{}, {"num_kv_heads": 2}, WINDOW, MIXTURE, {"num_kv_heads": 1, **WINDOW, **MIXTURE}]


def model(**changes: Any) -> lab.Transformer:
    made = lab.Transformer(**{**SIZES, **changes}).eval()
    for block in made.layers:
        torch.nn.init.normal_(block.attention.key_weights)
    return made


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_logits_are_those_of_the_decoder_with_the_same_weights(changes: dict[str, Any]) -> None:
    course = model(**changes)
    tokens = torch.randint(11, (3, 12))
    torch.testing.assert_close(
        course.decoder().eval()(tokens), course(tokens), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_initial_weights_are_drawn_as_those_of_the_decoder(changes: dict[str, Any]) -> None:
    course = lab.Transformer(**{**SIZES, "hidden_dim": 64, "ff_dim": 64, "head_dim": 16, **changes})
    weights = Decoder(course.config).state_dict()
    assert course.decoder().state_dict().keys() == weights.keys()
    for name, weight in course.decoder().state_dict().items():
        assert float(weight.std()) == pytest.approx(
            float(weights[name].std()), rel=0.2, abs=1e-6
        ), name


def test_layers_are_of_the_courses_classes() -> None:
    course = model(num_kv_heads=2, **WINDOW, **MIXTURE)
    kinds = [type(block.attention) for block in course.layers]
    assert kinds == [lab.GroupedQueryAttention, lab.SWAttention] * 2
    assert [block.attention.num_kv_heads for block in course.layers] == [2] * 4
    assert all(isinstance(block.ffn, lab.MixtureOfExperts) for block in course.layers)
    course(torch.randint(11, (1, 9))).square().sum().backward()
    assert all(block.attention.key_weights.grad.abs().min() > 0 for block in course.layers)
    assert isinstance(model().layers[0].ffn, lab.SwiGLUFeedForward)


ATTENTION = "hidden_dim num_heads head_dim"
BLOCK = "hidden_dim ff_dim num_heads head_dim"
OPTIONS = "window_size use_moe num_experts top_k num_kv_heads"


@pytest.mark.parametrize(
    ("part", "arguments"),
    [
        (lab.SwiGLUFeedForward, "hidden_dim inner_dim"),
        (lab.RotaryPositionalEmbedding, "head_dim max_seq_len base"),
        (lab.GroupedQueryAttention, f"{ATTENTION} num_kv_heads"),
        (lab.SWAttention, f"{ATTENTION} window_size num_kv_heads"),
        (lab.MixtureOfExperts, "hidden_dim inner_dim num_experts top_k"),
        (lab.TransformerBlock, f"{BLOCK} use_sliding_window {OPTIONS}"),
        (lab.Transformer, f"vocab_size n_layers {BLOCK} use_sliding_window_alternating {OPTIONS}"),
    ],
)
def test_signatures_are_the_courses(part: type, arguments: str) -> None:
    assert list(inspect.signature(part).parameters) == arguments.split()


def test_the_library_generates_the_same_with_a_cache() -> None:
    course = model(num_kv_heads=2, **WINDOW, **MIXTURE)
    prompts = torch.randint(11, (3, 5))
    assert generate(course.decoder(), prompts, 9) == lab.generate(course, prompts, 9).tolist()


def test_impossible_arguments_are_refused() -> None:
    q, k, v, weights = inputs(3)
    with refused("window_size = -2"):
        lab.calculate_sliding_attention(
            q, k, v, weights, lab.RotaryPositionalEmbedding(8), 0.3, CPU, -2
        )
    with refused("num_kv_heads = 3"):
        lab.GroupedQueryAttention(8, 4, 4, 3)
    for changes in (
        {"num_heads": 3, "num_kv_heads": 2},
        {"head_dim": 5},
        {**MIXTURE, "top_k": 4},
        {"n_layers": 0},
    ):
        with pytest.raises(InputError):
            lab.Transformer(**{**SIZES, **changes})
