"""Both kinds of ``config.json`` of gpt-oss to a decoder's configuration, and back to Hugging Face's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch

from glassformer.checkpoints.assembly import config_errors
from glassformer.checkpoints.gpt_oss_layouts import GptOssLayout
from glassformer.errors import InputError
from glassformer.layers.feedforward import Clamp
from glassformer.layers.positions import Yarn
from glassformer.models import DecoderConfig

# Hugging Face leaves out of config.json what has its default value.
_HUGGINGFACE: dict[str, Any] = {
    "num_hidden_layers": 36,
    "num_local_experts": 128,
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "head_dim": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "sliding_window": 128,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "attention_dropout": 0.0,
    "num_experts_per_tok": 4,
    "swiglu_alpha": 1.702,
    "swiglu_limit": 7.0,
    "attention_bias": True,
}
_ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 150000.0, "beta_fast": 32.0, "beta_slow": 1.0}
_RELEASED_ROPE: dict[str, Any] = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
_OPENAI: dict[str, Any] = {
    "num_hidden_layers": 36,
    "num_experts": 128,
    "experts_per_token": 4,
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "swiglu_limit": 7.0,
    "head_dim": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "sliding_window": 128,
    "initial_context_length": 4096,
    "rope_theta": 150000.0,
    "rope_scaling_factor": 32.0,
    "rope_ntk_alpha": 1.0,
    "rope_ntk_beta": 32.0,
}
_FIX = "Take the file anew."


def layout_of(config: Mapping[str, Any]) -> GptOssLayout | None:
    """Whose ``config.json`` of gpt-oss this is; None where it is another model's."""
    if "model_type" in config:
        return "huggingface" if config["model_type"] == "gpt_oss" else None
    return "openai" if {"num_experts", "experts_per_token", "num_hidden_layers"} <= config.keys() else None


def read_gpt_oss_config(config: Mapping[str, Any], layout: GptOssLayout, file: Path) -> DecoderConfig:
    """The configuration of the decoder for the content of a ``config.json``; what is missing has its owner's default.

    Args:
        config: The content.
        layout: Whose it is.
        file: Where it was read, for messages.

    Raises:
        CheckpointError: A value of the wrong kind or size, or a part that the decoder lacks.
    """
    with config_errors(file):
        return _from_huggingface(config) if layout == "huggingface" else _from_openai(config)


def write_gpt_oss_config(config: DecoderConfig, dtype: torch.dtype, *, packed: bool) -> dict[str, Any]:
    """Hugging Face's ``config.json`` of a decoder in the form of gpt-oss.

    Where no layer has a window, every second one gets a window as long as the longest text: that is the same, and also
    right for programs that take it for granted that a layer of gpt-oss has one.
    """
    assert config.clamp is not None  # who writes has seen to it
    layers = range(config.num_layers)
    kinds = ["full_attention" if config.layer_window(layer) is None else "sliding_attention" for layer in layers]
    if config.window is None:
        kinds = ["full_attention" if layer % 2 else "sliding_attention" for layer in layers]
    written: dict[str, Any] = {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "attention_bias": True,
        "attention_dropout": config.dropout,
        "experts_per_token": config.top_k if config.num_experts else 1,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "hidden_size": config.hidden_dim,
        "initial_context_length": config.yarn.original_max_seq_len if config.yarn else config.max_seq_len,
        "intermediate_size": config.ff_dim,
        "layer_types": kinds,
        "max_position_embeddings": config.max_seq_len,
        "num_attention_heads": config.num_heads,
        "num_experts_per_tok": config.top_k if config.num_experts else 1,
        "num_hidden_layers": config.num_layers,
        "num_key_value_heads": config.num_kv_heads or config.num_heads,
        "num_local_experts": config.num_experts or 1,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_base,
        "rope_scaling": _write_rope(config.yarn),
        "sliding_window": config.max_seq_len if config.window is None else config.window,
        "swiglu_alpha": config.clamp.alpha,
        "swiglu_limit": config.clamp.limit,
        "tie_word_embeddings": False,
        "torch_dtype": str(dtype).removeprefix("torch."),
        "vocab_size": config.vocab_size,
    }
    if packed:
        kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
        written["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": kept}
    return written


def _write_rope(yarn: Yarn | None) -> dict[str, Any]:
    if yarn is None:
        return {"rope_type": "default"}
    return {
        "rope_type": "yarn",
        "factor": yarn.factor,
        "beta_fast": yarn.beta_fast,
        "beta_slow": yarn.beta_slow,
        "truncate": yarn.truncate,
        "original_max_position_embeddings": yarn.original_max_seq_len,
    }


def _from_huggingface(config: Mapping[str, Any]) -> DecoderConfig:
    aliases = {"num_local_experts": "num_experts", "num_experts_per_tok": "experts_per_token"}
    given = {ours: config[alias] for ours, alias in aliases.items() if alias in config}
    rope = _rope(config)
    read = _checked(_HUGGINGFACE, {**given, **config})
    _require(read["hidden_act"] == "silu", f"hidden_act = {read['hidden_act']!r}", "'silu'")
    quantization = config.get("quantization_config") or {}
    method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
    _require(method in (None, "mxfp4"), f"quantization by {method!r}", "'mxfp4' or none")
    window, windowed = _windows(config, read["num_hidden_layers"], read["sliding_window"])
    return DecoderConfig(
        **_shared(read),
        num_experts=read["num_local_experts"],
        top_k=read["num_experts_per_tok"],
        window=window,
        windowed_layers=windowed,
        attention_bias=read["attention_bias"],
        clamp=Clamp(read["swiglu_alpha"], read["swiglu_limit"]),
        dropout=read["attention_dropout"],
        max_seq_len=read["max_position_embeddings"],
        rope_base=rope["rope_theta"],
        yarn=_yarn(rope),
        norm_eps=read["rms_norm_eps"],
        tied_output=read["tie_word_embeddings"],
    )


def _from_openai(config: Mapping[str, Any]) -> DecoderConfig:
    if others := ", ".join(sorted(config.keys() - _OPENAI.keys())):
        raise InputError(others, f"nothing beside {', '.join(_OPENAI)}", _FIX)
    read = _checked(_OPENAI, config)
    factor, original = read["rope_scaling_factor"], read["initial_context_length"]
    stretched = factor > 1
    return DecoderConfig(
        **_shared(read),
        num_experts=read["num_experts"],
        top_k=read["experts_per_token"],
        window=read["sliding_window"] or None,
        windowed_layers="even",
        attention_bias=True,
        clamp=Clamp(limit=read["swiglu_limit"]),
        max_seq_len=math.floor(original * factor) if stretched else original,
        rope_base=read["rope_theta"],
        yarn=Yarn(factor, original, read["rope_ntk_beta"], read["rope_ntk_alpha"]) if stretched else None,
    )


def _shared(read: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "vocab_size": read["vocab_size"],
        "num_layers": read["num_hidden_layers"],
        "hidden_dim": read["hidden_size"],
        "ff_dim": read["intermediate_size"],
        "num_heads": read["num_attention_heads"],
        "head_dim": read["head_dim"],
        "num_kv_heads": read["num_key_value_heads"],
        "sinks": True,
        "ff_bias": True,
    }


def _checked(defaults: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """The values of ``config``, each of the kind of its default, which stands in for those that are missing."""
    read: dict[str, Any] = {}
    for name, default in defaults.items():
        value = config.get(name, default)
        if value is None and name == "sliding_window":
            read[name] = None
        elif isinstance(default, float):
            read[name] = _number(name, value)
        else:
            fits = type(value) is type(default) and (type(value) is not int or 0 <= value < 2**40)
            _require(fits, f"{name} = {value!r}", f"a value like {default!r}")
            read[name] = value
    return read


def _number(name: str, value: Any) -> float:
    fits = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e30
    _require(fits, f"{name} = {value!r}", "a number")  # nan is not below 1e30
    return float(value)


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """How positions rotate, in the words of transformers 5, from those or older ones."""
    # As transformers: an older rope_scaling outdoes the other unless it is empty; empty rope_parameters are given ones.
    parameters = config.get("rope_parameters")
    rope = config.get("rope_scaling") or (_RELEASED_ROPE if parameters is None else parameters)
    _require(isinstance(rope, dict), f"rope_parameters = {rope!r}", "an object")
    rope = {name: value for name, value in rope.items() if value is not None}
    rope.setdefault("rope_type", rope.get("type", "default"))
    given = {name: config[name] for name in ("rope_theta",) if name in config}
    rope = {**_ROPE, **given, **rope}
    kind = rope["rope_type"]
    _require(kind in ("default", "yarn"), f"rope_type = {kind!r}", "'default' or 'yarn'")
    partial = rope.get("partial_rotary_factor", 1.0)
    _require(partial == 1, f"partial_rotary_factor = {partial!r}", "1: heads that rotate as a whole")
    rope["rope_theta"] = _number("rope_theta", rope["rope_theta"])
    return rope


def _yarn(rope: Mapping[str, Any]) -> Yarn | None:
    if rope["rope_type"] == "default":
        return None
    missing = ", ".join(name for name in ("factor", "original_max_position_embeddings") if name not in rope)
    _require(not missing, f"rope_type = 'yarn' without {missing}", "both")
    numbers = {name: _number(name, rope[name]) for name in ("factor", "beta_fast", "beta_slow")}
    if numbers["factor"] == 1:  # stretches nothing
        return None
    truncate = rope.get("truncate", True)
    _require(isinstance(truncate, bool), f"truncate = {truncate!r}", "true or false")
    length = rope["original_max_position_embeddings"]
    whole = isinstance(length, (int, float)) and 1 <= length < 2**40 and length == int(length)
    _require(whole, f"original_max_position_embeddings = {length!r}", "a whole number of at least 1")
    yarn = Yarn(numbers["factor"], int(length), numbers["beta_fast"], numbers["beta_slow"], truncate)
    size = _number("attention_factor", rope.get("attention_factor", yarn.concentration))
    plain = math.isclose(size, yarn.concentration, rel_tol=1e-6) and not (
        rope.get("mscale") or rope.get("mscale_all_dim")
    )
    _require(plain, "attention_factor or mscale of another value", f"{yarn.concentration}, 0.1 ln(factor) + 1")
    return yarn


def _windows(
    config: Mapping[str, Any], layers: int, window: int | None
) -> tuple[int | None, Literal["odd", "even", "all"]]:
    """The window, and which layers have it."""
    kinds = config.get("layer_types")
    if kinds is None:
        return window, "even"
    known = ("full_attention", "sliding_attention")
    fits = isinstance(kinds, list) and len(kinds) == layers and all(kind in known for kind in kinds)
    _require(fits, "layer_types of another number or kind", f"num_hidden_layers of {' or '.join(known)}")
    windowed = [kind == "sliding_attention" for kind in kinds]
    if not any(windowed):
        return None, "even"
    _require(window is not None, "sliding_window = None with a layer of sliding_attention", "a window")
    patterns: dict[Literal["odd", "even", "all"], list[bool]] = {
        "even": [layer % 2 == 0 for layer in range(layers)],
        "odd": [layer % 2 == 1 for layer in range(layers)],
        "all": [True] * layers,
    }
    for name, pattern in patterns.items():
        if windowed == pattern:
            return window, name
    raise InputError("layer_types in another order", "windows on the even, the odd, or all layers", _FIX)


def _require(condition: bool, got: str, expected: str) -> None:
    if not condition:
        raise InputError(got, expected, _FIX)
