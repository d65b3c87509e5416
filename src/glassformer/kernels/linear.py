"""Linear maps: a few tokens in C++, bfloat16 in float32 where there are no products of it, and
float32 by oneDNN where that is faster than MKL.
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
FEW_NARROW = 32
"""Tokens that the C++ form multiplies; the second in bfloat16, on processors without products of
it.
"""

# Fewer weights do not pay for the C++ form, nor for another thread.
_LEAST = 2**18
_PER_THREAD = 2**16
# Weights that are widened at a time, so that a large matrix needs little memory.
_WIDENED = 2**22

LEAST_WORK = 2**22
LEAST_WORK_HALVES = 2**24
"""Multiply-adds below which a call of oneDNN takes longer than it saves; the second where 512 bits
are two halves.
"""

definition = F.linear


@functools.cache
def avx512_of_amd() -> bool:
    """Whether the processor has AVX-512 that MKL, which uses it on Intel's processors alone, leaves
    unused.
    """
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):
        return False
    name = _capabilities().get("cpu_name")
    return torch.backends.cpu.get_cpu_capability() == "AVX512" and "AMD" in str(name)


@functools.cache
def slow_mkl() -> bool:
    """Whether torch multiplies float32 at half the processor's rate.

    Of AMD's, Zen 4 multiplies 512 bits in two halves: what is read without gradients is a seventh
    faster by oneDNN, training is not. Its successors have AVX-VNNI, too.
    """
    capabilities = _capabilities()
    return avx512_of_amd() and bool(
        capabilities.get("avx_vnni") or capabilities.get("avx512_vp2intersect")
    )


def _capabilities() -> Mapping[str, object]:
    capabilities: Mapping[str, object] = getattr(
        torch.cpu, "get_capabilities", dict
    )()  # not in every torch
    return capabilities


def linear(
    x: Float[Tensor, "*batch in"],
    weight: Float[Tensor, "out in"],
    bias: Float[Tensor, " out"] | None = None,
) -> Float[Tensor, "*batch out"]:
    """``x @ weight.T + bias``: :func:`definition`, by the fastest form for the number of tokens and
    the processor.

    In bfloat16 all forms add in float32 and round once. A few tokens that C++ multiplies, without
    gradients and by 2^18 weights or more, have the same bits in every batch of up to that many, and
    on any number of threads.
    """
    # Asked first: of small models the call itself would be 1 % of the time.
    if x.is_meta or weight.is_meta or (bias is not None and bias.is_meta):
        require_one_device(x, weight, bias)
    narrow = x.dtype == torch.bfloat16
    work = x.numel() * weight.shape[0]
    few = work <= (FEW_NARROW if narrow and slow_bfloat16() else FEW) * weight.numel()
    large = x.dtype == torch.float32 and (
        (work >= LEAST_WORK and slow_mkl()) or (work >= LEAST_WORK_HALVES and avx512_of_amd())
    )
    # Torch's own product, where no form below pays or takes it. Of small models such questions take
    # as long as the product, so the first one that is asked is the one that most products answer.
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
    """:func:`definition` of a few tokens, by a function of rows.cpp, which adds in float32.

    The first of the weights has a row for each output; ``sizes`` are what the function takes after
    rows, width and tokens.
    """
    rows = len(weights[0])
    width = x.shape[-1]
    out = x.new_empty(*x.shape[:-1], rows, dtype=torch.float32)
    sizes = (rows, width, x.numel() // width, *sizes, threads_for(weights[0]))
    library.call(name, *weights, x.float().contiguous(), out, *sizes)
    return (out if bias is None else out.add_(bias)).to(x.dtype)


def threads_for(weight: Tensor) -> int:
    """Threads that a product with these weights pays for, up to torch's number."""
    return max(1, min(torch.get_num_threads(), weight.numel() // _PER_THREAD))


def parts(weight: Tensor, numbers: int = _WIDENED) -> list[slice]:
    """Rows to be widened at a time, of about so many numbers."""
    step = max(1, numbers // max(1, weight.shape[1]))
    return [slice(start, start + step) for start in range(0, len(weight), step)]


def by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """:func:`definition` of matrices of float32, which may be transposed; the bias is contiguous."""
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
    """``d x = grad @ weight``, ``d weight = grad.T @ x`` and ``d bias = sum of grad``."""
    of_x, of_weight, of_bias = needed
    to_bias = grad.sum(0, dtype=torch.float32) if of_bias else None
    grad = grad.contiguous()
    to_x = by_onednn(grad, weight.T) if of_x else None
    to_weight = None
    if of_weight:
        to_weight = by_onednn(grad.T, x.contiguous().T)
    return to_x, to_weight, to_bias


@torch.autocast("cpu", enabled=False)
def _float32_forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor]:
    wide = x.float()
    out = x.new_empty(len(x), len(weight))
    for rows in parts(weight):
        out[:, rows] = F.linear(
            wide, weight[rows].float(), None if bias is None else bias[rows].float()
        )
    return (out,)


@torch.autocast("cpu", enabled=False)
def _float32_backward(
    needed: Sequence[bool], grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor | None, ...]:
    """As :func:`_onednn_backward`, in float32, some rows of the weights at a time."""
    of_x, of_weight, of_bias = needed
    to_bias = None
    if of_bias:
        to_bias = grad.sum(0, dtype=torch.float32).to(weight.dtype)
    to_x = torch.zeros_like(x, dtype=torch.float32) if of_x else None
    to_weight = torch.empty_like(weight) if of_weight else None
    grad = grad.float()
    wide = x.float() if of_weight else x
    for rows in parts(weight):
        if to_x is not None:
            to_x.addmm_(grad[:, rows], weight[rows].float())
        if to_weight is not None:
            to_weight[rows] = grad[:, rows].T @ wide
    return None if to_x is None else to_x.to(x.dtype), to_weight, to_bias


def _by_formula(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return definition(x, weight, bias)


_BY_ONEDNN = Operation(_by_formula, _onednn_forward, _onednn_backward)
_IN_FLOAT32 = Operation(_by_formula, _float32_forward, _float32_backward)
