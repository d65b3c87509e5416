"""Gemma 3's text models (arXiv 2503.19786): norms of queries and keys, and another rotation in windowed layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from glassformer.checkpoints.families.config_json import Fields
from glassformer.checkpoints.families.gemma import GEMMA_NAMES, NORMS, PARTS, gguf_gemma, read_gemma
from glassformer.checkpoints.families.gemma2 import GEMMA2
from glassformer.checkpoints.families.rotation import Rope
from glassformer.checkpoints.families.table import QK_NORMS
from glassformer.checkpoints.families.tensor_names import SHIFTED


def _read(file: Fields, found: dict[str, Any]) -> dict[str, Any]:
    for pattern in ("sliding_window_pattern", "_sliding_window_pattern"):
        if "layer_types" not in file.content:
            file.only(pattern, 6)
        file.get(pattern)
    return read_gemma(file, found, {})


GEMMA3 = replace(
    GEMMA2,
    name="Gemma 3",
    model_type="gemma3_text",
    architecture="Gemma3ForCausalLM",
    defaults=dict(GEMMA2.defaults) | {"max_position_embeddings": 131072},
    parts=PARTS | {"qk_norm": "head"},
    rope=Rope(base=1e6, local_base=10000.0, local_base_key="rope_local_base_freq"),
    period=6,
    read=_read,
    names=GEMMA_NAMES | QK_NORMS,
    forms=dict.fromkeys((*NORMS, *QK_NORMS), SHIFTED),
    gguf="gemma3",
    gguf_read=lambda _, found: gguf_gemma(found, largest=62),
)
