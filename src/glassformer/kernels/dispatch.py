"""The choice between an operation's definition and its fast forms."""

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
    """Return whether a transform of ``torch.func`` or forward-mode differentiation is active.

    Its tensors cannot be written to in place, and may hold no single value to branch on.
    """
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def use_definition() -> bool:
    """Return whether to run the definition: by :data:`PLAIN`, or because a transform is active."""
    return PLAIN.get() or transformed()


def native_library(*tensors: Tensor) -> native.Library | None:
    """Return the C++ library if it takes these tensors, or None.

    It takes tensors on the CPU that are all float32 or all bfloat16, while no mode watches
    operators. Such a mode (FLOP counting, tracing) and ``torch.jit.trace`` see no call of the
    library. A tensor with the negative bit is not taken: its memory holds other numbers.
    """
    dtype = tensors[0].dtype
    if dtype not in NATIVE_NAMES or transformed():
        return None
    if torch._C._len_torch_dispatch_stack() > 0 or torch._C._get_tracing_state() is not None:
        return None
    for tensor in tensors:
        if tensor.dtype != dtype or not tensor.is_cpu or tensor.layout != torch.strided:
            return None
        if (
            type(tensor) not in _PLAIN_TENSORS
            or tensor.is_neg()
            or torch._C._functorch.is_legacy_batchedtensor(tensor)
        ):
            return None
    return native.library()


def require_one_device(x: Tensor, *weights: Tensor | None) -> None:
    """Refuse an input and weights of which only some are on the device "meta".

    Torch would multiply by arbitrary memory. It refuses other pairs of devices itself.
    """
    for weight in weights:
        if weight is not None and weight.is_meta != x.is_meta:
            raise InputError(
                got=f"an input on {x.device} for weights on {weight.device}",
                expected="one device",
                fix="Move the model, or the input.",
            )


@functools.cache
def slow_bfloat16() -> bool:
    """Return whether this processor has no products of bfloat16.

    Torch then computes them many times slower than those of float32.
    """
    return not (
        torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


def defined_backward(grad: Tensor) -> bool:
    """Return whether a backward pass has to be the definition's.

    This is so if it is differentiated itself, or if a transform is active. With
    ``is_grads_batched=True`` torch passes many gradients of the output as one.
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
    """Return gradients of ``definition(*inputs)`` that can be differentiated again.

    A fast form needs them in its backward pass where :func:`defined_backward`, such as under
    ``create_graph=True``.

    Args:
        definition: The function to differentiate.
        inputs: Its tensors, connected to the graph that computed them.
        needed: Whether each of them needs a gradient.
        grad: Gradient of the output.
    """
    # Views, so that a tensor that is passed twice gets two gradients.
    with torch.enable_grad():
        views = [None if tensor is None else tensor.view_as(tensor) for tensor in inputs]
        sources = [
            view for view, need in zip(views, needed, strict=True) if need and view is not None
        ]
        gradients = iter(torch.autograd.grad(definition(*views), sources, grad, create_graph=True))
    return tuple(next(gradients) if need else None for need in needed)


class Operation(NamedTuple):
    """A fast form with a backward pass. Options, which have no gradient, come last in all three."""

    definition: Callable[..., Tensor]
    """``definition(*inputs, *options)`` returns the output."""
    forward: Callable[..., tuple[Tensor, ...]]
    """``forward(*inputs, *options)`` returns the output and the tensors for the backward pass."""
    backward: Callable[..., tuple[Tensor | None, ...]]
    """``backward(needed, grad, *inputs, *tensors, *options)`` returns the inputs' gradients."""


class Fast(torch.autograd.Function):
    """The fast form of an operation: ``Fast.apply(operation, options, *inputs)``.

    Inputs are tensors or None. A backward pass that the fast form does not support is that of the
    definition, which can be differentiated again.
    """

    @staticmethod
    def forward(
        ctx: Any, operation: Operation, options: tuple[Any, ...], *inputs: Tensor | None
    ) -> Tensor:
        """Return the output."""
        out, *for_backward = operation.forward(*inputs, *options)
        ctx.save_for_backward(*inputs, *for_backward)
        ctx.operation = operation
        ctx.options = options
        ctx.count = len(inputs)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return the inputs' gradients."""
        operation = ctx.operation
        options = ctx.options
        needed = ctx.needs_input_grad[2:]
        saved = ctx.saved_tensors
        if defined_backward(grads[0]):
            gradients = differentiate(
                lambda *x: operation.definition(*x, *options), saved[: ctx.count], needed, grads[0]
            )
        else:
            gradients = operation.backward(needed, grads[0], *saved, *options)
        return None, None, *gradients


def autocast_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of matrix products of ``x``: autocast's where it is on, else that of ``x``.

    Torch has no autocast for the device ``"meta"``.
    """
    device_type = x.device.type
    if x.is_meta or not torch.is_autocast_enabled(device_type):
        return x.dtype
    return torch.get_autocast_dtype(device_type)
