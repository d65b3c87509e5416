"""Names of tensors in GGUF files, which are the same for all families."""

from __future__ import annotations

GGUF_PREFIX = "blk.{}."
GGUF_NAMES = {
    "embedding": "token_embd",
    "positions": "position_embd",
    "embedding_norm": "token_embd_norm",
    "attention_norm": "attn_norm",
    "attention.query": "attn_q",
    "attention.key": "attn_k",
    "attention.value": "attn_v",
    "attention.query_norm": "attn_q_norm",
    "attention.key_norm": "attn_k_norm",
    "attention.output": "attn_output",
    "attention_post_norm": "post_attention_norm",
    "ffn_norm": "ffn_norm",
    "ffn.router.score": "ffn_gate_inp",
    "ffn.gate": "ffn_gate",
    "ffn.up": "ffn_up",
    "ffn.down": "ffn_down",
    "ffn_post_norm": "post_ffw_norm",
    "final_norm": "output_norm",
    "output": "output",
}
"""Modules of a decoder and GGUF's names; those of a layer follow ``blk.N.``."""
EXPERTS = {"ffn.gate": "ffn_gate_exps.weight", "ffn.up": "ffn_up_exps.weight", "ffn.down": "ffn_down_exps.weight"}
"""Instead, for layers with experts: one tensor for all of them."""
PACKED = (
    {"attention.query": "attn_qkv", "attention.key": "attn_qkv", "attention.value": "attn_qkv"},
    {"ffn.gate": "ffn_gate_up_exps.weight", "ffn.up": "ffn_gate_up_exps.weight"},
)
"""Instead, where the file has a tensor of this name."""
