"""Mixtral's configuration and tensors, as Hugging Face names them, to a decoder and back.

One network, two ways of naming its experts. Files on disk keep a tensor per expert and matrix
(``block_sparse_moe.experts.3.w1.weight``); a model in memory of transformers 5 keeps one tensor for all experts
(``mlp.experts.gate_up_proj``). Both are read; the first, which every version and other programs read too, is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer.checkpoints.assembly import (
    choose_dtype,
    config_errors,
    empty_decoder,
    fill,
    require_layers,
    require_memory,
)
from glassformer.checkpoints.tensor_files import CONFIG_FILE, Wanted, check_tensors, open_tensors, stored_tensors
from glassformer.errors import CheckpointError, InputError, require, require_positive
from glassformer.layers.positions import convert_rows
from glassformer.models import Decoder, DecoderConfig

# Hugging Face leaves out of config.json what has its default value.
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": None,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "rope_theta": 1e6,
    "sliding_window": None,
    "attention_dropout": 0.0,
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
}

# Decoder's name: Hugging Face's name. The layers' names go behind "layers.N." and "model.layers.N.".
_OUTSIDE = {
    "embedding.weight": "model.embed_tokens.weight",
    "final_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_INSIDE = {
    "attention_norm.weight": "input_layernorm.weight",
    "attention.query.weight": "self_attn.q_proj.weight",
    "attention.key.weight": "self_attn.k_proj.weight",
    "attention.value.weight": "self_attn.v_proj.weight",
    "attention.output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
}
_Get = Callable[[str], Tensor]
_ROUTER, _EXPERTS = "ffn.router.score.weight", {"ffn.gate": "w1", "ffn.up": "w3", "ffn.down": "w2"}


def decoder_from_mixtral(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Decoder:
    """The decoder that computes the same logits as a Mixtral model.

    Args:
        config: The content of Hugging Face's ``config.json``; what is missing has Hugging Face's default.
        tensors: Weights by name, as in the released files or as in the state dict of transformers 5. They are copied;
            the decoder takes the dtype of ``model.embed_tokens.weight``.

    Returns:
        A decoder on the CPU, in training mode like every new module. ``sliding_window`` becomes the window of all
        layers. What training alone reads (``router_jitter_noise``, ``router_aux_loss_coef``) is not taken over.

    Raises:
        InputError: A configuration of another family or with a part that the decoder lacks, or tensors that are
            missing, unexpected or of another shape: all of them are named.

    Source: Jiang et al. 2024, "Mixtral of Experts", arXiv 2401.04088; the layout is Hugging Face's.
    """
    decoder_config = read_mixtral_config(config)
    released = _are_released(tensors)
    tied = decoder_config.tied_output
    if tied:
        tensors = _without_tied_output(tensors)
    _check_tensors(tensors, _shapes(decoder_config, released))
    decoder = Decoder(decoder_config).to(tensors["model.embed_tokens.weight"].dtype)
    state = _state(tensors.__getitem__, decoder_config, released)
    if tied:
        state["output.weight"] = state["embedding.weight"]
    decoder.load_state_dict(state)
    return decoder


def load_mixtral(
    directory: Path,
    config: Mapping[str, Any],
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> Decoder:
    """As :func:`decoder_from_mixtral`, from a directory, tensor by tensor.

    Args:
        directory: Where the files lie.
        config: The content of its ``config.json``.
        dtype: None: as the embedding is stored.
        device: None: the CPU.

    Raises:
        CheckpointError: A file that is missing or damaged, a configuration that is refused there too, tensors that are
            missing, unknown, or of another shape or kind, or more weights than this machine's memory.
        InputError: A ``dtype`` that is none.
    """
    stored = stored_tensors(directory)
    with config_errors(directory / CONFIG_FILE):
        read_config = read_mixtral_config(config)
    require_layers(read_config, stored, directory)
    released = _are_released(stored)
    shapes = _shapes(read_config, released)
    again = stored.pop("lm_head.weight", None) if read_config.tied_output else None
    check_tensors(stored, {name: Wanted(shape) for name, shape in shapes.items()}, directory)
    dtype = choose_dtype(dtype, stored["model.embed_tokens.weight"])
    device = torch.device("cpu") if device is None else device
    decoder = empty_decoder(read_config, dtype, directory)
    require_memory(decoder, device, directory)
    with open_tensors(stored if again is None else {**stored, "lm_head.weight": again}) as read:
        if again is not None and not torch.equal(read("lm_head.weight"), read("model.embed_tokens.weight")):
            raise CheckpointError(
                f"{again.file} with an lm_head.weight that differs from model.embed_tokens.weight, and "
                f"tie_word_embeddings = True in {CONFIG_FILE}",
                "one tensor for both",
                "Set tie_word_embeddings to False to keep both.",
            )
        return fill(decoder, _state(lambda name: read(name).to(device, dtype), read_config, released), device)


def mixtral_from_decoder(decoder: Decoder) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The configuration and tensors of the Mixtral model that computes the same logits as ``decoder``.

    Key weights are multiplied into the query projections (a factor commutes with the rotation), an interleaved rotary
    layout is rewritten as half-split, and a dense feed-forward network is the only expert.

    Returns:
        The content of ``config.json``, and the tensors by the names of the released files, on the decoder's device, in
        its dtype and detached. Tensors that nothing had to be done to share the decoder's memory.

    Raises:
        InputError: A decoder with parts that Mixtral lacks: all of them are named.
    """
    config = decoder.config
    _refuse(
        mixtral_lacks(config),
        "a decoder that Mixtral can express",
        "Save it in gpt-oss's layout, which has all of these, or in glassformer's own.",
    )
    state = {name: tensor.detach() for name, tensor in decoder.state_dict().items()}
    tensors = {theirs: state[name] for name, theirs in _OUTSIDE.items() if name in state}
    if config.tied_output:
        del tensors["lm_head.weight"]
    for layer in range(config.num_layers):
        ours, theirs = f"layers.{layer}.", f"model.layers.{layer}."
        inside = {name: state[ours + name] for name in _INSIDE}
        inside |= _rotated_as_mixtral(inside, state.get(ours + "attention.key_weights"), config)
        tensors |= {theirs + _INSIDE[name]: tensor for name, tensor in inside.items()}
        hidden = state[ours + "ffn_norm.weight"]
        router = state[ours + _ROUTER] if config.num_experts else hidden.new_zeros(1, len(hidden))
        tensors[f"{theirs}block_sparse_moe.gate.weight"] = router
        for name, their_name in _EXPERTS.items():
            of_each = state[ours + name] if config.num_experts else state[f"{ours}{name}.weight"][None]
            for expert, weight in enumerate(of_each):
                tensors[f"{theirs}block_sparse_moe.experts.{expert}.{their_name}.weight"] = weight
    return _write_config(config, decoder.embedding.weight.dtype), tensors


def read_mixtral_config(config: Mapping[str, Any]) -> DecoderConfig:
    """The configuration of the decoder for the content of a ``config.json``; what is missing has Mixtral's default.

    Raises:
        InputError: Another architecture, a part that the decoder lacks, or impossible sizes.
    """
    read = {**_DEFAULTS, **config}
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    require(isinstance(rope, dict), f"rope_parameters = {rope!r}", "an object", "Take the file anew.")
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    for name, got, expected in (
        ("model_type", read.get("model_type", "mixtral"), "mixtral"),
        ("hidden_act", read["hidden_act"], "silu"),
        ("rope_type", rope_type, "default"),
    ):
        require(got == expected, f"{name} = {got!r}", repr(expected), "This function reads plain Mixtral models only.")
    sizes = ("hidden_size", "num_attention_heads", "num_local_experts")
    require_positive(**{name: read[name] for name in sizes})
    heads = read["num_attention_heads"]
    return DecoderConfig(
        vocab_size=read["vocab_size"],
        num_layers=read["num_hidden_layers"],
        hidden_dim=read["hidden_size"],
        ff_dim=read["intermediate_size"],
        num_heads=heads,
        head_dim=read["hidden_size"] // heads if read["head_dim"] is None else read["head_dim"],
        num_kv_heads=read["num_key_value_heads"],
        window=read["sliding_window"],
        windowed_layers="all",
        num_experts=read["num_local_experts"],
        top_k=read["num_experts_per_tok"],
        dropout=read["attention_dropout"],
        max_seq_len=read["max_position_embeddings"],
        rope_base=rope.get("rope_theta", read["rope_theta"]),
        norm_eps=read["rms_norm_eps"],
        tied_output=read["tie_word_embeddings"],
    )


def _write_config(config: DecoderConfig, dtype: torch.dtype) -> dict[str, Any]:
    return {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_dim,
        "intermediate_size": config.ff_dim,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads or config.num_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_seq_len,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tied_output,
        "rope_theta": config.rope_base,
        "sliding_window": config.window,
        "attention_dropout": config.dropout,
        "num_experts_per_tok": config.top_k if config.num_experts else 1,
        "num_local_experts": config.num_experts or 1,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }


def _shapes(config: DecoderConfig, released: bool) -> dict[str, list[int]]:
    """Every tensor of such a model and its shape."""
    hidden, ff, experts = config.hidden_dim, config.ff_dim, config.num_experts
    assert experts is not None  # read from a configuration that has experts
    query, kv = config.num_heads * config.head_dim, (config.num_kv_heads or config.num_heads) * config.head_dim
    inside = {
        "input_layernorm.weight": [hidden],
        "self_attn.q_proj.weight": [query, hidden],
        "self_attn.k_proj.weight": [kv, hidden],
        "self_attn.v_proj.weight": [kv, hidden],
        "self_attn.o_proj.weight": [hidden, query],
        "post_attention_layernorm.weight": [hidden],
    }
    if released:
        inside["block_sparse_moe.gate.weight"] = [experts, hidden]
        for expert in range(experts):
            prefix = f"block_sparse_moe.experts.{expert}."
            inside |= {f"{prefix}w{matrix}.weight": [ff, hidden] for matrix in (1, 3)}
            inside[f"{prefix}w2.weight"] = [hidden, ff]
    else:
        inside["mlp.gate.weight"] = [experts, hidden]
        inside["mlp.experts.gate_up_proj"] = [experts, 2 * ff, hidden]
        inside["mlp.experts.down_proj"] = [experts, hidden, ff]
    shapes = {"model.embed_tokens.weight": [config.vocab_size, hidden], "model.norm.weight": [hidden]}
    if not config.tied_output:
        shapes["lm_head.weight"] = [config.vocab_size, hidden]
    for layer in range(config.num_layers):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in inside.items()}
    return shapes


def _check_tensors(tensors: Mapping[str, Tensor], shapes: Mapping[str, list[int]]) -> None:
    faults = [f"missing {name}" for name in shapes if name not in tensors]
    faults += [f"unexpected {name}" for name in tensors if name not in shapes]
    faults += [
        f"{name} of shape {list(tensors[name].shape)} instead of {shape}"
        for name, shape in shapes.items()
        if name in tensors and list(tensors[name].shape) != shape
    ]
    _refuse(
        faults, "the tensors of a Mixtral model of this configuration", "Pass the config.json that belongs to them."
    )


def _without_tied_output(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state dict holds a tied output projection a second time, a file does not."""
    output, embedding = tensors.get("lm_head.weight"), tensors.get("model.embed_tokens.weight")
    require(
        output is None or embedding is None or torch.equal(output, embedding),
        "an lm_head.weight that differs from model.embed_tokens.weight, with tie_word_embeddings = True",
        "one tensor for both",
        "Set tie_word_embeddings to False to keep both.",
    )
    return {name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"}


def _are_released(names: Iterable[str]) -> bool:
    return any(".block_sparse_moe." in name for name in names)


def _state(get: _Get, config: DecoderConfig, released: bool) -> dict[str, Tensor]:
    """The decoder's state dict, without an output projection that is the embedding."""
    outside = {
        name: theirs for name, theirs in _OUTSIDE.items() if not (config.tied_output and name == "output.weight")
    }
    state = {name: get(theirs) for name, theirs in outside.items()}
    experts = _released_experts if released else _current_experts
    for layer in range(config.num_layers):
        ours, theirs = f"layers.{layer}.", f"model.layers.{layer}."
        state |= {ours + name: get(theirs + their_name) for name, their_name in _INSIDE.items()}
        state |= {ours + name: tensor for name, tensor in experts(get, theirs, config).items()}
    return state


def _released_experts(get: _Get, layer: str, config: DecoderConfig) -> dict[str, Tensor]:
    moe = f"{layer}block_sparse_moe."
    stacked = {
        name: torch.stack([get(f"{moe}experts.{e}.{theirs}.weight") for e in range(config.num_experts or 0)])
        for name, theirs in _EXPERTS.items()
    }
    return {_ROUTER: get(f"{moe}gate.weight"), **stacked}


def _current_experts(get: _Get, layer: str, config: DecoderConfig) -> dict[str, Tensor]:
    gate_up = get(f"{layer}mlp.experts.gate_up_proj")
    return {
        _ROUTER: get(f"{layer}mlp.gate.weight"),
        "ffn.gate": gate_up[:, : config.ff_dim].contiguous(),
        "ffn.up": gate_up[:, config.ff_dim :].contiguous(),
        "ffn.down": get(f"{layer}mlp.experts.down_proj"),
    }


def _rotated_as_mixtral(
    layer: Mapping[str, Tensor], key_weights: Tensor | None, config: DecoderConfig
) -> dict[str, Tensor]:
    """Query and key projections without key weights and for the half-split layout."""
    query, key = layer["attention.query.weight"], layer["attention.key.weight"]
    if key_weights is not None:
        query = query * key_weights.repeat_interleave(config.head_dim)[:, None]
    if config.rope_layout == "interleaved":
        query = convert_rows(query, config.num_heads, to="half-split")
        key = convert_rows(key, config.num_kv_heads or config.num_heads, to="half-split")
    return {"attention.query.weight": query, "attention.key.weight": key}


def mixtral_lacks(config: DecoderConfig) -> list[str]:
    """The parts of a decoder that Mixtral cannot express."""
    parts = {
        "sinks": config.sinks,
        "biases in attention": config.attention_bias,
        "biases in the experts": config.ff_bias,
        "a clamped activation": config.clamp is not None,
        "YaRN": config.yarn is not None,
        "a window on some layers only": config.window is not None and config.windowed_layers != "all",
        "packed experts": config.expert_format != "dense",
    }
    return [part for part, present in parts.items() if present]


def _refuse(faults: Iterable[str], expected: str, fix: str) -> None:
    if listed := ", ".join(faults):
        raise InputError(listed, expected, fix)
