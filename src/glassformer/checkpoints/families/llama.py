"""Llama 2 and 3, SmolLM2, and others of the architecture.

Source: Touvron et al. 2023, arXiv 2307.09288; Grattafiori et al. 2024, arXiv 2407.21783.
"""

from __future__ import annotations

from typing import Any

from glassformer.checkpoints.families.config_json import Fields
from glassformer.checkpoints.families.table import Family
from glassformer.checkpoints.families.tensor_names import NEIGHBOURS
from glassformer.models import DecoderConfig


def read_biases(file: Fields, found: dict[str, Any]) -> dict[str, Any]:
    """``attention_bias`` and ``mlp_bias``."""
    file.only("rope_interleaved", False)
    return {"attention_bias": file.flag("attention_bias", False), "ff_bias": file.flag("mlp_bias", False)}


def write_biases(config: DecoderConfig) -> dict[str, Any]:
    """The opposite of :func:`read_biases`."""
    return {"attention_bias": config.attention_bias, "mlp_bias": config.ff_bias}


LLAMA_ROWS = {"attention.query": NEIGHBOURS, "attention.key": NEIGHBOURS}
"""The order of rows in GGUF files of the architecture, of weights and biases."""
LLAMA = Family(
    name="Llama",
    model_type="llama",
    architecture="LlamaForCausalLM",
    defaults={"rms_norm_eps": 1e-6, "max_position_embeddings": 2048},
    read=read_biases,
    write=write_biases,
    gguf="llama",
    gguf_forms=LLAMA_ROWS,
)
