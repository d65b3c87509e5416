"""gpt-oss, in Hugging Face's layout, OpenAI's (two rows of the table) and GGUF files.

All hold the same network. In safetensors, rows of an expert's gate and up are in turns; experts in
MXFP4 are two tensors of bytes, ``[expert, row, group, 16]`` codes and ``[expert, row, group]``
exponents. OpenAI's layout has query, key and value in one tensor, and a ``config.json`` with words
of its own.

Source: OpenAI 2025, gpt-oss model card, and ``gpt_oss/torch``; llama.cpp,
``conversion/gpt_oss.py``.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor

from glassformer.checkpoints.families.config_json import Fields
from glassformer.checkpoints.families.rotation import Rope, write_scaling
from glassformer.checkpoints.families.table import KEYS, NAMES, Family
from glassformer.checkpoints.families.tensor_names import (
    GGUF_NAMES,
    IN_TURNS,
    IN_TURNS_OUT_LAST,
    OUT_LAST,
)
from glassformer.errors import InputError
from glassformer.kernels.options import Clamp
from glassformer.layers.options import Yarn
from glassformer.layers.quantized.packed_experts import interleaved
from glassformer.models import DecoderConfig


def _experts(gate_up: str, down: str, mark: str, bias: tuple[str, str]) -> dict[str, str]:
    """Return the names of experts, dense and packed; a decoder has the one or the other.

    Args:
        gate_up: Name of the matrices of gate and up.
        down: Name of the matrices of down.
        mark: Character between a name and ``blocks`` or ``scales``.
        bias: Names of the biases of gate and up, and of down.
    """
    gate_up_bias, down_bias = bias
    return {
        "ffn.gate": gate_up,
        "ffn.up": gate_up,
        "ffn.down": down,
        "ffn.gate_bias": gate_up_bias,
        "ffn.up_bias": gate_up_bias,
        "ffn.gate_up_bias": gate_up_bias,
        "ffn.down_bias": down_bias,
        "ffn.gate_up_blocks": f"{gate_up}{mark}blocks",
        "ffn.gate_up_scales": f"{gate_up}{mark}scales",
        "ffn.down_blocks": f"{down}{mark}blocks",
        "ffn.down_scales": f"{down}{mark}scales",
    }


_GATE_UP = "mlp.experts.gate_up_proj"
_DOWN = "mlp.experts.down_proj"
_NAMES = {module: name for module, name in NAMES.items() if not module.startswith("ffn.")}
_NAMES |= {"attention.sinks": "self_attn.sinks", "ffn.router.score": "mlp.router"}
_NAMES |= _experts(_GATE_UP, _DOWN, "_", (f"{_GATE_UP}_bias", f"{_DOWN}_bias"))
_OPENAI_NAMES = {
    "embedding": "embedding",
    "attention_norm.weight": "attn.norm.scale",
    **dict.fromkeys(("attention.query", "attention.key", "attention.value"), "attn.qkv"),
    "attention.sinks": "attn.sinks",
    "attention.output": "attn.out",
    "ffn_norm.weight": "mlp.norm.scale",
    "ffn.router.score": "mlp.gate",
    **_experts("mlp.mlp1_weight", "mlp.mlp2_weight", ".", ("mlp.mlp1_bias", "mlp.mlp2_bias")),
    "final_norm.weight": "norm.scale",
    "output": "unembedding",
}


def _read_as(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the content with one description of the rotation, as transformers chooses it.

    A ``rope_scaling`` takes precedence unless it is empty. Without any, it is the released model's.
    """
    if content.get("rope_scaling"):
        return {name: value for name, value in content.items() if name != "rope_parameters"}
    if content.get("rope_parameters") is None:
        return {**content, "rope_scaling": write_scaling(Yarn())}
    return content


def _read(file: Fields, fields: dict[str, Any]) -> dict[str, Any]:
    if (packing := file.part("quantization_config")) is not None:
        packing.only("quant_method", "mxfp4")
    for name in ("head_dim", "num_key_value_heads"):
        file.whole(name, 64)  # not null, which other families take for a default
    clamp = Clamp(file.number("swiglu_alpha", 1.702), file.number("swiglu_limit", 7.0))
    return {"attention_bias": file.flag("attention_bias", True), "clamp": clamp}


def _write(config: DecoderConfig) -> dict[str, Any]:
    clamp = config.clamp or Clamp()
    yarn = config.rope_scaling
    original = config.max_seq_len
    if isinstance(yarn, Yarn):
        original = yarn.original_max_seq_len
    written = {
        "attention_bias": config.attention_bias,
        "experts_per_token": config.top_k,
        "initial_context_length": original,
        "rope_scaling": write_scaling(yarn) or {"rope_type": "default"},
        "swiglu_alpha": clamp.alpha,
        "swiglu_limit": clamp.limit,
    }
    if config.expert_format == "mxfp4":
        dense_modules = [
            "model.layers.*.self_attn",
            "model.layers.*.mlp.router",
            "model.embed_tokens",
            "lm_head",
        ]
        written["quantization_config"] = {
            "quant_method": "mxfp4",
            "modules_to_not_convert": dense_modules,
        }
    return written


# Fields of OpenAI's configuration that Hugging Face's calls the same, and others.
_SAME = (
    "num_hidden_layers",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "head_dim",
    "rope_theta",
    "num_attention_heads",
    "num_key_value_heads",
    "swiglu_limit",
    "sliding_window",
)
_OTHERS = {"num_experts": "num_local_experts", "experts_per_token": "num_experts_per_tok"}
_STRETCH = (
    "rope_scaling_factor",
    "initial_context_length",
    "rope_ntk_beta",
    "rope_ntk_alpha",
)


def _from_openai(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return OpenAI's configuration in Hugging Face's words; refuse other fields as OpenAI does."""
    file = Fields(content)
    factor = file.number("rope_scaling_factor", 32.0)
    original = file.whole("initial_context_length", 4096)
    yarn = {
        "factor": factor,
        "original_max_position_embeddings": original,
        "truncate": False,
        "rope_type": "yarn",
        "beta_fast": file.number("rope_ntk_beta", 32.0),
        "beta_slow": file.number("rope_ntk_alpha", 1.0),
    }
    positions: dict[str, Any] = {
        "max_position_embeddings": original,
        "rope_scaling": {"rope_type": "default"},
    }
    if factor > 1:
        positions["max_position_embeddings"] = math.floor(original * factor)
        positions["rope_scaling"] = yarn
    window = file.whole("sliding_window", 128) or None
    unknown = [name for name in content if name not in (*_SAME, *_OTHERS, *_STRETCH)]
    if unknown:
        raise InputError(
            got=f"{', '.join(unknown)}",
            expected="fields of OpenAI's configuration",
            fix="Remove them.",
        )
    translated = {name: content[name] for name in _SAME if name in content}
    for name, hf_name in _OTHERS.items():
        if name in content:
            translated[hf_name] = content[name]
    return translated | positions | {"sliding_window": window}


def _to_openai(written: dict[str, Any]) -> dict[str, Any]:
    """Return Hugging Face's configuration in OpenAI's words."""
    translated = {name: written[name] for name in _SAME}
    translated |= {name: written[hf_name] for name, hf_name in _OTHERS.items()}
    if "sliding_attention" not in written["layer_types"]:
        translated["sliding_window"] = 0
    scaling = written["rope_scaling"]
    return translated | {
        "initial_context_length": written["initial_context_length"],
        "rope_scaling_factor": scaling.get("factor", 1.0),
        "rope_ntk_alpha": scaling.get("beta_slow", 1.0),
        "rope_ntk_beta": scaling.get("beta_fast", 32.0),
    }


_BIASES = {f"ffn.{part}_bias": f"ffn_{part}_exps.bias" for part in ("gate", "up", "down")}


def _read_gguf(keys: Mapping[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Return YaRN with borders that are not rounded, for which GGUF has no key."""
    scaling = fields.get("rope_scaling")
    if isinstance(scaling, Yarn):
        return {"rope_scaling": replace(scaling, truncate=False)}
    return {}


GPT_OSS = Family(
    name="gpt-oss",
    model_type="gpt_oss",
    architecture="GptOssForCausalLM",
    keys=KEYS | {"num_experts": "num_local_experts", "top_k": "num_experts_per_tok"},
    aliases={"num_experts": "num_local_experts", "experts_per_token": "num_experts_per_tok"},
    defaults={
        "num_hidden_layers": 36,
        "vocab_size": 201088,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
    },
    ignored=("initial_context_length",),
    parts={"sinks": True, "attention_bias": True, "ff_bias": True, "clamp": Clamp()},
    rope=Rope(base=150000.0, kinds=("default", "yarn")),
    windows="types",
    window=128,
    period=2,
    read=_read,
    write=_write,
    read_as=_read_as,
    names=_NAMES,
    forms={
        "mlp.experts.gate_up_proj": IN_TURNS_OUT_LAST,
        "mlp.experts.gate_up_proj_bias": IN_TURNS_OUT_LAST,
        "ffn.down": OUT_LAST,
    },
    gguf="gpt-oss",
    # Its post_attention_norm is the norm before the experts.
    gguf_names=GGUF_NAMES
    | _BIASES
    | {"attention.sinks": "attn_sinks.weight", "ffn_norm": "post_attention_norm"},
    gguf_read=_read_gguf,
)
OPENAI = replace(
    GPT_OSS,
    model_type="openai",
    layout="OpenAI",
    read_as=_from_openai,
    write_as=_to_openai,
    names=_OPENAI_NAMES,
    prefix="block.{}.",
    base="",
    forms={"mlp.mlp1_weight": IN_TURNS, "mlp.mlp1_bias": IN_TURNS},
    gguf=None,
)


def packed_experts(
    blocks: Mapping[str, UInt8[Tensor, "expert row bytes"]],
) -> dict[str, UInt8[Tensor, "..."]]:
    """Return the tensors of a packed mixture from GGUF's blocks of gate and up, or of down.

    A block is its exponent, and 16 bytes of a weight of the first half and one of the second. In a
    packed mixture a byte has two neighbours, and rows of gate and up are in turns.
    """
    codes = {name: _neighbours(part) for name, part in blocks.items()}
    scales = {
        name: part.unflatten(-1, (-1, 17))[..., 0].contiguous() for name, part in blocks.items()
    }
    packed = {}
    if "gate" in blocks:
        packed["gate_up_blocks"] = interleaved(codes["gate"], codes["up"])
        packed["gate_up_scales"] = interleaved(scales["gate"], scales["up"])
    if "down" in blocks:
        packed["down_blocks"] = codes["down"]
        packed["down_scales"] = scales["down"]
    return packed


def _neighbours(blocks: Tensor) -> Tensor:
    """Return the codes of GGUF's blocks, two neighbours in a byte."""
    halves = blocks.unflatten(-1, (-1, 17))[..., 1:]
    codes = torch.cat([halves & 15, halves >> 4], dim=-1)
    return codes[..., 0::2] | codes[..., 1::2] << 4
