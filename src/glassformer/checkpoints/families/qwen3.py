"""Qwen3, dense and as a mixture of experts: a norm on every head of queries and keys.

Source: Yang et al. 2025, arXiv 2505.09388.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from glassformer.checkpoints.families.config_json import Fields
from glassformer.checkpoints.families.qwen2 import QWEN2
from glassformer.checkpoints.families.table import KEYS, NAMES, QK_NORMS
from glassformer.errors import require

_ROUTED = {"ffn.router.score": "mlp.gate"} | {
    f"ffn.{ours}": f"mlp.experts.{{expert}}.{ours}_proj.weight" for ours in ("gate", "up", "down")
}
QWEN3 = replace(
    QWEN2,
    name="Qwen3",
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    defaults=dict(QWEN2.defaults) | {"head_dim": 128},
    parts={"qk_norm": "head"},
    read=lambda file, found: {"attention_bias": file.flag("attention_bias", False)},
    write=lambda config: {"attention_bias": config.attention_bias},
    names=NAMES | QK_NORMS,
    gguf="qwen3",
)


def _read_mixture(file: Fields, found: dict[str, Any]) -> dict[str, Any]:
    file.only("decoder_sparse_step", 1)
    file.only("mlp_only_layers", [])
    renormalised = file.flag("norm_topk_prob", False)
    require(renormalised, "norm_topk_prob = False", "True", "The decoder's routing weights add up to 1.")
    file.get("intermediate_size")
    return QWEN3.read(file, found)


QWEN3_MOE = replace(
    QWEN3,
    name="Qwen3 MoE",
    model_type="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    keys=KEYS | {"ff_dim": "moe_intermediate_size", "num_experts": "num_experts", "top_k": "num_experts_per_tok"},
    aliases={"num_local_experts": "num_experts"},
    defaults=dict(QWEN2.defaults) | {"num_key_value_heads": 4},
    windows="all",
    read=_read_mixture,
    write=lambda config: (
        QWEN3.write(config) | {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}
    ),
    names=dict(QWEN3.names) | _ROUTED,
    gguf="qwen3moe",
)
