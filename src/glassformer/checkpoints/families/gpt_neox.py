"""GPT-NeoX and Pythia: attention and feed-forward network side by side, rotation of a quarter of each head.

Source: Black et al. 2022, arXiv 2204.06745; Biderman et al. 2023, arXiv 2304.01373. The GELU is exact, as in
transformers; llama.cpp approximates it by tanh.
"""

from __future__ import annotations

from glassformer.checkpoints.families.rotation import Rope
from glassformer.checkpoints.families.table import KEYS, Family
from glassformer.checkpoints.families.tensor_names import HEAD_BY_HEAD

_PACKED = "attention.query_key_value"
_NAMES = {
    **{"embedding": "gpt_neox.embed_in", "attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"},
    **dict.fromkeys(("attention.query", "attention.key", "attention.value"), _PACKED),
    **{"attention.output": "attention.dense", "ffn.up": "mlp.dense_h_to_4h", "ffn.down": "mlp.dense_4h_to_h"},
    **{"final_norm": "gpt_neox.final_layer_norm", "output": "embed_out"},
}
GPT_NEOX = Family(
    name="GPT-NeoX",
    model_type="gpt_neox",
    architecture="GPTNeoXForCausalLM",
    keys={k: v for k, v in KEYS.items() if k not in ("num_kv_heads", "head_dim")} | {"norm_eps": "layer_norm_eps"},
    defaults={"layer_norm_eps": 1e-5, "max_position_embeddings": 2048},
    fixed={"hidden_act": "gelu"},
    parts={"norm": "layer", "ff_bias": True, "activation": "gelu", "gated": False},
    rope=Rope(base_key="rotary_emb_base", fraction=0.25, fraction_key="rotary_pct"),
    read=lambda file, found: {
        "parallel": file.flag("use_parallel_residual", True),
        "attention_bias": file.flag("attention_bias", True),
    },
    write=lambda config: {"use_parallel_residual": config.parallel, "attention_bias": config.attention_bias},
    names=_NAMES,
    prefix="gpt_neox.layers.{}.",
    forms={_PACKED: HEAD_BY_HEAD},
    gguf="gptneox",
)
