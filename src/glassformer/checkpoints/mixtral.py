"""Mixtral's configuration and tensors in Hugging Face's names, to a decoder and back.

Files on disk have a tensor per expert and matrix (``block_sparse_moe.experts.3.w1.weight``); a model of transformers 5
in memory has one tensor for all experts (``mlp.experts.gate_up_proj``). Both are read. The first, which all versions
and other programs read, is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from glassformer.checkpoints.assembly import (
    FileNumber,
    FileSize,
    check_sizes,
    config_errors,
    empty_decoder,
    fill,
    known_fields,
    read_decoder,
)
from glassformer.checkpoints.equivalent_weights import as_experts, half_split_projections, router_of
from glassformer.checkpoints.headers import DTYPES, KINDS, StoredTensor
from glassformer.checkpoints.tensor_files import CONFIG_FILE, Wanted, check_tensors, open_tensors, stored_tensors
from glassformer.config import config
from glassformer.errors import CheckpointError, require
from glassformer.layers.blocks import Block
from glassformer.models import Decoder, DecoderConfig


@config
class MixtralConfig:
    """The fields of Mixtral's ``config.json`` that a decoder depends on, with Hugging Face's defaults.

    ``layer_types`` is not among them: transformers ignores it and gives every layer the window.
    """

    vocab_size: FileNumber = 32000
    hidden_size: FileNumber = 4096
    intermediate_size: FileNumber = 14336
    num_hidden_layers: FileNumber = 32
    num_attention_heads: FileSize = 32
    num_key_value_heads: FileNumber = 8
    head_dim: FileNumber | None = None
    hidden_act: Literal["silu"] = "silu"
    max_position_embeddings: FileNumber = 131072
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = False
    rope_theta: float = 1e6
    rope_parameters: dict[str, Any] | None = None
    rope_scaling: dict[str, Any] | None = None
    sliding_window: FileNumber | None = None
    attention_dropout: float = 0.0
    num_experts_per_tok: FileNumber = 2
    num_local_experts: FileNumber = 8
    model_type: Literal["mixtral"] = "mixtral"


# Decoder's name: Hugging Face's name. Those of a layer follow "layers.N." and "model.layers.N.".
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
        layers. What only training reads (``router_jitter_noise``, ``router_aux_loss_coef``) is ignored.

    Raises:
        InputError: A configuration of another family or with a part that the decoder lacks, or tensors that are
            missing, unknown or of another shape: all of them are named.

    Source: Jiang et al. 2024, "Mixtral of Experts", arXiv 2401.04088; the layout is Hugging Face's.
    """
    place = Path("tensors")
    stored = {
        name: StoredTensor(place, name, list(tensor.shape), KINDS[tensor.dtype]) for name, tensor in tensors.items()
    }
    decoder_config = read_mixtral_config(config)
    _check(decoder_config, stored, place)
    dtype = tensors["model.embed_tokens.weight"].dtype
    state = _state(lambda name: tensors[name].to("cpu", dtype, copy=True), decoder_config, stored)
    return fill(empty_decoder(decoder_config, dtype), state)


def load_mixtral(
    directory: Path,
    config: Mapping[str, Any],
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> Decoder:
    """As :func:`decoder_from_mixtral`, from a directory, tensor by tensor.

    Args:
        directory: Where the files are.
        config: The content of its ``config.json``.
        dtype: None: as the embedding is stored.
        device: None: the CPU.

    Raises:
        CheckpointError: A file that is missing or damaged, a configuration that is refused there too, tensors that are
            missing, unknown, or of another shape or kind, or more weights than this machine's memory.
        InputError: A ``dtype`` that no decoder computes in.
    """
    stored = stored_tensors(directory)
    with config_errors(directory / CONFIG_FILE):
        decoder_config = read_mixtral_config(config)
    check_sizes(decoder_config, stored, directory)
    _check(decoder_config, stored, directory)
    with open_tensors(stored) as read:

        def state(dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
            return _state(lambda name: read(name).to(device, dtype), decoder_config, stored)

        embedding = DTYPES[stored["model.embed_tokens.weight"].kind]
        return read_decoder(decoder_config, directory, state, stored_dtype=embedding, dtype=dtype, device=device)


def mixtral_from_decoder(decoder: Decoder) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The configuration and tensors of the Mixtral model that computes the same logits as ``decoder``.

    Key weights are multiplied into the query projections (a factor commutes with the rotation), an interleaved rotary
    layout is rewritten as half-split, and a dense feed-forward network is the only expert.

    Returns:
        The content of ``config.json``, and the tensors by the names of the released files, on the decoder's device, in
        its dtype and detached. Tensors that need no rewriting share the decoder's memory.

    Raises:
        InputError: A decoder with parts that Mixtral lacks: all of them are named.
    """
    config = decoder.config
    lacking = ", ".join(mixtral_lacks(config))
    require(
        not lacking,
        lacking,
        "a decoder that Mixtral can express",
        "Save it in gpt-oss's layout, which has all of these, or in glassformer's own.",
    )
    state = decoder.state_dict()
    tensors = {theirs: state[name] for name, theirs in _OUTSIDE.items()}
    if config.tied_output:
        del tensors["lm_head.weight"]
    for layer, block in enumerate(decoder.layers):
        assert isinstance(block, Block)
        ours, theirs = f"layers.{layer}.", f"model.layers.{layer}."
        inside = {name: state[ours + name] for name in _INSIDE}
        inside |= half_split_projections(block.attention, config.rope_layout)
        tensors |= {theirs + _INSIDE[name]: tensor for name, tensor in inside.items()}
        moe, experts = f"{theirs}block_sparse_moe.", as_experts(block.ffn)
        tensors[f"{moe}gate.weight"], _ = router_of(block.ffn, config.hidden_dim)
        for name, of_each in (("w1", experts.gate), ("w3", experts.up), ("w2", experts.down)):
            tensors |= {f"{moe}experts.{index}.{name}.weight": weight for index, weight in enumerate(of_each)}
    tensors = {name: tensor.detach() for name, tensor in tensors.items()}
    return _write_config(config, decoder.embedding.weight.dtype), tensors


def read_mixtral_config(config: Mapping[str, Any]) -> DecoderConfig:
    """The configuration of the decoder for the content of a ``config.json``; what is missing has Mixtral's default.

    Raises:
        InputError: Another architecture, a part that the decoder lacks, or impossible sizes.
    """
    read = MixtralConfig(**known_fields(MixtralConfig, config))
    rope = read.rope_parameters or read.rope_scaling or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    require(kind == "default", f"rope_type = {kind!r}", "'default'", "Only plain Mixtral models can be read.")
    heads = read.num_attention_heads
    return DecoderConfig(
        vocab_size=read.vocab_size,
        num_layers=read.num_hidden_layers,
        hidden_dim=read.hidden_size,
        ff_dim=read.intermediate_size,
        num_heads=heads,
        head_dim=read.hidden_size // heads if read.head_dim is None else read.head_dim,
        num_kv_heads=read.num_key_value_heads,
        window=read.sliding_window,
        windowed_layers="all",
        num_experts=read.num_local_experts,
        top_k=read.num_experts_per_tok,
        dropout=read.attention_dropout,
        max_seq_len=read.max_position_embeddings,
        rope_base=rope.get("rope_theta", read.rope_theta),
        norm_eps=read.rms_norm_eps,
        tied_output=read.tie_word_embeddings,
    )


def mixtral_lacks(config: DecoderConfig) -> list[str]:
    """The parts of a decoder that Mixtral cannot express."""
    parts = {
        "sinks": config.sinks,
        "biases in attention": config.attention_bias,
        "biases in the experts": config.ff_bias,
        "a clamped activation": config.clamp is not None,
        "YaRN": config.yarn is not None,
        "a window on some layers only": len({config.layer_window(layer) for layer in range(config.num_layers)}) > 1,
        "packed experts": config.expert_format != "dense",
    }
    return [part for part, present in parts.items() if present]


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
        "sliding_window": config.layer_window(0),
        "attention_dropout": config.dropout,
        "num_experts_per_tok": config.top_k if config.num_experts else 1,
        "num_local_experts": config.num_experts or 1,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }


def _check(config: DecoderConfig, stored: Mapping[str, StoredTensor], directory: Path) -> None:
    """Refuse tensors that are not those of this configuration; a tied output projection may be stored too."""
    with config_errors(directory / CONFIG_FILE):
        shapes = {name: list(tensor.shape) for name, tensor in empty_decoder(config).state_dict().items()}
    found = {theirs: shapes[ours] for ours, theirs in _OUTSIDE.items()}
    if config.tied_output and "lm_head.weight" not in stored:
        del found["lm_head.weight"]
    released = _are_released(stored)
    for layer in range(config.num_layers):
        ours, theirs = f"layers.{layer}.", f"model.layers.{layer}."
        found |= {theirs + their_name: shapes[ours + name] for name, their_name in _INSIDE.items()}
        moe = f"{theirs}{'block_sparse_moe' if released else 'mlp'}."
        found[f"{moe}gate.weight"] = shapes[ours + _ROUTER]
        if released:
            for name, their_name in _EXPERTS.items():
                experts, *shape = shapes[ours + name]
                found |= {f"{moe}experts.{expert}.{their_name}.weight": shape for expert in range(experts)}
        else:
            experts, ff, hidden = shapes[f"{ours}ffn.gate"]
            found[f"{moe}experts.gate_up_proj"] = [experts, 2 * ff, hidden]
            found[f"{moe}experts.down_proj"] = shapes[f"{ours}ffn.down"]
    check_tensors(stored, {name: Wanted(shape) for name, shape in found.items()}, directory)


def _are_released(names: Iterable[str]) -> bool:
    return any(".block_sparse_moe." in name for name in names)


def _state(get: _Get, config: DecoderConfig, stored: Mapping[str, StoredTensor]) -> dict[str, Tensor]:
    """The decoder's state dict, without an output projection that is the embedding."""
    state = {name: get(theirs) for name, theirs in _OUTSIDE.items() if theirs in stored}
    again = state.pop("output.weight", None) if config.tied_output else None
    if not (again is None or again.is_meta or torch.equal(again, state["embedding.weight"])):
        raise CheckpointError(
            f"{stored['lm_head.weight'].file} with an lm_head.weight that differs from model.embed_tokens.weight, and "
            f"tie_word_embeddings = True in {CONFIG_FILE}",
            "one tensor for both",
            "Set tie_word_embeddings to False to keep both.",
        )
    experts = _released_experts if _are_released(stored) else _current_experts
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
