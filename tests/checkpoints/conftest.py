"""Small random models of gpt-oss's form, in both layouts."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import GptOssConfig, GptOssForCausalLM

# What several tests share is imported from here.
sys.path.append(str(Path(__file__).resolve().parent))

from released_20b import OPENAIS_20B

HF_FORM: dict[str, Any] = {
    "num_hidden_layers": 3,
    "num_local_experts": 6,
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 64,
    "head_dim": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "sliding_window": 7,
    "num_experts_per_tok": 2,
}
OPENAI_FORM: dict[str, Any] = OPENAIS_20B | {
    "num_hidden_layers": 2,
    "num_experts": 4,
    "experts_per_token": 2,
    "vocab_size": 48,
    "hidden_size": 64,
    "intermediate_size": 32,
    "head_dim": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "sliding_window": 7,
}


@pytest.fixture
def peer() -> Callable[..., GptOssForCausalLM]:
    """Makes Hugging Face's model, every part of which tells in its logits."""

    def make(**changes: Any) -> GptOssForCausalLM:
        model = GptOssForCausalLM(GptOssConfig(**HF_FORM | changes, initializer_range=0.25)).eval()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name.endswith(("bias", "sinks")) or weight.dim() == 1:
                    weight.add_(torch.randn_like(weight) * 0.3)
        return model

    return make


@pytest.fixture
def openai_files(tmp_path: Path) -> Callable[..., Path]:
    """Writes a directory as OpenAI's, in bfloat16 and MXFP4, in one file."""

    def write(**changes: Any) -> Path:
        form = OPENAI_FORM | changes
        directory = tmp_path / "openai"
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps(form))
        save_file(openai_tensors(form), directory / "model.safetensors")
        return directory

    return write


def openai_tensors(form: dict[str, Any]) -> dict[str, Tensor]:
    hidden = form["hidden_size"]
    ff = form["intermediate_size"]
    experts = form["num_experts"]
    heads = form["num_attention_heads"]
    head_dim = form["head_dim"]
    qkv = (heads + 2 * form["num_key_value_heads"]) * head_dim

    def draw(*shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(shape) * scale).bfloat16()

    tensors = {
        "embedding.weight": draw(form["vocab_size"], hidden),
        "unembedding.weight": draw(form["vocab_size"], hidden, scale=0.3),
        "norm.scale": 1 + draw(hidden, scale=0.2),
    }
    for layer in range(form["num_hidden_layers"]):
        block = {
            "attn.norm.scale": 1 + draw(hidden, scale=0.2),
            "attn.qkv.weight": draw(qkv, hidden, scale=0.2),
            "attn.qkv.bias": draw(qkv, scale=0.3),
            "attn.sinks": draw(heads),
            "attn.out.weight": draw(hidden, heads * head_dim, scale=0.1),
            "attn.out.bias": draw(hidden, scale=0.3),
            "mlp.norm.scale": 1 + draw(hidden, scale=0.2),
            "mlp.gate.weight": draw(experts, hidden, scale=0.2),
            "mlp.gate.bias": draw(experts, scale=0.3),
            "mlp.mlp1_bias": draw(experts, 2 * ff, scale=0.3),
            "mlp.mlp2_bias": draw(experts, hidden, scale=0.3),
        }
        for name, out, groups in (("mlp1", 2 * ff, hidden // 32), ("mlp2", hidden, ff // 32)):
            block[f"mlp.{name}_weight.blocks"] = torch.randint(
                256, (experts, out, groups, 16), dtype=torch.uint8
            )
            block[f"mlp.{name}_weight.scales"] = torch.randint(
                122, 126, (experts, out, groups), dtype=torch.uint8
            )
        tensors |= {f"block.{layer}.{name}": tensor for name, tensor in block.items()}
    return tensors
