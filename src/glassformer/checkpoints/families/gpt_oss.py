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
    """Names of experts, dense and packed; a decoder has the one or the other."""
    names = {"gate": gate_up, "up": gate_up, "down": down, "gate_bias": bias[0], "up_bias": bias[0]}
    names |= {"gate_up_bias": bias[0], "down_bias": bias[1]}
    packed = {"gate_up": gate_up, "down": down}
    names |= {
        f"{ours}_{part}": f"{each}{mark}{part}"
        for ours, each in packed.items()
        for part in ("blocks", "scales")
    }
    return {f"ffn.{ours}": theirs for ours, theirs in names.items()}


_THEIRS = "mlp.experts.gate_up_proj", "mlp.experts.down_proj"
_NAMES = {ours: theirs for ours, theirs in NAMES.items() if not ours.startswith("ffn.")}
_NAMES |= {"attention.sinks": "self_attn.sinks", "ffn.router.score": "mlp.router"}
_NAMES |= _experts(*_THEIRS, "_", (f"{_THEIRS[0]}_bias", f"{_THEIRS[1]}_bias"))
_OPENAIS = {
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
    """As transformers: a ``rope_scaling`` takes precedence unless it is empty; with neither, the
    released model's.
    """
    if content.get("rope_scaling"):
        return {name: value for name, value in content.items() if name != "rope_parameters"}
    if content.get("rope_parameters") is None:
        return {**content, "rope_scaling": write_scaling(Yarn())}
    return content


def _read(file: Fields, found: dict[str, Any]) -> dict[str, Any]:
    if (packing := file.part("quantization_config")) is not None:
        packing.only("quant_method", "mxfp4")
    for name in ("head_dim", "num_key_value_heads"):
        file.whole(name, 64)  # not null, which other families take for a default
    clamp = Clamp(file.number("swiglu_alpha", 1.702), file.number("swiglu_limit", 7.0))
    return {"attention_bias": file.flag("attention_bias", True), "clamp": clamp}


def _write(config: DecoderConfig) -> dict[str, Any]:
    clamp = config.clamp or Clamp()
    yarn = config.rope_scaling
    written = {
        "attention_bias": config.attention_bias,
        "experts_per_token": config.top_k,
        "initial_context_length": yarn.original_max_seq_len
        if isinstance(yarn, Yarn)
        else config.max_seq_len,
        "rope_scaling": write_scaling(yarn) or {"rope_type": "default"},
        "swiglu_alpha": clamp.alpha,
        "swiglu_limit": clamp.limit,
    }
    if config.expert_format == "mxfp4":
        kept = [
            "model.layers.*.self_attn",
            "model.layers.*.mlp.router",
            "model.embed_tokens",
            "lm_head",
        ]
        written["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": kept}
    return written


_SAME = (
    *(
        "num_hidden_layers",
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "head_dim",
        "rope_theta",
    ),
    *("num_attention_heads", "num_key_value_heads", "swiglu_limit", "sliding_window"),
)
_OTHERS = {"num_experts": "num_local_experts", "experts_per_token": "num_experts_per_tok"}


def _from_openai(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Their own words for the stretch of positions; their program refuses other fields."""
    file = Fields(content)
    factor = file.number("rope_scaling_factor", 32.0)
    original = file.whole("initial_context_length", 4096)
    yarn = {
        "factor": factor,
        "original_max_position_embeddings": original,
        "truncate": False,
        "rope_type": "yarn",
    }
    yarn |= {
        "beta_fast": file.number("rope_ntk_beta", 32.0),
        "beta_slow": file.number("rope_ntk_alpha", 1.0),
    }
    read = {
        "max_position_embeddings": math.floor(original * factor) if factor > 1 else original,
        "rope_scaling": yarn if factor > 1 else {"rope_type": "default"},
        "sliding_window": file.whole("sliding_window", 128) or None,
    }
    known = (
        *_SAME,
        *_OTHERS,
        "rope_scaling_factor",
        "initial_context_length",
        "rope_ntk_beta",
        "rope_ntk_alpha",
    )
    unknown = [name for name in content if name not in known]
    if unknown:
        raise InputError(
            got=f"{', '.join(unknown)}",
            expected="fields of OpenAI's configuration",
            fix="Remove them.",
        )
    kept = {name: content[name] for name in _SAME if name in content}
    return (
        kept | {theirs: content[ours] for ours, theirs in _OTHERS.items() if ours in content} | read
    )


def _to_openai(written: dict[str, Any]) -> dict[str, Any]:
    scaling = written["rope_scaling"]
    windows = "sliding_attention" in written["layer_types"]
    return {name: written[name] for name in _SAME} | {
        **{ours: written[theirs] for ours, theirs in _OTHERS.items()},
        "sliding_window": written["sliding_window"] if windows else 0,
        "initial_context_length": written["initial_context_length"],
        "rope_scaling_factor": scaling.get("factor", 1.0),
        "rope_ntk_alpha": scaling.get("beta_slow", 1.0),
        "rope_ntk_beta": scaling.get("beta_fast", 32.0),
    }


_BIASES = {f"ffn.{part}_bias": f"ffn_{part}_exps.bias" for part in ("gate", "up", "down")}


def _read_gguf(keys: Mapping[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """No key says that the borders of YaRN are not rounded."""
    scaling = found.get("rope_scaling")
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
        **{
            "num_hidden_layers": 36,
            "vocab_size": 201088,
            "hidden_size": 2880,
            "intermediate_size": 2880,
        },
        **{
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "num_local_experts": 128,
        },
        **{"num_experts_per_tok": 4, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5},
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
    names=_OPENAIS,
    prefix="block.{}.",
    base="",
    forms={"mlp.mlp1_weight": IN_TURNS, "mlp.mlp1_bias": IN_TURNS},
    gguf=None,
)


def packed_experts(
    blocks: Mapping[str, UInt8[Tensor, "expert row bytes"]],
) -> dict[str, UInt8[Tensor, "..."]]:
    """Return what a mixture packed in MXFP4 holds, from GGUF's blocks of ``gate`` and ``up``, or of
    ``down``.

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
