import resource
import sys

import pytest

from glassformer import allocator
from processes import printed

FAULTS = """
import resource
import torch
from glassformer.allocator import keep_freed_memory
if how == "kept":
    assert keep_freed_memory()
for _ in range(20):  # until the heap holds a block in which the others fit
    torch.ones(2**23)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.ones(2**23)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    return int(printed(f"how = {how!r}\n{FAULTS}"))


@pytest.mark.skipif(
    not hasattr(resource, "RUSAGE_SELF") or not sys.platform.startswith("linux"),
    reason="glibc only",
)
def test_pages_of_freed_blocks_are_not_cleared_again() -> None:
    """Blocks of 32 MiB, by themselves 8,192 pages each time."""
    if not allocator.keep_freed_memory():
        pytest.skip("another C library than glibc")
    assert faults("kept") < faults("given back") / 10


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not allocator.keep_freed_memory()
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda _: object())
    assert not allocator.keep_freed_memory()
