"""Gemma 2: norms on both sides of attention and feed-forward network, caps on scores and logits, windows in turns.

Source: Gemma Team 2024, arXiv 2408.00118.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glassformer.checkpoints.families.config_json import Fields
from glassformer.checkpoints.families.table import NAMES, Family
from glassformer.checkpoints.families.tensor_names import SHIFTED
from glassformer.models import DecoderConfig

PARTS = {"norm_place": "both", "activation": "gelu_tanh"}
GEMMA_NAMES = NAMES | {
    "attention_post_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_post_norm": "post_feedforward_layernorm",
}
NORMS = ("attention_norm", "attention_post_norm", "ffn_norm", "ffn_post_norm", "final_norm")
CAPS = {"attention_cap": "attn_logit_softcapping", "logit_cap": "final_logit_softcapping"}
DEFAULT_CAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}


def read_gemma(file: Fields, found: dict[str, Any], caps: dict[str, float] = DEFAULT_CAPS) -> dict[str, Any]:
    """Caps, biases, and the scales of scores and of the embedding."""
    off = [ours for ours, theirs in CAPS.items() if file.get(theirs, caps.get(theirs)) is None]
    cap = {ours: None if ours in off else file.number(theirs, caps.get(theirs)) for ours, theirs in CAPS.items()}
    file.only("hidden_act", "gelu_pytorch_tanh")
    scale = (file.whole("query_pre_attn_scalar", 256) or 1) ** -0.5
    bias = file.flag("attention_bias", False)
    return cap | {"attention_scale": scale, "attention_bias": bias, "embedding_scale": found["hidden_dim"] ** 0.5}


def write_gemma(config: DecoderConfig) -> dict[str, Any]:
    """The opposite of :func:`read_gemma`."""
    scalar = round((config.attention_scale or config.head_dim**-0.5) ** -2)
    caps = {theirs: getattr(config, ours) for ours, theirs in CAPS.items()}
    return caps | {"query_pre_attn_scalar": scalar, "attention_bias": config.attention_bias}


def gguf_gemma(found: dict[str, Any], largest: int) -> dict[str, Any]:
    """The scales, for which GGUF has no key: the largest model's, which its number of layers tells, is another."""
    width, heads = found["hidden_dim"], found["num_heads"]
    # llama.cpp divides whole numbers.
    scale = (width // heads) ** -0.5 if found["num_layers"] == largest else None
    return {"embedding_scale": width**0.5, "attention_scale": scale}


def _gguf_gemma2(metadata: Mapping[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    caps = {ours: DEFAULT_CAPS[theirs] for ours, theirs in CAPS.items() if theirs not in metadata}
    return caps | gguf_gemma(found, 46)


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
    read=read_gemma,
    write=write_gemma,
    names=GEMMA_NAMES,
    forms=dict.fromkeys(NORMS, SHIFTED),
    gguf="gemma2",
    gguf_read=_gguf_gemma2,
)
