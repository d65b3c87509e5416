"""Gemma 2 and 3: norms on both sides of attention and feed-forward network, caps, windows.

Scores and logits are capped. Gemma 3's text models have norms of queries and keys, and another
rotation in windowed layers.

Source: Gemma Team 2024, arXiv 2408.00118; 2025, arXiv 2503.19786.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from glassformer.checkpoints.families.config_json import Fields
from glassformer.checkpoints.families.rotation import Rope
from glassformer.checkpoints.families.table import CAPS, NAMES, QK_NORMS, Family, bias, write_bias
from glassformer.checkpoints.families.tensor_names import SHIFTED
from glassformer.models import DecoderConfig

_PARTS = {"norm_place": "both", "activation": "gelu_tanh"}
_NAMES = NAMES | {
    "attention_post_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_post_norm": "post_feedforward_layernorm",
}
_NORMS = ("attention_norm", "attention_post_norm", "ffn_norm", "ffn_post_norm", "final_norm")
# Caps of files that do not name them, as in llama.cpp.
_GEMMA2_CAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}


def _read(file: Fields, fields: dict[str, Any], caps: dict[str, float]) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    for name, key in CAPS.items():
        parts[name] = None
        if file.get(key, caps.get(key)) is not None:
            parts[name] = file.number(key, caps.get(key))
    file.only("hidden_act", "gelu_pytorch_tanh")
    parts["attention_scale"] = (file.whole("query_pre_attn_scalar", 256) or 1) ** -0.5
    parts["embedding_scale"] = fields["hidden_dim"] ** 0.5
    return parts | bias(file, fields)


def _write(config: DecoderConfig) -> dict[str, Any]:
    caps = {key: getattr(config, name) for name, key in CAPS.items()}
    scalar = round((config.attention_scale or config.head_dim**-0.5) ** -2)
    return caps | write_bias(config) | {"query_pre_attn_scalar": scalar}


def _scales(fields: dict[str, Any], largest: int) -> dict[str, Any]:
    """Return the scales, for which GGUF has no key.

    The model with ``largest`` layers scales attention by width, in whole numbers as in llama.cpp.
    """
    width = fields["hidden_dim"]
    attention_scale = None
    if fields["num_layers"] == largest:
        attention_scale = (width // fields["num_heads"]) ** -0.5
    return {"embedding_scale": width**0.5, "attention_scale": attention_scale}


GEMMA2 = Family(
    name="Gemma 2",
    model_type="gemma2",
    architecture="Gemma2ForCausalLM",
    defaults={
        "num_key_value_heads": 4,
        "head_dim": 256,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 8192,
    },
    tied=True,
    fixed={"hidden_activation": "gelu_pytorch_tanh"},
    ignored=("sliding_window_size",),  # in the released 9B, beside sliding_window
    parts=_PARTS,
    windows="types",
    window=4096,
    period=2,
    read=lambda file, fields: _read(file, fields, _GEMMA2_CAPS),
    write=_write,
    names=_NAMES,
    forms=dict.fromkeys(_NORMS, SHIFTED),
    gguf="gemma2",
    gguf_read=lambda keys, fields: (
        {name: _GEMMA2_CAPS[key] for name, key in CAPS.items() if key not in keys}
        | _scales(fields, largest=46)
    ),
)


def _read_gemma3(file: Fields, fields: dict[str, Any]) -> dict[str, Any]:
    file.only("attn_logit_softcapping", None)  # which transformers keeps and does not use
    for pattern in ("sliding_window_pattern", "_sliding_window_pattern"):
        if "layer_types" not in file.content:
            file.only(pattern, 6)
        file.get(pattern)
    return _read(file, fields, {})


def _text_of_gemma3(content: Mapping[str, Any]) -> Mapping[str, Any]:
    text = Fields(content).part("text_config")
    if text is None:
        return content
    text.only("model_type", "gemma3_text")
    return text.content


GEMMA3 = replace(
    GEMMA2,
    name="Gemma 3",
    model_type="gemma3_text",
    architecture="Gemma3ForCausalLM",
    multimodal="gemma3",
    # The released 4B, 12B and 27B leave out what is as in transformers.
    defaults=dict(GEMMA2.defaults)
    | {"max_position_embeddings": 131072, "num_attention_heads": 8, "vocab_size": 262208},
    read_as=_text_of_gemma3,
    parts=_PARTS | {"qk_norm": "head"},
    rope=Rope(base=1e6, local_base=10000.0, local_base_key="rope_local_base_freq"),
    period=6,
    read=_read_gemma3,
    names=_NAMES | QK_NORMS,
    forms=dict.fromkeys((*_NORMS, *QK_NORMS), SHIFTED),
    gguf="gemma3",
    gguf_read=lambda _, fields: _scales(fields, largest=62),
)
