"""What Gemma 2 and 3 share: norms on both sides of each part, caps, and the scales of scores and of the embedding."""

from __future__ import annotations

from typing import Any

from glassformer.checkpoints.families.config_json import Fields
from glassformer.checkpoints.families.table import NAMES, bias, write_bias
from glassformer.models import DecoderConfig

PARTS = {"norm_place": "both", "activation": "gelu_tanh"}
GEMMA_NAMES = NAMES | {
    "attention_post_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_post_norm": "post_feedforward_layernorm",
}
NORMS = ("attention_norm", "attention_post_norm", "ffn_norm", "ffn_post_norm", "final_norm")
CAPS = {"attention_cap": "attn_logit_softcapping", "logit_cap": "final_logit_softcapping"}


def read_gemma(file: Fields, found: dict[str, Any], caps: dict[str, float]) -> dict[str, Any]:
    """The rest of the fields; ``caps`` are those of a file that does not name them."""
    off = [ours for ours, theirs in CAPS.items() if file.get(theirs, caps.get(theirs)) is None]
    cap = {ours: None if ours in off else file.number(theirs, caps.get(theirs)) for ours, theirs in CAPS.items()}
    file.only("hidden_act", "gelu_pytorch_tanh")
    scale = (file.whole("query_pre_attn_scalar", 256) or 1) ** -0.5
    return cap | bias(file, found) | {"attention_scale": scale, "embedding_scale": found["hidden_dim"] ** 0.5}


def write_gemma(config: DecoderConfig) -> dict[str, Any]:
    """The opposite of :func:`read_gemma`."""
    scalar = round((config.attention_scale or config.head_dim**-0.5) ** -2)
    return (
        {theirs: getattr(config, ours) for ours, theirs in CAPS.items()}
        | write_bias(config)
        | {"query_pre_attn_scalar": scalar}
    )


def gguf_gemma(found: dict[str, Any], largest: int) -> dict[str, Any]:
    """The scales, for which GGUF has no key: that of the model with ``largest`` layers is by width, in
    whole numbers as in llama.cpp."""
    width, heads = found["hidden_dim"], found["num_heads"]
    return {
        "embedding_scale": width**0.5,
        "attention_scale": (width // heads) ** -0.5 if found["num_layers"] == largest else None,
    }
