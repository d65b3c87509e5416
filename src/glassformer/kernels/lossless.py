"""Linear maps whose weights are bfloat16 numbers of 12 bits each, without loss.

The upper byte of a bfloat16 number is its sign and seven of the eight bits of its exponent. In a row of weights it has
few values, so that a code of 4 bits stands for it: the sign, and how far the seven bits lie below the row's ``top``,
from 0 to 6; the code 7 means that they are 0. Other numbers are exceptions: zero is stored in their place, and the
number in a list. The lower byte is kept. Rows are padded with zeros to groups of 64 numbers.

- ``packed [out, groups, 96]``, uint8: of a group 64 lower bytes, then 32 bytes of two codes, those of bytes ``i`` (the
  lower four bits) and ``i + 32``. Of a group's number ``32 a + 16 b + 4 c + d`` the lower byte is byte
  ``16 c + 8 a + 2 d + b``, which is what vector instructions put back in order.
- ``index [out + 1 + exceptions, 2]``, int32: for each row its ``top`` and where its exceptions begin in this tensor; an
  entry where the last row's end; then the column and the bits of each exception.
"""

import torch
import torch.nn.functional as F
from jaxtyping import BFloat16, Float, Int32, Int64, UInt8
from torch import Tensor

from glassformer.kernels.dispatch import autocast_dtype, native_library, slow_bfloat16, use_definition
from glassformer.kernels.linear import FEW, FEW_NARROW, few_tokens, linear, parts, threads_for
from glassformer.kernels.native import Library, declare

GROUP, GROUP_BYTES, CODED, MULTIPLE = 64, 96, 7, 16
"""Numbers of a group, their bytes, how many values of the exponent's upper bits have a code, and what divides a row."""
# Bytes that are expanded at a time, so that what they become stays in caches.
_EXPANDED = 2**20


def _sizes(rows: int, width: int, entries: int) -> tuple[int, int]:
    """Of ``packed`` and ``index``."""
    return rows * -(-width // GROUP) * GROUP_BYTES, 2 * max(entries, rows + 1)


def _expanded_sizes(rows: int, width: int, entries: int, first: int, last: int, _threads: int) -> tuple[int, ...]:
    return *_sizes(rows, width, entries), (last - first) * width if 0 <= first <= last <= rows else -1


declare("encode_lossless", "hbi", lambda rows, width, _: (rows * width, *_sizes(rows, width, rows + 1)))
declare("list_exceptions", "hi", lambda rows, width, entries, _: (rows * width, _sizes(rows, width, entries)[1]))
declare("expand_lossless", "bih", _expanded_sizes)
declare(
    "rows_lossless",
    "biff",
    lambda rows, width, tokens, entries, _: (*_sizes(rows, width, entries), tokens * width, tokens * rows),
)


def encode_definition(
    values: BFloat16[Tensor, "out width"],
) -> tuple[UInt8[Tensor, "out groups 96"], UInt8[Tensor, " out"], Int64[Tensor, " out"], Int32[Tensor, "exceptions 2"]]:
    """``packed``, the rows' tops and numbers of exceptions, and the exceptions."""
    padded = F.pad(values, (0, -values.shape[1] % GROUP)).view(torch.int16)
    lower, upper = padded.to(torch.uint8), (padded >> 8).to(torch.uint8)
    exponents = upper & 127
    top = exponents.amax(1, keepdim=True)
    below = top - exponents
    exceptional = (below >= CODED) & (exponents > 0)
    codes = below.clamp_(max=CODED) | upper >> 7 << 3
    both = torch.stack([lower.masked_fill_(exceptional, 0), codes])
    both = both.unflatten(2, (-1, 2, 2, 4, 4)).permute(0, 1, 2, 5, 3, 6, 4).flatten(3)
    first, second = both[1].split(GROUP // 2, 2)
    row, column = exceptional.nonzero().unbind(1)
    listed = torch.stack([column, padded[row, column]], 1).to(torch.int32)
    return torch.cat([both[0], first | second << 4], 2), top[:, 0], row.bincount(minlength=len(values)), listed


def expand_definition(
    packed: UInt8[Tensor, "out groups 96"], index: Int32[Tensor, "entries 2"], width: int
) -> BFloat16[Tensor, "out width"]:
    """The numbers that were encoded, all bits of them."""
    out = len(packed)
    lower, codes = packed.split([GROUP, GROUP // 2], dim=2)
    codes = torch.cat([codes & 15, codes >> 4], dim=2)
    below, top = codes & 7, index[:out, 0].to(torch.uint8)[:, None, None]
    upper = torch.where(below == CODED, 0, top - below) | codes >> 3 << 7
    bits = upper.to(torch.int16) << 8 | lower
    bits = bits.unflatten(2, (4, 2, 4, 2)).permute(0, 1, 3, 5, 2, 4).flatten(1)[:, :width]
    columns, numbers = index[out + 1 :].unbind(1)
    of_row = torch.arange(out, device=packed.device)
    rows = of_row.repeat_interleave(index[: out + 1, 1].diff(), output_size=len(columns))
    return bits.index_put((rows, columns), numbers.to(torch.int16)).view(torch.bfloat16)


def expand(
    packed: UInt8[Tensor, "out groups 96"], index: Int32[Tensor, "entries 2"], width: int
) -> BFloat16[Tensor, "out width"]:
    """:func:`expand_definition`, in C++ on the CPU."""
    out = packed.new_empty(0, dtype=torch.bfloat16)
    fast = not use_definition() and index.is_cpu and fits(packed, index, width) and inside(packed, index, width)
    library = native_library(out) if fast else None  # which takes no integers
    if library is None:
        return expand_definition(packed, index, width)
    return _expanded(library, packed, index, width, slice(0, len(packed)))


def fits(packed: Tensor, index: Tensor, width: int) -> bool:
    """Whether shapes, dtypes and strides are those of :func:`~glassformer.layers.quantized.lossless.encode`."""
    return (
        packed.shape == (len(packed), -(-width // GROUP), GROUP_BYTES)
        and width % MULTIPLE == 0
        and index.shape == (len(index), 2)
        and len(index) > len(packed)
        and (packed.dtype, index.dtype) == (torch.uint8, torch.int32)
        and packed.is_contiguous()
        and index.is_contiguous()
    )


def inside(packed: Tensor, index: Tensor, width: int) -> bool:
    """Whether C++ may follow what is in ``index``."""
    first, columns = index[: len(packed) + 1, 1], index[len(packed) + 1 :, 0]
    ordered = first[0] == len(packed) + 1 and first[-1] == len(index) and (first.diff() >= 0).all()
    return bool(ordered and ((columns >= 0) & (columns < width)).all())


def _expanded(library: Library, packed: Tensor, index: Tensor, width: int, rows: slice) -> Tensor:
    first, last, _ = rows.indices(len(packed))
    out = packed.new_empty(last - first, width, dtype=torch.bfloat16)
    sizes = (len(packed), width, len(index), first, last, threads_for(out))
    library.call("expand_lossless", packed, index, out, *sizes)
    return out


def definition(x: Tensor, packed: Tensor, index: Tensor, width: int, bias: Tensor | None = None) -> Tensor:
    """``x @ weights.T + bias`` in ``x``'s dtype."""
    return F.linear(x, expand_definition(packed, index, width).to(x.dtype), bias)


def lossless_linear(
    x: Float[Tensor, "*batch in"],
    packed: UInt8[Tensor, "out groups 96"],
    index: Int32[Tensor, "entries 2"],
    width: int,
    bias: Float[Tensor, " out"] | None = None,
) -> Float[Tensor, "*batch out"]:
    """:func:`definition`; on the CPU without gradients a few tokens are multiplied by the weights as they are stored.

    More tokens are multiplied by :func:`~glassformer.kernels.linear.linear`, with the weights of some rows at a time.
    An infinite number in ``x`` that meets an exception gives NaN where the definition may give infinity.
    """
    grad = torch.is_grad_enabled() and (x.requires_grad or (bias is not None and bias.requires_grad))
    if (
        x.shape[-1] != width
        or grad
        or torch.compiler.is_compiling()
        or use_definition()
        or autocast_dtype(x) != x.dtype
        or x.numel() == 0
        or not (packed.is_cpu and index.is_cpu and fits(packed, index, width))
        or (library := native_library(x) if bias is None else native_library(x, bias)) is None
    ):
        return definition(x, packed, index, width, bias)
    tokens = x.reshape(-1, width)
    if len(tokens) <= (FEW_NARROW if x.dtype == torch.bfloat16 and slow_bfloat16() else FEW):
        return few_tokens(library, "rows_lossless", (packed, index), x, bias, len(index))
    out = x.new_empty(len(tokens), len(packed))
    for rows in parts(packed.flatten(1), _EXPANDED):
        weights = _expanded(library, packed, index, width, rows).to(x.dtype)
        out[:, rows] = linear(tokens, weights, None if bias is None else bias[rows])
    return out.view(*x.shape[:-1], len(packed))
