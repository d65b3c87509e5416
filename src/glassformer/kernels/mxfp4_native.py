"""The C++ form of the packed MXFP4 operations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from glassformer.kernels import native
from glassformer.kernels.dispatch import NATIVE_NAMES
from glassformer.kernels.native import LEVELS, Library, declare

FEW = 8
"""Tokens that are multiplied in fixed point even where the processor has products of bfloat16."""


def _sizes(rows: int, groups: int, tokens: int, _threads: int) -> tuple[int, ...]:
    return 16 * rows * groups, rows * groups, 32 * tokens * groups, tokens * rows


declare("mxfp4_expand", "bbT", lambda groups, _: (16 * groups, groups, 32 * groups))
declare("mxfp4_multiply", "bbTf", _sizes)
declare("rows_mxfp4", "bbff", lambda rows, width, *others: _sizes(rows, width // 32, *others))
# Groups of 32 weights per thread, below which another thread does not pay.
_GROUPS_PER_THREAD = 2**13


@dataclass(frozen=True)
class Kernel:
    """The packed operations of a library, for contiguous tensors on the CPU."""

    library: Library

    @property
    def level(self) -> int:
        """The instruction set that they use, of :data:`~glassformer.kernels.native.LEVELS`."""
        return self.library.level

    def expand(self, blocks: Tensor, scales: Tensor, out: Tensor) -> None:
        """Write the weights of packed groups to ``out``, bfloat16 or float32, 32 for each group."""
        self._run("expand", out.dtype, (blocks, scales, out), scales.numel())

    def multiply(self, x: Tensor, blocks: Tensor, scales: Tensor, out: Tensor) -> None:
        """Write ``x @ weights.T`` to ``out``, for packed weights; ``x`` is bfloat16 or float32, ``out`` is float32.

        Each weight is read once and never stored expanded. Products are summed in float32, in an order that depends on
        the level alone: a token's result has the same bits in every batch and with every number of threads. Tokens of
        bfloat16 are multiplied in fixed point, as 16-bit integers relative to the greatest of 32, which is exact to
        2^-16 of it; more than :data:`FEW` of them in bfloat16 where the processor has such products.
        """
        (rows, groups), tokens = scales.shape, len(x)
        in_bfloat16 = self.level == LEVELS.index("AVX-512 with bfloat16 products") and tokens > FEW
        if x.dtype == torch.bfloat16 and self.level > 0 and not in_bfloat16:
            sizes = (rows, 32 * groups, tokens, _threads(scales.numel()))
            self.library.call("rows_mxfp4", blocks, scales, x.float(), out, *sizes)
        else:
            x = x if in_bfloat16 else x.float()
            self._run("multiply", x.dtype, (blocks, scales, x, out), rows, groups, tokens)

    def _run(self, name: str, dtype: torch.dtype, tensors: tuple[Tensor, ...], *sizes: int) -> None:
        self.library.call(f"mxfp4_{name}_{NATIVE_NAMES[dtype]}", *tensors, *sizes, _threads(tensors[1].numel()))


def _threads(groups: int) -> int:
    return max(1, min(torch.get_num_threads(), groups // _GROUPS_PER_THREAD))


def kernel() -> Kernel | None:
    """The kernel, of the library that is compiled on first use (:func:`~glassformer.kernels.native.library`)."""
    library = native.library()
    return None if library is None else Kernel(library)
