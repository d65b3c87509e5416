"""Linear maps, by the form that is fastest on this processor.

A few tokens are multiplied in C++; bfloat16 in float32 where the processor has no products of
bfloat16; float32 by oneDNN where that is faster than MKL.
"""

import functools
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from glassformer.kernels.dispatch import (
    NATIVE_NAMES,
    Fast,
    Operation,
    autocast_dtype,
    native_library,
    require_one_device,
    slow_bfloat16,
    use_definition,
)
from glassformer.kernels.native import Library, declare

FEW = 8
"""Tokens that the C++ form multiplies."""
FEW_NARROW = 32
"""Tokens that it multiplies in bfloat16, on processors without products of bfloat16."""

_LEAST = 2**18  # weights from which on the C++ form is faster
_PER_THREAD = 2**16  # weights for each thread
_WIDENED = 2**22  # weights that are widened at a time, so that a large matrix needs little memory

LEAST_WORK = 2**22
"""Multiply-adds from which on a call of oneDNN saves time."""
LEAST_WORK_HALVES = 2**24
"""The bound :data:`LEAST_WORK` of processors that multiply 512 bits in two halves."""

definition = F.linear


@functools.cache
def avx512_of_amd() -> bool:
    """Return whether the processor has AVX-512 that MKL leaves unused, as on AMD's processors."""
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):
        return False
    name = _capabilities().get("cpu_name")
    return torch.backends.cpu.get_cpu_capability() == "AVX512" and "AMD" in str(name)


@functools.cache
def slow_mkl() -> bool:
    """Return whether torch multiplies float32 at half the processor's rate.

    AMD's Zen 4 multiplies 512 bits in two halves: inference is a seventh faster by oneDNN, training
    is not. Its successors, which have AVX-VNNI too, gain in both.
    """
    capabilities = _capabilities()
    return avx512_of_amd() and bool(
        capabilities.get("avx_vnni") or capabilities.get("avx512_vp2intersect")
    )


def _capabilities() -> Mapping[str, object]:
    get_capabilities = getattr(torch.cpu, "get_capabilities", dict)  # not in every torch
    capabilities: Mapping[str, object] = get_capabilities()
    return capabilities


def linear(
    x: Float[Tensor, "*batch in"],
    weight: Float[Tensor, "out in"],
    bias: Float[Tensor, " out"] | None = None,
) -> Float[Tensor, "*batch out"]:
    """Return ``x @ weight.T + bias``, by the fastest form for the number of tokens and processor.

    In bfloat16 all forms add in float32 and round once. C++ multiplies up to :data:`FEW` or
    :data:`FEW_NARROW` tokens without gradients, by 2^18 weights or more. They have the same bits in
    every batch of up to that many, and on any number of threads.
    """
    # The condition comes before the call, which would take 1 % of a small model's time.
    if x.is_meta or weight.is_meta or (bias is not None and bias.is_meta):
        require_one_device(x, weight, bias)
    narrow = x.dtype == torch.bfloat16
    work = x.numel() * weight.shape[0]
    most_tokens = FEW_NARROW if narrow and slow_bfloat16() else FEW
    few = work <= most_tokens * weight.numel()
    large = x.dtype == torch.float32 and (
        (work >= LEAST_WORK and slow_mkl()) or (work >= LEAST_WORK_HALVES and avx512_of_amd())
    )
    # Torch's own product, where no form below is faster or supports it. In small models these
    # conditions take as long as the product, so the one that most products meet comes first.
    if (
        not (few or narrow or large)
        or work == 0
        or weight.dim() != 2
        or x.shape[-1:] != weight.shape[1:]
        or torch.compiler.is_compiling()
        or use_definition()
        or autocast_dtype(x) != x.dtype
    ):
        return definition(x, weight, bias)
    tensors = (x, weight) if bias is None else (x, weight, bias)
    grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    # C++ reads the weights once for a few tokens.
    if few and not grad and weight.numel() >= _LEAST:
        library = native_library(*tensors)
        if library is not None and weight.is_contiguous():
            return few_tokens(library, f"rows_{NATIVE_NAMES[weight.dtype]}", (weight,), x, bias)
    form = None
    if narrow:
        # bfloat16 on a processor without products of it: in float32, some rows at a time.
        if x.device.type == "cpu" and weight.dtype == x.dtype and slow_bfloat16():
            form = _IN_FLOAT32
    elif large and (not grad or slow_mkl()) and _onednn_takes(tensors):
        # float32 on a processor whose vectors MKL does not use.
        form = _BY_ONEDNN
    if form is None:
        return definition(x, weight, bias)
    rows = x.reshape(-1, x.shape[-1])
    if grad:
        out = Fast.apply(form, (), rows, weight, bias)
    else:
        out = form.forward(rows, weight, bias)[0]
    return out.view(*x.shape[:-1], len(weight))


declare("rows", "Tff", lambda rows, width, tokens, _: (rows * width, tokens * width, tokens * rows))


def few_tokens(
    library: Library,
    name: str,
    weights: tuple[Tensor, ...],
    x: Tensor,
    bias: Tensor | None,
    *sizes: int,
) -> Tensor:
    """Multiply a few tokens by a function of rows.cpp, which adds in float32.

    Args:
        library: The C++ library.
        name: Name of the function.
        weights: Its weights, of which the first has a row for each output.
        x: Tokens.
        bias: Added to the products.
        sizes: Arguments of the function after rows, width and tokens.
    """
    rows = len(weights[0])
    width = x.shape[-1]
    out = x.new_empty(*x.shape[:-1], rows, dtype=torch.float32)
    sizes = (rows, width, x.numel() // width, *sizes, threads_for(weights[0]))
    library.call(name, *weights, x.float().contiguous(), out, *sizes)
    if bias is not None:
        out.add_(bias)
    return out.to(x.dtype)


def threads_for(weight: Tensor) -> int:
    """Return the number of threads for a product with these weights, up to torch's number."""
    return max(1, min(torch.get_num_threads(), weight.numel() // _PER_THREAD))


def parts(weight: Tensor, numbers: int = _WIDENED) -> list[slice]:
    """Return slices of rows, each of about so many numbers."""
    step = max(1, numbers // max(1, weight.shape[1]))
    return [slice(start, start + step) for start in range(0, len(weight), step)]


def by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return :func:`definition` by oneDNN: matrices of float32, which may be transposed.

    The bias is contiguous.
    """
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out


def _onednn_takes(tensors: tuple[Tensor, ...]) -> bool:
    return (
        all(tensor.is_contiguous() for tensor in tensors[1:])
        and native_library(*tensors) is not None
    )


def _onednn_forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor]:
    return (by_onednn(x.contiguous(), weight, bias),)


def _onednn_backward(
    needed: Sequence[bool], grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Return ``d x = grad @ weight``, ``d weight = grad.T @ x`` and ``d bias = sum of grad``."""
    needs_x, needs_weight, needs_bias = needed
    grad_x = None
    grad_weight = None
    grad_bias = None
    if needs_bias:
        grad_bias = grad.sum(0, dtype=torch.float32)
    grad = grad.contiguous()
    if needs_x:
        grad_x = by_onednn(grad, weight.T)
    if needs_weight:
        grad_weight = by_onednn(grad.T, x.contiguous().T)
    return grad_x, grad_weight, grad_bias


@torch.autocast("cpu", enabled=False)
def _float32_forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor]:
    wide = x.float()
    out = x.new_empty(len(x), len(weight))
    for rows in parts(weight):
        part_of_bias = None if bias is None else bias[rows].float()
        out[:, rows] = F.linear(wide, weight[rows].float(), part_of_bias)
    return (out,)


@torch.autocast("cpu", enabled=False)
def _float32_backward(
    needed: Sequence[bool], grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Return the gradients of :func:`_onednn_backward`, in float32, some rows at a time."""
    needs_x, needs_weight, needs_bias = needed
    grad_x = None
    grad_weight = None
    grad_bias = None
    if needs_bias:
        grad_bias = grad.sum(0, dtype=torch.float32).to(weight.dtype)
    grad = grad.float()
    if needs_x:
        wide_grad_x = torch.zeros_like(x, dtype=torch.float32)
        for rows in parts(weight):
            wide_grad_x.addmm_(grad[:, rows], weight[rows].float())
        grad_x = wide_grad_x.to(x.dtype)
    if needs_weight:
        grad_weight = torch.empty_like(weight)
        wide = x.float()
        for rows in parts(weight):
            grad_weight[rows] = grad[:, rows].T @ wide
    return grad_x, grad_weight, grad_bias


def _by_formula(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return definition(x, weight, bias)


_BY_ONEDNN = Operation(_by_formula, _onednn_forward, _onednn_backward)
_IN_FLOAT32 = Operation(_by_formula, _float32_forward, _float32_backward)
