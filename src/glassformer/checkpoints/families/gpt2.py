"""GPT-2: LayerNorm, learned positions, packed projections stored as [in, out].

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".
"""

from __future__ import annotations

from glassformer.checkpoints.families.table import Family
from glassformer.checkpoints.families.tensor_names import TRANSPOSED

_KEYS = {
    **{"vocab_size": "vocab_size", "num_layers": "n_layer", "hidden_dim": "n_embd", "num_heads": "n_head"},
    **{"ff_dim": "n_inner", "max_seq_len": "n_positions", "norm_eps": "layer_norm_epsilon", "dropout": "attn_pdrop"},
    "tied_output": "tie_word_embeddings",
}
_PARTS = {"norm": "layer", "attention_bias": True, "ff_bias": True, "activation": "gelu_tanh", "gated": False}
_NAMES = {
    **{"embedding": "transformer.wte", "positions": "transformer.wpe", "attention_norm": "ln_1", "ffn_norm": "ln_2"},
    **dict.fromkeys(("attention.query", "attention.key", "attention.value"), "attn.c_attn"),
    **{"attention.output": "attn.c_proj", "ffn.up": "mlp.c_fc", "ffn.down": "mlp.c_proj"},
    **{"final_norm": "transformer.ln_f", "output": "lm_head"},
}
GPT2 = Family(
    name="GPT-2",
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    keys=_KEYS,
    defaults={"n_positions": 1024, "layer_norm_epsilon": 1e-5, "attn_pdrop": 0.1, "n_inner": None},
    tied=True,
    fixed={"activation_function": "gelu_new", "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False},
    parts=_PARTS | {"learned_positions": True},
    rope=None,
    read=lambda file, found: {"ff_dim": found["ff_dim"] or 4 * found["hidden_dim"]},
    names=_NAMES,
    prefix="transformer.h.{}.",
    base="transformer.",
    forms=dict.fromkeys(("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"), TRANSPOSED),
    gguf="gpt2",
)
