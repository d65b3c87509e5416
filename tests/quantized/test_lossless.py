from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from glassformer.checkpoints import assembly
from glassformer.checkpoints.random_gpt_oss import GPT_OSS_TINY, write_random_gpt_oss
from glassformer.errors import CheckpointError
from glassformer.generation.decoding import generate
from glassformer.kernels import lossless as kernel
from glassformer.kernels import native, plain
from glassformer.kernels.linear import linear
from glassformer.models import Decoder
from glassformer.quantized.lossless import LosslessLinear, decode, encode
from refusals import refused


def same_bits(got: Tensor, expected: Tensor) -> bool:
    return torch.equal(got.view(torch.int16), expected.view(torch.int16))


@given(st.integers(0, 9), st.integers(1, 12), st.integers(0, 40), st.booleans())
def test_every_bit_comes_back(rows: int, width: int, spread: int, any_bits: bool) -> None:
    values = (torch.randn(rows, 16 * width) * 2.0 ** torch.randint(-spread, spread + 1, (rows, 16 * width))).bfloat16()
    values[:, ::7] = torch.tensor(0.0)
    values[:, ::11] = torch.tensor(-0.0)
    if any_bits:
        values = torch.randint(-(2**15), 2**15, (rows, 16 * width)).to(torch.int16).view(torch.bfloat16)
    packed, index = encode(values)
    assert packed.shape == (rows, -(-width // 4), 96)
    assert same_bits(kernel.expand_definition(packed, index, 16 * width), values)


@pytest.mark.usefixtures("library")
def test_decoding_in_c_and_some_rows() -> None:
    values = torch.randint(-(2**15), 2**15, (13, 80)).to(torch.int16).view(torch.bfloat16).nan_to_num()
    packed, index = encode(values)
    assert same_bits(decode(packed, index, 80), values)
    for rows in (slice(0, 0), slice(0, 5), slice(5, 20), slice(12, None)):
        assert same_bits(kernel.expand(packed, index, 80, rows), values[rows])
        with plain():
            assert same_bits(kernel.expand(packed, index, 80, rows), values[rows])


def test_normal_weights_take_three_quarters() -> None:
    values = torch.randn(64, 4096).bfloat16()
    packed, index = encode(values)
    assert packed.nbytes + index.nbytes < 0.755 * values.nbytes
    assert len(index) > 65  # so that there are exceptions


@pytest.mark.usefixtures("without_type_checks")
def test_what_cannot_be_encoded() -> None:
    for values in (torch.zeros(2, 64), torch.zeros(2, 24).bfloat16(), torch.zeros(64).bfloat16(), torch.zeros(2, 0)):
        with refused(expected="a multiple of 16"):
            encode(values)
    with refused(expected="a multiple of 16"):
        LosslessLinear(24, 4)


@pytest.mark.parametrize("slow", [True, False])
@pytest.mark.parametrize("path", ["library", "torch", "plain"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_products(
    path: str, slow: bool, dtype: torch.dtype, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within float32's rounding and that of a result in bfloat16."""
    monkeypatch.setattr(kernel, "slow_bfloat16", lambda: slow)
    if path == "library":
        request.getfixturevalue("library")
    else:
        monkeypatch.setenv(native.SWITCH, "1")
        monkeypatch.setattr(native, "_warn_once", lambda _: None)

    def product(*given: Any) -> Tensor:
        if path != "plain":
            return kernel.lossless_linear(*given)
        with plain():
            return kernel.lossless_linear(*given)

    for batch, rows, width in [((), 3, 32), ((1,), 37, 96), ((2, 3), 8, 64), ((45,), 9, 336), ((0,), 4, 32)]:
        weights = torch.randn(rows, width).bfloat16()
        x, bias = torch.randn(*batch, width).to(dtype), torch.randn(rows).to(dtype)
        exact = F.linear(x.double(), weights.double(), bias.double())
        bound = width * 2.0**-23 * F.linear(x.double().abs(), weights.double().abs(), bias.double().abs())
        got = product(x, *encode(weights), width, bias)
        assert got.dtype == dtype
        assert bool(((got.double() - exact).abs() <= bound + 2.0**-8 * exact.abs() * (dtype == torch.bfloat16)).all())


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_many_tokens_have_the_bits_of_dense_weights(dtype: torch.dtype) -> None:
    weights, x = torch.randn(48, 96).bfloat16(), torch.randn(40, 96).to(dtype)
    got = kernel.lossless_linear(x, *encode(weights), 96)
    torch.testing.assert_close(got, linear(x, weights.to(dtype)), rtol=0, atol=0)


def test_gradients_of_the_input_are_the_definitions() -> None:
    weights, x = torch.randn(5, 32).bfloat16(), torch.randn(3, 32, requires_grad=True)
    kernel.lossless_linear(x, *encode(weights), 32).sum().backward()
    torch.testing.assert_close(x.grad, weights.float().sum(0).expand(3, 32))


@pytest.mark.usefixtures("without_type_checks")
def test_another_width_is_an_error() -> None:
    with pytest.raises(RuntimeError):
        kernel.lossless_linear(torch.randn(2, 32), *encode(torch.randn(8, 48).bfloat16()), 48)


# ---- a gpt-oss whose dense weights take 12 bits ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lossless") / "model"
    write_random_gpt_oss(folder, GPT_OSS_TINY)
    return folder


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_a_decoder_with_the_same_weights(directory: Path, dtype: torch.dtype) -> None:
    model = Decoder.from_pretrained(directory, dense="lossless", dtype=dtype).eval()
    original = Decoder.from_pretrained(directory, dtype=dtype).eval()
    names = {name for name, module in model.named_modules() if isinstance(module, LosslessLinear)}
    attention = {f"layers.{i}.attention.{name}" for i in range(4) for name in ("query", "key", "value", "output")}
    assert names == {"output", *attention}
    for name in names:
        torch.testing.assert_close(model.get_submodule(name).weight.to(dtype), original.get_submodule(name).weight)
    tokens = torch.randint(GPT_OSS_TINY.vocab_size, (2, 30))
    torch.testing.assert_close(model(tokens), original(tokens), rtol=0, atol=2e-5 * (dtype == torch.float32))
    assert generate(model, [[1, 2, 3]], max_new_tokens=9) == generate(original, [[1, 2, 3]], max_new_tokens=9)


def test_loading_into_a_decoder_takes_its_number_of_exceptions(directory: Path) -> None:
    model = Decoder.from_pretrained(directory, dense="lossless")
    other = LosslessLinear(model.output.in_features, model.output.out_features, bias=False)
    other.load_state_dict(model.output.state_dict())
    torch.testing.assert_close(other.weight, model.output.weight, rtol=0, atol=0)


@pytest.mark.usefixtures("without_type_checks")
def test_refusals(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = Decoder.from_pretrained(directory, dense="lossless")
    with refused(got="weights of 8 or 12 bits"):
        decoder.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
    monkeypatch.setattr(assembly, "machine_memory", lambda: 2**10)
    with pytest.raises(CheckpointError, match="whose weights take"):
        Decoder.from_pretrained(directory, dense="lossless")
