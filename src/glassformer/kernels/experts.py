"""A mixture of experts: each token is the weighted sum of the SwiGLU networks that it chose.

Source: Jiang et al. 2024, arXiv 2401.04088, section 2.1.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.kernels.dispatch import (
    Fast,
    Operation,
    autocast_dtype,
    native_library,
    require_one_device,
    slow_bfloat16,
    use_definition,
)
from glassformer.kernels.linear import LEAST_WORK, by_onednn, slow_mkl
from glassformer.kernels.options import Clamp
from glassformer.kernels.swiglu import swiglu, swiglu_backward


class Experts(NamedTuple):
    """The weights of several SwiGLU networks.

    Matrices are ``[expert, out, in]``, biases ``[expert, out]`` or None.
    """

    gate: Tensor
    up: Tensor
    down: Tensor
    gate_bias: Tensor | None = None
    up_bias: Tensor | None = None
    down_bias: Tensor | None = None
    clamp: Clamp | None = None


def definition(experts: Experts, x: Tensor, weights: Tensor, indices: Tensor) -> Tensor:
    """Return ``sum over experts e of weight_e * down_e(swiglu(gate_e(x), up_e(x)))``.

    weight_e is 0 for tokens that did not choose e.
    """
    count = len(experts.gate)
    share = weights.new_zeros(len(x), count).scatter_add(1, indices, weights).to(x.dtype)

    def linear(rows: Tensor, weight: Tensor, bias: Tensor | None, e: int) -> Tensor:
        if bias is None:
            return F.linear(rows, weight[e].to(rows.dtype))
        return F.linear(rows, weight[e].to(rows.dtype), bias[e].to(rows.dtype))

    mixed = torch.zeros_like(x)
    for e in range(count):
        gate = linear(x, experts.gate, experts.gate_bias, e)
        up = linear(x, experts.up, experts.up_bias, e)
        out = linear(swiglu(gate, up, experts.clamp), experts.down, experts.down_bias, e)
        mixed = mixed + share[:, e, None] * out
    return mixed


def mix_experts(
    experts: Experts,
    x: Float[Tensor, "token hidden_dim"],
    weights: Float[Tensor, "token top_k"],
    indices: Int[Tensor, "token top_k"],
) -> Float[Tensor, "token hidden_dim"]:
    """Compute :func:`definition`, with each expert on its own tokens only.

    Token-expert pairs are sorted by expert. On the CPU the experts run one after another, each with
    its activations in the caches, and in float32 where the processor is slow with bfloat16;
    elsewhere one grouped product runs all. A single token on the CPU without gradients (a step of
    decoding) is not sorted. Where rows go depends on values, which a compiled graph cannot follow:
    compiled with gradients every expert runs on every token. The result is in the dtype of autocast
    where it is on, otherwise that of ``x``.
    """
    if x.is_meta:  # where rows go depends on values, and there are none
        return torch.empty_like(x)
    require_one_device(x, *experts[:6])
    x = x.to(autocast_dtype(x))
    if torch.compiler.is_compiling() and not torch.is_grad_enabled():
        alpha = None
        limit = None
        if experts.clamp is not None:
            alpha = experts.clamp.alpha
            limit = experts.clamp.limit
        return _mix_op(x, weights, indices, *experts[:6], alpha, limit)
    if torch.compiler.is_compiling() or use_definition():
        return definition(experts, x, weights, indices)
    return _mix(experts, x, weights, indices)


def _mix(experts: Experts, x: Tensor, weights: Tensor, indices: Tensor) -> Tensor:
    if len(x) == 1 and x.device.type == "cpu" and not torch.is_grad_enabled():
        return _mix_for_one_token(experts, x[0], weights[0], indices[0])[None]
    expert, order = indices.flatten().sort(stable=True)
    if x.device.type == "cpu":
        pairs = _Pairs.of(experts, x, indices, expert, order)
        with torch.autocast("cpu", enabled=False):  # the dtype is chosen here
            if torch.is_grad_enabled():
                return Fast.apply(_ONE_BY_ONE, (pairs, experts.clamp), x, weights, *experts[:6])
            return _forward(pairs, experts, x, weights, inside=None)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device)
    return _mix_grouped(experts, x, weights, expert, order, place)


class _Pairs(NamedTuple):
    """Token-expert pairs, pair = token * top_k + choice.

    oneDNN prepares a product anew for every number of rows that it has not seen, which takes as
    long as the product. Where it multiplies, each expert has a multiple of 64 rows, and rows
    without a pair are zeros.
    """

    indices: Tensor
    order: Tensor
    """The pair in each row, rows sorted by expert; a row without a pair has the number of pairs."""
    place: Tensor
    """The row of each pair."""
    counts: tuple[int, ...]
    """Rows of each expert."""
    onednn: bool
    """Products are computed by oneDNN, in float32."""

    @classmethod
    def of(
        cls, experts: Experts, x: Tensor, indices: Tensor, expert: Tensor, order: Tensor
    ) -> _Pairs:
        """Return the pairs of ``indices``, which ``order`` sorts by ``expert``."""
        counts = torch.bincount(expert, minlength=len(experts.gate))
        place = torch.empty_like(order)
        row_of_pair = torch.arange(len(order), device=order.device)
        large = len(order) * experts.gate[0].numel() >= LEAST_WORK * len(experts.gate)
        in_float32 = x.dtype == torch.float32 and slow_mkl()
        in_bfloat16 = x.dtype == torch.bfloat16 and not slow_bfloat16()
        onednn = large and in_float32
        onednn = onednn and native_library(x, *experts[:3]) is not None
        if onednn or (large and in_bfloat16):
            sizes = (counts + 63) // 64 * 64
            shifts = (sizes - counts).cumsum(0) - (sizes - counts)
            row_of_pair += shifts.index_select(0, expert)
            rows = order.new_full((int(sizes.sum()),), len(order))
            rows[row_of_pair] = order
            place[order] = row_of_pair
            return cls(indices, rows, place, tuple(sizes.tolist()), onednn)
        place[order] = row_of_pair
        return cls(indices, order, place, tuple(counts.tolist()), False)

    def rows(self) -> Iterator[tuple[int, slice]]:
        """Yield the experts that are chosen, and their rows."""
        first = 0
        for expert, count in enumerate(self.counts):
            if count:
                yield expert, slice(first, first + count)
            first += count

    def with_zeros(self, x: Tensor) -> Tensor:
        """Return ``x``, with a row of zeros at its end if some rows have no pair."""
        if len(self.order) == self.indices.numel():
            return x
        return torch.cat([x, x.new_zeros(1, *x.shape[1:])])

    def tokens(self, x: Tensor, part: slice) -> Tensor:
        """Return the tokens in some rows, from :meth:`with_zeros`."""
        return x.index_select(0, self.order[part] // self.indices.shape[1])

    def sums(self, of_rows: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return each token's weighted sum over its rows."""
        # One pass over memory instead of three.
        return F.embedding_bag(
            self.place.view_as(self.indices), of_rows, per_sample_weights=weights, mode="sum"
        )

    def product(self, a: Tensor, b: Tensor, out: Tensor, add: bool = False) -> None:
        """Write ``out = a @ b``, or ``out += a @ b``."""
        if self.onednn and add:
            out.add_(by_onednn(a, b.T))
        elif self.onednn:
            out.copy_(by_onednn(a, b.T))
        elif add:
            out.addmm_(a, b)
        else:
            torch.mm(a, b, out=out)


def _working_dtype(dtype: torch.dtype) -> torch.dtype:
    if dtype == torch.bfloat16 and slow_bfloat16():
        return torch.float32
    return dtype


def _forward(
    pairs: _Pairs, experts: Experts, x: Tensor, weights: Tensor, inside: list[Tensor] | None
) -> Tensor:
    """Compute the mixture expert by expert; gates and ups of each are appended to ``inside``."""
    dtype = _working_dtype(x.dtype)
    out = x.new_empty(len(pairs.order), experts.down.shape[1], dtype=dtype)
    multiply = by_onednn if pairs.onednn else F.linear

    def linear(rows: Tensor, weight: Tensor, bias: Tensor | None, e: int) -> Tensor:
        return multiply(rows, weight[e].to(dtype), None if bias is None else bias[e].to(dtype))

    with_zeros = pairs.with_zeros(x)
    for e, part in pairs.rows():
        rows = pairs.tokens(with_zeros, part).to(dtype)
        gate = linear(rows, experts.gate, experts.gate_bias, e)
        up = linear(rows, experts.up, experts.up_bias, e)
        hidden = swiglu(gate, up, experts.clamp)
        pairs.product(hidden, experts.down[e].to(dtype).T, out=out[part])
        if experts.down_bias is not None:
            out[part].add_(experts.down_bias[e])
        if inside is not None:
            inside += [gate, up]
    return pairs.sums(out, weights.to(dtype)).to(x.dtype)


def _by_formula(x: Tensor, weights: Tensor, *others: Any) -> Tensor:
    *parts, pairs, clamp = others
    with torch.autocast("cpu", enabled=False):
        return definition(Experts._make((*parts, clamp)), x, weights, pairs.indices)


def _forward_for_gradients(x: Tensor, weights: Tensor, *others: Any) -> tuple[Tensor, ...]:
    *parts, pairs, clamp = others
    inside: list[Tensor] = []
    return _forward(pairs, Experts._make((*parts, clamp)), x, weights, inside), *inside


@torch.autocast("cpu", enabled=False)
def _backward(
    needed: Sequence[bool], grad: Tensor, x: Tensor, weights: Tensor, *others: Any
) -> tuple[Tensor | None, ...]:
    """Return the gradients of ``x``, ``weights``, matrices and biases.

    ``others`` are matrices and biases, the gates and ups of each expert, pairs and clamp.
    """
    parameters, inside, (pairs, clamp) = others[:6], iter(others[6:-2]), others[-2:]
    gate, up, down = parameters[:3]
    gradients = [
        torch.empty_like(parameter) if need else None
        for parameter, need in zip(parameters, needed[2:], strict=True)
    ]
    unused = [e for e, count in enumerate(pairs.counts) if count == 0]
    for gradient in gradients:
        if gradient is not None and unused:
            gradient[unused] = 0
    dtype = _working_dtype(x.dtype)
    factors = (
        pairs.with_zeros(weights.flatten()).index_select(0, pairs.order).to(dtype).unsqueeze(1)
    )
    multiply = by_onednn if pairs.onednn else F.linear
    to_rows = factors.new_empty(len(factors), x.shape[1])
    to_factors = torch.empty_like(factors)

    def add(matrix: int, e: int, grad: Tensor, rows: Tensor) -> None:
        to_weight = gradients[matrix]
        to_bias = gradients[matrix + 3]
        if to_weight is not None and to_weight.dtype == dtype:
            pairs.product(grad.T, rows, out=to_weight[e])
        elif to_weight is not None:
            to_weight[e] = grad.T @ rows
        if to_bias is not None:
            to_bias[e] = grad.sum(0)

    with_zeros = pairs.with_zeros(x)
    flows = pairs.with_zeros(grad)
    for e, part in pairs.rows():
        rows = pairs.tokens(with_zeros, part).to(dtype)
        flow = pairs.tokens(flows, part).to(dtype)
        inputs = next(inside), next(inside)
        hidden = swiglu(*inputs, clamp)
        to_hidden = multiply(flow, down[e].to(dtype).T)
        torch.linalg.vecdot(hidden, to_hidden, out=to_factors[part, 0])
        if parameters[5] is not None:
            to_factors[part, 0] += flow @ parameters[5][e].to(dtype)
        scaled = flow.mul_(factors[part])
        add(2, e, scaled, hidden)
        to_gate, to_up = swiglu_backward(to_hidden.mul_(factors[part]), *inputs, clamp)
        add(0, e, to_gate, rows)
        add(1, e, to_up, rows)
        pairs.product(to_gate, gate[e].to(dtype), out=to_rows[part])
        pairs.product(to_up, up[e].to(dtype), out=to_rows[part], add=True)
    to_weights = to_factors[:, 0].index_select(0, pairs.place).view_as(weights).to(weights.dtype)
    return pairs.sums(to_rows).to(x.dtype), to_weights, *gradients


_ONE_BY_ONE = Operation(_by_formula, _forward_for_gradients, _backward)


def _mix_grouped(
    experts: Experts, x: Tensor, weights: Tensor, expert: Tensor, order: Tensor, place: Tensor
) -> Tensor:
    """Compute the mixture as one grouped product for each of the three matrices.

    ``place`` is the inverse of ``order``.
    """
    # Rows are copied and then permuted, for a gradient that adds in one order and rounds once.
    top_k = weights.shape[1]
    chosen = x.unsqueeze(1).expand(-1, top_k, -1).flatten(0, 1).index_select(0, order)
    ends = torch.searchsorted(
        expert, torch.arange(len(experts.gate), device=x.device), right=True, out_int32=True
    )

    def through(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        out = _grouped_product(rows, weight.to(rows.dtype), ends)
        if bias is None:
            return out
        return out.add_(bias.to(rows.dtype).index_select(0, expert))

    gate = through(chosen, experts.gate, experts.gate_bias)
    hidden = swiglu(gate, through(chosen, experts.up, experts.up_bias), experts.clamp)
    mixed = (
        through(hidden, experts.down, experts.down_bias)
        .index_select(0, place)
        .unflatten(0, (-1, top_k))
    )
    return (mixed * weights.to(mixed.dtype).unsqueeze(-1)).sum(1)


def _grouped_product(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Multiply rows ``ends[e - 1] .. ends[e]`` by the transposed ``weight[e]``, for every e."""
    # The kernel takes aligned rows, and under compilation bfloat16 only. Compilation may start at
    # this frame after a graph break.
    aligned = all(width * rows.itemsize % 16 == 0 for width in weight.shape[1:])
    if aligned and rows.dtype != torch.float64 and not torch.compiler.is_compiling():
        return F.grouped_mm(rows, weight.transpose(1, 2), offs=ends)
    counts = ends.diff(prepend=ends.new_zeros(1)).tolist()
    products = [
        F.linear(part, matrix) for part, matrix in zip(rows.split(counts), weight, strict=True)
    ]
    return torch.cat(products)


def _mix_for_one_token(experts: Experts, x: Tensor, weights: Tensor, indices: Tensor) -> Tensor:
    def through(row: Tensor, weight: Tensor, bias: Tensor | None, expert: int) -> Tensor:
        out = torch.mv(weight[expert].to(row.dtype), row)
        if bias is None:
            return out
        return out.add_(bias[expert])

    mixed = torch.zeros_like(x)
    for expert, weight in zip(indices.tolist(), weights, strict=True):
        gate = through(x, experts.gate, experts.gate_bias, expert)
        hidden = swiglu(gate, through(x, experts.up, experts.up_bias, expert), experts.clamp)
        mixed.addcmul_(through(hidden, experts.down, experts.down_bias, expert), weight)
    return mixed


# Written out: torch cannot infer it from a function that a run-time type checker has wrapped.
_MIX_SCHEMA = (
    "(Tensor x, Tensor weights, Tensor indices, Tensor gate, Tensor up, Tensor down, "
    "Tensor? gate_bias, Tensor? up_bias, Tensor? down_bias, float? alpha, float? limit) -> Tensor"
)


# Without the cache every step of decoding would create one and check its fields.
_clamp = functools.cache(Clamp)


@torch.library.custom_op("glassformer::mix_experts", mutates_args=(), schema=_MIX_SCHEMA)
def _mix_op(x: Tensor, weights: Tensor, indices: Tensor, *others: Any) -> Tensor:
    """Compute the fast form as one opaque operator of a compiled graph without gradients."""
    alpha, limit = others[6:]
    clamp = None if alpha is None else _clamp(alpha, limit)
    return _mix(Experts._make((*others[:6], clamp)), x, weights, indices)


@_mix_op.register_fake
def _(x: Tensor, *_others: Any) -> Tensor:
    return torch.empty_like(x)
