"""What decides the last bits of a run besides its configuration: threads, processes, device,
versions and switches.
"""

import os
import platform
from pkgutil import resolve_name
from typing import Any

import torch

from glassformer.kernels.native import SWITCH

Environment = dict[str, Any]
"""Values of JSON by name."""


def environment_of(device: torch.device, processes: int) -> Environment:
    """Return what decides in which order ``processes`` on ``device`` add numbers, and how they
    multiply them.
    """
    return {
        "threads": torch.get_num_threads(),
        "processes": processes,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "glassformer": resolve_name(
            "glassformer:__version__"
        ),  # by its name, as the package imports this
        "native_library": os.environ.get(SWITCH, "0") in ("", "0"),
        "default_dtype": str(torch.get_default_dtype()),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "mkldnn": torch.backends.mkldnn.enabled,
    }


def changes(earlier: Environment, now: Environment) -> str:
    """Return the differences as a list in words; empty if there are none."""
    names = (name for name in now if name in earlier and earlier[name] != now[name])
    return ", ".join(f"{name} = {now[name]!r} instead of {earlier[name]!r}" for name in names)
