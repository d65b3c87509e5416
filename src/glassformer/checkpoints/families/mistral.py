"""Mistral.

Source: Jiang et al. 2023, arXiv 2310.06825. GGUF files of it have the architecture "llama" and do not hold the window.
"""

from __future__ import annotations

from glassformer.checkpoints.families.table import Family

MISTRAL = Family(
    name="Mistral",
    model_type="mistral",
    architecture="MistralForCausalLM",
    defaults={"num_key_value_heads": 8, "rms_norm_eps": 1e-6, "max_position_embeddings": 131072},
    windows="all",
    window=4096,
)
