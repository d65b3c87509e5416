"""Contestants measured in turns, so that other load falls on all alike; and their results."""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch


def in_turns(
    contestants: Mapping[str, Callable[[], object]], rounds: int, repeats: int = 1
) -> dict[str, float]:
    """Median seconds of one call for each contestant; see :func:`each_turn`."""
    return {
        name: statistics.median(seconds)
        for name, seconds in each_turn(contestants, rounds, repeats).items()
    }


def each_turn(
    contestants: Mapping[str, Callable[[], object]],
    rounds: int,
    repeats: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of one call for each contestant in each of ``rounds`` turns.

    A turn is ``repeats`` calls. Each contestant is called twice before, unmeasured.
    ``time.process_time`` as ``clock`` is for one thread on a busy machine.
    """
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for call in contestants.values():
        call()
        call()
    for _ in range(rounds):
        for name, call in contestants.items():
            start = clock()
            for _ in range(repeats):
                call()
            times[name].append((clock() - start) / repeats)
    return times


def processor() -> str:
    """Its name where the system tells it, and which instructions for bfloat16 it has."""
    description = (
        Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").is_file() else ""
    )
    facts = dict(line.split(":", 1) for line in description.splitlines() if ":" in line)
    names = {key.strip(): value.strip() for key, value in facts.items()}
    has = [
        flag
        for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
        if flag in names.get("flags", "").split()
    ]
    return " ".join([names.get("model name", platform.processor() or platform.machine()), *has])


def keep(results: dict[str, Any], out: Path, **more: Any) -> None:
    """Write ``results`` to ``out``, with versions, the processor and ``more``."""
    libraries = {name: version(name) for name in ("torch", "transformers")}
    here = {"processor": processor(), "threads": torch.get_num_threads()}
    versions = {"python": platform.python_version(), **libraries, **here, **more}
    out.write_text(json.dumps({**results, "versions": versions}, indent=2) + "\n", encoding="utf-8")
    print(f"written to {out}")
