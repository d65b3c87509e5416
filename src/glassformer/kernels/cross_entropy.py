"""The cross entropy of logits and the tokens that came.

Source: Bengio et al. 2003, "A Neural Probabilistic Language Model", section 2.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from glassformer.kernels.dispatch import NATIVE_NAMES, Fast, Operation, differentiate, native_library, use_definition
from glassformer.kernels.native import declare

_FEW = 2**16  # logits, with which calling the library takes longer than the work


def definition(logits: Tensor, targets: Tensor, ignored: int) -> Tensor:
    """The mean of ``log sum exp(logits) - logits[target]`` over all targets but ``ignored``, in float32 or wider."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    return F.cross_entropy(logits.to(wide), targets, ignore_index=ignored)


def cross_entropy(
    logits: Float[Tensor, "row vocab"], targets: Int64[Tensor, " row"], ignored: int = -100
) -> Float[Tensor, ""]:
    """:func:`definition`, in nats; on the CPU without a second copy of the logits, in one pass each way.

    For the backward pass it keeps the logits and one number per row. NaN where every target is ``ignored``,
    by default a number that is no token.
    """
    fits = targets.dtype == torch.int64 and targets.shape == logits.shape[:1] and targets.device == logits.device
    plain = not fits or logits.numel() < _FEW or torch.compiler.is_compiling() or use_definition()
    if plain or native_library(logits) is None:
        return definition(logits, targets, ignored)
    return Fast.apply(_OPERATION, (ignored,), logits, targets)


declare("cross_entropy", "Tlff", lambda rows, size, *_: (rows * size, rows, rows, rows))
declare("cross_entropy_backward", "TlfT", lambda rows, size, *_: (rows * size, rows, rows, rows * size))


def _forward(logits: Tensor, targets: Tensor, ignored: int) -> tuple[Tensor, Tensor]:
    library = native_library(logits)
    assert library is not None
    rows, size = logits.shape
    losses, lse = logits.new_empty(2, rows, dtype=torch.float32).unbind()
    name, threads = f"cross_entropy_{NATIVE_NAMES[logits.dtype]}", torch.get_num_threads()
    library.call(name, logits.contiguous(), targets.contiguous(), losses, lse, rows, size, ignored, threads)
    loss = losses.sum().div_((targets != ignored).sum())
    return definition(logits, targets, ignored) if loss.isnan() else loss, lse  # it raises for an unknown target


def _backward(
    _needed: Any, grad: Tensor, logits: Tensor, targets: Tensor, lse: Tensor, ignored: int
) -> tuple[Tensor | None, ...]:
    """``d logits = (softmax(logits) - [target]) / rows``, 0 in rows that are ignored."""
    library = native_library(logits)
    if library is None:
        return *differentiate(lambda logits: definition(logits, targets, ignored), (logits,), (True,), grad), None
    logits, (rows, size) = logits.contiguous(), logits.shape
    out = torch.empty_like(logits)
    name, threads = f"cross_entropy_backward_{NATIVE_NAMES[logits.dtype]}", torch.get_num_threads()
    scale = float(grad) / max(int((targets != ignored).sum()), 1)
    library.call(name, logits, targets.contiguous(), lse, out, rows, size, ignored, scale, threads)
    return out, None


_OPERATION = Operation(definition, _forward, _backward)
