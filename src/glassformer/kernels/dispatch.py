"""What decides between an operation's definition and its fast forms."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from glassformer.errors import InputError
from glassformer.kernels import PLAIN, native

NATIVE_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
"""How the library's functions name a dtype."""

_PLAIN_TENSORS = (Tensor, nn.Parameter)  # a subclass may be more than its memory


def transformed() -> bool:
    """Whether a transform of ``torch.func`` or forward-mode differentiation is active.

    Their tensors cannot be written to in place, and may hold no single value to branch on.
    """
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def use_definition() -> bool:
    """Whether to run the definition: it was asked for, or fast forms do not support the active
    transform.
    """
    return PLAIN.get() or transformed()


def native_library(*tensors: Tensor) -> native.Library | None:
    """The C++ library if it takes these tensors: float32 or bfloat16, alike, on the CPU, and
    nothing watches operators.

    A mode that watches (of FLOP counting, of tracing) sees no call of the library, nor does
    ``torch.jit.trace``. The memory of a tensor with the negative bit holds other numbers than the
    tensor.
    """
    dtype = tensors[0].dtype
    if dtype not in NATIVE_NAMES or transformed():
        return None
    if torch._C._len_torch_dispatch_stack() > 0 or torch._C._get_tracing_state() is not None:
        return None
    for each in tensors:
        if each.dtype != dtype or not each.is_cpu or each.layout != torch.strided:
            return None
        if (
            type(each) not in _PLAIN_TENSORS
            or each.is_neg()
            or torch._C._functorch.is_legacy_batchedtensor(each)
        ):
            return None
    return native.library()


def require_one_device(x: Tensor, *weights: Tensor | None) -> None:
    """Refuse what torch does not: on "meta" it multiplies by what happens to be in memory."""
    for each in weights:
        if (
            each is not None and each.is_meta != x.is_meta
        ):  # torch itself refuses other pairs of devices
            got = f"an input on {x.device} for weights on {each.device}"
            raise InputError(got, "one device", "Move the model, or the input.")


@functools.cache
def slow_bfloat16() -> bool:
    """Whether this processor has no products of bfloat16, which torch then computes many times
    slower than float32.
    """
    return not (
        torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


def defined_backward(grad: Tensor) -> bool:
    """Whether a backward pass has to be the definition's: it is itself differentiated, or a
    transform is active.

    With ``is_grads_batched=True`` torch passes many gradients of the output as one.
    """
    return (
        torch.is_grad_enabled()
        or transformed()
        or torch._C._functorch.is_legacy_batchedtensor(grad)
    )


def differentiate(
    definition: Callable[..., Tensor],
    inputs: Sequence[Tensor | None],
    needed: Sequence[bool],
    grad: Tensor,
) -> tuple[Tensor | None, ...]:
    """Gradients of ``definition(*inputs)`` that can be differentiated again.

    For the backward pass of a fast form where :func:`defined_backward`, such as under
    ``create_graph=True``. Inputs are connected to the graph that made them, and ``needed`` says
    which need a gradient.
    """
    # Views, so that a tensor given twice gets two gradients.
    with torch.enable_grad():
        parts = [None if each is None else each.view_as(each) for each in inputs]
        wanted = [
            part for part, need in zip(parts, needed, strict=True) if need and part is not None
        ]
        found = iter(torch.autograd.grad(definition(*parts), wanted, grad, create_graph=True))
    return tuple(next(found) if need else None for need in needed)


class Operation(NamedTuple):
    """A fast form with a backward pass. Options, which have no gradient, come last in all three."""

    definition: Callable[..., Tensor]
    """Of inputs and options."""
    forward: Callable[..., tuple[Tensor, ...]]
    """The output, and what else is kept for the backward pass, of inputs and options."""
    backward: Callable[..., tuple[Tensor | None, ...]]
    """The inputs' gradients, of which of them are needed, the output's gradient, inputs, what was
    kept and options.
    """


class Fast(torch.autograd.Function):
    """``Fast.apply(operation, options, *inputs)``: the fast form of an operation on tensors, some
    of which may be None.

    A backward pass that the fast form does not support is the definition's, which can be
    differentiated again.
    """

    @staticmethod
    def forward(
        ctx: Any, operation: Operation, options: tuple[Any, ...], *inputs: Tensor | None
    ) -> Tensor:
        """The output."""
        out, *kept = operation.forward(*inputs, *options)
        ctx.save_for_backward(*inputs, *kept)
        ctx.operation = operation
        ctx.options = options
        ctx.count = len(inputs)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """The inputs' gradients."""
        operation = ctx.operation
        options = ctx.options
        needed = ctx.needs_input_grad[2:]
        saved = ctx.saved_tensors
        if defined_backward(grads[0]):
            found = differentiate(
                lambda *x: operation.definition(*x, *options), saved[: ctx.count], needed, grads[0]
            )
        else:
            found = operation.backward(needed, grads[0], *saved, *options)
        return None, None, *found


def autocast_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which matrix products of ``x`` are computed: autocast's where it is on,
    otherwise that of ``x``.

    On the device ``"meta"``, for which torch has no autocast, it is that of ``x``.
    """
    kind = x.device.type
    if x.is_meta or not torch.is_autocast_enabled(kind):
        return x.dtype
    return torch.get_autocast_dtype(kind)
