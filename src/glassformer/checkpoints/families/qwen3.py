"""Qwen3: a norm on every head of queries and keys.

Source: Yang et al. 2025, arXiv 2505.09388.
"""

from __future__ import annotations

from dataclasses import replace

from glassformer.checkpoints.families.qwen2 import QWEN2
from glassformer.checkpoints.families.table import NAMES, QK_NORMS, bias, write_bias

QWEN3 = replace(
    QWEN2,
    name="Qwen3",
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    defaults=dict(QWEN2.defaults) | {"head_dim": 128},
    parts={"qk_norm": "head"},
    read=bias,
    write=write_bias,
    names=NAMES | QK_NORMS,
    gguf="qwen3",
)
