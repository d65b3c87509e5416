"""Qwen3 as a mixture of experts in all layers (Yang et al. 2025, arXiv 2505.09388)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from glassformer.checkpoints.families.config_json import Fields
from glassformer.checkpoints.families.qwen3 import QWEN3
from glassformer.checkpoints.families.table import KEYS, bias, write_bias
from glassformer.errors import require

_ROUTED = {"ffn.router.score": "mlp.gate"} | {
    f"ffn.{ours}": f"mlp.experts.{{expert}}.{ours}_proj.weight" for ours in ("gate", "up", "down")
}
_FIXED = {"hidden_act": "silu", "decoder_sparse_step": 1, "mlp_only_layers": []}


def _read(file: Fields, found: dict[str, Any]) -> dict[str, Any]:
    renormalised = file.flag("norm_topk_prob", False)
    require(renormalised, "norm_topk_prob = False", "True", "The decoder's routing weights add up to 1.")
    file.get("intermediate_size")  # of layers without experts, of which there are none
    return bias(file, found)


QWEN3_MOE = replace(
    QWEN3,
    name="Qwen3 MoE",
    model_type="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    keys=KEYS | {"ff_dim": "moe_intermediate_size", "num_experts": "num_experts", "top_k": "num_experts_per_tok"},
    aliases={"num_local_experts": "num_experts"},
    defaults={"num_key_value_heads": 4, "rms_norm_eps": 1e-6, "max_position_embeddings": 32768},
    fixed=_FIXED,
    windows="all",
    read=_read,
    write=lambda config: write_bias(config) | {"norm_topk_prob": True},
    names=dict(QWEN3.names) | _ROUTED,
    gguf="qwen3moe",
)
