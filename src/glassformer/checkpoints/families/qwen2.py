"""Qwen2 and Qwen2.5: biases on queries, keys and values.

Source: Yang et al. 2024, arXiv 2407.10671.
"""

from __future__ import annotations

from glassformer.checkpoints.families.table import Family

QWEN2 = Family(
    name="Qwen2",
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    defaults={"num_key_value_heads": 32, "rms_norm_eps": 1e-6, "max_position_embeddings": 32768},
    parts={"attention_bias": "qkv"},
    windows="types",
    window=4096,
    window_flag=True,
    gguf="qwen2",
)
