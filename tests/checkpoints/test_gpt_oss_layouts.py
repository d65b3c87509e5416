from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import GptOssConfig, GptOssForCausalLM

from glassformer.checkpoints.gpt_oss_config import read_gpt_oss_config
from glassformer.checkpoints.gpt_oss_layouts import are_packed, expert_names, matrix_sizes, sources, wanted
from glassformer.kernels.options import Clamp
from glassformer.models import DecoderConfig

CONFIG = DecoderConfig(
    vocab_size=11,
    num_layers=2,
    hidden_dim=64,
    ff_dim=32,
    num_heads=4,
    head_dim=6,
    num_kv_heads=2,
    num_experts=3,
    sinks=True,
    attention_bias=True,
    ff_bias=True,
    clamp=Clamp(),
)


@pytest.mark.parametrize("changes", [{}, {"attention_bias": False}, {"tie_word_embeddings": True}])
def test_names_and_shapes_are_hugging_faces(tmp_path: Any, changes: dict[str, Any]) -> None:
    form = {
        "vocab_size": 11,
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 32,
        "num_attention_heads": 4,
        "head_dim": 6,
        "num_key_value_heads": 2,
        "num_local_experts": 3,
        "num_experts_per_tok": 2,
    }
    with torch.device("meta"):
        state = GptOssForCausalLM(GptOssConfig(**form | changes)).state_dict()
    if "tie_word_embeddings" in changes:
        del state["lm_head.weight"]  # which a file lacks
    config = read_gpt_oss_config(form | changes | {"model_type": "gpt_oss"}, "huggingface", tmp_path / "config.json")
    ours = wanted(config, "huggingface", packed=False)
    assert {name: want.shape for name, want in ours.items()} == {name: list(t.shape) for name, t in state.items()}


def test_names_and_shapes_of_packed_files() -> None:
    """As the 20b's two releases have them, here with 3 experts of widths 64 and 32."""
    theirs = wanted(CONFIG, "huggingface", packed=True)
    moe = "model.layers.1.mlp.experts."
    for name, shape in (("gate_up_proj_blocks", [3, 64, 2, 16]), ("gate_up_proj_scales", [3, 64, 2])):
        assert (theirs[moe + name].shape, theirs[moe + name].kinds) == (shape, ("U8",))
    assert theirs[f"{moe}down_proj_blocks"].shape == [3, 64, 1, 16]
    assert theirs[f"{moe}down_proj_bias"].shape == [3, 64]
    openai = {name: want.shape for name, want in wanted(CONFIG, "openai", packed=True).items()}
    layer = {name.removeprefix("block.1."): shape for name, shape in openai.items() if name.startswith("block.1.")}
    assert layer == {
        "attn.norm.scale": [64],
        "attn.qkv.weight": [48, 64],
        "attn.qkv.bias": [48],
        "attn.sinks": [4],
        "attn.out.weight": [64, 24],
        "attn.out.bias": [64],
        "mlp.norm.scale": [64],
        "mlp.gate.weight": [3, 64],
        "mlp.gate.bias": [3],
        "mlp.mlp1_weight.blocks": [3, 64, 2, 16],
        "mlp.mlp1_weight.scales": [3, 64, 2],
        "mlp.mlp1_bias": [3, 64],
        "mlp.mlp2_weight.blocks": [3, 64, 1, 16],
        "mlp.mlp2_weight.scales": [3, 64, 1],
        "mlp.mlp2_bias": [3, 64],
    }
    outside = {name: shape for name, shape in openai.items() if not name.startswith("block.")}
    assert outside == {"embedding.weight": [11, 64], "norm.scale": [64], "unembedding.weight": [11, 64]}


def test_openais_experts_as_numbers_are_not_transposed() -> None:
    assert wanted(CONFIG, "openai", packed=False)["block.0.mlp.mlp1_weight"].shape == [3, 64, 64]
    assert wanted(CONFIG, "openai", packed=False)["block.0.mlp.mlp2_weight"].shape == [3, 64, 32]
    assert wanted(CONFIG, "huggingface", packed=False)["model.layers.0.mlp.experts.down_proj"].shape == [3, 32, 64]
    assert (matrix_sizes(CONFIG, "gate_up"), matrix_sizes(CONFIG, "down")) == ((64, 64), (64, 32))


def test_the_fused_rows_are_cut_without_rest() -> None:
    spans = [
        (source.start, source.stop)
        for name, source in sources(CONFIG, "openai").items()
        if name.startswith("layers.0.attention") and source.name.endswith("qkv.bias")
    ]
    assert spans == [(0, 24), (24, 36), (36, 48)]
    assert all(source.stop is None for source in sources(CONFIG, "huggingface").values())


def test_packed_files_are_known_by_their_names() -> None:
    for layout in ("huggingface", "openai"):
        for packed in (True, False):
            assert are_packed(wanted(CONFIG, layout, packed=packed)) == packed
    assert expert_names("huggingface", 3, "down", packed=True)[0][1] == "model.layers.3.mlp.experts.down_proj_scales"
    assert expert_names("openai", 3, "gate_up", packed=True)[0][0] == "block.3.mlp.mlp1_weight.blocks"
