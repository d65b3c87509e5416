import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from random_gpt_oss import (
    GPT_OSS_20B,
    GPT_OSS_120B,
    GPT_OSS_TINY,
    LOGITS_STD,
    main,
    write_random_gpt_oss,
)
from released_20b import OPENAIS_20B
from safetensors.torch import load_file
from transformers import GptOssForCausalLM

from glassformer.checkpoints.families.gpt_oss import OPENAI
from glassformer.models import Decoder
from refusals import refused

SMALL = replace(GPT_OSS_TINY, vocab_size=256, num_layers=2, num_experts=4)
DENSE = replace(SMALL, expert_format="dense")


def test_transformers_reads_it_and_its_logits_are_sensible(tmp_path: Path) -> None:
    write_random_gpt_oss(tmp_path / "model", DENSE)
    tokens = torch.randint(256, (2, 60))
    with torch.no_grad():
        theirs = (
            GptOssForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
            .eval()(tokens)
            .logits
        )
        ours = Decoder.from_pretrained(tmp_path / "model", dtype=torch.float32).eval()(tokens)
    assert torch.allclose(ours, theirs, atol=1e-4)
    assert theirs.std().item() == pytest.approx(LOGITS_STD, rel=0.2)
    # Neither one token for all nor as good as drawn evenly.
    entropy = torch.distributions.Categorical(logits=theirs).entropy().mean().item()
    assert 0.4 * math.log(256) < entropy < 0.95 * math.log(256)
    assert len(theirs.argmax(-1).unique()) > 10


def test_weights_are_real_mxfp4_of_the_right_spread(tmp_path: Path) -> None:
    write_random_gpt_oss(tmp_path / "model", SMALL)
    packed = load_file(tmp_path / "model" / "model.safetensors")
    moe = "model.layers.1.mlp.experts."
    for matrix, std in (("gate_up_proj", 64**-0.5), ("down_proj", (64 * 2 * 2) ** -0.5)):
        blocks = packed[f"{moe}{matrix}_blocks"]
        scales = packed[f"{moe}{matrix}_scales"]
        assert len(blocks.unique()) == 256
        assert len(scales.unique()) == 2
        assert scales.unique().diff().tolist() == [1]
        codes = torch.stack([blocks & 15, blocks >> 4], -1).flatten(-2)
        values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])[(codes & 7).long()]
        numbers = values * torch.exp2(scales.float() - 127).unsqueeze(-1)
        assert numbers.square().mean().sqrt().item() == pytest.approx(std, rel=0.03)


def test_seeds(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        write_random_gpt_oss(tmp_path / name, SMALL, seed=seed)
    first, same, other = (load_file(tmp_path / name / "model.safetensors") for name in "abc")
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert [name for name in first if torch.equal(first[name], other[name])] == []
    with refused("seed = -1"):
        write_random_gpt_oss(tmp_path / "d", SMALL, seed=-1)


def test_layers_and_experts_differ(tmp_path: Path) -> None:
    write_random_gpt_oss(tmp_path / "model", SMALL)
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    drawn = [t for name, t in tensors.items() if name.endswith("gate_up_proj_blocks")]
    experts = [expert for tensor in drawn for expert in tensor]
    assert not any(torch.equal(one, other) for one, other in itertools.combinations(experts, 2))


def test_configurations_are_the_released_ones(tmp_path: Path) -> None:
    assert OPENAI.write_config(GPT_OSS_20B, torch.bfloat16) == OPENAIS_20B
    more = {"num_hidden_layers": 36, "num_experts": 128}
    assert OPENAI.write_config(GPT_OSS_120B, torch.bfloat16) == OPENAIS_20B | more
    tiny = replace(
        GPT_OSS_20B, num_layers=2, hidden_dim=32, ff_dim=32, num_heads=8, head_dim=2, num_experts=4
    )
    write_random_gpt_oss(tmp_path / "model", tiny)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert (config["eos_token_id"], config["pad_token_id"]) == (200002, 199999)


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [
        "--layout",
        "openai",
        "--experts",
        "bfloat16",
        "--num-layers",
        "2",
        "--vocab-size",
        "96",
    ]
    monkeypatch.setattr("sys.argv", ["random_gpt_oss.py", str(tmp_path / "out"), *flags])
    main()
    config = Decoder.from_pretrained(tmp_path / "out").config
    assert (config.num_layers, config.vocab_size, config.expert_format) == (2, 96, "dense")
    assert "GB of random weights" in capsys.readouterr().out
