"""Experts whose weights stay packed in memory as MXFP4, and are expanded only on their way into a product."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.errors import InputError, require, require_positive
from glassformer.kernels.options import Clamp
from glassformer.kernels.rule import autocast_dtype
from glassformer.kernels.swiglu import swiglu
from glassformer.layers.experts import MixtureOfExperts, Router
from glassformer.quantized import mxfp4, mxfp4_native

# Tokens mixed at a time: what lies between the products then takes at most some 200 MB at the sizes of gpt-oss.
_MOST_TOKENS = 1024
# Smaller experts are left to torch: they would not pay for loading the kernel.
_LEAST_GROUPS = 2**11
# Rows that torch expands at a time on the CPU, so that they stay in its cache.
_ROWS = 128


class PackedExperts(NamedTuple):
    """The weights of several SwiGLU networks in MXFP4, as gpt-oss's checkpoints hold them.

    ``gate_up_blocks [expert, 2 * ff_dim, hidden_dim / 32, 16]`` and its scales have row 2i for the gate and row
    2i + 1 for the up projection of unit i; ``down_blocks [expert, hidden_dim, ff_dim / 32, 16]`` and its scales;
    biases ``gate_up_bias [expert, 2 * ff_dim]`` and ``down_bias [expert, hidden_dim]`` or None.
    """

    gate_up_blocks: Tensor
    gate_up_scales: Tensor
    down_blocks: Tensor
    down_scales: Tensor
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None
    clamp: Clamp | None = None


class PackedMixture(nn.Module):
    """A mixture of experts as :class:`MixtureOfExperts`, of a quarter of bfloat16's size: for inference alone.

    The weights stay packed, in the order of gpt-oss's checkpoints (see :class:`PackedExperts`), and of each batch only
    the experts that it chose are read. On the CPU a kernel expands them in registers; without it, and elsewhere, torch
    expands them piece by piece. Products, biases and the activation are computed in float32, in which they also add up
    (on other devices a product is rounded to ``x``'s dtype); the activation is rounded to ``x``'s dtype before the
    second product, and the output at the end.

    The weights are buffers of bytes, at first all zero; the biases are parameters that take no gradient. They are
    meant to be loaded, or packed from a dense mixture by :meth:`pack`. No gradient passes backwards: asking for one
    raises :class:`InputError`.

    Args:
        hidden_dim: Width of input and output, a multiple of 32.
        ff_dim: Width inside each expert, a multiple of 32.
        num_experts: Number of experts.
        top_k: Experts a token passes through.
        bias: Give router and experts biases (gpt-oss).
        clamp: gpt-oss's clamped activation instead of the plain one.

    Shape: ``[..., hidden_dim]`` to ``[..., hidden_dim]``.

    Raises:
        InputError: A size below 1 or no multiple of 32, ``top_k > num_experts``, or an input of another width.

    Source: OpenAI 2025, gpt-oss model card, arXiv 2508.10925, section 2.1.
    """

    gate_up_blocks: Tensor
    gate_up_scales: Tensor
    down_blocks: Tensor
    down_scales: Tensor
    gate_up_bias: Tensor | None
    down_bias: Tensor | None

    def __init__(
        self,
        hidden_dim: int,
        ff_dim: int,
        num_experts: int = 8,
        top_k: int = 2,
        *,
        bias: bool = False,
        clamp: Clamp | None = None,
    ) -> None:
        super().__init__()
        require_positive(hidden_dim=hidden_dim, ff_dim=ff_dim)
        for name, width in (("hidden_dim", hidden_dim), ("ff_dim", ff_dim)):
            multiple = f"a multiple of {mxfp4.GROUP}"
            require(width % mxfp4.GROUP == 0, f"{name} = {width}", multiple, "MXFP4 packs that many weights of a row.")
        self.router = Router(hidden_dim, num_experts, top_k, bias=bias)
        self.hidden_dim, self.ff_dim, self.num_experts, self.top_k = hidden_dim, ff_dim, num_experts, top_k
        for name, rows, width in (("gate_up", 2 * ff_dim, hidden_dim), ("down", hidden_dim, ff_dim)):
            shape = (num_experts, rows, width // mxfp4.GROUP)
            self.register_buffer(f"{name}_blocks", torch.zeros(*shape, mxfp4.GROUP_BYTES, dtype=torch.uint8))
            self.register_buffer(f"{name}_scales", torch.zeros(shape, dtype=torch.uint8))
            start = nn.Parameter(torch.zeros(num_experts, rows), requires_grad=False) if bias else None
            self.register_parameter(f"{name}_bias", start)
        self.clamp = clamp

    def forward(self, x: Float[Tensor, "*batch hidden_dim"]) -> Float[Tensor, "*batch hidden_dim"]:
        """Route every position and mix the outputs of its experts."""
        tokens = x.reshape(-1, x.shape[-1])
        return self.mix(tokens, *self.router.route(tokens)).view(x.shape)

    def mix(
        self,
        tokens: Float[Tensor, "token hidden_dim"],
        weights: Float[Tensor, "token choice"],
        indices: Int[Tensor, "token choice"],
    ) -> Float[Tensor, "token hidden_dim"]:
        """The weighted sum of the given experts, independent of the router."""
        load = torch.zeros(self.num_experts, dtype=torch.int64, device=tokens.device)
        load = load.scatter_add_(0, indices.flatten(), torch.ones_like(indices.flatten()))
        return mix_packed_experts(self.experts(), tokens.to(autocast_dtype(tokens)), weights, indices, load)

    def experts(self) -> PackedExperts:
        """Its weights."""
        gate_up, down = (self.gate_up_blocks, self.gate_up_scales), (self.down_blocks, self.down_scales)
        return PackedExperts(*gate_up, *down, self.gate_up_bias, self.down_bias, self.clamp)

    @classmethod
    @torch.no_grad()
    def pack(cls, dense: MixtureOfExperts) -> PackedMixture:
        """A dense mixture with its weights rounded to MXFP4 (see :func:`glassformer.quantized.mxfp4.encode`).

        Raises:
            InputError: Widths that are no multiples of 32, or weights that are infinite or NaN.
        """
        bias = dense.gate_bias is not None
        with torch.device("meta"):
            packed = cls(dense.hidden_dim, dense.ff_dim, dense.num_experts, dense.top_k, bias=bias, clamp=dense.clamp)
        packed.router.load_state_dict(dense.router.state_dict(), assign=True)
        packed.down_blocks, packed.down_scales = mxfp4.encode(dense.down)
        gate, up = mxfp4.encode(dense.gate), mxfp4.encode(dense.up)
        packed.gate_up_blocks, packed.gate_up_scales = (_interleaved(*pair) for pair in zip(gate, up, strict=True))
        if dense.gate_bias is not None and dense.up_bias is not None and dense.down_bias is not None:
            both = _interleaved(dense.gate_bias, dense.up_bias)
            packed.gate_up_bias = nn.Parameter(both, requires_grad=False)
            packed.down_bias = nn.Parameter(dense.down_bias.clone(), requires_grad=False)
        return packed.train(dense.training)

    @torch.no_grad()
    def unpack(self, dtype: torch.dtype = torch.bfloat16) -> MixtureOfExperts:
        """The same mixture with its weights expanded (exactly, unless to float16), which can be trained."""
        bias = self.gate_up_bias is not None
        with torch.device("meta"):
            dense = MixtureOfExperts(
                self.hidden_dim, self.ff_dim, self.num_experts, self.top_k, bias=bias, clamp=self.clamp
            )
        router = {name: weight.to(dtype, copy=True) for name, weight in self.router.state_dict().items()}
        dense.router.load_state_dict(router, assign=True)
        gate_up = mxfp4.decode(self.gate_up_blocks, self.gate_up_scales, dtype)
        dense.gate, dense.up = (nn.Parameter(gate_up[:, half::2].contiguous()) for half in (0, 1))
        dense.down = nn.Parameter(mxfp4.decode(self.down_blocks, self.down_scales, dtype))
        if self.gate_up_bias is not None and self.down_bias is not None:
            biases = self.gate_up_bias.to(dtype)
            dense.gate_bias, dense.up_bias = (nn.Parameter(biases[:, half::2].contiguous()) for half in (0, 1))
            dense.down_bias = nn.Parameter(self.down_bias.to(dtype, copy=True))
        return dense.train(self.training)


def _interleaved(even: Tensor, odd: Tensor) -> Tensor:
    return torch.stack([even, odd], dim=2).flatten(1, 2)


def mix_packed_experts(
    experts: PackedExperts,
    x: Float[Tensor, "token hidden_dim"],
    weights: Float[Tensor, "token top_k"],
    indices: Int[Tensor, "token top_k"],
    load: Int[Tensor, " expert"],
) -> Float[Tensor, "token hidden_dim"]:
    """The weighted sum, for each token, of the experts it chose, as :func:`glassformer.kernels.experts.mix_experts`.

    Args:
        experts: Their packed weights.
        x: Tokens.
        weights: What each chosen expert counts.
        indices: Which experts each token chose.
        load: How many tokens chose each expert.

    Raises:
        InputError: From the backward pass, if there is one.
    """
    grad = torch.is_grad_enabled()
    if torch.compiler.is_compiling() and not grad:
        alpha, limit = (None, None) if experts.clamp is None else (experts.clamp.alpha, experts.clamp.limit)
        return _mix_op(x, weights, indices, load, *experts[:6], alpha, limit)
    with torch.no_grad():
        mixed = _mix(experts, x, weights, indices, load)
    return _NoGradient.apply(mixed, x, weights) if grad and (x.requires_grad or weights.requires_grad) else mixed


@torch.compiler.disable
def _mix(experts: PackedExperts, x: Tensor, weights: Tensor, indices: Tensor, load: Tensor) -> Tensor:
    if x.is_meta or len(x) == 0:
        return torch.empty_like(x)
    with torch.autocast(x.device.type, enabled=False):
        if len(x) == 1 and x.device.type != "cpu":
            return _mix_for_one_token(experts, x, weights[0], indices[0])
        if len(x) <= _MOST_TOKENS:
            return _mix_for_some_tokens(experts, x, weights, indices, load.tolist())
        parts = []
        for each in zip(x.split(_MOST_TOKENS), weights.split(_MOST_TOKENS), indices.split(_MOST_TOKENS), strict=True):
            counts = each[2].flatten().bincount(minlength=len(load)).tolist()
            parts.append(_mix_for_some_tokens(experts, *each, counts))
        return torch.cat(parts)


def _mix_for_some_tokens(
    experts: PackedExperts, x: Tensor, weights: Tensor, indices: Tensor, counts: list[int]
) -> Tensor:
    """Token-expert pairs sorted by expert; results come back as weighted bags of rows, as in ``dispatch``."""
    expert, order = indices.flatten().sort(stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device)

    def product(rows: Tensor, blocks: Tensor, scales: Tensor) -> Tensor:
        out = rows.new_empty(len(rows), scales.shape[1], dtype=_wide(rows.dtype))
        start = 0
        for number, count in enumerate(counts):
            if count > 0:
                _product(rows[start : start + count], blocks[number], scales[number], out[start : start + count])
                start += count
        return out

    outputs = _through(experts, x.index_select(0, order // indices.shape[1]), expert, product)
    bags = F.embedding_bag(place.view_as(indices), outputs, per_sample_weights=weights.to(outputs.dtype), mode="sum")
    return bags.to(x.dtype)


def _mix_for_one_token(experts: PackedExperts, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """The same for one token elsewhere than on the CPU: no number leaves the device, so nothing waits for it."""

    def product(rows: Tensor, blocks: Tensor, scales: Tensor) -> Tensor:
        expanded = mxfp4.decode(blocks.index_select(0, chosen), scales.index_select(0, chosen), rows.dtype)
        return torch.bmm(expanded, rows.unsqueeze(2)).squeeze(2).to(_wide(rows.dtype))

    outputs = _through(experts, x.expand(len(chosen), -1), chosen, product)
    return (weights.unsqueeze(1).to(outputs.dtype) * outputs).sum(0, keepdim=True).to(x.dtype)


def _through(
    experts: PackedExperts, rows: Tensor, expert: Tensor, product: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> Tensor:
    """What the expert of each row makes of it."""
    inside = product(rows, experts.gate_up_blocks, experts.gate_up_scales)
    if experts.gate_up_bias is not None:
        inside += experts.gate_up_bias.index_select(0, expert)
    gate, up = inside.unflatten(1, (-1, 2)).unbind(2)
    hidden = swiglu(gate, up, experts.clamp).to(rows.dtype)
    outputs = product(hidden, experts.down_blocks, experts.down_scales)
    if experts.down_bias is not None:
        outputs += experts.down_bias.index_select(0, expert)
    return outputs


def _product(rows: Tensor, blocks: Tensor, scales: Tensor, out: Tensor) -> None:
    """Write ``rows @ weights.T`` of one expert to ``out``."""
    if rows.device.type != "cpu":
        out.copy_(rows @ mxfp4.decode(blocks, scales, rows.dtype).T)
        return
    kernel = None
    if rows.dtype != torch.float64:
        rows = rows if rows.dtype == torch.bfloat16 else rows.float()
        kernel = mxfp4_native.kernel() if scales.numel() >= _LEAST_GROUPS else None
    if kernel is not None:
        mxfp4_native.multiply(kernel, rows.contiguous(), blocks.contiguous(), scales.contiguous(), out)
        return
    rows = rows.to(out.dtype)
    # One piece of memory for all: asking the system for each anew takes longer than filling it.
    expanded = rows.new_empty(_ROWS, rows.shape[1])
    for first in range(0, len(scales), _ROWS):
        some = slice(first, first + _ROWS)
        weights = mxfp4.decode(blocks[some], scales[some], out.dtype, out=expanded[: len(scales[some])])
        out[:, some] = F.linear(rows, weights)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


class _NoGradient(torch.autograd.Function):
    """The identity, which says from the backward pass that there is none."""

    @staticmethod
    def forward(ctx: Any, mixed: Tensor, *_sources: Tensor) -> Tensor:
        return mixed.view_as(mixed)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        raise InputError(
            "a backward pass through packed experts",
            "inference: their weights are four bits wide, and their gradient is not computed",
            "Call under torch.no_grad(), or train on what PackedMixture.unpack() gives.",
        )


# Written out, because torch cannot read it off a function that a run-time type checker has wrapped.
_MIX_SCHEMA = (
    "(Tensor x, Tensor weights, Tensor indices, Tensor load, Tensor gate_up_blocks, Tensor gate_up_scales, "
    "Tensor down_blocks, Tensor down_scales, Tensor? gate_up_bias, Tensor? down_bias, float? alpha, float? limit) "
    "-> Tensor"
)


@torch.library.custom_op("glassformer::mix_packed_experts", mutates_args=(), schema=_MIX_SCHEMA)
def _mix_op(
    x: Tensor,
    weights: Tensor,
    indices: Tensor,
    load: Tensor,
    gate_up_blocks: Tensor,
    gate_up_scales: Tensor,
    down_blocks: Tensor,
    down_scales: Tensor,
    gate_up_bias: Tensor | None,
    down_bias: Tensor | None,
    alpha: float | None,
    limit: float | None,
) -> Tensor:
    """The same as one operator: which experts are read is data, which a compiled graph cannot look into."""
    clamp = None if alpha is None or limit is None else Clamp(alpha, limit)
    packed = (gate_up_blocks, gate_up_scales, down_blocks, down_scales, gate_up_bias, down_bias)
    return _mix(PackedExperts(*packed, clamp), x, weights, indices, load)


@_mix_op.register_fake
def _(x: Tensor, *_others: Any) -> Tensor:
    return torch.empty_like(x)
