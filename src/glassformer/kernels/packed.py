"""Packed kinds of weights: the values of their bytes, and products with them.

A matrix is packed by rows, and a row is cut into blocks of 32 or 256 weights. A block holds a code
for each weight, and for each group of 16, 32 or 256 a scale and perhaps an offset::

    weight = scale * code + offset

Scales and offsets are products of numbers in the block, exact in float32, so that weights have the
bits of llama.cpp's ``dequantize_row_*``. :data:`KINDS` is the table of kinds; a kind is its row,
and its struct in ``native/formats.h``.

Source: llama.cpp, ``ggml-common.h`` and ``ggml-quants.c``; OCP Microscaling Formats 1.0 (MXFP4).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from glassformer.errors import InputError
from glassformer.kernels import native
from glassformer.kernels.dispatch import defined_backward, use_definition
from glassformer.kernels.huge_pages import empty_in_huge_pages
from glassformer.kernels.linear import linear, parts, threads_for
from glassformer.kernels.native import LEVELS, declare

FEW_TOKENS = 16
"""Tokens up to which C++ multiplies while it expands."""
_EXPANDED = 2**20  # bytes of blocks that are expanded at a time for more tokens
_ENCODED = 2**18  # weights that are encoded at a time, so that intermediate results stay in caches

Unpacked = tuple[Tensor, Tensor, Tensor | None]
"""Codes, scales and offsets of blocks; no offsets: all are 0.

The last axis of codes is the weights of a block, that of scales and offsets its groups.
"""


@dataclass(frozen=True)
class PackedKind:
    """A row of the table of packed kinds.

    Args:
        name: Its name, as in GGUF: ``"Q4_K"``.
        number: Its number in C++, ``Stored`` in ``native/formats.h``.
        block: Weights in a block.
        nbytes: Bytes of a block.
        group: Weights that share a scale and an offset.
        unpacked: Returns codes, scales and offsets of blocks ``[..., nbytes]`` of uint8: the
            definition of the kind.
        halves: Positions in a block of its float16 numbers, in bytes.
        encode_blocks: Returns the nearest blocks ``[..., nbytes]`` of weights ``[..., block]`` in
            float32; None if weights of this kind are only read.
    """

    name: str
    number: int
    block: int
    nbytes: int
    group: int
    unpacked: Callable[[Tensor], Unpacked]
    halves: tuple[int, ...]
    encode_blocks: Callable[[Tensor], Tensor] | None = None

    def row_bytes(self, width: int) -> int:
        """Return the bytes of a row of ``width`` weights, a multiple of ``block``."""
        return width // self.block * self.nbytes

    def packed_shape(self, shape: Sequence[int]) -> list[int]:
        """Return the shape of the bytes that hold numbers of ``shape``."""
        return [*shape[:-1], self.row_bytes(shape[-1])]

    def width(self, row_bytes: int) -> int:
        """Return the number of weights in a row of so many bytes."""
        return row_bytes // self.nbytes * self.block


def expanded(kind: str, blocks: UInt8[Tensor, "*rows bytes"]) -> Float[Tensor, "*rows width"]:
    """Return ``scale * code + offset`` in float32."""
    row = KINDS[kind]
    codes, scales, offsets = row.unpacked(blocks.unflatten(-1, (-1, row.nbytes)))
    weights = codes.unflatten(-1, (-1, row.group)) * scales.unsqueeze(-1)
    if offsets is not None:
        weights = weights + offsets.unsqueeze(-1)
    return weights.flatten(-3)


def values(kind: str, blocks: UInt8[Tensor, "*rows bytes"]) -> Float[Tensor, "*rows width"]:
    """Return :func:`expanded`; on the CPU by the C++ library, which gives the same bits."""
    library = _library(blocks)
    if library is None:
        return expanded(kind, blocks)
    width = KINDS[kind].width(blocks.shape[-1])
    out = torch.empty(*blocks.shape[:-1], width, dtype=torch.float32)
    rows = out.numel() // width
    threads = threads_for(out)
    library.call("expand_blocks", blocks, out, KINDS[kind].number, rows, width, 0, rows, threads)
    return out


def encode(kind: str, weights: Float[Tensor, "*rows width"]) -> UInt8[Tensor, "*rows bytes"]:
    """Return the packed bytes of the weights of ``kind`` that are nearest to ``weights``.

    For weights that are infinite, NaN or beyond the range of the kind, :func:`finite` is False.

    Raises:
        InputError: A kind that is only read, or a width that its blocks do not fill.
    """
    row = KINDS[kind]
    if row.encode_blocks is None:
        raise InputError(
            got=f"weights to be packed in {kind}, which is only read",
            expected=f"one of {', '.join(name for name in KINDS if KINDS[name].encode_blocks)}",
            fix="Pack them in another kind.",
        )
    require_width_fits(kind, weights.shape[-1])
    packed = empty_in_huge_pages(row.packed_shape(weights.shape), torch.uint8, weights.device)
    if weights.is_meta or weights.numel() == 0:
        return packed
    matrix = weights.detach().reshape(-1, weights.shape[-1])
    for rows in parts(matrix, _ENCODED):
        blocks = row.encode_blocks(matrix[rows].float().unflatten(-1, (-1, row.block)))
        packed.view(len(matrix), -1)[rows] = blocks.flatten(-2)
    return packed


def require_width_fits(kind: str, width: int) -> None:
    """Refuse an unknown kind, and rows that its blocks do not fill."""
    if kind not in KINDS:
        raise InputError(
            got=f"kind = {kind!r}",
            expected=f"one of {', '.join(KINDS)}",
            fix="Keep other weights as numbers.",
        )
    block = KINDS[kind].block
    if width % block != 0:
        raise InputError(
            got=f"a width of {width}",
            expected=f"a multiple of {block} for {kind}",
            fix="Keep these weights as numbers.",
        )


def _bytes(number: int, rows: int, width: int) -> int:
    """Return the bytes of a matrix; -1, which no tensor has, if blocks do not fill a row."""
    kind = _BY_NUMBER[number]
    if width % kind.block != 0:
        return -1
    return rows * kind.row_bytes(width)


def _expanded_sizes(
    number: int, rows: int, width: int, first: int, last: int, _threads: int
) -> tuple[int, int]:
    expanded_size = -1
    if 0 <= first <= last <= rows:
        expanded_size = (last - first) * width
    return _bytes(number, rows, width), expanded_size


def _product_sizes(
    number: int, rows: int, width: int, tokens: int, _threads: int
) -> tuple[int, int, int]:
    return _bytes(number, rows, width), tokens * width, tokens * rows


declare("expand_blocks", "bf", _expanded_sizes)
declare("rows_blocks", "bff", _product_sizes)
declare("matrix_blocks", "bff", _product_sizes)


def _library(blocks: Tensor) -> native.Library | None:
    """Return the C++ library if it takes these blocks."""
    is_plain = (
        blocks.is_cpu and blocks.is_contiguous() and blocks.numel() > 0 and type(blocks) is Tensor
    )
    is_watched = torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0
    if not is_plain or is_watched or use_definition():
        return None
    return native.library()


def finite(kind: str, blocks: UInt8[Tensor, "*rows bytes"]) -> bool:
    """Return whether all weights are numbers: scales and offsets are neither infinite nor NaN."""
    separate = blocks.unflatten(-1, (-1, KINDS[kind].nbytes))
    if kind == "MXFP4":
        return bool((separate[..., 0] < 255).all())
    words = separate.view(torch.int16)
    for position in KINDS[kind].halves:
        exponents = words[..., position // 2] & 0x7C00
        if bool((exponents == 0x7C00).any()):
            return False
    return True


def definition(x: Tensor, blocks: Tensor, kind: str, bias: Tensor | None = None) -> Tensor:
    """Return ``x @ weights.T + bias``, computed in float32 at least, in ``x``'s dtype."""
    wide = torch.promote_types(x.dtype, torch.float32)
    out = x.to(wide) @ expanded(kind, blocks).to(wide).T
    if bias is not None:
        out = out + bias.to(wide)
    return out.to(x.dtype)


def packed_linear(
    x: Float[Tensor, "*batch in"],
    blocks: UInt8[Tensor, "out bytes"],
    kind: str,
    bias: Float[Tensor, " out"] | None = None,
) -> Float[Tensor, "*batch out"]:
    """Compute :func:`definition` without the whole expanded matrix in memory, also backward.

    On the CPU a few tokens are multiplied by weights that C++ expands in the caches. More tokens
    are multiplied by some expanded rows at a time, or by the codes where the processor has matrix
    registers (AMX). Up to :data:`FEW_TOKENS` tokens have the same bits in every batch of up to that
    many, and on any number of threads. With AMX an infinite number in ``x`` may give NaN where it
    should give infinity.

    ``x`` and the bias have gradients, blocks have none.
    """
    if torch.compiler.is_compiling() or use_definition() or x.numel() == 0:
        return definition(x, blocks, kind, bias)
    out = _Product.apply(x.reshape(-1, x.shape[-1]), blocks, kind, False)
    if bias is not None:
        out = out + bias.to(out.dtype)
    return out.view(*x.shape[:-1], len(blocks))


class _Product(torch.autograd.Function):
    """``x @ values.T``, or ``x @ values``, each of which is the gradient of the other."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, blocks: Tensor, kind: str, transposed: bool) -> Tensor:
        ctx.save_for_backward(blocks)
        ctx.kind = kind
        ctx.transposed = transposed
        return _product(x, blocks, kind, transposed)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (blocks,) = ctx.saved_tensors
        if defined_backward(grads[0]) and use_definition():
            weights = values(ctx.kind, blocks).to(grads[0].dtype)
            if ctx.transposed:
                weights = weights.T
            grad_x = grads[0] @ weights
        else:
            grad_x = _Product.apply(grads[0], blocks, ctx.kind, not ctx.transposed)
        return grad_x, None, None, None


def _product(x: Tensor, blocks: Tensor, kind: str, transposed: bool) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    tokens = x.to(wide)
    width = KINDS[kind].width(blocks.shape[1])
    library = None
    if not transposed and wide == torch.float32 and x.is_cpu:
        library = _library(blocks)
    if library is not None and len(x) <= FEW_TOKENS:
        out = _natively(library, "rows_blocks", tokens, blocks, kind, threads_for(blocks))
        return out.to(x.dtype)
    if library is not None and library.level >= LEVELS.index("AMX"):
        threads = torch.get_num_threads()
        return _natively(library, "matrix_blocks", tokens, blocks, kind, threads).to(x.dtype)
    pieces = parts(blocks, _EXPANDED)
    if len(pieces) == 1 and not transposed:
        return linear(tokens, values(kind, blocks).to(wide)).to(x.dtype)
    if transposed:
        out = tokens.new_zeros(len(x), width)
    else:
        out = tokens.new_empty(len(x), len(blocks))
    for rows in pieces:
        weights = values(kind, blocks[rows]).to(wide)
        if transposed:
            out.addmm_(tokens[:, rows], weights)
        else:
            out[:, rows] = linear(tokens, weights)
    return out.to(x.dtype)


def _natively(
    library: native.Library, function: str, tokens: Tensor, blocks: Tensor, kind: str, threads: int
) -> Tensor:
    out = tokens.new_empty(len(tokens), len(blocks))
    row = KINDS[kind]
    sizes = (row.number, len(blocks), row.width(blocks.shape[1]), len(tokens), threads)
    library.call(function, blocks, tokens.contiguous(), out, *sizes)
    return out


# ---- the definitions of the kinds: b is blocks [..., nbytes] -------------------------------------


_IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
# Twice the values of MXFP4, whose codes from 8 on are negative.
_MXFP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def _half(blocks: Tensor, position: int) -> Tensor:
    """Return the float16 number at a position of each block."""
    return blocks[..., position : position + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor) -> Tensor:
    """Return the lower halves of the bytes, then the upper ones."""
    return torch.cat([packed & 15, packed >> 4], dim=-1)


def _shifted(packed: Tensor, bits: int, mask: int) -> Tensor:
    """Return the lowest ``bits`` of all bytes, then the next ones, up to 8 bits."""
    return torch.stack([packed >> shift & mask for shift in range(0, 8, bits)], dim=-2)


def _in_parts(packed: Tensor, bytes_of_part: int) -> Tensor:
    return packed.unflatten(-1, (-1, bytes_of_part))


def _high_bits(packed: Tensor) -> Tensor:
    """Return bit i of a little-endian number for weight i."""
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


def _encode_q8_0(weights: Tensor) -> Tensor:
    """Return codes ``round(w / d)`` with ``d = max |w| / 127`` in float16.

    Halves are rounded away from zero.

    The bits are those of llama.cpp's ``quantize_row_q8_0_ref``.
    """
    scale = weights.abs().amax(-1, keepdim=True) / 127
    scaled = weights * torch.where(scale == 0, 0, 1 / scale)
    whole = scaled.abs().floor()
    codes = scaled.sign() * (whole + (2 * (scaled.abs() - whole)).floor())
    return torch.cat(
        [scale.half().view(torch.uint8), codes.to(torch.int8).view(torch.uint8)], dim=-1
    )


def _q2_k(b: Tensor) -> Unpacked:
    codes = _shifted(_in_parts(b[..., 16:80], 32), 2, 3).flatten(-3)
    scales = b[..., :16] & 15
    offsets = b[..., :16] >> 4
    return codes, _half(b, 80) * scales, -(_half(b, 82) * offsets)


def _q3_k(b: Tensor) -> Unpacked:
    high = _shifted(b[..., :32], 1, 1).flatten(-2).to(torch.int8)
    codes = _shifted(_in_parts(b[..., 32:96], 32), 2, 3).flatten(-3).to(torch.int8) + 4 * high - 4
    scales = _nibbles(b[..., 96:104]) | _shifted(b[..., 104:108], 2, 3).flatten(-2) << 4
    return codes, _half(b, 108) * (scales.to(torch.int8) - 32), None


def _six_bits(b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the 8 scales and offsets of Q4_K and Q5_K, which have 6 bits each, from 12 bytes."""
    first, second, third = b.split(4, dim=-1)
    scales = torch.cat([first & 63, third & 15 | first >> 6 << 4], dim=-1)
    return scales, torch.cat([second & 63, third >> 4 | second >> 6 << 4], dim=-1)


def _q4_k(b: Tensor) -> Unpacked:
    scales, offsets = _six_bits(b[..., 4:16])
    codes = _nibbles(_in_parts(b[..., 16:], 32)).flatten(-2)
    return codes, _half(b, 0) * scales, -(_half(b, 2) * offsets)


def _q5_k(b: Tensor) -> Unpacked:
    scales, offsets = _six_bits(b[..., 4:16])
    codes = (
        _nibbles(_in_parts(b[..., 48:], 32)).flatten(-2)
        | _shifted(b[..., 16:48], 1, 1).flatten(-2) << 4
    )
    return codes, _half(b, 0) * scales, -(_half(b, 2) * offsets)


def _q6_k(b: Tensor) -> Unpacked:
    low = _nibbles(_in_parts(b[..., :128], 64))
    high = _shifted(_in_parts(b[..., 128:192], 32), 2, 3).flatten(-2)
    codes = (low | high << 4).flatten(-2).to(torch.int8) - 32
    return codes, _half(b, 208) * b[..., 192:208].contiguous().view(torch.int8), None


def _iq4_nl(b: Tensor) -> Unpacked:
    return _looked_up(_IQ4_VALUES, _nibbles(b[..., 2:])), _half(b, 0), None


def _iq4_xs(b: Tensor) -> Unpacked:
    low_bytes = _in_parts(b[..., 4:8], 1)
    low = torch.cat([low_bytes & 15, low_bytes >> 4], dim=-1).flatten(-2)
    high = torch.stack([b[..., 2:4] >> shift & 3 for shift in (0, 2, 4, 6)], dim=-1).flatten(-2)
    codes = _looked_up(_IQ4_VALUES, _nibbles(_in_parts(b[..., 8:], 16)).flatten(-2))
    return codes, _half(b, 0) * ((low | high << 4).to(torch.int8) - 32), None


def _mxfp4(b: Tensor) -> Unpacked:
    exponents = b[..., :1].int()
    # 2 ** (exponent - 128), half of a scale, beside twice the values. The first two are subnormal.
    subnormal = 0x200000 << exponents.clamp(max=2)
    bits = torch.where(exponents < 2, subnormal, (exponents - 1) << 23)
    return _looked_up(_MXFP4_VALUES, _nibbles(b[..., 1:])), bits.view(torch.float32), None


def _tq2_0(b: Tensor) -> Unpacked:
    codes = _shifted(_in_parts(b[..., :64], 32), 2, 3).flatten(-3).to(torch.int8) - 1
    return codes, _half(b, 64), None


def _looked_up(table: tuple[int, ...], codes: Tensor) -> Tensor:
    return torch.tensor(table, dtype=torch.int8, device=codes.device)[codes.int()]


KINDS: dict[str, PackedKind] = {
    kind.name: kind
    for kind in (
        PackedKind("Q4_0", 3, 32, 18, 32, _q4_0, (0,)),
        PackedKind("Q4_1", 4, 32, 20, 32, _q4_1, (0, 2)),
        PackedKind("Q5_0", 5, 32, 22, 32, _q5_0, (0,)),
        PackedKind("Q5_1", 6, 32, 24, 32, _q5_1, (0, 2)),
        PackedKind("Q8_0", 7, 32, 34, 32, _q8_0, (0,), _encode_q8_0),
        PackedKind("Q2_K", 8, 256, 84, 16, _q2_k, (80, 82)),
        PackedKind("Q3_K", 9, 256, 110, 16, _q3_k, (108,)),
        PackedKind("Q4_K", 10, 256, 144, 32, _q4_k, (0, 2)),
        PackedKind("Q5_K", 11, 256, 176, 32, _q5_k, (0, 2)),
        PackedKind("Q6_K", 12, 256, 210, 16, _q6_k, (208,)),
        PackedKind("IQ4_NL", 13, 32, 18, 32, _iq4_nl, (0,)),
        PackedKind("IQ4_XS", 14, 256, 136, 32, _iq4_xs, (0,)),
        PackedKind("MXFP4", 15, 32, 17, 32, _mxfp4, ()),
        PackedKind("TQ2_0", 16, 256, 66, 256, _tq2_0, (64,)),
    )
}
"""The table of packed kinds, by name."""
_BY_NUMBER = {kind.number: kind for kind in KINDS.values()}
