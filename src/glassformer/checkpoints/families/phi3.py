"""Phi-3 and Phi-4-mini: packed projections, rotation of a part of a head, LongRoPE.

Source: Abdin et al. 2024, arXiv 2404.14219; Ding et al. 2024, arXiv 2402.13753 (LongRoPE). llama.cpp ignores the window
that GGUF files of Phi-3 hold; transformers and this do not.
"""

from __future__ import annotations

from glassformer.checkpoints.families.gguf_names import GGUF_NAMES
from glassformer.checkpoints.families.rotation import Rope
from glassformer.checkpoints.families.table import NAMES, Family

_PACKED = dict.fromkeys(("attention.query", "attention.key", "attention.value"), "self_attn.qkv_proj") | dict.fromkeys(
    ("ffn.gate", "ffn.up"), "mlp.gate_up_proj"
)
PHI3 = Family(
    name="Phi-3",
    model_type="phi3",
    architecture="Phi3ForCausalLM",
    defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 4096},
    rope=Rope(fraction=1.0, kinds=("default", "longrope"), aliases=(("su", "longrope"), ("yarn", "longrope"))),
    windows="all",
    names=NAMES | _PACKED,
    gguf="phi3",
    gguf_names=GGUF_NAMES | {"ffn.gate": "ffn_up", "ffn.up": "ffn_up"},
)
