"""Measured cost of a model: operations that torch counts, peak memory, and time."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

import glassformer.kernels.experts  # noqa: F401 - registers the operator that is named below
from glassformer.errors import require, require_positive

LENGTHS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
"""The lengths at which costs are measured, in tokens."""


def count_operations(call: Callable[[], object]) -> int:
    """The floating-point operations of ``call``, as torch's ``FlopCounterMode`` counts them: matrix products alone.

    Formulas are added for operators that the counter would silently count as 0: the fused attention on the CPU,
    grouped products of experts, products with a single vector, and those added in place. The C++ library, which the
    counter cannot see, does not run meanwhile.
    """
    with FlopCounterMode(display=False, custom_mapping=_FORMULAS) as counter:
        call()
    return counter.get_total_flops()


_FORMULAS: dict[Any, Callable[..., int]] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        lambda grad, q, k, v, *_, **__: sdpa_backward_flop_count(grad, q, k, v)
    ),
    # Each row is multiplied with one of the matrices, whatever their number.
    torch.ops.aten._grouped_mm: lambda a, b, *_, **__: 2 * a[-2] * a[-1] * b[-1],
    torch.ops.aten.mv: lambda a, *_, **__: 2 * a[0] * a[1],
    torch.ops.aten.addmm_: lambda _, a, b, **__: 2 * a[0] * a[1] * b[1],
    torch.ops.glassformer.mix_experts: (
        lambda x, weights, indices, gate, *_, **__: 6 * weights[0] * weights[1] * gate[1] * gate[2]
    ),
}
"""From the shapes of an operator's arguments to its operations."""


def peak_bytes(call: Callable[[], object]) -> int:
    """The peak of the bytes that torch allocates on the CPU while ``call`` runs, beyond those held before.

    ``call`` runs once before as a warm-up. The profiler reports each allocation and release, so the number is the same
    every time, unlike a process's resident memory.

    Raises:
        InputError: The profiler reports no allocation, as with work on another device.
    """
    # The profiler reads this when it is first used; without it, its log lines appear in a command's output.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    from torch.profiler import ProfilerActivity, profile

    call()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = call()
    del result
    recorded = profiler.profiler.kineto_results.events() if profiler.profiler is not None else []
    changes = sorted((event.start_ns(), event.nbytes()) for event in recorded if event.name() == "[memory]")
    require(len(changes) > 0, "a call that allocates nothing", "work on the CPU", "Measure a forward pass on the CPU.")
    return int(max(np.cumsum([size for _, size in changes]).max(), 0))


@dataclass(frozen=True)
class Measurement:
    """Cost of a call at each of several lengths."""

    lengths: tuple[int, ...]
    """In tokens, ascending."""
    seconds: tuple[float, ...]
    """The median time of one call; empty if no times were measured."""
    peak_bytes: tuple[int, ...]


Build = Callable[[int], Callable[[], object]]
"""Returns the call for a length, such as a forward pass over that many tokens."""


def measure_together(
    builds: Sequence[Build], lengths: Sequence[int] = LENGTHS, *, rounds: int = 5
) -> list[Measurement]:
    """Median time and peak memory of several calls at each length.

    All calls at all lengths run in turn, ``rounds`` times, so that other load on the machine affects all of them alike.
    One call of each before is a warm-up.

    Raises:
        InputError: No lengths, lengths that do not ascend from at least 1, or ``rounds`` below 1.
    """
    require_positive(rounds=rounds, lengths=len(lengths), **{f"lengths[{i}]": each for i, each in enumerate(lengths)})
    require(list(lengths) == sorted(set(lengths)), f"lengths = {list(lengths)}", "ascending lengths", "Sort them.")
    calls = [[build(length) for length in lengths] for build in builds]
    peaks = [[peak_bytes(call) for call in row] for row in calls]
    times: list[list[list[float]]] = [[[] for _ in lengths] for _ in builds]
    for _ in range(rounds):
        for place in range(len(lengths)):
            for row, taken in zip(calls, times, strict=True):
                start = time.perf_counter()
                row[place]()
                taken[place].append(time.perf_counter() - start)
    return [
        Measurement(tuple(lengths), tuple(statistics.median(each) for each in taken), tuple(peak))
        for taken, peak in zip(times, peaks, strict=True)
    ]


def fitted_exponent(lengths: Sequence[float | int], values: Sequence[float | int], *, tail: int | None = None) -> float:
    """The exponent b of ``values = a * lengths ** b``, by least squares on logarithms.

    For a sum of a linear and a quadratic part the fit lies between 1 and 2, closer to 2 for longer lengths. ``tail`` is
    the number of points to fit, counted from the last.

    Raises:
        InputError: Fewer than two points, different numbers of lengths and values, a number that is not above 0, equal
            lengths, or a tail that is not from 2 to the number of points.
    """
    points = len(lengths)
    require(
        points == len(values) and points >= 2,
        f"{points} lengths and {len(values)} values",
        "two or more of each, in equal numbers",
        "Measure at more lengths.",
    )
    tail = points if tail is None else tail
    require(2 <= tail <= points, f"tail = {tail} of {points} points", f"2 to {points}", "Fit two points or more.")
    fitted = np.array([lengths[-tail:], values[-tail:]], dtype=float)
    require(
        bool((fitted > 0).all() and np.isfinite(fitted).all()),
        "a length or value that is not a number above 0",
        "finite numbers above 0",
        "Remove such points: the fit takes logarithms.",
    )
    require(len(set(lengths[-tail:])) > 1, "one length only", "different lengths", "Measure at another length.")
    x, y = np.log(fitted)
    x = x - x.mean()
    return float((x @ (y - y.mean())) / (x @ x))
