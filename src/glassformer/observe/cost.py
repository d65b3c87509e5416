"""Measure the cost of a call: floating-point operations, as torch counts them, and peak memory."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

import glassformer.kernels.experts  # noqa: F401 - registers the operator that is named below
from glassformer.errors import InputError


def count_operations(call: Callable[[], object]) -> int:
    """Return the number of floating-point operations of ``call`` in matrix products.

    torch's ``FlopCounterMode`` counts them. A multiplication and an addition are two operations.
    Norms, softmax, activations, rotation and embeddings grow no faster than the products and do not
    count. Forbidden pairs of causal attention count, although a kernel may skip them.

    Formulas are added for operators that the counter would silently count as 0: the fused attention
    on the CPU, grouped products of experts, products with a single vector, and products that are
    added in place. The C++ library, which the counter cannot see, does not run meanwhile.
    """
    with FlopCounterMode(display=False, custom_mapping=_FORMULAS) as counter:
        call()
    return counter.get_total_flops()


_FORMULAS: dict[Any, Callable[..., int]] = {
    # Per pair of a query and a key; the backward pass computes the scores again. Those of torch
    # 2.10 refuse grouped heads.
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: (
        lambda q, k, v, *_, **__: 2 * q[0] * q[1] * q[2] * k[2] * (q[3] + v[3])
    ),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        lambda grad, q, k, v, *_, **__: 2 * q[0] * q[1] * q[2] * k[2] * (3 * q[3] + 2 * v[3])
    ),
    # Each row is multiplied with one of the matrices, whatever their number.
    torch.ops.aten._grouped_mm: lambda a, b, *_, **__: 2 * a[-2] * a[-1] * b[-1],
    torch.ops.aten.dot: lambda a, *_, **__: 2 * a[0],
    torch.ops.aten.mv: lambda a, *_, **__: 2 * a[0] * a[1],
    torch.ops.aten.addmv: lambda _, a, *__, **___: 2 * a[0] * a[1],
    torch.ops.aten.addmm_: lambda _, a, b, **__: 2 * a[0] * a[1] * b[1],
    torch.ops.aten.baddbmm_: lambda _, a, b, **__: 2 * a[0] * a[1] * a[2] * b[2],
    torch.ops.glassformer.mix_experts: (
        lambda x, weights, indices, gate, *_, **__: 6 * weights[0] * weights[1] * gate[1] * gate[2]
    ),
}
"""Maps the shapes of an operator's arguments to its number of operations."""


def peak_bytes(call: Callable[[], object]) -> int:
    """Return the peak of the bytes that torch allocates on the CPU during ``call``.

    Bytes held before do not count. ``call`` runs once before as a warm-up. The profiler reports
    each allocation and release, so the number is the same every time, unlike a process's resident
    memory.
    """
    # The profiler reads this at its first use; otherwise it logs into the output of commands.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    from torch.profiler import ProfilerActivity, profile

    call()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = call()
    del result
    events = []
    if profiler.profiler is not None:
        events = profiler.profiler.kineto_results.events()
    changes = sorted(
        (event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"
    )
    if not changes:
        raise InputError(
            got="a call that allocates nothing",
            expected="work on the CPU",
            fix="Measure a forward pass on the CPU.",
        )
    return int(max(np.cumsum([size for _, size in changes]).max(), 0))
