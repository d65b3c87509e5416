"""OLMo 2 and 3: norms only after attention and feed-forward network, and over all queries and all keys together.

Source: OLMo Team 2024, arXiv 2501.00656. OLMo 3 has windows, in which YaRN does not stretch the rotation.
"""

from __future__ import annotations

from dataclasses import replace

from glassformer.checkpoints.families.rotation import Rope
from glassformer.checkpoints.families.table import NAMES, QK_NORMS, Family, bias, write_bias

_AFTER = {"attention_post_norm": "post_attention_layernorm", "ffn_post_norm": "post_feedforward_layernorm"}
_BEFORE = ("attention_norm", "ffn_norm")
OLMO2 = Family(
    name="OLMo 2",
    model_type="olmo2",
    architecture="Olmo2ForCausalLM",
    defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 2048},
    parts={"norm_place": "after", "qk_norm": "all"},
    read=bias,
    write=write_bias,
    names={ours: theirs for ours, theirs in NAMES.items() if ours not in _BEFORE} | _AFTER | QK_NORMS,
)
OLMO3 = replace(
    OLMO2,
    name="OLMo 3",
    model_type="olmo3",
    architecture="Olmo3ForCausalLM",
    rope=Rope(base=500000.0, local_base=500000.0),
    windows="types",
    window=4096,
    period=4,
    gguf="olmo2",
    gguf_read=lambda _, found: {"local_rope_base": found["rope_base"]} if found.get("window") else {},
)
