"""GGUF's blocks of packed weights: what they stand for, and products with them.

Rows are cut into blocks of 32 or 256 weights. A block holds a code for each weight, and for each group of 16 or 32 a
scale and perhaps an offset::

    weight = scale * code + offset

Scales and offsets are products of numbers in the block, exact in float32, so that weights have the bits of llama.cpp's
``dequantize_row_*``.

Source: llama.cpp, ``ggml-common.h`` and ``ggml-quants.c``; OCP Microscaling Formats 1.0 (MXFP4).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from glassformer.kernels import native
from glassformer.kernels.dispatch import defined_backward, use_definition
from glassformer.kernels.linear import linear, parts, threads_for
from glassformer.kernels.native import LEVELS, declare

FEW_TOKENS = 16
"""Up to here C++ multiplies while it expands."""
_EXPANDED = 2**20  # bytes of blocks that are expanded at a time for more tokens
_FIRST = 5  # BLOCKS of rows.h

Unpacked = tuple[Tensor, Tensor, Tensor | None]
"""Codes, scales and offsets (None: all 0) of blocks; the last axis is weights, groups and groups of a block."""


@dataclass(frozen=True)
class BlockKind:
    """A format."""

    name: str
    """As in GGUF: ``"Q4_K"``."""
    block: int
    """Weights in a block."""
    nbytes: int
    """Bytes of a block."""
    group: int
    """Weights that share a scale and an offset."""
    unpacked: Callable[[Tensor], Unpacked]
    """Of blocks ``[..., nbytes]`` of uint8."""
    halves: tuple[int, ...]
    """Where the float16 numbers of a block are."""

    def row_bytes(self, width: int) -> int:
        """Bytes of a row of ``width`` weights, a multiple of ``block``."""
        return width // self.block * self.nbytes

    def packed_shape(self, shape: Sequence[int]) -> list[int]:
        """The shape of the bytes that hold numbers of ``shape``."""
        return [*shape[:-1], self.row_bytes(shape[-1])]

    def width(self, row_bytes: int) -> int:
        """Weights of a row of so many bytes."""
        return row_bytes // self.nbytes * self.block


def expanded(kind: str, blocks: UInt8[Tensor, "*rows bytes"]) -> Float[Tensor, "*rows width"]:
    """``scale * code + offset`` in float32."""
    codes, scales, offsets = KINDS[kind].unpacked(blocks.unflatten(-1, (-1, KINDS[kind].nbytes)))
    grouped = codes.unflatten(-1, (-1, KINDS[kind].group)) * scales.unsqueeze(-1)
    return (grouped if offsets is None else grouped + offsets.unsqueeze(-1)).flatten(-3)


def values(kind: str, blocks: UInt8[Tensor, "*rows bytes"]) -> Float[Tensor, "*rows width"]:
    """:func:`expanded`; on the CPU by the C++ library, which gives the same bits."""
    library = _library(blocks)
    if library is None:
        return expanded(kind, blocks)
    width = KINDS[kind].width(blocks.shape[-1])
    out = torch.empty(*blocks.shape[:-1], width, dtype=torch.float32)
    rows = out.numel() // width
    library.call("expand_blocks", blocks, out, number(kind), rows, width, 0, rows, threads_for(out))
    return out


def number(kind: str) -> int:
    """The format as C++ knows it."""
    return _FIRST + list(KINDS).index(kind)


def _bytes(format: int, rows: int, width: int) -> int:
    kind = list(KINDS.values())[format - _FIRST]
    return -1 if width % kind.block else rows * kind.row_bytes(width)


def _expanded_sizes(format: int, rows: int, width: int, first: int, last: int, _threads: int) -> tuple[int, int]:
    return _bytes(format, rows, width), (last - first) * width if 0 <= first <= last <= rows else -1


declare("expand_blocks", "bf", _expanded_sizes)
for _name in ("rows_blocks", "matrix_blocks"):
    declare(
        _name,
        "bff",
        lambda kind, rows, width, tokens, _: (_bytes(kind, rows, width), tokens * width, tokens * rows),
    )


def _library(blocks: Tensor) -> native.Library | None:
    """The C++ library if it takes these blocks."""
    plain = blocks.is_cpu and blocks.is_contiguous() and blocks.numel() > 0 and type(blocks) is Tensor
    watched = torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0
    return None if not plain or watched or use_definition() else native.library()


def finite(kind: str, blocks: UInt8[Tensor, "*rows bytes"]) -> bool:
    """Whether all weights are numbers: the scales and offsets are neither infinite nor NaN."""
    cut = blocks.unflatten(-1, (-1, KINDS[kind].nbytes))
    if kind == "MXFP4":
        return bool((cut[..., 0] < 255).all())
    words = cut.view(torch.int16)
    return all(bool((words[..., at // 2] & 0x7C00 != 0x7C00).all()) for at in KINDS[kind].halves)


def definition(x: Tensor, blocks: Tensor, kind: str, bias: Tensor | None = None) -> Tensor:
    """``x @ values.T + bias`` in float32 at least, rounded to ``x``'s dtype."""
    wide = torch.promote_types(x.dtype, torch.float32)
    out = x.to(wide) @ expanded(kind, blocks).to(wide).T
    return (out if bias is None else out + bias.to(wide)).to(x.dtype)


def block_linear(
    x: Float[Tensor, "*batch in"],
    blocks: UInt8[Tensor, "out bytes"],
    kind: str,
    bias: Float[Tensor, " out"] | None = None,
) -> Float[Tensor, "*batch out"]:
    """:func:`definition`; the expanded matrix is never in memory, for the backward pass neither.

    On the CPU a few tokens are multiplied by weights that C++ expands in the caches; more tokens by some expanded rows
    at a time, or where there are matrix registers (AMX) by the codes. A few tokens have the same bits in every batch of
    up to that many, and on any number of threads. By AMX an infinite number in ``x`` may give NaN for infinity.

    ``x`` and the bias have gradients, blocks have none.
    """
    if torch.compiler.is_compiling() or use_definition() or x.numel() == 0:
        return definition(x, blocks, kind, bias)
    out = _Product.apply(x.reshape(-1, x.shape[-1]), blocks, kind, False)
    return (out if bias is None else out + bias.to(out.dtype)).view(*x.shape[:-1], len(blocks))


class _Product(torch.autograd.Function):
    """``x @ values.T``, or ``x @ values``, whose gradient is the other."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, blocks: Tensor, kind: str, transposed: bool) -> Tensor:
        ctx.save_for_backward(blocks)
        ctx.kind, ctx.transposed = kind, transposed
        return _product(x, blocks, kind, transposed)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (blocks,) = ctx.saved_tensors
        if defined_backward(grads[0]) and use_definition():
            weights = values(ctx.kind, blocks).to(grads[0].dtype)
            return grads[0] @ (weights.T if ctx.transposed else weights), None, None, None
        return _Product.apply(grads[0], blocks, ctx.kind, not ctx.transposed), None, None, None


def _product(x: Tensor, blocks: Tensor, kind: str, transposed: bool) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    tokens, width = x.to(wide), KINDS[kind].width(blocks.shape[1])
    library = None if transposed or wide != torch.float32 or not x.is_cpu else _library(blocks)
    few = len(x) <= FEW_TOKENS
    if library is not None and (few or library.level >= LEVELS.index("AMX")):
        out = tokens.new_empty(len(x), len(blocks))
        name, threads = ("rows_blocks", threads_for(blocks)) if few else ("matrix_blocks", torch.get_num_threads())
        library.call(name, blocks, tokens.contiguous(), out, number(kind), len(blocks), width, len(x), threads)
        return out.to(x.dtype)
    pieces = parts(blocks, _EXPANDED)
    if len(pieces) == 1 and not transposed:
        return linear(tokens, values(kind, blocks).to(wide)).to(x.dtype)
    out = tokens.new_zeros(len(x), width) if transposed else tokens.new_empty(len(x), len(blocks))
    for rows in pieces:
        weights = values(kind, blocks[rows]).to(wide)
        if transposed:
            out.addmm_(tokens[:, rows], weights)
        else:
            out[:, rows] = linear(tokens, weights)
    return out.to(x.dtype)


# ---- the formats; a block's weights are in order, q the codes' bits, d and m scales and offsets in float16 -----------

_TABLE = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)  # of IQ4
_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12)  # of MXFP4, without signs


def _half(blocks: Tensor, at: int) -> Tensor:
    return blocks[..., at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor) -> Tensor:
    """Lower halves of the bytes, then upper ones."""
    return torch.cat([packed & 15, packed >> 4], dim=-1)


def _shifted(packed: Tensor, bits: int, mask: int) -> Tensor:
    """The lowest ``bits`` of all bytes, then the next ones, up to 8 bits."""
    return torch.stack([packed >> shift & mask for shift in range(0, 8, bits)], dim=-2)


def _in_order(packed: Tensor, bytes_at_a_time: int) -> Tensor:
    return packed.unflatten(-1, (-1, bytes_at_a_time))


def _high_bits(packed: Tensor) -> Tensor:
    """Bit i of a little-endian number for weight i."""
    return torch.stack([packed >> bit & 1 for bit in range(8)], dim=-1).flatten(-2)


def _q4_0(b: Tensor) -> Unpacked:
    return _nibbles(b[..., 2:]).to(torch.int8) - 8, _half(b, 0), None


def _q4_1(b: Tensor) -> Unpacked:
    return _nibbles(b[..., 4:]), _half(b, 0), _half(b, 2)


def _q5_0(b: Tensor) -> Unpacked:
    codes = _nibbles(b[..., 6:]) | _high_bits(b[..., 2:6]) << 4
    return codes.to(torch.int8) - 16, _half(b, 0), None


def _q5_1(b: Tensor) -> Unpacked:
    return _nibbles(b[..., 8:]) | _high_bits(b[..., 4:8]) << 4, _half(b, 0), _half(b, 2)


def _q8_0(b: Tensor) -> Unpacked:
    return b[..., 2:].view(torch.int8), _half(b, 0), None


def _q2_k(b: Tensor) -> Unpacked:
    codes = _shifted(_in_order(b[..., 16:80], 32), 2, 3).flatten(-3)
    scales, offsets = b[..., :16] & 15, b[..., :16] >> 4
    return codes, _half(b, 80) * scales, -(_half(b, 82) * offsets)


def _q3_k(b: Tensor) -> Unpacked:
    high = _shifted(b[..., :32], 1, 1).flatten(-2).to(torch.int8)
    codes = _shifted(_in_order(b[..., 32:96], 32), 2, 3).flatten(-3).to(torch.int8) + 4 * high - 4
    scales = _nibbles(b[..., 96:104]) | _shifted(b[..., 104:108], 2, 3).flatten(-2) << 4
    return codes, _half(b, 108) * (scales.to(torch.int8) - 32), None


def _six_bits(b: Tensor) -> tuple[Tensor, Tensor]:
    """The 8 scales and offsets of Q4_K and Q5_K, of 6 bits each, in 12 bytes."""
    first, second, third = b.split(4, dim=-1)
    scales = torch.cat([first & 63, third & 15 | first >> 6 << 4], dim=-1)
    return scales, torch.cat([second & 63, third >> 4 | second >> 6 << 4], dim=-1)


def _q4_k(b: Tensor) -> Unpacked:
    scales, offsets = _six_bits(b[..., 4:16])
    codes = _nibbles(_in_order(b[..., 16:], 32)).flatten(-2)
    return codes, _half(b, 0) * scales, -(_half(b, 2) * offsets)


def _q5_k(b: Tensor) -> Unpacked:
    scales, offsets = _six_bits(b[..., 4:16])
    codes = _nibbles(_in_order(b[..., 48:], 32)).flatten(-2) | _shifted(b[..., 16:48], 1, 1).flatten(-2) << 4
    return codes, _half(b, 0) * scales, -(_half(b, 2) * offsets)


def _q6_k(b: Tensor) -> Unpacked:
    low, high = _nibbles(_in_order(b[..., :128], 64)), _shifted(_in_order(b[..., 128:192], 32), 2, 3).flatten(-2)
    codes = (low | high << 4).flatten(-2).to(torch.int8) - 32
    return codes, _half(b, 208) * b[..., 192:208].contiguous().view(torch.int8), None


def _iq4_nl(b: Tensor) -> Unpacked:
    return _looked_up(_TABLE, _nibbles(b[..., 2:])), _half(b, 0), None


def _iq4_xs(b: Tensor) -> Unpacked:
    low = _in_order(b[..., 4:8], 1)
    scales = torch.cat([low & 15, low >> 4], dim=-1).flatten(-2)
    high = torch.stack([b[..., 2:4] >> shift & 3 for shift in (0, 2, 4, 6)], dim=-1).flatten(-2)
    codes = _looked_up(_TABLE, _nibbles(_in_order(b[..., 8:], 16)).flatten(-2))
    return codes, _half(b, 0) * ((scales | high << 4).to(torch.int8) - 32), None


def _mxfp4(b: Tensor) -> Unpacked:
    exponents = b[..., :1].int()  # 2 ** (exponent - 128), of which the first two are subnormal
    scales = torch.where(exponents < 2, 0x200000 << exponents.clamp(max=2), (exponents - 1) << 23).view(torch.float32)
    return _looked_up((*_DOUBLED, *(-each for each in _DOUBLED)), _nibbles(b[..., 1:])), scales, None


def _looked_up(table: tuple[int, ...], codes: Tensor) -> Tensor:
    return torch.tensor(table, dtype=torch.int8, device=codes.device)[codes.int()]


KINDS: dict[str, BlockKind] = {
    kind.name: kind
    for kind in (
        BlockKind("Q4_0", 32, 18, 32, _q4_0, (0,)),
        BlockKind("Q4_1", 32, 20, 32, _q4_1, (0, 2)),
        BlockKind("Q5_0", 32, 22, 32, _q5_0, (0,)),
        BlockKind("Q5_1", 32, 24, 32, _q5_1, (0, 2)),
        BlockKind("Q8_0", 32, 34, 32, _q8_0, (0,)),
        BlockKind("Q2_K", 256, 84, 16, _q2_k, (80, 82)),
        BlockKind("Q3_K", 256, 110, 16, _q3_k, (108,)),
        BlockKind("Q4_K", 256, 144, 32, _q4_k, (0, 2)),
        BlockKind("Q5_K", 256, 176, 32, _q5_k, (0, 2)),
        BlockKind("Q6_K", 256, 210, 16, _q6_k, (208,)),
        BlockKind("IQ4_NL", 32, 18, 32, _iq4_nl, (0,)),
        BlockKind("IQ4_XS", 256, 136, 32, _iq4_xs, (0,)),
        BlockKind("MXFP4", 32, 17, 32, _mxfp4, ()),
    )
}
"""The formats by name."""
