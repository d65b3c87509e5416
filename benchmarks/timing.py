"""Contestants measured in turns, so that what else the machine does falls on all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def in_turns(contestants: Mapping[str, Callable[[], object]], rounds: int, repeats: int = 1) -> dict[str, float]:
    """Median seconds of one call for each contestant, over ``rounds`` turns of ``repeats`` calls each.

    Each is called twice before, unmeasured.
    """
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for call in contestants.values():
        call()
        call()
    for _ in range(rounds):
        for name, call in contestants.items():
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            times[name].append((time.perf_counter() - start) / repeats)
    return {name: statistics.median(each) for name, each in times.items()}
