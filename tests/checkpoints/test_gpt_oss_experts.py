from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GptOssForCausalLM

from glassformer.checkpoints.gpt_oss import stored_model
from glassformer.checkpoints.gpt_oss_export import gpt_oss_from_decoder
from glassformer.checkpoints.gpt_oss_writing import with_experts, write_gpt_oss
from glassformer.checkpoints.random_gpt_oss import GPT_OSS_TINY, write_random_gpt_oss
from glassformer.errors import CheckpointError
from glassformer.models import Decoder, DecoderConfig
from refusals import refused

SMALL = replace(GPT_OSS_TINY, vocab_size=96, num_layers=2, num_experts=4)
DENSE = replace(SMALL, expert_format="dense")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """One network in both layouts and with both kinds of experts."""
    root = tmp_path_factory.mktemp("made")
    found = {}
    for kind, config in (("mxfp4", SMALL), ("bfloat16", DENSE)):
        for layout in ("huggingface", "openai"):
            found[layout, kind] = root / f"{layout}-{kind}"
            write_random_gpt_oss(found[layout, kind], config, layout=layout)  # type: ignore[arg-type]
    return found


def convert(source: Path, out: Path, layout: Any, experts: Any = None) -> None:
    config = json.loads((source / "config.json").read_text())
    with stored_model(source, config) as model:
        write_gpt_oss(with_experts(model, experts), out, layout)


@pytest.mark.parametrize("to", ["huggingface", "openai"])
@pytest.mark.parametrize("source", ["huggingface", "openai"])
@pytest.mark.parametrize(("experts", "kind"), [("mxfp4", None), ("bfloat16", None), ("mxfp4", "bfloat16")])
def test_each_form_becomes_what_was_drawn_in_the_other(
    made: dict[tuple[str, str], Path], tmp_path: Path, source: str, to: str, experts: str, kind: str | None
) -> None:
    convert(made[source, experts], tmp_path / "out", to, kind)
    expected = made[to, kind or experts]
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (expected / "model.safetensors").read_bytes()
    written, wanted = (json.loads((path / "config.json").read_text()) for path in (tmp_path / "out", expected))
    assert written.items() <= wanted.items()


def test_packing_gives_the_same_numbers_where_they_came_from_packed_ones(
    made: dict[tuple[str, str], Path], tmp_path: Path
) -> None:
    convert(made["openai", "bfloat16"], tmp_path / "out", "huggingface", "mxfp4")
    before, after = (
        Decoder.from_pretrained(path, experts="dense") for path in (made["openai", "mxfp4"], tmp_path / "out")
    )
    assert load_file(tmp_path / "out" / "model.safetensors")["model.layers.0.mlp.experts.down_proj_scales"].max() < 255
    for name, tensor in after.state_dict().items():
        assert torch.equal(tensor, before.state_dict()[name]), name


def test_a_tied_output_and_missing_biases_are_written_out(tmp_path: Path) -> None:
    write_random_gpt_oss(tmp_path / "in", DENSE)
    config = json.loads((tmp_path / "in" / "config.json").read_text())
    config |= {"tie_word_embeddings": True, "attention_bias": False}
    tensors = load_file(tmp_path / "in" / "model.safetensors")
    gone = ("lm_head.weight", "_proj.bias")
    kept = {name: tensor for name, tensor in tensors.items() if not (name.endswith(gone) and "experts" not in name)}
    save_file(kept, tmp_path / "in" / "model.safetensors", {"format": "pt"})
    (tmp_path / "in" / "config.json").write_text(json.dumps(config))
    tokens = torch.randint(96, (1, 40))
    logits = Decoder.from_pretrained(tmp_path / "in", dtype=torch.float32).eval()(tokens)
    for layout in ("huggingface", "openai"):
        convert(tmp_path / "in", tmp_path / layout, layout)
        assert torch.equal(Decoder.from_pretrained(tmp_path / layout, dtype=torch.float32).eval()(tokens), logits)
    theirs = GptOssForCausalLM.from_pretrained(tmp_path / "huggingface", dtype=torch.float32).eval()(tokens).logits
    assert torch.allclose(theirs, logits, atol=1e-4)


@pytest.mark.parametrize("layout", ["huggingface", "openai"])
@pytest.mark.parametrize("experts", [None, "mxfp4"])
def test_a_decoder_is_written_in_either_layout(tmp_path: Path, layout: Any, experts: Any) -> None:
    decoder = Decoder(replace(DENSE, rope_layout="interleaved", key_weights=True))
    with torch.no_grad():
        for weight in decoder.parameters():
            weight.copy_((weight + 0.1 * torch.randn_like(weight)).bfloat16())
    write_gpt_oss(with_experts(gpt_oss_from_decoder(decoder), experts), tmp_path / "out", layout)
    read = Decoder.from_pretrained(tmp_path / "out")
    assert read.config.expert_format == (experts or "dense")
    tokens = torch.randint(96, (1, 40))
    with torch.no_grad():
        ours, theirs = decoder.eval()(tokens), read.eval()(tokens)
    if experts is None:
        assert torch.allclose(ours, theirs, atol=1e-4)
    else:  # 4 bits a weight
        assert 0.9 < torch.corrcoef(torch.stack([ours.flatten(), theirs.flatten()]))[0, 1].item() < 0.9999


def test_packed_decoders_are_written(made: dict[tuple[str, str], Path], tmp_path: Path) -> None:
    decoder = Decoder.from_pretrained(made["openai", "mxfp4"])
    for kind in ("mxfp4", "bfloat16"):
        write_gpt_oss(with_experts(gpt_oss_from_decoder(decoder), kind), tmp_path / kind, "huggingface")  # type: ignore[arg-type]
        written, expected = tmp_path / kind / "model.safetensors", made["huggingface", kind] / "model.safetensors"
        assert written.read_bytes() == expected.read_bytes()


def test_an_exponent_of_nan_stops_it_and_leaves_nothing(tmp_path: Path) -> None:
    write_random_gpt_oss(tmp_path / "in", SMALL)
    file = tmp_path / "in" / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.1.mlp.experts.down_proj_scales"][2, 3, 1] = 255
    save_file(tensors, file, {"format": "pt"})
    with refused(r"layers\.1\.mlp\.experts\.down_proj_scales .*NaN.*model\.safetensors", error=CheckpointError):
        convert(tmp_path / "in", tmp_path / "out", "openai")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.usefixtures("without_type_checks")
def test_other_models_and_kinds_are_refused(tmp_path: Path) -> None:
    Decoder(DecoderConfig(8, num_layers=1, hidden_dim=8, ff_dim=8, num_heads=1, head_dim=8)).save_pretrained(
        tmp_path / "a"
    )
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    with refused("'llama'", error=CheckpointError), stored_model(tmp_path / "a", config):
        pass
    with refused("experts = 'int8'"):
        with_experts(gpt_oss_from_decoder(Decoder(DENSE)), "int8")  # type: ignore[arg-type]
    narrow = replace(DENSE, ff_dim=48)
    with refused(expected="multiples of 32"):
        with_experts(gpt_oss_from_decoder(Decoder(narrow)), "mxfp4")
