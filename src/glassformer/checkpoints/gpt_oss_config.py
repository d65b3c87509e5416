"""Both kinds of ``config.json`` of gpt-oss: read as a decoder's configuration, and written."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field

from glassformer.checkpoints.assembly import (
    HUGGING_FACE,
    SIZES,
    FileNumber,
    config_errors,
    fields_read,
    fields_written,
    known_fields,
)
from glassformer.checkpoints.gpt_oss_layouts import GptOssLayout
from glassformer.config import config
from glassformer.errors import InputError, require
from glassformer.kernels.options import Clamp
from glassformer.layers.options import Yarn
from glassformer.models import DecoderConfig

_OPENAI = SIZES | {"num_experts": "num_experts", "top_k": "experts_per_token"}
_FIX = "Download the file again."


@config
class CommonConfig:
    """The fields of both kinds, with the defaults of gpt-oss-120b; a file may leave them out."""

    num_hidden_layers: FileNumber = 36
    vocab_size: FileNumber = 201088
    hidden_size: FileNumber = 2880
    intermediate_size: FileNumber = 2880
    head_dim: FileNumber = 64
    num_attention_heads: FileNumber = 64
    num_key_value_heads: FileNumber = 8
    swiglu_limit: float = 7.0
    rope_theta: float = 150000.0


@config
class HuggingFaceConfig(CommonConfig):
    """The fields of Hugging Face's ``config.json`` that a decoder depends on."""

    num_local_experts: FileNumber = 128
    sliding_window: FileNumber | None = 128
    layer_types: list[Literal["sliding_attention", "full_attention"]] | None = None
    tie_word_embeddings: bool = False
    hidden_act: Literal["silu"] = "silu"
    max_position_embeddings: FileNumber = 131072
    rms_norm_eps: float = 1e-5
    attention_dropout: float = 0.0
    num_experts_per_tok: FileNumber = 4
    swiglu_alpha: float = 1.702
    attention_bias: bool = True
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    quantization_config: dict[str, Any] | None = None


@config
class OpenAIConfig(CommonConfig):
    """OpenAI's ``config.json``; its program refuses other fields."""

    num_experts: FileNumber = 128
    experts_per_token: FileNumber = 4
    sliding_window: FileNumber = 128
    initial_context_length: FileNumber = 4096
    rope_scaling_factor: float = 32.0
    rope_ntk_alpha: float = 1.0
    rope_ntk_beta: float = 32.0


@config
class RopeParameters:
    """Hugging Face's description of the rotation, in the words of transformers 5."""

    rope_theta: float
    rope_type: Literal["default", "yarn"]
    factor: float | None = None
    original_max_position_embeddings: Annotated[float, Field(ge=1, lt=2**40, multiple_of=1)] | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    partial_rotary_factor: Annotated[float, Field(ge=1, le=1)] = 1.0


def layout_of(config: Mapping[str, Any]) -> GptOssLayout | None:
    """The layout of gpt-oss that a ``config.json`` belongs to; None for another model."""
    if "model_type" in config:
        return "huggingface" if config["model_type"] == "gpt_oss" else None
    return "openai" if {"num_experts", "experts_per_token", "num_hidden_layers"} <= config.keys() else None


def read_gpt_oss_config(config: Mapping[str, Any], layout: GptOssLayout, file: Path) -> DecoderConfig:
    """The configuration of the decoder for the content of ``file``; what is missing has its owner's default."""
    with config_errors(file):
        return _from_huggingface(config) if layout == "huggingface" else _from_openai(config)


def write_gpt_oss_config(config: DecoderConfig, dtype: torch.dtype) -> dict[str, Any]:
    """Hugging Face's ``config.json`` of a decoder in the form of gpt-oss.

    Where no layer has a window, every second one gets a window as long as the longest text. That is the same, and is
    also right for programs that expect every second layer of gpt-oss to have one.
    """
    assert config.clamp is not None  # as in every gpt-oss
    yarn = _yarn_of(config)
    windowed = replace(config, window=1, windowed_layers="even") if config.window is None else config
    kinds = ["sliding_attention" if windowed.layer_window(n) else "full_attention" for n in range(config.num_layers)]
    written: dict[str, Any] = fields_written(config, HUGGING_FACE) | {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "attention_bias": True,
        "experts_per_token": config.top_k,
        "hidden_act": "silu",
        "initial_context_length": yarn.original_max_seq_len if yarn else config.max_seq_len,
        "layer_types": kinds,
        "rope_theta": config.rope_base,
        "rope_scaling": _write_rope(yarn),
        "sliding_window": config.max_seq_len if config.window is None else config.window,
        "swiglu_alpha": config.clamp.alpha,
        "swiglu_limit": config.clamp.limit,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }
    if config.expert_format == "mxfp4":
        kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
        written["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": kept}
    return written


def write_openai_config(config: DecoderConfig) -> dict[str, Any]:
    """OpenAI's ``config.json`` of a decoder in the form of gpt-oss.

    It does not hold ``max_seq_len``: that is read as the original length times YaRN's factor.
    """
    clamp, yarn = config.clamp, _yarn_of(config)
    lacking = {
        "no sinks": not config.sinks,
        "no biases": not (config.attention_bias and config.ff_bias),
        "no experts": config.num_experts is None,
        "key weights": config.key_weights,
        "another SwiGLU than gpt-oss's": clamp is None or clamp.alpha != 1.702,
        "windows on other layers than the even ones": config.window is not None
        and any((config.layer_window(layer) is None) == (layer % 2 == 0) for layer in range(config.num_layers)),
        f"norm_eps = {config.norm_eps}": config.norm_eps != 1e-5,
        "an output tied to the embedding": config.tied_output,
        "interleaved rotation": config.rope_layout != "half-split",
        "YaRN with rounded borders": yarn is not None and yarn.truncate,
    }
    found = ", ".join(part for part, present in lacking.items() if present)
    require(
        not found, f"a model with {found}", "what OpenAI's config.json can describe", "Write Hugging Face's layout."
    )
    assert clamp is not None
    return fields_written(config, _OPENAI) | {
        "swiglu_limit": clamp.limit,
        "sliding_window": config.window or 0,
        "initial_context_length": yarn.original_max_seq_len if yarn else config.max_seq_len,
        "rope_theta": config.rope_base,
        "rope_scaling_factor": yarn.factor if yarn else 1.0,
        "rope_ntk_alpha": yarn.beta_slow if yarn else 1.0,
        "rope_ntk_beta": yarn.beta_fast if yarn else 32.0,
    }


def _yarn_of(config: DecoderConfig) -> Yarn | None:
    """The stretch of a decoder in gpt-oss's form."""
    found = config.extensions()
    require(not found, f"a model with {', '.join(found)}", "the parts of gpt-oss", "Write glassformer's own layout.")
    assert isinstance(config.rope_scaling, Yarn | None)
    return config.rope_scaling


def _write_rope(yarn: Yarn | None) -> dict[str, Any]:
    if yarn is None:
        return {"rope_type": "default"}
    written = asdict(yarn)
    length, kind = written.pop("original_max_seq_len"), written.pop("kind")
    return {"rope_type": kind, "original_max_position_embeddings": length, **written}


def _from_huggingface(config: Mapping[str, Any]) -> DecoderConfig:
    aliases = {"num_local_experts": "num_experts", "num_experts_per_tok": "experts_per_token"}
    aliased = {ours: config[alias] for ours, alias in aliases.items() if alias in config}
    read = HuggingFaceConfig(**known_fields(HuggingFaceConfig, {**aliased, **config}))
    method = (read.quantization_config or {}).get("quant_method")
    require(method in (None, "mxfp4"), f"quantization by {method!r}", "'mxfp4' or none", _FIX)
    rope = _rope(read)
    window, windowed_layers = windows(read.num_hidden_layers, read.layer_types, read.sliding_window)
    return DecoderConfig(
        **fields_read(read, HUGGING_FACE),
        window=window,
        windowed_layers=windowed_layers,
        sinks=True,
        attention_bias=read.attention_bias,
        ff_bias=True,
        clamp=Clamp(read.swiglu_alpha, read.swiglu_limit),
        rope_base=rope.rope_theta,
        rope_scaling=_yarn(rope),
    )


def _from_openai(config: Mapping[str, Any]) -> DecoderConfig:
    read = OpenAIConfig(**config)
    factor, original = read.rope_scaling_factor, read.initial_context_length
    return DecoderConfig(
        **fields_read(read, _OPENAI),
        window=read.sliding_window or None,
        windowed_layers="even",
        sinks=True,
        attention_bias=True,
        ff_bias=True,
        clamp=Clamp(limit=read.swiglu_limit),
        max_seq_len=math.floor(original * factor) if factor > 1 else original,
        rope_base=read.rope_theta,
        rope_scaling=Yarn(factor, original, read.rope_ntk_beta, read.rope_ntk_alpha) if factor > 1 else None,
    )


def _rope(read: HuggingFaceConfig) -> RopeParameters:
    # As transformers: a rope_scaling takes precedence unless it is empty; with neither, the released model's is used.
    found = read.rope_scaling or (_write_rope(Yarn()) if read.rope_parameters is None else read.rope_parameters)
    found = {name: value for name, value in found.items() if value is not None}
    found.setdefault("rope_type", found.get("type", "default"))
    return RopeParameters(**known_fields(RopeParameters, {"rope_theta": read.rope_theta, **found}))


def _yarn(rope: RopeParameters) -> Yarn | None:
    if rope.rope_type == "default":
        return None
    factor, length = rope.factor, rope.original_max_position_embeddings
    if factor is None or length is None:
        missing = "factor" if factor is None else "original_max_position_embeddings"
        raise InputError(f"rope_type = 'yarn' without {missing}", "factor and original_max_position_embeddings", _FIX)
    if factor == 1:  # stretches nothing
        return None
    yarn = Yarn(factor, int(length), rope.beta_fast, rope.beta_slow, rope.truncate)
    attention_factor = yarn.concentration if rope.attention_factor is None else rope.attention_factor
    require(
        math.isclose(attention_factor, yarn.concentration, rel_tol=1e-6) and not (rope.mscale or rope.mscale_all_dim),
        f"attention_factor = {rope.attention_factor}, mscale = {rope.mscale}, mscale_all_dim = {rope.mscale_all_dim}",
        f"attention_factor = {yarn.concentration}, 0.1 ln(factor) + 1, and no mscale",
        "The decoder has no other scale of its attention.",
    )
    return yarn


def windows(
    layers: int, kinds: Sequence[str] | None, window: int | None
) -> tuple[int | None, Literal["odd", "even", "all"] | tuple[int, ...]]:
    """The window, and which layers have it, by Hugging Face's ``layer_types``; without them the even ones."""
    if kinds is None:
        return window, "even"
    require(len(kinds) == layers, f"{len(kinds)} layer_types", f"num_hidden_layers = {layers} of them", _FIX)
    windowed = tuple(layer for layer, kind in enumerate(kinds) if kind == "sliding_attention")
    if not windowed:
        return None, "even"
    require(window is not None, "sliding_window = None with sliding_attention", "a window", _FIX)
    if windowed == tuple(range(0, layers, 2)):
        return window, "even"
    if windowed == tuple(range(1, layers, 2)):
        return window, "odd"
    return window, "all" if len(windowed) == layers else windowed
