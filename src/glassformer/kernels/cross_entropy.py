"""The cross entropy of logits and the tokens that came.

Source: Bengio et al. 2003, "A Neural Probabilistic Language Model", section 2.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from glassformer.kernels.dispatch import NATIVE_NAMES, defined_backward, differentiate, native_library, use_definition
from glassformer.kernels.native import declare

NOTHING = -100
"""The ``ignored`` of :func:`cross_entropy` that is no token."""

_FEW = 2**16  # logits, with which calling the library takes longer than the work


def definition(logits: Tensor, targets: Tensor, ignored: int) -> Tensor:
    """The mean of ``log sum exp(logits) - logits[target]`` over all targets but ``ignored``, in float32 or wider."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    return F.cross_entropy(logits.to(wide), targets, ignore_index=ignored)


def cross_entropy(
    logits: Float[Tensor, "row vocab"], targets: Int64[Tensor, " row"], ignored: int = NOTHING
) -> Float[Tensor, ""]:
    """:func:`definition`, in nats; on the CPU without a second copy of the logits, in one pass each way.

    For the backward pass it keeps the logits and one number per row. NaN where every target is ``ignored``.

    Raises:
        IndexError: A target outside the vocabulary (torch's own).
    """
    fits = targets.dtype == torch.int64 and targets.shape == logits.shape[:1] and targets.device == logits.device
    plain = not fits or logits.numel() < _FEW or torch.compiler.is_compiling() or use_definition()
    if plain or native_library(logits) is None:
        return definition(logits, targets, ignored)
    return _CrossEntropy.apply(logits, targets, ignored)


declare("cross_entropy", "Tlff", lambda rows, size, *_: (rows * size, rows, rows, rows))
declare("cross_entropy_backward", "TlfT", lambda rows, size, *_: (rows * size, rows, rows, rows * size))


class _CrossEntropy(torch.autograd.Function):
    """``d logits = (softmax(logits) - [target]) / rows``, 0 in rows that are ignored."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, ignored: int) -> Tensor:
        library = native_library(logits)
        assert library is not None
        inputs = logits, targets
        logits, targets = logits.contiguous(), targets.contiguous()
        rows, size = logits.shape
        losses, lse = logits.new_empty(2, rows, dtype=torch.float32).unbind()
        name, threads = f"cross_entropy_{NATIVE_NAMES[logits.dtype]}", torch.get_num_threads()
        library.call(name, logits, targets, losses, lse, rows, size, ignored, threads)
        ctx.save_for_backward(*inputs, lse)
        ctx.ignored = ignored
        ctx.count = int((targets != ignored).sum())
        loss = losses.sum().div_(ctx.count)
        return definition(logits, targets, ignored) if loss.isnan() else loss  # it raises for an unknown target

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        logits, targets, lse = ctx.saved_tensors
        by_formula = partial(definition, targets=targets, ignored=ctx.ignored)
        library = native_library(logits)
        if defined_backward(grads[0]) or library is None:
            return differentiate(by_formula, (logits,), (True,), grads[0])[0], None, None
        logits, targets = logits.contiguous(), targets.contiguous()
        rows, size = logits.shape
        found = torch.empty_like(logits)
        name, threads = f"cross_entropy_backward_{NATIVE_NAMES[logits.dtype]}", torch.get_num_threads()
        scale = float(grads[0]) / max(ctx.count, 1)
        library.call(name, logits, targets, lse, found, rows, size, ctx.ignored, scale, threads)
        return found, None, None
