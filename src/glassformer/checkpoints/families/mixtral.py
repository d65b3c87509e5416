"""Mixtral (Jiang et al. 2024, arXiv 2401.04088). Its ``layer_types`` are ignored, as by transformers.

Files have a tensor for each expert and matrix; a model of transformers 5 in memory has one for all experts.
"""

from __future__ import annotations

from glassformer.checkpoints.families.rotation import Rope
from glassformer.checkpoints.families.table import KEYS, NAMES, Family

_MATRICES = {"gate": "w1", "up": "w3", "down": "w2"}
_EXPERTS = {f"ffn.{ours}": f"block_sparse_moe.experts.{{expert}}.{name}.weight" for ours, name in _MATRICES.items()}
MIXTRAL = Family(
    name="Mixtral",
    model_type="mixtral",
    architecture="MixtralForCausalLM",
    keys=KEYS | {"num_experts": "num_local_experts", "top_k": "num_experts_per_tok"},
    aliases={"num_experts": "num_local_experts"},
    defaults={
        **{"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "max_position_embeddings": 131072},
        **{"num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000, "num_hidden_layers": 32},
        **{"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32},
    },
    rope=Rope(base=1e6, kinds=("default",)),
    windows="all",
    ignored=("layer_types",),
    names=NAMES | {"ffn.router.score": "block_sparse_moe.gate"} | _EXPERTS,
    in_memory={"ffn.router.score": "mlp.gate"}
    | dict.fromkeys(("ffn.gate", "ffn.up"), "mlp.experts.gate_up_proj")
    | {"ffn.down": "mlp.experts.down_proj"},
)
