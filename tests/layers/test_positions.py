import dataclasses
import math
import os
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import GptOssConfig
from transformers.modeling_rope_utils import _compute_yarn_parameters

from glassformer.kernels.options import Layout
from glassformer.kernels.rotation import convert_rows, rotate
from glassformer.layers.options import Yarn
from glassformer.layers.positions import RotaryEmbedding, SinusoidalPositions, yarn_frequencies
from refusals import refused

LAYOUTS: tuple[Layout, ...] = ("half-split", "interleaved")


def rotated(x: Tensor, start: int, base: float, layout: Layout) -> Tensor:
    """Each pair of coordinates as a complex number, which is turned, in float64."""
    positions = torch.arange(start, start + x.shape[-2], dtype=torch.float64)
    angles = positions[:, None] * base ** (
        -torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1]
    )
    axis, split = (-2, (2, -1)) if layout == "half-split" else (-1, (-1, 2))
    first, second = x.double().unflatten(-1, split).unbind(axis)
    turned = torch.polar(torch.ones_like(angles), angles) * torch.complex(first, second)
    return torch.stack([turned.real, turned.imag], axis).flatten(-2)


@given(
    st.sampled_from(LAYOUTS),
    st.sampled_from([2, 4, 6, 16]),
    st.integers(0, 40),
    st.sampled_from([10.0, 1e4, 150000.0]),
)
@settings(max_examples=30, deadline=None)
def test_it_is_a_rotation_of_each_pair(
    layout: Layout, head_dim: int, start: int, base: float
) -> None:
    x = torch.randn(2, 3, 7, head_dim, generator=torch.Generator().manual_seed(0))
    out = RotaryEmbedding(head_dim, base, layout=layout)(x, start)
    expected = rotated(x, start, base, layout)
    assert (out - expected).abs().max() <= 2e-5  # float32 angles of up to 47 radians
    torch.testing.assert_close(out.norm(dim=-1), x.norm(dim=-1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_a_compiler_sees_is_the_same(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    rotation = RotaryEmbedding(6).rotation(5)
    x = torch.randn(2, 2, 5, 6)
    expected = rotate(x, rotation, layout)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    torch.testing.assert_close(rotate(x, rotation, layout), expected)


def test_positions_can_be_given_one_by_one() -> None:
    rotary = RotaryEmbedding(8)
    cos, sin = rotary.rotation(32)
    places = torch.tensor([3, 31, 0])
    at_cos, at_sin = rotary.rotation_at(places)
    assert torch.equal(at_cos, cos[places])
    assert torch.equal(at_sin, sin[places])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_angles_are_float32_whatever_the_dtype(dtype: torch.dtype) -> None:
    rotary = RotaryEmbedding(8)
    before = rotary.rotation(4096)
    assert all(
        torch.equal(a, b) for a, b in zip(rotary.to(dtype).rotation(4096), before, strict=True)
    )
    assert before[0].dtype == before[1].dtype == torch.float32
    assert rotary(torch.randn(1, 1, 3, 8, dtype=dtype)).dtype == dtype


def test_nothing_is_kept() -> None:
    rotary = RotaryEmbedding(8, scaling=Yarn())
    rotary.rotation(100)
    assert list(rotary.buffers()) == list(rotary.parameters()) == []
    assert rotary.rotation(5, device=torch.device("meta"))[0].is_meta


@given(st.integers(1, 5), st.integers(1, 6), st.sampled_from(LAYOUTS))
def test_converted_projections_give_the_same_scores(heads: int, pairs: int, to: Layout) -> None:
    head_dim = 2 * pairs
    hidden = 7
    other: Layout = LAYOUTS[1 - LAYOUTS.index(to)]
    draw = torch.Generator().manual_seed(0)
    wq, wk = (torch.randn(heads * head_dim, hidden, generator=draw) for _ in range(2))
    bias = torch.randn(heads * head_dim, generator=draw)
    x = torch.randn(1, 6, hidden, generator=draw)

    def scores(wq: Tensor, wk: Tensor, bias: Tensor, layout: Layout) -> Tensor:
        rotary = RotaryEmbedding(head_dim, layout=layout)
        q, k = ((x @ w.T + bias).unflatten(-1, (heads, head_dim)).transpose(1, 2) for w in (wq, wk))
        return rotary(q) @ rotary(k).transpose(2, 3)

    converted = [convert_rows(weight, heads, to) for weight in (wq, wk, bias)]
    torch.testing.assert_close(
        scores(*converted, to), scores(wq, wk, bias, other), rtol=1e-4, atol=1e-4
    )
    for weight, there in zip((wq, wk, bias), converted, strict=True):
        assert torch.equal(convert_rows(there, heads, other), weight)


def test_rows_that_are_no_heads_cannot_be_converted() -> None:
    for rows, heads in ((12, 5), (6, 2), (8, 0)):
        with refused(f"{rows} rows for {heads} heads"):
            convert_rows(torch.zeros(rows, 3), heads, "half-split")


@pytest.mark.parametrize(
    ("yarn", "base"),
    [
        (Yarn(32.0, 4096, 32.0, 1.0, truncate=False), 150000.0),
        (Yarn(32.0, 4096, 32.0, 1.0, truncate=True), 150000.0),
        (Yarn(4.0, 2048, 16.0, 2.0, truncate=True), 10000.0),
        (Yarn(8.0, 64, 32.0, 1.0, truncate=False), 500.0),
    ],
)
def test_yarn_is_hugging_faces(yarn: Yarn, base: float) -> None:
    rope = dataclasses.asdict(yarn)
    rope |= {"rope_type": "yarn", "rope_theta": base}
    rope["original_max_position_embeddings"] = rope.pop("original_max_seq_len")
    longest = int(yarn.factor * yarn.original_max_seq_len)
    config = GptOssConfig(head_dim=64, max_position_embeddings=longest, rope_parameters=rope)
    frequencies, size = _compute_yarn_parameters(config, torch.device("cpu"))
    plain = 1.0 / base ** (torch.arange(0, 64, 2) / 64)
    torch.testing.assert_close(yarn_frequencies(plain, yarn, base), frequencies, rtol=1e-7, atol=0)
    assert yarn.concentration == pytest.approx(size)
    rotary = RotaryEmbedding(64, base, scaling=yarn)
    angles = torch.outer(torch.arange(100.0), frequencies)
    cos, sin = rotary.rotation(100)
    torch.testing.assert_close(cos, angles.cos() * size, rtol=0, atol=2e-5)
    torch.testing.assert_close(sin, angles.sin() * size, rtol=0, atol=2e-5)


def test_yarn_is_that_of_gpt_oss_by_default() -> None:
    assert Yarn() == Yarn(
        factor=32.0, original_max_seq_len=4096, beta_fast=32.0, beta_slow=1.0, truncate=False
    )


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        (RotaryEmbedding, {"head_dim": 5}, "head_dim = 5"),
        (RotaryEmbedding, {"head_dim": 0}, "head_dim = 0"),
        (RotaryEmbedding, {"head_dim": 4, "base": 1.0}, "base = 1.0"),
        (RotaryEmbedding, {"head_dim": 4, "layout": "spiral"}, "layout = 'spiral'"),
        (Yarn, {"factor": 1.0}, "factor = 1.0"),
        (Yarn, {"original_max_seq_len": 0}, "original_max_seq_len = 0"),
        (Yarn, {"beta_fast": 1.0, "beta_slow": 2.0}, "beta_fast = 1.0"),
        (Yarn, {"beta_slow": 0.0}, "beta_slow = 0.0"),
    ],
)
def test_impossible_options_are_refused(kind: Any, arguments: dict[str, Any], message: str) -> None:
    with refused(message):
        kind(**arguments)


def test_bad_calls_are_refused() -> None:
    rotary = RotaryEmbedding(8)
    with refused("start = -1"):
        rotary(torch.zeros(1, 1, 2, 8), -1)
    with refused("length = 0"):
        rotary.rotation(0)
    with refused("x with head_dim 6"):
        rotary(torch.zeros(1, 1, 2, 6))


# Sinusoids


@pytest.mark.parametrize("hidden_dim", [1, 2, 7, 64])
def test_sinusoids_one_number_at_a_time(hidden_dim: int) -> None:
    x = torch.randn(2, 300, hidden_dim)
    with torch.device("meta"):
        positions = SinusoidalPositions(hidden_dim, 300)
    added = positions.to_empty(device="cpu")(x) - x
    for position in (0, 1, 17, 299):
        for i in range(hidden_dim):
            wave = math.sin if i % 2 == 0 else math.cos
            expected = wave(position / 10000 ** ((i - i % 2) / hidden_dim))
            assert added[:, position, i].tolist() == pytest.approx([expected] * 2, abs=1e-6)


def test_sinusoids_are_no_weights_and_take_the_dtype_of_their_input() -> None:
    positions = SinusoidalPositions(8, 16)
    assert positions.state_dict() == {}
    assert positions(torch.zeros(1, 3, 8, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_impossible_sinusoids_are_refused() -> None:
    for sizes, message in (
        ((0, 4), "hidden_dim = 0"),
        ((4, 0), "max_seq_len = 0"),
        ((4.0, 4), r"hidden_dim = 4\.0"),
    ):
        with refused(message):
            SinusoidalPositions(*sizes)
    positions = SinusoidalPositions(8, 16)
    for shape, message in (((1, 17, 8), "17 positions of width 8"), ((1, 4, 6), "6")):
        with refused(message):
            positions(torch.zeros(shape))
