from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from random_gpt_oss import GPT_OSS_TINY

from glassformer.checkpoints import assembly
from glassformer.checkpoints.description import describe
from glassformer.errors import CheckpointError
from glassformer.generation.decoding import generate
from glassformer.kernels import int8 as kernel
from glassformer.layers.quantized.int8 import Int8Linear, decode, encode
from glassformer.models import Decoder, DecoderConfig
from refusals import refused
from torch_settings import defaults


@given(st.integers(1, 9), st.integers(0, 4), st.integers(-60, 60), st.sampled_from([torch.float32, torch.bfloat16]))
def test_a_number_is_off_by_half_a_scale_at_most(rows: int, blocks: int, exponent: int, dtype: torch.dtype) -> None:
    values = (torch.randn(rows, 32 * blocks) * 2.0**exponent).to(dtype)
    integers, scales = encode(values)
    off = (decode(integers, scales, torch.float64) - values.double()).abs().unflatten(1, (blocks, 32))
    greatest = values.double().abs().unflatten(1, (blocks, 32)).amax(2) if blocks else torch.zeros(rows, 0)
    assert bool((off <= scales.double().unsqueeze(2) / 2 * (1 + 1e-6)).all())
    assert bool((off.amax(2) <= greatest / 252).all() if blocks else True)
    assert bool((integers.abs() <= 127).all())


def test_zeros_and_what_is_encoded_already() -> None:
    integers, scales = encode(torch.zeros(2, 32))
    assert not integers.any()
    assert not scales.any()
    integers, scales = encode(torch.randn(5, 64))
    integers[:, ::32] = 127  # the greatest of each block
    again = encode(decode(integers, scales, torch.float32))
    torch.testing.assert_close(again, (integers, scales), rtol=0, atol=0)


@pytest.mark.usefixtures("without_type_checks")
def test_what_cannot_be_encoded() -> None:
    for values in (torch.zeros(2, 33), torch.zeros(32), torch.zeros(2, 32, dtype=torch.int32)):
        with refused(expected="a multiple of 32"):
            encode(values)
    for special in (float("nan"), float("inf")):
        with refused(expected="finite numbers"):
            encode(torch.full((1, 32), special))
    with refused(expected="a multiple of 32"):
        Int8Linear(33, 4)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("slow", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_products(slow: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within float32's rounding, that of a token in fixed point, and that of weights and result in bfloat16."""
    monkeypatch.setattr(kernel, "slow_bfloat16", lambda: slow)
    for batch, rows, width in [((), 3, 32), ((1,), 37, 96), ((2, 3), 8, 64), ((45,), 9, 320), ((0,), 4, 32)]:
        integers, scales = encode(torch.randn(rows, width))
        x, bias = torch.randn(*batch, width).to(dtype), torch.randn(rows).to(dtype)
        weights = decode(integers, scales, torch.float64)
        exact = F.linear(x.double(), weights, bias.double())
        bound = 2.0**-16 * width * x.abs().max().item() * weights.abs().max() if x.numel() else 0.0
        bound = bound + (2.0**-7 * F.linear(x.double().abs(), weights.abs()) if dtype == torch.bfloat16 else 0.0)
        got = kernel.int8_linear(x, integers, scales, bias)
        assert got.dtype == dtype
        assert bool(((got.double() - exact).abs() <= bound + 2.0**-8 * exact.abs() * (dtype == torch.bfloat16)).all())


@pytest.mark.usefixtures("library", "without_type_checks")
def test_widths_defaults_and_strides() -> None:
    integers, scales = encode(torch.randn(64, 64))
    with pytest.raises(RuntimeError):
        kernel.int8_linear(torch.randn(2, 32), integers, scales)
    x = torch.randn(3, 64)
    expected = kernel.int8_linear(x, integers, scales)
    with defaults(torch.bfloat16):
        got = kernel.int8_linear(x, integers, scales)
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
    columns = integers.T.contiguous().T
    torch.testing.assert_close(kernel.int8_linear(x, columns, scales), expected, rtol=0, atol=0)


def test_gradients_of_the_input_are_the_definitions() -> None:
    integers, scales = encode(torch.randn(5, 32))
    x = torch.randn(3, 32, requires_grad=True)
    kernel.int8_linear(x, integers, scales).sum().backward()
    torch.testing.assert_close(x.grad, decode(integers, scales, torch.float32).sum(0).expand(3, 32))


# ---- a gpt-oss with 8-bit weights -----------------------------------------------------------------------------------


@torch.no_grad()
def test_a_decoder_in_8_bits(directory: Path) -> None:
    eight = Decoder.from_pretrained(directory, dense="int8").eval()
    exact = Decoder.from_pretrained(directory, dtype=torch.float32).eval()
    names = {name for name, module in eight.named_modules() if isinstance(module, Int8Linear)}
    attention = {f"layers.{i}.attention.{name}" for i in range(4) for name in ("query", "key", "value", "output")}
    assert names == {"output", *attention}
    tokens = torch.randint(GPT_OSS_TINY.vocab_size, (2, 30))
    expected = exact(tokens)
    assert (eight(tokens).float() - expected).square().mean().sqrt() < 0.1 * expected.std()
    wide = Decoder.from_pretrained(directory, dense="int8", dtype=torch.float32).eval()
    for name in names:  # the layers are those of the checkpoint, encoded
        layer, original = wide.get_submodule(name), exact.get_submodule(name)
        torch.testing.assert_close(encode(original.weight), (layer.integers, layer.scales), rtol=0, atol=0)
        torch.testing.assert_close(
            layer.weight.float(), original.weight, rtol=0, atol=original.weight.abs().max() / 126
        )
    (text,) = generate(eight, [[1, 2, 3]], max_new_tokens=5)
    assert len(text) == 5
    assert sum(each.nbytes for each in eight.state_dict().values()) == describe(directory).memory(
        2, packed=True, dense="int8"
    )


def test_moving_a_decoder_to_another_dtype_keeps_its_weights(directory: Path) -> None:
    decoder = Decoder.from_pretrained(directory, dense="int8").eval()
    before = decoder.output(torch.ones(1, 64, dtype=torch.bfloat16)).float()
    after = decoder.float().output(torch.ones(1, 64))
    torch.testing.assert_close(before, after, rtol=2**-8, atol=0)


def test_refusals(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with refused(got="int4", expected=r"one of \('int8', 'lossless'\) or None"):
        Decoder.from_pretrained(directory, dense="int4")
    config = DecoderConfig(8, num_layers=1, hidden_dim=48, ff_dim=32, num_heads=2, head_dim=16)
    Decoder(config).save_pretrained(tmp_path / "narrow")
    with refused(got="in_features = 48"):
        Decoder.from_pretrained(tmp_path / "narrow", dense="int8")
    for dense in ("lossless", "int8"):
        decoder = Decoder.from_pretrained(directory, dense=dense)
        with refused(got="weights of 8 or 12 bits"):
            decoder.save_pretrained(tmp_path / "saved")
        assert not (tmp_path / "saved").exists()
    size = sum(each.nbytes for each in decoder.state_dict().values())
    monkeypatch.setattr(assembly, "available_memory", lambda: size)
    Decoder.from_pretrained(directory, dense="int8")
    monkeypatch.setattr(assembly, "available_memory", lambda: size - 1)
    for dense in ("lossless", "int8"):
        with pytest.raises(CheckpointError, match="whose weights take"):
            Decoder.from_pretrained(directory, dense=dense)
