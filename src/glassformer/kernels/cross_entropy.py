"""Cross entropy of logits and the tokens that followed.

Source: Bengio et al. 2003, "A Neural Probabilistic Language Model", section 2.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from glassformer.kernels import native
from glassformer.kernels.dispatch import (
    NATIVE_NAMES,
    Fast,
    Operation,
    differentiate,
    native_library,
    use_definition,
)
from glassformer.kernels.native import declare

_FEW_LOGITS = 2**16
"""Logits up to which calling the library takes longer than the work."""


def definition(logits: Tensor, targets: Tensor, ignored: int) -> Tensor:
    """Return the mean of ``log sum exp(logits) - logits[target]`` over the targets.

    Targets that are ``ignored`` do not count. Computed in float32 or wider.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    return F.cross_entropy(logits.to(wide), targets, ignore_index=ignored)


def cross_entropy(
    logits: Float[Tensor, "row vocab"], targets: Int64[Tensor, " row"], ignored: int = -100
) -> Float[Tensor, ""]:
    """Compute :func:`definition`, in nats.

    On the CPU it makes no second copy of the logits and takes one pass each way. The backward pass
    needs the logits and one number per row. The result is NaN if every target is ``ignored``, whose
    default is no token.
    """
    # A compiler fuses the definition, and torch.func transforms it.
    if torch.compiler.is_compiling() or use_definition():
        return definition(logits, targets, ignored)
    # C++ checks no targets; the definition refuses others.
    fits = (
        targets.dtype == torch.int64
        and targets.shape == logits.shape[:1]
        and targets.device == logits.device
    )
    if fits and logits.numel() >= _FEW_LOGITS and native_library(logits) is not None:
        return Fast.apply(_IN_CPP, (ignored,), logits, targets)
    return definition(logits, targets, ignored)


declare("cross_entropy", "Tlff", lambda rows, size, *_: (rows * size, rows, rows, rows))
declare(
    "cross_entropy_backward", "TlfT", lambda rows, size, *_: (rows * size, rows, rows, rows * size)
)


def _forward(logits: Tensor, targets: Tensor, ignored: int) -> tuple[Tensor, Tensor]:
    """Return the mean loss, and the log-sum-exp of every row."""
    library = native.library()
    assert library is not None
    rows, size = logits.shape
    losses, lse = logits.new_empty(2, rows, dtype=torch.float32).unbind()
    name = f"cross_entropy_{NATIVE_NAMES[logits.dtype]}"
    sizes = (rows, size, ignored, torch.get_num_threads())
    library.call(name, logits.contiguous(), targets.contiguous(), losses, lse, *sizes)
    loss = losses.sum().div_((targets != ignored).sum())
    if loss.isnan():
        loss = definition(logits, targets, ignored)  # raises for an unknown target
    return loss, lse


def _backward(
    needed: Any, grad: Tensor, logits: Tensor, targets: Tensor, lse: Tensor, ignored: int
) -> tuple[Tensor | None, ...]:
    """Return ``d logits = (softmax(logits) - [target]) / rows``, 0 in rows that are ignored."""
    library = native_library(logits)
    if library is None:
        (grad_logits,) = differentiate(
            lambda logits: definition(logits, targets, ignored), (logits,), (True,), grad
        )
        return grad_logits, None
    logits = logits.contiguous()
    rows, size = logits.shape
    out = torch.empty_like(logits)
    scale = float(grad) / max(int((targets != ignored).sum()), 1)
    name = f"cross_entropy_backward_{NATIVE_NAMES[logits.dtype]}"
    sizes = (rows, size, ignored, scale, torch.get_num_threads())
    library.call(name, logits, targets.contiguous(), lse, out, *sizes)
    return out, None


_IN_CPP = Operation(definition, _forward, _backward)
