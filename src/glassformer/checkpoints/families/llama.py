"""Rows of families like Llama: Mistral, Mixtral, Qwen, SmolLM3, Phi-3, OLMo and EXAONE."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from glassformer.checkpoints.families.config_json import Fields
from glassformer.checkpoints.families.rotation import Rope
from glassformer.checkpoints.families.table import KEYS, NAMES, QK_NORMS, Family, bias, write_bias
from glassformer.checkpoints.families.tensor_names import GGUF_NAMES, NEIGHBOURS
from glassformer.errors import InputError
from glassformer.models import DecoderConfig


def _biases(file: Fields, fields: dict[str, Any]) -> dict[str, Any]:
    file.only("rope_interleaved", False)
    return {
        "attention_bias": file.flag("attention_bias", False),
        "ff_bias": file.flag("mlp_bias", False),
    }


def _write_biases(config: DecoderConfig) -> dict[str, Any]:
    return {"attention_bias": config.attention_bias, "mlp_bias": config.ff_bias}


# Llama 2 and 3, SmolLM2, and others of the architecture. Source: Touvron et al. 2023, arXiv
# 2307.09288; Grattafiori et al. 2024, arXiv 2407.21783.
LLAMA = Family(
    name="Llama",
    model_type="llama",
    architecture="LlamaForCausalLM",
    defaults={"rms_norm_eps": 1e-6, "max_position_embeddings": 2048},
    read=_biases,
    write=_write_biases,
    gguf="llama",
    gguf_forms={"attention.query": NEIGHBOURS, "attention.key": NEIGHBOURS},  # biases, too
)

# GGUF files of it have the architecture "llama" and do not hold the window. Source: Jiang et al.,
# arXiv 2310.06825.
MISTRAL = Family(
    name="Mistral",
    model_type="mistral",
    architecture="MistralForCausalLM",
    defaults={"num_key_value_heads": 8, "rms_norm_eps": 1e-6, "max_position_embeddings": 131072},
    windows="all",
    window=4096,
)

# Its layer_types are ignored, as by transformers. Source: Jiang et al. 2024, arXiv 2401.04088.
_MATRICES = {"gate": "w1", "up": "w3", "down": "w2"}
_EXPERTS = {
    f"ffn.{matrix}": f"block_sparse_moe.experts.{{expert}}.{name}.weight"
    for matrix, name in _MATRICES.items()
}
MIXTRAL = Family(
    name="Mixtral",
    model_type="mixtral",
    architecture="MixtralForCausalLM",
    keys=KEYS | {"num_experts": "num_local_experts", "top_k": "num_experts_per_tok"},
    aliases={"num_experts": "num_local_experts"},
    defaults={
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131072,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "vocab_size": 32000,
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
    },
    rope=Rope(base=1e6, kinds=("default",)),
    windows="all",
    ignored=("layer_types",),
    names=NAMES | {"ffn.router.score": "block_sparse_moe.gate"} | _EXPERTS,
)

# Qwen2 and Qwen2.5. Source: Yang et al. 2024, arXiv 2407.10671.
QWEN2 = Family(
    name="Qwen2",
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    defaults={"num_key_value_heads": 32, "rms_norm_eps": 1e-6, "max_position_embeddings": 32768},
    parts={"attention_bias": "qkv"},
    windows="types",
    window=4096,
    window_flag=True,
    gguf="qwen2",
)

# Source: Yang et al. 2025, arXiv 2505.09388.
QWEN3 = replace(
    QWEN2,
    name="Qwen3",
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    defaults=dict(QWEN2.defaults) | {"head_dim": 128},
    parts={"qk_norm": "head"},
    read=bias,
    write=write_bias,
    names=NAMES | QK_NORMS,
    gguf="qwen3",
)


def _read_qwen3_moe(file: Fields, fields: dict[str, Any]) -> dict[str, Any]:
    renormalised = file.flag("norm_topk_prob", False)
    if not renormalised:
        raise InputError(
            got="norm_topk_prob = False",
            expected="True",
            fix="The decoder's routing weights add up to 1.",
        )
    for unused in ("intermediate_size", "max_window_layers"):  # no layer without experts or window
        file.get(unused)
    return bias(file, fields)


# A mixture of experts in all layers.
_ROUTED = {"ffn.router.score": "mlp.gate"} | {
    f"ffn.{name}": f"mlp.experts.{{expert}}.{name}_proj.weight" for name in ("gate", "up", "down")
}
QWEN3_MOE = replace(
    QWEN3,
    name="Qwen3 MoE",
    model_type="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    keys=KEYS
    | {
        "ff_dim": "moe_intermediate_size",
        "num_experts": "num_experts",
        "top_k": "num_experts_per_tok",
    },
    aliases={"num_local_experts": "num_experts"},
    defaults={"num_key_value_heads": 4, "rms_norm_eps": 1e-6, "max_position_embeddings": 32768},
    fixed={"hidden_act": "silu", "decoder_sparse_step": 1, "mlp_only_layers": []},
    windows="all",
    read=_read_qwen3_moe,
    write=lambda config: write_bias(config) | {"norm_topk_prob": True},
    names=dict(QWEN3.names) | _ROUTED,
    gguf="qwen3moe",
)


def _read_smollm3(file: Fields, fields: dict[str, Any]) -> dict[str, Any]:
    layers = range(fields["num_layers"])
    every = file.whole("no_rope_layer_interval", 4) or 4
    has_window = (
        file.content.get("use_sliding_window") and file.content.get("sliding_window") is not None
    )
    if has_window and file.content.get("layer_types") is None:
        raise InputError(
            got="sliding_window without layer_types",
            expected="the kind of each layer",
            fix="Add layer_types to config.json.",
        )
    rotated = file.names("no_rope_layers", len(layers), (0, 1)) or [(n + 1) % every for n in layers]
    return _biases(file, fields) | {"unrotated_layers": tuple(n for n in layers if not rotated[n])}


def _write_smollm3(config: DecoderConfig) -> dict[str, Any]:
    rotated = [int(n not in config.unrotated_layers) for n in range(config.num_layers)]
    return _write_biases(config) | {"no_rope_layers": rotated}


# Layers that do not rotate (arXiv 2501.18795), every fourth by default. Source: Hugging Face 2025.
SMOLLM3 = replace(
    LLAMA,
    name="SmolLM3",
    model_type="smollm3",
    architecture="SmolLM3ForCausalLM",
    defaults={"num_key_value_heads": 4, "rms_norm_eps": 1e-6, "max_position_embeddings": 32768},
    tied=True,
    rope=Rope(base=2e6),
    windows="types",
    window_flag=True,
    read=_read_smollm3,
    write=_write_smollm3,
    gguf="smollm3",
    gguf_read=lambda _, fields: {"unrotated_layers": tuple(range(3, fields["num_layers"], 4))},
)

# Phi-3 and Phi-4-mini. llama.cpp ignores the window that GGUF files of Phi-3 hold; transformers and
# this do not.
# Source: Abdin et al. 2024, arXiv 2404.14219; Ding et al. 2024, arXiv 2402.13753 (LongRoPE).
_PACKED = dict.fromkeys(
    ("attention.query", "attention.key", "attention.value"), "self_attn.qkv_proj"
) | dict.fromkeys(("ffn.gate", "ffn.up"), "mlp.gate_up_proj")
PHI3 = Family(
    name="Phi-3",
    model_type="phi3",
    architecture="Phi3ForCausalLM",
    defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 4096},
    rope=Rope(
        fraction=1.0,
        kinds=("default", "longrope"),
        aliases=(("su", "longrope"), ("yarn", "longrope")),
        original=4096,
    ),
    windows="all",
    ignored=("full_attn_mod", "interpolate_factor"),  # in Phi-4-mini
    names=NAMES | _PACKED,
    gguf="phi3",
    gguf_names=GGUF_NAMES | {"ffn.gate": "ffn_up", "ffn.up": "ffn_up"},
)

# OLMo 2 and 3: norms only after attention and feed-forward network, and over all queries and all
# keys together. OLMo 3 has windows, in which YaRN does not stretch the rotation. Source: OLMo Team
# 2024, arXiv 2501.00656.
_AFTER = {
    "attention_post_norm": "post_attention_layernorm",
    "ffn_post_norm": "post_feedforward_layernorm",
}
OLMO2 = Family(
    name="OLMo 2",
    model_type="olmo2",
    architecture="Olmo2ForCausalLM",
    defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 2048},
    parts={"norm_place": "after", "qk_norm": "all"},
    read=bias,
    write=write_bias,
    names={
        module: name
        for module, name in NAMES.items()
        if module not in ("attention_norm", "ffn_norm")
    }
    | _AFTER
    | QK_NORMS,
)


def _read_gguf_olmo3(keys: Mapping[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    if fields.get("window"):
        return {"local_rope_base": fields["rope_base"]}
    return {}


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
    gguf_read=_read_gguf_olmo3,
)


def _unwindowed(fields: dict[str, Any]) -> tuple[int, ...]:
    """Return the layers without a window."""
    layers = range(fields["num_layers"])
    if fields.get("window") is None:
        return tuple(layers)
    named = {"even": layers[::2], "odd": layers[1::2], "all": layers}
    windowed = frozenset(named.get(fields["windowed_layers"], fields["windowed_layers"]))
    return tuple(layer for layer in layers if layer not in windowed)


def _read_exaone4(file: Fields, fields: dict[str, Any]) -> dict[str, Any]:
    if file.content.get("layer_types") is None:
        file.only("sliding_window_pattern", 4)
    file.get("sliding_window_pattern")
    has_window = file.get("sliding_window", EXAONE4.window) is not None
    return {"unrotated_layers": _unwindowed(fields) if has_window else ()}


def _write_exaone4(config: DecoderConfig) -> dict[str, Any]:
    # With a window, even one that no layer has, transformers rotates only in layers that have it.
    if config.window is None and not config.unrotated_layers:
        return {"sliding_window": None}
    return {}


def _read_gguf_of_exaone4(keys: Mapping[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    has_window = bool(keys.get("attention.sliding_window"))
    return {"unrotated_layers": _unwindowed(fields) if has_window else ()}


# EXAONE 4: OLMo's norms, those of queries and keys of each head. A model with windows rotates only
# in the layers that have one. Source: LG AI Research 2025, arXiv 2507.11407.
EXAONE4 = replace(
    OLMO2,
    name="EXAONE 4",
    model_type="exaone4",
    architecture="Exaone4ForCausalLM",
    defaults=dict(OLMO2.defaults) | {"num_key_value_heads": 32},
    parts={"norm_place": "after", "qk_norm": "head"},
    windows="types",
    window=4096,
    period=4,
    read=_read_exaone4,
    write=_write_exaone4,
    gguf="exaone4",
    gguf_read=_read_gguf_of_exaone4,
)
