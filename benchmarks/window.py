"""Time and peak memory of one windowed layer, forward and backward, in a separate process."""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import torch

from glassformer.layers.grouped_query import GroupedQueryAttention
from glassformer.layers.positions import RotaryEmbedding


def _memory(field: str) -> float:
    """A line of /proc/self/status in MiB."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def measure(length: int, window: int = 128) -> dict[str, float]:
    """Return milliseconds of a forward and backward pass (median of 7), and the peak in MiB."""
    torch.set_num_threads(2)
    torch.manual_seed(0)
    layer = GroupedQueryAttention(256, 8, 32, 2, window=window)
    rotation = RotaryEmbedding(32).rotation(length)
    x = torch.randn(1, length, 256, requires_grad=True)

    def run() -> None:
        layer(x, rotation=rotation).sum().backward()

    warm = torch.randn(1, 256, 256)
    layer(warm, rotation=RotaryEmbedding(32).rotation(256)).sum().backward()
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    run()
    peak = _memory("VmHWM") - before
    times = []
    for _ in range(7):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return {"milliseconds": 1e3 * statistics.median(times), "peak_mib": peak}


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))))
