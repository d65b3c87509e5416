"""Weights that are infinite or NaN are refused when they are loaded, unless the caller asks for
them.
"""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from glassformer.checkpoints.bert import load_encoder, save_encoder
from glassformer.checkpoints.decoders import load_decoder, save_decoder
from glassformer.checkpoints.gguf import load_gguf
from glassformer.checkpoints.gguf_writing import write_gguf
from glassformer.errors import CheckpointError, InputError
from glassformer.kernels.options import Clamp
from glassformer.models import Decoder, DecoderConfig, Encoder, EncoderConfig
from glassformer.training.checkpoint import load_weights, save_weights
from refusals import refused

FORM = DecoderConfig(vocab_size=40, num_layers=1, hidden_dim=32, ff_dim=32, num_heads=4, head_dim=8)


def spoil(directory: Path, name: str, number: float) -> str:
    """Put one such number into the first tensor whose name has ``name``; its name."""
    file = directory / "model.safetensors"
    tensors = load_file(file)
    found = next(each for each in sorted(tensors) if name in each)
    tensors[found].view(-1)[3] = number
    save_file(tensors, file, metadata={"format": "pt"})
    return found


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("layout", ["glassformer", "llama"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_decoders(number: float, layout: Any, dtype: torch.dtype, tmp_path: Path) -> None:
    save_decoder(Decoder(FORM).to(dtype), tmp_path / "model", layout=layout)
    load_decoder(tmp_path / "model")
    name = spoil(tmp_path / "model", "down", number)
    with refused(rf"{name} with weights that are infinite or NaN", error=CheckpointError):
        load_decoder(tmp_path / "model")
    loaded = load_decoder(tmp_path / "model", allow_nonfinite=True)
    assert sum(int((~each.isfinite()).sum()) for each in loaded.parameters()) == 1
    with pytest.raises(CheckpointError):  # the permission ends with the call
        load_decoder(tmp_path / "model")


def test_large_finite_weights_are_no_fault(tmp_path: Path) -> None:
    """Their sum is infinite."""
    decoder = Decoder(FORM).to(torch.float16)
    nn.init.constant_(decoder.output.weight, 6e4)
    save_decoder(decoder, tmp_path / "model", layout="glassformer")
    load_decoder(tmp_path / "model")


@pytest.mark.parametrize("pack", [None, "Q8_0"])
def test_gpt_oss(pack: Any, tmp_path: Path) -> None:
    experts: dict[str, Any] = {"num_experts": 2, "ff_dim": 32, "ff_bias": True, "clamp": Clamp()}
    attention: dict[str, Any] = {
        "attention_bias": True,
        "sinks": True,
        "window": 8,
        "windowed_layers": "even",
    }
    decoder = Decoder(dataclasses.replace(FORM, **experts, **attention)).bfloat16()
    save_decoder(decoder, tmp_path / "model", layout="gpt_oss")
    for name in ("q_proj.weight", "experts.down_proj"):
        spoilt = spoil(tmp_path / "model", name, float("nan"))
        with refused(spoilt, error=CheckpointError):
            load_decoder(tmp_path / "model", pack=pack)
        load_decoder(tmp_path / "model", allow_nonfinite=True)
        spoil(tmp_path / "model", name, 0.5)


def test_encoders(tmp_path: Path) -> None:
    config = EncoderConfig(
        vocab_size=20, num_layers=1, hidden_dim=16, ff_dim=32, num_heads=2, max_seq_len=8
    )
    save_encoder(Encoder(config), tmp_path / "encoder")
    name = spoil(tmp_path / "encoder", "query", float("inf"))
    with refused(name):
        load_encoder(tmp_path / "encoder")
    load_encoder(tmp_path / "encoder", allow_nonfinite=True)


def test_gguf(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(Decoder(FORM), path, kind="F32")
    content = bytearray(path.read_bytes())
    content[-4:] = b"\0\0\xc0\x7f"  # NaN, in the last tensor
    path.write_bytes(content)
    with refused("infinite or NaN", error=CheckpointError):
        load_gguf(path)
    assert not all(
        bool(each.isfinite().all()) for each in load_gguf(path, allow_nonfinite=True).parameters()
    )


def test_runs(tmp_path: Path) -> None:
    model = nn.Linear(4, 3)
    model.register_buffer("mask", torch.full((3,), -torch.inf))  # which is no weight
    save_weights(model, tmp_path)
    load_weights(model, tmp_path)
    name = spoil(tmp_path, "weight", float("nan"))
    before = model.weight.detach().clone()
    with refused(rf"{name} with weights that are infinite or NaN in", error=InputError):
        load_weights(model, tmp_path)
    assert torch.equal(model.weight, before)
    load_weights(model, tmp_path, allow_nonfinite=True)
    assert int(model.weight.isnan().sum()) == 1
