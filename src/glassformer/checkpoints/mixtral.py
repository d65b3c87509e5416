"""Mixtral's configuration and tensors in memory, to a decoder and back; see :mod:`glassformer.checkpoints.families`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from glassformer.checkpoints.assembly import empty_decoder, fill
from glassformer.checkpoints.families.files import checked_config, family_from_decoder, family_state
from glassformer.checkpoints.families.mixtral import MIXTRAL
from glassformer.checkpoints.tensor_files import KINDS, StoredTensor
from glassformer.errors import require
from glassformer.layers.options import Yarn
from glassformer.models import Decoder, DecoderConfig


def decoder_from_mixtral(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Decoder:
    """The decoder that computes the same logits as a Mixtral model with this ``config.json``.

    Tensors are named as in the released files or in the state dict of transformers 5. They are copied to the CPU, in
    the dtype of ``model.embed_tokens.weight``. ``sliding_window`` becomes the window of all layers. What only training
    reads (``router_jitter_noise``, ``router_aux_loss_coef``) is ignored.

    Source: Jiang et al. 2024, "Mixtral of Experts", arXiv 2401.04088; the layout is Hugging Face's.
    """
    place, kind = Path("tensors"), config.get("model_type", "mixtral")
    require(kind == "mixtral", f"model_type = {kind!r}", "'mixtral'", "Use Decoder.from_pretrained.")
    stored = {name: StoredTensor(place, name, list(each.shape), KINDS[each.dtype]) for name, each in tensors.items()}
    decoder_config = checked_config(MIXTRAL, place, config, stored)
    dtype = tensors["model.embed_tokens.weight"].dtype
    entries = MIXTRAL.entries(decoder_config, stored)
    state = family_state(
        MIXTRAL, decoder_config, entries, stored, lambda name: tensors[name].to("cpu", dtype, copy=True)
    )
    return fill(empty_decoder(decoder_config, dtype), state)


def mixtral_from_decoder(decoder: Decoder) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The configuration and tensors of the Mixtral model that computes the same logits as ``decoder``.

    Key weights are multiplied into the query projections (a factor commutes with the rotation), an interleaved rotary
    layout is rewritten as half-split, and a dense feed-forward network is the only expert.

    Tensors have the names of the released files. Those that need no rewriting share the decoder's memory.
    """
    lacking = ", ".join(mixtral_lacks(decoder.config))
    fix = "Save it in gpt-oss's layout, which has all of these, or in glassformer's own."
    require(not lacking, lacking, "a decoder that Mixtral can express", fix)
    written, planned = family_from_decoder(MIXTRAL, decoder)
    return written, {name: each.whole() for name, each in planned.items()}


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
