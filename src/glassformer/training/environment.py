"""The environment of a run, which decides its last bits besides the configuration.

It consists of threads, processes, device, versions and switches.
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
    """Return the environment: it decides the order of sums and the form of products."""
    if device.type == "cuda":
        device_name = torch.cuda.get_device_name(device)
    else:
        device_name = device.type
    return {
        "threads": torch.get_num_threads(),
        "processes": processes,
        "device": device_name,
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        # By name, because the package imports this module.
        "glassformer": resolve_name("glassformer:__version__"),
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
