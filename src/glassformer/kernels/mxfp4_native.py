"""The C++ form of the packed MXFP4 operations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from glassformer.errors import InputError
from glassformer.kernels import native
from glassformer.kernels.native import LEVELS, Library

FEW = 8
"""Tokens that are multiplied in fixed point even where the processor has products of bfloat16."""

_NAMES = {torch.bfloat16: "bfloat16", torch.float32: "float32"}
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
        groups = scales.numel()
        fits = blocks.numel() == 16 * groups and out.numel() == 32 * groups and out.dtype in _NAMES
        self._run(fits, "expand", out.dtype, (blocks, scales, out), groups)

    def multiply(self, x: Tensor, blocks: Tensor, scales: Tensor, out: Tensor) -> None:
        """Write ``x @ weights.T`` to ``out``, for packed weights; ``x`` is bfloat16 or float32, ``out`` is float32.

        Each weight is read once and never stored expanded. Products are summed in float32, in an order that depends on
        the level alone: a token's result has the same bits in every batch and with every number of threads. Tokens of
        bfloat16 are multiplied in fixed point, as 16-bit integers relative to the greatest of 32, which is exact to
        2^-16 of it; more than :data:`FEW` of them in bfloat16 where the processor has such products.
        """
        (rows, groups), tokens = scales.shape, len(x)
        fits = blocks.shape == (rows, groups, 16) and x.shape == (tokens, 32 * groups) and x.dtype in _NAMES
        fits = fits and out.shape == (tokens, rows) and out.dtype == torch.float32
        in_bfloat16 = self.level == LEVELS.index("AVX-512 with bfloat16 products") and tokens > FEW
        if x.dtype == torch.bfloat16 and self.level > 0 and not in_bfloat16:
            self._check(fits, x, blocks, scales, out)
            sizes = (rows, 32 * groups, tokens, _threads(scales.numel()))
            self.library.call("rows_mxfp4", blocks, scales, x.float(), out, *sizes)
        else:
            x = x if in_bfloat16 else x.float()
            self._run(fits, "multiply", x.dtype, (blocks, scales, x, out), rows, groups, tokens)

    def _run(self, fits: bool, name: str, dtype: torch.dtype, tensors: tuple[Tensor, ...], *sizes: int) -> None:
        self._check(fits, *tensors)
        self.library.call(f"mxfp4_{name}_{_NAMES[dtype]}", *tensors, *sizes, _threads(tensors[1].numel()))

    def _check(self, fits: bool, *tensors: Tensor) -> None:
        # C++ receives addresses only, so this is the last place that knows shapes and devices.
        if not (fits and all(each.is_contiguous() and each.device.type == "cpu" for each in tensors)):
            got = ", ".join(f"{tuple(each.shape)} of {each.dtype} on {each.device}" for each in tensors)
            expected = "contiguous CPU tensors whose shapes and dtypes match"
            raise InputError(
                got, expected, "Pass blocks [..., groups, 16], scales [..., groups] and 32 * groups numbers."
            )


def _threads(groups: int) -> int:
    return max(1, min(torch.get_num_threads(), groups // _GROUPS_PER_THREAD))


def kernel() -> Kernel | None:
    """The kernel, of the library that is compiled on first use (:func:`~glassformer.kernels.native.library`)."""
    library = native.library()
    return None if library is None else Kernel(library)
