"""Loads the directories named on standard input, under limits, and tells on standard output what
came of each.

A load may take 256 MiB of address space, which the system enforces, and 2 seconds of the processor,
in proportion more on a slow machine, after which it is interrupted. What is opened outside the
directory is told too. Arguments: intact directories, loaded first and without limits, so that what
is imported late counts for nobody.
"""

import json
import os
import resource
import site
import sys
from pathlib import Path
from typing import Any

import torch

from glassformer.checkpoints.decoders import family_to_write, load_decoder
from glassformer.checkpoints.description import describe
from glassformer.checkpoints.families.files import in_family
from glassformer.checkpoints.store import open_model
from glassformer.errors import CheckpointError, InputError
from glassformer.processor_time import ProcessorLimit

SECONDS = 2.0
BYTES = 2**28
_OWN = [
    os.path.realpath(place)
    for place in (sys.prefix, sys.base_prefix, "/proc/self", *site.getsitepackages())
]
_OWN.append(str(Path(__file__).resolve().parents[2] / "src"))
_OWN += ["/proc/meminfo", "/sys/fs/cgroup"]  # where it is read how much memory there is
_opened: list[str] = []


def note(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and isinstance(arguments[0], (str, bytes)):
        _opened.append(os.fsdecode(arguments[0]))


def outside(directory: str) -> list[str]:
    places = [os.path.realpath(directory), *_OWN]
    real = [os.path.realpath(path) for path in _opened]
    return [
        path
        for path in real
        if not any(path == place or path.startswith(place + "/") for place in places)
    ]


def status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def attempt(directory: str) -> dict[str, Any]:
    """Load, and look without loading: that must not fail otherwise either."""
    Path("/proc/self/clear_refs").write_text("5")  # makes VmHWM count from here
    before = status("VmHWM")
    _opened.clear()
    told: dict[str, Any] = {"outcome": "loaded", "got": "", "others": []}
    try:
        with ProcessorLimit(SECONDS):
            load_decoder(directory)
    except CheckpointError as error:
        told |= {"outcome": "refused", "got": error.got}
    except BaseException as error:
        told |= {"outcome": f"{type(error).__name__}: {error}"}
    told |= {"bytes": status("VmHWM") - before, "outside": outside(directory)}
    for look in (describe, look_at_each):
        try:
            look(Path(directory))
        except InputError:
            pass
        except BaseException as error:
            told["others"].append(f"{look.__name__}: {type(error).__name__}: {error}")
    told["outside"] += outside(directory)
    return told


def look_at_each(directory: Path) -> None:
    """As a conversion does."""
    stored = open_model(directory).decoder
    family = family_to_write(stored, None)
    tensors = stored.tensors if family is None else in_family(family, stored)[1]
    for tensor in tensors.values():
        assert tensor.read().numel() >= 0


def main() -> None:
    torch.set_num_threads(1)
    for intact in sys.argv[1:]:
        load_decoder(intact)
        describe(Path(intact))
        look_at_each(Path(intact))
    sys.addaudithook(note)
    most = status("VmSize") + BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    for line in sys.stdin:
        print(json.dumps(attempt(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
