from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from glassformer.checkpoints.random_gpt_oss import GPT_OSS_TINY
from glassformer.cli.main import main
from glassformer.models import Decoder


def test_a_model_of_another_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--num-layers", "1", "--num-experts", "4", "--hidden-dim", "32", "--ff-dim", "96", "--vocab-size", "50"]
    flags = ["--layout", "openai", "--experts", "bfloat16", *sizes]
    assert main(["random-model", str(tmp_path / "model"), *flags]) == 0
    size = sum(tensor.nbytes for tensor in load_file(tmp_path / "model" / "model.safetensors").values())
    assert capsys.readouterr().out.endswith(f"model: {size / 1000:.2f} kB of random weights\n")
    config = Decoder.from_pretrained(tmp_path / "model").config
    assert (config.num_layers, config.num_experts, config.hidden_dim) == (1, 4, 32)
    assert (config.ff_dim, config.vocab_size, config.expert_format) == (96, 50, "dense")
    assert config.num_heads == GPT_OSS_TINY.num_heads


def test_the_defaults_are_the_tiny_model(tmp_path: Path) -> None:
    assert main(["random-model", str(tmp_path / "model")]) == 0
    assert Decoder.from_pretrained(tmp_path / "model").config == GPT_OSS_TINY


def test_what_exists_is_kept_unless_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "model")
    assert main(["random-model", out, "--seed", "1"]) == 0
    first = (tmp_path / "model" / "model.safetensors").read_bytes()
    assert main(["random-model", out]) == 2
    assert "which exists already" in capsys.readouterr().err
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == first
    assert main(["random-model", out, "--replace"]) == 0
    assert (tmp_path / "model" / "model.safetensors").read_bytes() != first


@pytest.mark.parametrize("flags", [["--hidden-dim", "33"], ["--num-layers", "0"]])
def test_impossible_sizes(flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["random-model", str(tmp_path / "model"), *flags]) == 2
    assert "expected" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
