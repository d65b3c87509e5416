"""Gemma 2: norms on both sides of attention and feed-forward network, caps on scores and logits, windows in turns.

Source: Gemma Team 2024, arXiv 2408.00118.
"""

from __future__ import annotations

from glassformer.checkpoints.families.gemma import CAPS, GEMMA_NAMES, NORMS, PARTS, gguf_gemma, read_gemma, write_gemma
from glassformer.checkpoints.families.table import Family
from glassformer.checkpoints.families.tensor_names import SHIFTED

_CAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
GEMMA2 = Family(
    name="Gemma 2",
    model_type="gemma2",
    architecture="Gemma2ForCausalLM",
    defaults={"num_key_value_heads": 4, "head_dim": 256, "rms_norm_eps": 1e-6, "max_position_embeddings": 8192},
    tied=True,
    fixed={"hidden_activation": "gelu_pytorch_tanh"},
    parts=PARTS,
    windows="types",
    window=4096,
    period=2,
    read=lambda file, found: read_gemma(file, found, _CAPS),
    write=write_gemma,
    names=GEMMA_NAMES,
    forms=dict.fromkeys(NORMS, SHIFTED),
    gguf="gemma2",
    # llama.cpp has the same defaults.
    gguf_read=lambda keys, found: (
        {ours: _CAPS[theirs] for ours, theirs in CAPS.items() if theirs not in keys} | gguf_gemma(found, largest=46)
    ),
)
