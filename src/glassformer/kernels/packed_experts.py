"""Mixtures of experts whose matrices are packed rows of any kind.

No matrix is expanded as a whole: :func:`~glassformer.kernels.packed.packed_linear` multiplies by
packed rows.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.kernels import packed
from glassformer.kernels.dispatch import autocast_dtype, require_one_device, use_definition
from glassformer.kernels.options import Clamp
from glassformer.kernels.packed import packed_linear
from glassformer.kernels.swiglu import swiglu


class PackedMatrices(NamedTuple):
    """The packed weights of several SwiGLU networks.

    Each of gate, up and down is uint8 ``[expert, out, bytes]`` of the kind in ``kinds``, and has a
    bias ``[expert, out]`` or None.
    """

    gate: Tensor
    up: Tensor
    down: Tensor
    gate_bias: Tensor | None
    up_bias: Tensor | None
    down_bias: Tensor | None
    kinds: tuple[str, str, str]
    clamp: Clamp | None = None


Product = Callable[[Tensor, Tensor, str, Tensor | None], Tensor]
"""Returns ``x @ weights.T + bias`` from x, packed rows, their kind and a bias."""


def definition(experts: PackedMatrices, x: Tensor, weights: Tensor, indices: Tensor) -> Tensor:
    """Return ``sum over experts e of weight_e * down_e(swiglu(gate_e(x), up_e(x)))``.

    weight_e is 0 where e was not chosen. Computed in float32 at least, and rounded to ``x``'s dtype
    at the end.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    tokens = x.to(wide)
    count = len(experts.gate)
    shares = weights.new_zeros(len(x), count).scatter_add(1, indices, weights).to(wide)
    mixed = torch.zeros_like(tokens)
    for expert in range(count):
        output = _output(experts, expert, tokens, packed.definition)
        mixed = mixed + shares[:, expert, None] * output
    return mixed.to(x.dtype)


def _output(experts: PackedMatrices, expert: int, tokens: Tensor, product: Product) -> Tensor:
    """Return ``down(swiglu(gate(x), up(x)))`` of one expert."""

    def through(x: Tensor, blocks: Tensor, kind: str, bias: Tensor | None) -> Tensor:
        if bias is not None:
            bias = bias[expert]
        return product(x, blocks[expert], kind, bias)

    gate_kind, up_kind, down_kind = experts.kinds
    gate = through(tokens, experts.gate, gate_kind, experts.gate_bias)
    up = through(tokens, experts.up, up_kind, experts.up_bias)
    hidden = swiglu(gate, up, experts.clamp)
    return through(hidden, experts.down, down_kind, experts.down_bias)


def mix_packed_matrices(
    experts: PackedMatrices,
    x: Float[Tensor, "token hidden_dim"],
    weights: Float[Tensor, "token top_k"],
    indices: Int[Tensor, "token top_k"],
) -> Float[Tensor, "token hidden_dim"]:
    """Compute :func:`definition`, with each expert on its own tokens only.

    Experts that no token chose are not read. ``x``, ``weights`` and biases have gradients, packed
    rows have none. Where rows go depends on values, which a compiled graph cannot follow: compiled
    with gradients every expert runs on every token.
    """
    if x.is_meta:
        return torch.empty_like(x)
    require_one_device(x, *experts[:6])
    x = x.to(autocast_dtype(x))
    is_compiling = torch.compiler.is_compiling()
    if is_compiling and not torch.is_grad_enabled():
        if experts.clamp is None:
            clamp = []
        else:
            clamp = [experts.clamp.alpha, experts.clamp.limit]
        return _mix_op(
            x, weights, indices, list(experts[:3]), list(experts[3:6]), list(experts.kinds), clamp
        )
    if is_compiling or use_definition():
        return definition(experts, x, weights, indices)
    with torch.autocast(x.device.type, enabled=False):
        return _mix(experts, x, weights, indices)


def _mix(experts: PackedMatrices, x: Tensor, weights: Tensor, indices: Tensor) -> Tensor:
    """Add up the outputs of one chosen expert after the other."""
    wide = torch.promote_types(x.dtype, torch.float32)
    tokens = x.to(wide)
    shares = weights.to(wide).flatten()
    sorted_experts, order = indices.flatten().sort(stable=True)
    counts = sorted_experts.bincount(minlength=len(experts.gate)).tolist()
    mixed = torch.zeros_like(tokens)
    for expert, pairs in enumerate(order.split(counts)):
        if len(pairs) == 0:
            continue
        rows = pairs // indices.shape[1]
        output = _output(experts, expert, tokens.index_select(0, rows), packed_linear)
        share = shares.index_select(0, pairs).unsqueeze(1)
        mixed = mixed.index_add_(0, rows, share * output)
    return mixed.to(x.dtype)


# Written out: torch cannot infer it from a function that a run-time type checker has wrapped.
_SCHEMA = (
    "(Tensor x, Tensor weights, Tensor indices, Tensor[] blocks, Tensor?[] biases, str[] kinds, "
    "float[] clamp) -> Tensor"
)


@torch.library.custom_op("glassformer::mix_packed_matrices", mutates_args=(), schema=_SCHEMA)
def _mix_op(
    x: Tensor,
    weights: Tensor,
    indices: Tensor,
    blocks: list[Tensor],
    biases: list[Tensor | None],
    kinds: list[str],
    clamp: list[float],
) -> Tensor:
    """Compute :func:`_mix` as one operator of a compiled graph, which cannot depend on choices."""
    gate, up, down = blocks
    gate_bias, up_bias, down_bias = biases
    gate_kind, up_kind, down_kind = kinds
    experts = PackedMatrices(
        gate,
        up,
        down,
        gate_bias,
        up_bias,
        down_bias,
        (gate_kind, up_kind, down_kind),
        Clamp(*clamp) if clamp else None,
    )
    return _mix(experts, x, weights, indices)


@_mix_op.register_fake
def _(x: Tensor, *_others: Any) -> Tensor:
    return torch.empty_like(x)
