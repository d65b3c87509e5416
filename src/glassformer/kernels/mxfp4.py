"""Weights packed as MXFP4: expansion, products and mixtures of experts.

Definitions come first, then the fast forms. On the CPU a C++ kernel multiplies by packed weights
without storing them expanded (:func:`multiply_natively`); without it, and on other devices, torch
expands a part at a time.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from glassformer.errors import InputError
from glassformer.kernels import PLAIN, native
from glassformer.kernels.dispatch import (
    NATIVE_NAMES,
    autocast_dtype,
    require_one_device,
    transformed,
)
from glassformer.kernels.native import LEVELS, Library, declare
from glassformer.kernels.options import Clamp
from glassformer.kernels.swiglu import swiglu

GROUP = 32
"""Weights that share a scale."""
GROUP_BYTES = 16
"""Bytes of a group. A byte holds two codes."""
NAN_SCALE = 255
"""The scale that makes its whole group NaN."""
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Values of the lower three bits of a code, two of exponent and one of mantissa (E2M1).

The fourth bit is the sign.
"""
SIGNED_VALUES = (*MAGNITUDES, *(-magnitude for magnitude in MAGNITUDES))
"""Values of the 16 codes."""

FEW = 8
"""Tokens that are multiplied in fixed point even where the processor has products of bfloat16."""

# Groups of 32 weights per thread, below which another thread does not pay.
_GROUPS_PER_THREAD = 2**13
# Smaller tensors do not pay for loading the kernel.
_LEAST_GROUPS = 2**11
# Groups that torch expands at a time; on the CPU, intermediate results then stay in its cache.
_CHUNK = 2**14
_CHUNK_ELSEWHERE = 2**21
# Rows that torch expands at a time for a product on the CPU, for the same reason.
_ROWS = 128
# Tokens mixed at a time: at the sizes of gpt-oss, intermediate results then take up to 200 MB.
_MOST_TOKENS = 1024


class Mxfp4Experts(NamedTuple):
    """The weights of several SwiGLU networks in MXFP4, as gpt-oss's checkpoints hold them.

    ``gate_up_blocks [expert, 2 * ff_dim, hidden_dim / 32, 16]`` and its scales have row 2i for the
    gate and row 2i + 1 for the up projection of unit i.
    ``down_blocks [expert, hidden_dim, ff_dim / 32, 16]`` has scales too.
    ``gate_up_bias [expert, 2 * ff_dim]`` and ``down_bias [expert, hidden_dim]`` may be None.
    """

    gate_up_blocks: Tensor
    gate_up_scales: Tensor
    down_blocks: Tensor
    down_scales: Tensor
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None
    clamp: Clamp | None = None


# ---- definitions ---------------------------------------------------------------------------------


def expand_definition(
    blocks: UInt8[Tensor, "*batch groups 16"], scales: UInt8[Tensor, "*batch groups"]
) -> Float[Tensor, "*batch weights"]:
    """Return ``2 ** (scale - 127) * value(code)`` in float64, which is exact; scale 255 is NaN."""
    values = torch.tensor(SIGNED_VALUES, dtype=torch.float64, device=blocks.device)
    codes = torch.stack([blocks & 15, blocks >> 4], dim=-1).flatten(-2).int()
    exponents = (scales.int() - 127).unsqueeze(-1)
    return torch.ldexp(values[codes], exponents).where(exponents <= 127, torch.nan).flatten(-2)


def mix_definition(experts: Mxfp4Experts, x: Tensor, weights: Tensor, indices: Tensor) -> Tensor:
    """Return ``sum over experts e of weight_e * down_e(swiglu(gate_e(x), up_e(x)))``.

    weight_e is 0 for tokens that did not choose e. Computed in float32 at least; the activation is
    rounded to ``x``'s dtype.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    count = len(experts.down_blocks)
    share = weights.new_zeros(len(x), count).scatter_add(1, indices, weights).to(wide)

    def linear(rows: Tensor, blocks: Tensor, scales: Tensor, bias: Tensor | None, e: int) -> Tensor:
        weight = expand_definition(blocks[e], scales[e]).to(wide)
        return F.linear(rows.to(wide), weight, None if bias is None else bias[e].to(wide))

    mixed = torch.zeros_like(x, dtype=wide)
    for e in range(count):
        inside = linear(x, experts.gate_up_blocks, experts.gate_up_scales, experts.gate_up_bias, e)
        hidden = swiglu(inside[:, 0::2], inside[:, 1::2], experts.clamp).to(x.dtype)
        out = linear(hidden, experts.down_blocks, experts.down_scales, experts.down_bias, e)
        mixed = mixed + share[:, e, None] * out
    return mixed.to(x.dtype)


# ---- expansion -----------------------------------------------------------------------------------


def expand(
    blocks: UInt8[Tensor, "*batch groups 16"],
    scales: UInt8[Tensor, "*batch groups"],
    out: Float[Tensor, "*batch weights"],
) -> None:
    """Write the weights of packed groups to ``out``, which is contiguous.

    The bits are those of :func:`expand_definition`.
    """
    if out.is_meta or out.numel() == 0:
        return
    library = None
    if out.dtype in (torch.bfloat16, torch.float32):
        library = _native(scales)
    if PLAIN.get():
        out.copy_(expand_definition(blocks, scales))
    elif library is not None:
        expand_natively(library, blocks.contiguous(), scales.contiguous(), out)
    else:
        _expand_by_table(blocks, scales, out)


def expanded(blocks: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the weights of packed groups in a new tensor."""
    out = torch.empty(
        *scales.shape[:-1], GROUP * scales.shape[-1], dtype=dtype, device=blocks.device
    )
    expand(blocks, scales, out)
    return out


def _native(scales: Tensor) -> Library | None:
    """Return the C++ library for weights on the CPU that are large enough."""
    if scales.device.type != "cpu" or scales.numel() < _LEAST_GROUPS or PLAIN.get():
        return None
    return native.library()


def _sizes(rows: int, groups: int, tokens: int, _threads: int) -> tuple[int, ...]:
    return 16 * rows * groups, rows * groups, 32 * tokens * groups, tokens * rows


declare("mxfp4_expand", "bbT", lambda groups, _: (16 * groups, groups, 32 * groups))
declare("mxfp4_multiply", "bbTf", _sizes)
declare("rows_mxfp4", "bbff", lambda rows, width, *others: _sizes(rows, width // 32, *others))


def expand_natively(library: Library, blocks: Tensor, scales: Tensor, out: Tensor) -> None:
    """Compute :func:`expand` in C++, for contiguous tensors; ``out`` is bfloat16 or float32."""
    groups = scales.numel()
    library.call(
        f"mxfp4_expand_{NATIVE_NAMES[out.dtype]}", blocks, scales, out, groups, _threads(groups)
    )


def multiply_natively(
    library: Library, x: Tensor, blocks: Tensor, scales: Tensor, out: Tensor
) -> None:
    """Compute :func:`multiply` in C++, for contiguous tensors.

    ``x`` is bfloat16 or float32, ``out`` is float32. Each weight is read once and never stored
    expanded. Tokens of bfloat16 are multiplied in fixed point, as 16-bit integers relative to the
    greatest of 32, which is exact to 2^-16 of it. More than :data:`FEW` of them are multiplied in
    bfloat16 where the processor has such products. Either way products are summed in float32, in an
    order that depends on the level alone: a token's result has the same bits in every such batch
    and with every number of threads.
    """
    (rows, groups), tokens, threads = scales.shape, len(x), _threads(scales.numel())
    in_bfloat16 = library.level >= LEVELS.index("AVX-512 with bfloat16 products") and tokens > FEW
    if x.dtype == torch.bfloat16 and library.level > 0 and not in_bfloat16:
        library.call(
            "rows_mxfp4", blocks, scales, x.float(), out, rows, 32 * groups, tokens, threads
        )
    else:
        if not in_bfloat16:
            x = x.float()
        library.call(
            f"mxfp4_multiply_{NATIVE_NAMES[x.dtype]}",
            blocks,
            scales,
            x,
            out,
            rows,
            groups,
            tokens,
            threads,
        )


def _threads(groups: int) -> int:
    return max(1, min(torch.get_num_threads(), groups // _GROUPS_PER_THREAD))


def _expand_by_table(blocks: Tensor, scales: Tensor, out: Tensor) -> None:
    """Compute :func:`expand` by one look-up for four codes and one product for each group."""
    values = _four_codes(out.device)
    powers = _powers(out.device, out.dtype)
    chunk = _CHUNK if out.device.type == "cpu" else _CHUNK_ELSEWHERE
    parts = zip(
        blocks.reshape(-1, GROUP_BYTES).split(chunk),
        scales.reshape(-1).split(chunk),
        out.view(-1, GROUP).split(chunk),
        strict=True,
    )
    for part, scales_of_part, out_of_part in parts:
        # A view as pairs of bytes needs an even address, which a part of a file may lack.
        if part.storage_offset() % 2 != 0 or not part.is_contiguous():
            part = part.clone()
        index = part.view(torch.int16).to(torch.int32).bitwise_and_(0xFFFF).view(-1)
        code_values = values.index_select(0, index).view(torch.bfloat16).view(-1, GROUP)
        factors = powers.index_select(0, scales_of_part.int()).unsqueeze(1)
        torch.mul(code_values, factors, out=out_of_part)


@functools.cache
def _four_codes(device: torch.device) -> Tensor:
    """Return, for every two bytes, the four values of their codes.

    Four values in bfloat16 are one integer of 64 bits.
    """
    with torch.inference_mode(False):
        values = torch.tensor(SIGNED_VALUES, dtype=torch.bfloat16, device="cpu")
        two_bytes = torch.arange(2**16, device="cpu")
        codes = torch.stack([two_bytes >> shift & 15 for shift in (0, 4, 8, 12)], dim=1)
        return values[codes].view(torch.int64).view(-1).to(device)


@functools.cache
def _powers(device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the factor of every scale; in float32 for float16, which cannot hold them."""
    if dtype == torch.float16:
        dtype = torch.float32
    with torch.inference_mode(False):
        powers = [2.0 ** (scale - 127) for scale in range(NAN_SCALE)] + [float("nan")]
        return torch.tensor(powers, dtype=dtype, device="cpu").to(device)


# ---- products and mixtures -----------------------------------------------------------------------


def multiply(
    x: Float[Tensor, "token in"],
    blocks: UInt8[Tensor, "out groups 16"],
    scales: UInt8[Tensor, "out groups"],
    out: Float[Tensor, "token out"],
) -> None:
    """Write ``x @ weights.T`` to ``out``.

    Computed in float32 at least; on an accelerator rounded to ``x``'s dtype.
    """
    library = None
    if x.dtype != torch.float64:
        library = _native(scales)
    if x.device.type != "cpu":
        out.copy_(x @ expanded(blocks, scales, x.dtype).T)
    elif library is not None:
        if x.dtype != torch.bfloat16:
            x = x.float()
        multiply_natively(library, x.contiguous(), blocks.contiguous(), scales.contiguous(), out)
    else:
        x = x.to(out.dtype)
        # All parts share this memory: allocating it takes longer than filling it.
        weights = x.new_empty(min(_ROWS, len(scales)), x.shape[1])
        for start in range(0, len(scales), _ROWS):
            rows = slice(start, start + _ROWS)
            part = weights[: len(scales[rows])]
            expand(blocks[rows], scales[rows], part)
            out[:, rows] = F.linear(x, part)


def mix_packed_experts(
    experts: Mxfp4Experts,
    x: Float[Tensor, "token hidden_dim"],
    weights: Float[Tensor, "token top_k"],
    indices: Int[Tensor, "token top_k"],
) -> Float[Tensor, "token hidden_dim"]:
    """Compute :func:`mix_definition`, with each expert on its own tokens only.

    Experts that no token chose are not read. A backward pass raises :class:`InputError`.
    """
    if not x.is_meta:
        require_one_device(x, *experts[:6])
    x = x.to(autocast_dtype(x))
    grad = torch.is_grad_enabled()
    compiling = torch.compiler.is_compiling()
    if not compiling and transformed():
        return mix_definition(experts, x, weights, indices)
    with torch.no_grad():
        if compiling:
            if experts.clamp is None:
                clamp = []
            else:
                clamp = [experts.clamp.alpha, experts.clamp.limit]
            mixed = _mix_op(x, weights, indices, list(experts[:4]), list(experts[4:6]), clamp)
        else:
            mixed = _mix(experts, x, weights, indices)
    if grad and (x.requires_grad or weights.requires_grad):
        return _NoGradient.apply(mixed, x, weights)
    return mixed


def _mix(experts: Mxfp4Experts, x: Tensor, weights: Tensor, indices: Tensor) -> Tensor:
    if x.is_meta or len(x) == 0:
        return torch.empty_like(x)
    with torch.autocast(x.device.type, enabled=False):
        if PLAIN.get():
            return mix_definition(experts, x, weights, indices)
        if len(x) == 1 and x.device.type != "cpu":
            return _mix_one_token(experts, x, weights[0], indices[0])
        parts = zip(
            x.split(_MOST_TOKENS),
            weights.split(_MOST_TOKENS),
            indices.split(_MOST_TOKENS),
            strict=True,
        )
        return torch.cat([_mix_tokens(experts, *part) for part in parts])


def _mix_tokens(experts: Mxfp4Experts, x: Tensor, weights: Tensor, indices: Tensor) -> Tensor:
    """Mix with token-expert pairs sorted by expert: each expert has one product for each matrix.

    Then each token sums its rows.
    """
    expert, order = indices.flatten().sort(stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device)
    counts = expert.bincount(minlength=len(experts.down_blocks)).tolist()

    def product(rows: Tensor, blocks: Tensor, scales: Tensor) -> Tensor:
        wide = torch.promote_types(rows.dtype, torch.float32)
        out = rows.new_empty(len(rows), scales.shape[1], dtype=wide)
        parts = zip(rows.split(counts), out.split(counts), strict=True)
        for e, (rows_of_expert, out_of_expert) in enumerate(parts):
            if len(rows_of_expert) > 0:
                multiply(rows_of_expert, blocks[e], scales[e], out_of_expert)
        return out

    outputs = _through(experts, x.index_select(0, order // indices.shape[1]), expert, product)
    bags = F.embedding_bag(
        place.view_as(indices), outputs, per_sample_weights=weights.to(outputs.dtype), mode="sum"
    )
    return bags.to(x.dtype)


def _mix_one_token(experts: Mxfp4Experts, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Mix for one token on an accelerator.

    No number is read on the host, so nothing waits for the device.
    """

    def product(rows: Tensor, blocks: Tensor, scales: Tensor) -> Tensor:
        matrices = expanded(
            blocks.index_select(0, chosen), scales.index_select(0, chosen), rows.dtype
        )
        wide = torch.promote_types(rows.dtype, torch.float32)
        return torch.bmm(matrices, rows.unsqueeze(2)).squeeze(2).to(wide)

    outputs = _through(experts, x.expand(len(chosen), -1), chosen, product)
    return (weights.unsqueeze(1).to(outputs.dtype) * outputs).sum(0, keepdim=True).to(x.dtype)


def _through(
    experts: Mxfp4Experts,
    rows: Tensor,
    expert: Tensor,
    product: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> Tensor:
    """Return each row's output of its expert."""
    inside = product(rows, experts.gate_up_blocks, experts.gate_up_scales)
    if experts.gate_up_bias is not None:
        inside += experts.gate_up_bias.index_select(0, expert)
    gate, up = inside.unflatten(1, (-1, 2)).unbind(2)
    outputs = product(
        swiglu(gate, up, experts.clamp).to(rows.dtype), experts.down_blocks, experts.down_scales
    )
    if experts.down_bias is not None:
        outputs += experts.down_bias.index_select(0, expert)
    return outputs


class _NoGradient(torch.autograd.Function):
    """The identity, whose backward pass raises."""

    @staticmethod
    def forward(ctx: Any, mixed: Tensor, *_sources: Tensor) -> Tensor:
        return mixed.view_as(mixed)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        raise InputError(
            got="a backward pass through packed experts",
            expected="inference only",
            fix="Train the mixture that PackedMixture.unpack() returns.",
        )


# Written out: torch cannot infer it from a function that a run-time type checker has wrapped.
_SCHEMA = (
    "(Tensor x, Tensor weights, Tensor indices, Tensor[] packed, Tensor?[] biases, float[] clamp) "
    "-> Tensor"
)


@torch.library.custom_op("glassformer::mix_packed_experts", mutates_args=(), schema=_SCHEMA)
def _mix_op(
    x: Tensor,
    weights: Tensor,
    indices: Tensor,
    packed: list[Tensor],
    biases: list[Tensor | None],
    clamp: list[float],
) -> Tensor:
    """Compute :func:`_mix` as one operator of a compiled graph, which cannot depend on choices."""
    experts = Mxfp4Experts._make([*packed, *biases, Clamp(*clamp) if clamp else None])
    return _mix(experts, x, weights, indices)


@_mix_op.register_fake
def _(x: Tensor, *_others: Any) -> Tensor:
    return torch.empty_like(x)
