"""A decoder's weights rewritten, with the same logits, for formats that lack key weights, interleaved rotation or dense
feed-forward networks."""

from __future__ import annotations

from torch import Tensor, nn

from glassformer.kernels.experts import Experts
from glassformer.kernels.options import Layout
from glassformer.kernels.rotation import convert_rows
from glassformer.layers.experts import MixtureOfExperts
from glassformer.layers.feedforward import SwiGLU
from glassformer.layers.grouped_query import GroupedQueryAttention


def half_split_projections(attention: GroupedQueryAttention, layout: Layout) -> dict[str, Tensor]:
    """The query and key projections for the half-split layout, and without key weights.

    ``q . (w k) = (w q) . k``, and a factor per head commutes with the rotation: key weights go into the query. Keys are
    ``attention.query.weight``, ``attention.key.weight`` and, where there are biases, the same with ``bias``.
    """
    rewritten = {}
    for name, heads in (("query", attention.num_heads), ("key", attention.num_kv_heads)):
        projection: nn.Linear = getattr(attention, name)
        for part, tensor in (("weight", projection.weight), ("bias", projection.bias)):
            if tensor is None:
                continue
            if name == "query" and attention.key_weights is not None:
                factors = attention.key_weights.repeat_interleave(len(tensor) // heads)
                tensor = tensor * (factors[:, None] if part == "weight" else factors)
            if layout == "interleaved":
                tensor = convert_rows(tensor, heads, to="half-split")
            rewritten[f"attention.{name}.{part}"] = tensor
    return rewritten


def as_experts(ffn: nn.Module) -> Experts:
    """The weights of a dense mixture, or of one network as a mixture of one."""
    if isinstance(ffn, SwiGLU):
        parts = (ffn.gate, ffn.up, ffn.down)
        gate, up, down = (part.weight[None] for part in parts)
        gate_bias, up_bias, down_bias = (None if part.bias is None else part.bias[None] for part in parts)
        return Experts(gate, up, down, gate_bias, up_bias, down_bias)
    assert isinstance(ffn, MixtureOfExperts)
    return Experts(ffn.gate, ffn.up, ffn.down, ffn.gate_bias, ffn.up_bias, ffn.down_bias)
