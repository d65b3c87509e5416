"""Mixtral's configuration and tensors in Hugging Face's names, to a decoder and back.

Files on disk have a tensor per expert and matrix (``block_sparse_moe.experts.3.w1.weight``); a model of transformers 5
in memory has one tensor for all experts (``mlp.experts.gate_up_proj``). Both are read. The first, which all versions
and other programs read, is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from glassformer.checkpoints.assembly import (
    HUGGING_FACE,
    FileNumber,
    FileSize,
    check_sizes,
    config_errors,
    empty_decoder,
    fields_read,
    fields_written,
    fill,
    is_released_mixtral,
    known_fields,
    read_decoder,
)
from glassformer.checkpoints.equivalent_weights import as_experts, half_split_projections
from glassformer.checkpoints.gpt_oss_layouts import sources
from glassformer.checkpoints.tensor_files import (
    CONFIG_FILE,
    DTYPES,
    KINDS,
    StoredTensor,
    Wanted,
    check_tensors,
    open_tensors,
    stored_tensors,
)
from glassformer.config import config
from glassformer.errors import CheckpointError, require
from glassformer.layers.blocks import Block
from glassformer.layers.options import Yarn
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


_Get = Callable[[str], Tensor]
_ROUTER, _EXPERTS = "ffn.router.score.weight", {"ffn.gate": "w1", "ffn.up": "w3", "ffn.down": "w2"}


def decoder_from_mixtral(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Decoder:
    """The decoder that computes the same logits as a Mixtral model with this ``config.json``.

    Tensors are named as in the released files or in the state dict of transformers 5. They are copied to the CPU, in
    the dtype of ``model.embed_tokens.weight``. ``sliding_window`` becomes the window of all layers. What only training
    reads (``router_jitter_noise``, ``router_aux_loss_coef``) is ignored.

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
    directory: Path, config: Mapping[str, Any], *, dtype: torch.dtype | None, device: torch.device
) -> Decoder:
    """As :func:`decoder_from_mixtral`, from a directory with this ``config.json``, tensor by tensor.

    ``dtype`` and errors are those of :func:`~glassformer.checkpoints.decoders.load_decoder`.
    """
    stored = stored_tensors(directory)
    decoder_config = checked_config(directory, config, stored)
    with open_tensors(stored) as read:

        def state(dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
            return _state(lambda name: read(name).to(device, dtype), decoder_config, stored)

        embedding = DTYPES[stored["model.embed_tokens.weight"].kind]
        return read_decoder(decoder_config, directory, state, stored_dtype=embedding, dtype=dtype, device=device)


def checked_config(directory: Path, config: Mapping[str, Any], stored: Mapping[str, StoredTensor]) -> DecoderConfig:
    """The decoder's configuration for Mixtral's files. No tensor is read.

    Raises:
        CheckpointError: Another architecture, or tensors that are missing, unknown or of another shape or kind.
    """
    with config_errors(directory / CONFIG_FILE):
        decoder_config = read_mixtral_config(config)
    check_sizes(decoder_config, stored, directory)
    _check(decoder_config, stored, directory)
    return decoder_config


def mixtral_from_decoder(decoder: Decoder) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The configuration and tensors of the Mixtral model that computes the same logits as ``decoder``.

    Key weights are multiplied into the query projections (a factor commutes with the rotation), an interleaved rotary
    layout is rewritten as half-split, and a dense feed-forward network is the only expert.

    Tensors have the names of the released files. Those that need no rewriting share the decoder's memory.

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
    state, names = decoder.state_dict(), _names(config)
    tensors = {theirs: state[ours] for ours, theirs in names.items()}
    for layer, block in enumerate(decoder.layers):
        assert isinstance(block, Block)
        rewritten = half_split_projections(block.attention, config.rope_layout)
        tensors |= {names[f"layers.{layer}.{name}"]: tensor for name, tensor in rewritten.items()}
        moe, experts = f"model.layers.{layer}.block_sparse_moe.", as_experts(block.ffn)
        no_choice = decoder.embedding.weight.new_zeros(1, config.hidden_dim)
        tensors[f"{moe}gate.weight"] = state.get(f"layers.{layer}.{_ROUTER}", no_choice)
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
    found = fields_read(read, HUGGING_FACE)
    if read.head_dim is None:
        found["head_dim"] = read.hidden_size // read.num_attention_heads
    return DecoderConfig(
        **found,
        window=read.sliding_window,
        windowed_layers="all",
        rope_base=rope.get("rope_theta", read.rope_theta),
    )


def mixtral_lacks(config: DecoderConfig) -> list[str]:
    """The parts of a decoder that Mixtral cannot express."""
    parts = {
        "sinks": config.sinks,
        "biases in attention": config.attention_bias,
        "biases in the experts": config.ff_bias,
        "a clamped activation": config.clamp is not None,
        "YaRN": isinstance(config.rope_scaling, Yarn),
        "a window on some layers only": len({config.layer_window(layer) for layer in range(config.num_layers)}) > 1,
        "packed experts": config.expert_format != "dense",
        "attention-only blocks": config.ff_dim == 0,
    } | dict.fromkeys(config.extensions(), True)
    return [part for part, present in parts.items() if present]


def _write_config(config: DecoderConfig, dtype: torch.dtype) -> dict[str, Any]:
    return fields_written(config, HUGGING_FACE) | {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "hidden_act": "silu",
        "rope_theta": config.rope_base,
        "sliding_window": config.layer_window(0),
        "torch_dtype": str(dtype).removeprefix("torch."),
    }


def _names(config: DecoderConfig) -> dict[str, str]:
    """Hugging Face's names of all tensors but those of the experts and their routers: the same as in gpt-oss."""
    found = {ours: source.name for ours, source in sources(config, "huggingface").items()}
    return {ours: theirs for ours, theirs in found.items() if not ours.endswith(_ROUTER)}


def _check(config: DecoderConfig, stored: Mapping[str, StoredTensor], directory: Path) -> None:
    """Refuse tensors that are not those of this configuration; a tied output projection may be stored too."""
    with config_errors(directory / CONFIG_FILE):
        shapes = {name: list(tensor.shape) for name, tensor in empty_decoder(config).state_dict().items()}
    found = {theirs: shapes[ours] for ours, theirs in _names(config).items()}
    if "lm_head.weight" in stored:
        found["lm_head.weight"] = shapes["output.weight"]
    released = is_released_mixtral(stored)
    for layer in range(config.num_layers):
        ours, theirs = f"layers.{layer}.", f"model.layers.{layer}."
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


def _state(get: _Get, config: DecoderConfig, stored: Mapping[str, StoredTensor]) -> dict[str, Tensor]:
    """The decoder's state dict, without an output projection that is the embedding."""
    state = {ours: get(theirs) for ours, theirs in _names(config).items()}
    again = get("lm_head.weight") if config.tied_output and "lm_head.weight" in stored else None
    if not (again is None or again.is_meta or torch.equal(again, state["embedding.weight"])):
        raise CheckpointError(
            f"{stored['lm_head.weight'].file} with an lm_head.weight that differs from model.embed_tokens.weight, and "
            f"tie_word_embeddings = True in {CONFIG_FILE}",
            "one tensor for both",
            "Set tie_word_embeddings to False to keep both.",
        )
    experts = _released_experts if is_released_mixtral(stored) else _current_experts
    for layer in range(config.num_layers):
        ours, theirs = f"layers.{layer}.", f"model.layers.{layer}."
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
