from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from random_gpt_oss import GPT_OSS_TINY
from torch import Tensor

from glassformer.checkpoints.description import describe
from glassformer.generation.decoding import generate
from glassformer.kernels import lossless as kernel
from glassformer.kernels import native, plain
from glassformer.layers.quantized import DenseFormat
from glassformer.layers.quantized.int8 import Int8Linear
from glassformer.layers.quantized.lossless import LosslessLinear, decode, encode
from glassformer.models import Decoder, DecoderConfig
from glassformer.observe.circuits import ov_circuit
from refusals import refused


def same_bits(got: Tensor, expected: Tensor) -> bool:
    return torch.equal(got.view(torch.int16), expected.view(torch.int16))


def with_exceptions(rows: int, width: int) -> Tensor:
    """Rows of any size with zeros and an exception, and one with the greatest numbers, infinity and NaN."""
    numbers = (torch.rand(rows, width) + 0.5) * torch.randn(rows, width).sign()
    values = (numbers * 2.0 ** torch.randint(-90, 120, (rows, 1))).bfloat16()
    values[:, 2], values[:, 5], values[:, 7] = 0.0, -0.0, 2.0**-120
    values[-1:] = torch.randint(0x7A00, 0x8000, (width,)).to(torch.int16).view(torch.bfloat16)
    return values


@pytest.mark.usefixtures("library")
@given(st.integers(0, 9), st.integers(1, 12))
def test_every_bit_comes_back(rows: int, width: int) -> None:
    values = with_exceptions(rows, 16 * width)
    packed, index = encode(values)
    assert packed.shape == (rows, -(-width // 4), 96)
    assert len(index) == rows + 1 + max(0, rows - 1)
    assert same_bits(kernel.expand_definition(packed, index, 16 * width), values)
    assert same_bits(decode(packed, index, 16 * width), values)
    with plain():
        by_definition = encode(values)
    assert torch.equal(packed, by_definition[0])
    assert torch.equal(index, by_definition[1])
    strided = values.repeat_interleave(2, 1)[:, ::2]
    assert torch.equal(encode(strided)[0], packed)


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
    values = torch.randn(8, 64).bfloat16()
    values[0, 0] = torch.inf  # which takes the codes of the 63 others
    for by_definition in (True, False):
        with (
            plain() if by_definition else nullcontext(),
            refused(got="exceptions or more among 512", expected="at most one in 16"),
        ):
            encode(values)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("slow", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_products(slow: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within float32's rounding and that of results in bfloat16."""
    monkeypatch.setattr(kernel, "slow_bfloat16", lambda: slow)
    monkeypatch.setattr(kernel, "_EXPANDED", 400)  # bytes: several parts
    for batch, rows, width in [((), 3, 32), ((1,), 37, 96), ((2, 3), 8, 64), ((45,), 9, 336), ((0,), 4, 32)]:
        weights = torch.randn(rows, width).bfloat16()
        weights[0, 3] = 2.0**-30
        x, bias = torch.randn(*batch, 2 * width).to(dtype)[..., ::2], torch.randn(2 * rows).to(dtype)[::2]
        exact = F.linear(x.double(), weights.double(), bias.double())
        bound = width * 2.0**-23 * F.linear(x.double().abs(), weights.double().abs(), bias.double().abs())
        got = kernel.lossless_linear(x, *encode(weights), width, bias)
        assert got.dtype == dtype
        rounded = 2.0**-8 * (exact.abs() + (exact - bias).abs()) * (dtype == torch.bfloat16)  # with and without bias
        assert bool(((got.double() - exact).abs() <= bound + rounded).all())


@pytest.mark.usefixtures("without_type_checks")
def test_modes_and_tensors_that_take_the_definition(library: native.Library, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, x = torch.randn(48, 96).bfloat16(), torch.randn(3, 96)
    packed, index = encode(weights)
    layer = LosslessLinear(96, 48, bias=False)
    layer.packed, layer.index = packed, index
    expected = kernel.definition(x, packed, index, 96)
    monkeypatch.setattr(native.Library, "call", lambda *_: pytest.fail("C++ was called"))
    with plain():
        torch.testing.assert_close(layer(x), expected, rtol=0, atol=0)
    torch.testing.assert_close(torch.func.vmap(layer)(x), expected)
    torch.testing.assert_close(torch.compile(layer, backend="eager", fullgraph=True)(x), expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    strided = packed.repeat_interleave(2, 2)[..., ::2]
    torch.testing.assert_close(kernel.lossless_linear(x, strided, index, 96), expected, rtol=0, atol=0)
    assert same_bits(decode(strided, index.long(), 96), weights)
    empty = LosslessLinear(96, 48).to("meta")
    assert (empty.weight.shape, empty(x.to("meta")).shape) == ((48, 96), (3, 48))


def test_gradients_of_the_input_are_the_definitions() -> None:
    weights, x = torch.randn(5, 32).bfloat16(), torch.randn(3, 32, requires_grad=True)
    kernel.lossless_linear(x, *encode(weights), 32).sum().backward()
    torch.testing.assert_close(x.grad, weights.float().sum(0).expand(3, 32))


def test_another_width_is_an_error() -> None:
    with pytest.raises(RuntimeError):
        kernel.lossless_linear(torch.randn(2, 32), *encode(torch.randn(8, 48).bfloat16()), 48)


def test_decoding_with_another_width_stays_inside_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "_expanded", None)  # what C++ would write over is no part of the result
    weights = torch.randn(3, 48).bfloat16()
    weights[2, 47] = 1e-20
    packed, index = encode(weights)
    assert torch.equal(decode(packed, index, 49)[:, :48], weights)
    with pytest.raises(IndexError):
        decode(packed, index, 32)


# ---- a gpt-oss whose dense weights take 12 bits ---------------------------------------------------------------------


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
    torch.testing.assert_close(ov_circuit(model, 0, 0).matrix, ov_circuit(original, 0, 0).matrix)
    told, held = describe(directory).memory(2, packed=True, dense="lossless"), model.to(torch.bfloat16).state_dict()
    assert told == pytest.approx(sum(each.nbytes for each in held.values()), rel=0.03)
    assert generate(model, [[1, 2, 3]], max_new_tokens=9) == generate(original, [[1, 2, 3]], max_new_tokens=9)


def test_loading_into_a_decoder_takes_its_number_of_exceptions(directory: Path) -> None:
    model = Decoder.from_pretrained(directory, dense="lossless")
    other = LosslessLinear(model.output.in_features, model.output.out_features, bias=False)
    other.load_state_dict(model.output.state_dict())
    torch.testing.assert_close(other.weight, model.output.weight, rtol=0, atol=0)


@pytest.mark.parametrize("assign", [False, True])
def test_a_state_dict_that_would_lead_outside_of_memory_changes_nothing(assign: bool) -> None:
    weights = with_exceptions(8, 64)
    packed, index = encode(weights)
    layer = LosslessLinear(64, 8, bias=False)
    layer.load_state_dict({"packed": packed, "index": index})
    column, negative, end, fewer = (index.clone() for _ in range(4))
    column[-1, 0], negative[-1, 0], end[8, 1], fewer[3, 1] = 64, -1, 2**31 - 1, 0
    bad = [(packed, each) for each in (column, negative, end, fewer, index[:0], index[:-1], index.long())]
    other = encode(with_exceptions(3, 64))
    for packed_, index_ in [*bad, other, (packed[:, :, :95], index), (packed.repeat(1, 1, 2)[..., ::2], index)]:
        with pytest.raises(RuntimeError, match="not what encode"):
            layer.load_state_dict({"packed": packed_, "index": index_}, assign=assign)
        assert same_bits(layer.weight, weights)


def test_weights_of_other_dtypes_are_refused(directory: Path, tmp_path: Path) -> None:
    Decoder.from_pretrained(directory, dtype=torch.float32).save_pretrained(tmp_path / "wide")
    with refused(got="attention.query of .*not stored in bfloat16"):
        Decoder.from_pretrained(tmp_path / "wide", dense="lossless")
    assert describe(tmp_path / "wide").memory(2, packed=True, dense="lossless") is None


@torch.no_grad()
@pytest.mark.parametrize("layout", ["llama", "gpt2", "glassformer"])
@pytest.mark.parametrize("dense", ["lossless", "int8"])
def test_other_families_hold_their_linear_layers_so(tmp_path: Path, layout: str, dense: DenseFormat) -> None:
    sizes = {"num_layers": 2, "hidden_dim": 128, "ff_dim": 256, "num_heads": 4, "head_dim": 32, "tied_output": True}
    old = {"norm": "layer", "gated": False, "activation": "gelu_tanh", "learned_positions": True}
    biases = {"attention_bias": True, "ff_bias": True}
    config = DecoderConfig(97, **sizes, **(old | biases if layout == "gpt2" else {"num_kv_heads": 2}))
    Decoder(config).bfloat16().save_pretrained(tmp_path / "model", layout=layout)
    held = Decoder.from_pretrained(tmp_path / "model", dense=dense, dtype=torch.float32).eval()
    stored = Decoder.from_pretrained(tmp_path / "model", dtype=torch.float32).eval()
    kind, inside = (LosslessLinear, Int8Linear)[dense == "int8"], 6 if layout == "gpt2" else 7
    assert sum(isinstance(module, kind) for module in held.modules()) == 2 * inside
    tokens, logits = torch.arange(30)[None], stored(torch.arange(30)[None])
    away = (held(tokens) - logits).square().mean().sqrt() / logits.std()
    assert away < (2e-6 if dense == "lossless" else 0.03)
    assert (dense == "int8") == bool(away > 1e-4)
    sizes = [each.nbytes for name, each in held.bfloat16().state_dict().items() if name != "output.weight"]
    assert describe(tmp_path / "model").memory(2, dense=dense) == pytest.approx(sum(sizes), rel=0.05)
