"""Export of a decoder as a gpt-oss model with the same logits; parts that gpt-oss lacks are rewritten."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.checkpoints.equivalent_weights import as_experts, half_split_projections
from glassformer.checkpoints.gpt_oss_layouts import MATRICES, Matrix, sources
from glassformer.checkpoints.gpt_oss_writing import PlannedExperts, PlannedModel
from glassformer.checkpoints.shards import Planned, plan
from glassformer.errors import require
from glassformer.kernels.options import Clamp
from glassformer.layers.blocks import Block
from glassformer.layers.norms import RMSNorm
from glassformer.layers.quantized.packed_experts import PackedMixture
from glassformer.models import Decoder

NO_SINK = -1e30
"""The logit of a sink without effect: its weight is exp(-1e30) = 0, and unlike -inf it is safe in other programs.

In float16 its lowest number is written instead, -65504.
"""


def gpt_oss_from_decoder(decoder: Decoder) -> PlannedModel:
    """The gpt-oss model that computes the same logits as ``decoder``, in the decoder's dtype.

    Most parts are written as they are. The others:

    ==========================  =======================================================================================
    the decoder                 what is written
    ==========================  =======================================================================================
    key weights w               ``w Wq`` for the query projection: ``q . (w k) = (w q) . k``, and a factor commutes with
                                the rotation
    interleaved rotation        the rows of query and key projections in half-split order
    no biases, no sinks         biases of 0, sinks of :data:`NO_SINK`
    one dense network           one expert, which every token gets with weight 1
    plain SwiGLU                ``gate sigmoid(gate) up`` as ``gate sigmoid(alpha gate) ((up - 1) + 1)`` with ``alpha``
                                1, biases of ``up`` smaller by 1, and a limit that no input can reach: a norm's output
                                is at most ``sqrt(hidden_dim)`` times its weight long
    output tied to embedding    a copy
    ==========================  =======================================================================================
    """
    config = decoder.config
    packed, found = config.expert_format == "mxfp4", ", ".join(config.extensions())
    require(not found, f"a model with {found}", "the parts of gpt-oss", "Keep it in glassformer's own layout.")
    require(
        config.clamp is not None or not packed,
        "packed experts with the plain SwiGLU",
        "gpt-oss's clamped SwiGLU, or dense experts",
        "Keep it in glassformer's own layout.",
    )
    require(
        config.ff_dim > 0, "an attention-only decoder", "feed-forward networks", "Keep it in glassformer's own layout."
    )
    form = replace(
        config,
        num_experts=config.num_experts or 1,
        top_k=config.top_k if config.num_experts else 1,
        sinks=True,
        attention_bias=True,
        ff_bias=True,
        clamp=config.clamp or Clamp(alpha=1.0, limit=_unreachable(decoder)),
        key_weights=False,
        rope_layout="half-split",
        tied_output=False,
    )
    if config.num_layers == 1:  # then it has the window of the even layers, or none
        form = replace(form, window=config.layer_window(0), windowed_layers="even")
    state = decoder.state_dict()
    weights = {name: state[name] for name in sources(form, "huggingface") if name in state}
    embedding, experts = decoder.embedding.weight, []
    for layer, block in enumerate(decoder.layers):
        assert isinstance(block, Block)
        rewritten = half_split_projections(block.attention, config.rope_layout)
        if not config.sinks:
            no_sink = max(NO_SINK, torch.finfo(embedding.dtype).min)
            rewritten["attention.sinks"] = embedding.new_full((config.num_heads,), no_sink)
        if config.num_experts is None:
            rewritten["ffn.router.score.weight"] = embedding.new_zeros(1, config.hidden_dim)
        weights |= {f"layers.{layer}.{name}": tensor for name, tensor in rewritten.items()}
        experts.append(_experts(block.ffn, plain=config.clamp is None))
    return PlannedModel(form, {name: plan(tensor) for name, tensor in weights.items()}, experts)


def remark(whose: str, written: dict[str, Any]) -> str:
    """A warning about values that differ from the released models', beginning with ``whose``, such as ``"It"``.

    Empty if none differs.
    """
    differing = ", ".join(particulars(written))
    return differing and (
        f"{whose} has {differing}. Transformers asks for these; programs that take the released gpt-oss's for granted "
        "compute other logits."
    )


def particulars(written: dict[str, Any]) -> list[str]:
    """The values of a configuration that differ from those which some programs assume for every gpt-oss."""
    layers = written["num_hidden_layers"]
    released = ["full_attention" if layer % 2 else "sliding_attention" for layer in range(layers)]
    found = {
        "windows on other than the even layers (layer_types)": written["layer_types"] != released,
        f"a SwiGLU of another form (swiglu_alpha = {written['swiglu_alpha']}, swiglu_limit = "
        f"{written['swiglu_limit']})": (written["swiglu_alpha"], written["swiglu_limit"]) != (1.702, 7.0),
        "positions without YaRN (rope_scaling)": written["rope_scaling"]["rope_type"] != "yarn",
        f"rms_norm_eps = {written['rms_norm_eps']}": written["rms_norm_eps"] != 1e-5,
    }
    return [part for part, present in found.items() if present]


def _experts(ffn: nn.Module, *, plain: bool) -> dict[Matrix, PlannedExperts]:
    if isinstance(ffn, PackedMixture):
        packed = {}
        for matrix in MATRICES:
            blocks, scales, bias = (getattr(ffn, f"{matrix}_{part}") for part in ("blocks", "scales", "bias"))
            bias = ffn.router.score.weight.new_zeros(scales.shape[:2]) if bias is None else bias
            packed[matrix] = PlannedExperts((plan(blocks), plan(scales)), plan(bias))
        return packed
    weights = as_experts(ffn)
    gate, up, down = weights.gate, weights.up, weights.down
    experts, ff, hidden = gate.shape
    up_bias = _or_zeros(weights.up_bias, up) - (1 if plain else 0)
    gate_up_bias = torch.stack([_or_zeros(weights.gate_bias, gate), up_bias], dim=2).flatten(1)

    def gate_up_of_each() -> Iterator[Tensor]:
        for expert in range(experts):
            yield torch.stack([gate[expert], up[expert]], dim=1).flatten(0, 1)

    gate_up = Planned([experts, 2 * ff, hidden], gate.dtype, gate_up_of_each)
    rows = Planned([experts, hidden, ff], down.dtype, down.unbind)
    return {
        "gate_up": PlannedExperts((gate_up,), plan(gate_up_bias)),
        "down": PlannedExperts((rows,), plan(_or_zeros(weights.down_bias, down))),
    }


def _or_zeros(bias: Tensor | None, weight: Tensor) -> Tensor:
    return weight.new_zeros(weight.shape[:-1]) if bias is None else bias


def _unreachable(decoder: Decoder) -> float:
    """A limit that no gate or up projection can reach, bias and rounding included: a power of two, or the largest
    number of the dtype."""
    reached = [torch.zeros(1, dtype=torch.float64)]
    for block in decoder.layers:
        assert isinstance(block, Block)
        assert isinstance(block.ffn_norm, RMSNorm)
        weights, norm = as_experts(block.ffn), block.ffn_norm.weight.double()
        for matrix, bias in ((weights.gate, weights.gate_bias), (weights.up, weights.up_bias)):
            for weight, its_bias in zip(matrix, _or_zeros(bias, matrix), strict=True):
                reach = (weight.double() * norm).norm(dim=-1) * math.sqrt(len(norm)) + its_bias.double().abs()
                reached.append(reach.max().detach().cpu().view(1))
    greatest = torch.cat(reached).max().item()
    require(
        math.isfinite(greatest),
        "weights that are infinite or NaN",
        "finite weights",
        "Look for the step of the training that made them.",
    )
    return min(2.0 ** (math.ceil(math.log2(greatest + 1)) + 1), torch.finfo(decoder.embedding.weight.dtype).max)
