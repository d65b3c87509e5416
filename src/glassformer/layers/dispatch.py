"""How tokens reach their experts and come back: each expert runs once, on its own tokens."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.layers.feedforward import Clamp, swiglu


class Experts(NamedTuple):
    """The weights of several SwiGLU networks, ``[expert, out, in]``, with biases ``[expert, out]`` or None."""

    gate: Tensor
    up: Tensor
    down: Tensor
    gate_bias: Tensor | None = None
    up_bias: Tensor | None = None
    down_bias: Tensor | None = None
    clamp: Clamp | None = None


def mix_experts(
    experts: Experts,
    x: Float[Tensor, "token hidden_dim"],
    weights: Float[Tensor, "token top_k"],
    indices: Int[Tensor, "token top_k"],
    load: Int[Tensor, " expert"],
) -> Float[Tensor, "token hidden_dim"]:
    """The weighted sum, for each token, of the experts it chose.

    Token-expert pairs are sorted by expert, and one grouped product runs all experts, each on its own rows. A single
    token on the CPU (a step of decoding) visits its experts one by one instead, which spares the empty groups.

    Args:
        experts: Their weights.
        x: Tokens.
        weights: What each chosen expert counts.
        indices: Which experts each token chose.
        load: How many tokens chose each expert.
    """
    if torch.compiler.is_compiling() and not torch.is_grad_enabled():
        alpha, limit = (None, None) if experts.clamp is None else (experts.clamp.alpha, experts.clamp.limit)
        return _mix_op(x, weights, indices, load, *experts[:6], alpha, limit)
    return _mix(experts, x, weights, indices, load)


@torch.compiler.disable
def _mix(experts: Experts, x: Tensor, weights: Tensor, indices: Tensor, load: Tensor) -> Tensor:
    if x.is_meta:  # where rows go is data, and there is none
        return torch.empty_like(x)
    if len(x) == 1 and x.device.type == "cpu" and not torch.is_grad_enabled():
        return _mix_for_one_token(experts, x[0], weights[0], indices[0])[None]
    expert, order = indices.flatten().sort(stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device)
    chosen = _Dispatch.apply(x, order, place, weights.shape[1])
    ends = load.cumsum(0).to(torch.int32)

    def through(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        out = _grouped_product(rows, weight.to(rows.dtype), ends)
        return out if bias is None else out.add_(bias.to(rows.dtype).index_select(0, expert))

    gate = through(chosen, experts.gate, experts.gate_bias)
    hidden = swiglu(gate, through(chosen, experts.up, experts.up_bias), experts.clamp)
    mixed = _Contiguous.apply(through(hidden, experts.down, experts.down_bias))
    return _Combine.apply(mixed, weights, order, place)


def _grouped_product(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Rows ``ends[e - 1] .. ends[e]`` times the transposed ``weight[e]``, for every expert e."""
    aligned = all(width * rows.itemsize % 16 == 0 for width in weight.shape[1:])
    if aligned and rows.dtype != torch.float64:  # all that the kernel takes
        return F.grouped_mm(rows, weight.transpose(1, 2), offs=ends)
    counts = ends.diff(prepend=ends.new_zeros(1)).tolist()
    return torch.cat([F.linear(part, each) for part, each in zip(rows.split(counts), weight, strict=True)])


def _mix_for_one_token(experts: Experts, x: Tensor, weights: Tensor, indices: Tensor) -> Tensor:
    """The same for a single token, on views of its experts' weights."""

    def through(row: Tensor, weight: Tensor, bias: Tensor | None, expert: int) -> Tensor:
        out = torch.mv(weight[expert].to(row.dtype), row)
        return out if bias is None else out.add_(bias[expert])

    mixed = torch.zeros_like(x)
    for expert, weight in zip(indices.tolist(), weights, strict=True):
        gate = through(x, experts.gate, experts.gate_bias, expert)
        hidden = swiglu(gate, through(x, experts.up, experts.up_bias, expert), experts.clamp)
        mixed.addcmul_(through(hidden, experts.down, experts.down_bias, expert), weight)
    return mixed


class _Dispatch(torch.autograd.Function):
    """Rows of ``x`` copied into expert order; on the way back each token sums its copies, without scattering.

    ``order[r]`` is the token-expert pair in sorted row r, pair = token * top_k + choice; ``place`` is its inverse.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, place: Tensor, top_k: int) -> Tensor:
        ctx.save_for_backward(place)
        ctx.top_k = top_k
        return x.index_select(0, order // top_k)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (place,) = ctx.saved_tensors
        return F.embedding_bag(place.view(-1, ctx.top_k), grads[0], mode="sum"), None, None, None


class _Combine(torch.autograd.Function):
    """The weighted sum of each token's expert outputs, which lie in expert order."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, weights: Tensor, order: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(y, weights, order, place)
        # A bag of rows, weighted and summed, is what this is: one pass over memory where plain operators take three.
        return F.embedding_bag(place.view_as(weights), y, per_sample_weights=weights.to(y.dtype), mode="sum")

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        y, weights, order, place = ctx.saved_tensors
        copies = grads[0].index_select(0, order // weights.shape[1])
        grad_weights = (copies * y).sum(-1).index_select(0, place).view_as(weights)
        return copies.mul_(weights.flatten().index_select(0, order).unsqueeze(-1)), grad_weights, None, None


class _Contiguous(torch.autograd.Function):
    """The identity, whose gradient is contiguous: the grouped product's backward pass needs it so."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0].contiguous()


# Written out, because torch cannot read it off a function that a run-time type checker has wrapped.
_MIX_SCHEMA = (
    "(Tensor x, Tensor weights, Tensor indices, Tensor load, Tensor gate, Tensor up, Tensor down, "
    "Tensor? gate_bias, Tensor? up_bias, Tensor? down_bias, float? alpha, float? limit) -> Tensor"
)


@torch.library.custom_op("glassformer::mix_experts", mutates_args=(), schema=_MIX_SCHEMA)
def _mix_op(
    x: Tensor,
    weights: Tensor,
    indices: Tensor,
    load: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    gate_bias: Tensor | None,
    up_bias: Tensor | None,
    down_bias: Tensor | None,
    alpha: float | None,
    limit: float | None,
) -> Tensor:
    """The same as one operator: which rows go where is data, which a compiled graph cannot look into."""
    clamp = None if alpha is None or limit is None else Clamp(alpha, limit)
    return _mix(Experts(gate, up, down, gate_bias, up_bias, down_bias, clamp), x, weights, indices, load)


@_mix_op.register_fake
def _(x: Tensor, *_others: Any) -> Tensor:
    return torch.empty_like(x)
